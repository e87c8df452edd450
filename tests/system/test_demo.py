"""The demo reaches the quality that the README shows."""

import json
import re
from pathlib import Path

import pytest
from program import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]
TIMEOUT = 1_200.0
"""Seconds for one command, five times what a machine of two quiet cores needs."""


def test_the_demo_reaches_85_bleu(dragoman: Run, tmp_path: Path):
    # Without its limit of 200 seconds, which a busy machine would reach before the last step.
    done = dragoman("demo", "--set", "training.max_hours=1", cwd=tmp_path, timeout=TIMEOUT)
    bleu = float(re.search(r"BLEU ([\d.]+) on the test set \(nrefs:1\|", done.stdout)[1])
    assert bleu >= 85
    assert done.stdout.count("  dragoman   ") == 5
    run = tmp_path / "runs" / "demo"
    assert f"The run folder is {run.relative_to(tmp_path)}" in done.stdout
    corpus = [(run / "corpus" / name).read_text().splitlines() for name in ("train.en", "test.en")]
    assert not set(corpus[0]) & set(corpus[1])
    figures = json.loads(dragoman("evaluate", run, "--json").stdout)
    assert figures["bleu"] == pytest.approx(bleu, abs=0.051)
