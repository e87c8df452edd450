"""A brief rehearsal: a few whole steps within seconds that change nothing and leave no model behind."""

import gc
from pathlib import Path

import pytest
import torch

from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.model.transformer import Transformer
from dragoman.run.config import Settings, load_settings
from dragoman.training import rehearsal
from dragoman.training.learner import Learner, build_learner
from dragoman.training.rehearsal import BRIEF_STEPS, rehearse_briefly


@pytest.fixture
def settings(config: Path) -> Settings:
    return load_settings(config)


@pytest.fixture
def num_learned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that are made."""
    steps: list[int] = []
    learn = Learner.learn

    def count(learner: Learner, step: int, *arguments):
        steps.append(step)
        return learn(learner, step, *arguments)

    monkeypatch.setattr(Learner, "learn", count)
    return steps


def open_corpus(settings: Settings) -> PreparedCorpus:
    return PreparedCorpus.open(settings.data.prepared)


def test_it_predicts_from_a_few_steps(settings, num_learned):
    prediction = rehearse_briefly(settings, open_corpus(settings), World())
    assert 0 < prediction.low < prediction.seconds < prediction.high
    assert (prediction.basis, prediction.num_workers, prediction.parts) == ("rehearsal", 1, {})
    assert 2 <= len(num_learned) <= 1 + BRIEF_STEPS


def test_a_first_step_that_takes_all_the_time_is_the_only_one(settings, num_learned, monkeypatch):
    monkeypatch.setattr(rehearsal, "BRIEF_SECONDS", 0.0)
    assert rehearse_briefly(settings, open_corpus(settings), World()).seconds > 0
    assert num_learned == [0]


def find_models() -> set[int]:
    """Identities of all models in memory; tests that ran before may have left some."""
    gc.collect()
    return {id(each) for each in gc.get_objects() if type(each) is Transformer}


def test_it_leaves_no_model_and_the_run_begins_with_the_same_weights(settings):
    corpus = open_corpus(settings)
    expected = {
        name: weight.clone() for name, weight in build_learner(settings, corpus, World()).model.state_dict().items()
    }
    before = find_models()
    rehearse_briefly(settings, corpus, World())
    assert find_models() == before
    weights = build_learner(settings, corpus, World()).model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
