"""Averages, early stopping, plateaus, frozen parts and warm starts: equal on any number of workers, kills included."""

import os
import signal
from pathlib import Path

import pytest
from program import Run, Training, learned_bytes, read_records, run_dragoman, train_losses, wait_for_step

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

EVERYTHING = """
[training]
schedule = "plateau"
plateau_patience = 1
freeze = ["embeddings"]
[evaluation]
evaluate_every = 10
metric = "loss"
[checkpoints]
ema_decay = 0.9
"""


@pytest.fixture
def options(config: Path) -> list[str]:
    """The settings of this file as options of the command line."""
    section, changed = "", []
    for line in EVERYTHING.split("\n"):
        if line.startswith("["):
            section = line.strip("[]")
        elif line:
            changed += ["--set", f"{section}.{line}"]
    return [str(config), *changed, "--set", "training.max_steps=30"]


@pytest.fixture
def whole(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of four workers, without a break; made once for all tests."""
    run = tmp_path_factory.getbasetemp() / "better-whole"
    if not run.exists():
        run_dragoman("train", *options, "--workers", 4, "--run-dir", run)
    return run


def all_bytes(run: Path, step: int) -> dict[str, bytes]:
    averaged = run / "checkpoints" / f"step-{step:08d}" / "averaged.safetensors"
    return learned_bytes(run, step) | {"averaged": averaged.read_bytes()}


def test_workers_agree_with_all_of_it_on(dragoman: Run, options: list[str], whole: Path, tmp_path: Path):
    runs = {1: tmp_path / "run1", 2: tmp_path / "run2", 4: whole}
    for workers in (1, 2):
        dragoman("train", *options, "--workers", workers, "--run-dir", runs[workers])
    for workers in (2, 4):
        assert train_losses(runs[workers]) == pytest.approx(train_losses(runs[1]), rel=1e-4)
        for one, other in zip(*(read_records(runs[each], "evaluation") for each in (1, workers)), strict=True):
            assert other["weights"] == one["weights"]
            assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
            assert other["other_weights"]["loss"] == pytest.approx(one["other_weights"]["loss"], rel=1e-4)


def test_a_killed_run_ends_bit_identical_with_all_of_it_on(
    dragoman: Run, options: list[str], whole: Path, tmp_path: Path
):
    workers = 4  # two numbers have one sum; from three ranks on, the order of adding would show
    broken = tmp_path / "broken"
    with Training(broken, *options, "--workers", workers) as training:
        wait_for_step(broken, 18)
        os.killpg(training.pid, signal.SIGKILL)
        training.end(-signal.SIGKILL)
    assert not (broken / "checkpoints" / "step-00000030").exists()
    dragoman("train", "--resume", "--workers", workers, "--run-dir", broken)
    assert all_bytes(broken, 30) == all_bytes(whole, 30)


def test_checkpoints_are_averaged_and_a_run_starts_from_them_on_two_workers(
    dragoman: Run, config: Path, tmp_path: Path
):
    first, second = tmp_path / "first", tmp_path / "second"
    settings = ("--set", 'checkpoints.average="last:2"', "--set", "evaluation.evaluate_every=7")
    done = dragoman("train", config, *settings, "--set", "training.max_steps=14", "--workers", 2, "--run-dir", first)
    assert "sing the average of 2 checkpoints (steps 7 and 14)" in done.stdout
    few = ("--set", "training.max_steps=2", "--set", "evaluation.evaluate_at_start=true")
    dragoman("train", config, *few, "--from", f"{first}@latest", "--workers", 2, "--run-dir", second)
    before, after = read_records(first, "evaluation")[-1], read_records(second, "evaluation")[0]
    assert after["step"] == 0
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-6)


def test_a_run_that_gets_no_better_is_finished(dragoman: Run, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    settings = ("evaluation.patience=2", "evaluation.evaluate_every=2", "training.learning_rate=1e-30")
    changes = [part for setting in settings for part in ("--set", setting)]
    done = dragoman("train", config, *changes, "--workers", 2, "--run-dir", run)
    assert "Finished after 6 steps" in done.stdout
    assert "(evaluation.patience)" in done.stdout
    status = dragoman("status", run).stdout
    assert "finished: the dev set did not get better" in status
    assert "(100.0%)" in status
