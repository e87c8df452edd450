"""Kills, hangs and signals at bad moments cost a run some time and nothing it has learned."""

import random
import signal
import socket
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import psutil
import pytest
from program import (
    Run,
    Training,
    last_note,
    latest_step,
    learned_bytes,
    read_records,
    run_dragoman,
    train_losses,
    wait_until,
)

from dragoman.builtin import write_builtin_corpus
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings
from dragoman.run.folder import RunFolder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NUM_STEPS = 50  # of the shared config
SEED = random.randrange(10**6)  # other steps each time; printed where a test fails
Start = Callable[..., Training]
LONGEST_RESTART_SECONDS = 30  # 15 on a quiet machine, which benchmarks/faults.py requires
EVALUATING = ("evaluating the dev set", "translating the dev set")
LONG_EVALUATION = ["--set", "evaluation.max_sentences=600", "--set", "evaluation.length_penalty=9"]
"""Makes the hardly trained model translate up to the length limit."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared corpus with more dev sentences, so that their translation takes a while."""
    folder = tmp_path_factory.mktemp("long-dev")
    corpus = write_builtin_corpus(folder / "corpus", num_train=1_000, num_dev=600, num_test=20)
    settings = PrepareSettings.of_files(
        [corpus.train.source],
        [corpus.train.target],
        dev=([corpus.dev.source], [corpus.dev.target]),
        tokenizer=TokenizerSettings(vocab_size=500),
    )
    prepare_corpus(settings, folder / "prepared", say=lambda _: None)
    return folder / "prepared"


@pytest.fixture
def undisturbed(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run; made once for all tests."""
    run = tmp_path_factory.getbasetemp() / "undisturbed-by-faults"
    if not run.exists():
        run_dragoman("train", config, "--workers", 2, "--run-dir", run)
    return run


@pytest.fixture
def start(config: Path, tmp_path: Path) -> Start:
    """Starts the same run with two workers and settings that do not change what it learns."""
    return lambda *arguments: Training(tmp_path / "run", config, "--workers", 2, *arguments)


def assert_ends_like(run: Path, undisturbed: Path) -> None:
    assert learned_bytes(run, NUM_STEPS) == learned_bytes(undisturbed, NUM_STEPS)
    assert train_losses(run) == train_losses(undisturbed)
    assert not list((run / "checkpoints").glob(".*"))


def seconds_to_next_step(run: Path, fault_time: float) -> float:
    """Returns the seconds from a fault to the first step after the restart."""
    restart_time = next(record["time"] for record in read_records(run, "restart") if record["time"] > fault_time)
    return next(record["time"] for record in read_records(run, "train") if record["time"] > restart_time) - fault_time


def catch(worker: psutil.Process, is_moment: Callable[[], bool]) -> psutil.Process:
    """Stops a worker at a certain moment: without that, the moment may be over when a signal arrives."""
    while True:
        wait_until(is_moment, "the moment to disturb")
        worker.suspend()
        if is_moment():
            return worker
        worker.resume()


def is_evaluating(worker: psutil.Process) -> bool:
    return last_note(worker) in EVALUATING


def is_saving(run: Path) -> bool:
    return any((run / "checkpoints").glob(".step-*.partial"))


# Kills


@pytest.mark.slow
def test_killed_workers_are_restarted_and_the_result_is_the_same(start: Start, undisturbed: Path):
    # Of 50: a busy machine may show a step late, and the run must not be over by then.
    steps = sorted(random.Random(SEED).sample(range(3, 36), 2))
    print(f"seed {SEED}: killing at steps {steps}")
    fault_times = []
    with start() as training:
        for rank, step in enumerate(steps):
            training.wait_for_step(1)
            worker = training.worker(rank)  # now: finding it takes as long as a few steps
            training.wait_for_step(step)
            worker.kill()
            fault_times.append(time.time())
            wait_until(lambda: len(read_records(training.run, "restart")) == len(fault_times), "the restart")
        training.end()
    assert_ends_like(training.run, undisturbed)
    for rank, restart in enumerate(read_records(training.run, "restart")):
        assert f"Worker {rank} on {socket.gethostname()} was killed (SIGKILL)" in restart["cause"]
    assert max(seconds_to_next_step(training.run, each) for each in fault_times) < LONGEST_RESTART_SECONDS


@pytest.mark.slow
def test_a_worker_killed_while_it_evaluates_evaluates_again(start: Start, undisturbed: Path):
    with start("--set", "evaluation.max_sentences=150", "--set", "evaluation.evaluate_every=30") as training:
        training.wait_for_step(1)
        worker = training.worker(1)
        catch(worker, lambda: is_evaluating(worker)).kill()
        training.end()
    assert_ends_like(training.run, undisturbed)
    assert [record["step"] for record in read_records(training.run, "evaluation")] == [30, NUM_STEPS]
    assert len(read_records(training.run, "restart")) == 1


@pytest.mark.slow
def test_a_worker_killed_while_it_saves_leaves_no_partial_checkpoint(start: Start, undisturbed: Path):
    with start("--set", "checkpoints.save_every=1") as training:
        training.wait_for_step(1)
        worker = catch(training.worker(0), lambda: is_saving(training.run))
        newest_whole = RunFolder(training.run).checkpoint_steps()[-1]
        worker.kill()
        training.end()
    assert_ends_like(training.run, undisturbed)
    assert [record["step"] for record in read_records(training.run, "restart")] == [newest_whole]


@pytest.mark.slow
def test_the_host_program_may_be_killed_too(start: Start, undisturbed: Path):
    with start() as training:
        training.wait_for_step(1)
        program = training.host_program()
        training.wait_for_step(20)
        program.kill()
        fault_time = time.time()
        training.end()
    assert_ends_like(training.run, undisturbed)
    assert seconds_to_next_step(training.run, fault_time) < LONGEST_RESTART_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_10_kills_at_random_moments_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    faults = import_module("faults")
    monkeypatch.setattr(faults, "STEPS_PER_KILL", 40)
    measured = faults.measure_kills(tmp_path, num_kills=10, seed=SEED)
    print(f"seed {SEED}: {measured}")
    assert measured["is_bit_identical"]
    assert measured["restarts"] == 10
    assert measured["restart_seconds"]["max"] < LONGEST_RESTART_SECONDS


# Hangs


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 0])
def test_a_rank_that_hangs_is_named_with_its_stack_and_restarted(start: Start, undisturbed: Path, rank: int):
    with start("--hang-timeout", 5) as training:
        training.wait_for_step(1)
        worker = training.worker(rank)
        training.wait_for_step(20)
        worker.suspend()
        fault_time = time.time()
        done = training.end()
    assert_ends_like(training.run, undisturbed)
    message = f"Rank {rank} on {socket.gethostname()} hangs at step "
    assert message in done.stderr
    assert f"process {worker.pid} is stopped" in done.stderr
    report, *_ = sorted(training.run.glob("hang-*.txt"))
    assert str(report) in done.stderr
    first_line, first_stack, _ = report.read_text(encoding="utf-8").split("== rank ")
    assert message in first_line
    assert first_stack.startswith(f"{rank} on {socket.gethostname()}, process {worker.pid} ")
    assert "dragoman/training/trainer.py" in first_stack
    (restart,) = read_records(training.run, "restart")
    assert restart["time"] - fault_time < 5 + LONGEST_RESTART_SECONDS


# Signals


@pytest.mark.slow
def test_a_signal_cuts_off_an_evaluation_and_the_resumed_run_repeats_it(dragoman: Run, start: Start, undisturbed: Path):
    settings = ["--set", "evaluation.evaluate_every=30", "--set", "evaluation.beam_size=16"]
    with start(*settings, *LONG_EVALUATION) as training:  # which would take 15 s
        training.wait_for_step(1)
        worker = training.worker(0)
        wait_until(lambda: is_evaluating(worker), "an evaluation")
        begin = time.monotonic()
        training.send_signal(signal.SIGTERM)
        training.end()
    assert time.monotonic() - begin < 8
    assert latest_step(training.run) == 30
    assert not read_records(training.run, "evaluation")
    dragoman("train", "--resume", "--workers", 2, "--run-dir", training.run, "--set", "evaluation.max_sentences=4")
    assert [record["step"] for record in read_records(training.run, "evaluation")] == [30, NUM_STEPS]
    assert_ends_like(training.run, undisturbed)


@pytest.mark.slow
def test_a_signal_during_a_save_lets_it_end_and_saves_the_last_step(dragoman: Run, start: Start, undisturbed: Path):
    with start("--set", "checkpoints.save_every=1") as training:
        training.wait_for_step(1)
        worker = catch(training.worker(0), lambda: is_saving(training.run))
        training.send_signal(signal.SIGTERM)
        worker.resume()
        training.end()
    assert latest_step(training.run) == read_records(training.run, "train")[-1]["step"] < NUM_STEPS
    dragoman("train", "--resume", "--workers", 2, "--run-dir", training.run)
    assert_ends_like(training.run, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("phase", [0, 1, 2])
def test_a_signal_right_after_the_start_breaks_nothing(start: Start, undisturbed: Path, phase: int):
    seconds = random.Random(f"{SEED} {phase}").uniform(2 * phase, 2 * phase + 2)
    print(f"seed {SEED}: SIGTERM after {seconds:.2f} s")
    with start("--continue") as training:
        time.sleep(seconds)
        training.send_signal(signal.SIGTERM)
        # In the first moments Python itself is ended: no run has started yet.
        done = training.end(0, 1, -signal.SIGTERM, seconds=20)
    errors = [line for line in done.stderr.splitlines() if line.startswith("dragoman: ")]
    assert len(errors) == (done.returncode == 1)
    with start("--continue") as training:
        training.end()
    assert_ends_like(training.run, undisturbed)


@pytest.mark.slow
def test_a_second_signal_ends_even_a_run_that_hangs(dragoman: Run, start: Start, undisturbed: Path):
    with start() as training:
        training.wait_for_step(1)
        worker = training.worker(1)
        training.wait_for_step(20)
        worker.suspend()
        training.send_signal(signal.SIGTERM)
        wait_until(lambda: "a second signal stops at once" in training.errors, "a message")
        begin = time.monotonic()
        training.send_signal(signal.SIGTERM)
        training.end()
    assert time.monotonic() - begin < 10
    assert 0 < latest_step(training.run) < NUM_STEPS
    dragoman("train", "--resume", "--workers", 2, "--run-dir", training.run)
    assert_ends_like(training.run, undisturbed)
