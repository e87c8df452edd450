"""Starts a run from the weights of another one, for fine-tuning.

The weights are copied into the run when it is created, so that nothing depends on the other run afterwards.
"""

import filecmp
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dragoman.corpus.prepared_corpus import PreparedCorpus, tokenizer_path
from dragoman.corpus.shards import Side
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.shape import ModelShape, resolve_shape
from dragoman.run.checkpoints import MODEL_FILE, START_FOLDER
from dragoman.run.commands import own_command, shell_path
from dragoman.run.config import ModelSettings, Settings, load_settings
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder, open_run
from dragoman.run.schedule import build_schedule

_SIDES: tuple[Side, Side] = ("source", "target")


@dataclass(frozen=True)
class WarmStart:
    """The run that another one starts from, and which of its weights."""

    run: RunFolder
    which: str
    """What --checkpoint takes: best, latest, a step number or an average."""
    settings: Settings

    @classmethod
    def open(cls, text: str) -> Self:
        """Opens the run that `--from` names: RUN, or RUN@WHICH."""
        path, at, which = text.rpartition("@")
        if not at or Path(text).is_dir():
            path, which = text, "best"
        run = open_run(Path(path))
        if not run.checkpoint_steps():
            raise UserError(f"{run.path} has no checkpoint to start from.")
        return cls(run, which or "best", load_settings(run.config))

    @property
    def name(self) -> str:
        """The value of training.start_from that means the same from everywhere."""
        return f"{self.run.path.resolve()}@{self.which}"

    @property
    def peak_rate(self) -> float:
        """The highest learning rate of its schedule."""
        training = self.settings.training
        return build_schedule(training, self._shape(self.settings.model).width)(max(0, training.warmup_steps - 1))

    @property
    def is_joint(self) -> bool:
        """Whether both languages share one vocabulary."""
        return tokenizer_path(self.run.tokenizers, "source", is_joint=True).exists()

    def adapt(self, settings: Settings) -> Settings:
        """Returns settings with this run's model, changed only by what the person has set under [model]."""
        training = settings.training.model_copy(update={"start_from": self.name})
        model = merge_model(self.settings.model, settings.model)
        return settings.model_copy(update={"training": training, "model": model})

    def require_same_vocabulary(self, corpus: PreparedCorpus) -> None:
        """Refuses text that was cut into other subwords: the weights would be of no use for it."""
        is_same = corpus.is_joint == self.is_joint and all(
            _is_same_file(
                *(tokenizer_path(folder, side, self.is_joint) for folder in (self.run.tokenizers, corpus.folder))
            )
            for side in _SIDES
        )
        if not is_same:
            separate = "" if self.is_joint else " --separate"
            raise UserError(
                f"{corpus.folder} has another vocabulary than {self.run.path}, so its weights cannot be used. Prepare "
                f"the text with the vocabulary of that run: {own_command()} prepare … --reuse-vocabulary "
                f"{shell_path(self.run.tokenizers)}{separate}"
            )

    def require_same_shape(self, model: ModelSettings) -> None:
        """Refuses a model of another shape, naming the settings that differ."""
        if differences := self._shape(self.settings.model).differences(self._shape(model)):
            raise UsageError(
                f"A run cannot start from {self.run.path} with another model. Settings that differ (there, here): "
                f"{'; '.join(differences)}. Without settings under [model], its own are used."
            )

    def _shape(self, model: ModelSettings) -> ModelShape:
        source, target = (tokenizer_path(self.run.tokenizers, side, self.is_joint) for side in _SIDES)
        return resolve_shape(model, Tokenizer.load(source).vocab_size, Tokenizer.load(target).vocab_size, self.is_joint)

    def copy_weights(self, run: RunFolder, warn: Callable[[str], None] = print) -> str:
        """Writes the weights into a run that is being created; returns a description of them."""
        from dragoman.model.transformer import Transformer
        from dragoman.model.weights import save_tensors
        from dragoman.translation.chosen_weights import load_chosen_weights

        model = Transformer(self._shape(self.settings.model))
        chosen = load_chosen_weights(model, self.run, self.which, self.settings.best_by, warn)
        folder = run.path / START_FOLDER
        folder.mkdir(exist_ok=True)
        save_tensors(folder / MODEL_FILE, dict(model.named_parameters()))
        return chosen.description


def merge_model(base: ModelSettings, given: ModelSettings) -> ModelSettings:
    """Returns settings of a model with the changes that were given explicitly."""
    return base.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})


def _is_same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and filecmp.cmp(one, other, shallow=False)
