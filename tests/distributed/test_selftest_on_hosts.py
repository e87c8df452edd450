"""`dragoman selftest --hosts` on two hosts without a shared folder."""

import json

import pytest
from host_runs import ONE_THREAD, hosts_options
from program import call_dragoman
from rig import Rig

from dragoman.selftest import real_runs, stages
from dragoman.selftest.speed import MeasuredSpeed
from dragoman.selftest.stage_result import StageResult

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def only_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the stages of this machine alone, which test_selftest_command.py runs; measures links briefly."""
    left_out = StageResult("passed", "Left out.")
    monkeypatch.setattr(stages, "measure_speed", lambda *_: MeasuredSpeed([1.0], 1, None))
    for name in ("check_kernels", "check_precisions", "check_updates"):
        monkeypatch.setattr(stages, name, lambda _: left_out)
    monkeypatch.setattr(real_runs.RunsOfTest, "check_resume", lambda _: left_out)
    monkeypatch.setattr(real_runs, "CHECK_SECONDS", 6.0)
    # The process of the tests stays as it is.
    for name in ("keep_freed_memory", "avoid_trapping_kernels"):
        monkeypatch.setattr(stages, name, lambda: None)
    for name, value in (ONE_THREAD | {"CUDA_VISIBLE_DEVICES": ""}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("only_hosts")
def test_losses_and_links_of_hosts_are_tested(rig: Rig):
    folder = rig.private / "selftest"
    options = hosts_options(rig, "h1:1,h2:1")
    done = call_dragoman("selftest", "--device", "cpu", "--out", folder, *options, "--json")
    found = json.loads(done.stdout)["stages"]
    assert found["workers"]["state"] == "passed"
    assert "on h1:1,h2:1" in found["workers"]["why"]
    links = found["collectives"]["figures"]["links"]
    assert len({link["from"] for link in links}) == 2
