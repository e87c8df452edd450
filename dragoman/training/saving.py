"""Saving off the step's path: the loop pays for a copy in memory, a thread of its own for everything about the disk.

A disk that is full, read-only or slow costs checkpoints, never steps.
"""

import dataclasses
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from dragoman.cluster.heartbeat import beat
from dragoman.monitoring.buffered_file import describe_trouble
from dragoman.run.config import CheckpointSettings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.training.checkpoint import Snapshot, TrainingState, is_among_best, save_checkpoint
from dragoman.training.optimizer import optimizer_tensors
from dragoman.training.step import Learner

RETRY_SECONDS = 30.0
NUM_FINAL_ATTEMPTS = 3
FINAL_PAUSE_SECONDS = 2.0
BEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is whole and on disk."""

    step: int
    path: Path
    num_bytes: int
    seconds: float
    """Of writing, beside the steps."""
    snapshot_seconds: float
    """Of copying in memory, between two steps."""

    def figures(self) -> dict[str, Any]:
        """What its record says."""
        return {
            "path": str(self.path),
            "bytes": self.num_bytes,
            "seconds": self.seconds,
            "snapshot_seconds": self.snapshot_seconds,
        }


@dataclass(frozen=True)
class SaveFailed:
    """A checkpoint the disk refused."""

    step: int
    folder: Path
    reason: str

    @property
    def error(self) -> str:
        """A sentence for the person."""
        return f"The checkpoint of step {self.step} could not be written to {self.folder}: {self.reason}."


class HostCopy:
    """Memory on the host for weights and moments, taken once and filled anew for every checkpoint.

    It makes a rank that saves need the model's size three times over in host memory, beside what training needs.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def take(self, state: TrainingState, learner: Learner) -> Snapshot:
        """A snapshot that stays as it is until the next one is taken."""
        return Snapshot(
            dataclasses.replace(state, loss_scale=dataclasses.replace(state.loss_scale)),
            self._fill(dict(learner.model.named_parameters())),
            self._fill(optimizer_tensors(learner.model, learner.optimizer)),
        )

    def _fill(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for name, tensor in tensors.items():
            if name not in self._copies:
                # A GPU copies into pinned memory several times as fast.
                self._copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[name].copy_(tensor.detach())
        return {name: self._copies[name] for name in tensors}


class CheckpointSaver:
    """Writes one checkpoint at a time in the background; as a context, lets the last one end before it is left."""

    def __init__(self, run: RunFolder, keep: CheckpointSettings, saved_step: int | None = None) -> None:
        self._run = run
        self._keep = keep
        self._saved_step = saved_step
        """The step of the newest whole checkpoint; a resumed run has one from the start."""
        self._is_outdated = False
        """Whether more is known of that step than its checkpoint says."""
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Saved | SaveFailed] | None = None
        self._being_saved: TrainingState | None = None
        self._outcomes: list[Saved | SaveFailed] = []
        self._retry_at = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)

    @property
    def is_retry_due(self) -> bool:
        """Whether the last attempt failed and it is time for another."""
        return time.monotonic() >= self._retry_at

    def save(self, state: TrainingState, learner: Learner) -> bool:
        """Begins to save this moment; False, at once, where an earlier one is still being written."""
        self._collect()
        if self._writing is not None:
            return False
        begin = time.perf_counter()
        snapshot = self._copy.take(state, learner)
        self._being_saved, self._retry_at = snapshot.state, math.inf
        self._writing = self._thread.submit(self._write, snapshot, time.perf_counter() - begin)
        return True

    def forget(self) -> None:
        """The step that is on disk already is to be saved again: more is known of it."""
        self._wait()
        self._is_outdated = True

    def poll(self) -> list[Saved | SaveFailed]:
        """What has ended since the last call; raises what went wrong in the thread and was not the disk's fault."""
        self._collect()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def save_now(self, state: TrainingState, learner: Learner, num_attempts: int = 1) -> None:
        """Returns when this very state is on disk; a UserError where the disk refuses it at every attempt."""
        self._wait()
        for attempt in range(num_attempts):
            if self._has(state):
                return
            if attempt:
                time.sleep(FINAL_PAUSE_SECONDS)
            self.save(state, learner)
            self._wait()
        if not self._has(state):
            raise self._refusal()

    def finish(self, state: TrainingState, learner: Learner) -> None:
        """Saves the state a run ends with, patiently: there is no later attempt."""
        self.save_now(state, learner, NUM_FINAL_ATTEMPTS)

    def is_among_best(self, evaluation: dict[str, float]) -> bool:
        """Whether a checkpoint with this evaluation would be kept for its quality."""
        return is_among_best(self._run, evaluation, self._keep, self._being_saved)

    def _has(self, state: TrainingState) -> bool:
        return self._saved_step == state.step and not self._is_outdated

    def _write(self, snapshot: Snapshot, snapshot_seconds: float) -> Saved | SaveFailed:
        """The thread's work; everything but trouble with the disk is raised where the outcome is collected."""
        begin = time.perf_counter()
        step = snapshot.state.step
        try:
            path = save_checkpoint(self._run, snapshot, self._keep)
            num_bytes = sum(file.stat().st_size for file in path.iterdir())
        except OSError as error:
            return SaveFailed(step, self._run.checkpoints, describe_trouble(error))
        return Saved(step, path, num_bytes, time.perf_counter() - begin, snapshot_seconds)

    def _wait(self) -> None:
        if self._writing is not None:
            while wait([self._writing], timeout=BEAT_SECONDS).not_done:
                beat("waiting for a checkpoint to be written")  # a slow disk is no hang
            self._collect()

    def _collect(self) -> None:
        """Takes note of how a finished attempt ended."""
        if self._writing is None or not self._writing.done():
            return
        ended, self._writing, self._being_saved = self._writing, None, None
        outcome = ended.result()
        self._outcomes.append(outcome)
        match outcome:
            case Saved():
                self._saved_step, self._is_outdated = outcome.step, False
            case SaveFailed():
                self._retry_at = time.monotonic() + RETRY_SECONDS

    def _refusal(self) -> UserError:
        """What the last attempt ended with; it is taken off the list, so that nobody tells it twice."""
        failed = self._outcomes.pop()
        assert isinstance(failed, SaveFailed)
        if self._saved_step is None:
            return UserError(f"{failed.error} Nothing is trained yet.")
        return UserError(
            f"The last state, of step {failed.step}, could not be written to {failed.folder}: {failed.reason}. "
            f"The checkpoint of step {self._saved_step} stays, and --resume continues from it."
        )
