"""Where the time of an interval went, over all ranks: the parts of a step, which add up to its wall time.

Ranks leave the exchange of gradients together, so the one that waited least was the slowest: its wait is what the
network took, and what the others waited on top of that they waited for it. No clock of one machine is compared with
another's.
"""

from dataclasses import dataclass
from typing import Any

from dragoman.cluster.part_clock import OWN_WORK, Part, PartClock, StepTimes
from dragoman.cluster.world import World

MOST_RANKS_LISTED = 64


@dataclass(frozen=True)
class IntervalParts:
    """Seconds per step, of an interval of steps."""

    attribution: dict[str, float]
    """Mean over ranks; `hidden_communication` is the part of backward during which gradients travelled."""
    slowest_rank: int
    slowest_machine: str
    slowest: dict[str, float]
    """The parts of the rank that had most to do itself."""
    work_by_rank: list[float]

    @property
    def wall_seconds(self) -> float:
        """All of a step, with what lies between two."""
        return sum(self.attribution.values())

    def to_record(self) -> dict[str, Any]:
        """As it stands in a record of metrics.jsonl."""
        slowest = {"rank": self.slowest_rank, "host": self.slowest_machine, "attribution": self.slowest}
        record = {
            "attribution": self.attribution,
            "wall_seconds_per_step": self.wall_seconds,
            "slowest": slowest,
        }
        if len(self.work_by_rank) <= MOST_RANKS_LISTED:
            record["work_seconds_by_rank"] = self.work_by_rank
        return record


def read_parts(clock: PartClock, world: World) -> IntervalParts | None:
    """Collective: the parts since the last reading; None where nothing is noted."""
    before, steps = clock.read()
    return combine_parts(before, steps, world) if steps else None


def combine_parts(before: StepTimes, steps: list[StepTimes], world: World) -> IntervalParts:
    """Collective: this rank's times and all others', as seconds per step."""
    num_steps = len(steps)
    waits = [step.seconds[Part.WAITING] for step in steps]
    shortest = world.smallest_numbers(waits + [step.hidden_seconds for step in steps])
    exposed = sum(shortest[:num_steps])
    mine = {part: before.seconds[part] + sum(step.seconds[part] for step in steps) for part in Part}
    table = [
        dict(zip(Part, (number / num_steps for number in row), strict=True))
        for row in world.gather_numbers([mine[part] for part in Part])
    ]
    mean = {part: sum(row[part] for row in table) / world.size for part in Part}
    hidden = min(sum(shortest[num_steps:]) / num_steps, mean[Part.BACKWARD])
    exposed /= num_steps
    work = [sum(row[part] for part in OWN_WORK) for row in table]
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
        slowest={part.value: seconds for part, seconds in table[slowest].items()},
        work_by_rank=work,
    )
