"""GPUs of this machine, by NVIDIA's own library (NVML): load, memory, power, clocks, PCIe, and what its cores do.

Nothing of this ever ran on a GPU: it was written after the signatures of the installed pynvml and tested with a
stand-in. So every figure is asked for on its own, and one that a device, driver or library does not give is null.
"""

import importlib
import math
from collections.abc import Callable
from typing import Any

from dragoman.monitoring.sampling.host import Figures, describe_error

MEBIBYTE = 2**20
KILOBYTE = 1000

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
"""Our names of what NVML gives in percent (its NVML_GPM_METRIC_...)."""
THROUGHPUTS = {
    "pcie_received_bytes_per_second": "PCIE_RX_PER_SEC",
    "pcie_sent_bytes_per_second": "PCIE_TX_PER_SEC",
    "nvlink_received_bytes_per_second": "NVLINK_TOTAL_RX_PER_SEC",
    "nvlink_sent_bytes_per_second": "NVLINK_TOTAL_TX_PER_SEC",
}
"""And of what it gives in MiB per second."""
NOTHING_KNOWN: tuple[Figures | None, Figures] = (None, dict.fromkeys(THROUGHPUTS))


def ask(question: Callable[[], Any]) -> Any:
    """The answer, or None: a device need not have it, nor a driver or library of another year know the question."""
    try:
        return question()
    except Exception:
        return None


class GpuReader:
    """Looks at all GPUs, again and again; there are none where NVML is not there."""

    def __init__(self, notes: list[str], nvml: Any = None) -> None:
        """`nvml` is the module pynvml, or one like it."""
        self._devices: list[_Device] = []
        try:
            nvml = nvml or importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._devices = [_Device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        except Exception as error:
            notes.append(f"NVML is not there: no figures of GPUs ({describe_error(error)}).")

    def read(self) -> list[Figures]:
        """The figures of every GPU, by NVML's numbers: not those of CUDA_VISIBLE_DEVICES."""
        return [device.read() for device in self._devices]


class _Device:
    """One GPU."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._handle = ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        self._name = ask(lambda: _text(nvml.nvmlDeviceGetName(self._handle)))
        self._activity = _Activity.of(nvml, self._handle)

    def read(self) -> Figures:
        nvml, handle = self._nvml, self._handle
        utilisation = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        milliwatts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        activity, throughputs = self._activity.read() if self._activity else NOTHING_KNOWN
        if throughputs["pcie_received_bytes_per_second"] is None:
            throughputs = throughputs | self._read_pcie()
        return {
            "index": self._index,
            "name": self._name,
            "utilisation": None if utilisation is None else utilisation / 100,
            "memory_used_bytes": ask(lambda: memory.used),
            "memory_total_bytes": ask(lambda: memory.total),
            "power_watts": None if milliwatts is None else milliwatts / 1000,
            "temperature_celsius": self._read_temperature(),
            "sm_clock_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_clock_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            **throughputs,
            "activity": activity,
        }

    def _read_temperature(self) -> int | None:
        """By the old function, which all drivers know until they drop it, or else by its successor."""
        nvml, handle = self._nvml, self._handle
        celsius = ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        if celsius is None:
            celsius = ask(lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
        return None if celsius is None else int(celsius)

    def _read_pcie(self) -> Figures:
        """The traffic of a moment; NVML counts for 20 ms to answer, so it is asked only where GPM does not tell."""
        nvml, handle = self._nvml, self._handle
        received = ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES) * KILOBYTE)
        sent = ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES) * KILOBYTE)
        return {"pcie_received_bytes_per_second": received, "pcie_sent_bytes_per_second": sent}


class _Activity:
    """What the parts of one GPU did between two of NVML's samples (GPM: Hopper and later)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        # Two that change places: the older one is overwritten, so nothing is allocated later.
        self._before, self._after = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._has_before = False
        self._metrics = {
            name: identifier
            for name, nvml_name in (ACTIVITIES | THROUGHPUTS).items()
            if (identifier := getattr(nvml, f"NVML_GPM_METRIC_{nvml_name}", None)) is not None
        }

    @classmethod
    def of(cls, nvml: Any, handle: Any) -> "_Activity | None":
        """None where the device or its driver does not give it."""
        is_supported = ask(lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        return ask(lambda: cls(nvml, handle)) if is_supported else None

    def read(self) -> tuple[Figures | None, Figures]:
        """Shares by activity, and bytes per second by link; nothing is known at the first look."""
        if ask(lambda: self._nvml.nvmlGpmSampleGet(self._handle, self._after)) is None:
            self._has_before = False
            return NOTHING_KNOWN
        values = ask(self._read_values) if self._has_before else None
        self._before, self._after, self._has_before = self._after, self._before, True
        if values is None:
            return NOTHING_KNOWN
        return (
            {name: _scaled(values.get(name), 1 / 100) for name in ACTIVITIES},
            {name: _scaled(values.get(name), MEBIBYTE) for name in THROUGHPUTS},
        )

    def _read_values(self) -> dict[str, float]:
        """NVML's own numbers, those that it could tell."""
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
    """JSON has no word for NaN, which NVML gives where it counted nothing."""
    return round(value * factor, 4) if value is not None and math.isfinite(value) else None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
