"""Facts about devices and links by name, from hardware.toml and from a user's file of the same form."""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dragoman.diagnosis.step_model import Link, tcp_goodput
from dragoman.run.errors import UsageError, did_you_mean
from dragoman.run.tables import NotNegative, Positive, SettingsTable, first_problem, read_toml
from dragoman.run.units import format_rate, parse_rate

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
_WORD = re.compile(r"[a-z0-9]+")
_MEMORY = re.compile(r"\b(\d{1,4}) ?g(?:i?b)?\b")
_COUNT = re.compile(r"^\s*\d{1,6}\s*[x×*]\s*|(?<![a-z])[x×*]\s*\d{1,6}\s*$")
_OTHER_MODELS = {"ti", "super", "laptop", "mobile", "max", "mig"}
"""Words that make a device another model, or a part of one."""
_ETHERNET_LATENCY_SECONDS = 5e-5
ETHERNET_GOODPUT_LOW, ETHERNET_GOODPUT_HIGH = 0.9, 0.99


class ShareRange(SettingsTable):
    """A typical share, and the bounds it may lie between."""

    low: Share
    typical: Share
    high: Share

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if not self.low <= self.typical <= self.high:
            raise ValueError("low, typical and high must be in this order")
        return self


class Device(SettingsTable):
    """Facts about a device: a GPU, or the cores of a machine."""

    about: str
    memory_bytes: Positive
    memory_bytes_per_second: Positive
    peak_flops: dict[Precision, Positive]
    inside_link: str = "pcie3"
    """The link that usually joins such devices in one machine."""
    reached_share: dict[Precision, ShareRange] = Field(default_factory=dict)
    """Share of peak as measured; by software and device where it is missing."""
    seconds_per_operation: NotNegative | None = None
    source: str

    @model_validator(mode="after")
    def _has_a_peak_for_each_share(self) -> Self:
        if missing := set(self.reached_share) - set(self.peak_flops):
            raise ValueError(f"reached_share has {', '.join(sorted(missing))}, and peak_flops does not")
        return self


class LinkFacts(SettingsTable):
    """Facts about a link; the rate is the nominal one, in each direction."""

    about: str
    latency_seconds: NotNegative
    bytes_per_second: Positive
    goodput: ShareRange
    source: str

    def link(self, goodput: float | None = None) -> Link:
        """Returns the link for the step model, with the typical goodput unless another is given."""
        return Link(self.latency_seconds, self.bytes_per_second * (goodput or self.goodput.typical))


class Hardware(SettingsTable):
    """All facts about devices and links, by name."""

    devices: dict[str, Device]
    links: dict[str, LinkFacts]

    def device(self, name: str) -> tuple[str, Device]:
        """Looks up a device, also as "v100" or "NVIDIA A10G"; raises UsageError with the nearest name for no device."""
        if name in self.devices:
            return name, self.devices[name]
        if (found := self.find_device(name)) is None:
            raise UsageError(_unknown("device", name, self.devices))
        return found

    def find_device(self, name: str) -> tuple[str, Device] | None:
        """Finds the device in a name that logs and people give it, such as "Tesla V100-SXM2-32GB"; None if unknown."""
        words = _words(name)
        if words & _OTHER_MODELS:
            return None
        matching = [known for known in self.devices if _words(known) <= words or _joined(known) in words]
        found = max(matching, key=lambda known: len(_words(known)), default=None)
        return None if found is None else (found, self.devices[found])

    def link(self, name: str) -> LinkFacts:
        """Looks up a link by its name, or builds Ethernet of a rate such as 300mbit or 200MB/s."""
        if found := self.links.get(name) or self.links.get(name.lower()):  # 1Gbit is 1gbit
            return found
        if not name[:1].isdecimal():
            raise UsageError(f"{_unknown('link', name, self.links)} Or give a rate, for example 300mbit.")
        return _ethernet(name, parse_rate(name))


def load_hardware(own_file: Path | None = None) -> Hardware:
    """Loads the facts of the package; those of a user's file are added or replace them, key by key."""
    values = tomllib.loads(files("dragoman.diagnosis").joinpath("hardware.toml").read_text(encoding="utf-8"))
    if own_file is not None:
        values = _merge(values, read_toml(own_file))
    try:
        return Hardware.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{own_file or 'hardware.toml'}: {_problem(error)}") from None


def _words(name: str) -> frozenset[str]:
    """Splits the name of a device: "2 x V100 (32 GB)" has the words v100 and 32gb."""
    text = _MEMORY.sub(r"\1gb", _COUNT.sub(" ", name.lower()))
    return frozenset(_WORD.findall(text))


def _joined(name: str) -> str:
    """The name in one word, as in RTX3090."""
    return name.lower().replace("-", "")


def _ethernet(name: str, bytes_per_second: float) -> LinkFacts:
    goodput = ShareRange(low=ETHERNET_GOODPUT_LOW, typical=tcp_goodput(), high=ETHERNET_GOODPUT_HIGH)
    return LinkFacts(
        about=f"Ethernet, {format_rate(bytes_per_second)}",
        latency_seconds=_ETHERNET_LATENCY_SECONDS,
        bytes_per_second=bytes_per_second,
        goodput=goodput,
        source=f"The rate {name!r} as given; goodput of TCP in frames of 1500 bytes; latency: estimate.",
    )


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> str:
    return f"There is no {kind} {name!r}{did_you_mean(name, known)} Known: {', '.join(known)}."


def _merge(values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in own.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _problem(error: ValidationError) -> str:
    """Describes the first error with the name of its table, which the model does not know for devices and links."""
    location = error.errors()[0]["loc"]
    match location:
        case ("devices", str() as name, *_) | ("links", str() as name, *_):
            kind: type[SettingsTable] = Device if location[0] == "devices" else LinkFacts
            return _problem_in_table(error, kind, f"{location[0]}.{name}")
        case _:
            return first_problem(error, Hardware)


def _problem_in_table(error: ValidationError, kind: type[SettingsTable], prefix: str) -> str:
    problem = error.errors()[0]
    key = ".".join([prefix, *(str(part) for part in problem["loc"][2:] if part != "[key]")])
    match problem["type"]:
        case "missing":
            return f"{key} is missing."
        case "extra_forbidden":
            known = ", ".join(kind.model_fields)
            return f"{key} is not known; {prefix} can have {known}."
        case "value_error":
            return f"{key}: {problem['ctx']['error']}."
        case _:
            return f"{key} = {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}."
