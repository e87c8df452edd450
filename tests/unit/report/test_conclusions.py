"""Conclusions about runs of other trainers: best checkpoint, failed scores, NaN, unfinished runs, launches, time."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imported_records import BEGAN, RISING, curve_of, evaluation, train

from dragoman.report.answers.learning import answer_trained
from dragoman.report.answers.learning_rate import answer_learning_rate
from dragoman.report.answers.overfitting import answer_overfitting
from dragoman.report.answers.speed import answer_duration
from dragoman.report.compose import report_findings
from dragoman.report.content import Report
from dragoman.report.evidence import StatedFacts, read_evidence
from dragoman.report.findings import Findings
from dragoman.report.scores import find_failed_scores
from dragoman.run.folder import RunFolder
from dragoman.run.records import EvaluationRecord

NUM_QUESTIONS = 11


OVERFITTED = [2.0 + 0.02 * abs(number - 8) for number in range(30)]


# Which checkpoint to use


def test_the_checkpoint_is_chosen_by_bleu_though_the_loss_rises(make):
    findings = make(curve_of(RISING, OVERFITTED))
    report = report_findings(findings)
    best = report.to_json()["best_checkpoint"]
    assert best == {"step": 30_000, "by": "BLEU", "value": pytest.approx(19.59, abs=0.01)}
    assert "use the checkpoint of step 30,000 (BLEU 19.59, the best)" in report.to_json()["next"]
    answer = answer_overfitting(findings)
    assert answer.answer.startswith("By the loss, yes")
    assert "BLEU went from 15.62 at step 9,000 to 19.59" in answer.answer
    assert answer.short == "By the loss, not by BLEU"
    assert "BLEU still rises" in answer_trained(findings).answer


@pytest.mark.parametrize(
    ("scores", "facts", "by", "step"),
    [
        ({"bleu": [1, 3, 2], "chrf": [1, 2, 3]}, {}, "BLEU", 2_000),
        ({"bleu": [1, 3, 2], "chrf": [1, 2, 3]}, {"metric": "chrf"}, "chrF", 3_000),
        ({"chrf": [30, 50, 40]}, {}, "chrF", 2_000),
        ({"ter": [60, 50, 55]}, {}, "TER", 2_000),
        ({"teacher_forced_bleu": [0.1, 0.3, 0.2]}, {}, "dev loss", 3_000),
        ({"accuracy": [60, 70, 65]}, {"metric": "accuracy"}, "accuracy", 2_000),
        ({"accuracy": [60, 70, 65]}, {}, "dev loss", 3_000),
        ({"bleu": [20, 20, 20]}, {}, "dev loss", 3_000),
    ],
)
def test_the_figure_that_chooses_the_checkpoint(make, scores, facts, by, step):
    records = [
        evaluation(1_000 * (number + 1), loss=2.0 - 0.1 * number, **{key: each[number] for key, each in scores.items()})
        for number in range(3)
    ]
    best = make(records, facts).best_checkpoint
    assert (best.by, best.step) == (by, step)


def test_other_scores_of_the_trainer_are_used_if_it_names_one(make):
    records = [evaluation(100 * n, loss=1.0, other_scores={"eval_comet": value}) for n, value in ((1, 0.7), (2, 0.8))]
    findings = make(records, {"metric": "eval_comet"})
    assert findings.best_checkpoint.to_json() == {"step": 200, "by": "eval_comet", "value": 0.8}
    report = report_findings(findings)
    assert report.figures["eval_comet"] == "0.8000"
    assert "eval_comet 0.8000" in report.summary
    assert report.to_json()["last_evaluation"]["other_scores"] == {"eval_comet": 0.8}


def test_equal_scores_are_ordered_by_loss(make):
    records = [evaluation(step, loss=loss, bleu=bleu) for step, loss, bleu in ((1, 3, 9), (2, 1, 20), (3, 2, 20))]
    assert make(records).best_checkpoint.step == 2


# Scores that failed


def test_zeros_among_good_scores_are_left_out_and_named_once(make):
    bleus = [1.0, 10.0, 20.0, 25.0, 27.0, 28.0, 0.0, 0.0, 28.5, 28.6, 28.7, 0.0, 28.8, 28.9, 0.0]
    findings = make(curve_of(bleus))
    report = report_findings(findings)
    found = report.to_json()
    assert found["failed_scores"] == [7_000, 8_000, 12_000, 15_000]
    assert "bleu" not in found["last_evaluation"]
    assert found["best_checkpoint"]["step"] == 14_000
    assert 0.0 not in findings.bleu[1]
    assert findings.bleu_forecast.after(1_000).margin < 3
    (warning,) = [each.message for each in report.warnings if "scoring failed" in each.message]
    assert warning.startswith(
        "BLEU is 0 at 4 evaluations (steps 7,000 to 8,000 and 12,000 and 15,000) although it is 29"
    )
    scores = [table for section in report.sections for table in section.tables if table.title == "On the dev set"]
    assert "0.00 (failed)" in json.dumps([list(row) for row in scores[0].rows])


def test_one_failed_score_is_described_in_the_singular(make):
    report = report_findings(make(curve_of([10.0, 28.0, 0.0, 28.4])))
    assert any(
        str(each.message) == "BLEU is 0 at step 3,000 although it is 28 before and after: the scoring failed there, so "
        "it is left out."
        for each in report.warnings
    )


@pytest.mark.parametrize("bleus", [[0.0, 0.0, 0.0, 5.0, 20.0], [0.0, 0.1, 0.0, 0.2], [0.0, 0.0], [20.0, 15.0, 12.0]])
def test_the_zeros_of_an_untrained_model_are_real(make, bleus):
    assert make(curve_of(bleus)).failed_scores == []


def test_zeros_before_the_scoring_was_mended_are_left_out(make):
    losses = [2.25, 1.72, 1.59, 1.575, 1.61, 1.65]
    findings = make(curve_of([0.0, 0.0, 0.0, 28.1, 28.0, 27.9], losses))
    assert [each.step for each in findings.failed_scores] == [1_000, 2_000, 3_000]
    report = report_findings(findings)
    assert any(
        "BLEU is 0 at 3 evaluations (steps 1,000 to 3,000) although it is 28 after" in str(each.message)
        for each in report.warnings
    )
    assert "still ris" not in json.dumps(report.to_json())


def test_a_score_that_is_always_0_is_not_the_quality_of_the_model(make):
    report = report_findings(make(curve_of([0.0] * 10)))
    assert "BLEU 0.00" not in report.to_json()["summary"]
    assert any("BLEU is 0 in all 10 evaluations" in str(each.message) for each in report.warnings)


def test_a_score_that_was_best_long_ago_no_longer_rises(make):
    rising = [22 * (1 - 0.93 * 0.85**number) for number in range(20)]
    late = [21.4, 22.0, 20.9, 21.5, 21.4, 20.4, 20.2, 20.9, 20.4, 20.6]
    noisy = [max(0.5, bleu + (-1) ** number * 0.8) for number, bleu in enumerate(rising)]
    findings = make(curve_of([*noisy[:-1], 22.5, *late], [4.3 + 0.7 * 0.6**number for number in range(30)]))
    answer = answer_trained(findings)
    assert "BLEU has not risen since step 20,000" in answer.answer
    assert "The 10 evaluations after step 20,000 had no better BLEU." in answer.evidence
    said = report_findings(findings).to_json()["next"]
    assert said.startswith("stop here and use the checkpoint of step 20,000 (BLEU 22.50, the best);")


def test_a_model_that_became_bad_is_not_a_failed_script(make):
    findings = make(curve_of([10.0, 20.0, 25.0, 0.0, 0.0], [4.0, 3.0, 2.5, 9.0, 9.5]))
    assert findings.failed_scores == []


@given(st.lists(st.floats(0, 100) | st.none(), max_size=12), st.lists(st.floats(0.1, 20), min_size=12, max_size=12))
def test_the_best_score_is_never_left_out(bleus, losses):
    records = [
        EvaluationRecord(kind="evaluation", step=number + 1, bleu=bleu, loss=losses[number])
        for number, bleu in enumerate(bleus)
    ]
    failed = {each.step for each in find_failed_scores(records)}
    known = {record.step: record.bleu for record in records if record.bleu is not None}
    assert failed <= set(known)
    if known:
        assert max(known, key=known.__getitem__) not in failed


# NaN


def nan_run(make, facts: dict[str, Any] | None = None, **more: Any) -> Findings:
    good = curve_of([10.0, 20.0, 25.0])
    bad = [
        record for step in range(4_000, 8_001, 1_000) for record in (train(step, loss=None), evaluation(step, bleu=0.0))
    ]
    return make([*good, *bad], {"first_nan_step": 4_000} | (facts or {}), **more)


def test_nan_comes_first_with_its_cost_and_question_2_is_no(make):
    failure = {"what": "The loss is not a number since step 4,000.", "cause": "x", "evidence": "Up. 4000 Cost nan"}
    report = report_findings(nan_run(make, failures=[failure], config="[training]\nwarmup_steps = 0\n"))
    assert (report.state.text, report.state.mood) == ("NaN since step 4,000", "bad")
    assert "not a number since step 4,000" in report.warnings[0].message
    assert sum("not a number" in each.message for each in report.warnings) == 1
    assert report.warnings[0].log_line == "Up. 4000 Cost nan"
    for words in (
        "4,000 steps after it, 67 minutes and a cost of 40.00",
        "no warm-up",
        "last good one was at step 3,000",
    ):
        assert words in report.state.detail
    assert report.summary.startswith("The training loss is not a number since step 4,000")
    trained = report.answers[1]
    assert trained.answer.startswith("No: the training loss is not a number since step 4,000")
    assert trained.short == "No: NaN since step 4,000"
    found = report.to_json()
    assert found["forecast"] is None
    assert found["best_checkpoint"]["step"] == 3_000
    assert found["last_evaluation"]["step"] == 3_000


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"precision": "fp16", "loss_scaling": "none"}, "half precision (fp16) without loss scaling"),
        ({"precision": "mixed"}, "an overflow in half precision"),
        ({"warmup_steps": 8_000}, "a learning rate that rises too fast"),
        ({}, "a learning rate that is too high, or damaged data"),
    ],
)
def test_the_likely_cause_of_nan(make, facts, words):
    assert words in report_findings(nan_run(make, facts)).state.detail


def test_our_own_run_with_nan_losses_at_the_end(tmp_path):
    run = RunFolder(tmp_path)
    lines = [json.dumps(train(step, loss=float("nan") if step > 300 else 2.0)) for step in range(100, 1_001, 100)]
    run.metrics.write_text("\n".join(lines))
    report = report_findings(Findings(read_evidence(run)))
    assert report.state.text == "NaN since step 400"
    assert report.answers[1].short == "No: NaN since step 400"


# Unfinished runs


def test_a_run_with_one_evaluation_is_judged_by_its_plan(make):
    records = [*(train(step) for step in range(100, 15_001, 100)), evaluation(15_000, loss=2.0, bleu=20.0)]
    findings = make(records, {"steps_planned": 100_000, "warmup_steps": 16_000})
    report = report_findings(findings)
    assert report.state.text == "Stopped at 15%"
    answer = report.answers[1]
    assert answer.short == "No: 15% of the plan"
    assert answer.answer.startswith("No: it made 15,000 of 100,000 planned steps (15%).")
    assert "still warming up: the warm-up has 16,000 steps" in answer.answer
    assert "about 23.6 hours and cost 850.00" in answer.answer
    found = report.to_json()
    assert (found["state"], found["progress"], found["steps_planned"]) == ("stopped", 0.15, 100_000)
    assert "evaluated once" in " ".join(answer.evidence)


def test_epochs_are_a_plan_too(make):
    findings = make([train(step, epoch=step / 1_000) for step in range(100, 2_001, 100)], {"epochs_planned": 10})
    assert findings.progress.share == pytest.approx(0.2)
    assert answer_trained(findings).answer.startswith("No: it made 2 of 10 planned epochs (20%).")


@pytest.mark.parametrize(
    ("facts", "text", "state"),
    [
        ({"is_finished": True, "steps_planned": 9_000}, "Finished", "finished"),
        ({"steps_planned": 1_000}, "Finished", "finished"),
        ({"steps_done": 1_040, "steps_planned": 1_040}, "Finished", "finished"),
        ({}, "End not known", "unknown"),
        ({"is_cut": True, "steps_planned": 9_000}, "End not known", "unknown"),
        ({"is_finished": False}, "Stopped at step 1,000", "stopped"),
        ({"steps_planned": 3_000}, "Stopped at 33%", "stopped"),
    ],
)
def test_the_state_of_an_imported_run(make, facts, text, state):
    report = report_findings(make([train(step) for step in range(100, 1_001, 100)], facts))
    assert (report.state.text, report.to_json()["state"]) == (text, state)
    assert report.to_json()["state_text"] == text


def test_a_run_that_stopped_early_did_not_end_as_planned(make):
    reason = "Sockeye stopped early: the dev set had not improved for long enough."
    launch = {"number": 1, "first_step": 1_000, "last_step": 5_000, "end": "finished", "reason": reason}
    facts = {"is_finished": True, "epochs_done": 84, "epochs_planned": 300}
    state = report_findings(make(curve_of([1.0] * 5), facts, launches=[launch])).state
    assert state.text == "Finished"
    assert state.detail == f"Training ended after 5,000 steps, 84 of 300 planned epochs (28%). {reason}"
    state = report_findings(make(curve_of([1.0] * 5), facts)).state
    assert "by itself after 84 of 300 planned epochs (28%), for example by early stopping" in state.detail


def test_a_tiny_share_of_the_plan_is_not_0_percent(make):
    state = report_findings(make([train(100)], {"steps_planned": 300_000})).state
    assert state.text == "Stopped at 0.03%"


def test_the_last_step_by_the_trainers_own_word(make):
    report = report_findings(make([train(500), train(1_000)], {"steps_done": 1_040, "is_finished": True}))
    assert report.to_json()["steps"]["last"] == 1_040
    assert "1,040 steps" in report.summary


def test_an_untrained_model_has_not_reached_a_loss(make):
    report = report_findings(make([evaluation(0, loss=9.1, bleu=0.0)]))
    assert report.state.text == "No step trained"
    assert "reached" not in report.summary
    assert "Before it had learned anything (step 0), it had a dev loss of 9.1000" in report.summary
    assert report.answers[1].answer == "No: no step was trained."
    said = json.dumps([[answer.answer, list(answer.evidence)] for answer in report.answers])
    assert "at the end" not in said


def test_a_run_of_three_steps_is_no_model(make):
    report = report_findings(make([train(1), train(2), train(3), evaluation(3, loss=8.0)], {"steps_planned": 90_000}))
    assert report.answers[1].short == "No: only 3 steps"
    assert "reached" not in report.summary


@pytest.mark.parametrize("facts", [{"is_cut": True}, {"begins_midway": True}])
def test_an_excerpt_is_not_said_to_lack_evaluations(make, facts):
    report = report_findings(make([train(step) for step in (9_000, 9_100, 9_200)], facts))
    said = report.summary + json.dumps([str(each) for each in report.warnings])
    assert "This excerpt shows no evaluation" in said
    assert "never evaluated" not in said + json.dumps([answer.answer for answer in report.answers])
    empty = report_findings(make([], facts))
    assert "No step was trained" not in empty.summary
    assert empty.answers[1].short == "Not known"


# Launches


LAUNCHES = [
    {
        "number": 1,
        "end": "failed",
        "reason": "A file was not found before the first step.",
        "source": "a/train.log",
        "line": 1,
    },
    {"number": 2, "end": "failed", "reason": "A GPU ran out of memory before the first step."},
    {
        "number": 3,
        "end": "failed",
        "reason": "A GPU ran out of memory at step 1,000.",
        "first_step": 100,
        "last_step": 1_000,
    },
]
FAILURES = [
    {
        "what": "A file was not found before the first step.",
        "cause": "Look.",
        "evidence": "No such file",
        "launch": 1,
        "is_fatal": True,
    },
    {
        "what": "A GPU ran out of memory at step 1,000.",
        "cause": "Make batches smaller.",
        "evidence": "CUDA OOM",
        "launch": 3,
        "is_fatal": True,
    },
]


def launched(make) -> Report:
    records = [train(step) for step in range(100, 1_001, 100)]
    return report_findings(make(records, launches=LAUNCHES, failures=FAILURES, left_out=["b.log: another run."]))


def test_launches_are_listed_and_only_the_one_that_trained_has_warnings(make):
    report = launched(make)
    assert (report.state.text, report.state.mood) == ("Died: out of GPU memory", "bad")
    assert report.to_json()["state"] == "failed"
    first = report.warnings[0]
    assert (first.message, first.log_line) == ("A GPU ran out of memory at step 1,000.", "CUDA OOM")
    assert not any("file was not found" in each.message for each in report.warnings)
    assert "2 more launches made no step (number 1: file not found, number 2: out of GPU memory)." in report.summary
    (section,) = [section for section in report.sections if section.title == "Launches"]
    assert section.messages == ["The log holds 3 launches. This report is about launch 3."]
    assert [list(row[:3]) for row in section.tables[0].rows] == [
        ["1", "none", "failed"],
        ["2", "none", "failed"],
        ["3", "100 to 1,000", "failed"],
    ]
    assert len(report.to_json()["launches"]) == 3


def test_what_was_left_out_is_shown(make):
    report = launched(make)
    (section,) = [section for section in report.sections if "left out" in section.title]
    assert section.messages == ["Read: train.log", "b.log: another run."]
    assert report.to_json()["left_out"] == ["b.log: another run."]


def test_a_run_resumed_on_other_hosts_has_the_machines_of_its_last_launch(make):
    launches = [
        {"number": 1, "first_step": 1, "last_step": 100, "hosts": ["a", "b"]},
        {"number": 2, "first_step": 101, "last_step": 200, "hosts": ["c", "d"]},
    ]
    findings = make([train(100), train(200)], {"hosts": ["a", "b", "c", "d"], "num_ranks": 4}, launches=launches)
    assert findings.evidence.num_nodes == 2


# Time


def test_evaluations_and_standstill_are_not_training(make):
    records, time = [], BEGAN
    for step in range(100, 5_001, 100):
        time += 100.0 + (36_000 if step == 2_600 else 0)
        records.append(train(step, time=time))
        if step % 1_000 == 0:
            time += 300.0
            records.append(evaluation(step, time=time, loss=2.0, seconds=300.0))
    findings = make(records, {"started": BEGAN, "steps_planned": 10_000})
    use = findings.time_use.seconds
    assert use["training"] == pytest.approx(5_000)
    assert use["evaluation"] == pytest.approx(1_500)
    assert use["standstill"] == pytest.approx(36_000)
    assert sum(use.values()) == pytest.approx(findings.wall_seconds) == pytest.approx(time - BEGAN)
    assert findings.progress.seconds_left == pytest.approx(5_000 * 1.3)
    assert "For 10.0 hours of it the run stood still" in answer_duration(findings).answer


def test_one_endless_evaluation_is_no_measure_of_the_next_ones(make):
    records, time = [], BEGAN
    for step in range(100, 2_001, 100):
        time += 100.0
        records.append(train(step, time=time))
        seconds = 9_000.0 if step == 600 else 20.0
        time += seconds
        records.append(evaluation(step, time=time, loss=2.0, seconds=seconds))
    assert make(records, {"started": BEGAN}).seconds_per_further_step == pytest.approx(1.2)


def test_a_learning_rate_told_with_the_scores_is_known(make):
    records = [evaluation(step, loss=2.0, learning_rate=5e-4 / step) for step in range(100, 1_001, 100)]
    answer = answer_learning_rate(make(records)).answer
    assert answer == "It begins at 5.000e-06 and falls to 5.000e-07 at the end."


def test_a_clear_rise_in_few_evaluations_is_not_denied(make):
    losses = [0.321, 0.3585, 0.3937, 0.4123, 0.42]
    records = curve_of([None] * 5, losses)
    rates = [record | {"learning_rate": 1e-5 * (1 - record["step"] / 5_000)} for record in records if "loss" in record]
    report = report_findings(make(rates))
    assert report.answers[2].answer.startswith(
        "Perhaps: the dev loss rose from 0.3210 at step 1,000 to 0.4200, but with 5 evaluations that may be chance"
    )
    assert "train again for longer" not in report.summary
    assert "use the checkpoint of step 1,000" in report.summary


def test_a_standstill_within_the_logged_step_time_is_found(make):
    records, time = [], BEGAN
    for step in range(100, 3_001, 100):
        seconds = 101.0 if step == 1_500 else 1.0
        time += 100 * seconds
        records.append(train(step, time=time, seconds_per_step=seconds))
    findings = make(records, {"started": BEGAN})
    assert findings.time_use.seconds["standstill"] == pytest.approx(10_000)
    assert findings.seconds_per_further_step == pytest.approx(1.0)


def test_evaluations_within_the_logged_step_time_are_found(make):
    records, time = [], BEGAN
    for step in range(100, 5_001, 100):
        is_after = step % 1_000 == 100 and step > 100
        time += 400.0 if is_after else 100.0
        records.append(train(step, time=time, seconds_per_step=4.0 if is_after else 1.0))
        if step % 1_000 == 0 and step < 5_000:
            records.append(evaluation(step, time=time, loss=2.0))
    use = make(records, {"started": BEGAN, "step_time_includes_evaluation": True}).time_use.seconds
    assert use["evaluation"] == pytest.approx(4 * 300)
    assert use["training"] == pytest.approx(5_000)


steps_and_times = st.lists(
    st.tuples(st.integers(0, 300), st.floats(0, 1e5), st.floats(0, 50), st.booleans()), min_size=1, max_size=12
)


@given(steps_and_times, st.booleans(), st.sampled_from(["log", "reconstructed"]))
def test_parts_of_the_time_never_exceed_the_whole(tmp_path_factory, intervals, includes, clock):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    step, time, records = 0, BEGAN, []
    for num_steps, seconds, per_step, is_evaluated in intervals:
        step, time = step + num_steps, time + seconds
        records.append(train(step, time=time, seconds_per_step=per_step))
        if is_evaluated:
            records.append(evaluation(step, time=time, loss=1.0, seconds=seconds))
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    facts = {"clock": clock, "step_time_includes_evaluation": includes, "started": BEGAN}
    run.imported.write_text(json.dumps({"trainer": "Marian", "facts": facts}))
    findings = Findings(read_evidence(run))
    use = findings.time_use
    assert all(seconds >= 0 for seconds in use.seconds.values())
    assert use.whole <= (findings.wall_seconds or 0.0) * (1 + 1e-9) + 1e-6


# Words


def test_the_unit_of_the_loss_is_said_only_where_it_is_known(make):
    units = ({"loss_unit": "nats per token"}, {"loss_unit": "nats per sentence"}, {})
    labels = [report_findings(make(curve_of(RISING), facts)).overview[0].y_label for facts in units]
    assert labels == ["loss in nats per token", "loss in nats per sentence", "loss as logged, unit unknown"]


def test_the_first_screen_has_a_curve_of_loss_and_one_of_the_score(make):
    assert [chart.key for chart in report_findings(make(curve_of(RISING))).overview] == [
        "overview-loss",
        "overview-score",
    ]
    chrf = [evaluation(step, loss=2.0, chrf=value) for step, value in ((100, 40.0), (200, 50.0))]
    charts = report_findings(make(chrf)).overview
    assert [chart.title for chart in charts] == ["Loss", "chrF"]


def test_every_answer_has_a_short_form_and_warnings_are_one_line(make, own_report, imported_run):
    reports = [own_report, report_findings(Findings(read_evidence(imported_run))), report_findings(make([]))]
    for report in reports:
        assert len(report.answers) == NUM_QUESTIONS
        ours = [answer for number, answer in enumerate(report.answers, 1) if number not in (5, 11)]
        assert all(0 < len(answer.short) <= 45 for answer in ours), [answer.short for answer in ours]
        assert all(len(each.message) <= 130 for each in report.warnings)


def test_teacher_forced_bleu_has_one_scale_on_a_page(imported_run):
    report = report_findings(Findings(read_evidence(imported_run)))
    assert "0.3571" in report.summary
    assert "35.7" not in json.dumps(report.to_json())
    (chart,) = [chart for chart in report.overview if chart.key == "overview-score"]
    assert max(chart.series[0].y) < 1
    assert not any("0.1 points" in line for line in report.answers[1].evidence)


def test_a_gpu_that_the_log_contradicts_is_a_warning(make):
    findings = make([train(100), train(200)], {"gpus": ["Tesla V100-PCIE-16GB"]})
    evidence = read_evidence(findings.evidence.run, StatedFacts(gpu="A100-80GB"))
    said = [each.message for each in report_findings(Findings(evidence)).warnings]
    assert any("A100" in message and "Tesla V100-PCIE-16GB" in message for message in said)


def test_epochs_that_are_left_make_a_stopped_run(make):
    facts = {"epochs_planned": 200, "epochs_done": 36}
    assert report_findings(make([train(100), train(200)], facts)).state.text == "Stopped at 18%"


def test_a_run_whose_files_count_checkpoints_says_so(make):
    report = report_findings(make(curve_of(RISING, every=1), {"step_unit": "checkpoints"}))
    assert "for 30 checkpoints" in report.summary
    assert any("count checkpoints, not updates" in warning.message for warning in report.warnings)
    assert report.figures["Checkpoints"] == "30"
    assert report.overview[0].x_label == "checkpoint"


# Divergence, warm-up and runs without a plan


def test_a_run_that_diverged_is_neither_trained_nor_overfitting(make):
    levels = [2.0 + 4.0 * 0.8**number + (5.0 if number > 17 else 0.0) for number in range(30)]
    scores = [0.1 if number > 17 else 20.0 + number / 10 for number in range(30)]
    records = []
    for number, (level, bleu) in enumerate(zip(levels, scores, strict=True), 1):
        records += [train(1_000 * number, loss=level), evaluation(1_000 * number, loss=level + 0.1, bleu=bleu)]
    report = report_findings(make(records))
    assert report.state.text == "Diverged after step 18,000"
    assert "No: training diverged after step 18,000: the training loss rose from 2.1" in report.answers[1].answer
    assert report.answers[2].answer.startswith("No: training diverged after step 18,000")
    assert "from the checkpoint of step 18,000 (BLEU 21.70, the best)" in report.to_json()["next"]
    assert report.warnings[0].message.startswith("Training diverged after step 18,000")
    assert report.to_json()["diverged_after_step"] == 18_000


def test_a_collapse_is_found_in_evaluations_alone(make):
    losses = [3.0, 2.5, 2.2, 2.0, 2.0, 2.0, 2.0, 7.0, 7.0, 7.0, 7.0, 7.0]
    records = [evaluation(n, loss=loss, bleu=0.5 if loss > 5 else 20.0) for n, loss in enumerate(losses, 1)]
    found = make(records)
    assert found.divergence.last_good_step == 7
    assert "the dev loss rose" in report_findings(found).summary


def test_a_run_that_was_still_warming_up_is_not_trained(make):
    answer = answer_trained(make([train(500), train(1_000), evaluation(1_000, loss=4.0)], {"warmup_steps": 16_000}))
    assert answer.answer.startswith("No: it made only 1,000 steps. The learning rate was still warming up")
    assert answer.short == "No: still warming up"


def test_a_run_that_died_was_probably_not_trained(make):
    failures = [
        {"what": "A GPU ran out of memory at step 1,000.", "cause": "Smaller.", "is_fatal": True, "step": 1_000}
    ]
    findings = make([train(500), train(1_000), evaluation(1_000, loss=4.0)], failures=failures)
    answer = answer_trained(findings)
    assert answer.answer.startswith("Probably not: it did not end by itself. A GPU ran out of memory")
    assert report_findings(findings).to_json()["next"].startswith("fix what ended the run, then continue training")


@pytest.mark.parametrize("unit", ["epochs", "checkpoints", "log lines"])
def test_few_epochs_or_checkpoints_are_not_few_steps(make, unit):
    findings = make(curve_of(RISING[:8], every=1), {"step_unit": unit})
    assert not findings.progress.is_untrained
    summary = report_findings(findings).summary
    assert f"At {unit[:-1]} 8 it reached" in summary
    assert "only 8" not in summary


def test_the_score_of_an_untrained_model_is_not_the_best(make):
    records = [evaluation(0, loss=9.0, teacher_forced_bleu=0.95)]
    for number in range(1, 21):
        loss, score = 1.5 + 3.0 * 0.5**number, 0.38 - 0.3 * 0.5**number
        records += [train(1_000 * number), evaluation(1_000 * number, loss=loss, teacher_forced_bleu=score)]
    assert "step 0" not in answer_trained(make(records)).answer


def test_a_gpu_that_is_not_known_gives_way_to_that_of_the_log(make):
    records = [train(1_000 * number) for number in range(1, 5)]
    facts = {
        "gpus": ["Tesla V100-SXM2-16GB"],
        "num_ranks": 4,
        "hosts": ["a", "b"],
        "parameters": 6e7,
        "batch_tokens": 4e4,
    }
    findings = make(records, facts)
    stated = replace(findings.evidence, known=StatedFacts(gpu="V1000", link="1gbit"))
    assert Findings(stated).network.compute_seconds == findings.network.compute_seconds
