"""One process trains a run: a second is refused, and whoever dies lets go."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading

import pytest

from dragoman.run.commands import command_for
from dragoman.run.errors import UserError
from dragoman.run.folder import LockHolder, RunFolder, is_locked, lock_run, read_holder

HOLDER = """
import sys, time
from pathlib import Path
from dragoman.run.folder import RunFolder
from dragoman.run.folder import lock_run

with lock_run(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def test_a_run_is_held_for_the_block_and_no_longer(run):
    assert not is_locked(run)
    with lock_run(run):
        assert is_locked(run)
    assert not is_locked(run)


def test_a_second_holder_is_refused_and_the_first_keeps_it(run):
    with lock_run(run):
        content = run.lock.read_bytes()
        with pytest.raises(UserError) as refused, lock_run(run):
            pass
        assert is_locked(run)
        assert run.lock.read_bytes() == content
    assert str(refused.value) == (
        f"{run.path} is being trained by process {os.getpid()} on {socket.gethostname()}; "
        f"stop it first with: {command_for('stop', run.path)}"
    )


def test_a_holder_may_say_where_it_was_launched(run):
    with lock_run(run, holder="launched from laptop"):
        assert read_holder(run) == LockHolder(socket.gethostname(), os.getpid(), "launched from laptop")
        with (
            pytest.raises(UserError, match=r", launched from laptop; stop it there first with: .*stop "),
            lock_run(run),
        ):
            pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": 3}', b"\xff"])
def test_a_holder_that_is_not_named_is_another_process(run, content):
    with run.lock.open("wb") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being trained by another process; stop that one first"), lock_run(run):
            pass


def test_whoever_looks_at_a_lock_keeps_nobody_out(run):
    """A look holds the lock for an instant."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            is_locked(run)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(200):
            with lock_run(run):
                pass
    finally:
        is_over.set()
        thread.join()


def test_a_lock_file_that_was_removed_is_not_locked_in_vain(run, monkeypatch):
    """A start that fails removes its lock file; another one may just have opened it."""
    flock, was_removed = fcntl.flock, []

    def remove_first(file: object, kind: int) -> None:
        if not was_removed:
            was_removed.append(True)
            run.lock.unlink()
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with lock_run(run):
        assert was_removed
        assert is_locked(run)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_keeps_nobody_from_training(run, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_run(run):
        assert not is_locked(run)
        assert read_holder(run).pid == os.getpid()


def test_a_full_disk_keeps_nobody_from_training(run):
    run.lock.symlink_to("/dev/full")
    with lock_run(run):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    expected = r"The run folder .*nowhere cannot be written: there is no such file"
    with pytest.raises(UserError, match=expected), lock_run(RunFolder(tmp_path / "nowhere")):
        pass


def test_an_error_inside_lets_go(run):
    with pytest.raises(ZeroDivisionError), lock_run(run):
        1 / 0  # noqa: B018 - the error is the point
    assert not is_locked(run)


def test_a_holder_that_is_killed_lets_go(run):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run.path)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            assert is_locked(run)
        finally:
            holder.kill()
    assert not is_locked(run)
    with lock_run(run):
        pass


def test_looking_leaves_no_file_and_keeps_nobody_out(run):
    assert not is_locked(run)
    assert not run.lock.exists()
    with lock_run(run):
        assert is_locked(run)
        assert is_locked(run)


def test_a_folder_that_does_not_exist_is_held_by_nobody(tmp_path):
    assert not is_locked(RunFolder(tmp_path / "nowhere"))
