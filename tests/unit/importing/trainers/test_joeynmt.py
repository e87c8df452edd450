"""JoeyNMT's lines of versions 0.9 to 2.3, as real runs wrote them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing.trainers.joeynmt import JoeyReader, is_own_line

INFO = "2022-02-25 16:01:48,287 - INFO - joeynmt"
START = f"""\
2022-02-25 16:00:00,001 - INFO - root - Hello! This is Joey-NMT (version 1.5.1).
{INFO}.training - Total params: 105088
{INFO}.helpers -                       cfg.data.src : en
{INFO}.helpers -                       cfg.data.trg : de
{INFO}.helpers -                     cfg.data.train : data/train
{INFO}.helpers -       cfg.training.validation_freq : 1000
{INFO}.helpers -          cfg.training.logging_freq : 100
{INFO}.helpers -            cfg.training.scheduling : warmupinversesquareroot
{INFO}.helpers -  cfg.training.learning_rate_warmup : 4000
{INFO}.helpers -         cfg.training.learning_rate : 0.0005
{INFO}.helpers -             cfg.training.model_dir : models/a
{INFO}.helpers -             cfg.model.encoder.type : transformer
{INFO}.helpers -      cfg.model.encoder.hidden_size : 256
{INFO}.helpers - Data set sizes:
\ttrain 50000,
\tvalid 1000,
\ttest 1000
{INFO}.helpers - Number of Trg words (types): 54
{INFO}.training - Train stats:
\tdevice: cuda
\tn_gpu: 2
\t16-bits training: True
\tgradient accumulation: 4""".splitlines()
BY_TOKENS = f"{INFO}.helpers -         cfg.training.normalization : tokens"
STEPS = [
    "2022-02-25 16:02:27,500 - INFO - joeynmt.training - Epoch   1, Step:      900, Batch Loss:    40.858349, "
    "Tokens per Sec:     2953, Lr: 0.001000",
    "2022-02-25 16:02:32,500 - INFO - joeynmt.training - Epoch   1, Step:     1000, Batch Loss:    20.104404, "
    "Batch Acc: 0.414826, Tokens per Sec:     2861, Lr: 0.001000",
]
SAMPLE = [
    "2022-02-25 16:51:27,198 - INFO - joeynmt.training - Example #0",
    "2022-02-25 16:51:27,198 - INFO - joeynmt.training - \tSource:     0 38 14",
    "2022-02-25 16:51:27,198 - INFO - joeynmt.training - \tReference:  21 29 32",
    "2022-02-25 16:51:27,198 - INFO - joeynmt.training - \tHypothesis: 21 29",
]
VALID_1 = (
    "2022-02-25 16:51:27,198 - INFO - joeynmt.training - Validation result (greedy) at epoch   1, step     1000: "
    "bleu:  50.36, loss: 29904.3535, ppl:   6.2480, duration: 3.2240s"
)
VALID_2 = [
    "2024-01-15 12:57:29,506 - INFO - joeynmt.prediction - Generation took 12.9554[sec].",
    "2024-01-15 12:57:29,549 - INFO - joeynmt.prediction - Evaluation result (greedy): bleu:  22.52, loss:  29.77, "
    "ppl:   5.88, acc:   0.50, 0.0446[sec]",
    "2024-01-15 12:57:29,576 - INFO - joeynmt.training - Checkpoint saved in reverse_model/1000.ckpt.",
]
END = [
    "2024-01-15 13:02:15,429 - INFO - joeynmt.training - Training ended after   5 epochs.",
    "2024-01-15 13:02:15,429 - INFO - joeynmt.training - Best validation result (greedy) at step  7000:  95.42 bleu.",
    "2024-01-15 13:25:07,213 - INFO - joeynmt.prediction - Decoding on dev set... (device: cuda, n_gpu: 1)",
    "2024-01-15 13:25:20,302 - INFO - joeynmt.prediction - Evaluation result (greedy): bleu:  95.06, 0.0860[sec]",
]
FILE = "Steps: 2000     loss: 25.81088  acc: 0.61057    ppl: 5.00362    bleu: 57.30290  LR: 0.00100000  *"
DATA = Path(__file__).parents[3] / "data" / "joeynmt"
read = reading_with(JoeyReader)


def lines_of(*names: str) -> list[str]:
    """Lines of real logs: version 1.3 of a public run, version 2.3 run for these tests."""
    return [line for name in names for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def test_training_lines():
    first, second = of_kind(read(*STEPS), "train")
    assert (first["step"], first["loss"], first["learning_rate"]) == (900, 40.858349, 0.001)
    assert (second["accuracy"], second["target_tokens_per_second"]) == (0.414826, 2861)
    assert second["seconds_per_step"] == pytest.approx(0.05)


def test_the_dev_loss_is_per_token_in_every_version():
    run = read(*START, *STEPS, *SAMPLE, VALID_1)
    (record,) = of_kind(run, "evaluation")
    assert (record["step"], record["loss"]) == (1000, pytest.approx(math.log(6.248)))
    assert (record["bleu"], record["perplexity"], record["seconds"]) == (50.36, 6.248, 3.224)
    assert record["samples"] == [{"source": "0 38 14", "reference": "21 29 32", "translation": "21 29"}]
    assert run.facts["loss_unit"] == "nats per token"


@pytest.mark.parametrize(
    ("normalization", "name"),
    [("tokens", "loss"), ("batch", "loss_per_sentence"), ("none", "loss_per_batch"), (None, "loss_per_sentence")],
)
def test_a_training_loss_of_another_unit_has_another_name(normalization, name):
    setting = [] if normalization is None else [BY_TOKENS.replace("tokens", normalization)]
    run = read(*START, *setting, *STEPS, VALID_1)
    assert all(name in record and ("loss" in record) == (name == "loss") for record in of_kind(run, "train"))
    assert any("cannot be compared" in note for note in run.notes) == (name != "loss")


def test_without_evaluations_the_training_loss_keeps_its_unit():
    run = read(*START, *STEPS)
    assert run.facts["loss_unit"] == "nats per sentence"
    assert of_kind(run, "train")[0]["loss"] == 2 * 40.858349  # of two GPUs


def test_without_a_configuration_the_unit_is_seen_from_the_dev_loss():
    lines = [line.replace("40.858349", "1.91").replace("20.104404", "1.86") for line in STEPS]
    run = read(*lines, VALID_1)
    assert of_kind(run, "train")[1]["loss"] == 1.86
    assert any("is taken as a mean over tokens" in note for note in run.notes)
    assert "loss_of_unknown_unit" in of_kind(read(*STEPS, VALID_1), "train")[0]


def test_a_training_loss_that_was_divided_by_the_number_of_gpus():
    run = read(*START, BY_TOKENS, *STEPS)
    assert of_kind(run, "train")[0]["loss"] == 2 * 40.858349
    assert of_kind(read(*START, BY_TOKENS, "\tddp training: True", *STEPS), "train")[0]["loss"] == 40.858349


def test_an_evaluation_of_version_2_with_its_samples_behind_it():
    run = read(*START, *STEPS, *VALID_2, *SAMPLE, *END)
    (record,) = of_kind(run, "evaluation")
    assert (record["step"], record["accuracy"], record["bleu"]) == (1000, 0.5, 22.52)
    assert record["loss"] == pytest.approx(math.log(5.88))
    assert record["seconds"] == pytest.approx(13.0)
    assert record["samples"][0]["source"] == "0 38 14"
    (checkpoint,) = of_kind(run, "checkpoint")
    assert (checkpoint["path"], checkpoint["seconds"]) == ("reverse_model/1000.ckpt", pytest.approx(0.027, abs=1e-4))
    assert run.facts["is_finished"] is True


def test_validations_txt_adds_what_the_log_does_not_have():
    run = read(*STEPS, VALID_1, FILE.replace("2000", "1000"), FILE)
    assert [(record["step"], record["bleu"]) for record in of_kind(run, "evaluation")] == [
        (1000, 57.3029),
        (2000, 57.3029),
    ]
    assert of_kind(run, "evaluation")[1]["bleu"] == 57.3029


def test_validations_txt_tells_the_learning_rate():
    run = read(FILE, FILE.replace("2000", "1000"))
    assert [record["learning_rate"] for record in of_kind(run, "evaluation")] == [0.001, 0.001]


def test_facts_and_settings():
    run = read(*START, *STEPS)
    facts = run.facts
    assert (facts["parameters"], facts["num_training_pairs"], facts["vocab_size"]) == (105088, 50000, 54)
    assert (facts["num_ranks"], facts["precision"], facts["accumulation"]) == (2, "fp16", 4)
    assert facts["ranks_per_host"] == 2  # JoeyNMT runs on one machine
    assert facts["training_files"] == {"source": "data/train.en", "target": "data/train.de"}
    assert (facts["evaluate_every"], facts["log_every"], facts["checkpoint_folder"]) == (1000, 100, "models/a")
    assert facts["software"] == {"joeynmt": "1.5.1"}
    training = run.settings["training"]
    assert (training["schedule"], training["warmup_steps"]) == ("transformer", 4000)
    assert training["learning_rate"] * (256 * 4000) ** -0.5 == pytest.approx(0.0005)
    assert run.printed_config["model"]["encoder"]["hidden_size"] == "256"


def test_restarts_are_announced_or_detected():
    loaded = "2022-02-25 17:00:00,000 - INFO - joeynmt.helpers - Loading model from models/a/900.ckpt"
    assert [record["step"] for record in of_kind(read(*STEPS, loaded, STEPS[1]), "restart")] == [900]
    assert [record["step"] for record in of_kind(read(*reversed(STEPS)), "restart")] == [900]


def test_a_model_that_is_loaded_for_a_test_is_no_restart():
    loaded = "2022-02-25 17:00:00,000 - INFO - joeynmt.prediction - Loading model from models/a/900.ckpt"
    assert not of_kind(read(*STEPS, START[0], loaded), "restart")


def test_a_later_launch_that_only_evaluates_is_no_launch_of_the_run():
    """Versions before 1.0 print the scores of `joeynmt test` under the same first line as those of training."""
    hello = "2019-10-19 13:42:36,601 Hello! This is Joey-NMT."
    assert len(read(hello, *STEPS, hello, "2019-10-19 13:45:17,880  dev bleu:   8.14 [Greedy decoding]").launches) == 1
    assert len(read(hello, *STEPS, hello).launches) == 2


def test_a_later_launch_that_only_translates_is_no_launch_of_the_run():
    hello = "2022-02-26 10:00:00,000 - INFO - root - Hello! This is Joey-NMT (version 2.3.0)."
    predicting = "2022-02-26 10:00:05,000 - INFO - joeynmt.prediction - Predicting 1568 example(s)..."
    assert len(read(*START, *STEPS, hello, predicting).launches) == 1
    tested = "2022-02-26 09:00:05,000 - INFO - joeynmt.prediction - Decoding on dev set..."
    assert len(read(*START, *STEPS, tested, hello, predicting).launches) == 1
    in_training = "2022-02-26 10:00:04,000 - INFO - joeynmt.training - EPOCH 1"
    assert len(read(*START, *STEPS, hello, in_training, predicting).launches) == 2


def test_a_log_without_dates_has_no_start():
    undated = [line.partition(" - INFO - ")[2] for line in (START[0], *STEPS)]
    assert "started" not in read(*undated).facts


def test_weights_of_another_run_are_no_checkpoint_of_this_one():
    loaded = "2022-02-25 16:00:01,000 - INFO - joeynmt.training - Loading model from pretrained/50000.ckpt"
    run = read(START[0], loaded, *STEPS)
    assert not of_kind(run, "restart")
    assert "Training began with the weights of pretrained/50000.ckpt." in run.notes


def test_lines_of_version_0_9():
    run = read(
        "2019-05-01 10:00:00,000 Hello! This is Joey-NMT.",
        "2019-05-01 10:00:00,000 cfg.training.normalization         : tokens",
        "2019-05-01 10:00:00,000 Total params: 1234",
        "2019-05-01 10:00:10,000 Epoch   1 Step:      100 Batch Loss:     4.500000 Tokens per Sec:     2000, "
        "Lr: 0.000200",
        "2019-05-01 10:00:20,000 Epoch   1 Step:      200 Batch Loss:     4.400000 Tokens per Sec:     2000, "
        "Lr: 0.000200",
        "2019-05-01 10:00:50,000 Hooray! New best validation result [ppl]!",
        "2019-05-01 10:00:50,000 Saving new checkpoint.",
        "2019-05-01 10:00:50,000 Validation result at epoch   1, step      200: bleu:   0.65, loss: 12345.6000, "
        "ppl:  81.4509, duration: 30.0000s",
        "2019-05-01 10:01:00,000 Epoch   1 Step:      300 Batch Loss:     4.300000 Tokens per Sec:     2000, "
        "Lr: 0.000200",
    )
    assert [record["loss"] for record in of_kind(run, "train")] == [4.5, 4.4, 4.3]
    assert of_kind(run, "evaluation")[0]["loss"] == pytest.approx(4.4, abs=1e-4)
    assert [record.get("seconds_per_step") for record in of_kind(run, "train")] == [None, 0.1, 0.1]
    assert [record["step"] for record in of_kind(run, "checkpoint")] == [200]
    assert (run.facts["parameters"], run.facts["metric"]) == (1234, "perplexity")


def test_a_result_line_of_version_2_0():
    line = (
        VALID_2[1]
        .replace("(greedy): ", "(greedy) ")
        .replace("0.0446[sec]", "generation: 2.5[sec], evaluation: 0.5[sec]")
    )
    (record,) = of_kind(read(*STEPS, line), "evaluation")
    assert (record["seconds"], record["bleu"], record.get("other_scores")) == (3.0, 22.52, None)


@pytest.mark.parametrize("order", [("train_1.3.log", "validations_1.3.txt"), ("validations_1.3.txt", "train_1.3.log")])
def test_a_log_of_version_1_3_joined_with_its_exact_figures(order):
    run = read(*lines_of(*order))
    first, second = of_kind(run, "evaluation")
    assert (first["step"], first["bleu"], first["perplexity"]) == (600, 1.56419, 71.3833)
    assert first["loss"] == pytest.approx(4.26806, abs=1e-5)
    assert (first["seconds"], first["samples"][0]["translation"][:7]) == (202.0244, "verse 4")
    assert (second["step"], second["bleu"]) == (1200, 2.00136)
    times = [record["seconds_per_step"] for record in of_kind(run, "train")[1:]]
    assert max(times) < 0.43  # without the 202 seconds of the validation
    facts = run.facts
    assert facts["loss_unit"] == "nats per token"
    assert (facts["metric"], facts["bleu_kind"], facts["epochs_done"], facts["epochs_planned"]) == (
        "bleu",
        "tokenised",
        1,
        200,
    )
    assert facts["step_time_includes_evaluation"] is False
    assert "is_finished" not in facts
    assert "begins_midway" not in facts


def test_a_whole_run_of_version_2_3():
    run = read(*lines_of("train_2.3.log", "validations_2.3.txt"))
    evaluations = of_kind(run, "evaluation")
    assert [(record["step"], record["bleu"], record["chrf"]) for record in evaluations] == [
        (30, 0.0, 2.999),
        (60, 0.17505, 6.997),
        (90, 0.69907, 12.158),
        (120, 1.42763, 15.593),
    ]
    assert [record["seconds"] for record in evaluations] == pytest.approx([0.695, 1.5315, 2.9745, 2.1697])
    assert evaluations[-1]["other_scores"] == {"token_accuracy": 16.0396}
    assert "|tok:13a|" in evaluations[-1]["signature"]
    assert [record["step"] for record in of_kind(run, "checkpoint")] == [30, 60, 90, 120]
    facts = run.facts
    assert (facts["is_finished"], facts["steps_done"], facts["steps_planned"], facts["metric"]) == (
        True,
        120,
        120,
        "bleu",
    )
    assert (facts["accumulation"], facts["warmup_steps"], facts["parameters"]) == (2, 60, 240576)
    (launch,) = run.launches
    assert (launch.end, launch.reason) == ("finished", "Training ended since maximum num. of updates 120 was reached.")


def test_an_interrupted_run_is_not_finished():
    line = "2024-01-15 13:02:15,429 - INFO - joeynmt.training - Interrupt at epoch 3, step 1042."
    run = read(START[0], *STEPS, line)
    assert (run.facts["is_finished"], run.facts["steps_done"]) == (False, 1042)
    assert run.launches[-1].end == "stopped"


def test_an_excerpt_begins_midway():
    assert read(*STEPS).facts["begins_midway"] is True
    assert "begins_midway" not in read(STEPS[0].replace("   900", "   100"), STEPS[1].replace("  1000", "   200")).facts


def test_a_second_start_is_a_second_launch():
    run = read(START[0], *STEPS, START[0], *STEPS)
    assert [(launch.first_step, launch.last_step) for launch in run.launches] == [(900, 1000), (900, 1000)]


def test_own_lines_are_known():
    assert all(is_own_line(line) for line in (*STEPS, VALID_1, FILE, START[0]))
    assert not is_own_line("2020-02-28 16:17:37 | INFO | train | epoch 001 | loss 15.180 | ppl 12 | num_updates 11")


ALL = [*START, *STEPS, *SAMPLE, VALID_1, *VALID_2, *END, FILE]


@given(st.lists(st.text() | st.sampled_from(ALL), max_size=8), st.integers(0, 150))
def test_any_lines_can_be_read(lines, cut):
    assert is_sound(read(*lines, *(line[:cut] for line in lines), *(line[cut:] for line in lines)))


@given(st.text(alphabet="0123456789naif.e+-٣", max_size=40))
def test_any_number_can_be_read(text):
    assert is_sound(
        read(*(line.replace("1000", text).replace("4000", text) for line in ALL), STEPS[0].replace("40.858349", text))
    )


@given(st.text(alphabet="ab.: ", max_size=60))
def test_any_configuration_can_be_read(text):
    assert is_sound(read(f"cfg.{text} : 1", f"cfg.training.{text} : {text}", "cfg.training : 1", *START))
