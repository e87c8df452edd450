"""Reads the GPUs of this machine through NVIDIA's library NVML: load, memory, power, clocks, PCIe, activity of units.

This has never run on a GPU: it follows the signatures of the installed pynvml and is tested with a fake. So every
figure is read on its own, and one that a device, driver or library does not give is null.
"""

import importlib
import math
from collections.abc import Callable
from typing import Any

from dragoman.monitoring.sampling.machine import describe_error
from dragoman.run.records import GpuSample, validate_known

Figures = dict[str, float | None]

_MEBIBYTE = 2**20
_KILOBYTE = 1000

ACTIVITIES = {
    "graphics_active": "GRAPHICS_UTIL",
    "sm_active": "SM_UTIL",
    "sm_occupancy": "SM_OCCUPANCY",
    "tensor_active": "ANY_TENSOR_UTIL",
    "half_precision_tensor_active": "HMMA_TENSOR_UTIL",
    "dram_active": "DRAM_BW_UTIL",
    "fp64_active": "FP64_UTIL",
    "fp32_active": "FP32_UTIL",
    "fp16_active": "FP16_UTIL",
    "integer_active": "INTEGER_UTIL",
}
"""Shares that NVML gives in percent: our name → NVML_GPM_METRIC_..."""
THROUGHPUTS = {
    "pcie_received_bytes_per_second": "PCIE_RX_PER_SEC",
    "pcie_sent_bytes_per_second": "PCIE_TX_PER_SEC",
    "nvlink_received_bytes_per_second": "NVLINK_TOTAL_RX_PER_SEC",
    "nvlink_sent_bytes_per_second": "NVLINK_TOTAL_TX_PER_SEC",
}
"""Rates that NVML gives in MiB per second: our name → NVML_GPM_METRIC_..."""
_NOTHING_KNOWN: tuple[Figures | None, Figures] = (None, dict.fromkeys(THROUGHPUTS))


def _read_or_none(read: Callable[[], Any]) -> Any:
    """Returns the result of `read`, or None if the device, its driver or this version of NVML does not give it."""
    try:
        return read()
    except Exception:
        return None


class GpuReader:
    """Reads all GPUs; there are none without NVML."""

    def __init__(self, notes: list[str], nvml: Any = None) -> None:
        """Opens NVML, by default with the module pynvml; a failure adds a message to the notes."""
        self._devices: list[_Device] = []
        try:
            nvml = nvml or importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._devices = [_Device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        except Exception as error:
            notes.append(f"No figures of GPUs: NVML cannot be used ({describe_error(error)}).")

    def read(self) -> list[GpuSample]:
        """Reads every GPU; indices are NVML's, not those of CUDA_VISIBLE_DEVICES."""
        return [device.read() for device in self._devices]


class _Device:
    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._handle = _read_or_none(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        self._name = _read_or_none(lambda: _text(nvml.nvmlDeviceGetName(self._handle)))
        self._activity = _Activity.open(nvml, self._handle)

    def read(self) -> GpuSample:
        nvml, handle = self._nvml, self._handle
        utilisation = _read_or_none(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        memory = _read_or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        milliwatts = _read_or_none(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        activity, throughputs = self._activity.read() if self._activity else _NOTHING_KNOWN
        if throughputs["pcie_received_bytes_per_second"] is None:
            throughputs = throughputs | self._read_pcie()
        figures = {
            "index": self._index,
            "name": self._name,
            "utilisation": None if utilisation is None else utilisation / 100,
            "memory_used_bytes": _read_or_none(lambda: memory.used),
            "memory_total_bytes": _read_or_none(lambda: memory.total),
            "power_watts": None if milliwatts is None else milliwatts / 1000,
            "temperature_celsius": self._read_temperature(),
            "sm_clock_mhz": _read_or_none(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_clock_mhz": _read_or_none(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            **throughputs,
            "activity": activity,
        }
        return validate_known(GpuSample, figures)  # without values that no GPU can have

    def _read_temperature(self) -> int | None:
        """Uses the old function, which most drivers have, or else its successor."""
        nvml, handle = self._nvml, self._handle
        celsius = _read_or_none(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        if celsius is None:
            celsius = _read_or_none(lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
        return None if celsius is None else int(celsius)

    def _read_pcie(self) -> Figures:
        """Returns the current traffic; each call measures for 20 ms, so it is used only where GPM has no figure."""
        nvml, handle = self._nvml, self._handle
        received = _read_or_none(
            lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES) * _KILOBYTE
        )
        sent = _read_or_none(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES) * _KILOBYTE)
        return {"pcie_received_bytes_per_second": received, "pcie_sent_bytes_per_second": sent}


class _Activity:
    """Busy shares of the units of one GPU between two GPM samples of NVML (Hopper and later)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        # Two samples in turn: the older one is overwritten, so nothing is allocated later.
        self._before, self._after = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._has_before = False
        self._metrics = {
            name: identifier
            for name, nvml_name in (ACTIVITIES | THROUGHPUTS).items()
            if (identifier := getattr(nvml, f"NVML_GPM_METRIC_{nvml_name}", None)) is not None
        }

    @classmethod
    def open(cls, nvml: Any, handle: Any) -> "_Activity | None":
        """Returns None where the device or its driver does not support it."""
        is_supported = _read_or_none(lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        return _read_or_none(lambda: cls(nvml, handle)) if is_supported else None

    def read(self) -> tuple[Figures | None, Figures]:
        """Returns shares by activity and bytes per second by link; the first read knows neither."""
        if _read_or_none(lambda: self._nvml.nvmlGpmSampleGet(self._handle, self._after)) is None:
            self._has_before = False
            return _NOTHING_KNOWN
        values = _read_or_none(self._read_values) if self._has_before else None
        self._before, self._after, self._has_before = self._after, self._before, True
        if values is None:
            return _NOTHING_KNOWN
        return (
            {name: _scaled(values.get(name), 1 / 100) for name in ACTIVITIES},
            {name: _scaled(values.get(name), _MEBIBYTE) for name in THROUGHPUTS},
        )

    def _read_values(self) -> dict[str, float]:
        """Returns the values that NVML could measure, in its own units."""
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = self._before, self._after
        request.numMetrics = len(self._metrics)
        for position, identifier in enumerate(self._metrics.values()):
            request.metrics[position].metricId = identifier
        answer = self._nvml.nvmlGpmMetricsGet(request)
        return {
            name: answer.metrics[position].value
            for position, name in enumerate(self._metrics)
            if answer.metrics[position].nvmlReturn == self._nvml.NVML_SUCCESS
        }


def _scaled(value: float | None, factor: float) -> float | None:
    """Scales a value; None for NaN, which NVML gives where it measured nothing and JSON cannot hold."""
    return round(value * factor, 4) if value is not None and math.isfinite(value) else None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
