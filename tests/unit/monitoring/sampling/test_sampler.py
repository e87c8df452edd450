"""The process that samples: on time, through a full disk, and never longer than its worker."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.monitoring import buffered_file
from dragoman.monitoring.sampling import sampler
from dragoman.monitoring.sampling.sampler import MODULE, Sampler, read_samples, sample_machine, start_sampler, ticks
from dragoman.run.folder import RunFolder

LIMIT_SECONDS = 60.0


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


def read_lines(path):
    """Reads the samples that are complete; the sampler may be writing the next one."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Clock:
    """Time that passes only by waiting and working."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        assert seconds >= 0
        self.now += seconds
        return False


@settings(max_examples=50)
@given(st.lists(st.floats(0, 5), min_size=1, max_size=50))
def test_ticks_stay_on_whole_seconds_however_long_the_work_took(work_seconds):
    clock = Clock()
    last = -1
    moments = ticks(1.0, clock.wait, clock)
    for seconds in work_seconds:
        next(moments)
        second = round(clock.now - 1000.0)
        assert clock.now - 1000.0 == pytest.approx(second)
        assert second > last
        last = second
        clock.now += seconds


def test_ticks_end_when_waiting_says_so():
    answers = iter([False, False, True])
    assert len(list(ticks(1.0, lambda _: next(answers)))) == 3


def test_samples_have_all_figures_and_only_the_first_has_notes():
    first, second = read_samples("node-a", iter([None, None]))
    assert list(second.values()) == ["time", "node", "cpu", "memory", "disk", "network", "gpus"]
    assert list(first.values()) == [*second.values(), "notes"]
    assert first.cpu.share is None
    assert all(interface.sent_bytes_per_second is None for interface in first.network.values())
    assert abs(second.time - time.time()) < LIMIT_SECONDS
    assert all(interface.sent_bytes_per_second >= 0 for interface in second.network.values())


def test_notes_say_what_cannot_be_read(monkeypatch):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(psutil, "net_io_counters", refuse)
    first, second = read_samples("node-a", iter([None, None]))
    assert "The traffic of the network interfaces cannot be read here: Permission denied." in first.notes
    assert first.network == second.network == {}
    assert second.memory.total_bytes > 0


def test_a_line_is_compact_json_with_whole_numbers_and_nulls(tmp_path):
    path = tmp_path / "system.a.jsonl"
    sample_machine(path, "a", 0.001, times_then_end(1))
    first, second = path.read_bytes().splitlines()
    assert first.startswith(b'{"time":')
    assert b'"cpu":{"share":null,"cores":[]},"memory":{"used_bytes":' in first
    assert re.search(rb'"total_bytes":\d+\},"disk":\{"read_bytes_per_second":', second)
    assert re.search(
        rb'"lo":\{"received_bytes":\d+,"sent_bytes":\d+,"received_dropped":\d+,"sent_dropped":\d+,'
        rb'"received_bytes_per_second":[\d.]+,"sent_bytes_per_second":[\d.]+,"is_up":(true|false|null),'
        rb'"speed_megabits_per_second":(\d+|null)\}',
        second,
    )


def times_then_end(num_times, at=None):
    """A wait that says when to end after a number of calls, and does something at one of them."""
    num_waits = 0

    def wait(seconds):
        nonlocal num_waits
        num_waits += 1
        if at is not None and num_waits == at[0]:
            at[1]()
        return num_waits > num_times

    return wait


def test_a_full_disk_delays_samples_and_loses_none(monkeypatch, tmp_path):
    is_full = True

    def write(file, data, whole=buffered_file.write_all):
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(file, data)

    def free():
        nonlocal is_full
        is_full = False

    monkeypatch.setattr(buffered_file, "write_all", write)
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
    path = tmp_path / "system.a.jsonl"
    sample_machine(path, "a", 0.001, times_then_end(4, at=(3, free)))
    assert len(read_lines(path)) == 5
    assert "notes" in read_lines(path)[0]


def test_a_file_that_cannot_be_created_yet_is_retried(tmp_path):
    folder = tmp_path / "run"
    folder.write_text("in the way")
    path = folder / "system.a.jsonl"
    sample_machine(path, "a", 0.001, times_then_end(4, at=(2, folder.unlink)))
    assert len(read_lines(path)) == 3
    folder_in_the_way = tmp_path / "b"
    folder_in_the_way.write_text("")
    sample_machine(folder_in_the_way / "system.a.jsonl", "a", 0.001, times_then_end(3))
    assert folder_in_the_way.read_text() == ""


def test_names_that_are_not_utf_8_are_written(tmp_path):
    node = "caf\udce9"
    path = RunFolder(tmp_path).system(node)
    sample_machine(path, node, 0.001, times_then_end(0))
    assert read_lines(path)[0]["node"] == node


def test_the_worker_starts_it_and_ends_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sampler, "END_SECONDS", LIMIT_SECONDS)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    run = RunFolder(tmp_path)
    with start_sampler(run, "node-a", seconds=600) as started:
        # The kernel shows the environment of a process only some time after exec: not before the first sample.
        wait_until(lambda: read_lines(run.system("node-a")))
        environment = psutil.Process(started._process.pid).environ()
        assert started.trouble is None
    assert started._process.returncode == 0, "it ends although the next sample is due in ten minutes"
    assert started.trouble is None
    assert not [name for name in environment if name.startswith(("OMP", "KMP"))]
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(("executable", "node"), [("/nowhere/python", "a"), (sys.executable, "a\0b")])
def test_a_sampler_that_cannot_start_is_reported_and_not_raised(monkeypatch, tmp_path, executable, node):
    monkeypatch.setattr(sys, "executable", executable)
    with start_sampler(RunFolder(tmp_path), node) as started:
        assert started.trouble.startswith(f"{node} is not sampled: the sampler could not start: ")


def test_a_sampler_that_died_is_reported(tmp_path):
    with start_sampler(RunFolder(tmp_path), "a") as started:
        started._process.kill()
        wait_until(lambda: started.trouble is not None)
        assert started.trouble == "a is not sampled any more: the sampler ended with exit code -9."


def test_a_sampler_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(sampler, "END_SECONDS", 0.2)
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process.stdout, Sampler("a", process):
        process.stdout.readline()
    assert process.returncode == -signal.SIGKILL


@contextmanager
def sampling(folder, seconds="0.05"):
    """Starts a sampler as a process and waits for its first samples."""
    path = RunFolder(folder).system("a")
    process = subprocess.Popen([sys.executable, "-P", "-m", MODULE, str(folder), "a", seconds])
    try:
        wait_until(lambda: len(read_lines(path)) >= 2)
        yield process, path
    finally:
        process.kill()
        process.wait()


def test_only_sigterm_ends_it(tmp_path):
    with sampling(tmp_path) as (process, path):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(number)
        num_lines = len(read_lines(path))
        wait_until(lambda: len(read_lines(path)) > num_lines + 2)
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0


def test_it_ends_with_its_parent_even_if_the_parent_is_killed(tmp_path):
    # A minute between samples: only the kernel can end it in time.
    arguments = [sys.executable, "-P", "-m", MODULE, str(tmp_path), "a", "60"]
    program = f"import subprocess, time; print(subprocess.Popen({arguments!r}).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: read_lines(RunFolder(tmp_path).system("a")))
        parent.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_it_ends_after_its_first_sample_if_the_parent_ended_before(monkeypatch, tmp_path):
    monkeypatch.setenv(sampler.PARENT_VARIABLE, "999999999")
    process = subprocess.Popen([sys.executable, "-P", "-m", MODULE, str(tmp_path), "a", "0.05"])
    assert process.wait(LIMIT_SECONDS) == 0


def test_it_imports_neither_torch_nor_numpy_nor_pynvml_at_start():
    program = f"import sys, {MODULE}; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pynvml')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
