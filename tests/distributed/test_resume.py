"""A run that was killed, stopped or interrupted continues as if nothing had happened."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Run, Training, call_dragoman, latest_step, learned_bytes, read_records, train_losses, wait_for_step

from dragoman.run.budget import read_spent
from dragoman.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")
SEED = random.randrange(10**6)  # another step each time; printed where a test fails


@pytest.fixture(scope="module")
def step_to_kill_at() -> int:
    # Of 50: a busy machine may show a step late, and the run must not be over by then.
    step = random.Random(SEED).randrange(8, 36)
    print(f"killing at step {step}")
    return step


GROWING = ("--set", "training.initial_batch_tokens=200", "--set", "training.batch_doubling_steps=12")


# Two numbers have one sum; from three ranks on, the order of adding would show.
@pytest.mark.slow
@pytest.mark.parametrize(("workers", "settings"), [(2, GROWING), (4, ())])
def test_killed_and_resumed_ends_bit_identical(
    dragoman: Run, config: Path, tmp_path: Path, step_to_kill_at: int, workers: int, settings: tuple[str, ...]
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    dragoman("train", config, "--workers", workers, "--run-dir", whole, *settings)
    with Training(broken, config, "--workers", workers, *settings) as training:
        wait_for_step(broken, step_to_kill_at)
        os.killpg(training.pid, signal.SIGKILL)
        training.end(-signal.SIGKILL)
    # Before it is resumed the run must be one that was really cut off.
    assert not (broken / "checkpoints" / "step-00000050").exists()
    dragoman("train", "--resume", "--workers", workers, "--run-dir", broken)
    assert read_records(broken, "restart")
    assert train_losses(broken) == train_losses(whole)
    assert learned_bytes(broken, 50) == learned_bytes(whole, 50)


@pytest.mark.slow
def test_resumed_on_another_number_of_workers_stays_within_tolerance(
    dragoman: Run, config: Path, trained_run: Path, tmp_path: Path
):
    moved = tmp_path / "moved"
    dragoman("train", config, "--workers", 2, "--run-dir", moved, "--set", "training.max_steps=21")
    dragoman("train", "--resume", "--workers", 4, "--run-dir", moved, "--set", "training.max_steps=50")
    assert train_losses(moved) == pytest.approx(train_losses(trained_run), rel=1e-4)


@pytest.mark.slow
def test_continue_starts_a_run_or_resumes_it(dragoman: Run, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    for max_steps in (2, 4):
        dragoman("train", config, "--run-dir", run, "--continue", "--set", f"training.max_steps={max_steps}")
    assert [record["step"] for record in read_records(run, "restart")] == [2]
    assert list(train_losses(run)) == [1, 2, 3, 4]


# Asked to end


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.kill, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(os.killpg, signal.SIGINT, marks=pytest.mark.slow),  # as a Ctrl-C, to the whole group of processes
    ],
)
def test_a_signal_finishes_the_step_saves_and_says_how_to_resume(
    dragoman: Run, config: Path, tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals
):
    run = tmp_path / "run"
    with Training(run, config, "--workers", 2) as training:
        training.wait_for_step(5)
        send(training.pid, number)
        done = training.end()
    assert f"dragoman train --resume --run-dir {run}" in done.stdout  # after the way to the command
    last = read_records(run, "train")[-1]["step"]
    assert latest_step(run) == last
    done = dragoman("train", "--resume", "--workers", 2, "--run-dir", run)
    assert f"Continuing from the checkpoint of step {last}" in done.stdout


def test_a_run_in_training_is_not_trained_twice_and_stops_on_request(config: Path, tmp_path: Path):
    with Training(tmp_path / "run", config, "--workers", 2, "--set", "training.max_steps=100000") as training:
        training.wait_for_step(5)
        done = call_dragoman("train", "--resume", "--run-dir", training.run, code=1)
        assert f"{training.run} is being trained by process {training.pid} on " in done.stderr
        call_dragoman("stop", training.run)
        training.end()
    call_dragoman("status", training.run, "--expect", "stopped")
    assert latest_step(training.run) == read_records(training.run, "train")[-1]["step"] < 100_000
    assert not (training.run / "stop.request").exists()


@pytest.mark.slow
def test_a_budget_of_money_ends_the_run_in_good_order(dragoman: Run, run_copy: Path):
    """One of hours does so in test_budgets.py."""
    spent = read_spent(RunFolder(run_copy))
    more_seconds = 12 + 3 * spent.measured.start  # a busy machine needs longer to start, and then has more
    price = [
        "--set",
        "training.price_per_hour=5",
        "--set",
        f"training.max_cost={5 / 3600 * (spent.seconds + more_seconds)}",
    ]
    done = dragoman(
        "train", "--resume", "--workers", 2, "--run-dir", run_copy, *price, "--set", "training.max_steps=100000"
    )
    assert "training.max_cost is used up" in done.stdout
    last = read_records(run_copy, "train")[-1]["step"]
    assert 50 < last < 100000
    assert read_records(run_copy, "evaluation")[-1]["step"] == last
    assert latest_step(run_copy) == last


# Damaged


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("model.safetensors", flip_a_bit), ("optimizer.safetensors", cut_off)],
)
@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    dragoman: Run, run_copy: Path, name: str, damage: Callable[[Path], None]
):
    damaged = run_copy / "checkpoints" / "step-00000050" / name
    damage(damaged)
    done = dragoman("train", "--resume", "--run-dir", run_copy, "--set", "training.max_steps=52")
    assert f"Skipping a checkpoint: {damaged} is damaged" in done.stdout
    assert "Continuing from the checkpoint of step 49" in done.stdout
    assert list(train_losses(run_copy)) == list(range(1, 53))


def files_of(folder: Path) -> dict[Path, bytes]:
    """All but the lock file, which names who looked last."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("option", ["--resume", "--continue"])
def test_where_no_checkpoint_is_whole_nothing_is_changed(config: Path, run_copy: Path, option: str):
    cut_off(run_copy / "checkpoints" / "step-00000050" / "model.safetensors")
    (run_copy / "checkpoints" / "step-00000049" / "manifest.json").unlink()
    before = files_of(run_copy)
    done = call_dragoman("train", config, option, "--run-dir", run_copy, code=1)
    (line,) = done.stderr.splitlines()
    assert f"There is no checkpoint to resume in {run_copy / 'checkpoints'}" in line
    assert "step-00000050/model.safetensors is damaged" in line
    assert files_of(run_copy) == before
