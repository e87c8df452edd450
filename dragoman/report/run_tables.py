"""Typed views of the tables that a report reads: config.toml, imported.json, corpus.json and state.json.

A run of another trainer has only some of these values, and files may be damaged. A value that is missing or wrong
becomes its default, so readers need no checks of their own.
"""

from functools import partial
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from dragoman.run.config import TrainingSettings
from dragoman.run.files import read_json_table
from dragoman.run.folder import RunFolder
from dragoman.run.records import Count, ImportedFacts, ImportedFailure, ImportedLaunch, Number, Text, validate_known


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _replace_wrong_value(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return check(value)
        except ValidationError:
            return cls.model_fields[str(info.field_name)].get_default(call_default_factory=True)


# config.toml


class _DataTable(_Table):
    prepared: Text | None = None


class _ModelTable(_Table):
    preset: Text | None = None
    width: Number | None = None


class _TrainingTable(_Table):
    max_steps: Count | None = None
    label_smoothing: Number | None = None
    precision: Text | None = None
    price_per_hour: Number | None = None
    warmup_steps: Count | None = None
    clip_norm: Number | None = None
    global_batch_tokens: Number | None = None
    initial_batch_tokens: Number | None = None
    batch_doubling_steps: Number | None = None


class _EvaluationTable(_Table):
    metric: Text | None = None


class _CheckpointsTable(_Table):
    save_every: Number | None = None
    best_by: Text | None = None


class _ProvenanceTable(_Table):
    command: list[Text] | None = None
    git_commit: Text | None = None


class RecordedConfig(_Table):
    """The settings in config.toml that a report uses."""

    data: _DataTable = _DataTable()
    model: _ModelTable = _ModelTable()
    training: _TrainingTable = _TrainingTable()
    evaluation: _EvaluationTable = _EvaluationTable()
    checkpoints: _CheckpointsTable = _CheckpointsTable()
    provenance: _ProvenanceTable = _ProvenanceTable()


def read_model_table(run: RunFolder, step: int) -> dict[str, Any]:
    """Returns the shape of the model in state.json of a checkpoint; empty where that is damaged."""
    model = read_json_table(run.checkpoint(step) / "state.json").get("model")
    return model if isinstance(model, dict) else {}


def scheduled_training(config: dict[str, Any]) -> TrainingSettings | None:
    """Returns the [training] settings if they name the learning-rate schedule.

    An imported run has only what its log says; our defaults are not its settings.
    """
    training = config.get("training")
    if not isinstance(training, dict) or not {"schedule", "learning_rate"} <= training.keys():
        return None
    known = {key: value for key, value in training.items() if key in TrainingSettings.model_fields}
    try:
        return TrainingSettings.model_validate(known)
    except ValidationError:
        return None


# imported.json


class ImportedFile(_Table):
    """imported.json, which only runs of other trainers have."""

    trainer: Text = "unknown"
    sources: list[Text] = []
    facts: Annotated[ImportedFacts, BeforeValidator(partial(validate_known, ImportedFacts))] = ImportedFacts()
    printed_config: dict[str, Any] = {}
    """Configuration as the trainer printed it."""
    failures: list[ImportedFailure] = []
    launches: list[ImportedLaunch] = []
    """All starts of the trainer that the log shows, in order."""
    left_out: list[Text] = []
    """Messages about files that were not read, and why."""
    notes: list[Text] = []
    """Messages about information that the log lacks."""
    asked_for: list[Text] = []
    """Paths given to the command that imported the run."""


def read_imported(run: RunFolder) -> ImportedFile | None:
    """Reads imported.json; None for our own runs."""
    values = read_json_table(run.imported)
    return ImportedFile.model_validate(values) if values else None


# corpus.json, and manifest.json of a prepared corpus


class _SideFacts(_Table):
    num_bytes: Count = 0
    num_words: Count = 0
    num_tokens: Count = 0
    num_piece_bytes: Count = 0
    num_unknown: Count = 0


class _InputFacts(_Table):
    path: Text = ""
    num_bytes: Count = 0


class SplitFacts(_Table):
    """One split of the corpus."""

    num_pairs: Count = 0
    num_lines_read: Count = 0
    source: _SideFacts = _SideFacts()
    target: _SideFacts = _SideFacts()
    inputs: list[_InputFacts] = []


class _SplitsFacts(_Table):
    train: SplitFacts | None = None


class _TokenizerFacts(_Table):
    is_joint: bool = False
    num_source_pieces: Count | None = None
    num_target_pieces: Count | None = None


class _FilterFacts(_Table):
    name: Text = ""
    num_dropped: Count = 0


class _CleaningFacts(_Table):
    filters: list[_FilterFacts] = []


class CorpusFacts(_Table):
    """The prepared corpus in figures."""

    key: Text = ""
    """Hash of the corpus and its vocabulary."""
    tokenizer: _TokenizerFacts = _TokenizerFacts()
    splits: _SplitsFacts = _SplitsFacts()
    cleaning: _CleaningFacts = _CleaningFacts()


def read_corpus_facts(run: RunFolder, prepared: str | None) -> CorpusFacts:
    """Reads the figures that the run recorded, or else those in the prepared corpus itself."""
    values = read_json_table(run.corpus_facts)
    if not values and prepared is not None:
        values = read_json_table(run.path / prepared / "manifest.json")
    return CorpusFacts.model_validate(values)
