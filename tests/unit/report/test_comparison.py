"""Runs side by side: which is better, by how much, whether by chance, and what differs."""

import json

import numpy as np
import pytest
from run_folders import (
    evaluation_record,
    openseq2seq_log,
    own_records,
    train_record,
    write_own_run,
    write_records,
    write_translations,
)

from dragoman.importing.importer import import_run
from dragoman.report.comparison import compare_runs
from dragoman.report.evidence import Known, read_evidence
from dragoman.report.findings import Findings
from dragoman.run.folder import RunFolder


def compare(*runs: RunFolder, **known):
    return compare_runs([Findings(read_evidence(run, Known(**known))) for run in runs])


def counts(share: float, num_sentences: int = 200) -> list[list[int]]:
    """Of sentences of twelve words, of which about this share is right."""
    random = np.random.default_rng(7)
    rows = []
    for right in random.binomial(12, share, num_sentences):
        matches = [max(0, int(right) - lost) for lost in range(4)]
        rows.append([12, 12, *matches, 12, 11, 10, 9])
    return rows


def shifted(records: list[dict], better: float) -> list[dict]:
    """The same run with dev losses lower, and BLEU higher, by so much."""
    return [
        record | {"loss": record["loss"] - better, "bleu": record["bleu"] + 10 * better}
        if record["kind"] == "evaluation"
        else record
        for record in records
    ]


@pytest.fixture
def worse(tmp_path) -> RunFolder:
    return write_own_run(tmp_path / "worse", own_records(5_000), training={"price_per_hour": 6.0})


@pytest.fixture
def better(tmp_path) -> RunFolder:
    records = shifted(own_records(5_000), 0.2)
    return write_own_run(tmp_path / "better", records, training={"price_per_hour": 6.0, "learning_rate": 1.5})


def test_the_lower_loss_is_named_with_its_distance(worse, better):
    found = compare(worse, better)
    (judgement,) = found.facts["judgements"]
    assert "better has the lowest dev loss" in judgement
    assert "step 5,000" in judgement
    assert "beyond the noise" in judgement
    assert "0.2" in judgement
    assert found.summary == judgement
    assert found.title == "worse against better"
    assert found.warnings == []


def test_a_difference_within_the_noise_is_said_to_be_so(tmp_path):
    random = np.random.default_rng(1)
    runs = []
    for name in ("a", "b"):
        records = [evaluation_record(step, loss=2.0 + random.normal(0, 0.02)) for step in range(500, 10_001, 500)]
        runs.append(write_own_run(tmp_path / name, records))
    assert "within the noise" in compare(*runs).summary


def test_significance_by_the_translations_of_both(worse, better):
    write_translations(worse, counts(0.5))
    write_translations(better, counts(0.8))
    first = compare(worse, better).facts["judgements"][0]
    assert first.startswith("better translates better than worse")
    assert "significant" in first
    assert "200 sentences" in first


def test_equal_translations_do_not_differ(worse, better):
    for run in (worse, better):
        write_translations(run, counts(0.6))
    assert "do not differ significantly" in compare(worse, better).facts["judgements"][0]


def test_different_dev_sets_are_not_compared(worse, better):
    write_translations(worse, counts(0.5, 20))
    write_translations(better, counts(0.8, 20), [f"another {number}" for number in range(20)])
    assert "different dev sets" in compare(worse, better).facts["judgements"][0]


def test_damaged_translations_leave_the_losses(worse, better):
    write_translations(worse, counts(0.5, 20))
    better.translations.write_text('{"step": 5}\n{"bleu_counts": "x"}\n')
    assert "lowest dev loss" in compare(worse, better).summary


def test_settings_that_differ_and_only_those(worse, better):
    found = compare(worse, better)
    assert found.facts["differences"] == {"training.learning_rate": {"worse": 2.0, "better": 1.5}}
    (table,) = [table for section in found.sections for table in section.tables if "setting" in table.columns]
    assert table.rows == [["training.learning_rate", "2.0", "1.5"]]


def test_a_setting_that_one_run_lacks_is_shown_as_missing(worse, tmp_path):
    other = write_own_run(tmp_path / "other", own_records(1_000), training={"price_per_hour": 6.0, "max_hours": 2.0})
    assert compare(worse, other).facts["differences"] == {"training.max_hours": {"worse": None, "other": 2.0}}


def test_provenance_is_no_setting(worse, tmp_path):
    other = write_own_run(
        tmp_path / "x", own_records(500), training={"price_per_hour": 6.0}, provenance={"git_commit": "else"}
    )
    assert compare(worse, other).facts["differences"] == {}


def test_curves_by_step_time_and_cost(worse, better):
    charts = {chart.key: chart for section in compare(worse, better).sections for chart in section.charts}
    assert set(charts) == {f"{figure}-by-{axis}" for figure in ("loss", "bleu") for axis in ("step", "time", "cost")}
    by_step, by_time, by_cost = (charts[f"loss-by-{axis}"].series[0] for axis in ("step", "time", "cost"))
    assert by_step.x[-1] == 5_000
    assert by_time.x[-1] == pytest.approx(5_000 * 2 / 3600, rel=0.1)
    assert by_cost.x[-1] == pytest.approx(6 * by_time.x[-1])
    assert [series.name for series in charts["loss-by-step"].series] == ["worse", "better"]


def test_without_a_price_nothing_is_drawn_by_cost(tmp_path):
    runs = [write_own_run(tmp_path / name, own_records(1_000)) for name in "ab"]
    assert not [chart for section in compare(*runs).sections for chart in section.charts if "cost" in chart.key]


def test_three_runs_have_a_column_each_and_the_figures_of_a_report(worse, better, tmp_path):
    third = write_own_run(tmp_path / "third", shifted(own_records(5_000), 0.1))
    found = compare(worse, better, third)
    (table,) = [table for section in found.sections for table in section.tables if table.columns[0] == ""]
    assert list(table.columns) == ["", "worse", "better", "third"]
    assert "better has the lowest dev loss" in found.summary
    assert "below third" in found.summary
    figures = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [run["name"] for run in figures["runs"]] == ["worse", "better", "third"]
    assert all(run["steps"]["last"] == 5_000 for run in figures["runs"])
    assert any("price" in warning for warning in found.warnings)


def test_folders_of_the_same_name_are_told_apart(tmp_path):
    runs = [write_own_run(tmp_path / parent / "run", own_records(500)) for parent in "abc"]
    names = [run["name"] for run in compare(*runs).facts["runs"]]
    assert len(set(names)) == 3
    assert names[0] == "run"


def test_a_name_that_looks_like_the_number_of_another_is_not_taken_twice(tmp_path):
    folders = ["run (2)", "a/run", "b/run"]
    runs = [write_own_run(tmp_path / folder, own_records(500)) for folder in folders]
    assert len({run["name"] for run in compare(*runs).facts["runs"]}) == 3


def test_teacher_forced_bleu_beside_real_bleu_is_warned_of(worse, tmp_path):
    (tmp_path / "nohup.out").write_text(openseq2seq_log(), encoding="utf-8")
    theirs = RunFolder(tmp_path / "theirs")
    import_run([tmp_path / "nohup.out"], theirs)
    found = compare(worse, theirs)
    assert any("teacher-forced" in warning for warning in found.warnings)
    (table,) = [table for section in found.sections for table in section.tables if table.columns[0] == ""]
    row = next(row for row in table.rows if row[0] == "last BLEU")
    assert "teacher-forced" in row[2]
    assert "teacher-forced" not in row[1]


def test_losses_on_different_scales_are_warned_of(worse, tmp_path):
    other = write_own_run(
        tmp_path / "other", own_records(1_000), training={"label_smoothing": 0.0, "price_per_hour": 6.0}
    )
    other.corpus_facts.write_text('{"key": "another corpus"}')
    warnings = " ".join(compare(worse, other).warnings)
    assert "Label smoothing" in warnings
    assert "different corpora" in warnings


def test_runs_that_nobody_judged_cannot_be_compared(tmp_path):
    runs = [write_own_run(tmp_path / name, [train_record(100)]) for name in "ab"]
    found = compare(*runs)
    assert "cannot be said" in found.summary
    json.dumps(found.to_json(), allow_nan=False)


def test_empty_folders_are_compared_without_complaint(tmp_path):
    runs = [write_records(RunFolder(tmp_path / name), []) for name in "ab"]
    assert "cannot be said" in compare(*runs).summary
