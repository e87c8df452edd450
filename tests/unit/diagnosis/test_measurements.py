"""Measurements as JSON and back, and what they know of machines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.measurements import Contention, MeasuredLink, Measurements, Transfer

seconds = st.floats(0, 1e6)
names = st.text(max_size=8)
tables = st.dictionaries(names, seconds, max_size=4)
transfers = st.lists(st.builds(Transfer, st.integers(1, 2**40), seconds), max_size=4)
links = st.builds(MeasuredLink, names, names, seconds, seconds, names, names, st.none() | seconds)
measurements = st.builds(
    Measurements,
    st.lists(names, min_size=1, max_size=4),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2**40), max_size=4),
    tables,
    st.lists(seconds, max_size=4),
    st.lists(seconds, max_size=4),
    tables,
    st.lists(seconds, max_size=4),
    st.floats(0, 1),
    transfers,
    transfers,
    st.none() | st.builds(Contention, seconds, seconds),
    st.lists(links, max_size=3),
    st.lists(seconds, max_size=4),
    tables,
    seconds,
)


@given(measurements)
def test_json_and_back_is_the_same(measured):
    assert Measurements.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_a_rehearsal_that_has_just_begun_can_be_told_too():
    measured = Measurements(["a", "b"], 400, [400])
    assert Measurements.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_a_link_is_told_in_bytes_and_bits():
    told = MeasuredLink("a", "b", 1e-4, 12.5e6, "eth0", "ethernet", 1_000).to_json()
    assert told["megabytes_per_second"] == pytest.approx(12.5)
    assert told["megabits_per_second"] == pytest.approx(100)
    assert (told["from"], told["to"], told["interface"]) == ("a", "b", "eth0")
    assert told["claimed_megabits_per_second"] == 1_000


@pytest.mark.parametrize(
    ("machines", "is_interleaved"),
    [("a", False), ("aa", False), ("ab", False), ("aabb", False), ("abab", True), ("aba", True), ("aabbccb", True)],
)
def test_ranks_that_lie_machine_by_machine_are_not_interleaved(machines, is_interleaved):
    assert Measurements(list(machines), 0, []).is_interleaved == is_interleaved


def test_machines_are_named_once_in_the_order_of_ranks():
    assert Measurements(["b", "b", "a", "b"], 0, []).machine_names == ["b", "a"]
