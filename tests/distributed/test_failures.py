"""When a rank fails, all stop, soon, and the first cause is told once."""

import os
import signal
import time
from pathlib import Path

import psutil
from program import Run
from test_resume import start, wait_for_step


def test_gradients_that_are_not_finite_stop_the_run_and_name_step_and_cause(
    dragoman: Run, config: Path, tmp_path: Path
):
    run = tmp_path / "run"
    done = dragoman(
        "train", config, "--workers", 2, "--run-dir", run, "--set", "training.learning_rate=1e30",
        "--set", "training.warmup_steps=0", "--set", "training.clip_norm=0", code=1,
    )  # fmt: skip
    assert "Training stopped at step 2" in done.stderr
    assert "learning rate" in done.stderr
    assert done.stderr.count("Training stopped") == 1
    assert (run / "checkpoints" / "latest").resolve().name == "step-00000000"


def test_workers_do_not_outlive_a_killed_launcher(config: Path, tmp_path: Path):
    run = tmp_path / "run"
    process = start(config, run, workers=2)
    wait_for_step(run, 3)
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    process.kill()  # the launcher alone
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive


def test_a_run_in_training_is_not_trained_twice(dragoman: Run, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    process = start(config, run, workers=2)
    wait_for_step(run, 3)
    done = dragoman("train", "--resume", "--run-dir", run, code=1)
    assert "is being trained by another process" in done.stderr
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_killed_worker_ends_the_run_without_a_hang(config: Path, tmp_path: Path):
    run = tmp_path / "run"
    process = start(config, run, workers=2)
    wait_for_step(run, 3)
    workers = [p for p in psutil.Process(process.pid).children() if "dragoman.training.worker" in p.cmdline()]
    assert len(workers) == 2
    begin = time.monotonic()
    os.kill(workers[1].pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert time.monotonic() - begin < 40
    assert "was killed (SIGKILL)" in errors
    assert len(errors.strip().splitlines()) == 1
    assert not any(worker.is_running() for worker in workers)
