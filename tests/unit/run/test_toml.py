"""The TOML writer against the standard library's reader."""

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run.tables import dump_toml

names = st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]))  # TOML, being UTF-8, has no lone surrogates
plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(st.dictionaries(names, st.dictionaries(names, values, max_size=5), max_size=4))
def test_what_is_written_is_what_is_read(tables):
    assert tomllib.loads(dump_toml(tables)) == tables


@given(texts)
def test_any_text_survives(text):
    assert tomllib.loads(dump_toml({"t": {"k": text}})) == {"t": {"k": text}}


@pytest.mark.parametrize("code", [*range(0x20), 0x22, 0x27, 0x5C, 0x7F, 0x80, 0x85, 0xFEFF, 0x2028, 0x1F600])
def test_each_dangerous_character_survives(code):
    text = f"a{chr(code)}b"
    assert tomllib.loads(dump_toml({"t": {"k": text, "list": [text]}})) == {"t": {"k": text, "list": [text]}}


@given(st.floats())
def test_types_and_bits_of_floats_survive(number):
    read = tomllib.loads(dump_toml({"t": {"k": number}}))["t"]["k"]
    assert type(read) is float
    if math.isnan(number):
        assert math.isnan(read)
    else:
        assert (read, math.copysign(1, read)) == (number, math.copysign(1, number))


def test_truth_values_are_not_written_as_numbers():
    assert dump_toml({"t": {"yes": True, "no": False, "one": 1}}) == "[t]\nyes = true\nno = false\none = 1\n"


def test_absent_values_are_left_out_and_tuples_are_lists():
    assert dump_toml({"t": {"absent": None, "pair": (1, 2)}, "empty": {}}) == "[t]\npair = [1, 2]\n\n[empty]\n"


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), {"nested": object()}, [None]])
def test_what_toml_cannot_say_is_refused(value):
    with pytest.raises(TypeError, match="cannot write"):
        dump_toml({"t": {"k": value}})
