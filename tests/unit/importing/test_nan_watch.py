"""The step from which a run's figures are no numbers."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.nan_watch import NanWatch

NAN = math.nan


def watch(*steps: tuple[int, float | None, float | None, float | None]) -> ImportedRun:
    """Watches the training loss, gradient norm and dev loss of each step."""
    nan_watch, run = NanWatch(), ImportedRun()
    for step, loss, norm, dev in steps:
        nan_watch.add_train(step, loss, norm)
        nan_watch.add_evaluation(step, dev)
    nan_watch.finish(run)
    return run


def test_losses_that_stay_numbers_say_nothing():
    run = watch((1, 3.0, 1.0, 3.1), (2, 2.9, 1.0, 3.0))
    assert (run.first_nan_step, run.notes, run.failures) == (None, [], [])


def test_the_earliest_sign_counts():
    run = watch((1, 3.0, 1.0, 3.1), (2, 2.9, NAN, 3.0), (3, NAN, NAN, NAN))
    assert (run.first_nan_step, run.last_finite_step) == (2, 1)


def test_one_skipped_step_of_mixed_precision_is_no_failure():
    assert watch((1, 3.0, 1.0, None), (2, 2.9, math.inf, None)).first_nan_step is None


def test_a_dev_set_without_a_loss_is_a_broken_model_unless_training_goes_on():
    assert watch((1, 3.0, None, 3.1), (2, None, None, NAN)).first_nan_step == 2
    run = watch((1, 3.0, None, 3.1), (2, 2.9, None, NAN), (3, 2.8, None, NAN))
    assert (run.first_nan_step, len(run.failures)) == (None, 1)


def test_a_loss_of_0_is_not_nan_by_itself():
    assert watch((1, 3.0, None, None), (2, 0.0, None, 0.0)).first_nan_step is None


figures = st.none() | st.floats()


@given(st.lists(st.tuples(st.integers(0, 100), figures, figures, figures)))
def test_any_figures_can_be_watched(steps):
    run = watch(*steps)
    assert run.first_nan_step is None or run.first_nan_step in {step for step, *_ in steps}
