"""Lines of OpenNMT-py 1 to 3 and of Eole, as real runs wrote them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing.imported_run import evaluation_step
from dragoman.importing.trainers.opennmt import OpenNmtReader, is_own_line

START = """\
  (generator): Sequential(
    (0): Linear(in_features=512, out_features=50004, bias=True)
    (1): Cast()
[2020-02-09 07:29:01,570 INFO] * number of parameters: 117814100
[2020-02-09 07:29:02,664 INFO] Starting training on GPU: [0, 1]
[2020-02-09 07:29:02,664 INFO] Start training loop and validate every 500 steps...
[2020-02-09 07:29:02,665 INFO] Loading dataset from data/demo.train.0.pt
[2020-02-09 07:29:09,291 INFO] number of examples: 368702""".splitlines()
STEPS = [
    "[2020-02-09 07:32:52,596 INFO] Step 450/100000; acc:   8.20; ppl: 228.23; xent: 5.43; lr: 0.00006; "
    "15201/15954 tok/s;    230 sec",
    "[2020-02-09 07:33:16,963 INFO] Step 500/100000; acc:  10.64; ppl: 204.53; xent: 5.32; lr: 0.00006; "
    "15309/16036 tok/s;    254 sec",
]
VALID = """\
[2020-02-09 07:33:17,077 INFO] number of examples: 10264
[2020-02-09 07:33:27,536 INFO] Validation perplexity: 500.32
[2020-02-09 07:33:27,536 INFO] Validation accuracy: 12.0461
[2020-02-09 07:33:28,002 INFO] Saving checkpoint models/yo_step_500.pt""".splitlines()
VALID_3 = """\
[2025-02-23 11:55:46,604 INFO] valid stats calculation
                           took: 29.5 s.
[2025-02-23 11:55:46,604 INFO] The translation of the valid dataset for dynamic scoring
                               took : 10.5 s.
[2025-02-23 11:55:46,605 INFO] UPDATING VALIDATION BLEU
[2025-02-23 11:55:46,605 INFO] validation BLEU: 22.5
[2025-02-23 11:55:46,606 INFO] Train perplexity: 1672.87
[2025-02-23 11:55:46,606 INFO] Train accuracy: 10.7949
[2025-02-23 11:55:46,607 INFO] Validation perplexity: 267.466
[2025-02-23 11:55:46,607 INFO] Validation accuracy: 18.6711""".splitlines()
STEP_3 = (
    "[2024-06-07 10:00:00,000 INFO] Step 550/10000; acc: 12.3; ppl: 345.6; xent: 5.84; aux: 0.000; lr: 1.00e-04; "
    "sents:    3200; bsz:  123/ 130/ 4; 1234/1345 tok/s;     34 sec;"
)
DATA = Path(__file__).parents[3] / "data/eole"
TERMINAL = (DATA / "terminal_0.6.log").read_text(encoding="utf-8").splitlines()
"""What Eole 0.6 printed in two launches that were run for these tests: 150 steps, then 50 more."""
LOG_FILE = (DATA / "log_file_0.6.log").read_text(encoding="utf-8").splitlines()
"""What it wrote to its log_file: a launch that failed, and the start of one whose steps only the terminal showed."""
read = reading_with(OpenNmtReader)


def test_training_lines():
    run = read(*STEPS)
    first, second = of_kind(run, "train")
    assert (first["step"], first["perplexity"]) == (450, 228.23)
    assert first["loss"] == pytest.approx(math.log(228.23))
    assert first["accuracy"] == pytest.approx(0.082)
    assert (first["learning_rate"], first["target_tokens_per_second"]) == (6e-05, 15954)
    assert second["seconds_per_step"] == pytest.approx(24.367 / 50)
    assert second["training_seconds"] == 254
    assert run.facts["log_every"] == 50
    assert run.trainer == "OpenNMT-py"


def test_the_longer_lines_of_version_3():
    (record,) = of_kind(read(STEP_3), "train")
    assert (record["step"], record["loss"], record["learning_rate"]) == (550, pytest.approx(math.log(345.6)), 0.0001)
    assert (record["target_tokens_per_second"], record["training_seconds"]) == (1345, 34)


@pytest.mark.parametrize(("perplexity", "loss"), [("345.6", math.log(345.6)), ("9e42", 5.84), ("1.0", 5.84)])
def test_the_printed_loss_counts_where_the_perplexity_says_something_else(perplexity, loss):
    (record,) = of_kind(read(STEP_3.replace("345.6", perplexity)), "train")
    assert record["loss"] == pytest.approx(loss)


def test_a_loss_that_is_not_a_number():
    assert read(STEPS[0], STEPS[1].replace("204.53", "nan").replace("5.32", "nan")).first_nan_step == 500


def test_a_line_without_the_number_of_planned_steps():
    run = read(STEPS[0].replace("450/100000", "450"), STEPS[1].replace("500/100000", "500"))
    assert [record["step"] for record in of_kind(run, "train")] == [450, 500]
    assert not run.facts.keys() & {"steps_planned", "is_finished"}


def test_an_evaluation_follows_its_step():
    run = read(*START, *STEPS, *VALID)
    (record,) = of_kind(run, "evaluation")
    assert record["step"] == 500
    assert record["loss"] == pytest.approx(math.log(500.32))
    assert record["accuracy"] == pytest.approx(0.120461)
    assert [checkpoint["step"] for checkpoint in of_kind(run, "checkpoint")] == [500]


def test_an_evaluation_of_version_3_has_bleu_and_seconds():
    (record,) = of_kind(read(*STEPS, *VALID_3), "evaluation")
    assert (record["bleu"], record["perplexity"], record["seconds"]) == (22.5, 267.466, 40.0)


def test_the_time_of_an_evaluation_is_no_training_time():
    later = STEPS[1].replace("500/", "550/").replace("07:33:16,963", "07:33:52,369")
    run = read(*START, *STEPS, *VALID, later)
    assert of_kind(run, "evaluation")[0]["seconds"] == pytest.approx(10.573, abs=1e-3)
    assert of_kind(run, "train")[2]["seconds_per_step"] == pytest.approx((35.406 - 11.039) / 50, abs=1e-3)
    assert run.facts["step_time_includes_evaluation"] is False


def test_scores_keep_their_names():
    lines = [
        "[2025-02-23 11:55:46,605 INFO] validation TER: 80.5",
        "[2025-02-23 11:55:46,605 INFO] validation COMET: 0.71",
    ]
    (record,) = of_kind(read(*STEPS, *lines, *VALID_3), "evaluation")
    assert (record["ter"], record["bleu"], record["other_scores"]) == (80.5, 22.5, {"COMET": 0.71})


def test_a_score_that_is_printed_twice_is_one_evaluation():
    (record,) = of_kind(read(*STEPS, VALID_3[5].replace("22.5", "20.1"), *VALID_3), "evaluation")
    assert record["bleu"] == 22.5


def test_evaluations_more_frequent_than_log_lines_have_their_own_steps():
    run = read(*START[:-3], START[5].replace("500", "50"), *STEPS, *VALID_3, *VALID_3)
    assert [record["step"] for record in of_kind(run, "evaluation")] == [500, 550]


def test_two_evaluations_are_two_records():
    run = read(*START, *STEPS, *VALID, STEP_3.replace("550", "1000"), *VALID)
    assert [record["step"] for record in of_kind(run, "evaluation")] == [500, 1000]


@pytest.mark.parametrize(
    ("newest", "every", "log_every", "step"),
    [(500, 500, 50, 500), (450, 480, 50, 480), (450, 500, 50, 450), (450, None, 50, 450), (0, 500, 0, 0)],
)
def test_the_step_of_an_evaluation_lies_before_the_next_log_line(newest, every, log_every, step):
    assert evaluation_step(newest, every, log_every) == step


def test_facts():
    facts = read(*START, *STEPS).facts
    assert (facts["parameters"], facts["num_ranks"], facts["num_training_pairs"]) == (117814100, 2, 368702)
    assert (facts["width"], facts["vocab_size"]) == (512, 50004)
    assert (facts["steps_planned"], facts["evaluate_every"]) == (100000, 500)
    assert "is_finished" not in facts
    assert read(STEPS[0].replace("Step 450", "Step 100000")).facts["is_finished"] is True


def test_a_corpus_read_line_by_line_and_a_cpu():
    run = read(
        "[2021-03-21 00:28:51,294 INFO] Loading ParallelCorpus(toy/src-train.txt, toy/tgt-train.txt, align=None)...",
        "[2020-06-03 12:02:18,794 INFO] Starting training on CPU, could be very slow",
    )
    assert run.facts["training_files"] == {"source": "toy/src-train.txt", "target": "toy/tgt-train.txt"}
    assert run.facts["num_ranks"] == 1


def test_a_restart_goes_on_with_the_clock():
    loaded = "[2020-02-09 08:00:00,000 INFO] Loading checkpoint from models/yo_step_500.pt"
    run = read(*STEPS, loaded, STEP_3)
    assert [record["step"] for record in of_kind(run, "restart")] == [500]
    last = of_kind(run, "train")[-1]
    assert last["training_seconds"] == 254 + 34
    assert "seconds_per_step" not in last
    assert run.facts["num_attempts"] == 2


def test_a_step_that_goes_back_is_a_restart():
    assert [record["step"] for record in of_kind(read(*reversed(STEPS)), "restart")] == [450]


def test_eole_is_recognised():
    run = read(
        STEP_3, "[2024-06-07 10:00:00,000 INFO] Saving optimizer and weights to run/step_1000, and symlink to run"
    )
    assert run.trainer == "Eole"
    assert [record["step"] for record in of_kind(run, "checkpoint")] == [1000]


def test_eole_is_recognised_by_its_training_lines():
    assert read(STEP_3).trainer == "Eole"
    assert read(STEP_3.replace("aux: 0.000; ", "")).trainer == "OpenNMT-py"


def test_the_terminal_output_of_two_launches_of_eole():
    run = read(*TERMINAL)
    assert run.trainer == "Eole"
    assert [(launch.first_step, launch.last_step, launch.end) for launch in run.launches] == [
        (10, 150, "finished"),
        (160, 200, "finished"),
    ]
    assert [(record["step"], record["cause"]) for record in of_kind(run, "restart")] == [
        (150, "continued from eolerun/model/step_150")
    ]
    evaluations = of_kind(run, "evaluation")
    assert [record["step"] for record in evaluations] == [50, 100, 150, 200]
    first = evaluations[0]
    assert (first["bleu"], first["ter"]) == (1.5731609609325117, 84.90284005979073)
    assert first["loss"] == pytest.approx(math.log(229.583))
    assert first["seconds"] == pytest.approx(0.0828 + 0.095, abs=1e-3)
    assert [record["step"] for record in of_kind(run, "checkpoint")] == [50, 100, 150, 200]
    facts = run.facts
    assert (facts["parameters"], facts["num_ranks"], facts["accumulation"], facts["vocab_size"]) == (513352, 1, 2, 1864)
    assert (facts["is_finished"], facts["steps_done"], facts["steps_planned"]) == (True, 200, 200)
    assert (facts["metric"], facts["evaluate_every"], facts["log_every"]) == ("perplexity", 50, 10)


def test_a_log_file_of_eole_without_steps_is_cut():
    run = read(*LOG_FILE)
    assert run.trainer == "Eole"
    assert run.facts["is_cut"] is True
    assert any("to the terminal only" in note for note in run.notes)
    assert [launch.end for launch in run.launches] == ["failed", "unknown"]
    assert "Invalid vocab format" in run.launches[0].reason
    assert "is_finished" not in run.facts
    assert read(*(line for line in LOG_FILE if "parameters" in line or "bos_token" in line)).facts["is_cut"] is True


@pytest.mark.parametrize(("planned", "is_finished"), [(4, True), (9, None)])
def test_a_run_shorter_than_its_log_interval_is_known_by_its_checkpoints(planned, is_finished):
    saved = "[2026-11-18 21:18:37,745 INFO] Saving optimizer and weights to step_4, and symlink to job/model"
    is_built = [line for line in LOG_FILE if "parameters" in line or "bos_token" in line]
    run = read(f"[2026-11-18 21:13:07,175 INFO] Train steps: {planned}", *is_built, saved)
    assert run.facts["steps_done"] == 4
    assert run.facts.get("is_finished") is is_finished
    assert "is_cut" not in run.facts


def test_early_stopping_ends_a_run():
    run = read(*START, *STEPS, "[2020-02-09 07:33:28,002 INFO] Training finished after not improving. Early Stop!")
    assert run.facts["is_finished"] is True
    assert run.launches[-1].end == "finished"


def test_an_interrupted_run_is_not_finished():
    run = read(*START, *STEPS, "[2026-01-15 07:33:28,002 INFO] Training interrupted by user")
    assert run.facts["is_finished"] is False
    assert run.launches[-1].end == "stopped"


def test_weights_of_another_run_are_no_checkpoint_of_this_one():
    loaded = "[2020-02-09 07:00:00,000 INFO] Loading checkpoint from pretrained_step_90000.pt"
    run = read(loaded, *START, *STEPS)
    assert not of_kind(run, "restart")
    assert "Training began with the weights of pretrained_step_90000.pt." in run.notes


def test_an_excerpt_begins_midway():
    assert read(*STEPS).facts["begins_midway"] is True


def test_evaluations_alone_have_the_steps_of_their_checkpoints():
    run = read(*VALID, *(line.replace("500.32", "300.5").replace("_500", "_1000") for line in VALID))
    assert [(record["step"], record["perplexity"]) for record in of_kind(run, "evaluation")] == [
        (500, 500.32),
        (1000, 300.5),
    ]
    assert is_own_line(VALID[1])


def test_an_indented_copy_has_the_same_times():
    assert read(*("    " + line for line in [*START, *STEPS, *VALID])).records == read(*START, *STEPS, *VALID).records


def test_own_lines_are_known():
    assert all(is_own_line(line) for line in (*STEPS, STEP_3, START[3], LOG_FILE[0], LOG_FILE[3]))
    assert not is_own_line("2020-02-28 16:17:37 | INFO | train | epoch 001 | loss 15.180 | ppl 12 | num_updates 11")


@given(
    st.lists(st.text() | st.sampled_from([*START, *STEPS, *VALID, *VALID_3, *LOG_FILE, *TERMINAL]), max_size=8),
    st.integers(0, 150),
)
def test_any_lines_can_be_read(lines, cut):
    assert is_sound(read(*lines, *(line[:cut] for line in lines), *(line[cut:] for line in lines)))


@given(st.text(alphabet="0123456789naif.e+-٣[],", max_size=40))
def test_any_number_can_be_read(text):
    assert is_sound(
        read(STEPS[0].replace("450", text), STEPS[0].replace("5.43", text), STEPS[0].replace("230", text), STEPS[0])
    )
    assert is_sound(
        read(*STEPS, VALID[1].replace("500.32", text), START[4].replace("0, 1", text), STEPS[0].replace("596", text))
    )
