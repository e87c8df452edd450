"""Settings of [synchronisation] that fit a run, and sentences about those that do not."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run.config import Settings
from dragoman.run.errors import UsageError
from dragoman.run.synchronisation import LOCAL, Synchronisation, require_possible, resolve_synchronisation


def build_settings(training: dict[str, Any] | None = None, **synchronisation: Any) -> Settings:
    return Settings.model_validate(
        {
            "data": {"prepared": "prepared"},
            "training": {"virtual_workers": 4, "max_steps": 1_000, "warmup_steps": 50, **(training or {})},
            "synchronisation": synchronisation,
        }
    )


def test_every_step_is_the_default_and_needs_nothing():
    assert resolve_synchronisation(build_settings(), 3) == Synchronisation()


@pytest.mark.parametrize(("num_machines", "expected"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4)])
def test_there_are_as_many_replicas_as_machines_where_virtual_workers_can_be_shared(num_machines, expected):
    for strategy in ("local", "int8"):
        assert resolve_synchronisation(build_settings(strategy=strategy), num_machines).replicas == expected


def test_a_number_of_replicas_that_a_person_chose_does_not_depend_on_machines():
    settings = build_settings(strategy="local", replicas=4)
    assert {resolve_synchronisation(settings, number).replicas for number in (1, 2, 3)} == {4}


@pytest.mark.parametrize("strategy", LOCAL)
def test_only_diloco_has_momentum(strategy):
    plan = resolve_synchronisation(build_settings(strategy=strategy), 2)
    expected = (0.7, 0.9) if strategy == "diloco" else (1.0, 0.0)
    assert (plan.outer_learning_rate, plan.outer_momentum) == expected


@pytest.mark.parametrize(
    ("training", "own", "expected"),
    [
        ({}, {}, 50),
        ({"warmup_steps": 400}, {}, 100),
        ({"warmup_steps": 400}, {"together_steps": 0}, 0),
        ({}, {"together_steps": 7}, 7),
    ],
)
def test_a_run_begins_together_for_its_warm_up_or_a_tenth_of_its_steps(training, own, expected):
    assert resolve_synchronisation(build_settings(training, strategy="local", **own), 2).together_steps == expected


@given(st.floats(0.0, 1.0), st.integers(1, 100), st.integers(0, 400))
def test_intervals_grow_as_the_rate_falls_and_stay_within_their_bounds(share, interval, more):
    plan = Synchronisation("local", 2, interval, interval + more)
    steps = plan.steps_apart(share)
    assert interval <= steps <= interval + more
    assert steps >= plan.steps_apart(min(1.0, share + 0.1))
    assert plan.steps_apart(1.0) == interval


def test_only_constant_intervals_of_as_many_parts_are_streamed():
    """Where the interval grows, parts are sent after several steps each."""
    constant = Synchronisation("local", 2, 4, 4, fragments=4, overlap=True)
    assert constant.is_streamed
    assert "a part after each step" in constant.describe()
    growing = replace(constant, max_interval=64)
    assert not growing.is_streamed
    assert growing.describe() == "2 replicas average their weights every 4 to 64 steps, while the next steps compute"


def test_half_the_rate_makes_intervals_four_times_as_long():
    assert Synchronisation("local", 2, 10, 1_000).steps_apart(0.5) == 40


@pytest.mark.parametrize("strategy", ["every_step", "hierarchical", "bf16", "powersgd", "local", "diloco"])
def test_what_a_checkpoint_keeps_is_read_again(strategy):
    plan = resolve_synchronisation(build_settings(strategy=strategy, interval=3, fragments=2, overlap=True), 2)
    assert Synchronisation.from_json(plan.to_json()) == plan
    assert plan.describe()


@pytest.mark.parametrize(
    ("training", "own", "words"),
    [
        ({}, {"strategy": "local", "replicas": 8}, ["synchronisation.replicas 8", "training.virtual_workers 4"]),
        ({}, {"strategy": "int8", "replicas": 5}, ["synchronisation.replicas 5", "training.virtual_workers 4"]),
        ({}, {"strategy": "diloco", "replicas": 3}, ["synchronisation.replicas 3", "divide"]),
        ({"precision": "fp16"}, {"strategy": "local"}, ["synchronisation.strategy local", "training.precision fp16"]),
        ({"precision": "fp16"}, {"strategy": "auto"}, ["synchronisation.strategy auto", "training.precision fp16"]),
    ],
)
def test_settings_that_do_not_fit_each_other_are_named_in_a_sentence(training, own, words):
    with pytest.raises(UsageError) as refused:
        require_possible(build_settings(training, **own))
    message = str(refused.value)
    assert all(word in message for word in words)
    assert message.count(". ") <= 1


@pytest.mark.parametrize(
    "own",
    [
        {"strategy": "every_step", "replicas": 8},  # not used
        {"strategy": "local", "replicas": 4},
        {"strategy": "local"},
        {"strategy": "powersgd", "replicas": 1},
    ],
)
def test_settings_that_fit_are_accepted(own):
    require_possible(build_settings(**own))


@pytest.mark.parametrize("name", ["every-step", "Every_Step", " LOCAL "])
def test_names_of_strategies_may_be_written_with_hyphens_and_capitals(name):
    assert build_settings(strategy=name).synchronisation.strategy in ("every_step", "local")
