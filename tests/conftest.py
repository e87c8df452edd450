"""What tests of the whole program share: running `dragoman` as a user would, and a small prepared corpus."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.corpus.builtin import write_builtin_corpus
from dragoman.corpus.prepare import PrepareRequest, prepare_corpus

Run = Callable[..., subprocess.CompletedProcess[str]]


def dragoman_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "dragoman", *map(str, arguments)]


def run_dragoman(*arguments: object, code: int = 0, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the command and insists on its exit code; what it printed explains a failure."""
    done = subprocess.run(
        dragoman_command(*arguments), capture_output=True, text=True, timeout=280, check=False, **options
    )
    assert done.returncode == code, f"exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def dragoman() -> Run:
    return run_dragoman


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 pairs of the built-in corpus, prepared; tests must not change it."""
    folder = tmp_path_factory.mktemp("shared")
    corpus = write_builtin_corpus(folder / "corpus", num_train=1_000, num_dev=20, num_test=20)
    request = PrepareRequest(
        [corpus.train.source],
        [corpus.train.target],
        folder / "prepared",
        [corpus.dev.source],
        [corpus.dev.target],
        [corpus.test.source],
        [corpus.test.target],
        vocab_size=500,
    )
    prepare_corpus(request, say=lambda _: None)
    return folder / "prepared"


@pytest.fixture
def config(tmp_path: Path, prepared: Path) -> Path:
    """A run of seconds: a tiny model with dropout, every step logged."""
    path = tmp_path / "config.toml"
    path.write_text(
        f"""
[data]
prepared = "{prepared}"
[model]
preset = "tiny"
width = 32
feed_forward = 64
[training]
max_steps = 50
global_batch_tokens = 800
virtual_workers = 4
schedule = "fixed"
learning_rate = 3e-3
warmup_steps = 10
log_every = 1
sample_every = 20
[evaluation]
evaluate_every = 1000
max_sentences = 4
beam_size = 2
[checkpoints]
save_every = 7
keep_last = 2
keep_best = 0
""",
        encoding="utf-8",
    )
    return path


def read_records(run: Path, kind: str) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["kind"] == kind]


def train_losses(run: Path) -> dict[int, float]:
    """Loss by step; a step made again after a restart counts as it was made last."""
    return {int(record["step"]): float(record["loss"]) for record in read_records(run, "train")}


os.environ.setdefault("OMP_NUM_THREADS", "1")
