"""Scores that trainers write as fractions or not."""

from typing import Any

import pytest

from dragoman.importing.curves.score_scale import scale_scores
from dragoman.importing.imported_run import ImportedRun


def scaled(*evaluations: dict[str, Any], are_fractions: bool = False) -> list[dict[str, Any]]:
    run = ImportedRun()
    for step, figures in enumerate(evaluations, start=1):
        run.add_evaluation(step, **figures)
    scale_scores(run, are_fractions)
    return [{name: value for name, value in each.items() if name not in ("kind", "step")} for each in run.records]


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ([{"bleu": 25.0}, {"bleu": 0.5}], [{"bleu": 25.0}, {"bleu": 0.5}]),
        ([{"bleu": 0.25}, {"bleu": 0.5}], [{"bleu": 25.0}, {"bleu": 50.0}]),
        ([{"bleu": 0.5, "chrf": 18.0}], [{"bleu": 0.5, "chrf": 18.0}]),
        ([{"bleu": 25.0, "chrf": 0.5}], [{"bleu": 25.0, "chrf": 50.0}]),
        ([{"bleu": 0.5, "loss": 3.5}], [{"bleu": 0.5, "loss": 3.5}]),
        ([{"bleu": 0.25, "loss": 1.5, "ter": 0.75}], [{"bleu": 25.0, "loss": 1.5, "ter": 75.0}]),
        ([{"bleu": 0.0}], [{"bleu": 0.0}]),
        ([{"ter": 60.0}], [{"ter": 60.0}]),
        ([{"accuracy": 50.0}, {"accuracy": 0.5}], [{"accuracy": 0.5}, {"accuracy": 0.005}]),
        ([{"accuracy": 0.5}], [{"accuracy": 0.5}]),
        ([{"accuracy": 0.0}], [{"accuracy": 0.0}]),
    ],
)
def test_fractions_are_recognised(evaluations, expected):
    assert scaled(*evaluations) == expected


def test_a_trainer_that_always_writes_fractions():
    assert scaled({"bleu": 0.5, "chrf": 18.0, "loss": 4.0}, are_fractions=True)[0]["bleu"] == 50
