"""CPU, memory, disk and network: shares and rates that are true or None, whatever the counters do."""

from collections import namedtuple

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.monitoring.sampling import machine
from dragoman.monitoring.sampling.machine import (
    STATES_SECONDS,
    HostReader,
    InterfaceCounters,
    InterfaceState,
    NetworkReader,
    cpu_shares,
    describe_interface,
    disk_rates,
    network_samples,
    per_second,
    read_counters,
    traffic_interface,
)
from dragoman.run.records import CpuSample, DiskSample

COUNTER = st.integers(0, 2**64)
SECONDS = st.floats(0.001, 1e6)


@pytest.fixture
def clock():
    return iter(range(100, 200)).__next__


@settings(max_examples=50)
@given(COUNTER, st.integers(0, 2**42), SECONDS)
def test_a_rising_counter_gives_what_rose_per_second(before, rise, seconds):
    assert per_second(before, before + rise, seconds) == pytest.approx(rise / seconds, rel=1e-9, abs=0.06)


@settings(max_examples=50)
@given(st.none() | COUNTER, st.none() | COUNTER, st.floats(-1, 10))
def test_a_rate_is_never_negative_and_none_where_it_is_unknown(before, after, seconds):
    rate = per_second(before, after, seconds)
    is_known = before is not None and after is not None and after >= before and seconds > 0
    is_known = is_known and (after - before) / seconds <= 2**53
    assert (rate is not None) == is_known
    assert rate is None or rate >= 0


def test_idle_and_iowait_are_not_busy_and_guests_count_once():
    before = [{"user": 10.0, "system": 5.0, "idle": 100.0, "iowait": 1.0, "guest": 3.0}] * 2
    after = [
        {"user": 10.5, "system": 5.1, "idle": 100.3, "iowait": 1.1, "guest": 3.5},
        {"user": 10.0, "system": 5.0, "idle": 101.0, "iowait": 1.0, "guest": 3.0},
    ]
    assert cpu_shares(before, after) == CpuSample(share=0.3, cores=[0.6, 0.0])


CORE = st.fixed_dictionaries({name: st.floats(0, 1e9) for name in ("user", "system", "idle", "iowait", "guest")})


@settings(max_examples=50)
@given(st.lists(CORE, max_size=4), st.lists(CORE, max_size=4))
def test_shares_stay_between_0_and_1_even_if_times_fall_or_cores_go(before, after):
    figures = cpu_shares(before, after)
    assert len(figures.cores) in (0, len(after))
    assert all(share is None or 0 <= share <= 1 for share in (figures.share, *figures.cores))


DISKS = st.dictionaries(st.sampled_from(["sda", "sdb", "nvme0n1"]), st.tuples(COUNTER, COUNTER))


@settings(max_examples=50)
@given(DISKS, DISKS, st.floats(0.5, 2))
def test_disks_may_come_and_go_and_counters_wrap(before, after, seconds):
    figures = disk_rates(before, after, seconds).values()
    assert all(rate is None or rate >= 0 for rate in figures.values())
    if not before.keys() & after.keys():
        assert set(figures.values()) == {None}


def test_the_rate_of_all_disks_is_the_sum_without_the_one_that_was_reset():
    before = {"sda": (1_000, 10), "sdb": (500, 20), "gone": (1, 1)}
    after = {"sda": (3_000, 50), "sdb": (100, 40), "new": (10**9, 10**9)}
    assert disk_rates(before, after, 2.0) == DiskSample(read_bytes_per_second=1_000, written_bytes_per_second=30)


DiskCounters = namedtuple("DiskCounters", "read_bytes write_bytes")


def show_disks(monkeypatch, folder, disks):
    """Fakes a kernel with these disks: name → (bytes read, is it whole, is it hardware)."""
    monkeypatch.setattr(machine, "BLOCK_DEVICES", folder)
    for name, (_, is_whole, is_hardware) in disks.items():
        if is_whole:
            (folder / name.replace("/", "!") / ("device" if is_hardware else "")).mkdir(parents=True)
    counters = {name: DiskCounters(num_bytes, 0) for name, (num_bytes, *_) in disks.items()}
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: counters)
    machine._is_hardware.cache_clear()
    machine._is_whole.cache_clear()


@pytest.mark.parametrize(
    ("disks", "counted"),
    [
        ({"sda": (8, True, True), "sda1": (5, False, False), "dm-0": (5, True, False)}, {"sda"}),
        ({"cciss/c0d0": (8, True, True), "md0": (8, True, False)}, {"cciss/c0d0"}),
        ({"zram0": (8, True, False), "part1": (8, False, False)}, {"zram0"}),
    ],
)
def test_a_byte_that_passes_a_partition_or_lvm_counts_once(monkeypatch, tmp_path, disks, counted):
    show_disks(monkeypatch, tmp_path, disks)
    assert machine._read_disk_bytes().keys() == counted


def test_the_first_read_knows_no_rates_and_the_second_does(clock):
    reader, notes = HostReader(clock), []
    cpu, memory, disk = reader.read(notes)
    assert cpu == CpuSample(share=None, cores=[])
    assert 0 < memory.used_bytes < memory.total_bytes
    assert set(disk.values().values()) == {None}
    cpu, _, disk = reader.read(notes)
    assert len(cpu.cores) == psutil.cpu_count()
    if not notes:
        assert disk.read_bytes_per_second >= 0


def test_figures_that_cannot_be_read_are_none_with_one_message_each_until_they_can(monkeypatch, clock):
    reader, notes = HostReader(clock), []
    with monkeypatch.context() as hidden:
        hidden.setattr(psutil, "cpu_times", raising(PermissionError(13, "Permission denied", "/proc/stat")))
        hidden.setattr(psutil, "virtual_memory", raising(FileNotFoundError(2, "No such file or directory")))
        hidden.setattr(psutil, "disk_io_counters", raising(NotImplementedError("no /proc/diskstats.")))
        figures = reader.read(notes)
    assert [each.values() for each in figures] == [
        {"share": None, "cores": []},
        {"used_bytes": None, "total_bytes": None},
        {"read_bytes_per_second": None, "written_bytes_per_second": None},
    ]
    assert notes == [
        "The load of the processors cannot be read here: Permission denied.",
        "The memory in use cannot be read here: No such file or directory.",
        "The traffic of the disks cannot be read here: no /proc/diskstats.",
    ]
    _, memory, _ = reader.read([])
    assert memory.total_bytes > 0


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_machine_without_disks_says_so(monkeypatch, clock):
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: None)
    notes = []
    _, _, disk = HostReader(clock).read(notes)
    assert set(disk.values().values()) == {None}
    assert notes == ["The traffic of the disks cannot be read here: the kernel shows no disk."]


# Network interfaces

Stats = namedtuple("Stats", "isup speed flags")
Io = namedtuple("Io", "bytes_recv bytes_sent dropin dropout")
UP = "up,broadcast,running,multicast"

INTERFACE = st.builds(InterfaceCounters, COUNTER, COUNTER, COUNTER, COUNTER)
SNAPSHOT = st.dictionaries(st.sampled_from(["lo", "eth0", "wg0", "veth7"]), INTERFACE)


@settings(max_examples=50)
@given(SNAPSHOT, SNAPSHOT, st.floats(0, 3))
def test_rates_are_never_negative_and_known_only_for_interfaces_there_both_times(before, after, seconds):
    figures = network_samples(before, after, seconds, {})
    assert figures.keys() == after.keys()
    for name, interface in figures.items():
        for rate in ("received_bytes_per_second", "sent_bytes_per_second"):
            assert getattr(interface, rate) is None or (getattr(interface, rate) >= 0 and name in before)


@settings(max_examples=50)
@given(SNAPSHOT, st.integers(0, 2**40), st.integers(0, 2**40), st.floats(0.9, 1.1))
def test_rising_counters_give_rates_over_the_real_time(before, received, sent, seconds):
    after = {
        name: InterfaceCounters(was.received_bytes + received, was.sent_bytes + sent, 0, 0)
        for name, was in before.items()
    }
    for interface in network_samples(before, after, seconds, {}).values():
        assert interface.received_bytes_per_second == pytest.approx(received / seconds, rel=1e-9, abs=0.06)
        assert interface.sent_bytes_per_second == pytest.approx(sent / seconds, rel=1e-9, abs=0.06)


def test_the_sample_of_an_interface():
    before = {"eth0": InterfaceCounters(100, 1_000, 0, 0)}
    after = {"eth0": InterfaceCounters(300, 5_000, 2, 3), "new": InterfaceCounters(7, 8, 0, 0)}
    figures = network_samples(before, after, 2.0, {"eth0": InterfaceState(True, 100)})
    assert figures["eth0"].values() == {
        "received_bytes": 300,
        "sent_bytes": 5_000,
        "received_dropped": 2,
        "sent_dropped": 3,
        "received_bytes_per_second": 100.0,
        "sent_bytes_per_second": 2_000.0,
        "is_up": True,
        "speed_megabits_per_second": 100,
    }
    assert figures["new"].received_bytes_per_second is None
    assert figures["new"].is_up is None


class Kernel:
    """Fakes the interfaces of a machine."""

    def __init__(self, monkeypatch, folder):
        self.io, self.stats, self.num_state_reads = {}, {}, 0
        self.folder = folder
        monkeypatch.setattr(machine, "INTERFACES", folder)
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
def test_the_kind_of_an_interface(kernel, name, interface, kind):
    kernel.add(name, **interface)
    assert describe_interface(name) == {"kind": kind, "speed_megabits_per_second": None}


@pytest.mark.parametrize("name", ["nowhere", "a\0b"])
def test_an_interface_that_is_not_there_is_unknown(kernel, name):
    assert describe_interface(name) == {"kind": "unknown", "speed_megabits_per_second": None}


def test_a_kernel_that_refuses_flags_is_no_error(kernel):
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


@settings(max_examples=50)
@given(SNAPSHOT, SNAPSHOT)
def test_interfaces_may_come_and_go_and_counters_wrap(before, after):
    name = traffic_interface(before, after)
    assert name is None or name in after


def test_repeated_reads_give_rates(kernel):
    times = iter([0.0, 1.25, 2.25])
    kernel.add("eth0", speed=1000)
    reader, notes = NetworkReader(lambda: next(times)), []
    assert reader.read(notes)["eth0"].received_bytes_per_second is None
    kernel.io = {"eth0": Io(1_250, 0, 0, 0), "wg0": Io(5, 5, 0, 0)}
    figures = reader.read(notes)
    assert figures["eth0"].received_bytes_per_second == 1_000.0
    assert figures["wg0"].received_bytes_per_second is None
    del kernel.io["eth0"]
    assert reader.read(notes).keys() == {"wg0"}
    assert notes == []


def test_states_are_read_now_and_then_and_for_a_new_interface(kernel):
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
    assert reader.read([])["eth0"].speed_megabits_per_second == 10


def test_counters_that_cannot_be_read_are_noted(monkeypatch, kernel):
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


def test_traffic_is_read_even_if_states_cannot(kernel):
    kernel.add("eth0")
    kernel.stats = OSError(5, "Input/output error")
    notes = []
    figures = NetworkReader().read(notes)
    assert figures["eth0"].is_up is None
    assert figures["eth0"].sent_bytes == 0
    assert len(notes) == 1


def test_the_loopback_interface_of_this_machine_is_known():
    names = [name for name in read_counters() if describe_interface(name)["kind"] == "loopback"]
    assert names == ["lo"]
