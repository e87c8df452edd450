"""Where hosts share no folder: every host keeps checkpoints of its own, and one that lacks the newest is sent it.

All ranks hold the same weights and moments, so a copy on each host costs no network; and a run that loses its first
host loses no checkpoint.
"""

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dragoman.cluster.world import World
from dragoman.run.checkpoints import newest_whole_checkpoint
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, checkpoint_step
from dragoman.training.checkpoint import TrainingState, recover_set_aside
from dragoman.training.optimizer import empty_moments, optimizer_tensors, restore_optimizer
from dragoman.training.step import Learner


@dataclass(frozen=True)
class Origin:
    """Where this rank's share of the run comes from and goes to."""

    checkpoint: Path | None
    """What to continue from, readable here; None to start afresh, or where another rank sends it."""
    sender: int | None = None
    """The rank that sends what it read to all, where some cannot read it themselves."""
    is_saver: bool = False
    """Whether this rank writes checkpoints: the first one, and one on every host that does not see its folder."""

    @property
    def is_beginning(self) -> bool:
        """Whether there is nothing to continue from, on any host."""
        return self.checkpoint is None and self.sender is None


def find_origin(run: RunFolder, world: World, warn: Callable[[str], None]) -> Origin:
    """Collective: the newest whole checkpoint of all hosts, and who can read it.

    Who shares the first rank's folder takes its word: it may write a checkpoint while others look.
    """
    is_shared = _sees_first_folder(run, world)
    is_saver = world.is_first or (world.local_rank == 0 and not is_shared)
    newest = _look(run, warn) if is_saver else None
    mine = json.dumps([is_shared, -1 if newest is None else checkpoint_step(newest)])
    told = [json.loads(text) for text in world.gather_texts([(world.rank, mine)])]
    step = max(found for _, found in told)
    if step < 0:
        return Origin(None, is_saver=is_saver)
    sender = next(rank for rank, (_, found) in enumerate(told) if found == step)
    has_first_it = told[0][1] == step
    can_read = [(shares and has_first_it) or found == step for shares, found in told]
    path = run.checkpoint(step) if can_read[world.rank] else None
    return Origin(path, None if all(can_read) else sender, is_saver)


def _look(run: RunFolder, warn: Callable[[str], None]) -> Path | None:
    recover_set_aside(run)
    newest = newest_whole_checkpoint(run, warn)
    if newest is None and run.checkpoint_steps():
        raise UserError(f"No checkpoint in {run.checkpoints} is whole; nothing was changed.")
    return newest


def _sees_first_folder(run: RunFolder, world: World) -> bool:
    """Collective: whether what the first rank writes into its run folder is seen by this one.

    Where it cannot write, on a full disk, nobody else is to write either: then all count as sharing.
    """
    if world.size == 1:
        return True
    name = _leave_token(run) if world.is_first else None
    (name,) = world.gather_texts([] if name is None else [(0, name)])
    is_seen = (run.path / name).exists()
    world.wait_for_all()
    if world.is_first and name:
        with suppress(OSError):
            (run.path / name).unlink()
    return is_seen


def _leave_token(run: RunFolder) -> str:
    name = f".seen-{secrets.token_hex(8)}"
    try:
        (run.path / name).touch()
    except OSError:
        return ""
    return name


def send_learner(learner: Learner, state: TrainingState | None, world: World, sender: int) -> TrainingState:
    """Collective: weights, moments and state of the rank that could read them, to all."""
    texts = [] if state is None or world.rank != sender else [(0, json.dumps(state.to_json()))]
    (text,) = world.gather_texts(texts)
    sent = TrainingState.from_json(json.loads(text))
    if state is None:
        restore_optimizer(learner.model, learner.optimizer, empty_moments(learner.model), sent.num_updates)
    moments = optimizer_tensors(learner.model, learner.optimizer)
    for tensor in (*(parameter.data for parameter in learner.model.parameters()), *moments.values()):
        world.send_tensor(tensor, sender)
    return sent
