"""Figures of an interval: sums divided by the right things."""

import pytest
import torch

from dragoman.cluster.world import World
from dragoman.monitoring.meters import TrainMeters


class WorldOfTwo(World):
    """Another rank has the same losses; nothing else is asked of it."""

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        return [2 * number for number in numbers]


def make_meters(**changes: object) -> TrainMeters:
    values = {
        "num_steps": 4,
        "num_target_tokens": 100,
        "num_tokens": 180,
        "num_padded_tokens": 240,
        "seconds": 8.0,
        "gradient_norm_sum": 6.0,
        "num_finite_norms": 3,
        "losses": [torch.tensor([50.0, 40.0]), torch.tensor([100.0, 60.0])],
    }
    return TrainMeters(**values | changes)


def test_every_figure_of_an_interval():
    assert make_meters().read(World()) == pytest.approx(
        {
            "loss": 1.5,
            "negative_log_likelihood": 1.0,
            "gradient_norm": 2.0,
            "seconds_per_step": 2.0,
            "target_tokens_per_second": 12.5,
            "target_tokens_per_step": 25.0,
            "padding_share": 0.25,
        }
    )


def test_losses_are_added_over_ranks_and_nothing_else_is():
    alone, together = make_meters().read(World()), make_meters().read(WorldOfTwo())
    for name, figure in together.items():
        factor = 2 if name in ("loss", "negative_log_likelihood") else 1
        assert figure == pytest.approx(factor * alone[name]), name


def test_the_mean_is_over_tokens_not_over_steps():
    meters = make_meters(losses=[torch.tensor([10.0, 10.0]), torch.tensor([90.0, 90.0])])
    assert meters.read(World())["loss"] == pytest.approx(1.0)


def test_an_interval_of_skipped_steps_only_has_no_norm():
    assert make_meters(gradient_norm_sum=0.0, num_finite_norms=0).read(World())["gradient_norm"] == 0.0


def test_intervals_do_not_share_their_losses():
    first, second = TrainMeters(), TrainMeters()
    first.losses.append(torch.zeros(2))
    assert second.losses == []
