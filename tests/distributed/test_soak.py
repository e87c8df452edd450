"""A run that is disturbed again and again goes on, and its history on the launcher's machine stays whole."""

import math
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
    """A short version of benchmarks/soak.py: the next fault comes sooner, after the run has made steps again."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    soak = import_module("soak")
    monkeypatch.setattr(soak, "BETWEEN_SECONDS", (8.0, 12.0))
    # Three faults end it, however long a busy machine takes for them.
    figures = soak.run_soak(tmp_path, seconds=math.inf, seed=SEED, is_kills_only=True, max_faults=3)
    assert figures["problems"] == []
    assert len(figures["faults"]) == 3
