"""A run that was killed, stopped or interrupted continues as if nothing had happened."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Run, Training, latest_step, learned_bytes, read_records, run_dragoman, train_losses, wait_for_step

SEED = random.randrange(10**6)  # another step each time; printed where a test fails


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads of one tiny model only wait for each other where the machine is busy."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def step_to_kill_at() -> int:
    step = random.Random(SEED).randrange(8, 45)
    print(f"killing at step {step}")
    return step


# Two numbers have one sum; from three ranks on, the order of adding would show.
@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_killed_and_resumed_ends_bit_identical(
    dragoman: Run, config: Path, tmp_path: Path, step_to_kill_at: int, workers: int
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    dragoman("train", config, "--workers", workers, "--run-dir", whole)
    with Training(broken, config, "--workers", workers) as training:
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
def test_resumed_on_another_number_of_workers_stays_within_tolerance(dragoman: Run, config: Path, tmp_path: Path):
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    dragoman("train", config, "--workers", 1, "--run-dir", whole)
    dragoman("train", config, "--workers", 2, "--run-dir", moved, "--set", "training.max_steps=21")
    dragoman("train", "--resume", "--workers", 4, "--run-dir", moved, "--set", "training.max_steps=50")
    assert train_losses(moved) == pytest.approx(train_losses(whole), rel=1e-4)


@pytest.fixture
def short_run(config: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a run with checkpoints of steps 7 and 14; it was trained once for all tests."""
    original = tmp_path_factory.getbasetemp() / "short-run"
    if not original.exists():
        settings = ["--run-dir", original, "--continue", "--set", "training.max_steps=14"]
        run_dragoman("train", config, "--workers", 1, *settings)
        assert not read_records(original, "restart")
    return shutil.copytree(original, tmp_path / "run", symlinks=True)


@pytest.mark.slow
def test_continue_starts_a_run_that_is_not_there_and_goes_on_with_one_that_is(
    dragoman: Run, config: Path, short_run: Path
):
    dragoman("train", config, "--run-dir", short_run, "--continue", "--set", "training.max_steps=16")
    assert [record["step"] for record in read_records(short_run, "restart")] == [14]
    assert list(train_losses(short_run)) == list(range(1, 17))


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


def test_a_run_is_stopped_from_elsewhere_with_everything_saved(dragoman: Run, config: Path, tmp_path: Path):
    with Training(tmp_path / "run", config, "--workers", 2, "--set", "training.max_steps=100000") as training:
        training.wait_for_step(5)
        dragoman("stop", training.run)
        training.end()
    dragoman("status", training.run, "--expect", "stopped")
    assert latest_step(training.run) == read_records(training.run, "train")[-1]["step"] < 100_000
    assert not (training.run / "stop.request").exists()


@pytest.mark.parametrize(
    ("budget", "setting"),
    [
        pytest.param("max_hours", ["--set", "training.max_hours=0.0002"], marks=pytest.mark.slow),
        pytest.param(
            "max_cost",
            ["--set", "training.max_cost=0.001", "--set", "training.price_per_hour=5"],
            marks=pytest.mark.slow,
        ),
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
    assert latest_step(run) == last


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
    dragoman: Run, short_run: Path, name: str, damage: Callable[[Path], None]
):
    damaged = short_run / "checkpoints" / "step-00000014" / name
    damage(damaged)
    done = dragoman("train", "--resume", "--run-dir", short_run, "--set", "training.max_steps=16")
    assert f"Passing over a checkpoint: {damaged} is damaged" in done.stdout
    assert "Continuing from the checkpoint of step 7" in done.stdout
    assert list(train_losses(short_run)) == list(range(1, 17))


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("option", ["--resume", pytest.param("--continue", marks=pytest.mark.slow)])
def test_where_no_checkpoint_is_whole_nothing_is_changed(dragoman: Run, config: Path, short_run: Path, option: str):
    cut_off(short_run / "checkpoints" / "step-00000014" / "model.safetensors")
    (short_run / "checkpoints" / "step-00000007" / "manifest.json").unlink()
    before = files_of(short_run)
    done = dragoman("train", config, option, "--run-dir", short_run, code=1)
    (line,) = done.stderr.splitlines()
    assert f"There is no checkpoint to resume in {short_run / 'checkpoints'}" in line
    assert "step-00000014/model.safetensors is damaged" in line
    assert files_of(short_run) == before
