"""The state of a run as another process sees it, whatever the clocks say."""

import errno
import fcntl
import json
import os
import time
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
    describe_state,
    observe_run,
    observe_until_end,
)

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
