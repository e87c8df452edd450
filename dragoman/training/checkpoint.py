"""Saves and restores checkpoints: one appears complete or not at all, with the hashes that prove it later.

Files: model.safetensors, optimizer.safetensors, averaged.safetensors where weights are averaged, state.json and
manifest.json; replicas.safetensors where replicas differ.
"""

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.corpus.batching import BatchPosition
from dragoman.model.shape import ModelShape, shape_from_dict
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_tensors_like, load_weights, save_tensors
from dragoman.run.checkpoints import (
    AVERAGED_FILE,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    REPLICAS_FILE,
    STATE_FILE,
    SavedEvaluation,
    WeightsName,
    require_same_data,
)
from dragoman.run.errors import UserError
from dragoman.run.files import fsync_folder, read_json, require_known_format, sha256, write_json
from dragoman.run.folder import RunFolder
from dragoman.run.synchronisation import Synchronisation
from dragoman.training.dev_progress import DevProgress
from dragoman.training.learner import Learner, LossScale, parameters_by_moment, restore_optimizer
from dragoman.training.updates import Updates
from dragoman.training.weight_average import MovingAverage


@dataclass(frozen=True)
class TrainingState:
    """The state of a run except weights and moments, as state.json holds it."""

    step: int
    num_updates: int
    """Steps minus those skipped because fp16 overflowed."""
    position: BatchPosition
    loss_scale: LossScale
    training_seconds: float
    model: ModelShape
    data_fingerprint: str
    evaluation: SavedEvaluation | None = None
    """`loss`, `bleu`, `chrf` and `tokenizer`, if this step was evaluated; `weights` tells whose figures they are where
    there is an average. Earlier programs saved fewer."""
    weights: WeightsName = "trained"
    """Which weights a translator should use: those that were better in the last evaluation."""
    average: dict[str, Any] | None = None
    """How the averaged weights were made, if there are any."""
    progress: DevProgress = field(default_factory=DevProgress)
    synchronisation: Synchronisation = field(default_factory=Synchronisation)
    replicas: dict[str, Any] = field(default_factory=dict)
    """Where replicas are in their sequence of exchanges."""
    has_replicas: bool = False
    """Whether the checkpoint holds tensors of replicas."""
    precision: str = ""
    """The precision that training.precision = "auto" was decided to be; empty in checkpoints of earlier programs."""

    def to_json(self) -> dict[str, Any]:
        """Returns the content of state.json."""
        return {"format_version": FORMAT_VERSION} | asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainingState":
        """Reads the result of `to_json`; raises on anything else."""
        values = dict(values)
        if (version := values.pop("format_version")) != FORMAT_VERSION:
            raise ValueError(
                f"it has format version {version}, but this program reads version {FORMAT_VERSION}; continue the run "
                "with the program that wrote it, or start a new one"
            )
        return cls(
            **values
            | {
                "position": BatchPosition(**values["position"]),
                "loss_scale": LossScale(**values["loss_scale"]),
                "model": shape_from_dict(values["model"]),
                "progress": DevProgress.from_json(values.get("progress", {})),
                "synchronisation": Synchronisation.from_json(values.get("synchronisation", {})),
            }
        )


@dataclass(frozen=True)
class Snapshot:
    """The complete state of a run at one step; must not change while it is written to disk."""

    state: TrainingState
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    averaged: dict[str, Tensor] | None = None
    replicas: dict[str, Tensor] = field(default_factory=dict)


def save_checkpoint(run: RunFolder, snapshot: Snapshot) -> Path:
    """Writes a checkpoint under another name and renames it into place.

    An OSError leaves earlier checkpoints unchanged and removes partial files if the disk allows it.
    """
    final = run.checkpoint(snapshot.state.step)
    aside = final.with_name(f".{final.name}.partial")
    try:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        restore_replaced_checkpoint(run)
        for leftover in run.checkpoints.glob(".step-*"):  # from a run that was killed while it saved
            shutil.rmtree(leftover, ignore_errors=True)
        aside.mkdir()
        _write_files(aside, snapshot)
        _put_in_place(aside, final)
        fsync_folder(run.checkpoints)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    """Writes the files of a checkpoint and the manifest with their hashes, all flushed to disk."""
    write_json(folder / STATE_FILE, snapshot.state.to_json())
    digests = {
        MODEL_FILE: save_tensors(folder / MODEL_FILE, snapshot.weights),
        OPTIMIZER_FILE: save_tensors(folder / OPTIMIZER_FILE, snapshot.moments),
        STATE_FILE: sha256(folder / STATE_FILE),
    }
    if snapshot.averaged is not None:
        digests[AVERAGED_FILE] = save_tensors(folder / AVERAGED_FILE, snapshot.averaged)
    if snapshot.replicas:
        digests[REPLICAS_FILE] = save_tensors(folder / REPLICAS_FILE, snapshot.replicas)
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": digest} for name, digest in digests.items()}
    manifest = {"format_version": FORMAT_VERSION, "step": snapshot.state.step, "files": files}
    write_json(folder / MANIFEST_FILE, manifest)
    fsync_folder(folder)


def restore_replaced_checkpoint(run: RunFolder) -> None:
    """Restores the name of a checkpoint whose replacement was killed between two renames."""
    for old in run.checkpoints.glob(".step-*.old"):
        final = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if not final.exists():
            old.rename(final)


def _put_in_place(aside: Path, final: Path) -> None:
    """Renames, also over an older checkpoint of the same step (a resumed run saves it again)."""
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        final.rename(old)
    try:
        aside.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_state(checkpoint: Path) -> TrainingState:
    """Reads state.json of a checkpoint."""
    try:
        values = read_json(checkpoint / STATE_FILE)
        require_known_format(checkpoint / STATE_FILE, values.get("format_version"), FORMAT_VERSION)
        return TrainingState.from_json(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{checkpoint / STATE_FILE} cannot be read: {error}.") from None


def restore_replicas(checkpoint: Path, state: TrainingState, updates: Updates) -> dict[str, Tensor]:
    """Restores the state of replicas from a verified checkpoint; returns its tensors."""
    try:
        expected = updates.expected_tensors(state.replicas) if state.has_replicas else {}
        tensors = load_tensors_like(expected, checkpoint / REPLICAS_FILE) if expected else {}
        updates.restore(state.replicas, tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(f"{checkpoint / STATE_FILE} has impossible values about replicas: {error}.") from None
    return tensors


def restore_learner(checkpoint: Path, learner: Learner, data_fingerprint: str) -> TrainingState:
    """Restores a verified checkpoint; refuses one of other data or of another model."""
    state = read_state(checkpoint)
    _require_same_shape(checkpoint, state.model, learner.model)
    require_same_data(checkpoint, data_fingerprint)
    expected = parameters_by_moment(learner.model) if state.num_updates else {}
    moments = load_tensors_like(expected, checkpoint / OPTIMIZER_FILE)
    load_weights(learner.model, checkpoint / MODEL_FILE)
    restore_optimizer(learner.model, learner.optimizer, moments, state.num_updates)
    if isinstance(learner.average, MovingAverage) and learner.average.continue_from(state.average):
        learner.average.restore(load_tensors_like(learner.average.tensors, checkpoint / AVERAGED_FILE))
    if state.loss_scale.is_dynamic == learner.loss_scale.is_dynamic:
        # Resumed in another precision, the scale starts again: fp16 with fp32's scale of 1 would lose small gradients.
        learner.loss_scale = state.loss_scale
    return state


def _require_same_shape(checkpoint: Path, saved: ModelShape, model: Transformer) -> None:
    """Refuses weights of another size, naming the settings that differ instead of tensors."""
    if differences := saved.differences(model.shape):
        raise UserError(
            f"{checkpoint} is from another model. Settings that differ (checkpoint, now): {'; '.join(differences)}."
        )
