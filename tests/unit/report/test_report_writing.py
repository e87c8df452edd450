"""The three files of a report: whole or not at all, and harmless whatever a log says."""

import json
import os
import re

import pytest
from run_folders import evaluation_record, openseq2seq_log, own_records, write_own_run
from sample_report import HOSTILE, hostile_report, sample_comparison, sample_report

from dragoman.importing.importer import import_run
from dragoman.report import page
from dragoman.report.compose import build_report
from dragoman.report.parts import Report
from dragoman.report.writing import report_run, write_report
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder

NAMES = {"report.html", "report.md", "report.json"}


def short_report() -> Report:
    """Without charts, which take a while to draw."""
    report = sample_report()
    return Report(report.title, report.summary, report.figures, [], [], report.warnings, report.facts)


def check_harmless(html: str, text: str) -> None:
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "\x1b" not in html + text
    outside_of_code = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script>alert" not in outside_of_code
    assert "alert(1)" in html  # shown, not lost


def test_three_files_in_a_folder_that_is_made(tmp_path):
    files = write_report(short_report(), tmp_path / "new" / "folder")
    assert {path.name for path in files.values()} == NAMES
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == NAMES
    assert files["html"].read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert json.loads(files["json"].read_text(encoding="utf-8"))["parameters"] == 60_880_896
    assert files["md"].read_text(encoding="utf-8").startswith("# ")


def test_a_comparison_is_written_likewise(tmp_path):
    files = write_report(sample_comparison(), tmp_path)
    assert json.loads(files["json"].read_text(encoding="utf-8"))["title"] == "Three runs compared"


def test_an_older_report_is_replaced(tmp_path):
    (tmp_path / "report.json").write_text("old")
    write_report(short_report(), tmp_path)
    assert "old" not in (tmp_path / "report.json").read_text().split()


def test_nothing_is_written_where_one_of_them_cannot_be_made(tmp_path, monkeypatch):
    def fail(_: object) -> str:
        raise ValueError("no page")

    (tmp_path / "report.md").write_text("old")
    monkeypatch.setattr(page, "render_page", fail)
    with pytest.raises(ValueError, match="no page"):
        write_report(short_report(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "old"


def test_a_disk_that_fails_leaves_no_half_file(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(UserError, match=r"cannot be written .*No space left"):
        write_report(short_report(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_report(short_report(), tmp_path / "file" / "report")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_nobody_may_write_to(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        write_report(short_report(), tmp_path)


def test_the_report_of_a_run_lies_in_its_folder(tmp_path):
    run = write_own_run(tmp_path / "run", own_records(600))
    assert report_run(run) == run.report("html")
    assert {path.name for path in run.path.iterdir()} >= NAMES
    found = json.loads(run.report("json").read_text(encoding="utf-8"))
    assert len(found["answers"]) == 11


def test_a_hostile_report_is_harmless(tmp_path):
    files = write_report(hostile_report(), tmp_path)
    check_harmless(*(files[ending].read_text(encoding="utf-8") for ending in ("html", "md")))


def test_hostile_text_in_a_runs_samples_and_settings_is_harmless(tmp_path):
    sample = {"source": HOSTILE, "reference": HOSTILE, "translation": HOSTILE}
    record = evaluation_record(500, samples=[sample], signature=HOSTILE)
    restart = {"kind": "restart", "step": 500, "cause": HOSTILE}
    run = write_own_run(tmp_path / "run", [record, restart], evaluation={"note": HOSTILE})
    files = write_report(build_report(run), run.path)
    check_harmless(*(files[ending].read_text(encoding="utf-8") for ending in ("html", "md")))


def test_hostile_text_in_a_foreign_log_is_harmless(tmp_path):
    (tmp_path / "nohup.out").write_text(openseq2seq_log(1_000, sample=HOSTILE), encoding="utf-8")
    run = RunFolder(tmp_path / "run")
    import_run([tmp_path / "nohup.out"], run)
    files = write_report(build_report(run), run.path)
    check_harmless(*(files[ending].read_text(encoding="utf-8") for ending in ("html", "md")))


def test_half_letters_in_records_can_be_written(tmp_path):
    sample = {"source": "\ud800", "reference": "\udfff", "translation": "\ud83d"}
    run = write_own_run(tmp_path / "run", [evaluation_record(500, samples=[sample], signature="\ud800")])
    files = write_report(build_report(run), run.path)
    assert all(path.stat().st_size for path in files.values())
