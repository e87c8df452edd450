"""Who uses the cores: the processes of the run, other programs, other virtual machines."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.monitoring.sampling import cores
from dragoman.monitoring.sampling.cores import (
    CoreReader,
    LoadMeter,
    ProcessTime,
    descendants,
    heaviest_programs,
    read_core_times,
)

ROOT, WORKER, THREAD, LOOP = 100, 101, 111, 200
LONGEST_WAIT = 60.0


class Kernel:
    """A folder with the files of /proc, and the times of two cores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.cores = [{"user": 0.0, "system": 0.0, "idle": 0.0, "steal": 0.0} for _ in range(2)]

    def write(self, pid: int, parent: int, name: str, cpu_seconds: float, **waiting_seconds: float) -> None:
        place = self.folder / str(pid)
        for thread, seconds in ({f"t{pid}": 0.0} | waiting_seconds).items():
            (place / "task" / thread[1:]).mkdir(parents=True, exist_ok=True)
            (place / "task" / thread[1:] / "schedstat").write_text(f"1 {int(seconds * 1e9)} 1\n")
        ticks = int(cpu_seconds * os.sysconf("SC_CLK_TCK"))
        (place / "stat").write_text(f"{pid} ({name}) S {parent} {'0 ' * 9}{ticks} 0 0 0\n")

    def spend(self, core: int, **seconds: float) -> list[dict[str, float]]:
        self.cores[core] = {name: each + seconds.get(name, 0.0) for name, each in self.cores[core].items()}
        return [dict(each) for each in self.cores]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(cores, "PROCESSES", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    found = Kernel(tmp_path)
    found.write(ROOT, 1, "agent", 0.0)
    found.write(WORKER, ROOT, "a worker (of (ours)", 1.0)
    found.write(LOOP, 1, "python", 50.0)
    return found


def test_own_time_and_that_of_others_are_told_apart(kernel: Kernel):
    reader = CoreReader(ROOT, lambda: kernel.now)
    before = kernel.spend(0)
    assert reader.read((), before) == (cores.CoreUse(), None)
    kernel.now = 10.0
    kernel.write(WORKER, ROOT, "a worker (of (ours)", 7.0, t111=4.0)
    kernel.write(LOOP, 1, "python", 60.0)
    after = kernel.spend(0, user=9.0, system=1.0)
    after = kernel.spend(1, user=6.0, idle=2.0, steal=2.0)
    use, programs = reader.read(before, after)
    assert (use.num_cores, use.own_cores, use.other_cores, use.stolen_cores) == (2, 0.6, 1.0, 0.2)
    assert use.waiting_threads == 0.0  # the thread was not there before
    assert programs is not None
    assert [(each.name, each.pid, each.cores) for each in programs] == [("python", LOOP, 1.0)]
    kernel.now = 11.0
    kernel.write(WORKER, ROOT, "a worker (of (ours)", 7.5, t111=4.5)
    use, programs = reader.read(after, kernel.spend(0, user=1.0))
    assert (use.own_cores, use.other_cores, use.waiting_threads) == (0.5, 0.5, 0.5)
    assert programs is None  # looked up only now and then


@pytest.mark.parametrize("content", [None, "0 0 0\n"])
def test_waiting_is_unknown_where_the_kernel_does_not_count_it(kernel: Kernel, content: str | None):
    for path in list(kernel.folder.glob("*/task/*/schedstat")):
        path.unlink() if content is None else path.write_text(content)
    reader = CoreReader(ROOT, lambda: kernel.now)
    before = kernel.spend(0)
    reader.read((), before)
    kernel.now = 1.0
    use, _ = reader.read(before, kernel.spend(0, user=1.0))
    assert (use.other_cores, use.waiting_threads) == (1.0, None)


def test_waiting_is_known_however_many_processes_the_run_has(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cores, "_MAX_THREADS", 1)
    reader = CoreReader(ROOT, lambda: kernel.now)
    before = kernel.spend(0)
    reader.read((), before)
    kernel.now = 1.0
    kernel.write(WORKER, ROOT, "worker", 1.0, t101=0.5)
    use, _ = reader.read(before, kernel.spend(0, user=1.0))
    assert use.waiting_threads == 0.5


def test_only_the_cores_that_the_run_may_use_count(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1})
    reader = CoreReader(ROOT, lambda: kernel.now)
    before = kernel.spend(0)
    reader.read((), before)
    kernel.now = 1.0
    kernel.spend(0, user=1.0)
    use, _ = reader.read(before, kernel.spend(1, user=0.25, idle=0.75))
    assert (use.num_cores, use.other_cores) == (1, 0.25)


def test_processes_that_end_or_cannot_be_read_are_left_out(kernel: Kernel):
    reader = CoreReader(ROOT, lambda: kernel.now)
    before = kernel.spend(0)
    reader.read((), before)
    (kernel.folder / str(WORKER) / "stat").write_text("damaged")
    kernel.now = 1.0
    use, _ = reader.read(before, kernel.spend(0, user=1.0))
    assert (use.own_cores, use.other_cores) == (0.0, 1.0)


def test_a_machine_without_proc_knows_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(cores, "PROCESSES", str(tmp_path / "none"))
    reader = CoreReader(ROOT)
    times = read_core_times()
    assert reader.read(times, times)[0] == cores.CoreUse()
    use, _ = reader.read(times, read_core_times())
    assert use.own_cores in (None, 0.0)


def test_a_machine_with_many_processes_is_looked_at_less_often(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    def slowly() -> Iterator[ProcessTime]:
        kernel.now += 1.0
        yield from ()

    monkeypatch.setattr(cores, "_read_processes", slowly)
    reader = CoreReader(ROOT, lambda: kernel.now)
    looks = 0
    for _ in range(1_000):
        before, kernel.now = kernel.now, kernel.now + 1.0
        reader.read((), [])
        looks += kernel.now - before > 1.5
    assert looks <= 1_000 * 0.005 + 2


def test_all_that_a_process_has_started_is_its_own():
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5, 7: 7}
    processes = [ProcessTime(pid, parent, "x", 0.0) for pid, parent in parents.items()]
    assert descendants(2, processes) == {2, 3, 4}
    assert descendants(7, processes) == {7}


def test_the_heaviest_programs_are_few_and_a_new_one_counts_from_its_start():
    earlier = {1: ProcessTime(1, 0, "old", 5.0), 3: ProcessTime(3, 0, "ended", 90.0)}
    now = [ProcessTime(1, 0, "old", 10.0), ProcessTime(2, 0, "new", 8.0), ProcessTime(3, 0, "reused", 4.0)]
    now += [ProcessTime(pid, 0, "small", 0.5) for pid in range(10, 20)]
    found = heaviest_programs(earlier, now, seconds=10.0)
    assert [(each.name, each.cores) for each in found] == [("new", 0.8), ("old", 0.5), ("reused", 0.4)]


def test_a_busy_process_of_this_machine_is_measured():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as loop:
        try:
            reader = CoreReader(root=loop.pid)
            before = read_core_times()
            reader.read((), before)
            deadline = time.monotonic() + LONGEST_WAIT
            own = 0.0
            while own < 0.05 and time.monotonic() < deadline:
                time.sleep(0.3)
                own = reader.read(before, read_core_times())[0].own_cores or 0.0
            assert own >= 0.05
            meter = LoadMeter("here")
            time.sleep(0.3)
            load = meter.read()
            assert load is not None
            assert load.host == "here"
            assert load.num_cores >= 1
        finally:
            loop.kill()
