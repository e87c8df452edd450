"""Runs and pages that several tests of the report read; tests must not change them."""

import pytest
from run_folders import openseq2seq_log, write_own_run
from sample_report import hostile_report, sample_comparison, sample_report

from dragoman.importing.importer import import_run
from dragoman.report.compose import build_report
from dragoman.report.content import Report
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
