"""OpenSeq2Seq's lines, complete, mixed with lines of other processes, and damaged."""

import math
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, read_lines_with

from dragoman.importing.imported_run import MAX_LISTED
from dragoman.importing.log_failures import FailureReader
from dragoman.importing.log_text import MAX_LINE_BYTES, read_lines
from dragoman.importing.trainers.nccl import NcclReader
from dragoman.importing.trainers.openseq2seq import (
    CONTINUED,
    MAX_TRAIN_SAMPLES,
    TEACHER_FORCED,
    TRAINER,
    OpenSeq2SeqReader,
    is_own_line,
)
from dragoman.importing.trainers.openseq2seq_config import NO_LOSS_SCALING

REAL_LOG = Path(__file__).parents[5] / "shared/logs/nohup_2x2_v100_mixed.out.xz"

READERS = (OpenSeq2SeqReader, NcclReader, FailureReader)
CONFIG = """\
*** Using horovod
*** Starting training from scratch
*** Training config:
{'batch_size_per_gpu': 256,
 'data_layer_params': {'source_file': '/data/train.clean.en.shuffled.tok',
                       'target_file': '/data/train.clean.de.shuffled.tok'},
 'decoder_params': {'alpha': 0.6,
                    'beam_size': 4,
                    'filter_size': 2048,
                    'hidden_size': 512,
                    'num_hidden_layers': 5},
 'dtype': 'mixed',
 'encoder_params': {'attention_dropout': 0.1,
                    'encoder_layers': 6,
                    'filter_size': 2048,
                    'hidden_size': 512,
                    'layer_postprocess_dropout': 0.2,
                    'num_heads': 8},
 'eval_steps': 4001,
 'logdir': '/data/en-de-transformer/',
 'loss': <class 'open_seq2seq.losses.sequence_loss.PaddedCrossEntropyLossWithSmoothing'>,
 'loss_params': {'label_smoothing': 0.1},
 'loss_scaling': 'Backoff',
 'lr_policy': <function transformer_policy at 0x7f4899ef1ae8>,
 'lr_policy_params': {'d_model': 512,
                      'learning_rate': 2.0,
                      'warmup_steps': 8000},
 'max_steps': 300000,
 'num_gpus': 1,
 'optimizer_params': {'beta1': 0.9, 'beta2': 0.997, 'epsilon': 1e-09},
 'print_loss_steps': 100,
 'save_checkpoint_steps': 299998,
 'use_horovod': True}
*** Evaluation config:
{'batch_size_per_gpu': 16,
 'data_layer_params': {'source_file': '/data/wmt13.src.tok',
                       'target_file': '/data/wmt13.ref.tok'}}
*** Building graph in Horovod rank: 3
*** Building graph in Horovod rank: 0
*** Trainable variables:
***   ForwardPass/transformer_encoder/embedding_shared_weights/embedding_and_softmax/weights:0
***     shape: (32768, 512), <dtype: 'float16_ref'>
***   ForwardPass/transformer_encoder/layer_0/ffn/filter_layer/kernel:0
***     shape: (512, 2048), <dtype: 'float16_ref'>
*** Total trainable parameters: 60880896
2020-12-31 23:52:17.265471: I tensorflow/core/gpu_device.cc:1432] Found device 0 with properties:
name: Tesla V100-PCIE-16GB major: 7 minor: 0 memoryClockRate(GHz): 1.38
2020-12-31 23:52:17.691609: I tensorflow/x.cc:1115] -> physical GPU (device: 1, name: Tesla V100-PCIE-16GB, pci bus
"""
EVALUATION = """\
*** Running evaluation on a validation set:
***     *****EVAL Source[0]:     <s> ▁A ▁Republic an ▁strategy </s>
***     *****EVAL Target[0]:     <s> ▁Eine ▁Strategie </s>
***     *****EVAL Prediction[0]: ▁External <s> ▁Eine ▁Strategie </s> betrag betrag
***     Validation loss: {loss}
***     Eval BLUE score: {bleu}
"""


def step_lines(step, loss="7.7754", seconds="0:00:1.946", source="<s> ▁The ▁to ur . </s>"):
    return (
        f"*** Global step {step}: ***     Train loss: {loss} \n"
        f"time per step = {seconds}\n"
        f"***     Train Source[0]:     {source}\n"
        "***     Train Target[0]:     <s> ▁Die ▁Tour . </s>\n"
        "***     Train Prediction[0]: <s> ▁Die ▁Reise . </s> ▁k ▁k\n"
    )


def evaluation_lines(loss="9.4470", bleu="0.9465"):
    return EVALUATION.format(loss=loss, bleu=bleu)


def read(text):
    return read_lines_with(READERS, text.splitlines())


def records(run, kind="train"):
    return of_kind(run, kind)


def test_the_configuration_becomes_facts():
    run = read(CONFIG)
    expected = {
        "parameters": 60_880_896,
        "num_ranks": 4,
        "precision": "mixed",
        "batch_sentences_per_rank": 256,
        "steps_planned": 300_000,
        "evaluate_every": 4001,
        "log_every": 100,
        "vocab_size": 32_768,
        "training_files": {
            "source": "/data/train.clean.en.shuffled.tok",
            "target": "/data/train.clean.de.shuffled.tok",
        },
        "dev_files": {"source": "/data/wmt13.src.tok", "target": "/data/wmt13.ref.tok"},
        "source_language": "en",
        "target_language": "de",
        "encoder_layers": 6,
        "decoder_layers": 5,
        "label_smoothing": 0.1,
        "loss_unit": "nats per token",
        "gpus": ["Tesla V100-PCIE-16GB"],
        "started": 1609458737.0,
    }
    assert {name: run.facts.get(name) for name in expected} == expected
    assert run.trainer == TRAINER


def test_the_configuration_becomes_settings():
    found = read(CONFIG).settings
    assert found["model"] == {
        "width": 512,
        "feed_forward": 2048,
        "heads": 8,
        "encoder_layers": 6,
        "decoder_layers": 5,
        "dropout": 0.2,
        "attention_dropout": 0.1,
    }
    training = found["training"]
    assert (training["schedule"], training["learning_rate"], training["warmup_steps"]) == ("transformer", 2.0, 8000)
    assert (training["precision"], training["beta2"], training["max_steps"]) == ("fp16", 0.997, 300_000)
    assert found["evaluation"] == {"evaluate_every": 4001, "beam_size": 4, "length_penalty": 0.6}


@pytest.mark.parametrize(
    ("policy", "schedule"),
    [("fixed_lr", "fixed"), ("poly_decay", "polynomial"), ("exp_decay", "exponential"), ("cosine_decay", "cosine")],
)
def test_other_schedules(policy, schedule):
    text = CONFIG.replace("transformer_policy", policy).replace("'d_model': 512", "'decay_steps': 70, 'min_lr': 1e-5")
    training = read(text).settings["training"]
    assert (training["schedule"], training["learning_rate"]) == (schedule, 2.0)
    assert (training["decay_steps"], training["minimum_learning_rate"]) == (70, 1e-5)


def test_a_schedule_we_do_not_have_is_left_out():
    assert "schedule" not in read(CONFIG.replace("transformer_policy", "my_policy")).settings["training"]


def test_a_width_of_the_schedule_that_differs_from_the_models():
    training = read(CONFIG.replace("'d_model': 512", "'d_model': 2048")).settings["training"]
    assert training["learning_rate"] * 512**-0.5 == pytest.approx(2.0 * 2048**-0.5)


def test_mixed_precision_without_loss_scaling_is_noted():
    assert NO_LOSS_SCALING not in read(CONFIG).notes
    run = read(CONFIG.replace(" 'loss_scaling': 'Backoff',\n", ""))
    assert NO_LOSS_SCALING in run.notes
    assert run.facts["loss_scaling"] == "none"


def test_steps_and_their_times():
    run = read(CONFIG + step_lines(0, seconds="0:00:0.938") + step_lines(100, "6.5", "0:00:2.0") + step_lines(200))
    first, second, third = records(run)
    assert (first["step"], first["loss"]) == (0, 7.7754)
    assert "seconds_per_step" not in first  # preparations, not steps
    assert (second["seconds_per_step"], second["training_seconds"]) == (2.0, 200.0)
    assert third["training_seconds"] == pytest.approx(200 + 194.6)


def test_a_step_of_more_than_an_hour():
    run = read(step_lines(0) + step_lines(100, seconds="1:02:3.5"))
    assert records(run)[1]["seconds_per_step"] == 3723.5


def test_the_older_form_on_one_line():
    text = "*** Epoch 0, global step 0: loss = 9.1, time per step = 0:00:0.1\n"
    run = read(text + "*** Epoch 1, global step 100: loss = 3.2500, time per step = 0:00:1.500\n")
    assert [(r["step"], r["loss"]) for r in records(run)] == [(0, 9.1), (100, 3.25)]
    assert records(run)[1]["seconds_per_step"] == 1.5


def test_samples_are_sentences():
    (record,) = records(read(step_lines(0)))
    assert record["sample"] == {"source": "The tour.", "target": "Die Tour.", "prediction": "Die Reise."}


@pytest.mark.parametrize(
    "trap", ["*** Global step 5: ***     Train loss: 99.0", "time per step = 9:99:9", "***     Validation loss: 9.9"]
)
def test_figures_inside_samples_are_text(trap):
    (record,) = records(run := read(step_lines(0, source=trap)))
    assert (record["step"], record["loss"]) == (0, 7.7754)
    assert records(run, "evaluation") == []


def test_a_sample_glued_behind_a_figure():
    line = "*** Global step 0: ***     Train loss: 3.5 ***     Train Source[0]:     *** Global step 5: Train loss: 9\n"
    assert [(r["step"], r["loss"]) for r in records(read(line))] == [(0, 3.5)]


def test_lines_that_are_late_or_between_others():
    text = step_lines(0) + "*** Global step 100: *** Building graph in Horovod rank: 1\n[v100b][x] something\n"
    text += "***     Train loss: 6.5 \nv100a:1:2 [0] NCCL INFO x\ntime per step = 0:00:2.5\n"
    record = records(read(text))[1]
    assert (record["step"], record["loss"], record["seconds_per_step"]) == (100, 6.5, 2.5)


def test_lines_that_are_glued_together():
    text = step_lines(0) + "*** Global step 100: ***     Train loss: 6.5 time per step = 0:00:2.5*** Global step 200: "
    text += "***     Train loss: 5.5 \n"
    assert [(r["step"], r["loss"]) for r in records(read(text))] == [(0, 7.7754), (100, 6.5), (200, 5.5)]


def test_lines_that_are_missing():
    run = read(step_lines(0) + "*** Global step 100: \n*** Global step 200: ***     Train loss: 5.5 \n")
    assert [r.get("loss") for r in records(run)] == [7.7754, None, 5.5]


def test_the_evaluation_before_step_zero_and_those_between_steps():
    text = CONFIG + evaluation_lines() + step_lines(0) + step_lines(4000)
    text += evaluation_lines("2.4410", "0.2285") + step_lines(4100)
    first, second = records(read(text), "evaluation")
    assert (first["step"], first["loss"], first["teacher_forced_bleu"]) == (0, 9.447, 0.9465)
    assert (second["step"], second["loss"], second["teacher_forced_bleu"]) == (4001, 2.441, 0.2285)


def test_an_evaluation_whose_step_is_not_known_takes_the_last_logged_one():
    run = read(step_lines(0) + step_lines(700) + evaluation_lines() + step_lines(800))
    assert records(run, "evaluation")[0]["step"] == 700


def test_the_last_evaluation_of_a_finished_run():
    text = CONFIG + step_lines(299_900) + evaluation_lines() + "*** Finished training\n*** Avg time per step: 5.526s\n"
    run = read(text + "*** Avg objects per second: 5646.307\n")
    assert records(run, "evaluation")[0]["step"] == 300_000
    assert run.facts["is_finished"] is True
    assert (run.facts["mean_seconds_per_step"], run.facts["objects_per_second"]) == (5.526, 5646.307)
    assert run.failures == []


def test_evaluation_samples_and_the_warning_about_them():
    run = read(evaluation_lines() + step_lines(0))
    assert records(run, "evaluation")[0]["samples"] == [
        {"source": "A Republican strategy", "reference": "Eine Strategie", "translation": "External Eine Strategie"}
    ]
    assert TEACHER_FORCED in run.notes
    assert run.facts["bleu_kind"] == "teacher_forced"


def sample_lines(order: str) -> str:
    """Returns lines of an evaluation for an order such as "S1 S2 T1 P1 T2 P2": side and rank."""
    sides = {"S": "Source[0]:    ", "T": "Target[0]:    ", "P": "Prediction[0]:"}
    lines = [f"***     *****EVAL {sides[each[0]]} {each[0]}{each[1:]}\n" for each in order.split()]
    return "*** Running evaluation on a validation set:\n" + "".join(lines) + "***     Validation loss: 9.4 \n"


@pytest.mark.parametrize(
    ("order", "ranks"),
    [
        ("S1 T1 P1 S2 T2 P2", "1 2"),
        ("S1 T1 S2 P1 T2 P2", "1 2"),
        ("S1 T1 S2 P1 S3 T2 P2 T3 P3 S4 T4 P4", "1 4"),
        ("S1 S2 T1 P1 T2 P2 S3 T3 P3", "3"),
        ("S1 T1 S2 T2 P2 P1 S3 T3 P3", "3"),
        ("T1 P1 S2 T2 P2", "2"),
    ],
)
def test_samples_of_ranks_that_write_at_the_same_time_are_paired_only_where_it_is_certain(order, ranks):
    (record,) = records(read(sample_lines(order)), "evaluation")
    expected = [{"source": f"S{r}", "reference": f"T{r}", "translation": f"P{r}"} for r in ranks.split()]
    assert record["samples"] == expected


@given(st.lists(st.integers(1, 4), max_size=40))
def test_no_order_of_ranks_mixes_their_samples(turns):
    """Each rank writes source, target, prediction; the turns say who writes next."""
    num_written = dict.fromkeys(range(1, 5), 0)
    order = []
    for rank in turns:
        done, side = divmod(num_written[rank], 3)
        order.append(f"{'STP'[side]}{rank}.{done}")
        num_written[rank] += 1
    (record,) = records(read(sample_lines(" ".join(order))), "evaluation")
    for sample in record.get("samples", []):
        assert len({text[1:] for text in sample.values()}) == 1


ABORTED = "*** Using horovod\n*** Starting training from scratch\n"
OUT_OF_MEMORY = "Traceback (most recent call last):\n  x\nResourceExhaustedError: OOM when allocating tensor\n"
TEARDOWN = (
    "[v100b][[1,1],3][btl_tcp.c:559:x] recv(49) failed: Connection reset by peer (104)\n"
    "UnknownError: Horovod has been shut down. This was caused by an exception on one of the ranks\n"
    "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has "
    "been aborted.\nmpirun noticed that process rank 1 with PID 234 on node v100b exited on signal 9 (Killed).\n"
)


def test_aborted_launches_before_the_one_that_trained():
    wrong = '  File "run.py", line 3\n    if x\n       ^\nSyntaxError: invalid syntax\n'
    text = wrong + ABORTED + OUT_OF_MEMORY + TEARDOWN + "bash: mpirun: command not found\n"
    run = read(text + CONFIG + step_lines(0) + step_lines(100) + "*** Finished training\n")
    ends = [(launch.number, launch.end, launch.first_step, launch.last_step) for launch in run.launches]
    assert ends == [(n, "failed", None, None) for n in (1, 2, 3)] + [(4, "finished", 0, 100)]
    assert run.launches[0].reason == "A program or script has a syntax error before the first step."
    assert run.launches[1].reason == "A GPU ran out of memory before the first step."
    assert run.launches[2].reason == "The script or program was not found before the first step."
    assert all(failure.is_fatal and failure.launch in (1, 2, 3) for failure in run.failures)
    assert not any("continued" in failure.what for failure in run.failures)
    assert records(run, "restart") == []


def test_a_launch_that_died_and_was_resumed_on_other_hosts():
    nccl = "{}:1:2 [0] NCCL INFO rank 0 nranks 2\n{}:1:2 [0] NCCL INFO rank 1 nranks 2\n"
    first = CONFIG + nccl.format("a", "b") + step_lines(0) + step_lines(200) + OUT_OF_MEMORY + TEARDOWN
    restored = "*** Using horovod\n*** Restored checkpoint from /x/model.ckpt-150. Resuming training\n"
    run = read(first + restored + nccl.format("c", "d") + step_lines(160) + step_lines(260))
    assert run.facts["hosts"] == ["c", "d"]
    assert [launch.hosts for launch in run.launches] == [["a", "b"], ["c", "d"]]
    assert [launch.end for launch in run.launches] == ["failed", "unknown"]
    died = next(failure for failure in run.failures if failure.launch == 1)
    assert (died.what, died.is_fatal) == ("A GPU ran out of memory at step 200 and ended launch 1.", True)
    assert not any("connection" in failure.what for failure in run.failures)


def test_samples_stay_few_in_a_long_run():
    run = read("".join(step_lines(step * 100) for step in range(1000)))
    num_samples = sum("sample" in record for record in records(run))
    assert len(records(run)) == 1000
    assert MAX_TRAIN_SAMPLES / 2 <= num_samples <= MAX_TRAIN_SAMPLES


def test_a_second_launch_from_scratch():
    run = read(CONFIG + step_lines(0) + step_lines(100) + CONFIG + evaluation_lines() + step_lines(0))
    (restart,) = records(run, "restart")
    assert (restart["step"], restart["cause"]) == (0, "Starting training from scratch")
    assert run.facts["num_attempts"] == 2
    assert records(run, "evaluation")[0]["step"] == 0


def test_a_launch_from_a_checkpoint():
    restored = "*** Restored checkpoint from /data/logs/model.ckpt-150. Resuming training\n"
    run = read(CONFIG + step_lines(0) + step_lines(200) + restored * 3 + step_lines(160) + step_lines(260))
    assert [record["step"] for record in records(run, "restart")] == [150]
    assert run.facts["num_attempts"] == 2
    assert CONTINUED in read(restored + step_lines(160)).notes


def test_steps_that_begin_again_without_a_word():
    run = read(step_lines(500) + step_lines(0))
    assert records(run, "restart")[0]["step"] == 0


def test_a_loss_that_is_not_a_number():
    run = read(CONFIG + step_lines(0) + step_lines(100, "nan") + step_lines(200, "nan"))
    assert run.first_nan_step == 100
    assert "not a number since step 100" in run.failures[0].what
    assert math.isfinite(records(run)[0]["loss"])


def test_dates_without_a_year_go_on_into_the_next():
    run = read(CONFIG + "W0101 00:02:59.507150 Reloader tf_logging.py:120] Found more\nE9999 99:99:99.0 x\n")
    assert run.facts["last_dated"] - run.facts["started"] == 642


def test_checkpoints_of_tensorflow():
    run = read(step_lines(0) + "INFO:tensorflow:Saving checkpoints for 100 into /data/logs/model.ckpt.\n")
    (record,) = records(run, "checkpoint")
    assert (record["step"], record["path"]) == (100, "/data/logs/model.ckpt")


def test_a_launch_that_failed():
    run = read(CONFIG + "Traceback (most recent call last):\n  x\nResourceExhaustedError: OOM when allocating tensor\n")
    assert [failure.what for failure in run.failures] == ["A GPU ran out of memory before the first step."]
    assert run.is_empty


def test_a_crash_is_put_down_to_the_step_before_it():
    crash = "Traceback (most recent call last):\n  x\nStrangeError: y\n"
    run = read(CONFIG + step_lines(0) + step_lines(100) + crash)
    assert [failure.what for failure in run.failures] == ["The program stopped with an error at step 100."]


@pytest.mark.parametrize("line", ["*** Global step 100: ***     Train loss: 7.7754 ", "*** Using horovod"])
def test_own_lines_are_known(line):
    assert is_own_line(line)
    assert not is_own_line("2020-02-25 19:52:17 | INFO | train_inner | epoch 001: loss=12.3")


@pytest.mark.slow
@pytest.mark.skipif(not REAL_LOG.exists(), reason="the log of the real run is not here")
def test_a_real_run():
    run = read_lines_with(READERS, read_lines(REAL_LOG))
    facts = run.facts
    assert (facts["parameters"], facts["num_ranks"], facts["ranks_per_host"]) == (60_880_896, 4, 2)
    assert (facts["hosts"], facts["interface"], facts["transport"]) == (["v100a", "v100b"], "eth0", "Socket")
    assert (facts["gpus"], facts["precision"]) == (["Tesla V100-PCIE-16GB"], "mixed")
    steps, evaluations = records(run), records(run, "evaluation")
    assert (len(steps), steps[0]["step"], steps[-1]["step"]) == (1064, 0, 106_300)
    assert [record["step"] for record in evaluations] == [4001 * number for number in range(27)]
    assert (evaluations[-1]["loss"], evaluations[-1]["teacher_forced_bleu"]) == (1.5469, 0.3776)
    end, connection = run.failures
    assert "training continued" in connection.what
    assert "106,300 of 300,000" in end.what


# Damaged logs: no line may raise, hang or fill the memory.

PARTS = [
    "*** ",
    "***     ",
    "Global step ",
    "Epoch 3, global step 7: ",
    "100: ",
    "Train loss: ",
    "loss = 1.5, ",
    "time per step = 0:00:1.946",
    "time per step = 9:99:9.9.9",
    "***     Train Source[0]:     <s> ▁A </s>",
    "***     Train Prediction[0]: ",
    "***     *****EVAL Source[0]: x",
    "***     *****EVAL Target[0]: y",
    "***     *****EVAL Prediction[0]: z",
    "*** Running evaluation on a validation set:",
    "Validation loss: ",
    "Eval BLUE score: ",
    "*** Training config:",
    "*** Evaluation config:",
    "{'a': {'b': <class 'x'>, ",
    " 'eval_steps': 0, 'max_steps': nan, 'lr_policy': transformer_policy, 'dtype': 'mixed',",
    " 'lr_policy_params': {'learning_rate': -1, 'd_model': 0}, 'encoder_params': [], 'loss': 5}",
    "}}}]])",
    "*** Starting training from scratch",
    "*** Restored checkpoint from model.ckpt-77",
    "*** Total trainable parameters: ",
    "*** Building graph in Horovod rank: ",
    "*** Finished training",
    "*** Avg time per step: 5s",
    "***     shape: (32768, 512)",
    "embedding",
    "2020-02-30 25:61:61.1: I tensorflow",
    "0000-00-00 00:00:00",
    "W0229 19:52:59.507150 x",
    "name: Tesla V100 major: 7",
    "Saving checkpoints for 5 into x",
    "v100a:1:2 [0] NCCL INFO rank 1 nranks 2",
    "via NET/Socket/0",
    "[v100b][[1,1],3]",
    "Traceback (most recent call last):",
    "ValueError: x",
    "CUDA out of memory",
    "Connection reset by peer",
    "nan",
    "inf",
    "1e400",
    "9" * 400,
    "9" * 15,
    "٣٤",
    "\x1b[31m",
    "'",
    '"',
    "\\",
]
LINES = st.lists(st.sampled_from(PARTS) | st.text(max_size=10), max_size=6).map("".join)


@settings(max_examples=50, deadline=None)
@given(st.lists(LINES, max_size=30))
def test_no_damaged_log_raises(log):
    assert is_sound(read_lines_with(READERS, log))


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LINES, max_size=60))
def test_none_of_very_many_damaged_logs_raises(log):
    assert is_sound(read_lines_with(READERS, log))


@pytest.mark.parametrize("part", PARTS)
def test_a_line_that_repeats_itself_takes_no_time(part):
    line = (part * (MAX_LINE_BYTES // len(part)))[:MAX_LINE_BYTES]
    start = time.process_time()
    read_lines_with(READERS, [line, "*** Training config:", "{" + line, " " + line, "*** Global step 5: " + line, line])
    assert time.process_time() - start < 2


@pytest.mark.slow
def test_a_long_log_of_different_messages_stays_small():
    lines = (
        line
        for number in range(100_000)
        for line in (
            f"*** Global step {number}: ***     Train loss: {number}.5 ",
            f"name: GPU {number} major: 7",
            f"host{number}:1:2 [0] NCCL INFO rank {number} nranks 4",
            f"Error{number}: CUDA out of memory {number}",
            "*** Starting training from scratch",
        )
    )
    run = read_lines_with(READERS, lines)
    assert len(run.facts["gpus"]) <= MAX_LISTED
    assert len(run.facts["hosts"]) <= MAX_LISTED
    assert len(run.records) <= 100_000
    assert len(run.failures) <= MAX_LISTED
