"""Rates and sizes: bits are never taken for bytes, and what we print we can read."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run.errors import UsageError
from dragoman.run.units import format_bytes, format_duration, format_rate, parse_rate


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("100Mbit", 12.5e6),
        ("100 Mbit/s", 12.5e6),
        ("100mbit", 12.5e6),
        ("1Gbit", 125e6),
        ("1GbE", 125e6),
        ("25 gbe", 3.125e9),
        ("12.5MB/s", 12.5e6),
        ("12.5 MB", 12.5e6),
        ("500kbit/s", 62_500),
        ("1GiB/s", 2**30),
        ("3 bytes/s", 3),
        ("1e2Mbit", 12.5e6),
        ("100Mbps", 12.5e6),
        ("100 mbps", 12.5e6),
        ("1 Gbps", 125e6),
        ("1gbps", 125e6),
        ("500kbps", 62_500),
        ("100Mb/s", 12.5e6),
        ("10 Gb/s", 1.25e9),
        ("100MBps", 100e6),
        ("1000 Mbit / s", 125e6),
        ("10Gbit/sec", 1.25e9),
        ("12.5 MiB/s", 12.5 * 2**20),
    ],
)
def test_rates_as_people_write_them(text, bytes_per_second):
    assert parse_rate(text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize("text", ["100M", "100", "1G/s", "100mb/s", "100mb", "100Mb", "100MBPS", "1GBPS"])
def test_what_could_be_bits_or_bytes_is_refused(text):
    with pytest.raises(UsageError, match="does not say clearly whether bits or bytes"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "fast", "-5Mbit", "nan", "infMbit", "1,5Mbit", "100Mbit/h", "0x5Mbit"])
def test_nonsense_is_refused(text):
    with pytest.raises(UsageError, match="is not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["0Mbit", "0.0MB/s", "1e400Mbit"])
def test_no_rate_and_an_endless_one_are_refused(text):
    with pytest.raises(UsageError, match="more than 0 and finite"):
        parse_rate(text)


@given(st.text())
def test_any_text_is_a_rate_or_a_usage_error(text):
    with suppress(UsageError):
        assert 0 < parse_rate(text) < math.inf


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (12.5e6, "12.5 MB/s (100 Mbit/s)"),
        (125e6, "125 MB/s (1,000 Mbit/s)"),
        (1e3, "1 kB/s (8 kbit/s)"),
        (0, "0 kB/s (0 kbit/s)"),
    ],
)
def test_rates_are_said_twice(rate, text):
    assert format_rate(rate) == text


@given(st.floats(1, 1e13))
def test_both_halves_of_a_printed_rate_mean_the_same(rate):
    as_bytes, as_bits = format_rate(rate).replace(",", "").rstrip(")").split(" (")
    assert parse_rate(as_bytes) == pytest.approx(rate, rel=0.01)
    assert parse_rate(as_bits) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (999_950, "1.0 MB"), (243_523_584, "243.5 MB")],
)
def test_sizes(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (601, "10 min"),
        (3_599, "1 h"),
        (3_900, "1 h 05 min"),
        (86_399, "1 day"),
        (176_400, "2 days 1 h"),
        (1e7, "115 days"),
        (math.inf, "115,740,740 days"),
    ],
)
def test_rough_durations_have_one_or_two_units(seconds, text):
    assert format_duration(seconds) == text
