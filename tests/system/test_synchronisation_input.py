"""Settings of [synchronisation] that cannot work are refused before the first step, in a sentence that names them."""

from pathlib import Path

import pytest
from program import call_dragoman

LOCAL = "synchronisation.strategy=local"


def refusal(*arguments: object) -> str:
    """Returns the only line on standard error."""
    done = call_dragoman("train", *arguments, code=2)
    (line,) = done.stderr.splitlines()
    assert line.count(". ") <= 1, f"more than two sentences: {line}"
    return line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([LOCAL, "synchronisation.replicas=8"], ["synchronisation.replicas 8", "training.virtual_workers 4"]),
        (["synchronisation.strategy=int8", "synchronisation.replicas=3"], ["synchronisation.replicas 3", "divide"]),
        ([LOCAL, "synchronisation.replicas=-1"], ["synchronisation.replicas", "-1"]),
        ([LOCAL, "synchronisation.interval=0"], ["synchronisation.interval", "0"]),
        ([LOCAL, "synchronisation.interval=-4"], ["synchronisation.interval", "-4"]),
        ([LOCAL, "synchronisation.interval=32", "synchronisation.max_interval=8"], ["synchronisation.max_interval 8"]),
        ([LOCAL, "synchronisation.interval=2", "synchronisation.fragments=3"], ["synchronisation.fragments 3"]),
        (["synchronisation.strategy=locla"], ["synchronisation.strategy = 'locla'", "'local' or 'diloco'"]),
        (["synchronisation.wire=int9"], ["synchronisation.wire", "'int9'", "int8"]),
        (["synchronisation.intervall=3"], ["did you mean 'synchronisation.interval'"]),
        ([LOCAL, "training.precision=fp16"], ["synchronisation.strategy local", "training.precision fp16"]),
        ([LOCAL, "checkpoints.ema_decay=0.999"], ["synchronisation.strategy local", "checkpoints.ema_decay"]),
        (["synchronisation.powersgd_rank=0", "synchronisation.strategy=powersgd"], ["synchronisation.powersgd_rank"]),
        ([LOCAL, "synchronisation.overlap=3"], ["synchronisation.overlap"]),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else None,
)
def test_a_new_run_is_refused(config: Path, tmp_path: Path, changes: list[str], words: list[str]):
    run = tmp_path / "run"
    line = refusal(config, "--run-dir", run, *(part for change in changes for part in ("--set", change)))
    assert [word for word in words if word not in line] == []
    assert not run.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (LOCAL, "must keep synchronisation.strategy = every_step; start a new run to use local"),
        ("synchronisation.strategy=auto", "must keep synchronisation.strategy = every_step"),
        ("synchronisation.replicas=2", "must keep synchronisation.replicas = 0; start a new run to use 2"),
    ],
)
def test_a_resumed_run_keeps_how_it_synchronises(run_copy: Path, change: str, words: str):
    before = (run_copy / "config.toml").read_bytes(), (run_copy / "metrics.jsonl").read_bytes()
    assert words in refusal("--resume", "--run-dir", run_copy, "--set", change)
    assert ((run_copy / "config.toml").read_bytes(), (run_copy / "metrics.jsonl").read_bytes()) == before
