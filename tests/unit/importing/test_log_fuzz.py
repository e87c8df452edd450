"""No line of a log, however damaged, may raise, hang or fill the memory."""

import time

import pytest
from foreign_logs import is_sound
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.importing.failures import FailureWatch
from dragoman.importing.foreign_run import MAX_LISTED, ForeignRun
from dragoman.importing.log_text import MAX_LINE_BYTES
from dragoman.importing.nccl import NcclWatch
from dragoman.importing.openseq2seq import OpenSeq2SeqReader

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
lines = st.lists(st.sampled_from(PARTS) | st.text(max_size=10), max_size=6).map("".join)


def read(log):
    run = ForeignRun()
    readers = [OpenSeq2SeqReader(run), NcclWatch(run), FailureWatch(run)]
    for line in log:
        for reader in readers:
            reader.read(line)
    for reader in readers:
        reader.finish()
    return run


@settings(max_examples=150, deadline=None)
@given(st.lists(lines, max_size=30))
def test_any_log_is_read(log):
    assert is_sound(read(log))


@pytest.mark.slow
@settings(max_examples=4_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(lines, max_size=60))
def test_very_many_logs_are_read(log):
    assert is_sound(read(log))


@pytest.mark.parametrize("part", PARTS)
def test_a_line_that_repeats_itself_takes_no_time(part):
    line = (part * (MAX_LINE_BYTES // len(part)))[:MAX_LINE_BYTES]
    start = time.perf_counter()
    read([line, "*** Training config:", "{" + line, " " + line, "*** Global step 5: " + line, line])
    assert time.perf_counter() - start < 2


@pytest.mark.slow
def test_a_long_log_of_different_messages_stays_small():
    run = read(
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
    assert len(run.facts["gpus"]) <= MAX_LISTED
    assert len(run.facts["hosts"]) <= MAX_LISTED
    assert len(run.records) <= 100_000
    assert len(run.failures) <= MAX_LISTED
