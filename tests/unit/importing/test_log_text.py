"""Lines of any file, packed or not, damaged or not, and the numbers and times in them."""

import bz2
import gzip
import json
import lzma
import math
import os
import re

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.importing import log_text
from dragoman.importing.log_text import (
    MAX_LINE_BYTES,
    LogClock,
    LogText,
    clean_text,
    loss_of_perplexity,
    parse_count,
    parse_number,
    parse_time,
    read_lines,
)
from dragoman.run.errors import UserError

PACKERS = {
    "plain": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def lines_of(log, content: bytes) -> list[str]:
    log.write_bytes(content)
    return list(read_lines(log))


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_files_are_known_by_their_first_bytes_not_by_their_names(log, packer):
    assert lines_of(log, PACKERS[packer]("eins\nzwei ü\n".encode())) == ["eins", "zwei ü"]


@pytest.mark.parametrize("packer", ["gz", "xz", "bz2", "zst"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_an_archive_that_was_cut_off_is_read_as_far_as_it_goes(log, packer, kept):
    text = b"".join(b"line %d %s\n" % (number, os.urandom(9).hex().encode()) for number in range(10_000))
    packed = PACKERS[packer](text)
    found = lines_of(log, packed[: 10 + int(kept * len(packed))])
    expected = text.decode().splitlines()
    assert len(found) < len(expected)
    assert found[:-1] == expected[: max(0, len(found) - 1)]
    assert found or kept < 0.9 or packer == "bz2"


@pytest.mark.parametrize("packer", ["gz", "xz", "bz2", "zst"])
def test_a_cut_archive_says_so_and_a_whole_one_does_not(log, packer):
    packed = PACKERS[packer](os.urandom(9_999).hex().encode())
    for content, is_cut in ((packed, False), (packed + packed, False), (packed[:-9], True)):
        log.write_bytes(content)
        text = LogText(log)
        num_characters = sum(map(len, text))
        assert text.is_cut is is_cut
        assert num_characters == (0 if is_cut else 2 * 9_999 * (len(content) // len(packed)))


def test_a_bomb_is_refused(log):
    log.write_bytes(lzma.compress(bytes(80 * 2**20)))
    with pytest.raises(UserError, match="expands to more than 64 MiB"):
        list(read_lines(log))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-8"])
def test_encodings_of_windows(log, encoding):
    text = "*** Global step 5\r\n▁Ein ▁Satz mit 日本 😀\r\n\r\nEnde"
    assert lines_of(log, text.encode(encoding)) == ["*** Global step 5", "▁Ein ▁Satz mit 日本 😀", "", "Ende"]


def test_utf16_to_which_powershell_appended(log):
    assert lines_of(log, "one line\r\n".encode("utf-16") + "another\r\n".encode("utf-16")) == ["one line", "another"]


def test_lines_that_end_with_a_carriage_return_only_are_lines_however_many(log):
    content = "".join(f"{number / 1000:5.1%} | {number}/100000\r" for number in range(50_000))
    assert lines_of(log, content.encode())[-1].endswith("49999/100000")
    assert len(lines_of(log, content.encode())) == 50_000


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\x1b", codec="utf-8"), max_size=9)), st.integers(1, 20))
def test_blocks_of_any_size_give_the_same_lines(lines, size):
    """The end of a block may be anywhere, also between carriage return and line feed."""
    content = "".join(f"{line}{end}" for line, end in zip(lines, ["\r\n", "\n", "\r"] * len(lines), strict=False))
    found, rest = [], b""
    raw = content.encode()
    for start in range(0, len(raw), size):
        more, rest = log_text._split_lines(rest + raw[start : start + size])
        found += more
    found += [rest.rstrip(b"\r").decode()] if rest else []
    assert found == re.split(r"\r\n|\n|\r", content)[:-1]


def test_a_damaged_checksum_costs_the_end_at_most(log):
    text = b"".join(b"line %d\n" % number for number in range(50_000))
    packed = bytearray(gzip.compress(text))
    packed[-8] ^= 0xFF
    found = lines_of(log, bytes(packed))
    assert len(found) > 30_000
    assert found == text.decode().splitlines()[: len(found)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(PACKERS)), st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_raise(log, packer, content, garbage):
    for line in lines_of(log, PACKERS[packer](content)[: len(garbage) + 4] + garbage):
        assert "\n" not in line


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x1b[1;31mred\x1b[0m text", ["red text"]),
        (b"\x1b]0;title\x07text", ["text"]),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", ["link"]),
        (b"text\x1b", ["text"]),
        (b"[1,0]<stdout>:*** Global step 5", ["*** Global step 5"]),
        (b"[1,12]<stderr>:oh\n[x] stays", ["oh", "[x] stays"]),
        (b"10%\r20%\r30%\n", ["10%", "20%", "30%"]),
        (b"windows\r\nlines\r\n", ["windows", "lines"]),
        (b"\xff\xfe bytes", ["�� bytes"]),
        (b"a\x00b", ["a\x00b"]),
        (b"", []),
        (b"\n\n", ["", ""]),
        (b"no end", ["no end"]),
    ],
)
def test_decoration_is_taken_off(log, raw, expected):
    assert lines_of(log, raw) == expected


def test_a_line_that_is_too_long_is_cut_and_the_next_one_is_whole(log):
    found = lines_of(log, b"x" * (3 * MAX_LINE_BYTES + 5) + b"\nnext\n")
    assert found == ["x" * MAX_LINE_BYTES, "next"]


def test_a_line_of_exactly_the_longest_length_is_whole(log):
    assert lines_of(log, b"x" * (MAX_LINE_BYTES - 1) + b"\nnext") == ["x" * (MAX_LINE_BYTES - 1), "next"]
    assert lines_of(log, b"x" * MAX_LINE_BYTES + b"\nnext") == ["x" * MAX_LINE_BYTES, "next"]


def test_reading_ends_at_the_limit(log, monkeypatch):
    monkeypatch.setattr(log_text, "MAX_LOG_BYTES", 1_000)
    assert 100 <= len(lines_of(log, gzip.compress(b"123456789\n" * 10_000))) <= 101


def test_an_unreadable_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(UserError, match="cannot be read"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x00b\x07c\x7f", "abc"),
        ("right \u202eleft", "right left"),
        ("half \ud800", "half"),
        ("  space\t ", "space"),
        ("▁Ein ▁Satz ü 😀", "▁Ein ▁Satz ü 😀"),
    ],
)
def test_unsafe_characters_are_removed(raw, expected):
    assert clean_text(raw) == expected


def test_long_text_is_shortened():
    assert clean_text("x" * 100, 10) == "x" * 9 + "…"
    assert clean_text("x" * 10, 10) == "x" * 10


@given(st.text(st.characters(codec=None)), st.integers(1, 50))
def test_cleaned_text_can_be_shown_anywhere(text, most):
    cleaned = clean_text(text, most)
    assert len(cleaned) <= most
    cleaned.encode("utf-8")
    assert all(character == "\t" or ord(character) >= 32 for character in cleaned)
    assert not set(cleaned) & set("\x1b\x7f\x9b\u202e\u2066\ufeff")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01 00:01:00 | INFO", 60),
        ("1970-01-01 00:01:00,250 - INFO", 60.25),
        ("1970-01-01 00:01:00,25x", 60),
        ("2020-99-01 00:01:00", None),
        ("2020", None),
    ],
)
def test_times(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"), [("60,880,896", 60_880_896), ("0", 0), ("", None), ("-1", None), ("1.5", None), ("٣", None)]
)
def test_counts(text, count):
    assert parse_count(text) == count
    assert parse_count("9" * 5_000) is None


def test_numbers():
    assert (parse_number("1e-3"), parse_number("1 2"), parse_number("")) == (0.001, None, None)
    assert math.isnan(parse_number("nan") or 0)


def test_a_perplexity_becomes_a_loss():
    assert loss_of_perplexity(math.e) == pytest.approx(1)
    assert (loss_of_perplexity(None), loss_of_perplexity(0.0)) == (None, None)
    assert math.isnan(loss_of_perplexity(math.nan) or 0)


def test_the_clock_needs_two_lines_in_order():
    clock = LogClock()
    assert clock.seconds_per_step(100, 10.0) is None
    assert clock.seconds_per_step(200, 60.0) == 0.5
    assert clock.log_every == 100
    assert clock.seconds_per_step(150, 70.0) is None
    assert clock.seconds_per_step(160, None) is None
    assert clock.seconds_per_step(170, 80.0) is None
    clock.restart()
    assert clock.seconds_per_step(180, 90.0) is None


# Notebooks


def notebook(*outputs: object) -> bytes:
    """A notebook with one cell for each output; Jupyter writes its cells first and its format last."""
    cells = [{"cell_type": "code", "source": ["!train\n"], "outputs": [output]} for output in outputs]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1).encode()


def test_the_lines_of_a_notebook_are_what_its_cells_printed(log):
    stdout = {"output_type": "stream", "name": "stdout"}
    document = notebook(
        stdout | {"text": ["step 1\n", "\x1b[31mstep 2\x1b[0m\n", "st"]},
        stdout | {"text": "ep 3"},
        {"output_type": "stream", "name": "stderr", "text": ["10%\r20%"]},
        {"output_type": "execute_result", "data": {"text/plain": ["loss=", "2.5"], "text/html": ["<b>2.5</b>"]}},
        {"output_type": "error", "ename": "E", "traceback": ["File x", "E: out of memory"]},
        {"output_type": "display_data", "data": {"image/png": "AAAA"}},
        "no output",
    )
    expected = ["step 1", "step 2", "step 3", "10%", "20%", "loss=2.5", "File x", "E: out of memory"]
    assert lines_of(log, document) == expected
    assert lines_of(log, gzip.compress(document)) == expected


def test_a_notebook_that_is_cut_off_or_too_large_is_read_as_it_is_stored(log, monkeypatch):
    document = notebook({"output_type": "stream", "name": "stdout", "text": ["step 1\n"]})
    assert any("step 1" in line for line in lines_of(log, document[:-20]))
    monkeypatch.setattr(log_text, "MAX_NOTEBOOK_BYTES", 10)
    assert lines_of(log, document) == document.decode().splitlines()


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda part: (
            st.lists(part)
            | st.dictionaries(
                st.sampled_from(["outputs", "text", "data", "text/plain", "traceback", "name", "output_type"]), part
            )
        ),
    )
)
def test_any_notebook_can_be_read(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("notebook") / "log"
    path.write_text(json.dumps({"nbformat": 4, "cells": [cells, {"outputs": cells}]}), encoding="utf-8")
    assert all(isinstance(line, str) for line in read_lines(path))


@pytest.mark.parametrize(
    "tag",
    [
        "2020-06-26T01:23:22.123456789Z ",
        "2020-06-26T01:23:22+02:00 stdout F ",
        "[task 2023-09-16T12:28:00.131Z] ",
        "0: ",
        " 12: ",
        "trainer-1  | ",
    ],
)
def test_tags_before_every_line_are_left_out(tmp_path, tag):
    lines = ["*** Training config:", "{'batch_size_per_gpu': 256,", "", "Killed", "| epoch 001 | loss 2"]
    log = tmp_path / "a.log"
    log.write_text("".join(f"{tag}{line}\n" for line in lines) + "a line of the batch system\n")
    assert list(read_lines(log)) == [*lines, "a line of the batch system"]


def test_single_lines_that_look_tagged_stay_as_they_are(tmp_path):
    lines = ["0: a", *("step 1" for _ in range(5)), "2020-06-26T01:23:22Z b"]
    log = tmp_path / "a.log"
    log.write_text("\n".join(lines))
    assert list(read_lines(log)) == lines
