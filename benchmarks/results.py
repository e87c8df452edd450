"""Writes the result of a benchmark as a JSON file that describes itself, and ends with an exit code."""

import argparse
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import psutil
from multi30k import REPOSITORY

from dragoman.run.errors import UserError
from dragoman.run.files import write_json

RESULTS_FOLDER = REPOSITORY / "benchmarks" / "results"
MAX_QUIET_SHARE = 0.1


def describe_machine() -> dict[str, Any]:
    """Returns the machine, its software and how busy it is; to be called before the benchmark starts anything."""
    # Not the load average: it still includes a benchmark that ended a minute ago.
    busy_share = psutil.cpu_percent(interval=1.0) / 100
    if busy_share > MAX_QUIET_SHARE:
        print(f"Other programs use {busy_share:.0%} of the processor: the figures are not reliable.", file=sys.stderr)
    return {
        "processor": _processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "busy_share_at_start": round(busy_share, 2),
    }


def summarise(values: list[float]) -> dict[str, float]:
    """Returns median and range: one disturbed round would change a mean."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def save_result(benchmark: str, machine: dict[str, Any], figures: dict[str, Any]) -> Path:
    """Writes results/BENCHMARK.json and returns its path."""
    RESULTS_FOLDER.mkdir(parents=True, exist_ok=True)
    path = RESULTS_FOLDER / f"{benchmark}.json"
    origin = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "command": ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]],
    }
    write_json(path, origin | figures)
    return path


def positive_count(text: str) -> int:
    """Parses a number of rounds or steps from the command line, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def end_with(main: Callable[[], int]) -> NoReturn:
    """Runs a benchmark and exits with its code; errors that a person can fix are shown without a traceback."""
    try:
        sys.exit(main())
    except UserError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
