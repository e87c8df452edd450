"""Finds the checkpoint a run continues from, on any of its hosts, and sends it to ranks that cannot read it.

Where hosts share no folder, every host saves checkpoints of its own. All ranks hold the same weights and moments, so
this costs no network traffic, and a run that loses its first host loses no checkpoint.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dragoman.cluster.world import World
from dragoman.model.weights import load_weights
from dragoman.run.checkpoints import MODEL_FILE, START_FOLDER, newest_complete_checkpoint
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, checkpoint_step
from dragoman.run.synchronisation import Synchronisation
from dragoman.training.checkpoint import TrainingState, read_state, restore_replaced_checkpoint
from dragoman.training.learner import Learner, empty_moments, optimizer_tensors, restore_optimizer
from dragoman.training.updates import Updates
from dragoman.training.weight_average import MovingAverage

_NO_CHECKPOINT = -1
_ALL_DAMAGED = -2


@dataclass(frozen=True)
class ResumePlan:
    """Which checkpoint this rank continues from, and whether it saves new ones."""

    checkpoint: Path | None
    """The checkpoint to read; None at the start of a run, or where another rank sends it."""
    sender: int | None = None
    """The rank that sends the state to all others; None where every rank can read the checkpoint."""
    is_saver: bool = False
    """Whether this rank saves checkpoints: one rank for each run folder, so one in all if hosts share the folder."""
    step: int | None = None
    """The step that the run continues from, on every rank; None at the start of a run."""

    @property
    def is_new_run(self) -> bool:
        """Whether no host has a checkpoint."""
        return self.step is None


def plan_resume(run: RunFolder, world: World, warn: Callable[[str], None]) -> ResumePlan:
    """Collective: finds the newest complete checkpoint of all hosts, and the ranks that can read it.

    Only the saver of a folder searches it, for all ranks that share it: it may write a checkpoint while others look.
    """
    saver = _saver_of_folder(run, world)
    is_saver = saver == world.rank
    mine = json.dumps([saver, _newest_step(run, warn) if is_saver else _NO_CHECKPOINT])
    reports = [json.loads(text) for text in world.gather_texts([(world.rank, mine)])]
    step = max(found for _, found in reports)
    if step < 0 and any(found == _ALL_DAMAGED for _, found in reports):
        raise UserError(f"All checkpoints in {run.checkpoints} are damaged; nothing was changed.")
    if step < 0:
        return ResumePlan(None, is_saver=is_saver)
    sender = next(rank for rank, (_, found) in enumerate(reports) if found == step)
    can_read = [reports[saver][1] == step for saver, _ in reports]
    path = run.checkpoint(step) if can_read[world.rank] else None
    return ResumePlan(path, None if all(can_read) else sender, is_saver, step)


def _newest_step(run: RunFolder, warn: Callable[[str], None]) -> int:
    restore_replaced_checkpoint(run)
    newest = newest_complete_checkpoint(run, warn)
    if newest is not None:
        return checkpoint_step(newest)
    return _ALL_DAMAGED if run.checkpoint_steps() else _NO_CHECKPOINT


def _saver_of_folder(run: RunFolder, world: World) -> int:
    """Collective: returns the first rank that sees the same run folder; it reads and writes for all that see it.

    Where no rank can write, because the disk is full, it is rank 0, which will report the error.
    """
    if world.size == 1:
        return 0
    (check,) = world.gather_texts([(0, secrets.token_hex(8))] if world.is_first else [])
    tokens = [run.path / f".seen-{check}-{rank}" for rank in range(world.size)]
    if world.local_rank == 0:
        with suppress(OSError):
            tokens[world.rank].touch()
    world.wait_for_all()
    # Each file is looked up by name: the listing of a network folder may be half a minute old.
    saver = next((rank for rank, token in enumerate(tokens) if token.exists()), 0)
    world.wait_for_all()
    if world.local_rank == 0:
        with suppress(OSError):
            tokens[world.rank].unlink()
    return saver


def send_state(learner: Learner, state: TrainingState | None, world: World, sender: int) -> TrainingState:
    """Collective: sends weights, moments and state from the rank that could read them to all others."""
    texts = [] if state is None or world.rank != sender else [(0, json.dumps(state.to_json()))]
    (text,) = world.gather_texts(texts)
    sent = TrainingState.from_json(json.loads(text))
    if sent.loss_scale.is_dynamic == learner.loss_scale.is_dynamic:
        learner.loss_scale = sent.loss_scale  # gradients of ranks with different scales would have different weight
    if state is None:
        restore_optimizer(learner.model, learner.optimizer, empty_moments(learner.model), sent.num_updates)
    moments = optimizer_tensors(learner.model, learner.optimizer)
    for tensor in (*(parameter.data for parameter in learner.model.parameters()), *moments.values()):
        world.send_tensor(tensor, sender)
    if isinstance(learner.average, MovingAverage) and learner.average.continue_from(sent.average):
        for tensor in learner.average.tensors.values():
            world.send_tensor(tensor, sender)
    return sent


def send_replicas(
    updates: Updates, state: TrainingState, tensors: Mapping[str, Tensor], world: World, sender: int
) -> None:
    """Collective: sends the state of replicas from the rank that could read it to all others."""
    expected = updates.expected_tensors(state.replicas) if state.has_replicas else {}
    received = {
        name: tensors[name].to(like.device) if name in tensors else torch.empty_like(like)
        for name, like in expected.items()
    }
    for tensor in received.values():
        world.send_tensor(tensor, sender)
    if world.rank != sender:
        updates.restore(state.replicas, received)


def read_synchronisation(resume: ResumePlan, world: World) -> Synchronisation:
    """Collective: returns how a resumed run synchronises, as its checkpoint says."""
    return share_synchronisation(read_state(resume.checkpoint).synchronisation if resume.checkpoint else None, world)


def share_synchronisation(known: Synchronisation | None, world: World) -> Synchronisation:
    """Collective: returns what the first rank that knows it gives."""
    texts = world.gather_texts([] if known is None else [(world.rank, json.dumps(known.to_json()))])
    return Synchronisation.from_json(json.loads(texts[0]))


def load_start_weights(run: RunFolder, learner: Learner, world: World) -> None:
    """Collective: the first rank that has the weights reads them and sends them to all others."""
    path = run.path / START_FOLDER / MODEL_FILE
    can_read = [bool(number) for (number,) in world.gather_numbers([float(path.exists())])]
    if not any(can_read):
        raise UserError(f"The weights to start from are missing: no host has {path}. Start the run again.")
    sender = can_read.index(True)
    problem: str | None = None
    if world.rank == sender:
        try:
            load_weights(learner.model, path)
        except UserError as error:
            problem = str(error)
    if (problem := world.first_error(problem)) is not None:
        raise UserError(problem)
    for parameter in learner.model.parameters():
        world.send_tensor(parameter.data, sender)
    if isinstance(learner.average, MovingAverage):
        learner.average.continue_from(None)
