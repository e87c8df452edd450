"""Figures of an interval of steps over all ranks: loss, speed, and the parts of a step that add up to its wall time.

Ranks leave the all-reduce together, so the rank that waited least was the slowest: its wait is the time of the network,
and the rest of the others' wait was for this rank. Clocks of different machines are never compared.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dragoman.cluster.step_clock import OWN_WORK, Part, StepClock, TimedStep
from dragoman.cluster.world import World

MAX_RANKS_LISTED = 64


@dataclass
class TrainMeters:
    """Sums since the last record. Losses are those of this rank, norms where replicas learn apart; the rest is the same
    on every rank."""

    num_steps: int = 0
    num_target_tokens: int = 0
    num_tokens: int = 0
    num_padded_tokens: int = 0
    num_full_steps: float = 0.0
    """Steps of full size that have as many tokens."""
    seconds: float = 0.0
    gradient_norm_sum: float = 0.0
    num_finite_norms: int = 0
    losses: list[Tensor] = field(default_factory=list)
    """Pairs (smoothed, plain) on the device, one per step."""

    def read(self, world: World) -> dict[str, float]:
        """Collective: returns the figures of the interval, the same on every rank."""
        sums = torch.stack(self.losses).sum(0).tolist()  # the only host sync of the interval
        # Replicas that learn apart have norms of their own; otherwise all ranks have the same.
        norms = [self.gradient_norm_sum, float(self.num_finite_norms)]
        smoothed, plain, norm_sum, num_norms = world.sum_numbers([*sums, *norms])
        return {
            "loss": smoothed / self.num_target_tokens,
            "negative_log_likelihood": plain / self.num_target_tokens,
            "gradient_norm": norm_sum / max(num_norms, 1.0),
            "seconds_per_step": self.seconds / self.num_steps,
            "target_tokens_per_second": self.num_target_tokens / self.seconds,
            "target_tokens_per_step": self.num_target_tokens / self.num_steps,
            "padding_share": 1 - self.num_tokens / self.num_padded_tokens,
            "batch_share": self.num_full_steps / self.num_steps,
        }


@dataclass(frozen=True)
class IntervalParts:
    """Seconds per step of an interval, by part."""

    attribution: dict[str, float]
    """Mean over ranks; `hidden_communication` is the part of backward during which gradients were sent."""
    slowest_rank: int
    slowest_machine: str
    slowest: dict[str, float]
    """Parts of the rank with the most work of its own."""
    work_by_rank: list[float]
    num_machines: int = 1

    @property
    def wall_seconds(self) -> float:
        """Wall time per step, with the time between steps."""
        return sum(self.attribution.values())

    def to_record(self) -> dict[str, Any]:
        """Returns the figures of a train record in metrics.jsonl."""
        slowest = {"rank": self.slowest_rank, "host": self.slowest_machine, "attribution": self.slowest}
        record = {
            "attribution": self.attribution,
            "wall_seconds_per_step": self.wall_seconds,
            "slowest": slowest,
            "num_machines": self.num_machines,
        }
        if len(self.work_by_rank) <= MAX_RANKS_LISTED:
            record["work_seconds_by_rank"] = self.work_by_rank
        return record


def read_parts(clock: StepClock, world: World) -> IntervalParts | None:
    """Collective: returns the parts since the last call; None if no step was timed."""
    before, steps = clock.read()
    return combine_parts(before, steps, world) if steps else None


def combine_parts(before: TimedStep, steps: list[TimedStep], world: World) -> IntervalParts:
    """Collective: combines the times of all ranks; `before` is the time before the first step."""
    num_steps = len(steps)
    waits = [step.seconds[Part.WAITING] for step in steps]
    shortest = world.smallest_numbers(waits + [step.hidden_seconds for step in steps])
    exposed = sum(shortest[:num_steps]) / num_steps
    own = {part: before.seconds[part] + sum(step.seconds[part] for step in steps) for part in Part}
    by_rank = [
        dict(zip(Part, (number / num_steps for number in row), strict=True))
        for row in world.gather_numbers([own[part] for part in Part])
    ]
    mean = {part: sum(row[part] for row in by_rank) / world.size for part in Part}
    hidden = min(sum(shortest[num_steps:]) / num_steps, mean[Part.BACKWARD])
    work = [sum(row[part] for part in OWN_WORK) for row in by_rank]
    slowest = max(range(world.size), key=work.__getitem__)
    return IntervalParts(
        attribution={
            "data": mean[Part.DATA],
            "forward": mean[Part.FORWARD],
            "backward": mean[Part.BACKWARD] - hidden,
            "hidden_communication": hidden,
            "exposed_communication": exposed,
            "straggler": max(0.0, mean[Part.WAITING] - exposed),
            "optimizer": mean[Part.OPTIMIZER],
            "evaluation": mean[Part.EVALUATION],
            "checkpoint": mean[Part.CHECKPOINT],
            "other": mean[Part.OTHER],
        },
        slowest_rank=slowest,
        slowest_machine=world.machines[slowest] if len(world.machines) == world.size else "",
        slowest={part.value: seconds for part, seconds in by_rank[slowest].items()},
        work_by_rank=work,
        num_machines=world.num_machines,
    )
