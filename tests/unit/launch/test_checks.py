"""Before the first step: whatever would make hosts train differently is named with the host and both values."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.launch.hosts import (
    CLOCK_ERROR_SECONDS,
    CLOCK_WARNING_SECONDS,
    Expected,
    Facts,
    HostFacts,
    is_data_missing,
    missing_data_problem,
    problems_of,
    warnings_of,
)

HERE = Facts(
    hostname="a",
    dragoman="0.1.0",
    code="c0de" * 16,
    torch="2.13.0",
    python="3.11.7",
    num_cores=8,
    num_gpus=0,
    data="da7a" * 16,
    config="c0f1" * 16,
    shares_run_folder=True,
    free_disk_bytes=50 * 10**9,
    time=1e9,
)
THERE = replace(HERE, hostname="b", shares_run_folder=False, num_cores=64, num_gpus=4, config=None)
EXPECTED = Expected(HERE, Path("/data/prepared"), Path("/runs/my"), kept_bytes=3 * 10**9)


def problems(skew: float = 0.0, expected: Expected = EXPECTED, **differences: object) -> list[str]:
    return list(problems_of(HostFacts("b", replace(THERE, **differences), skew), expected))


def test_equal_hosts_have_no_problem():
    assert problems() == []
    assert problems(shares_run_folder=True, config=HERE.config) == []
    assert problems(config=HERE.config) == []


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"dragoman": "0.2.0"}, ["b", "0.2.0", "0.1.0", "install"]),
        ({"code": "beef" * 16}, ["b", "beefbeefbeef", "c0dec0dec0de", "same commit"]),
        ({"torch": "2.12.0"}, ["b", "torch 2.12.0", "2.13.0", "install"]),
        ({"data": "f00d" * 16}, ["b", "/data/prepared", "f00df00df00d", "da7ada7ada7a", "--send-data"]),
        ({"config": "0dd0" * 16}, ["b", "/runs/my", "0dd00dd00dd0", "c0f1c0f1c0f1", "--run-dir"]),
        ({"free_disk_bytes": 10**9}, ["b", "1.0 GB", "3.0 GB", "/runs/my", "checkpoints.keep_last"]),
    ],
)
def test_each_difference_is_one_sentence_with_the_host_both_values_and_what_to_do(differences, words):
    (sentence,) = problems(**differences)
    assert [word for word in words if word not in sentence] == []
    assert sentence.endswith(".")


def test_another_version_has_other_code_and_that_is_not_said_twice():
    assert len(problems(dragoman="0.2.0", code="beef" * 16)) == 1


def test_all_problems_are_told_at_once():
    assert len(problems(torch="2.12.0", data="f00d" * 16, free_disk_bytes=0, skew=-90.0)) == 4


def test_a_resumed_run_may_have_older_settings_there():
    assert problems(config="0dd0" * 16, expected=replace(EXPECTED, is_resumed=True)) == []


def test_machines_may_differ_in_what_does_not_change_the_result():
    assert problems(python="3.11.9", num_cores=2, num_gpus=0, hostname="other") == []


def test_missing_data_is_a_case_of_its_own_because_it_can_be_sent():
    host = HostFacts("b", replace(THERE, data=None), 0.0)
    assert problems(data=None) == []
    assert is_data_missing(host)
    assert not is_data_missing(HostFacts("b", THERE, 0.0))
    sentence = missing_data_problem(host, EXPECTED)
    for words in ("b has no whole prepared corpus in /data/prepared", "da7ada7ada7a", "--send-data"):
        assert words in sentence


@pytest.mark.parametrize(
    ("skew", "sentence"),
    [
        (75.0, "The clock of b is 75.0 s ahead of this machine's: set the clocks (NTP)."),
        (-75.0, "The clock of b is 75.0 s behind this machine's: set the clocks (NTP)."),
    ],
)
def test_a_clock_that_is_far_off_is_a_problem(skew, sentence):
    assert problems(skew) == [sentence]


@pytest.mark.parametrize(
    ("skew", "sentence"),
    [
        (3.5, "The clock of b is 3.5 s ahead of this machine's; times in its records will be off."),
        (-3.5, "The clock of b is 3.5 s behind this machine's; times in its records will be off."),
    ],
)
def test_a_clock_that_is_a_little_off_is_a_warning(skew, sentence):
    assert list(warnings_of(HostFacts("b", THERE, skew))) == [sentence]


@given(st.floats(-1e6, 1e6))
def test_a_clock_is_fine_or_odd_or_a_problem_but_never_two_of_them(skew):
    host = HostFacts("b", THERE, skew)
    is_problem, is_warned = bool(problems(skew)), bool(list(warnings_of(host)))
    assert is_problem == (abs(skew) > CLOCK_ERROR_SECONDS)
    assert is_problem or is_warned == (abs(skew) > CLOCK_WARNING_SECONDS)
    assert not (is_problem and is_warned)
