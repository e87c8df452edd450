"""How fast does the device train, and how much memory does it take, compared with what `dragoman plan` calculates?"""

import os
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dragoman.cluster.world import wait_for_device
from dragoman.diagnosis.hardware import Precision, load_hardware
from dragoman.diagnosis.plan import Plan, PlanSettings, build_plan
from dragoman.diagnosis.planned_step import RESERVED_BYTES
from dragoman.model.device import best_precision
from dragoman.model.shape import load_preset
from dragoman.run.config import TrainingSettings
from dragoman.run.processes import num_cores
from dragoman.run.units import format_bytes
from dragoman.selftest.numerics import random_batch
from dragoman.selftest.stage_result import StageResult
from dragoman.selftest.updates import new_learner

MIN_STEPS, MAX_STEPS, MAX_SECONDS = 3, 20, 12.0
LARGEST_MEMORY_RATIO = 1.25
"""Peak memory above this multiple of the plan's estimate is a warning: a batch that should fit might not."""
PLANNED_CORES = 2
"""The machine whose speed `plan` knows as cpu-2-cores."""
_MAX_LENGTH = 32


@dataclass(frozen=True)
class Workload:
    """What is measured: a size that keeps the kind of device busy."""

    preset: str
    precision: Precision
    batch_tokens: int

    @classmethod
    def for_device(cls, device: torch.device) -> "Workload":
        """Returns the public tables' workload for GPUs, and a small one for CPUs."""
        if device.type == "cpu":
            return cls("small", "fp32", 1_024)
        return cls("transformer-big", best_precision(device), 5_120)


@dataclass(frozen=True)
class MeasuredSpeed:
    """Seconds of each step after the first, target tokens of a step, and bytes at the peak."""

    seconds: list[float]
    num_target_tokens: int
    peak_bytes: int | None

    @property
    def tokens_per_second(self) -> float:
        """Target tokens by the median step."""
        return self.num_target_tokens / median(self.seconds)


def measure_speed(device: torch.device, workload: Workload) -> MeasuredSpeed:
    """Makes whole updates of one worker, without an exchange; the first one warms up and does not count."""
    memory = _PeakMemory(device)
    shape = load_preset(workload.preset)
    learner = new_learner(shape, device, TrainingSettings(precision=workload.precision), rate=1e-5)  # type: ignore[arg-type]
    batch = random_batch(
        workload.batch_tokens // _MAX_LENGTH, _MAX_LENGTH, shape.target_vocab_size, min_length=_MAX_LENGTH - 2
    )
    seconds: list[float] = []
    end = time.monotonic() + MAX_SECONDS
    while len(seconds) <= MIN_STEPS or (len(seconds) <= MAX_STEPS and time.monotonic() < end):
        begin = time.perf_counter()
        learner.learn(len(seconds) + 1, {0: batch}, batch.num_target_tokens)
        wait_for_device(device)
        seconds.append(time.perf_counter() - begin)
    return MeasuredSpeed(seconds[1:], batch.num_target_tokens, memory.read())


def judge_speed(measured: MeasuredSpeed, workload: Workload, device_name: str | None) -> StageResult:
    """Compares the speed with the plan's interval, where the plan knows the device, and lists published speeds."""
    own = measured.tokens_per_second
    figures: dict[str, Any] = {
        "model": workload.preset,
        "precision": workload.precision,
        "batch_tokens": workload.batch_tokens,
        "tokens_per_second": own,
        "planned_tokens_per_second": None,
        "published": published_speeds(),
    }
    what = f"{own:,.0f} target tokens/s with {workload.preset} in {workload.precision}"
    plan = _plan(workload, device_name)
    if plan is None:
        return StageResult("passed", f"{what}. `dragoman plan` knows no device like this one to compare with.", figures)
    slowest, fastest = (workload.batch_tokens / seconds for seconds in (plan.high, plan.low))
    figures["planned_tokens_per_second"] = {"low": slowest, "high": fastest}
    interval = f"`dragoman plan` calculates {slowest:,.0f} to {fastest:,.0f} for {device_name}"
    if own < slowest:
        why = f"{what}: slower than planned; {interval}. Are other programs using it, or is it throttled?"
        return StageResult("warned", why, figures)
    return StageResult("passed", f"{what}; {interval}.", figures)


def judge_memory(measured: MeasuredSpeed, workload: Workload, device: torch.device) -> StageResult:
    """Compares peak memory with the plan's estimate of weights, optimizer and activations."""
    if measured.peak_bytes is None:
        return StageResult("skipped", "This system does not tell the peak memory of a process.")
    # The estimate depends on the workload alone: any device that has the precision will do.
    plan = _plan(workload, "A100")
    assert plan is not None
    # What libraries take is in the memory of a process, and not in what torch has allocated on a GPU.
    estimate = plan.scenario.memory_bytes - (0 if device.type == "cpu" else RESERVED_BYTES)
    figures = {"peak_bytes": measured.peak_bytes, "planned_bytes": estimate}
    what = f"{format_bytes(measured.peak_bytes)} at the peak; planned: {format_bytes(estimate)}"
    if measured.peak_bytes > LARGEST_MEMORY_RATIO * estimate:
        return StageResult("warned", f"{what}. Batches that should fit by the plan might not.", figures)
    return StageResult("passed", f"{what}.", figures)


def name_for_plan(device: torch.device) -> str | None:
    """Returns the name of a device in the plan's table; None if it has none."""
    if device.type == "cpu":
        return "cpu-2-cores" if num_cores() == PLANNED_CORES else None
    found = load_hardware().find_device(torch.get_device_module(device).get_device_name(device))
    return found[0] if found else None


def published_speeds() -> dict[str, Any]:
    """Returns published speeds of one device, with their source."""
    return tomllib.loads(files("dragoman.selftest").joinpath("published.toml").read_text(encoding="utf-8"))


def _plan(workload: Workload, device_name: str | None) -> Plan | None:
    hardware = load_hardware()
    if device_name is None or workload.precision not in hardware.devices[device_name].peak_flops:
        return None
    settings = PlanSettings(
        model=workload.preset,
        precision=workload.precision,
        batch_tokens=workload.batch_tokens,
        device=device_name,
        devices_per_node=1,
        nodes=1,
    )
    return build_plan(settings, hardware)


class _PeakMemory:
    """The most memory that is used from its creation on, less what was used then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type != "cpu":
            torch.accelerator.reset_peak_memory_stats(device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is used now
        self._before = _resident_bytes("VmHWM")

    def read(self) -> int | None:
        """Returns bytes; None where the system does not tell."""
        if self._device.type != "cpu":
            return int(torch.accelerator.max_memory_allocated(self._device))
        peak = _resident_bytes("VmHWM")
        return None if peak is None or self._before is None else peak - self._before


def _resident_bytes(name: str) -> int | None:
    with suppress(OSError):
        for line in Path(f"/proc/{os.getpid()}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
