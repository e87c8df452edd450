"""Saves checkpoints in a background thread: the training loop only waits for a copy in memory.

A disk that is full, read-only or slow delays checkpoints, never steps.
"""

import dataclasses
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from dragoman.cluster.heartbeat import beat
from dragoman.model.device import is_accelerator
from dragoman.run.checkpoints import SavedEvaluation
from dragoman.run.commands import resume_command
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.folder import RunFolder
from dragoman.training.checkpoint import Snapshot, TrainingState, save_checkpoint
from dragoman.training.kept_checkpoints import KeptCheckpoints
from dragoman.training.learner import Learner, optimizer_tensors

RETRY_SECONDS = 30.0
_NUM_FINAL_ATTEMPTS = 3
FINAL_PAUSE_SECONDS = 2.0
BEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete and on disk."""

    step: int
    path: Path
    num_bytes: int
    seconds: float
    """Time to write, in parallel with steps."""
    snapshot_seconds: float
    """Time between two steps: to bring the state of replicas here, and to copy it in memory."""
    problems: tuple[str, ...] = ()
    """Damage found in older checkpoints."""

    def figures(self) -> dict[str, Any]:
        """Returns the values of its record in metrics.jsonl."""
        return {
            "path": str(self.path),
            "bytes": self.num_bytes,
            "seconds": self.seconds,
            "snapshot_seconds": self.snapshot_seconds,
        }


@dataclass(frozen=True)
class SaveFailed:
    """A checkpoint that could not be written."""

    step: int
    folder: Path
    reason: str

    @property
    def error(self) -> str:
        """The message for the user."""
        return f"The checkpoint of step {self.step} could not be written to {self.folder}: {self.reason}."


@dataclass(frozen=True)
class ReplicaTensors:
    """What replicas have besides the weights and moments of this rank."""

    agreed: dict[str, Tensor] = field(default_factory=dict)
    """Mean weights of all replicas, by parameter name; empty where all ranks have the same."""
    moments: dict[str, Tensor] = field(default_factory=dict)
    """Moments of the first replica, so that all hosts save the same."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    """How long it took to bring them here, over a slow link perhaps."""


SAME_EVERYWHERE = ReplicaTensors()


class HostCopy:
    """Host memory for weights and moments, allocated once and filled again for every checkpoint.

    It costs a rank that saves three times the size of the model in host memory, four times where weights are averaged,
    in addition to what training needs.
    """

    def __init__(self) -> None:
        self._copies: dict[str, dict[str, Tensor]] = {}

    def take(self, state: TrainingState, learner: Learner, replicas: ReplicaTensors = SAME_EVERYWHERE) -> Snapshot:
        """Copies the current state; the copy is valid until the next call."""
        return Snapshot(
            dataclasses.replace(state, loss_scale=dataclasses.replace(state.loss_scale)),
            self._fill("weights", dict(learner.model.named_parameters()) | replicas.agreed),
            self._fill("moments", _moments(state, learner) | replicas.moments),
            None if learner.average is None else self._fill("averaged", learner.average.tensors),
            self._fill("replicas", replicas.tensors),
        )

    def _fill(self, kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        copies = self._copies.setdefault(kind, {})
        for name, tensor in tensors.items():
            if name not in copies or copies[name].shape != tensor.shape:  # fragments on their way differ in size
                # An accelerator copies into pinned memory several times faster.
                copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_accelerator(tensor.device))
            copies[name].copy_(tensor.detach())
        return {name: copies[name] for name in tensors}


def _moments(state: TrainingState, learner: Learner) -> dict[str, Tensor]:
    """Returns the moments of updates; before the first one there are none, even if it has memory already."""
    return optimizer_tensors(learner.model, learner.optimizer) if state.num_updates else {}


class CheckpointSaver:
    """Writes one checkpoint at a time in the background; as a context manager, waits for the last one at the end."""

    def __init__(self, run: RunFolder, kept: KeptCheckpoints, saved_step: int | None = None) -> None:
        self._run = run
        self._kept = kept
        self._saved_step = saved_step
        """The step of the newest complete checkpoint; a resumed run has one from the start."""
        self._is_outdated = False
        """Whether that checkpoint lacks an evaluation made since."""
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

    def save(self, state: TrainingState, learner: Learner, replicas: ReplicaTensors = SAME_EVERYWHERE) -> bool:
        """Starts to save this state; returns False at once where an earlier one is still being written."""
        self._collect()
        if self._writing is not None:
            return False
        begin = time.perf_counter()
        snapshot = self._copy.take(state, learner, replicas)
        self._being_saved, self._retry_at = snapshot.state, math.inf
        self._writing = self._thread.submit(self._write, snapshot, replicas.seconds + time.perf_counter() - begin)
        return True

    def mark_outdated(self) -> None:
        """Requests that the step on disk is saved again, because it was evaluated since."""
        self.wait()
        self._is_outdated = True

    def poll(self) -> list[Saved | SaveFailed]:
        """Returns the outcomes since the last call; raises errors of the thread that are not the disk's."""
        self._collect()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def save_now(
        self,
        state: TrainingState,
        learner: Learner,
        replicas: ReplicaTensors = SAME_EVERYWHERE,
        num_attempts: int = 1,
    ) -> None:
        """Returns when this state is on disk; raises a UserError where every attempt failed."""
        self.wait()
        for attempt in range(num_attempts):
            if self._has(state):
                return
            if attempt:
                time.sleep(FINAL_PAUSE_SECONDS)
            self.save(state, learner, replicas)
            self.wait()
        if not self._has(state):
            raise self._failure()

    def finish(self, state: TrainingState, learner: Learner, replicas: ReplicaTensors = SAME_EVERYWHERE) -> None:
        """Saves the last state of a run, with several attempts."""
        self.save_now(state, learner, replicas, _NUM_FINAL_ATTEMPTS)

    def is_among_best(self, step: int, evaluation: SavedEvaluation) -> bool:
        """Whether a checkpoint with this evaluation would be among the best."""
        saved = self._being_saved
        rival = (saved.step, saved.evaluation) if saved is not None and saved.evaluation is not None else None
        return self._kept.is_among_best(step, evaluation, rival)

    def _has(self, state: TrainingState) -> bool:
        return self._saved_step == state.step and not self._is_outdated

    def _write(self, snapshot: Snapshot, snapshot_seconds: float) -> Saved | SaveFailed:
        """Runs in the thread; errors other than the disk's are raised where the outcome is collected."""
        begin = time.perf_counter()
        step = snapshot.state.step
        try:
            path = save_checkpoint(self._run, snapshot)
            problems = self._kept.add(step)
            num_bytes = sum(file.stat().st_size for file in path.iterdir())
        except OSError as error:
            return SaveFailed(step, self._run.checkpoints, describe_os_error(error))
        return Saved(step, path, num_bytes, time.perf_counter() - begin, snapshot_seconds, tuple(problems))

    def wait(self) -> None:
        """Waits for a checkpoint that is being written."""
        if self._writing is not None:
            while wait([self._writing], timeout=BEAT_SECONDS).not_done:
                beat("waiting for a checkpoint to be written")  # a slow disk is not a hang
            self._collect()

    def _collect(self) -> None:
        """Records the outcome of a finished attempt."""
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

    def _failure(self) -> UserError:
        """Returns the error of the last attempt and removes it from the outcomes, so that it is reported once."""
        failed = self._outcomes.pop()
        assert isinstance(failed, SaveFailed)
        if self._saved_step is None:
            return UserError(f"{failed.error} Nothing is trained yet.")
        return UserError(
            f"The last state, of step {failed.step}, could not be written to {failed.folder}: {failed.reason}. "
            f"The checkpoint of step {self._saved_step} is kept. Continue from it with: "
            f"{resume_command(self._run.path)}"
        )
