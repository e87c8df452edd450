"""Saving and restoring a run: a checkpoint appears whole or not at all, with the hashes that prove it later.

model.safetensors optimizer.safetensors state.json manifest.json; `latest` and `best` are links to steps.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.corpus.batching import BatchPosition
from dragoman.model.shape import ModelShape, shape_from_dict
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_tensors, load_weights, save_tensors
from dragoman.run.checkpoints import MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE, STATE_FILE
from dragoman.run.config import CheckpointSettings
from dragoman.run.errors import UserError
from dragoman.run.files import fsync_folder, read_json, replace_link, sha256, write_json
from dragoman.run.folder import RunFolder
from dragoman.training.guard import LossScale
from dragoman.training.optimizer import restore_optimizer
from dragoman.training.step import Learner

FORMAT_VERSION = 2


@dataclass(frozen=True)
class TrainingState:
    """What a run knows besides weights and moments; small enough to read."""

    step: int
    num_updates: int
    """Steps less those skipped because fp16 overflowed."""
    position: BatchPosition
    loss_scale: LossScale
    training_seconds: float
    model: ModelShape
    data_fingerprint: str
    evaluation: dict[str, float] | None = None
    """`loss` and `bleu` where this very step was evaluated."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"format_version": FORMAT_VERSION} | asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainingState":
        """The state `to_json` gave; anything else raises."""
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
            }
        )


@dataclass(frozen=True)
class Snapshot:
    """All of one moment of a run; whoever writes it to disk relies on nobody changing it meanwhile."""

    state: TrainingState
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


def save_checkpoint(run: RunFolder, snapshot: Snapshot, keep: CheckpointSettings) -> Path:
    """Writes a checkpoint aside, renames it into place, moves the links and removes what need not be kept.

    An OSError leaves earlier checkpoints as they were, and nothing half-written where the disk allows removing it.
    """
    step = snapshot.state.step
    final = run.checkpoint(step)
    aside = final.with_name(f".{final.name}.partial")
    try:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        recover_set_aside(run)
        for leftover in run.checkpoints.glob(".step-*"):  # of a run that was killed while it saved
            shutil.rmtree(leftover, ignore_errors=True)
        aside.mkdir()
        _write_files(aside, snapshot)
        _put_in_place(aside, final)
        fsync_folder(run.checkpoints)
        replace_link(run.checkpoints / "latest", final.name)
        _prune(run, keep, step)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    """The files of a checkpoint, flushed to disk, and the manifest that proves them."""
    write_json(folder / STATE_FILE, snapshot.state.to_json())
    digests = {
        MODEL_FILE: save_tensors(folder / MODEL_FILE, snapshot.weights),
        OPTIMIZER_FILE: save_tensors(folder / OPTIMIZER_FILE, snapshot.moments),
        STATE_FILE: sha256(folder / STATE_FILE),
    }
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": digest} for name, digest in digests.items()}
    manifest = {"format_version": FORMAT_VERSION, "step": snapshot.state.step, "files": files}
    write_json(folder / MANIFEST_FILE, manifest)
    fsync_folder(folder)


def recover_set_aside(run: RunFolder) -> None:
    """Gives a checkpoint its name back whose replacement was killed between two renames."""
    for old in run.checkpoints.glob(".step-*.old"):
        final = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if not final.exists():
            old.rename(final)


def _put_in_place(aside: Path, final: Path) -> None:
    """Renames, also over an older checkpoint of the same step (a resumed run passes it again)."""
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


def _prune(run: RunFolder, keep: CheckpointSettings, written_step: int) -> None:
    """Keeps the last N up to the one just written and the best K, and points `best` at the best of all.

    Later ones are damaged (the run was resumed from before them) and wait to be written again.
    """
    earlier = [step for step in run.checkpoint_steps() if step <= written_step]
    ranked = sorted(
        (score, step) for step in earlier if (score := _badness(run.checkpoint(step), keep.best_by)) is not None
    )
    best = [step for _, step in ranked[: keep.keep_best]]
    if best:
        replace_link(run.checkpoints / "best", run.checkpoint(best[0]).name)
    for step in set(earlier[: -keep.keep_last]) - set(best):
        shutil.rmtree(run.checkpoint(step), ignore_errors=True)


def is_among_best(
    run: RunFolder, evaluation: dict[str, float], keep: CheckpointSettings, being_saved: TrainingState | None = None
) -> bool:
    """Whether a checkpoint with this evaluation would be kept for its quality, beside one still on its way to disk."""
    others = {step: _badness(run.checkpoint(step), keep.best_by) for step in run.checkpoint_steps()}
    if being_saved is not None and being_saved.evaluation is not None:
        others[being_saved.step] = _sign(keep.best_by) * being_saved.evaluation[keep.best_by]
    own = _sign(keep.best_by) * evaluation[keep.best_by]
    num_better = sum(other is not None and other <= own for other in others.values())
    return num_better < keep.keep_best


def _sign(best_by: str) -> float:
    return -1.0 if best_by == "bleu" else 1.0


def _badness(checkpoint: Path, best_by: str) -> float | None:
    """The figure checkpoints are ranked by, low is good; None for one that was not evaluated or cannot be read."""
    try:
        evaluation = read_json(checkpoint / STATE_FILE)["evaluation"]
        return None if evaluation is None else _sign(best_by) * float(evaluation[best_by])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_state(checkpoint: Path) -> TrainingState:
    """The small state of a checkpoint."""
    try:
        return TrainingState.from_json(read_json(checkpoint / STATE_FILE))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{checkpoint / STATE_FILE} cannot be read: {error}.") from None


def restore_learner(checkpoint: Path, learner: Learner, data_fingerprint: str) -> TrainingState:
    """Puts a verified checkpoint back; a run over other data or of another model is refused."""
    state = read_state(checkpoint)
    require_same_shape(checkpoint, state.model, learner.model)
    if state.data_fingerprint != data_fingerprint:
        raise UserError(
            f"{checkpoint} was trained on other prepared data ({state.data_fingerprint[:12]}) "
            f"than data.prepared now holds ({data_fingerprint[:12]})."
        )
    load_weights(learner.model, checkpoint / MODEL_FILE)
    moments = load_tensors(checkpoint / OPTIMIZER_FILE)
    try:
        restore_optimizer(learner.model, learner.optimizer, moments, state.num_updates)
    except KeyError as error:
        raise UserError(f"{checkpoint / OPTIMIZER_FILE} has no tensor {error}.") from None
    if state.loss_scale.is_dynamic == learner.loss_scale.is_dynamic:
        # Resumed in another precision, the scale begins anew: fp16 with fp32's scale of 1 would lose small gradients.
        learner.loss_scale = state.loss_scale
    return state


def require_same_shape(checkpoint: Path, saved: ModelShape, model: Transformer) -> None:
    """Refuses weights of another size in words about the model, not about tensors."""
    if differences := saved.differences(model.shape):
        raise UserError(f"{checkpoint} is from another model (there, here): {'; '.join(differences)}.")
