"""Commands as process 1, as they run in a container: in a PID namespace of their own, which needs root."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from corpora import make_pairs, write_pairs
from program import WORKER_MODULE, dragoman_command, read_records, runs_module, wait_for_step, wait_until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root to make a PID namespace"
)
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
# Little text is prepared in one process; here it gets a pool.
POOL_FOR_ANY_TEXT = (
    "import dragoman.corpus.preparation.engine as e, dragoman.cli; e.SMALL_BYTES = 0; dragoman.cli.main()"
)


@contextmanager
def started(command: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """Starts a command as process 1; everything it started ends with the block."""
    process = subprocess.Popen(
        [*NAMESPACE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_prepare_uses_its_worker_processes(tmp_path: Path):
    source, target = write_pairs(tmp_path, "train", make_pairs(300))
    options = ["--source", source, "--target", target, "--out", tmp_path / "out", "--vocab-size", 200]
    command = [sys.executable, "-c", POOL_FOR_ANY_TEXT, "prepare", *map(str, options), "--processes", "2"]
    with started(command) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert f"Written to {tmp_path / 'out'}" in output


def test_translating_ends_at_a_signal(trained_run: Path):
    """Process 1 ignores all signals that it does not handle."""
    with started(dragoman_command("translate", trained_run), stdin=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Translating with")
        (command,) = psutil.Process(process.pid).children()
        command.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_training_survives_a_killed_worker_and_stops_on_request(config: Path, tmp_path: Path):
    run = tmp_path / "run"
    options = ["--workers", 2, "--set", "training.max_steps=100000"]
    with started(dragoman_command("train", config, "--run-dir", run, *options)) as process:
        wait_for_step(run, 10)
        (launcher,) = psutil.Process(process.pid).children()
        next(each for each in launcher.children(recursive=True) if runs_module(each, WORKER_MODULE)).kill()
        wait_until(lambda: read_records(run, "restart"), "a restart")
        step = max(int(record["step"]) for record in read_records(run, "train"))
        wait_for_step(run, step + 5)
        launcher.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert re.search(r'"state": "stopped', (run / "status.json").read_text()), (run / "status.json").read_text()
