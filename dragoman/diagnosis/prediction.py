"""Predicts the time of a step from a rehearsal: with an interval, and by part.

Complete steps that were rehearsed count most. Where a step is too slow to rehearse many, it is assembled from steps
without exchange and from all-reduces, bucket by bucket as docs/cost-model.md describes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Any, Self

from dragoman.diagnosis.intervals import DISTURBED_SHARE, lost_share
from dragoman.diagnosis.step_model import Step, add_exchange
from dragoman.diagnosis.wording import describe_load
from dragoman.run.records import MachineLoad
from dragoman.run.units import BITS_PER_BYTE

MEGA = 1e6
_MODEL_ERROR = 0.06
"""Relative error of a step assembled from its parts: see docs/results.md."""
_DRIFT = 0.08
"""Relative change of a machine's speed and of the batches' length between a rehearsal and a run."""
_COVERAGE_FACTOR = 1.6
"""Standard errors to each side, for about nine cases in ten."""
_NUM_ENOUGH_STEPS = 5
"""With this many complete steps, the assembled one is not needed."""
_OUTLIER_FACTOR = 1.5
"""A step that took longer than this times the median was disturbed, and is cut to that time."""
NUM_SKIPPED_STEPS = 2
NUM_FIRST_STEPS = 10


@dataclass(frozen=True)
class Transfer:
    """Size and mean time of a transfer."""

    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class MeasuredLink:
    """The link from one machine to another, in one direction."""

    sender: str
    receiver: str
    latency_seconds: float
    bytes_per_second: float
    interface: str = ""
    """The sender's interface whose counters rose."""
    kind: str = "unknown"
    """loopback, vpn, virtual, ethernet or unknown."""
    claimed_megabits_per_second: float | None = None

    @property
    def megabits_per_second(self) -> float:
        """Payload that arrived."""
        return self.bytes_per_second * BITS_PER_BYTE / MEGA

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as `dragoman check --json` prints them."""
        return {
            "from": self.sender,
            "to": self.receiver,
            "interface": self.interface,
            "kind": self.kind,
            "latency_seconds": self.latency_seconds,
            "bytes_per_second": self.bytes_per_second,
            "megabytes_per_second": self.bytes_per_second / MEGA,
            "megabits_per_second": self.megabits_per_second,
            "claimed_megabits_per_second": self.claimed_megabits_per_second,
        }


@dataclass(frozen=True)
class Contention:
    """How much computing and sending slow each other down: factors on the time of each, 1.0 for not at all."""

    compute_slowdown: float
    communication_slowdown: float


@dataclass
class Measurements:
    """Results of a rehearsal, filled stage by stage, so that one cut short is still useful."""

    machines: Sequence[str]
    """The machine of each rank."""
    gradient_bytes: int
    bucket_bytes: Sequence[int]
    alone_parts: dict[str, float] = field(default_factory=dict)
    """Seconds per step without any exchange, mean over ranks."""
    alone_steps: list[float] = field(default_factory=list)
    """Seconds of each such step, on the rank that took longest."""
    work_by_rank: list[float] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    bucket_ready: list[float] = field(default_factory=list)
    """When each bucket is complete, in seconds before the end of backward."""
    fixed_share: float = 0.0
    all_reduce: list[Transfer] = field(default_factory=list)
    """All-reduces of all ranks, by rising size."""
    all_reduce_inside: list[Transfer] = field(default_factory=list)
    """All-reduces of the ranks of one machine, by rising size."""
    contention: Contention | None = None
    links: list[MeasuredLink] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    """Seconds of complete steps, with the exchange."""
    step_parts: dict[str, float] = field(default_factory=dict)
    """Seconds of complete steps by part, mean over ranks."""
    notes: list[str] = field(default_factory=list)
    """Messages about measurements that failed."""
    loads: list[MachineLoad] = field(default_factory=list)
    """Who used the cores of each machine meanwhile."""
    seconds: float = 0.0
    """How long the rehearsal took."""

    @property
    def machine_names(self) -> list[str]:
        """Each machine once, in the order of ranks."""
        return list(dict.fromkeys(self.machines))

    @property
    def slowest_host(self) -> str:
        """The machine of the rank with the most work; empty before that was measured."""
        work = self.work_by_rank
        return self.machines[work.index(max(work))] if work else ""

    @property
    def is_interleaved(self) -> bool:
        """Whether neighbouring ranks are on different machines although they need not be."""
        changes = sum(a != b for a, b in itertools.pairwise(self.machines))
        return changes > len(self.machine_names) - 1

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values, for `from_json`."""
        return asdict(replace(self, loads=[])) | {"loads": [load.values() for load in self.loads]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` returned."""
        nested = {
            "all_reduce": [Transfer(**each) for each in values["all_reduce"]],
            "all_reduce_inside": [Transfer(**each) for each in values["all_reduce_inside"]],
            "links": [MeasuredLink(**each) for each in values["links"]],
            "contention": Contention(**values["contention"]) if values["contention"] else None,
            "loads": [MachineLoad.model_validate(each) for each in values["loads"]],
        }
        return cls(**{**values, **nested})


@dataclass(frozen=True)
class Prediction:
    """How long the steps of a run will take."""

    seconds: float
    low: float
    high: float
    step: Step
    """A typical step; without parts if they are not known."""
    basis: str
    """"rehearsal" or "first steps"."""
    num_workers: int
    links: Sequence[MeasuredLink] = ()
    advice: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    other_load: str = ""
    """Who else used the cores while this was measured; empty where nobody cost time."""

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part."""
        return dict(self.step.parts)

    @property
    def bottleneck(self) -> str:
        """compute, network, input, straggler or overhead; unknown from first steps."""
        return self.step.bottleneck

    def interval(self) -> dict[str, float]:
        """Seconds per step: the most likely value and the bounds."""
        return {"predicted": self.seconds, "low": self.low, "high": self.high}

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as the run's record and `dragoman check --json` have them."""
        return {
            "seconds_per_step": self.interval(),
            "parts": self.parts,
            "bottleneck": self.bottleneck,
            "share": self.step.costs.share(self.bottleneck),
            "links": [link.to_json() for link in self.links],
            "advice": self.advice,
            "problems": self.problems,
            "basis": self.basis,
            "workers": self.num_workers,
            "other_load": self.other_load,
        }


def predict(measured: Measurements) -> Prediction:
    """Predicts a step from a rehearsal."""
    assembled = assemble_step(measured)
    steps = _without_outliers(measured.steps)
    if len(steps) >= _NUM_ENOUGH_STEPS:
        seconds, error = fmean(steps), _standard_error(steps)
    else:
        # The assembled step counts like one more complete step.
        seconds = (sum(steps) + assembled.seconds) / (len(steps) + 1)
        spread = max(_standard_error(each) for each in (measured.alone_steps, steps or measured.alone_steps))
        error = math.hypot(spread, _MODEL_ERROR)
    parts = _scaled(measured.step_parts or assembled.parts, seconds)
    lost = lost_share(
        Step(parts, measured.slowest or None, measured.work_by_rank), measured.loads, measured.slowest_host
    )
    # The fixed cost of a batch cannot be measured while others use the cores.
    fixed_share = measured.fixed_share if lost < DISTURBED_SHARE else 0.0
    step = Step(parts, measured.slowest or None, measured.work_by_rank, fixed_share, lost)
    prediction = Prediction(
        seconds, *_bounds(seconds, error), step, "rehearsal", len(measured.machines), measured.links
    )
    return _with_load(prediction, measured.loads, lost)


def predict_from_steps(
    seconds_of_steps: Sequence[float], num_workers: int, loads: Sequence[MachineLoad] = ()
) -> Prediction:
    """Predicts from the first steps of the run itself, where nothing was rehearsed; their parts are not known."""
    steps = _without_outliers(seconds_of_steps)
    seconds = fmean(steps)
    bounds = _bounds(seconds, _standard_error(steps))
    prediction = Prediction(seconds, *bounds, Step({}), "first steps", num_workers)
    return _with_load(prediction, loads, max((load.lost_share for load in loads), default=0.0))


def _with_load(prediction: Prediction, loads: Sequence[MachineLoad], lost: float) -> Prediction:
    """Names who disturbed the measurement; without them, steps may be as much faster as their share says."""
    if lost < DISTURBED_SHARE:
        return prediction
    worst = max(loads, key=lambda load: load.lost_share)
    return replace(prediction, low=prediction.low * (1 - lost), other_load=describe_load(worst))


def assemble_step(measured: Measurements, all_reduce: Sequence[Transfer] | None = None) -> Step:
    """Builds a step from steps without exchange and from all-reduces: the measured ones, or those of another link."""
    # Ranks that exchange nothing do not wait for each other: the straggler part is computed here.
    own = {name: seconds for name, seconds in measured.alone_parts.items() if name != "straggler"}
    slowest_seconds = fmean(measured.alone_steps) if measured.alone_steps else sum(own.values())
    own["straggler"] = max(0.0, slowest_seconds - sum(own.values()))
    transfers = measured.all_reduce if all_reduce is None else all_reduce
    if len(measured.machines) == 1 or not transfers:
        return Step(add_exchange(own, [], []))
    ready = measured.bucket_ready
    seconds = [transfer_seconds(transfers, size) for size in measured.bucket_bytes[: len(ready)]]
    slowdown = measured.contention or Contention(1.0, 1.0)
    return Step(add_exchange(own, ready, seconds, slowdown.compute_slowdown, slowdown.communication_slowdown))


def transfer_seconds(transfers: Sequence[Transfer], num_bytes: float) -> float:
    """Interpolates between measured sizes; beyond the largest, the rate of the largest two holds."""
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
    # A delay at the smaller size would make the slope too flat, and larger sizes seem too fast.
    return last.seconds + (num_bytes - last.num_bytes) * max(rate, 0.5 * last.seconds / last.num_bytes)


def _bounds(seconds: float, error: float) -> tuple[float, float]:
    """The interval of a step, from the relative error of its mean and from drift."""
    margin = _COVERAGE_FACTOR * math.hypot(error, _DRIFT)
    return seconds / (1 + margin), seconds * (1 + margin)


def _without_outliers(values: Sequence[float]) -> list[float]:
    limit = _OUTLIER_FACTOR * median(values) if values else 0.0
    return [min(value, limit) for value in values]


def _standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean, relative to the mean."""
    if len(values) < 2 or not fmean(values):
        return 0.1
    return stdev(values) / math.sqrt(len(values)) / fmean(values)


def _scaled(parts: Mapping[str, float], total: float) -> dict[str, float]:
    before = sum(parts.values())
    return {name: seconds * total / before for name, seconds in parts.items()} if before else {"other": total}
