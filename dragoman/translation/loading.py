"""Loads a translator from run folders: their configs, tokenizers and weights are all that is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman.corpus.prepared_corpus import tokenizer_path
from dragoman.corpus.shards import SIDES
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.device import choose_device
from dragoman.model.shape import resolve_shape
from dragoman.model.transformer import Transformer
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder, checkpoint_step, open_run
from dragoman.run.records import EvaluationRecord
from dragoman.run.summary import read_evaluation_records
from dragoman.run.units import SCORE_PATTERNS
from dragoman.translation.chosen_weights import ChosenWeights, load_chosen_weights
from dragoman.translation.notices import Say
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.ensemble import Ensemble
from dragoman.translation.torch_search.torch_backend import TorchBackend, choose_num_workers
from dragoman.translation.translator import LineTranslator


@dataclass(frozen=True)
class LoadedRun:
    """A trained translator with the settings and the checkpoint it was loaded from."""

    translator: LineTranslator
    settings: Settings
    checkpoint: Path
    """The checkpoint; where several were averaged, the newest."""
    description: str = ""
    """What was loaded, as in "the checkpoint of step 500 (best)"; averages and ensembles are named too."""
    is_one_checkpoint: bool = True
    """False for averages and ensembles, which no evaluation during the training scored."""

    @property
    def step(self) -> int:
        """The step at which the weights were saved."""
        return checkpoint_step(self.checkpoint)

    def describe(self) -> str:
        """Says in a sentence what was loaded and how it scored on the dev set, if that was recorded."""
        loaded = self.description or f"the checkpoint of step {self.step:,}"
        return f"Translating with {loaded}" + (f": {self._describe_score()}." if self.is_one_checkpoint else ".")

    def _describe_score(self) -> str:
        """Gives the figure that the best checkpoint of this run is chosen by."""
        evaluation, metric = self._find_evaluation(), self.settings.best_by
        figure = None if evaluation is None else getattr(evaluation, metric)
        if evaluation is None or figure is None:
            return "not evaluated on the dev set"
        score = SCORE_PATTERNS[metric].format(figure)
        if metric == "loss":
            return score
        is_signed = metric == "bleu" and evaluation.signature  # the signature is that of BLEU
        return f"{score} on the dev set" + (f" ({evaluation.signature})" if is_signed else "")

    def _find_evaluation(self) -> EvaluationRecord | None:
        records = read_evaluation_records(RunFolder(self.checkpoint.parent.parent))
        return next((record for record in reversed(records) if record.step == self.step), None)


@dataclass(frozen=True)
class _Member:
    """One model of an ensemble, or the only model."""

    run: RunFolder
    settings: Settings
    tokenizers: tuple[Tokenizer, Tokenizer]
    model: Transformer
    weights: ChosenWeights


def load_run(
    path: Path,
    which: str = "best",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    say: Say | None = None,
    num_workers: int | None = None,
    ensemble: Sequence[str] = (),
) -> LoadedRun:
    """Loads a run's best, latest, numbered or averaged checkpoint; searches as in its config unless given.

    `ensemble` names further models as RUN or RUN@CHECKPOINT; their probabilities are averaged with the first one's.
    On a CPU, this process computes with one thread from now on, and large inputs are shared by several processes.
    """
    device = choose_device()
    if device.type == "cpu":
        torch.set_num_threads(1)
    elif num_workers not in (None, 1):
        raise UsageError("--workers must be 1 on a GPU: one process uses all of it.")
    names = [(open_run(path), which), *map(_parse_member, ensemble)]
    _require_same_vocabulary([run for run, _ in names])
    members = [_load_member(run, its_which, say or (lambda _: None)) for run, its_which in names]
    first = members[0]
    evaluation = first.settings.evaluation
    search = SearchSettings(
        beam_size=evaluation.beam_size if beam_size is None else beam_size,
        length_penalty=evaluation.length_penalty if length_penalty is None else length_penalty,
    )
    models = [member.model for member in members]
    model = (models[0] if len(models) == 1 else Ensemble(models)).to(device)
    if num_workers is None:
        num_workers = choose_num_workers(model, search)
    source, target = first.tokenizers
    backend = TorchBackend(model, target.num_subwords, num_workers)
    max_tokens = min(member.settings.data.max_tokens for member in members)
    return LoadedRun(
        LineTranslator(backend, source, target, search, max_tokens, say),
        first.settings,
        first.weights.checkpoint,
        _describe_all(members),
        is_one_checkpoint=len(members) == 1 and len(first.weights.steps) == 1,
    )


def _parse_member(name: str) -> tuple[RunFolder, str]:
    """Splits RUN@CHECKPOINT; a folder whose own name has an @ is taken as it is."""
    path, at, which = name.rpartition("@")
    return (open_run(Path(name)), "best") if not at or Path(name).is_dir() else (open_run(Path(path)), which)


def _require_same_vocabulary(runs: Sequence[RunFolder]) -> None:
    """Refuses models that do not number their subwords alike: their probabilities cannot be averaged."""
    first = runs[0]
    for other in runs[1:]:
        for side, mine, its in zip(SIDES, _tokenizer_files(first), _tokenizer_files(other), strict=True):
            if mine.is_file() and its.is_file() and mine.read_bytes() != its.read_bytes():
                raise UserError(
                    f"{first.path} and {other.path} cannot form an ensemble: their {side} vocabularies differ. All "
                    "models of an ensemble must be trained on text prepared with the same tokenizers."
                )


def _tokenizer_files(run: RunFolder) -> list[Path]:
    is_joint = tokenizer_path(run.tokenizers, "source", is_joint=True).exists()
    return [tokenizer_path(run.tokenizers, side, is_joint) for side in SIDES]


def _load_member(run: RunFolder, which: str, warn: Say) -> _Member:
    settings = load_settings(run.config)
    files = _tokenizer_files(run)
    source, target = map(Tokenizer.load, files)
    is_joint = files[0] == files[1]
    model = Transformer(resolve_shape(settings.model, source.vocab_size, target.vocab_size, is_joint))
    weights = load_chosen_weights(model, run, which, settings.best_by, warn)
    return _Member(run, settings, (source, target), model, weights)


def _describe_all(members: Sequence[_Member]) -> str:
    if len(members) == 1:
        return members[0].weights.description
    parts = [f"{member.weights.description} of {member.run.path}" for member in members]
    return f"an ensemble of {len(members)} models: {'; '.join(parts)}"
