"""`dragoman train` on this machine: how many workers it starts where nobody says it."""

from pathlib import Path

import pytest
from program import Run, read_records

from dragoman.run.processes import num_physical_cores

pytestmark = pytest.mark.slow


def test_every_core_has_a_worker_and_the_choice_is_stated(dragoman: Run, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    done = dragoman("train", config, "--run-dir", run, "--set", "training.max_steps=3")
    num_workers = min(num_physical_cores(), 4)  # the config has four virtual workers
    assert f"{num_workers} worker" in done.stderr.splitlines()[0]
    assert (run / "log.txt").read_text().splitlines()[0] in done.stderr
    [prediction] = read_records(run, "prediction")
    assert prediction["workers"] == num_workers
    assert "Expected: about" in done.stdout
