"""Validation on the dev set: repeatable, with a heartbeat at every batch, and ended early by a request to stop."""

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
from dragoman.evaluation import validation
from dragoman.evaluation.validation import (
    NUM_SAMPLES,
    Evaluation,
    EvaluationFailedError,
    evaluate_on_dev,
    save_translations,
)
from dragoman.model.shape import resolve_shape
from dragoman.model.transformer import Transformer
from dragoman.run.config import build_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder


@dataclass
class Evaluator:
    """A model, and the corpus and settings of its evaluation."""

    model: Transformer
    corpus: PreparedCorpus
    settings: Any

    def evaluate(self, world: Any = None, **options: Any) -> Evaluation | None:
        return evaluate_on_dev(self.model, self.corpus, self.settings, world or World(), **options)


@pytest.fixture(scope="module")
def evaluator(prepared):
    corpus = PreparedCorpus.open(prepared)
    model = {"preset": "tiny", "width": 16, "feed_forward": 16}
    evaluation = {"beam_size": 1, "max_sentences": 4}
    settings = build_settings({"data": {"prepared": str(prepared)}, "model": model, "evaluation": evaluation})
    torch.manual_seed(0)
    shape = resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    return Evaluator(Transformer(shape), corpus, settings)


class StopAfter:
    """Asks for the end after a number of questions."""

    def __init__(self, num_questions: int) -> None:
        self._num_left = num_questions
        self.num_asked = 0

    def __call__(self) -> bool:
        self.num_asked += 1
        self._num_left -= 1
        return self._num_left < 0


@dataclass
class OneOfTwo:
    """The first of two ranks; the other one is simulated."""

    is_other_interrupted: bool = False
    others_errors: list[str | None] = field(default_factory=list)
    """Faults of the other rank, one for each time that the ranks compare theirs."""
    rank: int = 0
    size: int = 2
    collectives: list[str] = field(default_factory=list)

    def largest_numbers(self, numbers: list[float]) -> list[float]:
        self.collectives.append("agree")
        return [max(number, float(self.is_other_interrupted)) for number in numbers]

    def first_error(self, error: str | None) -> str | None:
        self.collectives.append("compare faults")
        return error or (self.others_errors.pop(0) if self.others_errors else None)

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        self.collectives.append("sum")
        return numbers

    def gather_texts(self, indexed: list[tuple[int, str]]) -> list[str]:
        """Returns the texts of this rank alone."""
        self.collectives.append("gather")
        return [text for _, text in sorted(indexed)]


def test_figures_of_an_untrained_model(evaluator):
    figures = evaluator.evaluate().figures()
    assert figures["loss"] > 1
    assert figures["bleu"] < 5
    assert "nrefs:1" in figures["signature"]


@pytest.mark.parametrize(("tokenizer", "signed"), [("auto", "13a"), ("char", "char")])
def test_scores_and_counts_of_sentences_are_those_of_the_tokenizer(evaluator, tmp_path, tokenizer, signed):
    evaluation_settings = evaluator.settings.evaluation.model_copy(update={"tokenizer": tokenizer})
    settings = evaluator.settings.model_copy(update={"evaluation": evaluation_settings})
    evaluation = Evaluator(evaluator.model, evaluator.corpus, settings).evaluate()
    assert f"|tok:{signed}|" in evaluation.signature
    save_translations(RunFolder(tmp_path), 5, evaluation)
    head, *rows = map(json.loads, RunFolder(tmp_path).translations.read_text().splitlines())
    assert head["signature"] == evaluation.signature
    words = BLEU(tokenize=signed).tokenizer
    lengths = [row["bleu_counts"][1] for row in rows]
    assert lengths == [len(words(row["reference"]).split()) for row in rows]


def test_the_model_gets_its_mode_back_even_if_evaluation_is_interrupted(evaluator):
    evaluator.model.train()
    evaluator.evaluate()
    assert evaluator.model.training
    evaluator.evaluate(should_stop=lambda: True)
    assert evaluator.model.training


def test_a_second_evaluation_gives_the_same_figures(evaluator):
    first, second = (evaluator.evaluate().figures() for _ in range(2))
    assert {name: value for name, value in first.items() if name != "seconds"} == {
        name: value for name, value in second.items() if name != "seconds"
    }


def test_a_request_to_stop_is_checked_at_every_batch_and_interrupts(evaluator):
    never = StopAfter(10**6)
    assert evaluator.evaluate(should_stop=never) is not None
    assert never.num_asked > 1  # of the loss, and of the translations
    for num_questions in range(never.num_asked):
        stop = StopAfter(num_questions)
        assert evaluator.evaluate(should_stop=stop) is None
        assert stop.num_asked == num_questions + 1


@pytest.mark.parametrize(("is_asked", "is_other_asked"), [(True, False), (False, True), (True, True)])
def test_ranks_that_notice_it_at_different_times_agree_before_they_share_figures(evaluator, is_asked, is_other_asked):
    world = OneOfTwo(is_other_interrupted=is_other_asked)
    assert evaluator.evaluate(world, should_stop=lambda: is_asked) is None
    assert world.collectives == ["compare faults", "compare faults", "agree"]


@pytest.mark.parametrize("place", ["_read_texts", "_evaluate_share", "choose_tokenizer", "score_translations"])
def test_a_fault_of_one_rank_ends_the_evaluation_on_all(evaluator, monkeypatch, place):
    """A rank that raised alone would leave the others waiting in the next collective."""

    def fail(*_: object) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "MeCab cannot read it")

    with monkeypatch.context() as faulty:
        faulty.setattr(validation, place, fail)
        with pytest.raises(EvaluationFailedError, match=r"^rank 0: UnicodeDecodeError: .*MeCab"):
            evaluator.evaluate()
        world = OneOfTwo()
        with pytest.raises(EvaluationFailedError, match=r"^rank 0: "):
            evaluator.evaluate(world)
        assert world.collectives[-1] == "compare faults"
    num_before = world.collectives.count("compare faults") - 1
    other = OneOfTwo(others_errors=[None] * num_before + ["rank 1: MemoryError: "])
    with pytest.raises(EvaluationFailedError, match=r"^rank 1: MemoryError"):
        evaluator.evaluate(other)
    assert other.collectives == world.collectives  # whichever rank fails, all make the same exchanges


def test_what_a_user_can_mend_is_said_as_it_is(evaluator, monkeypatch):
    def fail(*_: object) -> None:
        raise UserError("Install mecab-ko.")

    monkeypatch.setattr(validation, "score_translations", fail)
    with pytest.raises(EvaluationFailedError, match=r"^rank 0: Install mecab-ko\.$"):
        evaluator.evaluate()


def test_every_batch_gives_a_heartbeat(evaluator, monkeypatch):
    """Evaluation may take longer than a launcher waits for a silent worker."""
    noted = []
    monkeypatch.setattr(heartbeat._heartbeat, "note", lambda doing, **_: noted.append(doing))
    evaluator.evaluate()
    assert {"evaluating the dev set", "translating the dev set"} <= set(noted)


def test_training_sentences_are_evaluated_like_the_dev_set(evaluator):
    """The dev set of this corpus stands in for the training text: then both losses must be the same."""
    corpus = evaluator.corpus
    with pytest.MonkeyPatch.context() as patch:
        split = type(corpus).split
        patch.setattr(type(corpus), "split", lambda self, name: split(self, "dev"))
        figures = evaluator.evaluate().figures()
    assert figures["train_sample_loss"] == pytest.approx(figures["loss"], rel=1e-5)


def test_the_first_translations_are_in_the_record(evaluator):
    evaluation = evaluator.evaluate()
    samples = evaluation.figures()["samples"]
    assert len(samples) == NUM_SAMPLES
    assert samples[1] == {
        "source": evaluation.sources[1],
        "reference": evaluation.references[1],
        "translation": evaluation.translations[1],
    }
    assert not set(evaluation.figures()) & {"sources", "references", "translations"}
    json.dumps(evaluation.figures())


def test_saved_translations_sum_up_to_the_bleu_of_the_evaluation(evaluator, tmp_path):
    evaluation = evaluator.evaluate()
    run = RunFolder(tmp_path)
    save_translations(run, 7, evaluation)
    head, *sentences = [json.loads(line) for line in run.translations.read_text(encoding="utf-8").splitlines()]
    assert head == {"step": 7, "bleu": evaluation.bleu, "signature": evaluation.signature}
    assert [each["translation"] for each in sentences] == list(evaluation.translations)
    sums = np.array([each["bleu_counts"] for each in sentences]).sum(axis=0)
    expected = BLEU().corpus_score(list(evaluation.translations), [list(evaluation.references)])
    assert sums.tolist() == [expected.sys_len, expected.ref_len, *expected.counts, *expected.totals]


def test_translations_that_cannot_be_saved_do_not_end_a_run(evaluator, tmp_path):
    gone = RunFolder(tmp_path / "gone")
    save_translations(gone, 7, evaluator.evaluate())
    assert not gone.path.exists()
