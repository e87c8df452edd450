"""The state of a run as another process sees it, whatever the clocks say."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.run import status as status_module
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, lock_run
from dragoman.run.status import (
    ALIVE_STATES,
    ENDED_STATES,
    LOST_SECONDS,
    Observation,
    RunStatus,
    StatusFile,
    describe_state,
    observe_run,
    observe_until_end,
    require_untrained,
)
from dragoman.run.summary import describe_end

STATUS = RunStatus("running", 1e9, "alpha", 4242, 1e9 - 60, 600, 1_000, 4)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.write_text("[training]\nmax_steps = 1000\n")
    return folder


def write_status(run: RunFolder, **changes: object) -> None:
    run.status.write_text(json.dumps(replace(STATUS, **changes).to_json()))


def make_silent(run: RunFolder, for_seconds: float) -> None:
    then = time.time() - for_seconds
    os.utime(run.status, (then, then))


@pytest.mark.parametrize("state", ALIVE_STATES)
def test_silence_is_loss(state):
    status = replace(STATUS, state=state)
    assert describe_state(status, status.time) == state
    assert describe_state(status, status.time + LOST_SECONDS) == state
    assert describe_state(status, status.time + LOST_SECONDS + 0.1) == "lost"


@pytest.mark.parametrize("state", ENDED_STATES)
def test_what_has_ended_is_never_lost(run, state):
    write_status(run, state=state)
    make_silent(run, 1e6)
    assert observe_run(run).state == state
    assert observe_run(run).has_ended
    assert not observe_run(run).is_alive


def test_a_beating_run_is_alive_whatever_its_own_clock_says(run):
    for written in (0.0, 1e9, 9e9):
        write_status(run, time=written)
        assert observe_run(run).state == "running"


def test_a_silent_run_is_lost_and_nothing_is_left_behind(run):
    write_status(run)
    make_silent(run, 95)
    observation = observe_run(run)
    assert (observation.state, round(observation.seconds_silent)) == ("lost", 95)
    assert observation.has_ended
    assert {path.name for path in run.path.iterdir()} == {"config.toml", "status.json"}


@pytest.mark.parametrize("minutes", [-60, 60])
def test_our_clock_may_differ_from_the_file_systems(run, monkeypatch, minutes):
    write_status(run)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60 * minutes)
    assert observe_run(run).state == "running"
    then = now() - LOST_SECONDS - 5
    os.utime(run.status, (then, then))
    assert observe_run(run).state == "lost"


def test_where_we_may_not_write_our_clock_counts(run, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("dragoman.run.status.NamedTemporaryFile", refuse)
    write_status(run)
    assert observe_run(run).state == "running"
    make_silent(run, LOST_SECONDS + 5)
    assert observe_run(run).state == "lost"


def test_a_run_without_status_or_records_has_not_started(run):
    assert observe_run(run) == Observation("unstarted")
    assert observe_run(RunFolder(run.path / "nowhere")).state == "unstarted"


@pytest.mark.parametrize(
    ("steps", "state"), [([], "stopped"), ([0, 999], "stopped"), ([1_000], "finished"), ([500, 1_200], "finished")]
)
def test_older_runs_are_judged_by_their_checkpoints(run, steps, state):
    run.metrics.write_text("{}\n")
    for step in steps:
        run.checkpoint(step).mkdir(parents=True)
    assert observe_run(run) == Observation(state)


@pytest.mark.parametrize("config", ["", "training = 3", "[training]\nmax_steps = 'many'", "no TOML", "\ud800"])
def test_an_odd_config_does_not_make_it_finished(run, config):
    run.config.write_text(config, errors="surrogatepass")
    run.metrics.write_text("{}\n")
    run.checkpoint(5_000).mkdir(parents=True)
    assert observe_run(run).state == "stopped"


def test_an_older_run_that_somebody_holds_is_running(run):
    with lock_run(run):
        assert observe_run(run) == Observation("running")
    run.metrics.write_text("{}\n")
    assert observe_run(run).state == "stopped"


def test_looking_does_not_keep_the_lock(run):
    run.lock.touch()
    observe_run(run)
    with run.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_run_is_observed_until_it_has_ended(run, monkeypatch):
    monkeypatch.setattr(status_module, "POLL_SECONDS", 0.001)
    write_status(run)
    states = []
    for observation in observe_until_end(run):
        states.append(observation.state)
        if len(states) == 3:
            write_status(run, state="finished")
    assert states == ["running"] * 3 + ["finished"]


def test_a_run_is_observed_until_the_time_is_over(run):
    write_status(run)
    begin = time.monotonic()
    states = [observation.state for observation in observe_until_end(run, timeout_seconds=0.1)]
    assert set(states) == {"running"}
    assert 0.1 <= time.monotonic() - begin < 5
    assert len(list(observe_until_end(run, timeout_seconds=0))) == 1


def test_a_run_whose_folder_vanishes_is_not_waited_for(run, monkeypatch):
    monkeypatch.setattr(status_module, "POLL_SECONDS", 0.001)
    observations = observe_until_end(run)
    assert next(observations).state == "unstarted"
    run.config.unlink()
    with pytest.raises(UserError, match="is not a run folder"):
        next(observations)


# A launcher on this machine: its process counts, not only its file

LAUNCHER = """
import sys, time
from pathlib import Path
from dragoman.run.folder import RunFolder, lock_run
from dragoman.run.status import RunStatus, StatusFile

run = RunFolder(Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    with lock_run(run), StatusFile(run, RunStatus.starting(100, 1)) as status:
        status.update(state="running")
        print("running", flush=True)
        time.sleep(float(sys.argv[3]))
        status.update(state="finished", reason="steps")
"""


@contextmanager
def launcher(run: RunFolder, times: int = 1, seconds: float = 60.0) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", LAUNCHER, str(run.path), str(times), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def here(**changes: object) -> dict[str, object]:
    return {"host": socket.gethostname(), **changes}


def gone_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_launcher_that_is_killed_here_is_lost_at_once(run, is_reaped):
    """Also where its parent does not notice, as in a container without init: then it is a zombie."""
    with launcher(run) as process:
        assert process.stdout.readline() == b"running\n"
        assert observe_run(run).state == "running"
        process.kill()
        if is_reaped:
            process.wait()
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        observation = observe_run(run)
    assert (observation.state, observation.is_process_gone) == ("lost", True)
    assert observation.has_ended
    assert observation.seconds_silent < LOST_SECONDS
    assert describe_end(run, observation, 5).startswith(
        f"{run.path} is lost: process {process.pid} on {socket.gethostname()} ended without a message; it may have "
        "been killed. Continue with: "
    )


def test_a_process_that_somebody_reuses_or_another_machine_is_judged_by_its_heartbeat(run):
    other_machine = here(pid=gone_pid(), boot_id="of another machine with this name")
    for changes in (here(pid=os.getpid()), here(pid=1), {"host": "elsewhere", "pid": gone_pid()}, other_machine):
        write_status(run, **changes)
        assert observe_run(run).state == "running"
        make_silent(run, LOST_SECONDS + 5)
        assert observe_run(run).state == "lost"
        assert not observe_run(run).is_process_gone


def test_a_run_that_somebody_holds_is_not_lost(run):
    """The process may be in a container, with the name of this machine and other process numbers."""
    write_status(run, **here(pid=gone_pid()))
    with lock_run(run):
        assert observe_run(run).state == "running"
    assert observe_run(run).state == "lost"


@pytest.mark.parametrize("pid", [0, 2**31, 10**11])
def test_an_impossible_process_number_is_no_fault(run, pid):
    write_status(run, **here(pid=pid))
    assert observe_run(run).state in ("running", "lost")


def test_a_launcher_that_starts_or_ends_is_never_lost(run):
    seen = set()
    for _ in range(3):
        with launcher(run, times=20, seconds=0.005) as process:
            while process.poll() is None:
                seen.add(observe_run(run).state)
        seen.add(observe_run(run).state)
    assert {"running", "finished"} <= seen
    assert "lost" not in seen


def test_an_end_written_while_we_look_counts(run, monkeypatch):
    write_status(run, **here(pid=gone_pid()))

    def end(run: RunFolder) -> bool:
        write_status(run, **here(state="finished"))
        return False

    monkeypatch.setattr(status_module, "is_locked", end)
    assert observe_run(run).state == "finished"


# A second launcher


def test_a_run_that_another_process_holds_is_refused(run):
    with launcher(run) as process:
        process.stdout.readline()
        with pytest.raises(
            UserError, match=f"is being trained by process {process.pid} on {socket.gethostname()}; stop"
        ):
            require_untrained(run)


def test_a_launcher_on_another_machine_is_noticed_without_its_lock(run):
    """Some network file systems do not show the locks of other machines."""
    with StatusFile(run, STATUS), pytest.raises(UserError, match=r"is being trained by process 4242 on alpha; stop it"):
        require_untrained(run)
    assert not run.lock.exists()


def test_a_heartbeat_that_does_not_come_again_is_not_waited_for_long(run, monkeypatch):
    """A job that was queued again may start on another machine before its last heartbeat is old."""
    monkeypatch.setattr(status_module, "LOST_SECONDS", 1.5)
    monkeypatch.setattr(status_module, "POLL_SECONDS", 0.05)
    write_status(run)
    begin = time.monotonic()
    require_untrained(run)
    assert 1 < time.monotonic() - begin < 10


@pytest.mark.parametrize(
    "changes",
    [{"state": "finished"}, here(pid=os.getpid()), here(pid=gone_pid())],
    ids=["ended", "own-number", "gone"],
)
def test_a_run_that_nobody_trains_is_free_at_once(run, changes):
    write_status(run, **changes)
    begin = time.monotonic()
    require_untrained(run)
    assert time.monotonic() - begin < status_module.LOST_SECONDS / 2  # how long it waits for a sign of others


@pytest.mark.parametrize("content", ["", "{", '{"state": "fine"}'])
def test_a_damaged_status_keeps_nobody_from_training(run, content):
    run.status.write_text(content)
    require_untrained(run)


def test_a_launcher_that_ends_while_we_look_is_no_obstacle(run, monkeypatch):
    monkeypatch.setattr(status_module, "POLL_SECONDS", 0.02)
    write_status(run)
    timer = threading.Timer(0.3, lambda: write_status(run, state="stopped"))
    timer.start()
    require_untrained(run)
    timer.join()
