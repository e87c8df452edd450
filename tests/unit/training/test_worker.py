"""A worker process: one stays one, and what fails after training does not fail the run."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.monitoring.watcher import Watcher
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.training import worker

PROBE = """
import os, signal, sys
from dragoman.training import worker

def raise_error():
    raise RuntimeError("not on this machine")

TROUBLES = {
    "exception": raise_error,
    "Ctrl-C": lambda: os.kill(os.getpid(), signal.SIGINT),
    "exit": lambda: sys.exit(3),
    "trap": lambda: os.kill(os.getpid(), signal.SIGILL),
}
for name, trouble in TROUBLES.items():
    worker.torch.ones = lambda *_arguments, **_options: trouble()
    os.environ.pop(worker._KERNEL_LIMIT_VARIABLE, None)
    try:
        worker.avoid_trapping_kernels()
    except BaseException as error:
        print("a second worker, after", type(error).__name__)
    print(name, os.environ.get(worker._KERNEL_LIMIT_VARIABLE), flush=True)
"""


def test_the_process_that_tries_kernels_never_goes_on_as_a_second_worker():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=True)
    limits = dict(line.split() for line in done.stdout.splitlines())
    assert limits == {"exception": "None", "Ctrl-C": "None", "exit": "None", "trap": "AVX512_CORE_FP16"}
    assert len(done.stdout.splitlines()) == len(limits)


class Listener(Watcher):
    """Collects messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keeps a message."""
        self.said.append(text)


@pytest.mark.parametrize("error", [UserError("metrics.jsonl cannot be read."), ZeroDivisionError("division by zero")])
def test_a_fault_in_the_last_judging_is_a_message(monkeypatch, error):
    def fail(_run: RunFolder) -> None:
        raise error

    monkeypatch.setattr(worker, "verdict_of_run", fail)
    listener = Listener()
    worker._diagnose(RunFolder(Path("runs/my")), listener, step=50)
    (message,) = listener.said
    assert str(error) in message
    assert "verdict runs/my" in message


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "there is no space left on the disk"), (errno.EDQUOT, "your disk quota is used up")],
)
def test_a_full_disk_or_quota_is_a_known_cause(tmp_path, number, reason):
    cause = worker.known_cause(RunFolder(tmp_path), 0, OSError(number, "refused"))
    assert cause.startswith(f"{tmp_path} cannot be written: {reason}. Earlier checkpoints are intact")
    assert worker.known_cause(RunFolder(tmp_path), 0, OSError(errno.EIO, "refused")) is None
