"""Curves: which figure a tag means, and how points become records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import of_kind

from dragoman.importing.curves import curve_collection as curves_module
from dragoman.importing.curves.curve_collection import Curves, figure_of
from dragoman.importing.imported_run import ImportedRun


@pytest.mark.parametrize(
    ("tag", "figure"),
    [
        ("train/loss", ("train", "loss")),
        ("eval/loss", ("evaluation", "loss")),
        ("train/learning_rate", ("train", "learning_rate")),
        ("train/grad_norm", ("train", "gradient_norm")),
        ("train/train_batch_loss", ("train", "loss")),
        ("valid/valid_ppl", ("evaluation", "perplexity")),
        ("progress/tgtper", ("train", "target_tokens_per_second")),
        ("valid/acc", ("evaluation", "accuracy")),
        ("Loss_Optimization_loss_scale", ("train", "loss_scale")),
        ("global_step_sec", ("train", "steps_per_second")),
        ("validationLoss", ("evaluation", "loss")),
        ("dev_bleu", ("evaluation", "bleu")),
        ("train/global_step", None),
        ("train/epoch", None),
        ("eval/runtime", ("evaluation", "seconds")),
        ("eval/steps_per_second", None),
        ("valid/best_loss", None),
        ("", None),
    ],
)
def test_tags_are_recognised_by_their_words(tag, figure):
    assert figure_of(tag) == figure


@given(st.lists(st.tuples(st.integers(-5, 50), st.floats(), st.none() | st.floats(1e9, 2e9))))
def test_any_points_make_records_with_rising_steps(points):
    curves, run = Curves(), ImportedRun()
    for step, value, time in points:
        curves.add("train_loss", step, time, value)
    curves.write_to(run)
    steps = [record["step"] for record in of_kind(run, "train")]
    assert steps == sorted(set(steps))
    assert all(record.get("seconds_per_step", 1) > 0 for record in run.records)


def test_long_curves_are_thinned_out(monkeypatch):
    monkeypatch.setattr(curves_module, "_MAX_POINTS", 100)
    curves, run = Curves(), ImportedRun()
    for step in range(10_000):
        curves.add("train_loss", step, None, 1.0)
    curves.write_to(run)
    assert 40 <= len(run.records) <= 101
    assert run.records[-1]["step"] > 9_700
