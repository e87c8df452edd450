"""Batches are read one step ahead: the same steps in the same order, and errors where they belong."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.config import Settings, build_settings
from dragoman.run.errors import UserError
from dragoman.training.learner import build_stream, read_micro_batches
from dragoman.training.read_ahead import ReadAhead

CPU = torch.device("cpu")
SHARE = range(1, 3)
NUM_STEPS = 7


@pytest.fixture
def settings(prepared) -> Settings:
    training = {"global_batch_tokens": 256, "virtual_workers": 3}
    return build_settings({"data": {"prepared": str(prepared)}, "training": training})


def stream_of(settings: Settings) -> Any:
    corpus = PreparedCorpus.open(settings.data.prepared)
    return build_stream(settings, corpus, Mixture.build(corpus.train_corpora, settings.data))


@pytest.fixture
def reader(settings) -> Iterator[ReadAhead]:
    with ReadAhead(stream_of(settings), SHARE, CPU) as reader:
        yield reader


def test_steps_and_positions_are_those_of_the_stream(settings, reader):
    stream = stream_of(settings)
    for _ in range(NUM_STEPS):
        plan = stream.next_step()
        expected, found = read_micro_batches(stream, plan, SHARE), reader.take()
        assert found.plan.num_target_tokens == plan.num_target_tokens
        assert found.position == stream.position
        assert found.batches.keys() == expected.keys() == set(SHARE)
        for worker, batch in expected.items():
            assert np.array_equal(found.batches[worker].source, batch.source)
            assert np.array_equal(found.batches[worker].target_output, batch.target_output)


def test_one_step_is_read_ahead_and_no_more(settings):
    stream = stream_of(settings)
    with ReadAhead(stream, SHARE, CPU) as reader:
        taken = reader.take()
        reader.rest()
        assert (taken.position.step, stream.position.step) == (1, 2)


def test_an_error_in_the_thread_is_that_of_the_step(settings):
    stream = stream_of(settings)
    with ReadAhead(stream, SHARE, CPU) as reader:
        reader.take()
        reader.rest()
        stream.next_step = lambda: (_ for _ in ()).throw(UserError("The corpus is gone."))
        reader.take()  # was read before
        reader.rest()
        with pytest.raises(UserError, match=r"The corpus is gone\."):
            reader.take()


def test_an_error_of_a_step_that_is_never_made_harms_nobody(settings):
    stream = stream_of(settings)
    with ReadAhead(stream, SHARE, CPU) as reader:
        stream_next = stream.next_step
        steps = iter([stream_next])
        stream.next_step = lambda: next(steps)()
        reader.take()
        reader.rest()


def test_the_thread_ends_with_the_reader_even_after_an_error(settings):
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]

    with suppress(ZeroDivisionError), ReadAhead(stream_of(settings), SHARE, CPU) as reader:
        reader.take()
        reader.rest()
        assert threads()
        raise ZeroDivisionError
    assert not threads()
