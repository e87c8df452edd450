"""A worker's heartbeat stays readable when the worker is stopped or dead; so do its stacks and its end."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.cluster import heartbeat
from dragoman.cluster.heartbeat import (
    FOLDER_VARIABLE,
    STACK_SIGNAL,
    Beat,
    WorkerEnd,
    beat,
    end_path,
    page_path,
    read_beat,
    read_end,
    report_end,
    stacks_path,
    start_heartbeat,
    waiting,
)

SECONDS = 30.0
PAGE_TEXT_BYTES = 95
WORKER = """
import time
from dragoman.cluster.heartbeat import beat, start_heartbeat

def a_function_to_be_found_in():
    time.sleep(60)

start_heartbeat(3)
beat("computing a gradient", 17)
a_function_to_be_found_in()
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


def state_of(folder: Path) -> str:
    found = read_beat(folder, 3)
    return found.process_state if found else ""


@pytest.fixture
def worker(tmp_path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that reports as rank 3 what it does."""
    with subprocess.Popen([sys.executable, "-c", WORKER], env=os.environ | {FOLDER_VARIABLE: str(tmp_path)}) as process:
        try:
            wait_until(lambda: (found := read_beat(tmp_path, 3)) is not None and found.step == 17)
            yield process
        finally:
            process.kill()


@pytest.fixture
def own_page(tmp_path, monkeypatch) -> Iterator[Path]:
    """Heartbeats of this process, as rank 0."""
    monkeypatch.setattr(heartbeat, "_heartbeat", heartbeat._Heartbeat())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    start_heartbeat(0)
    yield tmp_path
    faulthandler.unregister(STACK_SIGNAL)


def test_a_heartbeat_is_read_while_its_worker_works(worker, tmp_path):
    found = read_beat(tmp_path, 3)
    assert (found.rank, found.pid, found.step, found.doing) == (3, worker.pid, 17, "computing a gradient")
    assert not found.is_waiting
    assert 0 <= found.seconds_silent < SECONDS
    wait_until(lambda: state_of(tmp_path) == "S")


def test_a_heartbeat_outlives_its_worker(worker, tmp_path):
    worker.kill()
    wait_until(lambda: state_of(tmp_path) == "Z")
    worker.wait()
    found = read_beat(tmp_path, 3)
    assert (found.step, found.doing) == (17, "computing a gradient")
    assert found.process_state not in "RSTtD"
    assert read_beat(tmp_path, 3).seconds_silent > found.seconds_silent


def test_a_stopped_worker_is_noticed_and_writes_its_stack_when_it_continues(worker, tmp_path):
    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(tmp_path) == "T")
    assert read_beat(tmp_path, 3).step == 17
    worker.send_signal(STACK_SIGNAL)
    worker.send_signal(signal.SIGCONT)
    wait_until(lambda: "a_function_to_be_found_in" in stacks_path(tmp_path, 3).read_text())
    assert worker.poll() is None  # asking for its stack does not end it


def test_a_wait_for_other_ranks_is_reported_while_it_lasts(own_page):
    beat("computing", 5)
    with waiting("the figures of all ranks"):
        inside = read_beat(own_page, 0)
    after = read_beat(own_page, 0)
    assert (inside.is_waiting, inside.doing, inside.step) == (True, "waiting for the figures of all ranks", 5)
    assert (after.is_waiting, after.doing, after.step) == (False, "after the figures of all ranks", 5)


def test_a_step_stays_until_another_is_reported(own_page):
    assert read_beat(own_page, 0).doing == "starting"
    beat("a", 5)
    beat("b")
    assert read_beat(own_page, 0).step == 5
    beat("c", 6)
    assert read_beat(own_page, 0).step == 6


def test_every_heartbeat_ends_the_silence(own_page):
    time.sleep(0.02)
    begin = time.monotonic()
    before = read_beat(own_page, 0).seconds_silent
    beat("b")
    after = read_beat(own_page, 0).seconds_silent
    assert before >= 0.02
    assert after <= time.monotonic() - begin


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_is_reported_and_a_long_one_cut(own_page, text):
    beat(text)
    noted = read_beat(own_page, 0).doing
    if len(text.encode()) <= PAGE_TEXT_BYTES:
        assert noted == text
    else:
        assert text.startswith(noted.rstrip("\ufffd"))
        assert len(noted.rstrip("\ufffd").encode()) > PAGE_TEXT_BYTES - 4


def test_nothing_is_reported_if_no_program_watches(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_heartbeat", heartbeat._Heartbeat())
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    start_heartbeat(0)
    beat("computing", 5)
    with waiting("nobody"):
        pass
    report_end("steps", 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"\0" * 128, b"\1" * 10])
def test_before_the_first_heartbeat_there_is_none(tmp_path, content):
    if content is not None:
        page_path(tmp_path, 0).write_bytes(content)
    assert read_beat(tmp_path, 0) is None


def test_a_heartbeat_travels_as_json():
    noted = Beat(1, 2, 3, "computing", is_waiting=True, seconds_silent=0.5, process_state="S")
    assert Beat(**asdict(noted)) == noted


def test_an_end_is_read_whatever_heartbeats_follow(own_page):
    assert read_end(own_page, 0) is None
    report_end("host_back", 120)
    beat("signal", 121)
    assert read_end(own_page, 0) == WorkerEnd("host_back", 120)


def test_a_worker_that_never_started_has_no_end(tmp_path):
    assert read_end(tmp_path, 0) is None


def test_an_end_needs_no_new_space_on_the_disk(own_page):
    before = end_path(own_page, 0).stat()
    report_end("request", 10**12)
    after = end_path(own_page, 0).stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)
