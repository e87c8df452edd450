"""Marian's lines of several versions, as real runs wrote them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing.marian import MarianReader, is_own_line

START = """\
[2021-05-26 23:11:55] [marian] Marian v1.10.0 6f6d4846 2021-02-06 15:35:16 -0800
[2021-05-26 23:11:55] [marian] Running on work1 as process 5050 with command line:
[2021-05-26 23:11:55] [config] after: 0e
[2021-05-26 23:11:55] [config] after-batches: 600000
[2021-05-26 23:11:55] [config] cost-type: ce-sum
[2021-05-26 23:11:55] [config] dim-emb: 512
[2021-05-26 23:11:55] [config] disp-freq: 500u
[2021-05-26 23:11:55] [config] enc-depth: 6
[2021-05-26 23:11:55] [config] learn-rate: 0.0003
[2021-05-26 23:11:55] [config] lr-decay-inv-sqrt:
[2021-05-26 23:11:55] [config]   - 16000
[2021-05-26 23:11:55] [config] lr-warmup: 16000
[2021-05-26 23:11:55] [config] model: model.s2s-4/model.npz
[2021-05-26 23:11:55] [config] optimizer-delay: 2
[2021-05-26 23:11:55] [config] optimizer-params:
[2021-05-26 23:11:55] [config]   - 0.9
[2021-05-26 23:11:55] [config]   - 0.98
[2021-05-26 23:11:55] [config]   - 1e-09
[2021-05-26 23:11:55] [config] precision:
[2021-05-26 23:11:55] [config]   - float16
[2021-05-26 23:11:55] [config]   - float32
[2021-05-26 23:11:55] [config] train-sets:
[2021-05-26 23:11:55] [config]   - data/train.en
[2021-05-26 23:11:55] [config]   - data/train.my
[2021-05-26 23:11:55] [config] type: transformer
[2021-05-26 23:11:55] [config] valid-freq: 5000
[2021-05-26 23:11:55] [config] vocabs:
[2021-05-26 23:11:55] [config]   []
[2021-05-26 23:11:55] [data] Setting vocabulary size for input 1 to 12,379
[2021-05-26 23:12:32] [comm] Using NCCL 2.8.3 for GPU communication
[2021-05-26 23:12:32] [training] Using 2 GPUs
[2021-05-26 23:12:32] Training started
[2021-05-26 23:12:32] [data] Done reading 256,102 sentences
[2021-05-26 23:12:33] [training] Batches are processed as 2 process(es) x 2 devices/process""".splitlines()
FIRST = (
    "[2021-05-26 23:22:42] Ep. 1 : Up. 500 : Sen. 15,203 : Cost 6.01253986 * 414,436 after 414,436 : "
    "Time 609.91s : 679.50 words/s"
)
SECOND = (
    "[2021-05-26 23:32:41 mpi:0] Ep. 1.5 : Up. 1000 : Sen. 31,050 : Cost 4.39333200 * 412,771 @ 2,305 after 827,207 : "
    "Time 599.31s : 688.74 words/s : gNorm 0.0552 : L.r. 1.8750e-05"
)
OLD = "[2019-03-25 14:51:54] Ep. 1 : Up. 1000 : Sen. 1,269,755 : Cost 48.63618851 : Time 785.53s : 17289.59 words/s"
VALID = [
    "[2021-05-27 00:53:30] [valid] Ep. 1 : Up. 5000 : cross-entropy : 219.282 : new best",
    "[2021-05-27 00:53:39] [valid] Ep. 1 : Up. 5000 : perplexity : 41.8906 : stalled 4 times (last best: 4.24112)",
    "[2021-05-27 00:53:45] [valid] Ep. 1 : Up. 5000 : bleu : 3.71 : new best",
]
read = reading_with(MarianReader)


def test_training_lines():
    run = read(*START, FIRST, SECOND)
    first, second = of_kind(run, "train")
    assert first["step"] == 500
    assert first["loss"] == pytest.approx(6.01253986)
    assert first["seconds_per_step"] == pytest.approx(609.91 / 500)
    assert first["target_tokens_per_second"] == 679.5
    assert second["seconds_per_step"] == pytest.approx(599.31 / 500)
    assert (second["gradient_norm"], second["learning_rate"]) == (0.0552, 1.875e-05)
    assert second["time"] - first["time"] == 599
    assert run.facts["loss_unit"] == "nats per token"


def test_the_time_of_the_first_line_of_an_excerpt_is_not_guessed():
    first, second = of_kind(read(FIRST, SECOND), "train")
    assert "seconds_per_step" not in first
    assert second["seconds_per_step"] == pytest.approx(599.31 / 500)


def test_a_cost_per_sentence_is_compared_with_one_per_sentence():
    run = read("[2019-03-25 14:51:54] [config] cost-type: ce-mean", OLD, *VALID)
    assert run.facts["loss_unit"] == "nats per sentence"
    assert of_kind(run, "train")[0]["loss"] == pytest.approx(48.63618851)
    assert of_kind(run, "evaluation")[0]["loss"] == 219.282


def test_a_cost_of_unknown_kind_is_called_so():
    assert read(OLD).facts["loss_unit"] == "unknown"


def test_a_cost_that_is_a_perplexity_becomes_a_loss():
    run = read("[2019-03-25 14:51:54] [config] cost-type: perplexity", OLD)
    assert of_kind(run, "train")[0]["loss"] == pytest.approx(math.log(48.63618851))


def test_the_metrics_of_one_step_are_one_evaluation():
    run = read(FIRST, *VALID)
    (record,) = of_kind(run, "evaluation")
    assert record["step"] == 5000
    assert record["loss"] == pytest.approx(math.log(41.8906))
    assert (record["perplexity"], record["bleu"]) == (41.8906, 3.71)
    assert run.facts["bleu_kind"] == "tokenised"


def test_a_valid_log_alone():
    later = [line.replace("Up. 5000", "Up. 10000") for line in VALID]
    assert [record["step"] for record in of_kind(read(*VALID, *later), "evaluation")] == [5000, 10000]


def test_the_score_of_a_script_and_the_loss_per_word():
    lines = [
        "[2019-01-15 06:33:08] [valid] Ep. 1 : Up. 5000 : translation : 3.71 : new best",
        "[2019-03-25 16:37:33] [valid] Ep. 1 : Up. 5000 : ce-mean-words : 5.21277 : new best",
    ]
    run = read(*lines)
    (record,) = of_kind(run, "evaluation")
    assert (record["bleu"], record["loss"]) == (3.71, 5.21277)
    assert run.facts["bleu_kind"] == "unknown"
    assert any("script" in note for note in run.notes)


def test_facts_and_settings():
    run = read(*START, FIRST, "[2021-05-28 00:00:00] Training finished")
    facts = run.facts
    assert (facts["num_ranks"], facts["ranks_per_host"], facts["hosts"]) == (4, 2, ["work1"])
    assert (facts["vocab_size"], facts["num_training_pairs"]) == (12379, 256102)
    assert facts["training_files"] == {"source": "data/train.en", "target": "data/train.my"}
    assert facts["software"] == {"marian": "v1.10.0", "nccl": "2.8.3"}
    assert (facts["precision"], facts["accumulation"], facts["is_finished"]) == ("mixed", 2, True)
    assert facts["checkpoint_folder"] == "model.s2s-4"
    assert (facts["steps_planned"], facts["log_every"], facts["evaluate_every"]) == (600000, 500, 5000)
    training = run.settings["training"]
    assert (training["schedule"], training["warmup_steps"]) == ("transformer", 16000)
    assert training["learning_rate"] * (512 * 16000) ** -0.5 == pytest.approx(0.0003)
    assert (training["beta1"], training["beta2"], training["epsilon"]) == (0.9, 0.98, 1e-09)
    assert run.printed_config["vocabs"] == []


def test_checkpoints_and_a_second_launch():
    saved = [
        "[2021-05-27 00:53:12] Saving model weights and runtime parameters to m/model.npz.orig.npz",
        "[2021-05-27 00:53:14] Saving model weights and runtime parameters to m/model.iter1000.npz",
        "[2021-05-27 00:53:15] Saving model weights and runtime parameters to m/model.npz",
    ]
    third = SECOND.replace("Up. 1000", "Up. 1500").replace("599.31", "500.0")
    run = read(*START, FIRST, SECOND, *saved, *START, third)
    assert [record["step"] for record in of_kind(run, "checkpoint")] == [1000]
    assert [record["step"] for record in of_kind(run, "restart")] == [1000]
    assert run.facts["num_attempts"] == 2
    assert of_kind(run, "train")[-1]["seconds_per_step"] == pytest.approx(1.0)


def test_nan_is_seen():
    assert read(FIRST, SECOND.replace("4.39333200", "nan")).first_nan_step == 1000


def test_own_lines_are_known():
    assert all(is_own_line(line) for line in (FIRST, SECOND, OLD, *VALID, START[0], START[2]))
    assert not is_own_line("[2020-02-09 07:29:01,570 INFO] * number of parameters: 117814100")


@given(st.lists(st.text() | st.sampled_from([FIRST, SECOND, *VALID, *START]), max_size=8), st.integers(0, 150))
def test_any_lines_can_be_read(lines, cut):
    assert is_sound(read(*lines, *(line[:cut] for line in lines), *(line[:22] + line[cut:] for line in lines)))


@given(st.text(alphabet="0123456789naif.,e+-٣", max_size=40))
def test_any_number_can_be_read(text):
    lines = [FIRST.replace("500", text), FIRST.replace("6.01253986", text), VALID[0].replace("219.282", text)]
    assert is_sound(read(*(line.replace("16000", text) for line in START), *lines))
