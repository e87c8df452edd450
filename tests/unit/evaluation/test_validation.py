"""Judging on the dev set: repeatable, a sign of life at every batch, and a request to stop is heard in between."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU

from dragoman.cluster import heartbeat
from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.evaluation.validation import NUM_SAMPLES, Evaluation, evaluate_on_dev, save_translations
from dragoman.model.shape import resolve_shape
from dragoman.model.transformer import Transformer
from dragoman.run.config import build_settings
from dragoman.run.folder import RunFolder


@dataclass
class Judge:
    """A model, and what it is judged on."""

    model: Transformer
    corpus: PreparedCorpus
    settings: Any

    def judge(self, world: Any = None, **options: Any) -> Evaluation | None:
        return evaluate_on_dev(self.model, self.corpus, self.settings, world or World(), **options)


@pytest.fixture(scope="module")
def judge(prepared):
    corpus = PreparedCorpus.open(prepared)
    model = {"preset": "tiny", "width": 16, "feed_forward": 16}
    evaluation = {"beam_size": 1, "max_sentences": 4}
    settings = build_settings({"data": {"prepared": str(prepared)}, "model": model, "evaluation": evaluation})
    torch.manual_seed(0)
    shape = resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    return Judge(Transformer(shape), corpus, settings)


class Patience:
    """Lasts for so many questions."""

    def __init__(self, num_questions: int) -> None:
        self._num_left = num_questions
        self.num_asked = 0

    def __call__(self) -> bool:
        self.num_asked += 1
        self._num_left -= 1
        return self._num_left < 0


@dataclass
class OneOfTwo:
    """The first of two ranks; the other one is played."""

    is_other_interrupted: bool
    rank: int = 0
    size: int = 2
    collectives: list[str] = field(default_factory=list)

    def largest_numbers(self, numbers: list[float]) -> list[float]:
        self.collectives.append("agree")
        return [max(number, float(self.is_other_interrupted)) for number in numbers]

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        self.collectives.append("sum")
        return numbers

    def gather_texts(self, indexed: list[tuple[int, str]]) -> list[str]:
        """The other rank's share is not there: its texts are missing."""
        self.collectives.append("gather")
        return [text for _, text in sorted(indexed)]


def test_figures_of_an_untrained_model(judge):
    figures = judge.judge().figures()
    assert figures["loss"] > 1
    assert figures["bleu"] < 5
    assert "nrefs:1" in figures["signature"]


def test_judging_leaves_the_model_in_the_mode_it_was_in_even_if_it_is_cut_off(judge):
    judge.model.train()
    judge.judge()
    assert judge.model.training
    judge.judge(should_stop=lambda: True)
    assert judge.model.training


def test_judged_twice_the_figures_are_the_same(judge):
    first, second = (judge.judge().figures() for _ in range(2))
    assert {name: value for name, value in first.items() if name != "seconds"} == {
        name: value for name, value in second.items() if name != "seconds"
    }


def test_a_request_to_stop_is_heard_at_every_batch_and_cuts_the_judging_off(judge):
    whole = Patience(10**6)
    assert judge.judge(should_stop=whole) is not None
    assert whole.num_asked > 1  # of the loss, and of the translations
    for num_questions in range(whole.num_asked):
        patience = Patience(num_questions)
        assert judge.judge(should_stop=patience) is None
        assert patience.num_asked == num_questions + 1


@pytest.mark.parametrize(("is_asked", "is_other_asked"), [(True, False), (False, True), (True, True)])
def test_ranks_that_hear_of_it_at_different_times_agree_before_they_share_figures(judge, is_asked, is_other_asked):
    world = OneOfTwo(is_other_interrupted=is_other_asked)
    assert judge.judge(world, should_stop=lambda: is_asked) is None
    assert world.collectives == ["agree"]


def test_every_batch_is_a_sign_of_life(judge, monkeypatch):
    """Judging may take longer than a launcher's patience with a silent worker."""
    noted = []
    monkeypatch.setattr(heartbeat._heartbeat, "note", lambda doing, **_: noted.append(doing))
    judge.judge()
    assert {"judging the dev set", "translating the dev set"} <= set(noted)


def test_training_sentences_are_judged_as_the_dev_set_is(judge):
    """The dev set of this corpus stands in for the training text: then both losses must be the same."""
    corpus = judge.corpus
    with pytest.MonkeyPatch.context() as patch:
        split = type(corpus).split
        patch.setattr(type(corpus), "split", lambda self, name: split(self, "dev"))
        figures = judge.judge().figures()
    assert figures["train_sample_loss"] == pytest.approx(figures["loss"], rel=1e-5)


def test_the_first_translations_stand_in_the_record(judge):
    judged = judge.judge()
    samples = judged.figures()["samples"]
    assert len(samples) == NUM_SAMPLES
    assert samples[1] == {
        "source": judged.sources[1],
        "reference": judged.references[1],
        "translation": judged.translations[1],
    }
    assert not set(judged.figures()) & {"sources", "references", "translations"}
    json.dumps(judged.figures())


def test_kept_translations_sum_up_to_the_bleu_of_the_evaluation(judge, tmp_path):
    judged = judge.judge()
    run = RunFolder(tmp_path)
    save_translations(run, 7, judged)
    head, *sentences = [json.loads(line) for line in run.translations.read_text(encoding="utf-8").splitlines()]
    assert head == {"step": 7, "bleu": judged.bleu, "signature": judged.signature}
    assert [each["translation"] for each in sentences] == list(judged.translations)
    sums = np.array([each["bleu_counts"] for each in sentences]).sum(axis=0)
    expected = BLEU().corpus_score(list(judged.translations), [list(judged.references)])
    assert sums.tolist() == [expected.sys_len, expected.ref_len, *expected.counts, *expected.totals]


def test_translations_that_cannot_be_kept_do_not_end_a_run(judge, tmp_path):
    gone = RunFolder(tmp_path / "gone")
    save_translations(gone, 7, judge.judge())
    assert not gone.path.exists()
