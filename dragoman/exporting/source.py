"""What an export is made from: the weights of a run, its tokenizers, and the facts about its training."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.corpus.cleaning.filters import split_languages
from dragoman.corpus.prepared_corpus import tokenizer_path
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.shape import ModelShape, resolve_shape
from dragoman.model.transformer import Transformer
from dragoman.run.checkpoints import SavedEvaluation
from dragoman.run.config import Settings, load_settings
from dragoman.run.files import read_json_table
from dragoman.run.folder import RunFolder, open_run
from dragoman.translation.chosen_weights import load_chosen_weights


@dataclass(frozen=True)
class ExportSource:
    """A trained model on the CPU in float32, ready for translation, with everything that its exports tell about it."""

    run: RunFolder
    model: Transformer
    settings: Settings
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    tokenizer_files: tuple[Path, ...]
    """The SentencePiece models: one if the vocabulary is joint, otherwise source and target."""
    languages: tuple[str, str] | None
    """Codes of the source and the target language, e.g. ("en", "de"); None where the run does not tell."""
    step: int
    description: str
    """Which weights these are, e.g. "the checkpoint of step 500 (best)"."""
    is_average: bool = False
    """Whether the weights are the average of several checkpoints."""
    evaluation: SavedEvaluation | None = None
    """Figures of exactly these weights on the dev set, if they were evaluated."""

    @property
    def shape(self) -> ModelShape:
        """Size and architecture of the model."""
        return self.model.shape

    def copy_tokenizers(self, folder: Path) -> None:
        """Copies the SentencePiece models into a folder, under the names they have in a run."""
        for path in self.tokenizer_files:
            (folder / path.name).write_bytes(path.read_bytes())


def open_export_source(path: Path, which: str = "best", warn: Callable[[str], None] | None = None) -> ExportSource:
    """Loads what to export from a run; `which` is a checkpoint as in --checkpoint."""
    run = open_run(path)
    settings = load_settings(run.config)
    is_joint = tokenizer_path(run.tokenizers, "source", is_joint=True).exists()
    files = [tokenizer_path(run.tokenizers, side, is_joint) for side in ("source", "target")]
    source, target = (Tokenizer.load(file) for file in files)
    model = Transformer(resolve_shape(settings.model, source.vocab_size, target.vocab_size, is_joint))
    chosen = load_chosen_weights(model, run, which, settings.best_by, warn or (lambda _: None))
    return ExportSource(
        run,
        model.eval(),
        settings,
        source,
        target,
        tuple(dict.fromkeys(files)),
        read_languages(run),
        chosen.step,
        chosen.description,
        len(chosen.steps) > 1,
        chosen.evaluation,
    )


def read_languages(run: RunFolder) -> tuple[str, str] | None:
    """Returns the codes of source and target language; None where the corpus was prepared without them."""
    settings = read_json_table(run.corpus_facts).get("settings")
    languages = settings.get("languages") if isinstance(settings, dict) else None
    return split_languages(languages) if isinstance(languages, str) and "-" in languages else None
