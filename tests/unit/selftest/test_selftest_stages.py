"""Verdicts about speed and memory, faults of single stages, and comparisons of runs."""

import json
import math
from pathlib import Path

import pytest
import torch

from dragoman.diagnosis.hardware import load_hardware
from dragoman.diagnosis.plan import PlanSettings, build_plan
from dragoman.run.errors import UsageError, UserError
from dragoman.selftest import stages, updates
from dragoman.selftest.real_runs import NUM_STEPS, RunsOfTest, _largest_difference
from dragoman.selftest.speed import MeasuredSpeed, Workload, judge_memory, judge_speed, measure_speed
from dragoman.selftest.stage_result import StageResult
from dragoman.selftest.updates import check_updates

CPU = torch.device("cpu")
WORKLOAD = Workload("small", "fp32", 1_024)


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the process of the tests as it is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(stages, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(stages, "avoid_trapping_kernels", lambda: None)


def planned_seconds() -> float:
    plan = PlanSettings(
        model="small", precision="fp32", batch_tokens=1_024, device="cpu-2-cores", devices_per_node=1, nodes=1
    )
    return build_plan(plan, load_hardware()).step.seconds


@pytest.mark.parametrize(("factor", "state"), [(1.0, "passed"), (0.5, "passed"), (3.0, "warned")])
def test_speed_is_judged_by_the_plan(factor: float, state: str):
    measured = MeasuredSpeed([factor * planned_seconds()] * 3, 1_024, 0)
    outcome = judge_speed(measured, WORKLOAD, "cpu-2-cores")
    assert outcome.state == state
    assert outcome.figures["tokens_per_second"] == pytest.approx(1_024 / planned_seconds() / factor)


def test_a_device_that_the_plan_does_not_know_is_said():
    outcome = judge_speed(MeasuredSpeed([1.0], 1_024, 0), WORKLOAD, None)
    assert (outcome.state, outcome.figures["planned_tokens_per_second"]) == ("passed", None)
    assert "no device like this" in outcome.why


def test_memory_is_judged_by_the_plan():
    states = [judge_memory(MeasuredSpeed([1.0], 1, peak), WORKLOAD, CPU).state for peak in (10**8, 10**11, None)]
    assert states == ["passed", "warned", "skipped"]


def test_real_updates_are_measured():
    measured = measure_speed(CPU, Workload("tiny", "fp32", 64))
    assert len(measured.seconds) >= 3
    assert measured.peak_bytes is None or measured.peak_bytes > 0


def test_updates_are_right_on_a_cpu_to_the_last_bit():
    outcome = check_updates(CPU)
    assert outcome.state == "passed", outcome.why
    assert outcome.figures["read_late"] == 0.0
    assert outcome.figures["pieces"] < 1e-5


@pytest.mark.parametrize(
    ("broken", "said"),
    [("_is_skipped", "changed weights"), ("_difference_of_pieces", "in pieces (relative difference 5.0e-01)")],
)
def test_wrong_updates_fail(monkeypatch: pytest.MonkeyPatch, broken: str, said: str):
    monkeypatch.setattr(updates, broken, lambda _: 0.5 if "difference" in broken else False)
    outcome = check_updates(CPU)
    assert outcome.state == "failed"
    assert said in outcome.why


def test_losses_are_compared_step_by_step():
    losses = dict.fromkeys(range(1, NUM_STEPS + 1), 5.0)
    assert _largest_difference(losses, losses) == 0
    assert _largest_difference(losses, losses | {3: 5.5}) == pytest.approx(0.1)
    assert _largest_difference(losses, losses | {3: math.nan}) == math.inf
    with pytest.raises(UserError, match="did not record all"):
        _largest_difference(losses, {1: 5.0})


def test_a_stage_that_raises_fails_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def raise_error(*_: object) -> StageResult:
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    monkeypatch.setattr(stages, "measure_speed", raise_error)
    monkeypatch.setattr(RunsOfTest, "write_corpus", lambda self: None)
    for name in ("check_workers", "check_resume", "check_collectives"):
        monkeypatch.setattr(RunsOfTest, name, lambda self: StageResult("passed", "Fine."))
    shown: list[str] = []
    result = stages.run_selftest(
        tmp_path / "new", "cpu", None, None, lambda number, _, name, outcome: shown.append(f"{number} {name}")
    )
    assert not result["is_passed"]
    found = {name: stage["state"] for name, stage in result["stages"].items()}
    assert found["speed"] == "failed"
    assert result["stages"]["speed"]["why"] == "RuntimeError: CUDA error: an illegal memory access"
    assert found["memory"] == "skipped"
    assert {
        found[name] for name in ("device", "kernels", "precision", "updates", "workers", "resume", "collectives")
    } == {"passed"}
    assert [line.split()[0] for line in shown] == [str(number) for number in range(1, 10)]
    assert json.loads((tmp_path / "new" / "selftest.json").read_text()) == result


def test_a_device_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path):
    with pytest.raises(UsageError, match="--device tpu"):
        stages.run_selftest(tmp_path / "new", "tpu", None, None, lambda *_: None)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="sees no cuda device"):
            stages.run_selftest(tmp_path / "new", "cuda", None, None, lambda *_: None)
    assert not (tmp_path / "new").exists()
