"""Reports of a run whose batch grew: times of its steps are those of full batches, and small ones are no drift."""

import pytest
from run_folders import ATTRIBUTION, write_config, write_records

from dragoman.report.answers.speed import answer_steps
from dragoman.report.evidence import read_evidence
from dragoman.report.findings import Findings
from dragoman.run.folder import RunFolder

GROWTH = {"global_batch_tokens": 4_096, "initial_batch_tokens": 1_024, "batch_doubling_steps": 100, "max_steps": 800}


def record(step: int) -> dict[str, object]:
    """The record of ten steps; a full step takes four seconds."""
    share = {0: 0.25, 1: 0.5}.get((step - 1) // 100, 1.0)
    parts = {name: 4.0 * share * seconds / sum(ATTRIBUTION.values()) for name, seconds in ATTRIBUTION.items()}
    times = {"seconds_per_step": 4.0 * share, "wall_seconds_per_step": 4.0 * share, "attribution": parts}
    return {"kind": "train", "step": step, "loss": 5.0, "learning_rate": 1e-3, "batch_share": share, **times}


@pytest.fixture
def findings(tmp_path) -> Findings:
    run = write_config(RunFolder(tmp_path), training=GROWTH)
    return Findings(read_evidence(write_records(run, [record(step) for step in range(10, 401, 10)])))


def test_small_first_batches_are_neither_drift_nor_outliers(findings):
    answer = answer_steps(findings)
    assert "4 s with a full batch on average" in answer.answer
    assert findings.step_times.drift == pytest.approx(0)
    assert not findings.step_times.outliers
    assert any("full batches of 4,096 tokens; the smaller ones before step 201" in each for each in answer.evidence)


def test_the_rest_of_the_run_is_forecast_from_full_batches(findings):
    assert findings.progress.seconds_left == pytest.approx(400 * 4.0, rel=0.01)


def test_the_verdict_is_about_full_batches(findings):
    assert sum(findings.verdict.parts.values()) == pytest.approx(4.0)
