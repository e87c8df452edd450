"""Replicas belong to the run: any number of workers, stops and kills lead to the same weights."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Run, Training, learned_bytes, read_records, run_dragoman, train_losses, wait_until

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(600)]
SEED = random.randrange(10**6)  # other steps each time; printed where a test fails
NUM_STEPS, STOP_STEP, NUM_LONG_STEPS = 20, 11, 50
"""The stop is in the middle of an interval, while an exchange travels; local streams, as auto does."""
APART = ("synchronisation.interval=6", "synchronisation.max_interval=6", "synchronisation.together_steps=2")
SETTINGS = {
    "local": (*APART, "synchronisation.overlap=true", "synchronisation.fragments=6"),
    "diloco": (*APART, "synchronisation.wire=bf16", "synchronisation.fragments=2"),
    "int8": (),
    "powersgd": ("synchronisation.powersgd_rank=4",),
    "bf16": (),
    "hierarchical": (),
}
Train = Callable[..., Path]


def changes(strategy: str, max_steps: int) -> list[str]:
    values = [f"synchronisation.strategy={strategy}", "synchronisation.replicas=2", *SETTINGS[strategy]]
    return [part for value in (*values, f"training.max_steps={max_steps}") for part in ("--set", value)]


@pytest.fixture
def train(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Returns a function that trains without a break; each run is made once for all tests, which must not change it."""

    def train_once(strategy: str, workers: int, max_steps: int = NUM_STEPS) -> Path:
        run = tmp_path_factory.getbasetemp() / f"{strategy}-{workers}-{max_steps}"
        if not run.exists():
            run_dragoman(
                "train", config, "--workers", workers, "--no-check", "--run-dir", run, *changes(strategy, max_steps)
            )
        return run

    return train_once


def resume(run: Path, workers: int, max_steps: int = NUM_STEPS) -> None:
    run_dragoman(
        "train", "--resume", "--workers", workers, "--run-dir", run, "--set", f"training.max_steps={max_steps}"
    )


def all_bytes(run: Path, step: int) -> dict[str, bytes]:
    """Returns what was learned, with the state of replicas."""
    path = run / "checkpoints" / f"step-{step:08d}" / "replicas.safetensors"
    return learned_bytes(run, step) | {path.name: path.read_bytes()}


def assert_same_end(run: Path, whole: Path, step: int) -> None:
    assert train_losses(run) == train_losses(whole)
    found, expected = all_bytes(run, step), all_bytes(whole, step)
    assert [name for name in expected if found[name] != expected[name]] == []


# Workers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "numbers"),
    [(strategy, (1, 2, 3, 4) if strategy == "local" else (1, 2, 4)) for strategy in SETTINGS],
    ids=list(SETTINGS),
)
def test_any_number_of_workers_learns_the_same(train: Train, strategy: str, numbers: tuple[int, ...]):
    expected = train_losses(train(strategy, numbers[0]))
    assert len(expected) == NUM_STEPS
    assert expected[NUM_STEPS] < 0.95 * expected[1]
    evaluation = read_records(train(strategy, numbers[0]), "evaluation")[-1]
    for workers in numbers[1:]:
        run = train(strategy, workers)
        assert train_losses(run) == pytest.approx(expected, rel=1e-4), f"{workers} workers"
        assert read_records(run, "evaluation")[-1]["loss"] == pytest.approx(evaluation["loss"], rel=1e-4)


@pytest.mark.slow
def test_a_worker_may_compute_for_two_replicas(config: Path, tmp_path: Path):
    """The second of three workers does, with six virtual workers; fragments of unequal lengths are saved in turn."""
    more = ["training.virtual_workers=6", "synchronisation.fragments=3", "evaluation.evaluate_every=8"]
    more += ["checkpoints.save_every=1"]
    arguments = [*changes("local", NUM_STEPS), *(part for each in more for part in ("--set", each))]
    runs = {workers: tmp_path / f"run{workers}" for workers in (1, 3)}
    for workers, run in runs.items():
        run_dragoman("train", config, "--workers", workers, "--no-check", "--run-dir", run, *arguments)
    assert train_losses(runs[3]) == pytest.approx(train_losses(runs[1]), rel=1e-4)
    losses = [[record["loss"] for record in read_records(run, "evaluation")] for run in runs.values()]
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
def test_exact_strategies_learn_what_every_step_does_and_others_do_not(train: Train, trained_run: Path):
    exact = {step: loss for step, loss in train_losses(trained_run).items() if step <= NUM_STEPS}
    assert train_losses(train("hierarchical", 2)) == pytest.approx(exact, rel=1e-4)
    local = train_losses(train("local", 2))
    assert [local[step] for step in (1, 2, 3)] == pytest.approx([exact[step] for step in (1, 2, 3)], rel=1e-4)
    assert local != pytest.approx(exact, rel=1e-4)
    assert local == pytest.approx(exact, rel=0.1)


# Stopped and resumed


def copy_stopped(train: Train, strategy: str, folder: Path) -> Path:
    """Copies a run of two workers that ended between two averages."""
    return Path(shutil.copytree(train(strategy, 2, STOP_STEP), folder / "run", symlinks=True))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["local", "int8", "powersgd"])
def test_a_run_stopped_between_averages_ends_bit_identical(train: Train, strategy: str, tmp_path: Path):
    run = copy_stopped(train, strategy, tmp_path)
    resume(run, 2)
    assert_same_end(run, train(strategy, 2), NUM_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "workers"), [("local", 1), ("local", 4), ("int8", 4), ("powersgd", 1)])
def test_a_run_resumed_on_another_number_of_workers_learns_the_same(
    train: Train, strategy: str, workers: int, tmp_path: Path
):
    run = copy_stopped(train, strategy, tmp_path)
    resume(run, workers)
    assert train_losses(run) == pytest.approx(train_losses(train(strategy, 2)), rel=1e-4)


@pytest.mark.slow
def test_a_signal_between_averages_costs_nothing(config: Path, train: Train, tmp_path: Path):
    run = tmp_path / "run"
    with Training(run, config, "--workers", 2, "--no-check", *changes("local", NUM_LONG_STEPS)) as training:
        training.wait_for_step(9)
        os.kill(training.pid, signal.SIGTERM)
        training.end()
    assert read_records(run, "train")[-1]["step"] < NUM_LONG_STEPS
    resume(run, 2, NUM_LONG_STEPS)
    assert_same_end(run, train("local", 2, NUM_LONG_STEPS), NUM_LONG_STEPS)


# Killed


@pytest.mark.slow
def test_killed_workers_end_bit_identical(config: Path, train: Train, tmp_path: Path):
    steps = sorted(random.Random(SEED).sample(range(4, 36), 2))
    print(f"seed {SEED}: killing at steps {steps}")
    run = tmp_path / "run"
    with Training(run, config, "--workers", 2, "--no-check", *changes("local", NUM_LONG_STEPS)) as training:
        for rank, step in enumerate(steps):
            training.wait_for_step(1)
            worker = training.worker(rank)  # now: finding it takes as long as a few steps
            training.wait_for_step(step)
            worker.kill()
            wait_until(lambda rank=rank: len(read_records(run, "restart")) == rank + 1, "the restart")
        training.end()
    assert_same_end(run, train("local", 2, NUM_LONG_STEPS), NUM_LONG_STEPS)


# Wrong


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["local", "int8"])
def test_gradients_that_are_not_finite_stop_the_run(dragoman: Run, config: Path, tmp_path: Path, strategy: str):
    done = dragoman(
        "train", config, "--workers", 2, "--no-check", "--run-dir", tmp_path / "run", *changes(strategy, NUM_STEPS),
        "--set", "synchronisation.together_steps=0", "--set", "training.learning_rate=1e30",
        "--set", "training.warmup_steps=0", "--set", "training.clip_norm=0", code=1,
    )  # fmt: skip
    assert "Training stopped at step 2" in done.stderr
    assert "learning rate" in done.stderr
    assert done.stderr.count("Training stopped") == 1
