"""Whole reports of made-up runs: content of report.json, the three files, and run folders with damaged content."""

import json
import math
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_folders import (
    CONFIG,
    MANIFEST,
    MODEL,
    NUM_PARAMETERS,
    NUM_STEPS,
    SECONDS_PER_STEP,
    evaluation_record,
    openseq2seq_log,
    own_records,
    train_record,
    write_config,
    write_own_run,
    write_records,
)
from sample_report import HOSTILE, hostile_report, sample_comparison, sample_report

from dragoman.importing.importer import import_run
from dragoman.report import rendering
from dragoman.report.compose import build_report, report_run, write_report
from dragoman.report.content import Report
from dragoman.report.evidence import StatedFacts
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.tables import dump_toml

NAMES = {"report.html", "report.md", "report.json"}
QUESTIONS = [
    "How long did it take?",
    "Is the model fully trained, and how can you tell?",
    "Is it overfitting?",
    "Were the GPUs fully used?",
    "Was the network the bottleneck?",
    "What does the learning-rate plot show, and why?",
    "How big is the training set, in MB and lines?",
    "What files make up a checkpoint?",
    "How big is it?",
    "How long is an average step?",
    "How does the step time relate to the network traffic between nodes?",
]


def check_report(report: Report) -> dict:
    """Checks what every report must have; returns its JSON, parsed again."""
    text = json.dumps(report.to_json(), allow_nan=False)
    assert "nan" not in " ".join(answer.answer for answer in report.answers).split()
    found = json.loads(text)
    assert [answer["question"] for answer in found["answers"]] == QUESTIONS
    for answer in found["answers"]:
        assert answer["answer"].strip()
        assert isinstance(answer["evidence"], list)
        assert 0 <= answer["confidence"] <= 1
    needed = {"parameters", "steps", "seconds_per_step", "last_evaluation", "verdict", "answers", "warnings"}
    assert needed <= set(found)
    assert {"first", "last"} <= set(found["steps"])
    assert {"mean", "median", "p95"} <= set(found["seconds_per_step"])
    assert {"bottleneck", "share", "confidence", "why"} <= set(found["verdict"])
    assert found["summary"].strip()
    return found


def test_the_figures_of_our_own_run(own_report):
    found = check_report(own_report)
    assert found["parameters"] == NUM_PARAMETERS
    assert found["steps"] == {"first": 100, "last": NUM_STEPS}
    assert found["seconds_per_step"]["median"] == pytest.approx(SECONDS_PER_STEP, rel=0.01)
    assert found["last_evaluation"]["step"] == NUM_STEPS
    assert found["last_evaluation"]["bleu"] == pytest.approx(24.01, abs=0.01)
    assert "samples" not in found["last_evaluation"]
    assert found["verdict"]["bottleneck"] == "network"
    assert 0.5 < found["verdict"]["share"] < 0.65
    assert (found["ranks"], found["nodes"], found["trainer"]) == (4, 2, "dragoman")
    assert found["seconds"] == pytest.approx(NUM_STEPS * SECONDS_PER_STEP + 800 + 300, rel=0.001)


def test_the_summary_has_model_quality_time_bottleneck_and_next_step(own_report):
    summary = own_report.summary
    for words in ("60,880,896 parameters", "10,000 steps of 20,000", "BLEU 24.0", "5.9 hours", "network", "Next:"):
        assert words in summary


def test_the_forecast_says_what_a_tenth_more_steps_would_bring(own_report):
    forecast = own_report.facts["forecast"]
    for figure, sign in (("loss", -1), ("bleu", 1)):
        found = forecast[figure]
        assert found["more_steps"] == 1_000
        assert sign * found["change"] > 0
        assert found["low"] < found["then"] < found["high"]


def test_sections_after_the_answers(own_report):
    sections = {section.title: section for section in own_report.sections}
    samples = next(section.samples for section in own_report.sections if section.samples)
    assert samples[-1].translation == "Eine Katze schläft."
    assert not samples[-1].is_teacher_forced
    said = json.dumps([list(section.messages) for section in own_report.sections])
    assert "nrefs:1|case:mixed" in said
    texts = " ".join(section.text for section in own_report.sections)
    assert 'schedule = "transformer"' in texts
    assert "'a b.toml'" in texts
    assert "abc123" in texts
    charts = {chart.key for section in sections.values() for chart in section.charts}
    assert {"attribution", "prediction-error"} <= charts


def test_the_figures_of_an_imported_run(imported_run):
    found = check_report(build_report(imported_run, StatedFacts(link="1000Mbit")))
    assert found["parameters"] == NUM_PARAMETERS
    assert found["steps"] == {"first": 0, "last": 10_000}
    assert found["seconds_per_step"]["median"] == pytest.approx(1.94)
    assert found["last_evaluation"]["teacher_forced_bleu"] == 0.3571
    assert "bleu" not in found["last_evaluation"]
    assert (found["ranks"], found["nodes"], found["hosts"]) == (4, 2, ["v100a", "v100b"])
    assert found["verdict"]["bottleneck"] == "network"
    assert any("teacher-forced" in warning and "0.95" in warning for warning in found["warnings"])
    assert any("first rank" in warning for warning in found["warnings"])
    assert any("faster than stated" in warning for warning in found["warnings"])
    assert any("every 299,998 steps" in warning for warning in found["warnings"])


def test_tiles_call_teacher_forced_bleu_by_its_name(imported_run, own_report):
    figures = build_report(imported_run).figures
    assert figures["Teacher-forced BLEU"] == "0.3571"
    assert "BLEU" not in figures
    assert own_report.figures["BLEU"] == "24.01"
    assert "Teacher-forced BLEU" not in own_report.figures


def test_samples_of_a_teacher_forced_log_are_marked(imported_run):
    samples = [sample for section in build_report(imported_run).sections for sample in section.samples]
    assert samples
    assert all(sample.is_teacher_forced for sample in samples)


def test_an_empty_folder_gets_a_report(tmp_path):
    found = check_report(build_report(RunFolder(tmp_path)))
    assert found["steps"] == {"first": None, "last": None}
    assert found["parameters"] is None
    assert found["last_evaluation"] is None
    assert found["verdict"]["bottleneck"] == "unknown"
    assert "No step was trained" in found["summary"]


def test_a_run_without_any_record_gets_a_report(tmp_path):
    found = check_report(build_report(write_records(write_config(RunFolder(tmp_path)), [])))
    assert found["seconds_per_step"]["median"] is None
    assert found["forecast"] is None


def test_a_run_without_evaluations(tmp_path):
    run = write_own_run(tmp_path, own_records(is_evaluated=False))
    found = check_report(build_report(run))
    assert found["last_evaluation"] is None
    assert found["overfitting"] is None
    assert any("never evaluated" in warning for warning in found["warnings"])
    assert found["answers"][1]["answer"].startswith("No: it made 10,000 of 20,000 planned steps (50%).")
    assert found["answers"][2]["confidence"] == 0


@pytest.mark.parametrize("record", [train_record(100), train_record(0), evaluation_record(500), evaluation_record(0)])
def test_a_run_with_one_record(tmp_path, record):
    found = check_report(build_report(write_own_run(tmp_path, [record])))
    assert found["steps"] == {"first": record["step"], "last": record["step"]}


def test_losses_that_were_not_written(tmp_path):
    records = [record | {"loss": None} if "loss" in record else record for record in own_records(3_000)]
    found = check_report(build_report(write_own_run(tmp_path, records)))
    assert found["forecast"] is None or "loss" not in found["forecast"]
    assert found["seconds_per_step"]["median"] == pytest.approx(SECONDS_PER_STEP, rel=0.01)


@pytest.mark.parametrize("loss", [math.nan, math.inf, "NaN", 1e400])
def test_lines_with_a_loss_that_is_no_number_are_skipped_and_named(tmp_path, loss):
    records = [record | {"loss": loss} if record.get("step") in (500, 600) else record for record in own_records(3_000)]
    run = write_own_run(tmp_path, records)
    numbers = [number for number, record in enumerate(records, 1) if "loss" in record and record["step"] in (500, 600)]
    found = check_report(build_report(run))
    assert len(numbers) == 3
    for number in numbers:
        assert any(f"metrics.jsonl line {number} was skipped: loss" in warning for warning in found["warnings"])
    assert found["seconds_per_step"]["median"] == pytest.approx(SECONDS_PER_STEP, rel=0.01)


def test_many_skipped_lines_are_counted(tmp_path):
    run = write_own_run(tmp_path, [*own_records(500), *(train_record(600, loss="abc") for _ in range(10))])
    warnings = [text for warning in build_report(run).warnings if "skipped" in (text := str(warning))]
    assert [warning.split(":")[0] for warning in warnings[:3]] == [
        f"metrics.jsonl line {number} was skipped" for number in (8, 9, 10)
    ]
    assert "loss is 'abc'" in warnings[0]
    assert warnings[3:] == ["7 more lines of metrics.jsonl were skipped."]


def test_a_log_that_became_nan_is_reported_with_the_step(tmp_path):
    lines = [
        f"*** Global step {step}: ***     Train loss: {'nan' if step > 500 else 3.5} " for step in range(100, 1001)
    ]
    (tmp_path / "nohup.out").write_text("\n".join(lines), encoding="utf-8")
    run = RunFolder(tmp_path / "run")
    import_run([tmp_path / "nohup.out"], run)
    found = check_report(build_report(run))
    assert any("not a number since step 501" in warning for warning in found["warnings"])
    assert "NaN" in found["next"]


def test_skipped_updates_are_a_warning(tmp_path):
    run = write_own_run(tmp_path, [train_record(100, skipped_steps=7)])
    assert any("7 updates were skipped" in str(warning) for warning in build_report(run).warnings)


def test_a_report_skips_damaged_lines(tmp_path):
    run = write_own_run(tmp_path, own_records(2_000))
    with run.metrics.open("ab") as file:
        file.write(b'{"kind": "train", "step": 2100, "lo\n\xff\xfe\x00\n[1]\n"x"\n' + b"[" * 100_000 + b"\n")
    assert check_report(build_report(run))["steps"]["last"] == 2_000


DAMAGE = {
    "config.toml": "[training\n",
    "corpus.json": "{",
    "system.node1.jsonl": "}{\n[]\n{}\n",
    "translations.jsonl": "{}",
    "checkpoints/step-00005000/state.json": json.dumps({"model": MODEL | {"width": "wide"}}),
    "status.json": '{"state": 5}',
    "imported.json": "[]",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_leaves_the_rest_of_the_report(tmp_path, name):
    run = write_own_run(tmp_path, own_records(2_000))
    (run.path / name).write_text(DAMAGE[name], encoding="utf-8")
    found = check_report(build_report(run))
    assert found["parameters"] == NUM_PARAMETERS
    assert found["steps"]["last"] == 2_000


NUMBERS = st.sampled_from(
    [0, 1, -1, 0.0, -0.5, 1e-300, 1e300, 5e-324, 2**53, -(2**60), 10**400, math.nan, math.inf, True]
)
TEXTS = st.text(max_size=5) | st.sampled_from(["nan", "\ud800", "\x1b[31m", "transformer", "teacher_forced", "V100"])
VALUES = st.recursive(
    st.none() | NUMBERS | st.floats() | st.integers(0, 10_000) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def changed(draw, whole: dict) -> dict:
    """A table in which some values, at any depth, are anything."""
    found = {}
    for key, value in whole.items():
        match draw(st.integers(0, 9)):
            case 0:
                found[key] = draw(VALUES)
            case 1:
                continue
            case _:
                found[key] = draw(changed(value)) if isinstance(value, dict) else value
    return found


STEPS = st.integers(0, 3_000) | NUMBERS
RECORDS = st.one_of(
    STEPS.flatmap(lambda step: changed(train_record(500) | {"step": step})),
    STEPS.flatmap(lambda step: changed(evaluation_record(500) | {"step": step})),
    changed({"kind": "restart", "step": 500, "cause": "x", "time": 1.6e9}),
    changed({"kind": "checkpoint", "step": 500, "bytes": 5, "time": 1.6e9}),
    changed(
        {"kind": "prediction", "step": 5, "seconds_per_step": {"predicted": 1, "low": 1, "high": 2}, "advice": ["x"]}
    ),
    VALUES,
)
FACTS = {
    "parameters": NUM_PARAMETERS,
    "num_ranks": 4,
    "hosts": ["a", "b"],
    "gpus": ["Tesla V100"],
    "precision": "mixed",
    "batch_sentences_per_rank": 256,
    "width": 512,
    "feed_forward": 2048,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "vocab_size": 32_768,
    "bleu_kind": "teacher_forced",
    "started": 1.6e9,
    "clock": "reconstructed",
    "first_nan_step": 5,
    "training_files": {"source": "a", "target": "b"},
}
IMPORTED = {
    "trainer": "OpenSeq2Seq",
    "sources": ["nohup.out"],
    "facts": FACTS,
    "printed_config": {"a": 1},
    "failures": [{"what": "It broke", "cause": "Mend it.", "evidence": "x", "step": 5}],
    "notes": ["Nothing."],
}
SAMPLE = {
    "time": 1.6e9,
    "node": "node1",
    "cpu": {"share": 0.5},
    "network": {"eth0": {"sent_bytes_per_second": 1e6, "received_bytes_per_second": 1e6}},
    "gpus": [{"index": 0, "utilisation": 0.5}],
    "notes": ["x"],
}


def as_toml(config: dict) -> str:
    """Settings as far as they can be written; the others are left out."""
    known = {}
    for name, values in config.items():
        try:
            dump_toml({name: values})
        except (TypeError, ValueError, AttributeError, AssertionError):
            continue
        known[name] = values
    return dump_toml(known)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    records=st.lists(RECORDS, max_size=12),
    num_good=st.sampled_from([0, 0, 800, 3_000]),
    config=changed(CONFIG),
    manifest=changed(MANIFEST),
    imported=st.none() | changed(IMPORTED) | VALUES,
    samples=st.lists(changed(SAMPLE) | VALUES, max_size=4),
    state=changed({"step": 500, "model": MODEL}) | VALUES,
)
def test_no_run_folder_breaks_a_report(records, num_good, config, manifest, imported, samples, state):
    with tempfile.TemporaryDirectory() as folder:
        run = write_records(RunFolder(Path(folder)), [*own_records(num_good), *records])
        run.config.write_text(as_toml(config), encoding="utf-8", errors="replace")
        run.corpus_facts.write_text(json.dumps(manifest), encoding="utf-8")
        run.system("node1").write_text("\n".join(map(json.dumps, samples)), encoding="utf-8")
        run.checkpoint(500).mkdir(parents=True)
        (run.checkpoint(500) / "state.json").write_text(json.dumps(state), encoding="utf-8")
        if imported is not None:
            run.imported.write_text(json.dumps(imported), encoding="utf-8")
        check_report(build_report(run))


def short_report() -> Report:
    """A report without charts, which take a while to draw."""
    report = sample_report()
    return replace(report, answers=[], sections=[])


def check_harmless(html: str, text: str) -> None:
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "\x1b" not in html + text
    outside_of_code = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script>alert" not in outside_of_code
    assert "alert(1)" in html  # shown, not lost


def test_three_files_are_written_to_a_new_folder(tmp_path):
    files = write_report(short_report(), tmp_path / "new" / "folder")
    assert {path.name for path in files.values()} == NAMES
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == NAMES
    assert files["html"].read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert json.loads(files["json"].read_text(encoding="utf-8"))["parameters"] == 60_880_896
    assert files["md"].read_text(encoding="utf-8").startswith("# ")


def test_a_comparison_is_written_to_the_same_files(tmp_path):
    files = write_report(sample_comparison(), tmp_path)
    assert json.loads(files["json"].read_text(encoding="utf-8"))["title"] == "Three runs compared"


def test_an_older_report_is_replaced(tmp_path):
    (tmp_path / "report.json").write_text("old")
    write_report(short_report(), tmp_path)
    assert "old" not in (tmp_path / "report.json").read_text().split()


def test_if_rendering_fails_nothing_is_written(tmp_path, monkeypatch):
    def fail(_: object) -> str:
        raise ValueError("no page")

    (tmp_path / "report.md").write_text("old")
    monkeypatch.setattr(rendering, "render_page", fail)
    with pytest.raises(ValueError, match="no page"):
        write_report(short_report(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "old"


def test_a_full_disk_leaves_no_partial_file(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(UserError, match=r"cannot be written .*no space left"):
        write_report(short_report(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_report(short_report(), tmp_path / "file" / "report")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_a_user_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="you do not have the permission"):
        write_report(short_report(), tmp_path)


def test_the_report_of_a_run_is_written_to_its_folder(tmp_path):
    run = write_own_run(tmp_path / "run", own_records(600))
    assert report_run(run) == run.report("html")
    assert {path.name for path in run.path.iterdir()} >= NAMES
    found = json.loads(run.report("json").read_text(encoding="utf-8"))
    assert len(found["answers"]) == 11


def test_a_hostile_report_is_harmless(tmp_path):
    files = write_report(hostile_report(), tmp_path)
    check_harmless(*(files[suffix].read_text(encoding="utf-8") for suffix in ("html", "md")))


def test_hostile_text_in_a_runs_samples_and_settings_is_harmless(tmp_path):
    sample = {"source": HOSTILE, "reference": HOSTILE, "translation": HOSTILE}
    record = evaluation_record(500, samples=[sample], signature=HOSTILE)
    restart = {"kind": "restart", "step": 500, "cause": HOSTILE}
    run = write_own_run(tmp_path / "run", [record, restart], evaluation={"note": HOSTILE})
    files = write_report(build_report(run), run.path)
    check_harmless(*(files[suffix].read_text(encoding="utf-8") for suffix in ("html", "md")))


def test_hostile_text_in_an_imported_log_is_harmless(tmp_path):
    (tmp_path / "nohup.out").write_text(openseq2seq_log(1_000, sample=HOSTILE), encoding="utf-8")
    run = RunFolder(tmp_path / "run")
    import_run([tmp_path / "nohup.out"], run)
    files = write_report(build_report(run), run.path)
    check_harmless(*(files[suffix].read_text(encoding="utf-8") for suffix in ("html", "md")))


def test_lone_surrogates_in_records_can_be_written(tmp_path):
    sample = {"source": "\ud800", "reference": "\udfff", "translation": "\ud83d"}
    run = write_own_run(tmp_path / "run", [evaluation_record(500, samples=[sample], signature="\ud800")])
    files = write_report(build_report(run), run.path)
    assert all(path.stat().st_size for path in files.values())
