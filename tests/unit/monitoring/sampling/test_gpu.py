"""GPUs, with a fake of pynvml: figures in our units, and None for each that a device does not give."""

# ruff: noqa: N802 - the fake's functions have pynvml's names
import ctypes
import inspect
import math
import sys
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.monitoring.sampling.gpu import ACTIVITIES, THROUGHPUTS, GpuReader

CONSTANTS = (
    "NVML_CLOCK_SM",
    "NVML_CLOCK_MEM",
    "NVML_TEMPERATURE_GPU",
    "NVML_PCIE_UTIL_RX_BYTES",
    "NVML_PCIE_UTIL_TX_BYTES",
    "NVML_GPM_METRICS_GET_VERSION",
    "NVML_SUCCESS",
    *(f"NVML_GPM_METRIC_{name}" for name in (ACTIVITIES | THROUGHPUTS).values()),
)


class FakeNvml:
    """Devices as pynvml shows them; its constants and structures are the real ones."""

    def __init__(self, num_devices=1, has_activity=True, refused=()):
        self.num_devices = num_devices
        self.has_activity = has_activity
        self.refused = set(refused)
        self.taken = []
        self.pcie_calls = []
        self.values = {}
        self.c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t
        for name in CONSTANTS:
            setattr(self, name, getattr(pynvml, name))

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in self.refused:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return self.num_devices

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"handle {index}"

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        return SimpleNamespace(total=80_000, used=60_000, free=20_000)

    def nvmlDeviceGetPowerUsage(self, handle):
        return 312_500

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 61

    def nvmlDeviceGetTemperatureV(self, handle, sensor, version=None):
        return 62

    def nvmlDeviceGetClockInfo(self, handle, type):  # noqa: A002 - NVML's own name
        return {pynvml.NVML_CLOCK_SM: 1_755, pynvml.NVML_CLOCK_MEM: 2_619}[type]

    def nvmlDeviceGetPcieThroughput(self, device, counter):
        self.pcie_calls.append(counter)
        return {pynvml.NVML_PCIE_UTIL_RX_BYTES: 3_000, pynvml.NVML_PCIE_UTIL_TX_BYTES: 5_000}[counter]

    def nvmlGpmQueryDeviceSupport(self, device):
        return SimpleNamespace(isSupportedDevice=int(self.has_activity))

    def nvmlGpmSampleAlloc(self):
        return pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t())

    def nvmlGpmSampleGet(self, device, gpmSample):
        self.taken.append(ctypes.addressof(gpmSample.contents))
        return gpmSample

    def nvmlGpmMetricsGet(self, metricsGet):
        assert metricsGet.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        samples = [ctypes.addressof(taken.contents) for taken in (metricsGet.sample1, metricsGet.sample2)]
        assert samples == self.taken[-2:], "the older one first"
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            if metric.metricId in self.values:
                metric.value = self.values[metric.metricId]
            else:
                metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return metricsGet


FAKED_FUNCTIONS = [name for name in vars(FakeNvml) if name.startswith("nvml")]


@pytest.mark.parametrize("name", FAKED_FUNCTIONS)
def test_the_fake_has_the_signatures_of_the_installed_library(name):
    real = inspect.signature(inspect.unwrap(getattr(pynvml, name)))
    faked = inspect.signature(getattr(FakeNvml(), name))
    assert list(faked.parameters) == list(real.parameters)


def read_twice(nvml):
    notes = []
    reader = GpuReader(notes, nvml)
    assert notes == []
    return reader.read(), reader.read()


def test_figures_in_our_units():
    ((gpu,), _) = read_twice(FakeNvml(has_activity=False))
    assert gpu.values() == {
        "index": 0,
        "name": "NVIDIA H100",
        "utilisation": 0.97,
        "memory_used_bytes": 60_000,
        "memory_total_bytes": 80_000,
        "power_watts": 312.5,
        "temperature_celsius": 61,
        "sm_clock_mhz": 1_755,
        "memory_clock_mhz": 2_619,
        "pcie_received_bytes_per_second": 3_000_000,
        "pcie_sent_bytes_per_second": 5_000_000,
        "nvlink_received_bytes_per_second": None,
        "nvlink_sent_bytes_per_second": None,
        "activity": None,
    }


def test_activity_is_the_difference_of_two_samples_and_replaces_the_slow_read_of_pcie():
    nvml = FakeNvml()
    nvml.values = {
        pynvml.NVML_GPM_METRIC_SM_UTIL: 80.0,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 25.0,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: math.nan,
        pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 2.0,
        pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 1.0,
        pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 0.5,
    }
    (first,), (second,) = read_twice(nvml)
    assert first.activity is None
    assert first.pcie_received_bytes_per_second == 3_000_000
    assert second.activity == dict.fromkeys(ACTIVITIES) | {"sm_active": 0.8, "tensor_active": 0.25}
    assert second.pcie_received_bytes_per_second == 2 * 2**20
    assert second.pcie_sent_bytes_per_second == 2**20
    assert second.nvlink_received_bytes_per_second == 2**19
    assert second.nvlink_sent_bytes_per_second is None
    assert len(nvml.pcie_calls) == 2, "only at the first read"


def test_after_a_failed_sample_activity_waits_for_two_good_ones():
    nvml = FakeNvml()
    nvml.values = {pynvml.NVML_GPM_METRIC_SM_UTIL: 50.0}
    reader = GpuReader([], nvml)
    reader.read()
    nvml.refused = {"nvmlGpmSampleGet"}
    assert reader.read()[0].activity is None
    nvml.refused = set()
    assert reader.read()[0].activity is None
    assert reader.read()[0].activity["sm_active"] == 0.5


OPTIONAL_FUNCTIONS = [name for name in FAKED_FUNCTIONS if name not in ("nvmlInit", "nvmlDeviceGetCount")]


@settings(max_examples=50)
@given(st.sets(st.sampled_from(OPTIONAL_FUNCTIONS)), st.booleans())
def test_figures_that_a_device_refuses_do_not_hide_the_others(refused, has_activity):
    _, (gpu,) = read_twice(FakeNvml(has_activity=has_activity, refused=refused))
    assert gpu.index == 0
    assert (gpu.power_watts is None) == ("nvmlDeviceGetPowerUsage" in refused)
    assert (gpu.utilisation is None) == ("nvmlDeviceGetUtilizationRates" in refused)
    assert (gpu.memory_used_bytes is None) == ("nvmlDeviceGetMemoryInfo" in refused)
    is_cold = {"nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"} <= refused
    assert (gpu.temperature_celsius is None) == is_cold


def test_another_version_of_the_library_may_lack_functions_and_names():
    nvml = FakeNvml()
    del nvml.NVML_GPM_METRIC_FP16_UTIL
    nvml.values = {pynvml.NVML_GPM_METRIC_INTEGER_UTIL: 10.0}
    nvml.nvmlDeviceGetPowerUsage = None
    _, (gpu,) = read_twice(nvml)
    assert gpu.activity["integer_active"] == 0.1
    assert gpu.activity["fp16_active"] is None
    assert gpu.power_watts is None


def test_every_device_has_its_index():
    gpus, _ = read_twice(FakeNvml(num_devices=3))
    assert [gpu.index for gpu in gpus] == [0, 1, 2]


@pytest.mark.parametrize("refused", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_nvml_there_are_no_gpus_and_one_note(refused):
    notes = []
    assert GpuReader(notes, FakeNvml(refused=[refused])).read() == []
    assert notes == ["No figures of GPUs: NVML cannot be used (Not Supported)."]


def test_the_installed_library_without_a_driver_gives_the_note(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", raise_not_found)
    notes = []
    assert GpuReader(notes).read() == []
    assert notes == ["No figures of GPUs: NVML cannot be used (NVML Shared Library Not Found)."]


def raise_not_found(name):
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def test_a_machine_without_the_library_gives_the_note(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    notes = []
    assert GpuReader(notes).read() == []
    assert len(notes) == 1


def test_values_that_no_gpu_can_have_are_left_out():
    nvml = FakeNvml()
    nvml.nvmlDeviceGetPowerUsage = lambda handle: 2**64 * 1000
    _, (gpu,) = read_twice(nvml)
    assert gpu.power_watts is None
    assert gpu.temperature_celsius == 61
