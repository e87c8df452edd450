"""What evaluation needs to know about a model, wherever it was loaded from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.corpus.prepared_corpus import MANIFEST_NAME, PreparedCorpus
from dragoman.evaluation.evaluation_set import EvaluationSet, Say, build_set
from dragoman.evaluation.training_overlap import TrainingOverlap, count_overlap
from dragoman.run.checkpoints import is_trained_on
from dragoman.run.config import ScoreTokenizer, load_settings
from dragoman.run.errors import UserError
from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.translation.exported_model import LoadedExport

if TYPE_CHECKING:
    from dragoman.translation.loading import LoadedRun
    from dragoman.translation.translator import LineTranslator

PREPARED_TEST_SET = "the prepared test set"


@dataclass(frozen=True)
class JudgedModel:
    """A model that translates, and what is known about its training."""

    translator: "LineTranslator"
    name: str
    """The folder it was loaded from."""
    description: str
    """Which weights these are, as in "the checkpoint of step 500 (best)"."""
    run: RunFolder | None = None
    """The run whose scores.jsonl records the scores; none for an export on its own."""
    checkpoint: Path | None = None
    step: int | None = None
    is_one_checkpoint: bool = True
    """Whether the scores are those of one step; not for averages, ensembles and exports."""
    prepared: Path | None = None
    """The corpus it was trained on, which may be gone."""
    tokenizer: ScoreTokenizer = "auto"
    languages: str | None = None

    def open_corpus(self) -> PreparedCorpus:
        """Opens the corpus that the model was trained on."""
        if self.prepared is None:
            raise UserError(f"{self.name} does not tell which data it was trained on.")
        if not (self.prepared / MANIFEST_NAME).is_file():
            raise UserError(f"The prepared data of {self.name} is not in {self.prepared}.")
        return PreparedCorpus.open(self.prepared)

    def is_corpus_of_training(self, corpus: PreparedCorpus) -> bool:
        """Whether the corpus has not been prepared again since."""
        return self.checkpoint is None or is_trained_on(self.checkpoint, corpus.fingerprint)

    def read_test_set(self, say: Say) -> EvaluationSet:
        """Reads the test set of the corpus that the model was trained on."""
        try:
            corpus = self.open_corpus()
        except UserError as error:
            message = f"{str(error).rstrip('.')}, so there is no test set"
            raise UserError(f"{message}: give text and its translation with --source and --reference.") from None
        if not self.is_corpus_of_training(corpus):
            say(
                f"{self.prepared} was prepared again since the run was trained: "
                "its test set may have sentences of the training."
            )
        sources, references = corpus.text("test")
        return build_set(PREPARED_TEST_SET, (PREPARED_TEST_SET, sources), [(PREPARED_TEST_SET, references)], say)

    def find_overlap(self, test_set: EvaluationSet) -> tuple[TrainingOverlap | None, str]:
        """Counts test sentences that are in the training data, and says it in a sentence; None if not known."""
        try:
            corpus = self.open_corpus()
            overlap = count_overlap(test_set, corpus)
        except (UserError, OSError, IndexError) as error:
            return None, f"Whether test sentences are in the training data is not known: {error}"
        is_same = self.is_corpus_of_training(corpus)
        since = "" if is_same else f" The data in {self.prepared} was prepared again since the training."
        return overlap, overlap.describe() + since


def describe_model(path: Path, loaded: "LoadedRun | LoadedExport") -> JudgedModel:
    """Describes what was loaded from a folder: a run, an export, or an export of a run that stands for it."""
    if not isinstance(loaded, LoadedExport):
        return describe_run(loaded)
    run = RunFolder(path)
    settings = load_settings(run.config) if run.exists else None
    return JudgedModel(
        loaded.translator,
        str(path),
        f"{loaded.facts.checkpoint} with CTranslate2 ({loaded.facts.quantization or 'float32'})",
        run if settings else None,
        is_one_checkpoint=False,
        step=loaded.step,
        prepared=settings.data.prepared if settings else None,
        tokenizer=settings.evaluation.tokenizer if settings else "auto",
        languages="-".join(loaded.facts.languages) if loaded.facts.languages else None,
    )


def describe_run(loaded: "LoadedRun") -> JudgedModel:
    """Describes a loaded run, or an ensemble whose first model is of this run."""
    run = RunFolder(loaded.checkpoint.parent.parent)
    return JudgedModel(
        loaded.translator,
        str(run.path),
        loaded.description or f"the checkpoint of step {loaded.step:,}",
        run,
        loaded.checkpoint,
        loaded.step,
        loaded.is_one_checkpoint,
        loaded.settings.data.prepared,
        loaded.settings.evaluation.tokenizer,
        read_languages(run),
    )


def read_languages(run: RunFolder) -> str | None:
    """Returns source and target language of the run's corpus, e.g. "en-ja"; None where they are not known."""
    try:
        languages = read_json(run.corpus_facts)["settings"]["languages"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return languages if isinstance(languages, str) else None
