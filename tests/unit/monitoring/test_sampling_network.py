"""Network interfaces: true rates however they come and go, what each is, and which one carries the traffic."""

from collections import namedtuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.monitoring.sampling import network
from dragoman.monitoring.sampling.network import (
    STATES_SECONDS,
    InterfaceCounters,
    InterfaceState,
    NetworkReader,
    describe_interface,
    network_figures,
    read_counters,
    traffic_interface,
)

Stats = namedtuple("Stats", "isup speed flags")
Io = namedtuple("Io", "bytes_recv bytes_sent dropin dropout")
UP = "up,broadcast,running,multicast"

COUNTER = st.integers(0, 2**64)
INTERFACE = st.builds(InterfaceCounters, COUNTER, COUNTER, COUNTER, COUNTER)
SNAPSHOT = st.dictionaries(st.sampled_from(["lo", "eth0", "wg0", "veth7"]), INTERFACE)


@given(SNAPSHOT, SNAPSHOT, st.floats(0, 3))
def test_whatever_counters_do_rates_are_never_negative_and_only_known_for_those_there_both_times(
    before, after, seconds
):
    figures = network_figures(before, after, seconds, {})
    assert figures.keys() == after.keys()
    for name, interface in figures.items():
        for rate in ("received_bytes_per_second", "sent_bytes_per_second"):
            assert interface[rate] is None or (interface[rate] >= 0 and name in before)


@given(SNAPSHOT, st.integers(0, 2**40), st.integers(0, 2**40), st.floats(0.9, 1.1))
def test_rising_counters_give_rates_over_the_real_time(before, received, sent, seconds):
    after = {
        name: InterfaceCounters(was.received_bytes + received, was.sent_bytes + sent, 0, 0)
        for name, was in before.items()
    }
    for interface in network_figures(before, after, seconds, {}).values():
        assert interface["received_bytes_per_second"] == pytest.approx(received / seconds, rel=1e-9, abs=0.06)
        assert interface["sent_bytes_per_second"] == pytest.approx(sent / seconds, rel=1e-9, abs=0.06)


def test_the_record_of_an_interface():
    before = {"eth0": InterfaceCounters(100, 1_000, 0, 0)}
    after = {"eth0": InterfaceCounters(300, 5_000, 2, 3), "new": InterfaceCounters(7, 8, 0, 0)}
    figures = network_figures(before, after, 2.0, {"eth0": InterfaceState(True, 100)})
    assert figures["eth0"] == {
        "received_bytes": 300,
        "sent_bytes": 5_000,
        "received_dropped": 2,
        "sent_dropped": 3,
        "received_bytes_per_second": 100.0,
        "sent_bytes_per_second": 2_000.0,
        "is_up": True,
        "speed_megabits_per_second": 100,
    }
    assert figures["new"]["received_bytes_per_second"] is None
    assert figures["new"]["is_up"] is None


class Kernel:
    """Interfaces that a test makes up."""

    def __init__(self, monkeypatch, folder):
        self.io, self.stats, self.num_state_reads = {}, {}, 0
        self.folder = folder
        monkeypatch.setattr(network, "INTERFACES", folder)
        monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: dict(self.io))
        monkeypatch.setattr(psutil, "net_if_stats", self._read_stats)

    def _read_stats(self):
        self.num_state_reads += 1
        if isinstance(self.stats, Exception):
            raise self.stats
        return self.stats

    def add(self, name, flags=UP, speed=0, is_hardware=False, **files):
        self.io[name] = Io(0, 0, 0, 0)
        self.stats[name] = Stats("running" in flags, speed, flags)
        (self.folder / name / ("device" if is_hardware else "")).mkdir(parents=True)
        for file, text in files.items():
            (self.folder / name / file).write_text(text)


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    return Kernel(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("name", "interface", "kind"),
    [
        ("lo", {"flags": "up,loopback,running", "type": "772\n"}, "loopback"),
        ("eth0", {"is_hardware": True, "type": "1\n"}, "ethernet"),
        ("enp3s0f1", {"is_hardware": True, "type": "1\n"}, "ethernet"),
        ("ib0", {"is_hardware": True, "type": "32\n"}, "unknown"),
        ("veth7", {"type": "1\n"}, "virtual"),
        ("docker0", {"type": "1\n", "uevent": "DEVTYPE=bridge\n"}, "virtual"),
        ("tun0", {}, "vpn"),
        ("tap3", {}, "vpn"),
        ("wg-mesh", {}, "vpn"),
        ("ppp0", {}, "vpn"),
        ("tailscale0", {}, "vpn"),
        ("ztabcdef12", {}, "vpn"),
        ("office", {"uevent": "DEVTYPE=wireguard\nINTERFACE=office\n"}, "vpn"),
        ("home", {"tun_flags": "0x1001\n"}, "vpn"),
        ("gre1", {"flags": "up,pointopoint,running"}, "vpn"),
    ],
)
def test_what_an_interface_is(kernel, name, interface, kind):
    kernel.add(name, **interface)
    assert describe_interface(name) == {"kind": kind, "speed_megabits_per_second": None}


@pytest.mark.parametrize("name", ["nowhere", "a\0b"])
def test_an_interface_that_is_not_there_is_unknown(kernel, name):
    assert describe_interface(name) == {"kind": "unknown", "speed_megabits_per_second": None}


def test_a_kernel_that_refuses_to_tell_is_no_crash(kernel):
    kernel.add("eth0", is_hardware=True, type="1\n")
    kernel.stats = PermissionError(13, "Permission denied")
    assert describe_interface("eth0") == {"kind": "ethernet", "speed_megabits_per_second": None}


@pytest.mark.parametrize(
    ("by_psutil", "by_kernel", "speed"),
    [
        (100, "1000\n", 100),
        (0, "1000\n", 1000),
        (0, "-1\n", None),
        (0, "65535\n", None),
        (0, "4294967295\n", None),
        (0, "fast\n", None),
        (0, "", None),
        (400_000, None, 400_000),
    ],
)
def test_the_speed_an_interface_claims(kernel, by_psutil, by_kernel, speed):
    kernel.add("eth0", speed=by_psutil)
    if by_kernel is not None:
        (kernel.folder / "eth0" / "speed").write_text(by_kernel)
    assert describe_interface("eth0")["speed_megabits_per_second"] == speed


def test_the_interface_whose_counters_rose_most_carries_the_traffic():
    before = {"eth0": InterfaceCounters(10**12, 10**12, 0, 0), "eth1": InterfaceCounters(0, 0, 0, 0)}
    after = {"eth0": InterfaceCounters(10**12 + 5, 10**12, 0, 0), "eth1": InterfaceCounters(4, 4, 0, 0)}
    assert traffic_interface(before, after) == "eth1"
    assert traffic_interface(after, after) is None
    assert traffic_interface({}, {}) is None


@given(SNAPSHOT, SNAPSHOT)
def test_interfaces_that_vanish_appear_or_wrap_do_not_disturb_the_search(before, after):
    name = traffic_interface(before, after)
    assert name is None or name in after


def test_looking_again_and_again(kernel):
    times = iter([0.0, 1.25, 2.25])
    kernel.add("eth0", speed=1000)
    reader, notes = NetworkReader(lambda: next(times)), []
    assert reader.read(notes)["eth0"]["received_bytes_per_second"] is None
    kernel.io = {"eth0": Io(1_250, 0, 0, 0), "wg0": Io(5, 5, 0, 0)}
    figures = reader.read(notes)
    assert figures["eth0"]["received_bytes_per_second"] == 1_000.0
    assert figures["wg0"]["received_bytes_per_second"] is None
    del kernel.io["eth0"]
    assert reader.read(notes).keys() == {"wg0"}
    assert notes == []


def test_states_are_asked_for_now_and_then_and_when_an_interface_comes(kernel):
    time = 0.0
    reader = NetworkReader(lambda: time)
    kernel.add("eth0", speed=100)
    reader.read([])
    time = STATES_SECONDS - 1
    reader.read([])
    assert kernel.num_state_reads == 1
    kernel.add("eth1")
    time = STATES_SECONDS - 0.5
    reader.read([])
    assert kernel.num_state_reads == 2
    kernel.stats["eth0"] = Stats(False, 10, "")
    time += STATES_SECONDS
    assert reader.read([])["eth0"]["speed_megabits_per_second"] == 10


def test_counters_that_cannot_be_read_are_told_and_leave_nothing(monkeypatch, kernel):
    def refuse(pernic):
        raise PermissionError(13, "Permission denied", "/proc/net/dev")

    monkeypatch.setattr(psutil, "net_io_counters", refuse)
    kernel.stats = OSError(5, "Input/output error")
    notes = []
    assert NetworkReader().read(notes) == {}
    assert notes == [
        "The traffic of the network interfaces cannot be read here: Permission denied.",
        "The state of the network interfaces cannot be read here: Input/output error.",
    ]


def test_states_that_cannot_be_read_leave_the_traffic(kernel):
    kernel.add("eth0")
    kernel.stats = OSError(5, "Input/output error")
    notes = []
    figures = NetworkReader().read(notes)
    assert figures["eth0"]["is_up"] is None
    assert figures["eth0"]["sent_bytes"] == 0
    assert len(notes) == 1


def test_this_machine_has_a_loopback_that_is_known_as_one():
    names = [name for name in read_counters() if describe_interface(name)["kind"] == "loopback"]
    assert names == ["lo"]
