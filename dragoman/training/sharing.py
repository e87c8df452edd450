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

NO_CHECKPOINT = -1
ALL_DAMAGED = -2


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

    Who shares a folder takes its keeper's word: it may write a checkpoint while others look.
    """
    keeper = _keeper_of_folder(run, world)
    is_saver = keeper == world.rank
    mine = json.dumps([keeper, _newest_step(run, warn) if is_saver else NO_CHECKPOINT])
    told = [json.loads(text) for text in world.gather_texts([(world.rank, mine)])]
    step = max(found for _, found in told)
    if step < 0 and any(found == ALL_DAMAGED for _, found in told):
        raise UserError(f"No checkpoint in {run.checkpoints} is whole; nothing was changed.")
    if step < 0:
        return Origin(None, is_saver=is_saver)
    sender = next(rank for rank, (_, found) in enumerate(told) if found == step)
    can_read = [told[keeper][1] == step for keeper, _ in told]
    path = run.checkpoint(step) if can_read[world.rank] else None
    return Origin(path, None if all(can_read) else sender, is_saver)


def _newest_step(run: RunFolder, warn: Callable[[str], None]) -> int:
    recover_set_aside(run)
    newest = newest_whole_checkpoint(run, warn)
    if newest is not None:
        return checkpoint_step(newest)
    return ALL_DAMAGED if run.checkpoint_steps() else NO_CHECKPOINT


def _keeper_of_folder(run: RunFolder, world: World) -> int:
    """Collective: the first rank that sees the same run folder as this one; it reads and writes for all who do.

    Where nobody can write, on a full disk, the first of all is taken: it will say so.
    """
    if world.size == 1:
        return 0
    (check,) = world.gather_texts([(0, secrets.token_hex(8))] if world.is_first else [])
    tokens = [run.path / f".seen-{check}-{rank}" for rank in range(world.size)]
    if world.local_rank == 0:
        with suppress(OSError):
            tokens[world.rank].touch()
    world.wait_for_all()
    # Asked for by name: a listing of a network folder may be half a minute old.
    keeper = next((rank for rank, token in enumerate(tokens) if token.exists()), 0)
    world.wait_for_all()
    if world.local_rank == 0:
        with suppress(OSError):
            tokens[world.rank].unlink()
    return keeper


def send_learner(learner: Learner, state: TrainingState | None, world: World, sender: int) -> TrainingState:
    """Collective: weights, moments and state of the rank that could read them, to all."""
    texts = [] if state is None or world.rank != sender else [(0, json.dumps(state.to_json()))]
    (text,) = world.gather_texts(texts)
    sent = TrainingState.from_json(json.loads(text))
    if sent.loss_scale.is_dynamic == learner.loss_scale.is_dynamic:
        learner.loss_scale = sent.loss_scale  # with another than its peers', a rank's gradients would weigh differently
    if state is None:
        restore_optimizer(learner.model, learner.optimizer, empty_moments(learner.model), sent.num_updates)
    moments = optimizer_tensors(learner.model, learner.optimizer)
    for tensor in (*(parameter.data for parameter in learner.model.parameters()), *moments.values()):
        world.send_tensor(tensor, sender)
    return sent
