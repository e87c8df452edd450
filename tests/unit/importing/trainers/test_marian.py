"""Marian's lines of several versions, as real runs wrote them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing.trainers.marian import MarianReader, is_own_line

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
REAL = (Path(__file__).parents[3] / "data/marian/ce_mean_1.6.log").read_text(encoding="utf-8").splitlines()
CE_MEAN = "[2019-03-25 14:51:54] [config] cost-type: ce-mean"
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


def test_a_real_log_with_costs_per_sentence_is_read_in_nats_per_token():
    run = read(*REAL)
    assert run.facts["loss_unit"] == "nats per token"
    train = {record["step"]: record for record in of_kind(run, "train")}
    words_per_sentence = 8395.50 * 124.75 / 35000
    assert train[1000]["loss"] == pytest.approx(252.24 / words_per_sentence)
    # Sentences are counted per epoch: the rest of epoch 1 and the beginning of epoch 2.
    words_per_sentence = 10660.62 * 95.97 / (609664 - 594964 + 20300)
    assert train[9000]["loss"] == pytest.approx(139.14 / words_per_sentence)
    last = of_kind(run, "evaluation")[-1]
    assert last["loss"] == pytest.approx(math.log(4.50011))
    assert any("was converted to nats per token" in note for note in run.notes)
    assert any("includes label smoothing" in note for note in run.notes)


def test_a_dev_set_measured_per_sentence_only_gives_all_losses_per_sentence():
    later = SECOND.replace("Sen. 31,050", "Sen. 30,000")
    run = read(*START, FIRST, later, VALID[0], VALID[2])
    assert run.facts["loss_unit"] == "nats per sentence"
    assert of_kind(run, "train")[1]["loss"] == pytest.approx(4.393332 * 688.74 * 599.31 / (30000 - 15203))
    assert of_kind(run, "evaluation")[0]["loss"] == 219.282
    assert any("--valid-metrics" in note for note in run.notes)


def test_a_cost_that_cannot_be_converted_is_left_out():
    run = read(CE_MEAN, OLD, *VALID)
    assert run.facts["loss_unit"] == "nats per token"
    assert "loss" not in of_kind(run, "train")[0]
    assert of_kind(run, "evaluation")[0]["loss"] == pytest.approx(math.log(41.8906))


def test_a_cost_summed_over_a_batch_is_converted():
    config = ["[2021-05-26 23:11:55] [config] cost-type: ce-sum", "[2021-05-26 23:12:32] Training started"]
    run = read(*config, OLD.replace("48.63618851", "70000"))
    assert of_kind(run, "train")[0]["loss"] == pytest.approx(70000 * 1000 / (785.53 * 17289.59))


def test_an_old_cost_too_large_for_a_token_is_one_of_a_sentence():
    second = OLD.replace("Up. 1000", "Up. 2000").replace("1,269,755", "2,400,000").replace("14:51:54", "15:05:00")
    run = read(OLD, second)
    assert run.facts["loss_unit"] == "nats per token"
    assert of_kind(run, "train")[1]["loss"] == pytest.approx(48.63618851 * 1130245 / (785.53 * 17289.59))


def test_validation_and_saving_are_no_part_of_a_step():
    run = read(*REAL)
    train = {record["step"]: record for record in of_kind(run, "train")}
    pause = 20 * 60 + 11  # 11:55:08 to 12:15:19
    assert train[5500]["seconds_per_step"] == pytest.approx((1305.66 - pause) / 500)
    assert train[5500]["target_tokens_per_second"] == pytest.approx(1305.66 * 799.62 / (1305.66 - pause))
    assert run.facts["step_time_includes_evaluation"] is False
    assert of_kind(run, "evaluation")[0]["seconds"] == 20 * 60 + 9


def test_saving_before_the_validation_is_no_part_of_it():
    saved = "[2021-05-26 23:32:43] Saving model weights and runtime parameters to m/model.iter1000.npz"
    valid = "[2021-05-26 23:33:43] [valid] Ep. 1 : Up. 1000 : perplexity : 41.8 : new best"
    third = SECOND.replace("Up. 1000", "Up. 1500").replace("23:32:41", "23:43:41").replace("599.31", "660.0")
    run = read(*START, FIRST, SECOND, saved, valid, third)
    assert of_kind(run, "evaluation")[0]["seconds"] == 60
    assert of_kind(run, "train")[-1]["seconds_per_step"] == pytest.approx((660 - 60) / 500)


def test_the_best_model_is_saved_in_the_middle_of_a_validation():
    best = "[2021-05-26 23:33:40] Saving model weights and runtime parameters to m/model.npz.best-perplexity.npz"
    first = "[2021-05-26 23:33:39] [valid] Ep. 1 : Up. 1000 : perplexity : 41.8 : new best"
    last = "[2021-05-26 23:34:41] [valid] Ep. 1 : Up. 1000 : bleu : 3.71 : new best"
    run = read(*START, FIRST, SECOND, first, best, last)
    assert [record["seconds"] for record in of_kind(run, "evaluation")] == [120]


def test_a_validation_between_two_lines_cannot_be_separated():
    valid = "[2021-05-26 23:30:00] [valid] Ep. 1 : Up. 700 : perplexity : 41.8 : new best"
    run = read(*START, FIRST, valid, SECOND)
    assert run.facts["step_time_includes_evaluation"] is True
    assert "seconds" not in of_kind(run, "evaluation")[0]


def test_lines_cut_out_of_the_log_do_not_change_the_time_of_a_step():
    train = {record["step"]: record for record in of_kind(read(*REAL), "train")}
    assert train[8500]["seconds_per_step"] == pytest.approx(94.92 / 500)
    assert "loss" not in train[8500]  # the sentences of this interval are unknown


def test_the_score_of_a_failed_script_stays_for_the_report_to_judge():
    assert [record["bleu"] for record in of_kind(read(*REAL), "evaluation")][1] == 0


def test_facts_of_a_real_log():
    run = read(*REAL)
    facts = run.facts
    assert (facts["is_finished"], facts["num_ranks"], facts["steps_done"]) == (True, 1, 225000)
    assert facts["parameters"] == pytest.approx(60.4e6, rel=0.005)
    assert (facts["metric"], facts["warmup_steps"], facts["num_attempts"]) == ("loss", 16000, 1)
    assert facts["epochs_done"] == pytest.approx(25 + 507500 / 609664, abs=1e-3)
    assert "begins_midway" not in facts
    assert "steps_planned" not in facts
    assert any("stopped early: cross-entropy had not improved for 10 validations" in note for note in run.notes)
    assert run.launches[-1].reason == "Marian stopped early: cross-entropy had not improved for 10 validations."


@pytest.mark.parametrize(
    ("setting", "planned"),
    [("after: 300Ku", 300_000), ("after: 10e,2000u", 2_000), ("after-batches: 5,000", 5_000), ("after: 1Mt", 1_209)],
)
def test_the_plan_in_updates_or_tokens(setting, planned):
    lines = [line for line in START if "after" not in line]
    run = read(*lines, f"[2021-05-26 23:12:33] [config] {setting}", FIRST, SECOND)
    assert run.facts["steps_planned"] == planned


def test_the_plan_is_that_of_the_launch_that_trained():
    failed = [
        "[2021-05-27 09:00:00] [marian] Marian v1.10.0 6f6d4846 2021-02-06 15:35:16 -0800",
        "[2021-05-27 09:00:00] [config] after-batches: 900000",
        "[2021-05-27 09:00:01] Error: File 'data/train.my' does not exist",
    ]
    run = read(*START, FIRST, SECOND, *failed, *failed)
    assert run.facts["steps_planned"] == 600_000
    assert len(run.launches) == 3


def test_the_plan_in_epochs():
    lines = ["[2021-05-26 23:12:33] [config] after-batches: 0", "[2021-05-26 23:12:33] [config] after-epochs: 20"]
    seen = "[2021-05-26 23:30:33] Seen 30,406 samples"
    run = read(*START, *lines, FIRST, seen, FIRST.replace("Ep. 1", "Ep. 2").replace("Up. 500", "Up. 1500"))
    assert (run.facts["epochs_planned"], run.facts["epochs_done"]) == (20, 1.5)
    assert run.facts["steps_planned"] == 20_000


@pytest.mark.parametrize(
    ("lines", "num_devices"),
    [
        (["[training] Using 8 GPUs, distributed over 2 MPI processes"], 8),
        (["[memory] Extending reserved space to 9216 MB (device gpu0)", "[memory] Reserving 397 MB, device gpu3"], 2),
        (["[config] devices:", "[config]   - 0", "[config]   - 1", "[config]   - 2"], 3),
        (["[config] cpu-threads: 16"], 16),
    ],
)
def test_the_number_of_devices(lines, num_devices):
    run = read(*(f"[2021-05-26 23:11:55] {line}" for line in lines), FIRST)
    assert run.facts["num_ranks"] == num_devices


def test_other_scores_keep_their_names():
    lines = [
        VALID[1].replace("perplexity : 41.8906", f"{name} : 50.5") for name in ("chrf", "valid-script", "bleu-detok")
    ]
    (record,) = of_kind(read(*lines, VALID[2]), "evaluation")
    assert (record["chrf"], record["bleu"]) == (50.5, 50.5)
    assert record["other_scores"] == {"valid-script": 50.5, "bleu": 3.71}


def test_the_same_evaluation_in_two_logs_counts_once():
    (record,) = of_kind(read(FIRST, *VALID[:2], SECOND, *VALID), "evaluation")
    assert (record["perplexity"], record["bleu"]) == (41.8906, 3.71)


def test_a_launch_that_failed_in_its_configuration():
    error = "[2021-05-26 23:11:56] Error: Vocabulary file does not exist: vocab.yml"
    aborted = "[2021-05-26 23:11:56] Error: Aborted from marian::Vocab::load in src/data/vocab.cpp:42"
    second_error = "[2021-05-26 23:11:56] Error: Unhandled exception"
    run = read(*START[:5], error, aborted, second_error, *START, FIRST)
    first, second = run.launches
    assert (first.end, first.reason) == ("failed", "Vocabulary file does not exist: vocab.yml")
    assert (second.end, second.last_step, run.facts["num_attempts"]) == ("unknown", 500, 2)
    assert is_own_line(aborted)


def test_a_run_that_was_asked_to_stop_is_not_finished():
    run = read(*START, FIRST, "[2021-05-28 00:00:00] Training interrupted (via signal).")
    assert run.facts["is_finished"] is False
    assert run.launches[-1].end == "stopped"


@pytest.mark.parametrize(
    ("lines", "is_midway"),
    [
        ([*START, FIRST, SECOND], False),
        ([*START[:-1], "[2021-05-26 23:12:33] Loading model from m/model.npz", START[-1], SECOND], True),
        ([FIRST, SECOND], False),
        ([SECOND, SECOND.replace("Up. 1000", "Up. 1500")], True),
        ([FIRST.replace("Ep. 1", "Ep. 7")], True),
    ],
)
def test_a_log_that_begins_midway(lines, is_midway):
    assert read(*lines).facts.get("begins_midway", False) is is_midway


def test_saving_a_training_checkpoint_is_no_restart():
    saving = "[2021-05-27 00:53:12] [training] Saving training checkpoint to m/model.npz and m/model.npz.optimizer.npz"
    run = read(*START, FIRST, SECOND, saving, SECOND.replace("Up. 1000", "Up. 1500"))
    assert of_kind(run, "restart") == []
    assert [record["path"] for record in of_kind(run, "checkpoint")] == ["m/model.npz"]


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


@given(st.lists(st.text() | st.sampled_from([FIRST, SECOND, *VALID, *START, *REAL]), max_size=8), st.integers(0, 150))
def test_any_lines_can_be_read(lines, cut):
    assert is_sound(read(*lines, *(line[:cut] for line in lines), *(line[:22] + line[cut:] for line in lines)))


@given(st.text(alphabet="0123456789naif.,e+-٣", max_size=40))
def test_any_number_can_be_read(text):
    lines = [FIRST.replace("500", text), FIRST.replace("6.01253986", text), VALID[0].replace("219.282", text)]
    assert is_sound(read(*(line.replace("16000", text) for line in START), *lines))


def test_a_second_launch_from_scratch_begins_at_step_0():
    run = read(*START, FIRST, SECOND, *START, FIRST, SECOND)
    assert [record["step"] for record in of_kind(run, "restart")] == [0]
    assert of_kind(run, "train")[-2]["seconds_per_step"] == pytest.approx(609.91 / 500)


def test_devices_are_those_of_the_launch_that_trained():
    def launch(day: int, *devices: str) -> list[str]:
        memory = [f"[2021-05-{day} 23:12:00] [memory] Reserving 230 MB, device {device}" for device in devices]
        return [START[0].replace("05-26", f"05-{day}"), START[1].replace("05-26", f"05-{day}"), *memory]

    first, second = launch(26, "gpu0", "gpu1", "gpu2"), launch(27, "gpu0", "gpu1", "cpu0")
    run = read(*first, FIRST, *second, VALID[0].replace("Up. 5000", "Up. 500"), SECOND.replace("-26 ", "-27 "))
    assert run.facts["num_ranks"] == 2, "averaged weights in main memory are no device"
    assert "Marian trained on the CPU, not on a GPU." not in run.notes
    assert [launch.hosts for launch in run.launches] == [["work1"], ["work1"]]


STOPPING = """\
[2022-07-14 18:23:34] [config] early-stopping: 2
[2022-07-14 18:23:34] [config] early-stopping-on: {rule}
[2022-07-14 18:23:34] [config] valid-metrics:
[2022-07-14 18:23:34] [config]   - chrf
[2022-07-14 18:23:34] [config]   - ce-mean-words
[2022-07-14 18:23:34] [config]   - bleu-detok"""


@pytest.mark.parametrize(("rule", "metric", "number"), [("first", "chrf", 2), ("any", "ce-mean-words", 5)])
def test_the_metric_that_stopped_the_training_is_named(rule, metric, number):
    stalled = {"chrf": 2, "ce-mean-words": 5, "bleu-detok": 3}
    scores = [
        f"[2022-07-17 05:15:48] [valid] Ep. 3 : Up. 5000 : {name} : 3.3 : stalled {num} times (last best: 2.2)"
        for name, num in stalled.items()
    ]
    lines = STOPPING.format(rule=rule).splitlines()
    run = read(*lines, FIRST, *scores, "[2022-07-17 05:15:54] Training finished")
    assert run.launches[-1].reason == f"Marian stopped early: {metric} had not improved for {number} validations."


def test_messages_that_were_joined_into_one_line_are_read():
    joined = f"[2021-05-26 23:12:33] [data] Done reading 256,102 sentences      {FIRST}   {SECOND}"
    assert [record["step"] for record in of_kind(read(joined), "train")] == [500, 1000]


def test_part_of_the_first_epoch_is_unknown_without_the_size_of_the_data():
    assert "epochs_done" not in read(FIRST).facts
    read_by_then = "[2021-05-26 23:12:33] [data] Done reading 152,030 sentences"
    assert read(read_by_then, FIRST).facts["epochs_done"] == pytest.approx(0.1)


def test_a_score_that_stalled_at_first_shows_an_earlier_evaluation():
    stalled = VALID[1].replace("Ep. 1", "Ep. 26")
    assert read(stalled).facts["begins_midway"] is True
    assert "begins_midway" not in read(VALID[0]).facts


def test_an_evaluation_that_is_not_a_number_took_place():
    run = read("[2017-10-19 23:16:40] [valid] Ep. 1 : Up. 4000 : cross-entropy : nan : new best")
    (record,) = of_kind(run, "evaluation")
    assert (record["step"], "loss" in record) == (4000, False)
