"""A run is known on the machine where it was typed, although that shares no folder with the hosts that trained it."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from host_runs import (
    ONE_EACH,
    hosts_options,
    link_down,
    train_on_hosts,
    training_on_hosts,
    wait_until_no_processes,
    write_config,
)
from program import farthest_step, latest_step, learned_bytes, read_records, run_dragoman, train_losses, wait_until
from rig import Rig

from dragoman.run.checkpoints import verify_checkpoint
from dragoman.run.folder import RunFolder

pytestmark = pytest.mark.slow
NUM_STEPS = 40


@pytest.fixture(scope="module")
def config(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(
        tmp_path_factory.mktemp("config") / "config.toml",
        prepared,
        f"training.max_steps={NUM_STEPS}",
        "evaluation.evaluate_every=20",
        "checkpoints.keep_best=1",
    )


@pytest.fixture(scope="module")
def finished(rig: Rig, config: Path) -> Path:
    """A run that has ended; its folder on this machine, which every host has at the same path with other content."""
    run = rig.private / "finished"
    train_on_hosts(rig, ONE_EACH, run, config)
    return run


def host_lines(rig: Rig, run: Path, name: str) -> list[str]:
    """The lines of a file on all hosts."""
    paths = [host.path(run / name) for host in rig.hosts]
    return [line for path in paths if path.exists() for line in path.read_text(encoding="utf-8").splitlines()]


def assert_whole_history(rig: Rig, run: Path) -> None:
    """Requires every line that a host wrote once, in the order of time: all hosts have the clock of this machine."""
    wait_until_no_processes(rig)
    here = Counter((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    there = Counter(line for line in host_lines(rig, run, "metrics.jsonl") if line.endswith("}"))
    assert there - here == Counter()
    assert {json.loads(line)["kind"] for line in here - there} <= {"restart"}  # the launcher's own records
    times = [record["time"] for record in read_records(run, "train")]
    assert times == sorted(times)
    assert Counter(host_lines(rig, run, "log.txt")) - Counter((run / "log.txt").read_text().splitlines()) == Counter()
    for host in rig.hosts:
        for path in [*host.path(run).glob("tensorboard/*"), *host.path(run).glob("system.*.jsonl")]:
            assert (run / path.relative_to(host.path(run))).read_bytes() == path.read_bytes()


def test_everything_is_here_when_training_has_ended(rig: Rig, finished: Path):
    assert_whole_history(rig, finished)
    assert list(train_losses(finished)) == list(range(1, NUM_STEPS + 1))
    assert len(read_records(finished, "evaluation")) == 2
    assert {path.name for path in finished.glob("system.*.jsonl")} == {"system.h1.jsonl", "system.h2.jsonl"}
    assert latest_step(finished) == NUM_STEPS
    assert learned_bytes(finished, NUM_STEPS) == learned_bytes(rig["h1"].path(finished), NUM_STEPS)
    for step in RunFolder(finished).checkpoint_steps():
        verify_checkpoint(RunFolder(finished).checkpoint(step))


def test_commands_about_a_run_work_here(finished: Path):
    run_dragoman("status", finished, "--expect", "finished")
    status = json.loads(run_dragoman("status", finished, "--json").stdout)
    assert (status["step"], status["train_step"], status["checkpoint"]["step"]) == (NUM_STEPS,) * 3
    assert status["bleu"] is not None
    assert run_dragoman("watch", finished).stdout.splitlines()[-1] == f"{finished} finished at step {NUM_STEPS}."
    assert run_dragoman("verdict", finished).stdout
    run_dragoman("report", finished)
    assert (finished / "report.html").stat().st_size > 10_000
    translated = run_dragoman("translate", finished, input="The dog sleeps.\n")
    assert len(translated.stdout.splitlines()) == 1
    assert "Translating with the checkpoint of step" in translated.stderr


def test_files_come_while_training_goes_on(rig: Rig, config: Path):
    run = rig.private / "watched"
    with training_on_hosts(rig, ONE_EACH, run, config, "--set", "training.max_steps=100000") as training:
        wait_until(lambda: farthest_step(run) >= 5, "steps on this machine")
        step = farthest_step(rig["h1"].path(run))
        begin = time.monotonic()
        wait_until(lambda: farthest_step(run) >= step, "the newest step on this machine", seconds=10)
        assert time.monotonic() - begin < 5
        wait_until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint on this machine", seconds=60)
        run_dragoman("translate", run, "--checkpoint", "latest", input="The dog sleeps.\n")
        run_dragoman("stop", run)
        training.end()
    assert_whole_history(rig, run)
    assert latest_step(run) == farthest_step(run)


@pytest.mark.parametrize("lost", ["h1", "h2"])  # h1 has rank 0
def test_history_is_whole_after_a_host_was_lost_and_came_back(rig: Rig, config: Path, lost: str):
    run = rig.private / f"without-{lost}"
    with training_on_hosts(rig, ONE_EACH, run, config, "--set", "training.max_steps=100000") as training:
        wait_until(lambda: farthest_step(run) >= 10, "steps")
        with link_down(rig[lost]):
            wait_for_restart(run, 1)
        wait_for_restart(run, 2)
        run_dragoman("stop", run)
        training.end()
    assert_whole_history(rig, run)
    assert len(read_records(run, "restart")) == 2
    steps = set(train_losses(run))
    assert steps == set(range(1, max(steps) + 1))
    assert latest_step(run) == max(steps)


def test_a_run_continues_after_its_launcher_was_killed_without_duplicates_or_holes(rig: Rig, config: Path):
    run = rig.private / "killed"
    with training_on_hosts(rig, ONE_EACH, run, config, "--set", "training.max_steps=100000") as training:
        wait_until(lambda: farthest_step(run) >= 10, "steps")
        assert all(host.processes() for host in rig.hosts)
        training.kill()
        wait_until_no_processes(rig)  # none outlives its launcher
    train_on_hosts(rig, ONE_EACH, run, "--resume", "--set", f"training.max_steps={farthest_step(run) + 20}")
    assert_whole_history(rig, run)
    steps = set(train_losses(run))
    assert steps == set(range(1, max(steps) + 1))
    run_dragoman("status", run, "--expect", "finished")


def test_what_a_killed_launcher_did_not_bring_is_fetched(rig: Rig, config: Path):
    run = rig.private / "fetched"
    with training_on_hosts(rig, ONE_EACH, run, config, "--set", "training.max_steps=100000") as training:
        wait_until(lambda: farthest_step(run) >= 10, "steps")
        training.kill()
        wait_until_no_processes(rig)
    fetched = json.loads(run_dragoman("fetch", run, *hosts_options(rig, "h1,h2"), "--json").stdout)
    assert_whole_history(rig, run)
    assert latest_step(run) == latest_step(rig["h1"].path(run))
    assert [each["host"] for each in fetched["brought"]] == ["h1", "h2"]
    assert fetched["missing"] == []
    # Again, with the hosts that the run remembers. They were not killed in the same instant, so one may have
    # checkpoints that the other one lacks; whichever answers first, the one that got furthest sends them.
    assert run_dragoman("fetch", run).stdout.count("nothing new.") == len(rig.hosts)


def test_a_run_of_hosts_is_fetched_to_a_machine_that_never_saw_it(rig: Rig, finished: Path, tmp_path: Path):
    kept = finished.rename(tmp_path / "kept")
    try:
        done = run_dragoman("fetch", finished, *hosts_options(rig, "h1,h2"))
        assert (
            f"the checkpoints of step {NUM_STEPS // 2} and {NUM_STEPS}" in done.stdout
            or f"step {NUM_STEPS}" in done.stdout
        )
        assert_whole_history(rig, finished)
        run_dragoman("status", finished, "--expect", "finished")
        run_dragoman("translate", finished, input="The dog sleeps.\n")
    finally:
        finished.rename(tmp_path / "fetched")
        kept.rename(finished)


def wait_for_restart(run: Path, number: int) -> None:
    """Waits until the run has been restarted this many times and has made new steps since."""
    wait_until(lambda: len(read_records(run, "restart")) >= number, f"restart {number} of {run}")
    step = farthest_step(run)
    wait_until(lambda: farthest_step(run) > step + 3, f"steps after restart {number} of {run}")
