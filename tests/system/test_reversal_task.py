"""The reversal task of the README's configs is learned."""

import json
from pathlib import Path

import pytest
from program import Run

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]
TIMEOUT = 1_200.0
"""Seconds for one command, five times what a machine of two quiet cores needs."""


def test_the_reversal_task_reaches_90_bleu(dragoman: Run, tmp_path: Path):
    corpus = tmp_path / "corpus"
    dragoman("data", "reversal", "--out", corpus)
    files = [
        part
        for split, option in (("train", ""), ("dev", "dev-"), ("test", "test-"))
        for side in ("source", "target")
        for part in (f"--{option}{side}", corpus / f"{split}.{side}")
    ]
    dragoman("prepare", *files, "--vocab-size", 57, "--out", tmp_path / "prepared")
    run = tmp_path / "run"
    dragoman(
        "train", ROOT / "configs/reversal.toml", "--workers", 2, "--run-dir", run,
        "--set", f"data.prepared={tmp_path / 'prepared'}", timeout=TIMEOUT,
    )  # fmt: skip
    assert json.loads(dragoman("evaluate", run, "--json").stdout)["bleu"] > 90
