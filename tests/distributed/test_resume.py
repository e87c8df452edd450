"""A run that was killed, stopped or interrupted continues as if nothing had happened."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Run, dragoman_command, read_records, train_losses

SEED = random.randrange(10**6)  # another step each time; printed where a test fails


def start(config: Path, run: Path, workers: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        dragoman_command("train", config, "--workers", workers, "--run-dir", run),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_step(run: Path, step: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and f'"step": {step},' in metrics.read_text(encoding="utf-8"):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached in {seconds} s")


def final_bytes(run: Path) -> dict[str, bytes]:
    folder = run / "checkpoints" / "step-00000050"
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


@pytest.fixture(scope="module")
def step_to_kill_at() -> int:
    step = random.Random(SEED).randrange(8, 45)
    print(f"killing at step {step}")
    return step


# Two numbers have one sum; from three ranks on, the order of adding would show.
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_and_resumed_ends_bit_identical(
    dragoman: Run, config: Path, tmp_path: Path, step_to_kill_at: int, workers: int
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    dragoman("train", config, "--workers", workers, "--run-dir", whole)
    process = start(config, broken, workers)
    wait_for_step(broken, step_to_kill_at)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Before it is resumed the run must be one that was really cut off.
    assert not (broken / "checkpoints" / "step-00000050").exists()
    dragoman("train", "--resume", "--workers", workers, "--run-dir", broken)
    assert read_records(broken, "restart")
    assert train_losses(broken) == train_losses(whole)
    assert final_bytes(broken) == final_bytes(whole)


def test_resumed_on_another_number_of_workers_stays_within_tolerance(dragoman: Run, config: Path, tmp_path: Path):
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    dragoman("train", config, "--workers", 1, "--run-dir", whole)
    dragoman("train", config, "--workers", 2, "--run-dir", moved, "--set", "training.max_steps=21")
    dragoman("train", "--resume", "--workers", 4, "--run-dir", moved, "--set", "training.max_steps=50")
    assert train_losses(moved) == pytest.approx(train_losses(whole), rel=1e-4)


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)],  # a Ctrl-C goes to the whole group of processes
)
def test_a_signal_finishes_the_step_saves_and_says_how_to_resume(
    dragoman: Run, config: Path, tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals
):
    run = tmp_path / "run"
    process = start(config, run, workers=2)
    wait_for_step(run, 5)
    send(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert f"dragoman train --resume --run-dir {run}" in output  # after the way to the command
    last = read_records(run, "train")[-1]["step"]
    assert (run / "checkpoints" / "latest").resolve().name == f"step-{last:08d}"
    done = dragoman("train", "--resume", "--workers", 2, "--run-dir", run)
    assert f"Continuing from the checkpoint of step {last}" in done.stdout


@pytest.mark.parametrize(
    ("budget", "setting"),
    [
        ("max_hours", ["--set", "training.max_hours=0.0002"]),
        ("max_cost", ["--set", "training.max_cost=0.001", "--set", "training.price_per_hour=5"]),
    ],
)
def test_a_budget_ends_the_run_in_good_order(
    dragoman: Run, config: Path, tmp_path: Path, budget: str, setting: list[str]
):
    run = tmp_path / "run"
    done = dragoman("train", config, "--workers", 2, "--run-dir", run, *setting, "--set", "training.max_steps=100000")
    assert f"training.{budget} is used up" in done.stdout
    last = read_records(run, "train")[-1]["step"]
    assert 0 < last < 100000
    assert read_records(run, "evaluation")[-1]["step"] == last
    assert (run / "checkpoints" / "latest").resolve().name == f"step-{last:08d}"


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(dragoman: Run, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    dragoman("train", config, "--workers", 1, "--run-dir", run, "--set", "training.max_steps=14")
    weights = run / "checkpoints" / "step-00000014" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    done = dragoman("train", "--resume", "--run-dir", run, "--set", "training.max_steps=16")
    assert "Passing over a checkpoint" in done.stdout
    assert "Continuing from the checkpoint of step 7" in done.stdout
