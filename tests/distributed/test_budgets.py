"""A budget of hours or money is an upper bound, whatever happens to the run: crashes give back steps, but no time."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from program import Run, Training, farthest_step, latest_step, read_records, wait_until

from dragoman.run.budget import read_spent
from dragoman.run.folder import RunFolder
from dragoman.run.status import read_status

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
NEVER = 10**6
SETTINGS = {
    "training.max_hours": 1,
    "training.max_steps": NEVER,
    "checkpoints.save_every": NEVER,
    "evaluation.evaluate_every": NEVER,
    "monitoring.report": "false",
}


def seconds_since_launch(run: Path) -> float:
    """Seconds since the launcher began to hold its machines."""
    status = read_status(RunFolder(run))
    assert status is not None
    return time.time() - status.started


def wait_for_more_steps(run: Path) -> None:
    """Waits until a few new steps are made."""

    def num_steps() -> int:
        return len(read_records(run, "train")) if (run / "metrics.jsonl").exists() else 0

    before = num_steps()
    wait_until(lambda: num_steps() >= before + 3, "more steps")


def seconds_for_some_steps(run: Path) -> float:
    """Seconds in which this machine, busy as it is, starts the workers once more and makes some steps."""
    spent = read_spent(RunFolder(run))
    assert spent is not None
    return 12.0 + 3 * spent.measured.start


def test_kills_of_workers_and_launchers_do_not_lengthen_a_run(config: Path, tmp_path: Path, dragoman: Run):
    run, paid = tmp_path / "run", 0.0
    settings = [argument for key, value in SETTINGS.items() for argument in ("--set", f"{key}={value}")]
    with Training(run, config, "--workers", 2, *settings) as training:
        for rank in (1, 0):
            wait_for_more_steps(run)
            num_restarts = len(read_records(run, "restart"))
            training.worker(rank).kill()
            wait_until(lambda before=num_restarts: len(read_records(run, "restart")) > before, "the restart")
        wait_for_more_steps(run)
        paid += seconds_since_launch(run)
        os.killpg(training.pid, signal.SIGKILL)
        training.end(-signal.SIGKILL)
    assert RunFolder(run).checkpoint_steps() == [0]  # nothing else on disk knows the time

    budget = paid + seconds_for_some_steps(run)
    less = ["--set", f"training.max_hours={budget / 3600}"]
    done = dragoman("train", "--resume", "--workers", 2, "--run-dir", run, *less)
    status = read_status(RunFolder(run))
    paid += status.time - status.started
    assert "training.max_hours is used up" in done.stdout + done.stderr
    assert status.reason == "time"
    assert paid <= budget
    assert json.loads(RunFolder(run).spent.read_text())["seconds"] >= paid - 5.0
    assert read_records(run, "train")[-1]["training_seconds"] <= budget

    last = read_records(run, "train")[-1]["step"]
    assert latest_step(run) == read_records(run, "evaluation")[-1]["step"] == last
    num_steps = farthest_step(run)
    done = dragoman("train", "--resume", "--workers", 2, "--run-dir", run)
    assert "training.max_hours is used up" in done.stdout + done.stderr
    assert farthest_step(run) == num_steps
