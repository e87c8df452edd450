"""Network interfaces of this machine: bytes and drops each way, what each one is, and which one carries the traffic."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dragoman.monitoring.sampling.host import Figures, per_second, read_or_note

INTERFACES = Path("/sys/class/net")
STATES_SECONDS = 10.0
"""A cable is not plugged so often, and a machine full of containers has hundreds of interfaces to ask."""

UNKNOWN_SPEEDS = (65535, 2**32 - 1)
"""What older kernels say where newer ones say -1."""
ETHERNET = 1
"""The kernel's number for Ethernet (ARPHRD_ETHER)."""
VPN_NAMES = ("tun", "tap", "wg", "ppp", "tailscale", "zt", "zerotier", "utun", "nordlynx")
VPN_DEVICE_TYPES = ("wireguard", "ppp")


@dataclass(frozen=True)
class InterfaceCounters:
    """What one interface has carried and dropped since it came up; the field names are those of the records."""

    received_bytes: int
    sent_bytes: int
    received_dropped: int
    sent_dropped: int


@dataclass(frozen=True)
class InterfaceState:
    """What one interface is, as far as it says."""

    is_up: bool | None = None
    speed_megabits_per_second: int | None = None


Counters = Mapping[str, InterfaceCounters]
States = Mapping[str, InterfaceState]


def read_counters() -> dict[str, InterfaceCounters]:
    """A snapshot of all interfaces."""
    return {
        name: InterfaceCounters(found.bytes_recv, found.bytes_sent, found.dropin, found.dropout)
        for name, found in psutil.net_io_counters(pernic=True).items()
    }


def read_counters_or_note(notes: list[str]) -> dict[str, InterfaceCounters]:
    """A snapshot; none, and a sentence among the notes, where it cannot be taken."""
    return read_or_note(read_counters, "The traffic of the network interfaces", notes) or {}


class NetworkReader:
    """Looks at all interfaces, again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: Counters = {}
        self._time = 0.0
        self._states: States = {}
        self._states_time = float("-inf")

    def read(self, notes: list[str]) -> dict[str, Figures]:
        """Figures by interface since the last look; what cannot be read adds a sentence to the notes."""
        before, time_before = self._counters, self._time
        self._counters = read_counters_or_note(notes)
        self._time = self._clock()
        self._refresh_states(is_changed=before.keys() != self._counters.keys(), notes=notes)
        return network_figures(before, self._counters, self._time - time_before, self._states)

    def _refresh_states(self, is_changed: bool, notes: list[str]) -> None:
        if is_changed or self._time - self._states_time >= STATES_SECONDS:
            self._states_time = self._time
            flags = read_or_note(psutil.net_if_stats, "The state of the network interfaces", notes) or {}
            self._states = {name: _state(name, flags.get(name)) for name in self._counters}


def network_figures(before: Counters, after: Counters, seconds: float, states: States) -> dict[str, Figures]:
    """The record of every interface that is there now; rates are null for one that was not there before."""
    unknown = InterfaceState()
    return {
        # Not by `asdict`, which copies every number as if it were a tree: half the cost where interfaces are many.
        name: vars(now) | _rates(before.get(name), now, seconds) | vars(states.get(name, unknown))
        for name, now in after.items()
    }


def _rates(before: InterfaceCounters | None, after: InterfaceCounters, seconds: float) -> Figures:
    received, sent = (before.received_bytes, before.sent_bytes) if before is not None else (None, None)
    return {
        "received_bytes_per_second": per_second(received, after.received_bytes, seconds),
        "sent_bytes_per_second": per_second(sent, after.sent_bytes, seconds),
    }


def traffic_interface(before: Counters, after: Counters) -> str | None:
    """The interface that carried most between two snapshots, both ways together; None if none carried anything.

    Of a tunnel and the interface that carries it, that is the latter: it carries the tunnel's envelopes as well.
    """
    nothing = InterfaceCounters(0, 0, 0, 0)
    carried = {name: _carried_bytes(before.get(name, nothing), now) for name, now in after.items()}
    busiest = max(carried, key=lambda name: carried[name], default=None)
    return busiest if busiest is not None and carried[busiest] > 0 else None


def _carried_bytes(before: InterfaceCounters, after: InterfaceCounters) -> int:
    return max(0, after.received_bytes - before.received_bytes) + max(0, after.sent_bytes - before.sent_bytes)


def describe_interface(name: str) -> Figures:
    """What kind of interface this is, and the speed it claims; "unknown" and null where it does not say."""
    stats = None
    with suppress(OSError):
        stats = psutil.net_if_stats().get(name)
    flags = stats.flags.split(",") if stats is not None else []
    return {
        "kind": _kind(name, flags),
        "speed_megabits_per_second": _state(name, stats).speed_megabits_per_second,
    }


def _kind(name: str, flags: list[str]) -> str:
    device = INTERFACES / name
    if "loopback" in flags:
        return "loopback"
    if _is_vpn(name, flags):
        return "vpn"
    if not device.exists():
        return "unknown"
    if not (device / "device").exists():  # no hardware behind it: bridges, bonds, the interfaces of containers
        return "virtual"
    return "ethernet" if _read_number(device / "type") == ETHERNET else "unknown"


def _is_vpn(name: str, flags: list[str]) -> bool:
    """By its flags, by its name, or by what the kernel says made it: names can be chosen freely."""
    if "pointopoint" in flags or name.startswith(VPN_NAMES):
        return True
    device = INTERFACES / name
    kernel_words = _read_text(device / "uevent").splitlines()
    return (device / "tun_flags").exists() or any(f"DEVTYPE={made_by}" in kernel_words for made_by in VPN_DEVICE_TYPES)


def _state(name: str, stats: Any) -> InterfaceState:
    """From psutil's answer (None where there is none); it asks for the speed in a way that many virtual cards lack."""
    speed = (stats.speed if stats is not None else 0) or _read_number(INTERFACES / name / "speed")
    is_known = speed is not None and speed > 0 and speed not in UNKNOWN_SPEEDS
    return InterfaceState(stats.isup if stats is not None else None, speed if is_known else None)


def _read_number(path: Path) -> int | None:
    with suppress(ValueError):
        return int(_read_text(path))
    return None


def _read_text(path: Path) -> str:
    """Empty where there is nothing to read: the kernel refuses the speed of an interface that is down."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
