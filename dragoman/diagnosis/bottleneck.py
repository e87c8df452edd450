"""What holds a step back, judged by what each cause would give back if it were gone.

The largest part is not always the cause: one throttled worker makes computing look long for everybody. So each cause
is measured by the time a step would save without it, and computing is what remains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

BOTTLENECKS = ("compute", "network", "input", "straggler", "overhead")
PARTS = (
    "forward",
    "backward",
    "hidden_communication",
    "exposed_communication",
    "straggler",
    "data",
    "optimizer",
    "evaluation",
    "checkpoint",
    "other",
)
"""Of a step, as records name them; they add up to its wall time."""
COMPUTING = ("forward", "backward", "hidden_communication")
BINDING_SHARE = 0.3
"""A cause that would give back less than this does not bind: the step is bound by computing."""


@dataclass(frozen=True)
class StepView:
    """What is known of a typical step."""

    parts: Mapping[str, float]
    """Seconds by the names in `PARTS`, mean over ranks."""
    slowest: Mapping[str, float] | None = None
    """Seconds by part of the rank that had most to do itself."""
    work_by_rank: Sequence[float] = ()
    fixed_share: float = 0.0
    """Of forward and backward: what they would take for a batch of no tokens."""

    @property
    def seconds(self) -> float:
        """Wall time."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Losses:
    """Seconds a step would save without each cause; `compute` is what remains."""

    seconds: dict[str, float]
    overheads: dict[str, float]
    """What the overhead consists of."""
    excess_of_slowest: float
    """How much longer the slowest rank works than the others, step after step."""

    @property
    def bottleneck(self) -> str:
        """The cause that costs most, if it costs enough; unknown where no time was."""
        if not sum(self.seconds.values()):
            return "unknown"
        causes = {cause: seconds for cause, seconds in self.seconds.items() if cause != "compute"}
        worst = max(causes, key=causes.__getitem__)
        return worst if self.share(worst) >= BINDING_SHARE else "compute"

    def share(self, cause: str) -> float:
        """Of the wall time."""
        total = sum(self.seconds.values())
        return self.seconds[cause] / total if total else 0.0

    @property
    def margin(self) -> float:
        """How clear the verdict is: the share between it and the next best one."""
        found = self.bottleneck
        if found == "compute":
            return BINDING_SHARE - max(self.share(cause) for cause in self.seconds if cause != "compute")
        rivals = [self.share(cause) for cause in self.seconds if cause not in (found, "compute")]
        return self.share(found) - max([*rivals, BINDING_SHARE])


def find_losses(step: StepView) -> Losses:
    """What each cause costs."""
    parts = {name: step.parts.get(name, 0.0) for name in PARTS}
    computing = sum(parts[name] for name in COMPUTING)
    overheads = {name: parts[name] for name in ("evaluation", "checkpoint", "optimizer", "other")}
    overheads["small batches"] = step.fixed_share * computing
    losses = {"network": parts["exposed_communication"], "input": parts["data"], "straggler": parts["straggler"]}
    excess, cause = _excess_of_slowest(step, parts)
    if excess > parts["straggler"]:
        # Mean figures hold a share of what only one rank suffers from; what would be saved is all of it.
        losses["straggler"] = 0.0
        missing = excess * (1 - 1 / len(step.work_by_rank))
        if cause == "data":
            losses["input"] += missing
        elif cause == "checkpoint":
            overheads["checkpoint"] += missing
        else:
            losses["straggler"] = excess
    losses["overhead"] = sum(overheads.values())
    total = step.seconds
    losses = {name: min(max(0.0, seconds), total) for name, seconds in losses.items()}
    remainder = max(0.0, total - sum(losses.values()))
    return Losses({"compute": remainder} | losses, overheads, excess)


def _excess_of_slowest(step: StepView, parts: Mapping[str, float]) -> tuple[float, str]:
    """How much longer the slowest rank works than the mean of the others, and on what."""
    work = sorted(step.work_by_rank)
    if len(work) < 2 or step.slowest is None:
        return 0.0, ""
    excess = work[-1] - fmean(work[:-1])
    means = {
        "data": parts["data"],
        "checkpoint": parts["checkpoint"],
        "computing": sum(parts[name] for name in COMPUTING) + parts["optimizer"],
    }
    own = {
        "data": step.slowest.get("data", 0.0),
        "checkpoint": step.slowest.get("checkpoint", 0.0),
        "computing": sum(step.slowest.get(name, 0.0) for name in ("forward", "backward", "optimizer")),
    }
    return excess, max(means, key=lambda name: own[name] - means[name])
