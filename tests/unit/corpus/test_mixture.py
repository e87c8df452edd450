"""Tests of mixtures: every pair is used as often as its weight says, in an order computed from positions."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dragoman.corpus import mixture as mixture_module
from dragoman.corpus.mixture import EpochOrder, Mixture, MixtureStage, build_stages, stages_begun
from dragoman.corpus.prepared_corpus import TrainCorpus
from dragoman.run.config import DataSettings, build_settings, dump_settings, load_settings
from dragoman.run.errors import UsageError

sizes_and_weights = st.lists(
    st.tuples(st.integers(0, 60), st.floats(0, 4) | st.sampled_from([0.0, 0.5, 1.0, 2.0])), min_size=1, max_size=5
)


def make_corpora(*sizes: int, weights: list[float] | None = None) -> tuple[TrainCorpus, ...]:
    """Corpora a, b, … that share out the pairs of a split like cards."""
    owners = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return tuple(
        TrainCorpus(
            chr(ord("a") + number), (weights or [1.0] * len(sizes))[number], size, np.flatnonzero(owners == number)
        )
        for number, size in enumerate(sizes)
    )


def make_order(corpora: tuple[TrainCorpus, ...], seed: int = 1, epoch: int = 0) -> EpochOrder:
    return EpochOrder(corpora, {corpus.name: corpus.weight for corpus in corpora}, seed, epoch)


def data_settings(**values: Any) -> DataSettings:
    return DataSettings.model_validate({"prepared": "corpus"} | values)


# One epoch


@given(sizes_and_weights, st.integers(0, 5), st.integers(0, 5))
def test_pairs_come_as_often_as_their_weight_says(given_corpora, seed, epoch):
    corpora = make_corpora(*(size for size, _ in given_corpora), weights=[weight for _, weight in given_corpora])
    wanted = [round(size * weight) for size, weight in given_corpora]
    assume(sum(wanted))
    order = make_order(corpora, seed, epoch)
    seen = Counter(order.pairs(0, order.num_draws).tolist())
    for corpus, num_draws in zip(corpora, wanted, strict=True):
        counts = [seen.pop(pair, 0) for pair in corpus.members]
        assert sum(counts) == num_draws
        assert all(num_draws // len(counts) <= count <= -(-num_draws // len(counts)) for count in counts)
    assert not seen


@given(st.integers(1, 500), st.data())
def test_any_stretch_is_cut_from_the_same_order(size, data):
    order = make_order((TrainCorpus("all", 1.5, size, members=None),))
    cuts = sorted(data.draw(st.lists(st.integers(0, order.num_draws), max_size=5)))
    stretches = [order.pairs(begin, end) for begin, end in pairwise([0, *cuts, order.num_draws])]
    assert np.concatenate(stretches).tolist() == order.pairs(0, order.num_draws).tolist()


def test_a_corpus_without_members_is_the_whole_split():
    order = make_order((TrainCorpus("all", 1.0, 100, members=None),))
    assert sorted(order.pairs(0, 100).tolist()) == list(range(100))


def test_members_are_read_from_a_memory_map_as_from_memory(tmp_path, monkeypatch):
    in_memory = make_corpora(300, 700)
    mapped = []
    for corpus in in_memory:
        corpus.members.astype("<i8").tofile(tmp_path / corpus.name)
        mapped.append(replace(corpus, members=np.memmap(tmp_path / corpus.name, dtype="<i8", mode="r")))
    monkeypatch.setattr(mixture_module, "MAX_MAPPED_BYTES", 1_000)  # several parts
    found, expected = (make_order(corpora).pairs(0, 1_000) for corpora in (tuple(mapped), in_memory))
    assert type(found) is np.ndarray
    assert found.tolist() == expected.tolist()


def test_a_fraction_is_another_random_part_each_epoch():
    corpora = make_corpora(1_000, weights=[0.25])
    parts = [set(order.pairs(0, 250).tolist()) for order in (make_order(corpora, epoch=epoch) for epoch in range(40))]
    assert {len(part) for part in parts} == {250}
    assert 30 < len(parts[0] & parts[1]) < 100  # 62.5 expected by chance
    assert len(set.union(*parts)) > 990  # in 40 epochs hardly a pair was never drawn


def test_corpora_are_mixed_evenly_over_an_epoch():
    order = make_order(make_corpora(5_000, 5_000, weights=[1.0, 3.0]))
    members_of_first = set(order.corpora[0].members.tolist())
    shares = [
        np.mean([pair in members_of_first for pair in order.pairs(begin, begin + 2_000).tolist()])
        for begin in range(0, order.num_draws, 2_000)
    ]
    assert len(shares) == 10
    assert all(abs(share - 0.25) < 0.06 for share in shares)


def test_copies_of_a_pair_are_scattered_over_the_epoch():
    order = make_order(make_corpora(500, weights=[2.0]))
    pairs = order.pairs(0, 1_000)
    first, second = np.array([np.flatnonzero(pairs == pair) for pair in range(500)]).T
    assert 250 < np.mean(second - first) < 420  # 333 expected by chance


def test_orders_depend_on_seed_and_epoch():
    corpora = make_corpora(300)
    orders = [make_order(corpora, *key).pairs(0, 300).tolist() for key in [(1, 0), (2, 0), (1, 1), (0, 1)]]
    assert len({tuple(order) for order in orders}) == 4


def test_corpora_take_turns_otherwise_in_each_epoch():
    corpora = make_corpora(300, 300)
    turns = [np.isin(make_order(corpora, epoch=epoch).pairs(0, 600), corpora[0].members) for epoch in (0, 1)]
    assert 240 < np.sum(turns[0] == turns[1]) < 360  # 300 expected by chance


@pytest.mark.parametrize("weights", [[0.0, 0.0], [0.0, 0.001]])
def test_weights_that_leave_nothing_are_refused(weights):
    with pytest.raises(UsageError, match=r"leave no pair to train on.*data.weights or data.stages"):
        make_order(make_corpora(100, 100, weights=weights))


@pytest.mark.parametrize("weight", [1e18, 1e308])
def test_absurd_weights_are_refused(weight):
    with pytest.raises(UsageError, match="too large"):
        make_order(make_corpora(100, weights=[weight]))


# Stages


def test_without_settings_the_recorded_weights_hold():
    mixture = Mixture.build(make_corpora(10, 20, weights=[1.0, 0.5]), data_settings())
    assert mixture.stages == (MixtureStage(0, {"a": 1.0, "b": 0.5}),)


def test_settings_override_recorded_weights_and_stages_override_settings():
    stages = [{"from_step": 100, "weights": {"a": 0}}, {"from_step": 200, "weights": {"c": 5}}]
    data = data_settings(weights={"b": 3}, stages=stages)
    mixture = Mixture.build(make_corpora(1, 1, 1, weights=[1.0, 1.0, 0.5]), data)
    assert mixture.stages == (
        MixtureStage(0, {"a": 1.0, "b": 3.0, "c": 0.5}),
        MixtureStage(100, {"a": 0.0, "b": 3.0, "c": 0.5}),
        MixtureStage(200, {"a": 1.0, "b": 3.0, "c": 5.0}),
    )
    assert [mixture.stage_at(step).from_step for step in (0, 99, 100, 199, 200, 10**9)] == [0, 0, 100, 100, 200, 200]
    assert [step for step in range(300) if mixture.is_stage_begin(step)] == [0, 100, 200]


def test_a_stage_from_step_0_replaces_what_would_hold_before_it():
    data = data_settings(weights={"a": 7}, stages=[{"from_step": 0, "weights": {"a": 2}}])
    assert build_stages(make_corpora(5), data) == (MixtureStage(0, {"a": 2.0}),)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"weights": {"europal": 2}}, r"data.weights: .*'europal'; did you mean 'europarl'"),
        ({"weights": {"": 2}}, r"data.weights: .*''. There are: "),
        (
            {"stages": [{"from_step": 9, "weights": {"new": 1}}]},
            r"data.stages \(number 1, from_step = 9\): .*'new'; did you mean 'news'",
        ),
    ],
)
def test_unknown_corpora_are_answered_with_the_nearest_known_one(values, words):
    corpora = tuple(TrainCorpus(name, 1.0, 10, None) for name in ("europarl", "news"))
    with pytest.raises(UsageError, match=words):
        Mixture.build(corpora, data_settings(**values))


def test_every_stage_must_leave_something():
    with pytest.raises(UsageError, match="leave no pair"):
        Mixture.build(make_corpora(10), data_settings(stages=[{"from_step": 500, "weights": {"a": 0}}]))


def test_a_stage_has_begun_when_one_of_its_steps_was_made():
    stages = (MixtureStage(0, {}), MixtureStage(10, {}), MixtureStage(20, {}))
    begun = {num_steps: len(stages_begun(stages, num_steps)) for num_steps in (0, 1, 10, 11, 20, 21)}
    assert begun == {0: 0, 1: 1, 10: 1, 11: 2, 20: 2, 21: 3}


def test_a_mixture_is_described_in_one_message_per_stage():
    corpora = make_corpora(1_500, 500)
    assert Mixture.build(corpora, data_settings()).describe() == ["An epoch has 2,000 pairs: a 75.0%, b 25.0%."]
    staged = Mixture.build(corpora, data_settings(stages=[{"from_step": 1_000, "weights": {"a": 0, "b": 2}}]))
    assert staged.describe() == [
        "From step 0, an epoch has 2,000 pairs: a 75.0%, b 25.0%.",
        "From step 1,000, an epoch has 1,000 pairs: a 0.0%, b 100.0%.",
    ]


# Settings

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
weights = st.dictionaries(names, st.floats(0, 1e300), max_size=4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weights, st.dictionaries(st.integers(0, 2**63 - 1), weights, max_size=4))
def test_weights_and_stages_survive_being_written_and_read(tmp_path, base, by_step):
    stages = [{"from_step": step, "weights": by_step[step]} for step in sorted(by_step)]
    before = build_settings({"data": {"prepared": "/corpus", "weights": base, "stages": stages}})
    (tmp_path / "config.toml").write_text(dump_settings(before, {"python": "3.11"}), encoding="utf-8")
    assert load_settings(tmp_path / "config.toml") == before


def test_stages_are_read_from_toml_tables(tmp_path: Path):
    path = tmp_path / "config.toml"
    path.write_text(
        """
[data]
prepared = "corpus"
weights = {europarl = 0.5}
[[data.stages]]
from_step = 100
weights = {europarl = 0, "news.v11" = 2}
[[data.stages]]
from_step = 200
weights = {"news.v11" = 3}
"""
    )
    data = load_settings(path).data
    assert data.weights == {"europarl": 0.5}
    assert [(stage.from_step, stage.weights) for stage in data.stages] == [
        (100, {"europarl": 0.0, "news.v11": 2.0}),
        (200, {"news.v11": 3.0}),
    ]


def test_weights_and_stages_can_be_set_on_the_command_line():
    overrides = ["data.weights={europarl = 2.0, news=1}", "data.stages=[{from_step = 5, weights = {news = 0}}]"]
    data = build_settings({"data": {"prepared": "corpus"}}, overrides).data
    assert data.weights == {"europarl": 2.0, "news": 1.0}
    assert data.stages[0].from_step == 5


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.weights={a = -1}", r"data.weights.a = -1: .*at least 0"),
        ("data.weights={a = inf}", r"data.weights.a = inf: .*finite"),
        ("data.weights={a = true}", r"data.weights.a = true: "),
        ("data.weights=a", r"data.weights = 'a': .*a table"),
        ("data.weights.a=2", r"unknown key 'data.weights.a'; did you mean 'data.weights'"),
        ("data.stages=[{from_step = 5}]", r"data.stages.1.weights is missing"),
        ("data.stages=[{from_step = -5, weights = {}}]", r"data.stages.1.from_step = -5: "),
        ("data.stages=[{from_stp = 5, weights = {}}]", r"data.stages.1.from_st"),
        ("data.stages=[{from_step=5, weights={}}, {from_step=5, weights={}}]", "data.stages must .* increases"),
    ],
)
def test_settings_that_make_no_sense_are_named(override, words):
    with pytest.raises(UsageError, match=words):
        build_settings({"data": {"prepared": "corpus"}}, [override])
