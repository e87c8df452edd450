"""Gives the processes of a host a wall clock that can be set; this machine's own is never touched."""

import struct
from pathlib import Path

from rig.tools import find_tool, run_tool

SOURCE = Path(__file__).with_name("clock.c")
OFFSET = struct.Struct("=q")  # nanoseconds
NANOSECONDS = 1_000_000_000


def clock_problem() -> str | None:
    """Returns why a rig cannot have steppable clocks here, or None if it can."""
    if find_tool("cc"):
        return None
    return "Steppable clocks of the rig need a C compiler, not installed here (packages gcc and libc6-dev)."


def build_clock_library(folder: Path) -> Path:
    """Compiles the library that changes the clock of a process."""
    library = folder / "clock.so"
    run_tool("cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE)
    return library


def create_clock(library: Path, path: Path) -> dict[str, str]:
    """Writes a file for the offset of a clock, and returns the variables of processes that use it."""
    path.write_bytes(OFFSET.pack(0))
    return {"LD_PRELOAD": str(library), "RIG_CLOCK": str(path)}


def step_clock(path: Path, seconds: float) -> None:
    """Changes the offset of a clock; in place, because processes have mapped the file."""
    with path.open("r+b", buffering=0) as file:
        (before,) = OFFSET.unpack(file.read())
        file.seek(0)
        file.write(OFFSET.pack(before + round(seconds * NANOSECONDS)))
