"""Counting evaluations without a better value."""

from typing import Any

import pytest

from dragoman.run.config import Settings, build_settings
from dragoman.training.dev_progress import DevProgress, is_better


def settings(**sections: dict[str, Any]) -> Settings:
    return build_settings({"data": {"prepared": "somewhere"}, **sections})


def follow(figures: list[dict[str, Any]], each: Settings, num_updates: int = 10**6) -> DevProgress:
    progress = DevProgress()
    for evaluation in figures:
        progress = progress.after(evaluation, each, num_updates)
    return progress


def test_bleu_that_is_still_zero_gets_better_with_the_loss():
    rising = [{"bleu": 0.0, "loss": loss} for loss in (9.0, 8.0, 7.0)]
    assert follow(rising, settings()).num_without_better == 0
    assert follow([*rising, {"bleu": 0.0, "loss": 7.0}], settings()).num_without_better == 1


@pytest.mark.parametrize(
    ("metric", "better", "worse"),
    [
        ("bleu", {"bleu": 2.0, "loss": 9.0}, {"bleu": 1.0, "loss": 1.0}),
        ("chrf", {"chrf": 2.0, "bleu": 0.0}, {"chrf": 1.0, "bleu": 9.0}),
        ("loss", {"loss": 1.0, "bleu": 0.0}, {"loss": 2.0, "bleu": 9.0}),
        ("loss", {"loss": 1.0}, {"loss": float("nan")}),
    ],
)
def test_evaluations_are_compared_by_the_metric(metric, better, worse):
    assert is_better(better, worse, metric)
    assert not is_better(worse, better, metric)
    assert not is_better(better, better, metric)


def test_patience_counts_from_the_best():
    each = settings(evaluation={"patience": 2, "metric": "loss"})
    losses = [{"loss": loss} for loss in (3.0, 3.1, 2.0, 2.1, 2.2)]
    assert [follow(losses[:number], each).is_patience_over(each) for number in range(6)] == [False] * 5 + [True]
    assert not follow(losses, each).is_patience_over(settings())  # switched off


def test_a_plateau_counts_again_after_each_cut_and_not_during_warm_up():
    each = settings(
        evaluation={"metric": "loss"}, training={"schedule": "plateau", "plateau_patience": 2, "warmup_steps": 10}
    )
    flat = [{"loss": 1.0}] * 6
    assert [follow(flat[:number], each).num_cuts for number in range(7)] == [0, 0, 0, 1, 1, 2, 2]
    assert follow(flat, each, num_updates=9).num_cuts == 0
    assert follow(flat, settings(evaluation={"metric": "loss"})).num_cuts == 0  # another schedule
