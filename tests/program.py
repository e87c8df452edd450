"""Running `dragoman` as a person would, and reading what it left."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


def read_records(run: Path, kind: str) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["kind"] == kind]


def train_losses(run: Path) -> dict[int, float]:
    """Loss by step; a step made again after a restart counts as it was made last."""
    return {int(record["step"]): float(record["loss"]) for record in read_records(run, "train")}
