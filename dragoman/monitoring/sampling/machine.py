"""Reads CPU, memory, disk and network of this machine, and finds the network interface that carries the traffic.

Counters of the kernel only rise. A rate is known only if a counter was there both times and did not fall: one that fell
was reset or has wrapped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil

from dragoman.monitoring.sampling.cores import CoreReader, read_core_times
from dragoman.run.records import LARGEST_NUMBER, CpuSample, DiskSample, InterfaceSample, MemorySample, ProgramLoad

Value = TypeVar("Value")

BLOCK_DEVICES = Path("/sys/block")
INTERFACES = Path("/sys/class/net")
STATES_SECONDS = 10.0
"""Seconds between two reads of speeds and link states, which change rarely; containers add hundreds of interfaces."""
_UNKNOWN_SPEEDS = (65535, 2**32 - 1)
"""Speeds that older kernels report where newer ones report -1."""
_ETHERNET = 1
"""The kernel's number for Ethernet (ARPHRD_ETHER)."""
_VPN_NAMES = ("tun", "tap", "wg", "ppp", "tailscale", "zt", "zerotier", "utun", "nordlynx")
_VPN_DEVICE_TYPES = ("wireguard", "ppp")


def per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    """Returns how fast a counter rose; None if that cannot be known."""
    if before is None or after is None or after < before or seconds <= 0:
        return None
    rate = round((after - before) / seconds, 1)
    return rate if rate <= LARGEST_NUMBER else None


def _read_or_note(read: Callable[[], Value], what: str, notes: list[str]) -> Value | None:
    """Returns the result of `read`; if it fails, returns None and adds a message to the notes."""
    try:
        return read()
    # psutil fails in many ways where a kernel or a container hides something; the other figures must not be lost.
    except Exception as error:
        notes.append(f"{what} cannot be read here: {describe_error(error)}.")
        return None


def describe_error(error: Exception) -> str:
    """Describes why something could not be read, without a full stop."""
    words = error.strerror if isinstance(error, OSError) else str(error)
    return (words or type(error).__name__).rstrip(".")


# CPU, memory and disk


class HostReader:
    """Reads CPU, memory and disk; shares and rates are those since the last read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, root: int | None = None) -> None:
        """With `root`, also reads who uses the cores: the run is everything that this process has started."""
        self._clock = clock
        self._core_reader = CoreReader(root, clock) if root else None
        self.programs: list[ProgramLoad] | None = None
        """The other programs that use most, where the last read looked for them."""
        self._cpu: Sequence[Mapping[str, float]] = ()
        self._disks: Mapping[str, tuple[int, int]] = {}
        self._disks_time = 0.0

    def read(self, notes: list[str]) -> tuple[CpuSample, MemorySample, DiskSample]:
        """Reads all three; a figure that cannot be read is None and adds a message to the notes."""
        cpu_before, disks_before, time_before = self._cpu, self._disks, self._disks_time
        self._cpu = _read_or_note(read_core_times, "The load of the processors", notes) or ()
        memory = _read_or_note(_read_memory, "The memory in use", notes)
        self._disks = _read_or_note(_read_disk_bytes, "The traffic of the disks", notes) or {}
        self._disks_time = self._clock()
        return (
            self._with_users(cpu_shares(cpu_before, self._cpu), cpu_before),
            memory or MemorySample(used_bytes=None, total_bytes=None),
            disk_rates(disks_before, self._disks, self._disks_time - time_before),
        )

    def _with_users(self, sample: CpuSample, cpu_before: Sequence[Mapping[str, float]]) -> CpuSample:
        if self._core_reader is None:
            return sample
        use, self.programs = self._core_reader.read(cpu_before, self._cpu)
        return sample.model_copy(update={name: value for name, value in vars(use).items() if value is not None})


def cpu_shares(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> CpuSample:
    """Returns the busy share of every core and of all, from seconds by activity."""
    if not after or len(before) != len(after):  # the first read, or a core was switched on or off
        return CpuSample(share=None, cores=[])
    spent = [_busy_and_all_seconds(*core) for core in zip(before, after, strict=True)]
    busy, total = (sum(column) for column in zip(*spent, strict=True))
    return CpuSample(share=_share(busy, total), cores=[_share(*core) for core in spent])


def _busy_and_all_seconds(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    # Some of the kernel's times fall a little now and then, mostly iowait.
    spent = {name: max(0.0, seconds - before.get(name, seconds)) for name, seconds in after.items()}
    # Linux also counts the time of guests as time of the user.
    total = sum(seconds for name, seconds in spent.items() if name not in ("guest", "guest_nice"))
    return total - spent.get("idle", 0.0) - spent.get("iowait", 0.0), total


def _share(busy: float, total: float) -> float | None:
    return round(min(1.0, max(0.0, busy / total)), 4) if total > 0 else None


def disk_rates(
    before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]], seconds: float
) -> DiskSample:
    """Returns bytes read and written per second by the disks that were there both times."""
    disks = before.keys() & after.keys()
    read, written = (
        [rate for disk in disks if (rate := per_second(before[disk][way], after[disk][way], seconds)) is not None]
        for way in (0, 1)
    )
    return DiskSample(
        read_bytes_per_second=round(sum(read), 1) if read else None,
        written_bytes_per_second=round(sum(written), 1) if written else None,
    )


def _read_memory() -> MemorySample:
    memory = psutil.virtual_memory()
    # Not psutil's `used`, which includes shared caches that could be freed at once.
    return MemorySample(used_bytes=memory.total - memory.available, total_bytes=memory.total)


def _read_disk_bytes() -> dict[str, tuple[int, int]]:
    """Returns bytes read and written by every disk."""
    counters = psutil.disk_io_counters(perdisk=True) or {}
    # psutil's own sum counts a byte twice that goes through LVM or RAID to a disk.
    disks = [name for name in counters if _is_hardware(name)] or [name for name in counters if _is_whole(name)]
    if not disks:
        raise LookupError("the kernel shows no disk")
    return {name: (counters[name].read_bytes, counters[name].write_bytes) for name in disks}


@cache
def _is_hardware(name: str) -> bool:
    """Whether a block device is neither a partition nor composed of others; this never changes."""
    return _block_device(name).joinpath("device").exists()


@cache
def _is_whole(name: str) -> bool:
    return _block_device(name).exists()


def _block_device(name: str) -> Path:
    return BLOCK_DEVICES / name.replace("/", "!")  # as the kernel does


# Network interfaces


@dataclass(frozen=True)
class InterfaceCounters:
    """Bytes and packets that one interface has carried and dropped since it came up."""

    received_bytes: int
    sent_bytes: int
    received_dropped: int
    sent_dropped: int


@dataclass(frozen=True)
class InterfaceState:
    """Link state and speed of one interface; None where it does not report them."""

    is_up: bool | None = None
    speed_megabits_per_second: int | None = None


Counters = Mapping[str, InterfaceCounters]
States = Mapping[str, InterfaceState]


def read_counters() -> dict[str, InterfaceCounters]:
    """Reads the counters of all interfaces."""
    return {
        name: InterfaceCounters(found.bytes_recv, found.bytes_sent, found.dropin, found.dropout)
        for name, found in psutil.net_io_counters(pernic=True).items()
    }


def read_counters_or_note(notes: list[str]) -> dict[str, InterfaceCounters]:
    """Reads the counters; if that fails, returns none and adds a message to the notes."""
    return _read_or_note(read_counters, "The traffic of the network interfaces", notes) or {}


class NetworkReader:
    """Reads all network interfaces; rates are those since the last read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: Counters = {}
        self._time = 0.0
        self._states: States = {}
        self._states_time = float("-inf")

    def read(self, notes: list[str]) -> dict[str, InterfaceSample]:
        """Reads all interfaces by name; a failure adds a message to the notes."""
        before, time_before = self._counters, self._time
        self._counters = read_counters_or_note(notes)
        self._time = self._clock()
        if before.keys() != self._counters.keys() or self._time - self._states_time >= STATES_SECONDS:
            self._states_time = self._time
            stats = _read_or_note(psutil.net_if_stats, "The state of the network interfaces", notes) or {}
            self._states = {name: _state(name, stats.get(name)) for name in self._counters}
        return network_samples(before, self._counters, self._time - time_before, self._states)


def network_samples(before: Counters, after: Counters, seconds: float, states: States) -> dict[str, InterfaceSample]:
    """Returns the sample of every interface that is there now; rates are None for one that was not there before."""
    return {name: _interface_sample(before.get(name), now, seconds, states.get(name)) for name, now in after.items()}


def _interface_sample(
    before: InterfaceCounters | None, after: InterfaceCounters, seconds: float, state: InterfaceState | None
) -> InterfaceSample:
    received, sent = (before.received_bytes, before.sent_bytes) if before is not None else (None, None)
    return InterfaceSample(
        # `vars` and not `asdict`, which copies every number: half the cost where there are many interfaces.
        **vars(after),
        received_bytes_per_second=per_second(received, after.received_bytes, seconds),
        sent_bytes_per_second=per_second(sent, after.sent_bytes, seconds),
        **vars(state or InterfaceState()),
    )


def traffic_interface(before: Counters, after: Counters) -> str | None:
    """Returns the interface that carried most between two reads, both directions together; None if none did.

    Between a tunnel and the interface below it, this is the latter: it also carries the tunnel's headers.
    """
    nothing = InterfaceCounters(0, 0, 0, 0)
    carried = {name: _carried_bytes(before.get(name, nothing), now) for name, now in after.items()}
    busiest = max(carried, key=lambda name: carried[name], default=None)
    return busiest if busiest is not None and carried[busiest] > 0 else None


def _carried_bytes(before: InterfaceCounters, after: InterfaceCounters) -> int:
    return max(0, after.received_bytes - before.received_bytes) + max(0, after.sent_bytes - before.sent_bytes)


def describe_interface(name: str) -> dict[str, Any]:
    """Returns the kind of an interface and the speed it claims; "unknown" and None where it does not say."""
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
    if not (device / "device").exists():  # no hardware: bridges, bonds, the interfaces of containers
        return "virtual"
    return "ethernet" if _read_number(device / "type") == _ETHERNET else "unknown"


def _is_vpn(name: str, flags: list[str]) -> bool:
    """Whether flags, name or the kernel say so; all three are asked, since names can be chosen freely."""
    if "pointopoint" in flags or name.startswith(_VPN_NAMES):
        return True
    device = INTERFACES / name
    facts = _read_text(device / "uevent").splitlines()
    return (device / "tun_flags").exists() or any(f"DEVTYPE={made_by}" in facts for made_by in _VPN_DEVICE_TYPES)


def _state(name: str, stats: Any) -> InterfaceState:
    """Returns link state and speed by psutil's answer, which may be None; the kernel is asked for a missing speed."""
    speed = (stats.speed if stats is not None else 0) or _read_number(INTERFACES / name / "speed")
    is_known = speed is not None and speed > 0 and speed not in _UNKNOWN_SPEEDS
    return InterfaceState(stats.isup if stats is not None else None, speed if is_known else None)


def _read_number(path: Path) -> int | None:
    with suppress(ValueError):
        return int(_read_text(path))
    return None


def _read_text(path: Path) -> str:
    """Reads a file of the kernel; empty where it refuses, e.g. the speed of an interface that is down."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
