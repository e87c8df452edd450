"""The demo's settings: its own report must be able to answer its questions."""

from dragoman.cli.demo import demo_settings
from dragoman.diagnosis.overfitting import FEWEST_EVALUATIONS
from dragoman.run.folder import RunFolder


def test_the_demo_is_evaluated_often_enough_also_where_it_makes_half_of_its_steps(tmp_path):
    settings = demo_settings(RunFolder(tmp_path), [])
    num_steps = settings.training.max_steps // 2
    assert num_steps // settings.evaluation.evaluate_every >= FEWEST_EVALUATIONS
