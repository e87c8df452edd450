"""The stages of the self-test in their order, and their verdicts together."""

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dragoman import __version__
from dragoman.model.device import choose_device
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import write_json
from dragoman.run.processes import num_cores
from dragoman.run.units import format_bytes
from dragoman.selftest.numerics import check_kernels, check_precisions
from dragoman.selftest.real_runs import RunsOfTest
from dragoman.selftest.speed import MeasuredSpeed, Workload, judge_memory, judge_speed, measure_speed, name_for_plan
from dragoman.selftest.stage_result import StageResult
from dragoman.selftest.updates import check_updates
from dragoman.training.worker import avoid_trapping_kernels, keep_freed_memory

RESULT_FILE = "selftest.json"
DEVICES = ("cpu", "cuda", "xpu")
_MOST_WORKERS = 2
"""Two workers show as much as eight, and start faster."""
Show = Callable[[int, int, str, StageResult], None]


def run_selftest(
    folder: Path, device_name: str | None, hosts: str | None, ssh_config: Path | None, show: Show
) -> dict[str, Any]:
    """Runs all stages in a new folder; `show` is told about each one as it ends. Returns what selftest.json holds.

    A stage that cannot be run at all fails; the others go on.
    """
    device = _find_device(device_name)
    keep_freed_memory()
    avoid_trapping_kernels()
    folder.mkdir(parents=True)
    num_devices = num_cores() if device.type == "cpu" else torch.accelerator.device_count()
    runs = RunsOfTest(folder, min(_MOST_WORKERS, num_devices), hosts, ssh_config)
    speed = _Speed(device)
    stages: list[tuple[str, Callable[[], StageResult]]] = [
        ("device", lambda: _describe_device(device)),
        # First of those that compute: the peak memory of a process includes what earlier stages have left.
        ("speed", speed.judge_speed),
        ("memory", speed.judge_memory),
        ("kernels", lambda: check_kernels(device)),
        ("precision", lambda: check_precisions(device)),
        ("updates", lambda: check_updates(device)),
        ("workers", lambda: _prepare_and_check(runs)),
        ("resume", runs.check_resume),
        ("collectives", runs.check_collectives),
    ]
    begin = time.monotonic()
    outcomes: dict[str, StageResult] = {}
    for number, (name, run_stage) in enumerate(stages, start=1):
        outcomes[name] = _try(run_stage)
        show(number, len(stages), name, outcomes[name])
    result = {
        "is_passed": all(outcome.state != "failed" for outcome in outcomes.values()),
        "seconds": time.monotonic() - begin,
        "dragoman": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": str(device),
        "stages": {name: asdict(outcome) for name, outcome in outcomes.items()},
    }
    write_json(folder / RESULT_FILE, result)
    return result


class _Speed:
    """Measures once, for two verdicts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._workload = Workload.for_device(device)
        self._measured: MeasuredSpeed | None = None

    def judge_speed(self) -> StageResult:
        self._measured = measure_speed(self._device, self._workload)
        return judge_speed(self._measured, self._workload, name_for_plan(self._device))

    def judge_memory(self) -> StageResult:
        if self._measured is None:
            return StageResult("skipped", "No step was measured.")
        return judge_memory(self._measured, self._workload, self._device)


def _find_device(name: str | None) -> torch.device:
    if name is not None and name not in DEVICES:
        raise UsageError(f"--device {name}: it is one of {', '.join(DEVICES)}.")
    if name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # for the runs, which take a GPU where there is one
        return torch.device("cpu")
    device = choose_device()
    if name is not None and device.type != name:
        raise UserError(
            f"torch {torch.__version__} sees no {name} device here. Is the driver installed, and is this a build of "
            "torch for GPUs?"
        )
    return device


def _describe_device(device: torch.device) -> StageResult:
    if device.type == "cpu":
        name = f"{num_cores()} cores ({_cpu_name()})"
        return StageResult("passed", f"{name}, torch {torch.__version__}.", {"name": name})
    facts = torch.get_device_module(device).get_device_properties(device)
    figures = {"name": facts.name, "memory_bytes": facts.total_memory, "count": torch.accelerator.device_count()}
    why = f"{figures['count']} × {facts.name} with {format_bytes(facts.total_memory)}, torch {torch.__version__}."
    return StageResult("passed", why, figures)


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _prepare_and_check(runs: RunsOfTest) -> StageResult:
    runs.write_corpus()
    return runs.check_workers()


def _try(run_stage: Callable[[], StageResult]) -> StageResult:
    """Runs a stage; its error is its verdict, so that one fault does not hide what the others would tell."""
    try:
        return run_stage()
    except UserError as error:
        return StageResult("failed", str(error))
    except (RuntimeError, OSError, MemoryError) as error:
        return StageResult(
            "failed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        )
