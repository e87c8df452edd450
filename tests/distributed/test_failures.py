"""When a rank fails for a reason that would come again, all ranks end soon, and the first cause is reported once."""

import signal
import textwrap
import time
from pathlib import Path

import pytest
from program import Run, Training, read_records

LONGEST_END_SECONDS = 30

SABOTAGE = """
import os
import sys

if "dragoman.training.worker" in sys.orig_argv and os.environ.get("RANK") == "1":
    from dragoman.training.learner import Learner

    learn = Learner.learn

    def learn_until_step_5(self, step, *arguments):
        if step == 5:
            fail()
        return learn(self, step, *arguments)

    Learner.learn = learn_until_step_5

def fail():
"""
"""Python imports sitecustomize.py before anything else, so a real worker can be made to fail."""


def sabotaged(folder: Path, failing: str) -> dict[str, str]:
    """An environment in which rank 1 does this in the middle of the run."""
    folder.mkdir()
    code = SABOTAGE + textwrap.indent(textwrap.dedent(failing), "    ")
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


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


def test_an_exception_in_one_rank_ends_all_and_is_reported_once(config: Path, tmp_path: Path):
    environment = sabotaged(tmp_path / "sabotage", "raise RuntimeError('the cat sat on it')")
    with Training(tmp_path / "run", config, "--workers", 2, environment=environment) as training:
        done = training.end(1)
        seconds_to_end = time.time() - (training.run / "failure.rank1.txt").stat().st_mtime
    (line,) = done.stderr.splitlines()
    assert "Worker 1 failed: RuntimeError: the cat sat on it" in line
    assert "in learn_until_step_5" in (training.run / "failure.rank1.txt").read_text(encoding="utf-8")
    assert not read_records(training.run, "restart")
    assert seconds_to_end < LONGEST_END_SECONDS


@pytest.mark.slow
def test_a_rank_that_runs_out_of_memory_says_what_to_do(config: Path, tmp_path: Path):
    environment = sabotaged(
        tmp_path / "sabotage",
        """
        import resource
        import torch
        num_pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (num_pages * resource.getpagesize(),) * 2)
        torch.empty(2**30)
        """,
    )
    with Training(tmp_path / "run", config, "--workers", 2, environment=environment) as training:
        done = training.end(1)
    (line,) = done.stderr.splitlines()
    assert "Worker 1 ran out of memory: lower training.global_batch_tokens" in line
    assert not read_records(training.run, "restart")


@pytest.mark.slow
def test_a_rank_that_dies_at_the_same_step_every_time_is_not_restarted_forever(config: Path, tmp_path: Path):
    environment = sabotaged(tmp_path / "sabotage", "os.kill(os.getpid(), 9)")
    settings = ["--workers", 2, "--no-check", "--set", "cluster.max_restarts=1"]  # the rehearsal would die of it first
    with Training(tmp_path / "run", config, *settings, environment=environment) as training:
        done = training.end(1)
    last = done.stderr.splitlines()[-1]
    assert "Worker 1" in last
    assert "was killed (SIGKILL)" in last
    assert "made no progress" in last
    assert read_records(training.run, "restart")


@pytest.mark.slow
def test_no_process_outlives_a_killed_launcher(config: Path, tmp_path: Path):
    with Training(tmp_path / "run", config, "--workers", 2) as training:
        training.wait_for_step(3)
        assert len(training.processes()) >= 4  # the launcher, the host's program, two workers
        training.send_signal(signal.SIGKILL)
        training.end(-signal.SIGKILL)
