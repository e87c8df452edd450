"""One process trains a run: a second is refused, and whoever dies lets go."""

import subprocess
import sys

import pytest

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, is_locked, lock_run

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
        with pytest.raises(UserError, match=f"{run.path} is being trained by another process"), lock_run(run):
            pass
        assert is_locked(run)


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
