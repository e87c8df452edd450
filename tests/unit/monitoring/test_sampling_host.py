"""Processors, memory and disk: shares and rates that are true or null, whatever the counters do."""

from collections import namedtuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.monitoring.sampling import host
from dragoman.monitoring.sampling.host import HostReader, cpu_shares, disk_rates, per_second

COUNTER = st.integers(0, 2**64)
SECONDS = st.floats(0.001, 1e6)


@pytest.fixture
def clock():
    return iter(range(100, 200)).__next__


@given(COUNTER, st.integers(0, 2**50), SECONDS)
def test_a_rising_counter_gives_what_rose_per_second(before, rise, seconds):
    assert per_second(before, before + rise, seconds) == pytest.approx(rise / seconds, rel=1e-9, abs=0.06)


@given(st.none() | COUNTER, st.none() | COUNTER, st.floats(-1, 10))
def test_a_rate_is_never_negative_and_null_where_nobody_can_know(before, after, seconds):
    rate = per_second(before, after, seconds)
    is_known = before is not None and after is not None and after >= before and seconds > 0
    assert (rate is not None) == is_known
    assert rate is None or rate >= 0


def test_busy_is_all_time_but_idle_and_waiting_for_disk_and_guests_count_once():
    before = [{"user": 10.0, "system": 5.0, "idle": 100.0, "iowait": 1.0, "guest": 3.0}] * 2
    after = [
        {"user": 10.5, "system": 5.1, "idle": 100.3, "iowait": 1.1, "guest": 3.5},
        {"user": 10.0, "system": 5.0, "idle": 101.0, "iowait": 1.0, "guest": 3.0},
    ]
    assert cpu_shares(before, after) == {"share": 0.3, "cores": [0.6, 0.0]}


CORE = st.fixed_dictionaries({name: st.floats(0, 1e9) for name in ("user", "system", "idle", "iowait", "guest")})


@given(st.lists(CORE, max_size=4), st.lists(CORE, max_size=4))
def test_shares_stay_between_nothing_and_all_even_if_times_fall_or_cores_go(before, after):
    figures = cpu_shares(before, after)
    assert len(figures["cores"]) in (0, len(after))
    assert all(share is None or 0 <= share <= 1 for share in (figures["share"], *figures["cores"]))


DISKS = st.dictionaries(st.sampled_from(["sda", "sdb", "nvme0n1"]), st.tuples(COUNTER, COUNTER))


@given(DISKS, DISKS, st.floats(0.5, 2))
def test_disks_may_come_go_and_wrap(before, after, seconds):
    figures = disk_rates(before, after, seconds)
    assert all(rate is None or rate >= 0 for rate in figures.values())
    if not before.keys() & after.keys():
        assert set(figures.values()) == {None}


def test_the_rate_of_all_disks_is_the_sum_without_the_one_that_was_reset():
    before = {"sda": (1_000, 10), "sdb": (500, 20), "gone": (1, 1)}
    after = {"sda": (3_000, 50), "sdb": (100, 40), "new": (10**9, 10**9)}
    assert disk_rates(before, after, 2.0) == {"read_bytes_per_second": 1_000, "written_bytes_per_second": 30}


DiskCounters = namedtuple("DiskCounters", "read_bytes write_bytes")


def show_disks(monkeypatch, folder, disks):
    """A kernel with these disks: name → (bytes read, whether it is a whole one, whether it is hardware)."""
    monkeypatch.setattr(host, "BLOCK_DEVICES", folder)
    for name, (_, is_whole, is_hardware) in disks.items():
        if is_whole:
            (folder / name.replace("/", "!") / ("device" if is_hardware else "")).mkdir(parents=True)
    counters = {name: DiskCounters(num_bytes, 0) for name, (num_bytes, *_) in disks.items()}
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: counters)
    host._is_hardware.cache_clear()
    host._is_whole.cache_clear()


@pytest.mark.parametrize(
    ("disks", "counted"),
    [
        ({"sda": (8, True, True), "sda1": (5, False, False), "dm-0": (5, True, False)}, {"sda"}),
        ({"cciss/c0d0": (8, True, True), "md0": (8, True, False)}, {"cciss/c0d0"}),
        ({"zram0": (8, True, False), "part1": (8, False, False)}, {"zram0"}),
    ],
)
def test_a_byte_that_goes_through_a_partition_or_lvm_to_a_disk_counts_once(monkeypatch, tmp_path, disks, counted):
    show_disks(monkeypatch, tmp_path, disks)
    assert host._read_disk_bytes().keys() == counted


def test_the_first_look_knows_no_rates_and_the_second_does(clock):
    reader, notes = HostReader(clock), []
    first = reader.read(notes)
    assert first["cpu"] == {"share": None, "cores": []}
    assert 0 < first["memory"]["used_bytes"] < first["memory"]["total_bytes"]
    assert set(first["disk"].values()) == {None}
    second = reader.read(notes)
    assert len(second["cpu"]["cores"]) == psutil.cpu_count()
    if not notes:
        assert second["disk"]["read_bytes_per_second"] >= 0


def test_what_cannot_be_read_is_null_with_one_sentence_each_and_comes_when_it_can(monkeypatch, clock):
    reader, notes = HostReader(clock), []
    with monkeypatch.context() as hidden:
        hidden.setattr(psutil, "cpu_times", raising(PermissionError(13, "Permission denied", "/proc/stat")))
        hidden.setattr(psutil, "virtual_memory", raising(FileNotFoundError(2, "No such file or directory")))
        hidden.setattr(psutil, "disk_io_counters", raising(NotImplementedError("no /proc/diskstats.")))
        figures = reader.read(notes)
    assert figures == {
        "cpu": {"share": None, "cores": []},
        "memory": {"used_bytes": None, "total_bytes": None},
        "disk": {"read_bytes_per_second": None, "written_bytes_per_second": None},
    }
    assert notes == [
        "The load of the processors cannot be read here: Permission denied.",
        "The memory in use cannot be read here: No such file or directory.",
        "The traffic of the disks cannot be read here: no /proc/diskstats.",
    ]
    assert reader.read([])["memory"]["total_bytes"] > 0


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_machine_without_disks_says_so(monkeypatch, clock):
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: None)
    notes = []
    assert set(HostReader(clock).read(notes)["disk"].values()) == {None}
    assert notes == ["The traffic of the disks cannot be read here: the kernel shows no disk."]
