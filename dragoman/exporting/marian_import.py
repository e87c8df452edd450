"""Imports a Hugging Face Marian model as a run folder that translates, is scored, served, exported and fine-tuned."""

import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.corpus.batching import BatchPosition
from dragoman.corpus.prepared_corpus import tokenizer_path
from dragoman.evaluation.scores import choose_tokenizer
from dragoman.exporting.huggingface_search import from_huggingface_penalty
from dragoman.exporting.marian_files import read_table
from dragoman.exporting.marian_model import MarianModel, read_marian_model
from dragoman.model.shape import count_parameters
from dragoman.run.config import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, Settings, build_settings, dump_settings
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import replace_link, write_json, write_text
from dragoman.run.folder import RunFolder, make_run_folder
from dragoman.training.checkpoint import Snapshot, TrainingState, save_checkpoint
from dragoman.training.learner import LossScale
from dragoman.training.run_setup import require_free_folder

_LANGUAGES = re.compile(r"[A-Za-z]{2,3}-[A-Za-z]{2,3}")
_DEFAULT_BEAM_SIZE = 4
_MAX_TOKENS = 1_024
"""Longer sources are cut, whatever a model claims to take: all memory would not do."""


@dataclass(frozen=True)
class ImportedModel:
    """What was imported."""

    run: Path
    languages: str | None
    num_parameters: int
    num_source_subwords: int
    num_target_subwords: int
    encoder_layers: int
    decoder_layers: int
    width: int

    def figures(self) -> dict[str, Any]:
        """Returns what --json prints."""
        return asdict(self) | {"run": str(self.run)}

    def summary(self) -> str:
        """Says what was imported and where it is."""
        languages = f" {self.languages}" if self.languages else ""
        return (
            f"Imported a Marian model{languages} with {self.num_parameters / 1e6:.1f} million parameters "
            f"({self.encoder_layers} + {self.decoder_layers} layers, width {self.width}) into {self.run}."
        )


def import_marian(folder: Path, run: RunFolder, languages: str | None = None) -> ImportedModel:
    """Writes a Hugging Face Marian model as a run that begins, and may end, at step 0.

    The run folder appears complete or not at all.
    """
    if languages is not None and not _LANGUAGES.fullmatch(languages):
        raise UsageError(f"--languages takes two codes such as en-de, not {languages!r}.")
    require_free_folder(run)
    model = read_marian_model(folder)
    languages = languages or model.languages
    place = run.path.absolute()
    aside = RunFolder(place.with_name(f".{place.name}.partial"))
    shutil.rmtree(aside.path, ignore_errors=True)
    try:
        _write_run(aside, model, _build_settings(folder, model, languages), languages, folder)
        aside.path.rename(place)
    except OSError as error:
        raise UserError(f"The run folder {run.path} cannot be written: {describe_os_error(error)}.") from None
    finally:
        shutil.rmtree(aside.path, ignore_errors=True)
    return _describe(run.path, model, languages)


def _describe(run: Path, model: MarianModel, languages: str | None) -> ImportedModel:
    shape = model.shape
    return ImportedModel(
        run=run,
        languages=languages,
        num_parameters=count_parameters(shape),
        num_source_subwords=shape.source_vocab_size,
        num_target_subwords=shape.target_vocab_size,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        width=shape.width,
    )


def _build_settings(folder: Path, model: MarianModel, languages: str | None) -> Settings:
    """Returns the config of the run: the model exactly, its way to search, and defaults for training."""
    shape = asdict(model.shape)
    vocabulary = ("source_vocab_size", "target_vocab_size", "shares_vocabulary")
    values = {
        # The folder that `dragoman train` would prepare text in; there is none yet.
        "data": {"prepared": "prepared", "max_tokens": min(max(2, model.max_tokens), _MAX_TOKENS)},
        "model": {name: value for name, value in shape.items() if name not in vocabulary},
        "evaluation": _search_settings(folder),
    }
    if languages:
        values["evaluation"]["tokenizer"] = choose_tokenizer("auto", languages, [])
    return build_settings(values, where=str(folder))


def _search_settings(folder: Path) -> dict[str, Any]:
    """Returns beam size and length penalty of the model's makers, where they are within our limits."""
    asked = read_table(folder / "config.json") | read_table(folder / "generation_config.json", is_optional=True)
    beam_size, penalty = asked.get("num_beams"), asked.get("length_penalty")
    if type(beam_size) is not int or not 1 <= beam_size <= MAX_BEAM_SIZE:
        beam_size = _DEFAULT_BEAM_SIZE
    if not isinstance(penalty, int | float) or not 0 <= from_huggingface_penalty(penalty) <= MAX_LENGTH_PENALTY:
        penalty = 1.0  # the default of transformers
    return {"beam_size": beam_size, "length_penalty": from_huggingface_penalty(penalty)}


def _write_run(run: RunFolder, model: MarianModel, settings: Settings, languages: str | None, origin: Path) -> None:
    make_run_folder(run)
    run.tokenizers.mkdir()
    is_joint = model.shape.shares_vocabulary
    tokenizer_path(run.tokenizers, "source", is_joint).write_bytes(model.source.tokenizer)
    tokenizer_path(run.tokenizers, "target", is_joint).write_bytes(model.target.tokenizer)
    if languages:
        write_json(run.corpus_facts, {"settings": {"languages": languages}})
    provenance = {"dragoman": __version__, "imported_from": str(origin.absolute())}
    write_text(run.config, dump_settings(settings, provenance))
    state = TrainingState(
        step=0,
        num_updates=0,
        position=BatchPosition(),
        loss_scale=LossScale.start("fp32"),
        training_seconds=0.0,
        model=model.shape,
        data_fingerprint="",
    )
    checkpoint = save_checkpoint(run, Snapshot(state, model.weights, {}))
    for name in ("best", "latest"):
        replace_link(run.checkpoints / name, checkpoint.name)
