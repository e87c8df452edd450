"""Whether all hosts would train the same: what differs is named with the host and both values."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.cluster.launch.facts import Facts

CLOCK_WARNING_SECONDS = 2.0
CLOCK_ERROR_SECONDS = 60.0


@dataclass(frozen=True)
class HostFacts:
    """What a host said of itself, and when."""

    name: str
    facts: Facts
    clock_skew_seconds: float
    """How far its clock is ahead of ours."""


@dataclass(frozen=True)
class Expected:
    """What every host should have."""

    here: Facts
    prepared: Path
    run_path: Path
    kept_bytes: int
    """Disk the checkpoints kept at one time will take."""
    is_resumed: bool = False
    """Then a host's own settings of the run may be older ones, and are replaced."""


def problems_of(host: HostFacts, expected: Expected) -> Iterator[str]:
    """Each reason not to start with this host, in one sentence."""
    there, here, name = host.facts, expected.here, host.name
    if there.dragoman != here.dragoman:
        yield f"{name} has dragoman {there.dragoman}, this machine has {here.dragoman}: install the same on both."
    elif there.code != here.code:
        yield (
            f"{name} has other code of dragoman {there.dragoman} ({there.code[:12]}) than this machine "
            f"({here.code[:12]}): bring both to the same commit."
        )
    if there.torch != here.torch:
        yield f"{name} has torch {there.torch}, this machine has {here.torch}: install the same on both."
    if there.data != here.data and there.data is not None:
        yield (
            f"{name} has other data in {expected.prepared} ({there.data[:12]}) than this machine "
            f"({str(here.data)[:12]}): remove it there and use --send-data, or prepare it again."
        )
    has_own_run = not there.shares_run_folder and there.config is not None
    if has_own_run and there.config != here.config and not expected.is_resumed:
        yield (
            f"{name} has another run in {expected.run_path} (config {str(there.config)[:12]}) than this machine "
            f"({str(here.config)[:12]}): choose another --run-dir, or remove it there."
        )
    if there.free_disk_bytes < expected.kept_bytes:
        yield (
            f"{name} has {there.free_disk_bytes / 1e9:.1f} GB free for {expected.run_path}, but the checkpoints kept "
            f"will take {expected.kept_bytes / 1e9:.1f} GB: free some, or lower checkpoints.keep_last."
        )
    if abs(host.clock_skew_seconds) > CLOCK_ERROR_SECONDS:
        yield f"{describe_skew(host)}: set the clocks (NTP)."


def is_data_missing(host: HostFacts) -> bool:
    """Whether the prepared corpus is not there at all."""
    return host.facts.data is None


def missing_data_problem(host: HostFacts, expected: Expected) -> str:
    """What to do about it."""
    return (
        f"{host.name} has no whole prepared corpus in {expected.prepared}, "
        f"this machine has {str(expected.here.data)[:12]}: copy it there, or let --send-data do it."
    )


def warnings_of(host: HostFacts) -> Iterator[str]:
    """What is odd but no reason to stop."""
    if CLOCK_WARNING_SECONDS < abs(host.clock_skew_seconds) <= CLOCK_ERROR_SECONDS:
        yield f"{describe_skew(host)}; times in its records will be off."


def describe_skew(host: HostFacts) -> str:
    """Whose clock is how far off."""
    direction = "ahead of" if host.clock_skew_seconds > 0 else "behind"
    return f"The clock of {host.name} is {abs(host.clock_skew_seconds):.1f} s {direction} this machine's"
