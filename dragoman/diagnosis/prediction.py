"""How long a step will take, from what a rehearsal measured: with an interval, and split by cause.

Whole steps that were rehearsed count most. Where a step is too slow to rehearse many, it is put together from steps
without exchange and from all-reduces, bucket by bucket as docs/cost-model.md describes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

from dragoman.diagnosis.measurements import MeasuredLink, Measurements, Transfer
from dragoman.diagnosis.step_model import Losses, StepView, find_losses

MODEL_ERROR = 0.06
"""Relative error of a step put together from its parts: see docs/results.md."""
DRIFT = 0.08
"""How much the speed of a machine and the length of batches wander between a rehearsal and a run."""
COVERAGE_FACTOR = 1.6
"""Standard errors to each side, for about nine cases in ten."""
NUM_ENOUGH_STEPS = 5
"""Whole steps that need no model beside them."""
HICCUP_FACTOR = 1.5
"""A step that took longer than this times the median was disturbed, and counts as if it had taken so long."""
NUM_SKIPPED_STEPS = 2
NUM_FIRST_STEPS = 10


@dataclass(frozen=True)
class Prediction:
    """What is expected of the steps of a run."""

    seconds: float
    low: float
    high: float
    parts: dict[str, float]
    losses: Losses
    basis: str
    """"rehearsal" or "first steps"."""
    num_workers: int
    links: Sequence[MeasuredLink] = ()
    advice: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def bottleneck(self) -> str:
        """compute, network, input, straggler or overhead; unknown from first steps."""
        return self.losses.bottleneck

    def interval(self) -> dict[str, float]:
        """Seconds of a step: the most likely, and between what they lie."""
        return {"predicted": self.seconds, "low": self.low, "high": self.high}

    def to_json(self) -> dict[str, Any]:
        """As a record of the run, and as `dragoman check --json` prints it."""
        return {
            "seconds_per_step": self.interval(),
            "parts": self.parts,
            "bottleneck": self.bottleneck,
            "share": self.losses.share(self.bottleneck),
            "links": [link.to_json() for link in self.links],
            "advice": self.advice,
            "problems": self.problems,
            "basis": self.basis,
            "workers": self.num_workers,
        }


def predict(measured: Measurements) -> Prediction:
    """From a rehearsal."""
    model_parts = step_from_parts(measured)
    model_seconds = sum(model_parts.values())
    steps = _without_hiccups(measured.steps)
    if len(steps) >= NUM_ENOUGH_STEPS:
        seconds, error = fmean(steps), _standard_error(steps)
    else:
        # The model is worth one step more.
        seconds = (sum(steps) + model_seconds) / (len(steps) + 1)
        spread = max(_standard_error(each) for each in (measured.alone_steps, steps or measured.alone_steps))
        error = math.hypot(spread, MODEL_ERROR)
    parts = _scaled(measured.step_parts or model_parts, seconds)
    view = StepView(parts, measured.slowest or None, measured.work_by_rank, measured.fixed_share)
    return Prediction(
        seconds,
        *_bounds(seconds, error),
        parts,
        find_losses(view),
        "rehearsal",
        len(measured.machines),
        measured.links,
    )


def predict_from_steps(seconds_of_steps: Sequence[float], num_workers: int) -> Prediction:
    """From the first steps of the run itself, where nothing was rehearsed."""
    seconds = fmean(seconds_of_steps)
    return Prediction(
        seconds,
        *_bounds(seconds, _standard_error(seconds_of_steps)),
        {},
        find_losses(StepView({})),  # what they were spent on is not known
        "first steps",
        num_workers,
    )


def _bounds(seconds: float, error: float) -> tuple[float, float]:
    """Between what a step lies, by the relative error of its mean and by what drifts besides."""
    margin = COVERAGE_FACTOR * math.hypot(error, DRIFT)
    return seconds / (1 + margin), seconds * (1 + margin)


def step_from_parts(measured: Measurements, all_reduce: Sequence[Transfer] | None = None) -> dict[str, float]:
    """The parts of a step put together; with other all-reduces than were measured, of a step with another link."""
    # Who computes alone waits for nobody: that part is reckoned below.
    alone = {name: seconds for name, seconds in measured.alone_parts.items() if name != "straggler"}
    exchanges = measured.all_reduce if all_reduce is None else all_reduce
    backward = alone.get("backward", 0.0)
    slowest_seconds = fmean(measured.alone_steps) if measured.alone_steps else sum(alone.values())
    straggler = max(0.0, slowest_seconds - sum(alone.values()))
    exposed, hidden = _exchange(measured, exchanges, backward)
    slowdown = measured.contention.compute_slowdown if measured.contention else 1.0
    slowed = hidden * max(0.0, slowdown - 1.0)
    return alone | {
        "backward": backward - hidden,
        "hidden_communication": hidden + slowed,
        "exposed_communication": max(0.0, exposed - slowed),
        "straggler": straggler,
    }


def _exchange(measured: Measurements, exchanges: Sequence[Transfer], backward: float) -> tuple[float, float]:
    """Seconds of exchange after backward has ended, and during it."""
    if len(measured.machines) == 1 or not exchanges:
        return 0.0, 0.0
    slowdown = measured.contention.communication_slowdown if measured.contention else 1.0
    now, hidden = -math.inf, 0.0
    for num_bytes, ready in zip(measured.bucket_bytes, measured.bucket_ready, strict=False):
        begin = max(now, -ready)
        now = _arrival(begin, transfer_seconds(exchanges, num_bytes), slowdown)
        hidden += max(0.0, min(now, 0.0) - begin)
    return max(0.0, now), min(hidden, backward)


def _arrival(begin: float, seconds: float, slowdown: float) -> float:
    """When a transfer arrives that is slower until backward ends, at 0."""
    if begin >= 0.0 or begin + seconds * slowdown <= 0.0:
        return begin + seconds * (slowdown if begin < 0.0 else 1.0)
    done_before = -begin / slowdown
    return seconds - done_before


def transfer_seconds(transfers: Sequence[Transfer], num_bytes: float) -> float:
    """Between measured sizes in proportion; beyond the largest at the rate of the largest two."""
    if num_bytes <= transfers[0].num_bytes:
        return transfers[0].seconds
    for smaller, larger in itertools.pairwise(transfers):
        if num_bytes <= larger.num_bytes:
            share = (num_bytes - smaller.num_bytes) / (larger.num_bytes - smaller.num_bytes)
            return smaller.seconds + share * (larger.seconds - smaller.seconds)
    last = transfers[-1]
    if len(transfers) == 1:
        return last.seconds * num_bytes / last.num_bytes
    before = transfers[-2]
    rate = (last.seconds - before.seconds) / (last.num_bytes - before.num_bytes)
    # A hiccup at the smaller size would make the slope too flat, and any size beyond too cheap.
    return last.seconds + (num_bytes - last.num_bytes) * max(rate, 0.5 * last.seconds / last.num_bytes)


def _without_hiccups(values: Sequence[float]) -> list[float]:
    limit = HICCUP_FACTOR * median(values) if values else 0.0
    return [min(value, limit) for value in values]


def _standard_error(values: Sequence[float]) -> float:
    """Of their mean, relative to it."""
    if len(values) < 2 or not fmean(values):
        return 0.1
    return stdev(values) / math.sqrt(len(values)) / fmean(values)


def _scaled(parts: Mapping[str, float], total: float) -> dict[str, float]:
    before = sum(parts.values())
    return {name: seconds * total / before for name, seconds in parts.items()} if before else {"other": total}
