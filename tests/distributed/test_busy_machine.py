"""A real run beside programs that keep all cores busy: prediction, records and verdict name those programs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import read_records, run_dragoman

from dragoman.diagnosis.verdict import verdict_of_run
from dragoman.run.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(900)]
LOOP = "while True: pass"
LOOPS_PER_CORE = 2
"""With one per core, two cores leave a worker two thirds of one: its loss lies at the verdict's bound of 30 %."""
TRAINING_SECONDS = 40
"""Other programs are looked up every ten seconds."""


@pytest.fixture
def loops() -> Iterator[list[int]]:
    """Starts loops that want more cores than there are, each in a session of its own; they end with the test."""
    num_loops = LOOPS_PER_CORE * (os.cpu_count() or 1)
    programs = [subprocess.Popen([sys.executable, "-c", LOOP], start_new_session=True) for _ in range(num_loops)]
    yield [program.pid for program in programs]
    for program in programs:
        program.kill()
        program.wait()


def test_other_programs_are_named(prepared: Path, tmp_path: Path, loops: list[int], one_thread: None):
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
[data]
prepared = "{prepared}"
[model]
preset = "tiny"
width = 64
feed_forward = 128
[training]
max_steps = 100_000
max_hours = {TRAINING_SECONDS / 3600}
global_batch_tokens = 512
virtual_workers = 2
log_every = 2
[evaluation]
evaluate_every = 100_000
max_sentences = 4
beam_size = 1
""",
        encoding="utf-8",
    )
    run = RunFolder(tmp_path / "run")
    run_dragoman("train", config, "--workers", 1, "--run-dir", run.path, timeout=800)
    loads = [load for record in read_records(run.path, "train") for load in record.get("load", [])]
    assert max(load["other_cores"] for load in loads) > 0.3
    named = {program["pid"] for load in loads for program in load["programs"]}
    assert named & set(loops)
    verdict = verdict_of_run(run)
    assert "other programs used" in verdict.other_load
    assert "other programs used" in json.dumps(verdict.to_json())
    assert verdict.bottleneck == "other_programs"
