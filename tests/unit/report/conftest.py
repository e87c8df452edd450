"""Runs and pages that several tests of the report read; tests must not change them."""

import json
from typing import Any

import pytest
from run_folders import openseq2seq_log, write_own_run
from sample_report import hostile_report, sample_comparison, sample_report

from dragoman.importing.importer import import_run
from dragoman.report.compose import build_report
from dragoman.report.content import Report
from dragoman.report.evidence import StatedFacts, read_evidence
from dragoman.report.findings import Findings
from dragoman.report.rendering import render_page
from dragoman.run.folder import RunFolder


@pytest.fixture(scope="session")
def own_run(tmp_path_factory) -> RunFolder:
    return write_own_run(tmp_path_factory.mktemp("own") / "base", training={"price_per_hour": 6.0})


@pytest.fixture(scope="session")
def own_report(own_run) -> Report:
    return build_report(own_run)


@pytest.fixture(scope="session")
def imported_run(tmp_path_factory) -> RunFolder:
    folder = tmp_path_factory.mktemp("imported")
    (folder / "nohup.out").write_text(openseq2seq_log(), encoding="utf-8")
    run = RunFolder(folder / "run")
    import_run([folder / "nohup.out"], run)
    return run


@pytest.fixture(scope="session")
def sample_html() -> str:
    return render_page(sample_report())


@pytest.fixture(scope="session")
def comparison_html() -> str:
    return render_page(sample_comparison())


@pytest.fixture(scope="session")
def hostile_html() -> str:
    return render_page(hostile_report())


@pytest.fixture
def make(tmp_path):
    """Returns a function that writes an imported run and returns its findings."""

    def build(records: list[dict[str, Any]], facts: dict[str, Any] | None = None, **more: Any) -> Findings:
        known = StatedFacts(price_per_hour=36.0)
        run = RunFolder(tmp_path / "run")
        run.path.mkdir(exist_ok=True)
        run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
        run.config.write_text(more.pop("config", ""))
        whole = {"trainer": "Marian", "sources": ["train.log"], "facts": {"clock": "log"} | (facts or {})} | more
        run.imported.write_text(json.dumps(whole))
        return Findings(read_evidence(run, known))

    return build
