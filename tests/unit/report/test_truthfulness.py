"""Nothing false in a report: what is not known is not denied, and all figures of a page agree."""

import json
from dataclasses import replace

import pytest
from imported_records import BEGAN, RISING, curve_of, evaluation, train

from dragoman.diagnosis.forecast import Forecast
from dragoman.report.answers.learning import answer_trained
from dragoman.report.comparison import compare_runs
from dragoman.report.compose import report_findings
from dragoman.report.evidence import read_evidence
from dragoman.report.findings import Findings
from dragoman.report.summary import _to_reduce_waiting
from dragoman.run.folder import RunFolder

# What is not known is not denied


@pytest.mark.parametrize("facts", [{"has_unread_steps": True}, {"is_cut": True}])
def test_steps_that_could_not_be_read_are_not_denied(make, facts):
    found = make([], facts, launches=[{"number": 1, "end": "failed", "reason": "The GPU ran out of memory."}])
    report = report_findings(found)
    shown = json.dumps(report.to_json()) + report.state.detail
    assert "o step was trained" not in shown
    assert "never evaluated" not in shown
    if "has_unread_steps" in facts:
        assert "the log may hold steps in a format that is not known" in report.summary
        assert report_findings(make([], facts)).state.text == "No step found"


def test_a_run_evaluated_only_after_its_loss_became_nan_was_evaluated(make):
    records = [record for step in (100, 200, 300) for record in (train(step, loss=None), evaluation(step, bleu=0.0))]
    report = report_findings(make(records, {"first_nan_step": 100}))
    assert "never evaluated" not in json.dumps(report.to_json())
    assert "it was evaluated only after its loss became NaN" in report.answers[2].answer
    (warning,) = [each for each in report.warnings if "not a number" in each.message]
    assert "not a number" not in warning.detail


def test_the_learning_rate_at_the_first_nan_counts_as_its_cause(make):
    findings = make([train(10, loss=None, learning_rate=4.5e11)], {"first_nan_step": 10})
    assert "a learning rate that is too high (4.5e+11)" in report_findings(findings).summary


def test_that_a_run_has_not_ended_is_said_once(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.metrics.write_text(json.dumps(train(100)) + "\n")
    run.config.write_text("")
    findings = Findings(replace(read_evidence(run), state="running"))
    report = report_findings(findings)
    assert report.state.text.startswith("Running")
    assert not any("not ended" in warning.message for warning in report.warnings)


def test_a_time_of_the_last_steps_only_is_no_time_of_the_run(make):
    records = [train(step, seconds_per_step=None, time=None) for step in (500, 1000)]
    facts = {"clock": "reconstructed", "mean_seconds_per_step": 36.0, "timed_steps": 300, "is_finished": True}
    records.insert(1, {"kind": "restart", "step": 700, "cause": "continued from a checkpoint"})
    report = report_findings(make(records, facts))
    assert report.answers[0].answer.startswith(
        "Not known exactly: the last 300 of 1,000 steps took 3.0 hours. At that speed all took about 10.0 hours"
    )
    assert "This took about 10.0 hours" in report.summary
    assert not any("lost" in message for message in report.answers[0].evidence)


def test_a_log_whose_middle_is_missing_did_not_stand_still(make):
    records = [train(step, time=1e9 + step) for step in range(100, 2_001, 100)]
    records.append(evaluation(9_000, loss=2.0, time=1e9 + 90_000))
    findings = make(records, {"started": 1e9})
    report = report_findings(findings)
    assert any("no training between steps 2,000 and 9,000" in warning.message for warning in report.warnings)
    assert "stood still" not in report.answers[0].answer
    assert findings.time_use.seconds["unseen"] == pytest.approx(88_000)


def test_the_steps_of_a_gap_do_not_count_for_the_mean_time(make):
    records = [train(step, seconds_per_step=0.03) for step in range(100, 2_001, 100)]
    records.append(train(20_000, seconds_per_step=0.0001))
    assert make(records).step_times.mean == pytest.approx(0.03)


def test_an_excerpt_with_a_gap_still_begins_midway(make):
    steps = [*range(2_900, 3_001, 50), *range(5_800, 6_001, 50)]
    assert make([train(step) for step in steps], {"begins_midway": True}).evidence.unseen_steps == 2_850


def test_one_evaluation_in_an_excerpt_is_no_measure_of_how_often_there_are(make):
    records = [train(step) for step in range(9_800, 10_101, 100)]
    records.insert(3, evaluation(10_000, loss=0.13, bleu=0.0, seconds=300.0))
    findings = make(records, {"begins_midway": True, "loss_unit": "nats per token"})
    assert findings.seconds_per_further_step == pytest.approx(1.0)
    assert any("BLEU is 0 although the dev loss is 0.13" in each.message for each in report_findings(findings).warnings)


def test_a_run_without_scores_of_translations_is_judged_by_another(make):
    scores = [(1_000, 0.32, 0.789), (2_000, 0.36, 0.743), (3_000, 0.39, 0.744)]
    records = [evaluation(step, loss=loss, other_scores={"gen_len": 9.0, "wer": wer}) for step, loss, wer in scores]
    report = report_findings(make(records))
    assert "a dev loss of 0.3900 and WER 0.7440 on the dev set" in report.summary
    assert "step 2,000 (WER 0.7430, the best)" in report.summary
    alone = report_findings(make([evaluation(1_000, loss=1.6, other_scores={"rouge1": 41.6, "rougeL": 29.5})]))
    assert "ROUGE-L 29.50" in alone.summary


def test_what_failed_in_another_launch_is_no_warning_of_this_run(make):
    killed = {"what": "The GPU ran out of memory.", "cause": "", "evidence": "OOM", "launch": 2, "is_fatal": True}
    launches = [{"number": 1, "end": "finished", "first_step": 100, "last_step": 200}, {"number": 2, "end": "failed"}]
    findings = make([train(100), train(200)], failures=[killed], launches=launches)
    assert findings.evidence.fatal_failure is None
    report = report_findings(findings)
    assert report.state.text == "Finished"
    assert not any("memory" in warning.message for warning in report.warnings)


# Forecasts and scores


def test_a_forecast_that_says_nothing_is_not_in_the_table(make, monkeypatch):
    findings = make(curve_of(RISING))
    (table,) = answer_trained(findings).tables
    assert [column for column in table.columns if "interval" not in column] == [
        "more steps", "loss", "BLEU", "time", "cost"
    ]  # fmt: skip
    after = Forecast.after

    def useless_bleu(self, steps):
        return replace(after(self, steps), is_useful=self.figure == "loss" and steps < 20_000)

    monkeypatch.setattr(Forecast, "after", useless_bleu)
    (table,) = answer_trained(findings).tables
    assert "BLEU" not in table.columns
    assert all(int(row[0].replace(",", "")) < 20_000 for row in table.rows)
    monkeypatch.setattr(Forecast, "after", lambda self, steps: replace(after(self, steps), is_useful=False))
    answer = answer_trained(findings)
    assert not answer.tables
    assert "The curves do not show what 2,000 more steps would bring." in answer.answer


def test_summary_and_tiles_show_the_same_score_with_the_same_digits(make):
    records = curve_of([0.0, 0.0, 0.0])
    for number, record in enumerate(each for each in records if each["kind"] == "evaluation"):
        record["chrf"] = 10.0 + number
    report = report_findings(make(records))
    assert report.figures["chrF"] == "12.00"
    assert "BLEU" not in report.figures
    assert "chrF 12.00 on the dev set" in report.summary
    low = report_findings(make(curve_of([0.3, 0.5, 0.62])))
    assert low.figures["BLEU"] == "0.62"


def test_bleu_that_is_always_zero_is_doubted_and_not_forecast(make):
    report = report_findings(make(curve_of([0.0] * 8)))
    assert any(warning.message.startswith("BLEU is 0 in all 8 evaluations") for warning in report.warnings)
    assert "levelled off" not in json.dumps(report.to_json())
    few = report_findings(make(curve_of([0.0, 0.0])))
    assert not any("BLEU is 0" in warning.message for warning in few.warnings)


# What to do next


def test_what_ended_a_run_is_fixed_before_it_goes_on(make):
    failure = {"what": "The GPU ran out of memory.", "cause": "", "evidence": "OOM", "is_fatal": True}
    died = report_findings(make(curve_of(RISING), {"steps_planned": 90_000}, failures=[failure]))
    assert "Next: fix what ended the run, then continue training." in died.summary
    stopped = failure | {"what": "A user or a scheduler stopped the run."}
    report = report_findings(make(curve_of(RISING), {"steps_planned": 90_000}, failures=[stopped]))
    assert "Next: continue training." in report.summary


def test_a_log_that_begins_midway_is_described_in_order(make):
    report = report_findings(make(curve_of(RISING)[40:], {"begins_midway": True, "steps_planned": 90_000}))
    assert "for 30,000 steps of 90,000 planned (33%); this log shows the last 10,000." in report.summary
    assert "What this log shows took 2.8 hours" in report.summary


def test_a_run_of_one_step_is_not_told_to_evaluate_more(make):
    assert "Next: find out why it made only 1 step" in report_findings(make([train(1)])).summary


def test_a_comparison_has_the_same_losses_in_words_and_table_and_does_not_invent_settings(make, tmp_path):
    runs = []
    for name, above in (("long", 0.0), ("short", 0.1)):
        records = curve_of(RISING, [2.0 + above + 3.0 / number**0.5 for number in range(1, 31)])
        run = RunFolder(make(records if name == "long" else records[:30]).evidence.run.path.rename(tmp_path / name))
        runs.append(Findings(read_evidence(run)))
    comparison = compare_runs(runs)
    rows = {row[0]: row[1:] for row in comparison.sections[0].tables[0].rows}
    assert rows["dev loss at step 15,000"] == ["2.7746", "2.8746"]
    assert "lowest dev loss: 2.7746, 0.1000 below short" in comparison.summary
    assert comparison.sections[-1].messages == ["Not known: the files of long and short hold no settings."]


def test_a_cut_log_does_not_say_how_the_run_went_on(make):
    report = report_findings(make(curve_of([20.0, 21.0, 22.0]), {"is_cut": True}))
    assert "for 3,000 steps, where the file is cut off" in report.summary
    assert "Next: read the whole log" in report.summary


def test_a_launch_that_trained_and_died_is_named_beside_the_last_one(make):
    launches = [
        {"number": 1, "first_step": 100, "last_step": 2_900, "end": "failed", "reason": "A GPU ran out of memory."},
        {"number": 2, "first_step": 1_000, "last_step": 3_000},
    ]
    report = report_findings(make(curve_of([20.0, 21.0, 22.0]), launches=launches))
    assert "The log holds 2 launches (number 1: out of GPU memory at step 2,900)." in report.summary


# Excerpts


def test_times_of_the_last_step_alone_are_no_duration(make):
    found = make([evaluation(55_000, bleu=30.0), evaluation(55_000, loss=2.0)], {"is_finished": True})
    report = report_findings(found)
    assert report.answers[0].answer == "Not known."
    assert "This took" not in report.summary


def test_a_log_of_evaluations_names_the_steps_that_its_time_is_about(make):
    found = make([evaluation(step, bleu=20.0 + step / 1000) for step in (5_000, 10_000)])
    report = report_findings(found)
    assert report.answers[0].answer.startswith("83 minutes (1:23:20) from step 5,000 to 10,000")
    assert "From step 5,000 on, it took 83 minutes" in report.summary


def test_a_run_without_a_known_plan_did_not_end_as_planned(make):
    report = report_findings(make([train(100), train(200)], {"is_finished": True}))
    assert report.state.detail == "Training ended by itself, after 200 steps."
    assert "all of its" not in report.answers[1].answer


def test_evaluations_without_results_are_not_denied(make):
    report = report_findings(make([train(100), train(200)], {"has_unread_evaluations": True}))
    shown = json.dumps(report.to_json())
    assert "never evaluated" not in shown
    assert "It was evaluated, but the log does not show the results" in report.summary


def test_an_interval_with_missing_lines_is_no_standstill(make):
    steps = [500, 1000, 1500, 30_000, 30_500]
    records = [train(step, time=BEGAN + step + 1000 * (step > 1500)) for step in steps]
    found = make(records, {"started": BEGAN})
    assert found.time_use.seconds["standstill"] == 0
    assert found.wall_seconds == pytest.approx(31_500)


def test_one_logged_interval_is_no_distribution(make):
    report = report_findings(make([train(100, learning_rate=1e-3)]))
    assert report.answers[9].answer == "1 s, by the only logged interval."
    assert report.answers[5].answer == "One value is known: 1.000e-03 at step 100."


@pytest.mark.parametrize(
    ("trainer", "name"), [("Marian", "MODEL.npz.optimizer.npz"), ("fairseq", "checkpoint_best.pt")]
)
def test_the_files_of_a_checkpoint_are_named(make, trainer, name):
    report = report_findings(make([train(100)], trainer=trainer))
    assert name in json.dumps(report.to_json()) or name in str(report.answers[7].tables)


def test_a_rate_that_falls_slowly_did_not_stay(make):
    report = report_findings(make([train(100, learning_rate=4.06e-4), train(200, learning_rate=4.00e-4)]))
    assert report.answers[5].answer == "It hardly changed: from 4.060e-04 to 4.000e-04."


def test_a_rate_that_stays_at_its_peak_is_described_in_one_sentence(make):
    rates = [1e-4, 2e-4, 3e-4, 3e-4, 3e-4]
    records = [train(100 * number, learning_rate=rate) for number, rate in enumerate(rates, 1)]
    answer = report_findings(make(records)).answers[5].answer
    assert answer == "It rises to 3.000e-04 at step 300 and stays there until step 500."


def test_times_begin_with_the_first_record_and_not_with_a_restart(make):
    restart = {"kind": "restart", "step": 0, "time": BEGAN}
    found = make([restart, evaluation(5_000, bleu=20.0), evaluation(10_000, bleu=21.0)])
    assert found.timed_from_step == 5_000


@pytest.mark.parametrize(
    ("advice", "said"),
    [("With a faster link it is 1 s.", "with a faster link it is 1 s."), ("NCCL is slow.", "NCCL is slow.")],
)
def test_advice_goes_on_in_the_same_sentence(advice, said):
    assert _to_reduce_waiting(advice) == f"To reduce waiting: {said}"
