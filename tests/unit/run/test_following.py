"""A run from outside: its state whatever the clocks say, and its lines whatever happens to the file."""

import errno
import fcntl
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run import following
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, hold_run
from dragoman.run.following import LineFollower, Observation, observe_run, observe_until_end
from dragoman.run.status import ALIVE_STATES, ENDED_STATES, LOST_SECONDS, RunStatus, describe_state

STATUS = RunStatus("running", 1e9, "alpha", 4242, 1e9 - 60, 600, 1_000, 4)

lines_of_text = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=8)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.write_text("[training]\nmax_steps = 1000\n")
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def write_status(run: RunFolder, **changes: object) -> None:
    run.status.write_text(json.dumps(replace(STATUS, **changes).to_json()))


def make_silent(run: RunFolder, for_seconds: float) -> None:
    then = time.time() - for_seconds
    os.utime(run.status, (then, then))


def append(path: Path, content: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(content.encode() if isinstance(content, str) else content)


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

    monkeypatch.setattr("dragoman.run.following.NamedTemporaryFile", refuse)
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
    with hold_run(run):
        assert observe_run(run) == Observation("running")
    run.metrics.write_text("{}\n")
    assert observe_run(run).state == "stopped"


def test_looking_does_not_keep_the_lock(run):
    run.lock.touch()
    observe_run(run)
    with run.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_run_is_observed_until_it_has_ended(run, monkeypatch):
    monkeypatch.setattr(following, "POLL_SECONDS", 0.001)
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
    monkeypatch.setattr(following, "POLL_SECONDS", 0.001)
    observations = observe_until_end(run)
    assert next(observations).state == "unstarted"
    run.config.unlink()
    with pytest.raises(UserError, match="is not a run folder"):
        next(observations)


@given(lines_of_text, st.text(st.characters(exclude_characters="\n")), st.data())
def test_lines_come_whole_wherever_writing_is_cut(tmp_path_factory, lines, half_line, data):
    path = tmp_path_factory.mktemp("log") / "log.txt"
    content = "".join(line + "\n" for line in lines).encode() + half_line.encode("utf-8", "surrogatepass")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    seen: list[str] = []
    with LineFollower(path) as follower:
        for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            append(path, content[begin:end])
            seen += follower.read_lines()
            assert len(seen) == content[:end].count(b"\n")
        assert seen == lines
        append(path, b"\n")
        assert len(list(follower.read_lines())) == 1


@given(lines_of_text, st.integers(0, 10), st.integers(1, 30))
def test_the_last_lines_are_found_from_the_end(tmp_path_factory, lines, num_lines, chunk_bytes):
    path = tmp_path_factory.mktemp("log") / "log.txt"
    append(path, "".join(line + "\n" for line in lines) + "half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "CHUNK_BYTES", chunk_bytes)
        with LineFollower(path, num_lines) as follower:
            assert list(follower.read_lines()) == lines[max(0, len(lines) - num_lines) :]
            append(path, " a line\nnew\n")
            assert list(follower.read_lines()) == ["half a line", "new"]


def test_bytes_that_are_no_text_are_shown_as_such(log):
    append(log, b"caf\xe9\nnext\n")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["caf\ufffd", "next"]


@pytest.mark.parametrize("num_lines", [None, 0, 10])
def test_a_file_may_appear_later(log, num_lines):
    with LineFollower(log, num_lines) as follower:
        assert list(follower.read_lines()) == []
        append(log, "first\nsecond\n")
        assert list(follower.read_lines()) == ["first", "second"]


def test_a_file_that_was_cut_short_is_read_from_its_beginning(log):
    append(log, "first\nsecond\nhalf")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["first", "second"]
        log.write_text("new\n")
        assert list(follower.read_lines()) == ["new"]


def test_a_file_that_was_replaced_is_read_to_its_end_then_the_new_one(log):
    append(log, "first\nsecond, ")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["first"]
        append(log, "completed\nhalf")
        log.rename(log.with_name("log.old"))
        append(log, "new, which is longer than the old one was\n")
        assert list(follower.read_lines()) == ["second, completed", "new, which is longer than the old one was"]


def test_a_file_that_is_away_for_a_while_is_not_read_twice(log):
    append(log, "first\n")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["first"]
        away = log.with_name("away")
        log.rename(away)
        append(away, "second\n")
        assert list(follower.read_lines()) == ["second"]
        away.rename(log)
        append(log, "third\n")
        assert list(follower.read_lines()) == ["third"]


def test_a_file_that_was_removed_and_made_again_is_new(log):
    """Though the new one may be as long as the old one, and would have its inode were that not held."""
    append(log, "old\n")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["old"]
        log.unlink()
        append(log, "new\n")
        assert list(follower.read_lines()) == ["new"]


def test_what_cannot_be_read_is_said(log):
    log.parent.joinpath("file").write_text("")
    with pytest.raises(UserError, match=r"log\.txt cannot be read: Not a directory"):
        list(LineFollower(log.parent / "file" / "log.txt").read_lines())
