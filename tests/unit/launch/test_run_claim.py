"""A host's claim on its run folder: it waits for an earlier program, refuses a second writer and can be undone."""

import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dragoman.launch import run_claim
from dragoman.launch.run_claim import RunClaim
from dragoman.run.errors import UserError
from dragoman.run.files import try_lock
from dragoman.run.folder import RunFolder, is_locked, lock_run, read_holder

SECONDS = 30.0
HOLDER = "launched from laptop"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(run_claim, "POLL_SECONDS", 0.01)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "mine")


@pytest.fixture
def claim():
    """A claim whose locks are freed after the test; those of a program end with it."""
    claim = RunClaim()
    yield claim
    claim._locks.close()


def lock_of_host(run: RunFolder) -> Path:
    return run.path / f".lock-{socket.gethostname()}"


def paths_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Locks


def test_a_claim_locks_the_folder_and_says_for_whom(claim, run):
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    assert is_locked(run)
    assert read_holder(run).remark == HOLDER
    claim.take(run, HOLDER, is_shared=False, seconds=0)  # again at the next attempt: it has it already


def test_a_new_folder_is_for_its_owner_only(claim, run):
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    assert run.path.stat().st_mode & 0o777 == 0o700


def test_a_claim_is_refused_while_another_launcher_has_the_folder(claim, run):
    run.path.mkdir(parents=True)
    with lock_run(run, "launched from desk"):
        begin = time.monotonic()
        with pytest.raises(UserError, match=r"is being trained by process \d+ on .*, launched from desk; stop it"):
            claim.take(run, HOLDER, is_shared=False, seconds=0.2)
        assert 0.2 <= time.monotonic() - begin < SECONDS
    claim.undo()
    assert run.path.exists()  # it was there before


def test_a_claim_waits_for_an_earlier_program(claim, run):
    """One that lost its launcher has to end its workers first."""
    run.path.mkdir(parents=True)
    held = ExitStack()
    held.enter_context(lock_run(run))
    threading.Timer(0.3, held.close).start()
    begin = time.monotonic()
    claim.take(run, HOLDER, is_shared=False, seconds=SECONDS)
    assert 0.2 < time.monotonic() - begin < SECONDS
    assert is_locked(run)


def test_in_a_shared_folder_each_host_has_a_lock_of_its_own(claim, run, monkeypatch):
    run.path.mkdir(parents=True)
    other = RunClaim()
    with lock_run(run, "launched from desk"):  # the launcher's own
        claim.take(run, HOLDER, is_shared=True, seconds=0)
        monkeypatch.setattr(run_claim.socket, "gethostname", lambda: "other")
        other.take(run, HOLDER, is_shared=True, seconds=0)
        other._locks.close()


def test_in_a_shared_folder_it_waits_for_an_earlier_program_of_this_host(claim, run):
    run.path.mkdir(parents=True)
    with try_lock(lock_of_host(run)), pytest.raises(UserError, match="still used by an earlier program of this host"):
        claim.take(run, HOLDER, is_shared=True, seconds=0.05)
    claim.take(run, HOLDER, is_shared=True, seconds=0)


def test_a_lock_file_of_an_earlier_program_that_has_ended_is_no_obstacle(claim, run):
    run.path.mkdir(parents=True)
    with lock_run(run, "launched from desk"):
        pass
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    assert read_holder(run).remark == HOLDER


# Nothing left of a start that failed


def test_undoing_removes_exactly_what_was_made(claim, tmp_path, run):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "other").mkdir()
    before = paths_below(tmp_path)
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    run.config.write_text("[data]\n", encoding="utf-8")
    data = tmp_path / "data" / "sets" / ".corpus.partial"
    claim.note_made(data)
    data.mkdir(parents=True)
    (data / "shard.bin").write_bytes(b"1")
    claim.undo()
    assert paths_below(tmp_path) == before


def test_undoing_keeps_a_folder_that_was_there(claim, run):
    run.path.mkdir(parents=True)
    run.config.write_text("[data]\n", encoding="utf-8")
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    claim.undo()
    assert run.config.exists()


def test_undoing_keeps_a_parent_in_which_somebody_else_has_put_something(claim, tmp_path, run):
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    (tmp_path / "runs" / "other").mkdir()
    claim.undo()
    assert paths_below(tmp_path) == {"runs", "runs/other"}


def test_when_the_run_begins_everything_is_kept(claim, run):
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    claim.keep()
    claim.undo()
    assert run.path.is_dir()
    assert is_locked(run)


def test_undoing_twice_is_no_error(claim, tmp_path, run):
    claim.take(run, HOLDER, is_shared=False, seconds=0)
    claim.undo()
    claim.undo()
    assert paths_below(tmp_path) == set()
