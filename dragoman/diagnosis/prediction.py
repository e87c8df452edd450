"""Predicts the time of a step from a rehearsal: with an interval, and by part.

Complete steps that were rehearsed count most. Where a step is too slow to rehearse many, it is assembled from steps
without exchange and from all-reduces, bucket by bucket as docs/cost-model.md describes.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Any, Self

from dragoman.diagnosis.intervals import DISTURBED_SHARE, is_disturbed, typical_step
from dragoman.diagnosis.step_model import Step, add_exchange, ring_bytes_per_node
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
_LOAD_GROWTH = 1.5
"""Other programs may later use none of the cores, or this many times as many as while they were seen."""
_LARGEST_LOST_SHARE = 0.9
"""Largest share of a step that may be lost to others; more would be an error of measurement."""
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
    retransmitted_share: float | None = None
    """Share of the sender's TCP segments that had to be sent again; None where that is not known."""

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
            "retransmitted_share": self.retransmitted_share,
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
    payload_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of the whole gradient of one replica, by the format in which it is sent: fp32, fp16, int8, powersgd …"""
    encoding_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds to encode the whole gradient and to add up those of all replicas, by the same names."""
    gather: list[Transfer] = field(default_factory=list)
    """All-gathers between one rank of each machine, by the bytes that a machine sends."""

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

    @property
    def most_ranks(self) -> int:
        """Number of ranks on the machine that has most."""
        return max(Counter(self.machines).values())

    def ring_bytes(self, num_bytes: float) -> float:
        """Bytes of an all-reduce through the port of the machine with the most ranks."""
        return ring_bytes_per_node(num_bytes, len(self.machines), self.most_ranks, self.is_interleaved)

    @property
    def exact_bytes(self) -> float:
        """Bytes of exact sums at every step through that port."""
        return self.ring_bytes(self.gradient_bytes)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values, for `from_json`."""
        return asdict(replace(self, loads=[])) | {"loads": [load.values() for load in self.loads]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` returned; later fields may be missing."""
        nested = {
            "all_reduce": [Transfer(**each) for each in values["all_reduce"]],
            "all_reduce_inside": [Transfer(**each) for each in values["all_reduce_inside"]],
            "gather": [Transfer(**each) for each in values.get("gather", [])],
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
    # Where there are few complete steps, the assembled one counts like one more.
    seconds = fmean(steps if len(steps) >= _NUM_ENOUGH_STEPS else [*steps, assembled.seconds])
    parts = measured.step_parts or assembled.parts
    total = sum(parts.values())
    scale = seconds / total if total else 1.0
    step = typical_step(
        {name: scale * each for name, each in parts.items()} if total else {"other": seconds},
        {name: scale * each for name, each in measured.slowest.items()} or None,
        [scale * each for each in measured.work_by_rank],
        0.0 if is_disturbed(measured.loads) else measured.fixed_share,
        measured.loads,
        measured.slowest_host,
    )
    waiting = step.parts.get("exposed_communication", 0.0)
    low, high = _bounds(seconds, margin_of(measured), measured.loads, step.lost_share, waiting)
    load = _describe_disturbance(measured.loads, step.lost_share)
    workers = len(measured.machines)
    return Prediction(seconds, low, high, step, "rehearsal", workers, measured.links, other_load=load)


def margin_of(measured: Measurements) -> float:
    """Relative error of a prediction on a machine whose load stays as it is: factor 1 + margin to each side."""
    steps = _without_outliers(measured.steps)
    if len(steps) >= _NUM_ENOUGH_STEPS:
        return _margin(_standard_error(steps))
    spread = max(_standard_error(each) for each in (measured.alone_steps, steps or measured.alone_steps))
    return _margin(math.hypot(spread, _MODEL_ERROR))


def bounds_of_assembled(measured: Measurements, seconds: float, waiting_seconds: float) -> tuple[float, float]:
    """The interval of a step that was not rehearsed, but assembled from measurements."""
    margin = _margin(math.hypot(_standard_error(measured.alone_steps), _MODEL_ERROR))
    lost = max((load.lost_share for load in measured.loads), default=0.0)
    return _bounds(seconds, margin, measured.loads, lost, waiting_seconds)


def predict_from_steps(
    seconds_of_steps: Sequence[float], num_workers: int, loads: Sequence[MachineLoad] = ()
) -> Prediction:
    """Predicts from the first steps of the run itself, where nothing was rehearsed; their parts are not known."""
    steps = _without_outliers(seconds_of_steps)
    seconds = fmean(steps)
    lost = max((load.lost_share for load in loads), default=0.0)
    low, high = _bounds(seconds, _margin(_standard_error(steps)), loads, lost)
    load = _describe_disturbance(loads, lost)
    return Prediction(seconds, low, high, Step({}), "first steps", num_workers, other_load=load)


def _describe_disturbance(loads: Sequence[MachineLoad], lost: float) -> str:
    """Names who disturbed the measurement; empty if they cost little."""
    return describe_load(max(loads, key=lambda load: load.lost_share)) if lost >= DISTURBED_SHARE else ""


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


def _margin(error: float) -> float:
    """Half the relative width of an interval, from the error of a mean and from drift."""
    return _COVERAGE_FACTOR * math.hypot(error, _DRIFT)


def _bounds(
    seconds: float, margin: float, loads: Sequence[MachineLoad], lost: float, waiting: float = 0.0
) -> tuple[float, float]:
    """The interval of a step, wider by what other programs would change if they ended or grew.

    They do not change the seconds that are spent waiting for the network.
    """
    shortest, longest = load_factors(loads)
    low = min(waiting + shortest * (seconds - waiting), (1 - min(lost, _LARGEST_LOST_SHARE)) * seconds)
    return low / (1 + margin), (waiting + longest * (seconds - waiting)) * (1 + margin)


def load_factors(loads: Sequence[MachineLoad]) -> tuple[float, float]:
    """Factors on the time of computing if other programs ended, and if they grew."""
    shortest = min((_slowdown(load, 0.0) for load in loads), default=1.0)
    return shortest, max((_slowdown(load, _LOAD_GROWTH) for load in loads), default=1.0)


def _slowdown(load: MachineLoad, growth: float) -> float:
    """Time of a step relative to now if others used `growth` times as many cores of a machine.

    While all of its cores are wanted, each thread gets its share of them.
    """
    own, others = load.own_cores + (load.waiting_threads or 0.0), load.other_cores + load.stolen_cores
    wanted, wanted_now = own + growth * others, own + others
    return max(load.num_cores, wanted) / max(load.num_cores, wanted_now) if load.num_cores else 1.0


def _without_outliers(values: Sequence[float]) -> list[float]:
    limit = _OUTLIER_FACTOR * median(values) if values else 0.0
    return [min(value, limit) for value in values]


def _standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean, relative to the mean."""
    if len(values) < 2 or not fmean(values):
        return 0.1
    return stdev(values) / math.sqrt(len(values)) / fmean(values)
