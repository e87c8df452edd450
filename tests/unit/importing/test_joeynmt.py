"""JoeyNMT's lines of versions 1 and 2, as real runs wrote them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing.joeynmt import JoeyReader, is_own_line

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
read = reading_with(JoeyReader)


def test_training_lines():
    first, second = of_kind(read(*STEPS), "train")
    assert (first["step"], first["loss"], first["learning_rate"]) == (900, 40.858349, 0.001)
    assert (second["accuracy"], second["target_tokens_per_second"]) == (0.414826, 2861)
    assert second["seconds_per_step"] == pytest.approx(0.05)


def test_an_evaluation_of_version_1_is_made_a_mean_over_sentences():
    run = read(*START, *STEPS, *SAMPLE, VALID_1)
    (record,) = of_kind(run, "evaluation")
    assert record["step"] == 1000
    assert record["loss"] == pytest.approx(29.9043535)
    assert (record["bleu"], record["perplexity"], record["seconds"]) == (50.36, 6.248, 3.224)
    assert record["samples"] == [{"source": "0 38 14", "reference": "21 29 32", "translation": "21 29"}]
    assert run.facts["loss_unit"] == "nats per sentence"


def test_an_evaluation_of_version_2_with_its_samples_behind_it():
    run = read(*START, *STEPS, *VALID_2, *SAMPLE, *END)
    (record,) = of_kind(run, "evaluation")
    assert (record["step"], record["loss"], record["accuracy"], record["bleu"]) == (1000, 29.77, 0.5, 22.52)
    assert record["seconds"] == pytest.approx(13.0)
    assert record["samples"][0]["source"] == "0 38 14"
    assert of_kind(run, "checkpoint")[0]["path"] == "reverse_model/1000.ckpt"
    assert run.facts["is_finished"] is True


def test_a_loss_per_token_is_compared_with_the_perplexity():
    run = read(*START, BY_TOKENS, *STEPS, VALID_1)
    assert run.facts["loss_unit"] == "nats per token"
    assert of_kind(run, "evaluation")[0]["loss"] == pytest.approx(math.log(6.248))


def test_validations_txt_adds_what_the_log_does_not_have():
    run = read(*STEPS, VALID_1, FILE.replace("2000", "1000"), FILE)
    assert [record["step"] for record in of_kind(run, "evaluation")] == [1000, 2000]
    assert of_kind(run, "evaluation")[1]["bleu"] == 57.3029


def test_facts_and_settings():
    run = read(*START, *STEPS)
    facts = run.facts
    assert (facts["parameters"], facts["num_training_pairs"], facts["vocab_size"]) == (105088, 50000, 54)
    assert (facts["num_ranks"], facts["precision"], facts["accumulation"]) == (2, "fp16", 4)
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
