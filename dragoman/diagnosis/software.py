"""How fast a program trains on a device: the share of peak it reaches, the fixed time of a step, and its intervals."""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import NormalDist
from typing import Any, Literal

from dragoman.diagnosis.hardware import Device, Precision, ShareRange
from dragoman.run.errors import UsageError, did_you_mean
from dragoman.run.tables import Fraction, NotNegative, SettingsTable

DEFAULT_SOFTWARE = "pytorch"
_OPENSEQ2SEQ = "openseq2seq"
Basis = Literal["calibrated", "guess", "own"]
End = Literal["low", "typical", "high"]


class Coverage(SettingsTable):
    """How often the measured speed was inside the interval."""

    rows: int
    inside: int
    about: str


class SharesOfDevices(SettingsTable):
    """The share of peak on some devices; on all others where no device is named."""

    devices: tuple[str, ...] = ()
    precisions: tuple[Precision, ...]
    share: ShareRange
    basis: Basis


class Software(SettingsTable):
    """A kind of program that trains."""

    about: str
    seconds_per_operation: NotNegative
    spread_of_batches: Fraction
    source: str
    coverage: Coverage
    shares: tuple[SharesOfDevices, ...]


@dataclass(frozen=True)
class ComputeSpeed:
    """How fast a program computes on a device in one precision."""

    peak_flops: float
    share: ShareRange
    seconds_per_operation: float
    spread_of_batches: float
    basis: Basis
    source: str
    coverage: Coverage | None
    """None where the interval was never compared with a measured speed."""

    def flops(self, end: End = "typical") -> float:
        """FLOP/s of matrix products with an endless batch."""
        return self.peak_flops * share_at(end, self.share)

    def fixed_seconds(self, num_operations: float, end: End = "typical") -> float:
        """Time of one batch that does not depend on its size; a program that is slower is slower here too."""
        return num_operations * self.seconds_per_operation * self.share.typical / share_at(end, self.share)

    def waiting_share(self, num_ranks: int, num_batches: int = 1) -> float:
        """Time that ranks wait for the slowest of them, relative to the mean time of their batches.

        With several batches for each step, slow and fast ones even out.
        """
        return self.spread_of_batches * largest_of(num_ranks) / math.sqrt(num_batches)

    def to_json(self) -> dict[str, Any]:
        """Returns the share with its interval and where it comes from."""
        return self.share.model_dump() | {"basis": self.basis, "source": self.source}


def share_at(end: End, shares: ShareRange) -> float:
    """Returns the low, typical or high share; a high share of peak and a high goodput make a step fast."""
    return float(getattr(shares, end))


def largest_of(number: int) -> float:
    """Expected largest of some normal values, in standard deviations above their mean (Blom's approximation)."""
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25)) if number > 1 else 0.0


@cache
def _all_software() -> dict[str, Software]:
    text = files("dragoman.diagnosis").joinpath("software.toml").read_text(encoding="utf-8")
    return {name: Software.model_validate(values) for name, values in tomllib.loads(text).items()}


def software_names() -> list[str]:
    """Returns the names in software.toml."""
    return list(_all_software())


def load_software(name: str) -> Software:
    """Looks up a kind of program; raises UsageError with the nearest known name for an unknown one."""
    known = _all_software()
    if name.lower() not in known:
        raise UsageError(f"There is no software {name!r}{did_you_mean(name, known)} Known: {', '.join(known)}.")
    return known[name.lower()]


def software_of(trainer: str | None) -> str:
    """Names the software whose speed a trainer has: its own where runs of it are known, else that of PyTorch."""
    return _OPENSEQ2SEQ if trainer is not None and trainer.lower() == _OPENSEQ2SEQ else DEFAULT_SOFTWARE


def find_speed(software: str, device_name: str, device: Device, precision: Precision) -> ComputeSpeed:
    """Finds the speed of a program on a device; what the device's own table states counts first.

    Raises UsageError where the device lacks the precision.
    """
    if precision not in device.peak_flops:
        known = ", ".join(device.peak_flops)
        raise UsageError(f"The device {device_name} has no facts for {precision}; it has {known}.")
    facts = load_software(software)
    operation = device.seconds_per_operation
    seconds = facts.seconds_per_operation if operation is None else operation
    peak = device.peak_flops[precision]
    if own := device.reached_share.get(precision):
        return ComputeSpeed(peak, own, seconds, facts.spread_of_batches, "own", device.source, None)
    found = next(_matching(facts, device_name, precision))
    is_guess = found.basis == "guess"
    source = (
        f"a guess, as no table of {facts.about} on this device in {precision} is known" if is_guess else facts.source
    )
    coverage = None if is_guess else facts.coverage
    return ComputeSpeed(peak, found.share, seconds, facts.spread_of_batches, found.basis, source, coverage)


def _matching(facts: Software, device_name: str, precision: Precision) -> Iterator[SharesOfDevices]:
    for each in facts.shares:
        if precision in each.precisions and (not each.devices or device_name in each.devices):
            yield each
