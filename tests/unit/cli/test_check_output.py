"""What `dragoman check` prints about ways to synchronise, from measurements that were made elsewhere."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer

from dragoman.cli.plan import check
from dragoman.diagnosis.prediction import MeasuredLink, Measurements, Transfer
from dragoman.launch.check import CheckResult
from dragoman.run.processes import CONSOLE_VARIABLE

RATE = 12.5e6
GRADIENT_BYTES = 40_000_000


def measurements(machines: list[str]) -> Measurements:
    links = [MeasuredLink(a, b, 1e-4, RATE) for a, b in (("a", "b"), ("b", "a"))] if len(set(machines)) > 1 else []
    return Measurements(
        machines,
        GRADIENT_BYTES,
        [GRADIENT_BYTES],
        alone_parts={"forward": 0.1, "backward": 0.2},
        alone_steps=[0.3, 0.3, 0.3],
        work_by_rank=[0.3] * len(machines),
        bucket_ready=[0.0],
        all_reduce=[Transfer(size, size / RATE) for size in (1_000, GRADIENT_BYTES)],
        links=links,
    )


@pytest.fixture
def run_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "config.toml"
    config.write_text('[data]\nprepared = "prepared"\n')

    monkeypatch.setenv(CONSOLE_VARIABLE, "")  # set by --json: other tests must not inherit it

    def run(machines: list[str], *overrides: str, is_json: bool = False) -> str:
        result = CheckResult(measurements(machines))
        monkeypatch.setattr("dragoman.launch.check.check_machines", lambda *_: result)
        with suppress(typer.Exit):  # two machines at 100 Mbit/s are slower than one, which is a problem
            check(config, overrides=list(overrides), json=is_json)
        return capsys.readouterr().out

    return run


def test_several_machines_get_a_table_with_what_auto_would_take(run_check):
    printed = run_check(["a", "b"])
    lines = printed.splitlines()
    assert any(line.split()[:2] == ["synchronisation", "s/step"] for line in lines)
    [chosen] = [line for line in lines if line.startswith(">")]
    assert chosen.startswith("> local, ")
    assert "--sync auto would take local: Exact sums at every step would take 3.5 s" in printed
    assert "What would help: Averaging weights every" in printed


def test_json_has_all_strategies_and_the_chosen_one(run_check):
    figures: dict[str, Any] = json.loads(run_check(["a", "b"], is_json=True))
    names = {each["plan"]["strategy"] for each in figures["strategies"]}
    assert {"every_step", "hierarchical", "fp16", "int8", "local", "diloco"} <= names
    assert figures["chosen"]["strategy"] == "local"
    assert figures["seconds_per_step"]["predicted"] == figures["strategies"][0]["seconds"]


def test_one_machine_has_nothing_to_choose(run_check):
    assert "--sync" not in run_check(["a", "a"])
    figures = json.loads(run_check(["a", "a"], is_json=True))
    assert (figures["strategies"], figures["chosen"]) == ([], None)


def test_the_prediction_is_that_of_the_configured_strategy(run_check):
    figures = json.loads(run_check(["a", "b"], 'synchronisation.strategy="auto"', is_json=True))
    assert figures["seconds_per_step"]["predicted"] < 0.5
    assert figures["bottleneck"] == "compute"
