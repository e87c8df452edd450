"""Which model translates, as plain values: another process or machine loads the same one from them."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from dragoman.run.checkpoints import (
    MANIFEST_FILE,
    OPTIMIZER_FILE,
    REPLICAS_FILE,
    find_checkpoint,
    find_checkpoints_to_average,
    parse_average_name,
)
from dragoman.run.config import load_settings
from dragoman.run.files import sha256
from dragoman.run.folder import RunFolder, checkpoint_step
from dragoman.translation.exported_model import CHECKSUMS_FILE, is_export, load_export
from dragoman.translation.notices import Say
from dragoman.translation.translator import LineTranslator


@dataclass(frozen=True)
class ModelChoice:
    """A run or an export, and the settings of its search that differ from its own."""

    path: str
    checkpoint: str = "best"
    ensemble: tuple[str, ...] = ()
    """More models, each RUN or RUN@CHECKPOINT."""
    beam_size: int | None = None
    length_penalty: float | None = None
    usual_subwords: int | None = None
    """Longer lines are translated sentence by sentence; None: only those that do not fit the model."""

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Builds the choice from what `to_json` returned."""
        return cls(**values | {"ensemble": tuple(values["ensemble"])})

    def load(self, say: Say | None, num_workers: int | None) -> LineTranslator:
        """Loads the model; `say` receives notices about lines."""
        return self._load(say, num_workers).by_sentences(self.usual_subwords)

    def _load(self, say: Say | None, num_workers: int | None) -> LineTranslator:
        if is_export(Path(self.path)):
            return load_export(Path(self.path), self.beam_size, self.length_penalty, say, num_workers).translator
        from dragoman.translation.loading import load_run

        own = (self.checkpoint, self.beam_size, self.length_penalty, say, num_workers, self.ensemble)
        return load_run(Path(self.path), *own).translator

    def pinned(self) -> Self:
        """Names the step of "best" or "latest", so that all load the same while a run goes on."""
        if is_export(Path(self.path)) or self.checkpoint not in ("best", "latest"):
            return self
        [checkpoint] = _checkpoints(RunFolder(Path(self.path)), self.checkpoint)
        return replace(self, checkpoint=str(checkpoint_step(checkpoint)))

    def fingerprint(self) -> str:
        """Returns a hash of all that decides the translations: weights, tokenizers and settings of the search."""
        digest = hashlib.sha256(repr((self.beam_size, self.length_penalty, self.usual_subwords)).encode())
        for folder, checkpoint in self._models():
            digest.update(f"\0{parse_average_name(checkpoint) is not None}".encode())
            for path in _identifying_files(folder, checkpoint):
                digest.update(f"\0{path.name}\0{sha256(path)}".encode())
        return digest.hexdigest()

    def copy_to(self, folder: Path) -> Self:
        """Copies all that the model needs into a folder, as links where possible; returns the choice of the copy."""
        copies: list[str] = []
        for number, (model, checkpoint) in enumerate(self._models()):
            place = folder / str(number)
            for path in _needed_files(model, checkpoint):
                _link_or_copy(path, place / path.relative_to(model))
            copies.append(f"{place}@{checkpoint}" if number else str(place))
        return replace(self, path=copies[0], ensemble=tuple(copies[1:]))

    def _models(self) -> Iterator[tuple[Path, str]]:
        """Yields the folder and the checkpoint of each model."""
        yield Path(self.path), self.checkpoint
        for text in self.ensemble:
            path, at, checkpoint = text.rpartition("@")
            yield (Path(path), checkpoint) if at and not Path(text).exists() else (Path(text), "best")


def _needed_files(folder: Path, checkpoint: str) -> list[Path]:
    """Returns the files that translating with a checkpoint needs."""
    if is_export(folder):
        return [path for path in folder.iterdir() if path.is_file()]
    run = RunFolder(folder)
    weights = [
        path
        for each in _checkpoints(run, checkpoint)
        for path in each.iterdir()
        if path.name not in (OPTIMIZER_FILE, REPLICAS_FILE)
    ]
    return [run.config, *run.tokenizers.iterdir(), *weights]


def _identifying_files(folder: Path, checkpoint: str) -> list[Path]:
    """Returns small files that differ if the model differs: manifests hold hashes of the weights beside them."""
    if is_export(folder):
        return [folder / CHECKSUMS_FILE]
    run = RunFolder(folder)
    manifests = [each / MANIFEST_FILE for each in _checkpoints(run, checkpoint)]
    return [run.config, *sorted(run.tokenizers.iterdir()), *manifests]


def _checkpoints(run: RunFolder, which: str) -> list[Path]:
    """Returns the checkpoint of a name, or several for an average; the loader warns of missing ones."""
    best_by = load_settings(run.config).best_by
    if (average := parse_average_name(which)) is not None:
        return find_checkpoints_to_average(run, average, best_by, _ignore)
    return [find_checkpoint(run, which, best_by, _ignore)]


def _ignore(_text: str) -> None:
    """Ignores a warning that the loader gives as well."""


def _link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
