"""A run that is disturbed again and again goes on, and its history on the launcher's machine stays whole."""

import random
from importlib import import_module
from pathlib import Path

import pytest
from rig import rig_problem

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROBLEM = rig_problem()
SEED = random.randrange(10**6)  # other faults each time; printed where a test fails
pytestmark = [pytest.mark.slow, pytest.mark.serial]


@pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM or "")
@pytest.mark.timeout(900)
def test_a_run_with_three_kills_ends_with_the_same_bytes_and_a_whole_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A short version of benchmarks/soak.py."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    figures = import_module("soak").run_soak(tmp_path, seconds=90, seed=SEED, is_kills_only=True, max_faults=3)
    assert figures["problems"] == []
    assert len(figures["faults"]) == 3
