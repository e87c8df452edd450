"""Single answers about runs whose true answers are known."""

import json

import numpy as np
import pytest
from run_folders import (
    NUM_PARAMETERS,
    NUM_STEPS,
    SLOW_STEP,
    evaluation_record,
    own_records,
    train_record,
    write_config,
    write_own_run,
    write_records,
)

from dragoman.report.answers.files import answer_checkpoint_files, answer_checkpoint_size, answer_training_set
from dragoman.report.answers.learning import answer_trained
from dragoman.report.answers.learning_rate import answer_learning_rate
from dragoman.report.answers.network import ONE_WORKER, answer_network, answer_traffic
from dragoman.report.answers.overfitting import answer_overfitting
from dragoman.report.answers.speed import (
    answer_devices,
    answer_duration,
    answer_steps,
    explain_outliers,
)
from dragoman.report.compose import report_findings
from dragoman.report.durations import describe_exactly
from dragoman.report.evidence import StatedFacts, read_evidence
from dragoman.report.findings import Findings
from dragoman.report.learning_rates import LearningRates, follow_plateaus
from dragoman.report.rendering import describe_bottleneck
from dragoman.run.config import TrainingSettings
from dragoman.run.folder import RunFolder


def findings_of(run: RunFolder, **known) -> Findings:
    return Findings(read_evidence(run, StatedFacts(**known)))


def text_of(answer) -> str:
    """Returns all text of an answer, also that of tables."""
    tables = [[table.title, *table.columns, *(cell for row in table.rows for cell in row)] for table in answer.tables]
    return json.dumps([answer.answer, list(answer.evidence), list(answer.missing), tables], ensure_ascii=False)


@pytest.fixture(scope="module")
def own(own_run) -> Findings:
    return findings_of(own_run)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 seconds"), (119, "119 seconds"), (600, "10 minutes"), (9_000, "2.5 hours (2:30:00)")]
)
def test_durations_in_words(seconds, words):
    assert words in describe_exactly(seconds)


def test_duration_with_restart_phases_and_cost(own):
    answer = answer_duration(own)
    assert "5.9 hours" in answer.answer
    assert "10,000 steps" in answer.answer
    assert own.cost == pytest.approx(6.0 * 21_101 / 3600, rel=0.001)
    assert f"{own.cost:.2f}" in answer.answer
    said = text_of(answer)
    assert "400 steps had to be trained again" in said
    assert "18 minutes" in said
    assert "rank 3 on node2" in said
    times, parts = answer.tables
    assert [row[0] for row in times.rows[:2]] == ["training steps", "steps trained again and downtime after faults"]
    assert "network" in parts.rows[0][0]
    for table in (times, parts):
        shares = [float(row[2].removesuffix("%")) for row in table.rows]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(100, abs=0.5)
    assert answer.confidence == 1


def test_a_resumed_run_has_all_its_steps_and_no_time_of_the_pause(run):
    records = [
        {"kind": "checkpoint", "step": 0, "time": 0.0},
        train_record(43, time=100.0),
        {"kind": "restart", "step": 43, "time": 90_100.0},
        train_record(50, time=90_110.0),
        train_record(78, time=90_160.0),
    ]
    findings = findings_of(write_records(write_config(run), records), price_per_hour=36.0)
    answer = answer_duration(findings)
    assert answer.answer.startswith("3 minutes (0:02:40) for 78 steps")
    assert findings.cost == pytest.approx(1.6)
    said = text_of(answer)
    assert "continued once by a person; the 25.0 hours" in said
    assert "had to be trained again" not in said


def test_steps_that_were_trained_again_are_lost_time_and_count_once(run):
    records = [
        {"kind": "checkpoint", "step": 0, "time": 0.0},
        *(train_record(step, time=2.0 * step, seconds_per_step=2.0) for step in (20, 40)),
        {"kind": "restart", "step": 20, "cause": "killed", "time": 90.0},
        train_record(40, time=130.0, seconds_per_step=2.0),
    ]
    answer = answer_duration(findings_of(write_records(write_config(run), records)))
    assert "for 40 steps" in answer.answer
    lost = "steps trained again and downtime after faults"
    assert answer.tables[0].rows == [("training steps", "0:01:20", "61.5%"), (lost, "0:00:50", "38.5%")]


def test_a_log_that_begins_midway_says_which_steps_it_has(run):
    run.path.mkdir()
    write_records(run, [train_record(step) for step in range(5_100, 9_001, 100)])
    run.imported.write_text(json.dumps({"trainer": "Marian", "facts": {}}))
    assert "for the last 4,000 of 9,000 steps (the log begins at 5,001)" in answer_duration(findings_of(run)).answer


def test_a_stated_price_overrides_the_settings(own):
    assert findings_of(own.evidence.run, price_per_hour=12.0).cost == pytest.approx(2 * own.cost)


def test_without_a_price_the_cost_is_asked_for(run):
    answer = answer_duration(findings_of(write_own_run(run.path, own_records(500))))
    assert "--price-per-hour" in text_of(answer)


def test_without_a_clock_the_step_times_are_added_up(imported_run):
    answer = answer_duration(findings_of(imported_run, price_per_hour=10))
    assert "5.4 hours" in answer.answer
    assert "53.89" in answer.answer
    assert "no clock" in text_of(answer)
    assert answer.confidence < 1


def test_more_steps_have_their_time_and_cost(own):
    answer = answer_trained(own)
    assert answer.answer.startswith("No")
    assert "1,000 more steps: dev loss 1.898 → 1.88" in answer.answer
    assert "34 min" in answer.answer  # 2 s per step, and an evaluation of 10 s every 500 steps
    assert "cost 3.37" in answer.answer
    (table,) = answer.tables
    assert [row[0] for row in table.rows] == ["1,000", "5,000", "10,000"]
    assert {chart.key for chart in answer.charts} == {"loss", "bleu"}
    assert 0.5 < answer.confidence < 1


def test_a_flat_run_is_fully_trained(run):
    noise = [0.0004, -0.0003, 0.0001, -0.0004, 0.0002]
    records = [
        evaluation_record(step, loss=1.5 + noise[step // 500 % 5] + 3.0 * 0.2 ** (step / 500), bleu=26.0)
        for step in range(500, 20_001, 500)
    ]
    write_records(write_config(run, training={"schedule": "fixed", "warmup_steps": 0}), records)
    assert answer_trained(findings_of(run)).answer.startswith("Effectively yes")


@pytest.mark.parametrize(
    ("num_evaluations", "words"),
    [(0, "it was never evaluated"), (1, "it was evaluated once"), (4, "it was evaluated 4 times")],
)
def test_too_few_evaluations_are_counted(run, num_evaluations, words):
    records = [evaluation_record(500 * (number + 1)) for number in range(num_evaluations)]
    answer = answer_trained(findings_of(write_records(run, [train_record(100), *records])))
    assert words in answer.answer
    assert ("at least 5" in answer.answer) == bool(num_evaluations)
    assert answer.confidence == 0
    assert answer.missing


def test_overfitting_is_seen_and_the_best_checkpoint_named(run):
    noise = [0.004, -0.006, 0.002, 0.005, -0.003, -0.002, 0.001]
    records = []
    for number in range(1, 31):
        loss = 2.0 + abs(number - 12) * 0.02 + noise[number % 7]
        bleu = 20 - 0.1 * abs(number - 12)
        records.append(evaluation_record(500 * number, loss=loss, bleu=bleu, train_sample_loss=2.5 - 0.05 * number))
    findings = findings_of(write_records(write_config(run), records))
    answer = answer_overfitting(findings)
    assert answer.answer.startswith("Yes")
    assert findings.overfitting.best_step in (5_500, 6_000, 6_500)
    assert "use the checkpoint of step 6,000 (BLEU 20.00, the best)" in answer.answer
    assert answer_trained(findings).answer.startswith("Yes, and it has been overfitting since step")


def test_a_score_that_was_best_later_than_the_loss_and_fell_since_does_not_speak_for_more_steps(run):
    records = []
    for number in range(1, 25):
        noise = 0.01 * (number * 7 % 5 - 2)
        loss, bleu = 1.7 + 0.02 * abs(number - 8) + noise / 10, 27.9 - 0.1 * abs(number - 14) + noise
        records.append(evaluation_record(5_000 * number, loss=loss, bleu=bleu))
    findings = findings_of(write_records(write_config(run), records))
    trained, overfitting = answer_trained(findings), answer_overfitting(findings)
    assert trained.answer.startswith("Yes, and it has been overfitting since step 70,000: more steps would make it")
    assert "BLEU +" not in trained.answer
    assert "do not show" not in trained.answer
    assert "and BLEU has become worse since step 70,000 (27.91 → 26.91); use the checkpoint" in overfitting.answer


def test_a_certain_but_tiny_rise_is_not_called_chance(run):
    losses = [2.0 + max(0.0, 6.0 - number) * 0.1 + max(0, number - 6) * 0.0001 for number in range(1, 31)]
    records = [
        evaluation_record(500 * number, loss=loss, train_sample_loss=loss) for number, loss in enumerate(losses, 1)
    ]
    findings = findings_of(write_records(write_config(run), records))
    assert findings.overfitting.rise_p < 0.04
    assert answer_overfitting(findings).answer.startswith(
        "No: the dev loss hardly rises (by 0.0024 since its lowest value); "
    )


def test_a_run_that_gets_better_does_not_overfit(own):
    answer = answer_overfitting(own)
    assert not answer.answer.startswith("Yes")
    assert "10,000" in answer.answer
    assert "Best BLEU: 24.01" in text_of(answer)
    assert not answer.missing


def test_losses_that_are_not_comparable_are_reported_as_such(imported_run):
    assert "dropout" in text_of(answer_overfitting(findings_of(imported_run)))


def test_busy_gpus_that_wait_are_explained(own):
    answer = answer_devices(own)
    assert "99%" in answer.answer
    assert "waiting" in answer.answer
    said = text_of(answer)
    assert "node2 GPU 1: 99%" in said
    assert "waits for the network" in said
    (chart,) = answer.charts
    assert len(chart.series) == 4


def test_without_gpus_the_answer_is_about_cpus(run):
    run = write_own_run(run.path, [train_record(100)])
    for path in run.system_files():
        samples = [json.loads(line) | {"gpus": []} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    answer = answer_devices(findings_of(run))
    assert "CPUs" in answer.answer
    assert "30%" in answer.answer


def test_the_network_by_measurement(own):
    answer = answer_network(own)
    assert answer.answer.startswith("Yes")
    assert "57%" in answer.answer
    assert "MB/s" in text_of(answer)
    assert "Mbit/s" in text_of(answer)
    assert not answer.missing


def test_the_estimate_of_the_network_lists_its_assumptions(imported_run):
    answer = answer_network(findings_of(imported_run, link="1000Mbit", gpu="V100"))
    assert answer.answer.startswith("Yes")
    assert "365.3 MB" in text_of(answer)
    assert any(sentence.startswith("Assumed:") for sentence in answer.evidence)
    assert answer.missing
    assert not answer_network(findings_of(imported_run, link="100gbit")).answer.startswith("Yes")


def test_without_a_link_the_answer_asks_for_it(imported_run):
    answer = answer_network(findings_of(imported_run))
    assert "--link" in answer.answer
    assert answer.confidence == 0


def test_a_rate_that_follows_plateaus_is_told_from_its_records():
    settings = TrainingSettings(schedule="plateau", learning_rate=1e-3, warmup_steps=2)
    recorded = np.array([2.0, 10.0, 20.0, 30.0]), np.array([1e-3, 1e-3, 5e-4, 2.5e-4])
    rates = LearningRates(follow_plateaus(settings, recorded), settings, None, recorded, "")
    assert [rates.rate(step) for step in (0, 1, 9, 10, 19, 25, 99)] == [5e-4, 1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4]
    assert rates.cuts == [(20, 5e-4), (30, 2.5e-4)]
    assert rates.typical_deviation is None


def test_the_formula_of_the_learning_rate_with_this_runs_numbers(own):
    answer = answer_learning_rate(own)
    assert "9.882e-04 (step 8,000)" in answer.answer
    assert "8.839e-04 at the end" in answer.answer
    assert answer.evidence[0].startswith("rate(s) = 2 · 512^-0.5 · min((s+1) · 8000^-1.5, (s+1)^-0.5)")
    assert "does not react to the loss" in text_of(answer)
    assert answer.confidence == 1
    (chart,) = answer.charts
    assert [mark.x for mark in chart.marks] == [8_000]
    formula = next(series for series in chart.series if series.look == "dashed")
    assert formula.y[0] == pytest.approx(1.235e-7, rel=0.001)


def test_a_run_that_ended_during_warm_up(run):
    answer = answer_learning_rate(findings_of(write_own_run(run.path, own_records(2_000))))
    assert "2.471e-04" in answer.answer
    assert "9.882e-04" in answer.answer
    assert "8,000" in answer.answer
    assert "falls" not in answer.answer


def test_rates_that_do_not_follow_the_formula_are_noticed(run):
    records = [train_record(step, learning_rate=1e-4) for step in range(100, 2_001, 100)]
    answer = answer_learning_rate(findings_of(write_own_run(run.path, records)))
    assert "differ from the formula" in text_of(answer)
    assert answer.confidence <= 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schedule": "fixed", "learning_rate": 1e-3, "warmup_steps": 0}, ["1.000e-03", "stays"]),
        (
            {"schedule": "cosine", "learning_rate": 1e-3, "warmup_steps": 100, "minimum_learning_rate": 1e-5},
            ["100 steps of warm-up", "cosine", "1e-05"],
        ),
        ({"maximum_learning_rate": 5e-4}, ["never above 0.0005", "5.000e-04"]),
    ],
)
def test_other_schedules_are_described_with_their_numbers(run, settings, words):
    write_own_run(run.path, [evaluation_record(NUM_STEPS)], training=settings)
    said = text_of(answer_learning_rate(findings_of(run)))
    for each in words:
        assert each in said


def test_a_single_rate_shows_no_course(run):
    records = [{"kind": "train", "step": 500, "learning_rate": 1.5e-5}]
    answer = answer_learning_rate(findings_of(write_records(run, records)))
    assert answer.answer == "One value is known: 1.500e-05 at step 500."


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (lambda step: 1e-3 * 100 / step, "It begins at 1.000e-03 and falls to 1.111e-04 at the end."),
        (lambda step: 1e-3 - step * 1e-8, "It falls slowly, from 9.990e-04 to 9.910e-04."),
        (lambda step: 1e-3 - step * 1e-20, "It stayed at 1.000e-03."),
        (lambda step: step * 1e-6, "It rises to 9.000e-04 at step 900."),
        (
            lambda step: 3e-4 * min(1, (250 / step) ** 0.5),
            "It begins at 3.000e-04, stays there until step 200, and falls with one over the square root of the step "
            "to 1.581e-04 at the end.",
        ),
        (
            lambda step: min(step, 300, 1_000 - step) * 1e-6,
            "It rises to 3.000e-04 at step 300, stays there until step 700, and falls to 1.000e-04 at the end.",
        ),
    ],
)
def test_rates_without_a_formula_are_described_as_recorded(run, rate, said):
    records = [{"kind": "train", "step": step, "learning_rate": rate(step)} for step in range(100, 1_000, 100)]
    answer = answer_learning_rate(findings_of(write_records(run, records)))
    assert answer.answer == said
    assert "The formula of its schedule." in answer.missing


def test_the_training_set_in_bytes_and_lines(own):
    answer = answer_training_set(own)
    for words in ("1.3 GB", "4,524,868", "596.0 MB", "687.0 MB"):
        assert words in answer.answer
    said = text_of(answer)
    for words in ("37,234", "32,768", "length_words", "37,000", "605.0 MB"):
        assert words in said


def test_the_training_set_of_a_log_by_its_files(tmp_path, imported_run):
    (tmp_path / "train.en").write_bytes(b"x" * 2_000_000)
    imported = json.loads(imported_run.imported.read_text())
    imported["facts"]["training_files"] = {"source": str(tmp_path / "train.en"), "target": "/gone"}
    run = write_records(RunFolder(tmp_path / "run"), [train_record(100)])
    run.imported.write_text(json.dumps(imported))
    assert "2.0 MB" in answer_training_set(findings_of(run)).answer


def test_the_files_of_a_checkpoint_and_what_each_is_for(own):
    answer = answer_checkpoint_files(own)
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        assert name in answer.answer
    (table,) = answer.tables
    assert all(purpose for _, purpose, _ in table.rows)
    sizes = {name: size for name, _, size in table.rows}
    assert sizes["model.safetensors"] == "243.5 MB"
    assert "step-00005000" in table.title


def test_bytes_for_each_parameter(own):
    answer = answer_checkpoint_size(own)
    assert "730.6 MB" in answer.answer
    assert f"12.0 bytes for each of {NUM_PARAMETERS:,} parameters" in answer.answer
    assert "1.5 GB in total" in text_of(answer)


def test_size_of_deleted_checkpoints_comes_from_records(run):
    findings = findings_of(write_records(write_config(run), own_records(2_500)))
    assert "730.6 MB" in answer_checkpoint_size(findings).answer
    assert answer_checkpoint_files(findings).confidence == 0


def test_checkpoint_size_of_openseq2seq_is_estimated(imported_run):
    findings = findings_of(imported_run)
    assert "852.3 MB" in answer_checkpoint_size(findings).answer
    assert "14 bytes" in answer_checkpoint_size(findings).answer
    files = answer_checkpoint_files(findings)
    for ending in (".data-00000-of-00001", ".index", ".meta"):
        assert ending in files.answer


def test_step_times_and_an_outlier(own):
    answer = answer_steps(own)
    assert "2.04 s on average" in answer.answer
    assert own.step_times.median == pytest.approx(2.0, abs=0.01)
    assert explain_outliers(own) == {"with an evaluation": 1}
    (table,) = answer.tables
    assert table.rows[0][0] == f"{SLOW_STEP:,}"
    assert table.rows[0][2] == "3.00 ×"


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        ({"kind": "checkpoint", "step": 1_500}, "with a checkpoint"),
        ({"kind": "restart", "step": 1_500}, "with a restart"),
        ({"kind": "evaluation", "step": 1_500}, "with an evaluation"),
        ({"kind": "prediction", "step": 1_500}, "without a known cause"),
    ],
)
def test_slow_intervals_are_explained_by_what_happened_then(run, event, cause):
    records = [train_record(step, seconds_per_step=9.0 if step == 1_600 else 2.0) for step in range(100, 3_001, 100)]
    records.insert(15, event)
    assert explain_outliers(findings_of(write_records(run, records))) == {cause: 1}


def test_a_slow_first_interval_is_explained_by_the_start(run):
    records = [train_record(step, seconds_per_step=9.0 if step == 100 else 2.0) for step in range(100, 3_001, 100)]
    assert explain_outliers(findings_of(write_records(run, records))) == {"at the start": 1}


def test_a_drift_is_noticed(run):
    records = [train_record(step, seconds_per_step=2.0 + step / 2_000) for step in range(100, 2_001, 100)]
    said = text_of(answer_steps(findings_of(write_records(run, records))))
    assert "worth investigating" in said
    assert "no drift" not in said


def test_bytes_of_a_step_against_theory(own):
    answer = answer_traffic(own)
    assert "100% of the theoretical amount" in answer.answer
    said = text_of(answer)
    assert "365.3 MB" in said
    assert "1,461 Mbit/s" in said
    (chart,) = answer.charts
    assert {series.look for series in chart.series} == {"points", "dashed"}


def test_one_worker_has_no_traffic(run):
    records = [train_record(step, work_seconds_by_rank=[1.0], traffic=None) for step in (100, 200)]
    answer = answer_traffic(findings_of(write_records(run, records)))
    assert "one worker" in answer.answer
    assert answer.confidence == 1


def test_other_traffic_of_one_worker_is_not_its_own(run):
    records = [train_record(step, work_seconds_by_rank=[1.0]) for step in range(100, 3_000, 100)]
    answer = answer_traffic(findings_of(write_records(run, records)))
    assert answer.answer == ONE_WORKER
    assert not answer.evidence
    assert not answer.charts


def test_four_intervals_do_not_relate_traffic_and_step_time(run):
    records = [
        train_record(100 * number, seconds_per_step=2.0 + number, traffic={"sent_bytes_per_second": 1e8 + 1e6 * number})
        for number in range(1, 6)
    ]
    said = text_of(answer_traffic(findings_of(write_own_run(run.path, records))))
    assert "5 intervals are too few to relate step time and traffic." in said
    assert "correlation" not in said


BUSY = {
    "host": "node1", "num_cores": 2, "own_cores": 1.0, "other_cores": 1.0, "waiting_threads": 1.0,
    "programs": [{"name": "python", "pid": 123, "cores": 1.0}],
}  # fmt: skip


def test_other_programs_are_named_in_the_answers_about_speed(run):
    parts = {"forward": 1.0, "backward": 1.0}
    records = [
        train_record(step, attribution=parts, work_seconds_by_rank=[2.0], load=[BUSY])
        for step in range(100, 1_500, 100)
    ]
    records[8]["seconds_per_step"] = 20.0
    findings = findings_of(write_own_run(run.path, records))
    assert findings.verdict.bottleneck == "other_programs"
    assert "python (process 123)" in answer_network(findings).answer
    assert "other programs used 1.0 of 2 cores" in text_of(answer_devices(findings))
    assert list(explain_outliers(findings)) == ["while other programs used the cores"]
    report = report_findings(findings)
    assert report.figures["Limited by"] == "other programs"
    assert "end the other programs" in report.facts["next"]
    assert describe_bottleneck(findings.verdict).startswith("Other programs, 50% of the time")


def test_traffic_of_a_log_by_theory(imported_run):
    answer = answer_traffic(findings_of(imported_run))
    assert "365.3 MB" in answer.answer
    assert answer.missing


def test_a_stated_price_applies_to_the_whole_run(run):
    write_own_run(run.path)
    given = findings_of(run, price_per_hour=100.0)
    assert given.cost == pytest.approx(100.0 * given.wall_seconds / 3600)
    assert findings_of(run, price_per_hour=0.0).cost == 0


def test_without_measured_traffic_the_chart_shows_link_speeds(imported_run):
    (chart,) = answer_traffic(findings_of(imported_run, link="1000Mbit")).charts
    bytes_line, step_line = chart.series
    assert len(set(step_line.y)) == 1
    assert bytes_line.y[0] > bytes_line.y[-1]
    assert [mark.x for mark in chart.marks] == [125.0]
