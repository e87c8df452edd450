"""What is wrong with settings is one sentence that names the setting and, for a slip, the one that was meant."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.run.errors import UsageError
from dragoman.run.tables import (
    Count,
    CountOrZero,
    SettingsTable,
    Switch,
    first_problem,
    known_keys,
    parse_value,
    read_toml,
    unknown_key,
)


class Inner(SettingsTable):
    size: Count = 1
    is_on: Switch = False
    span: tuple[CountOrZero, Count] | bool | None = None
    """From and to, or false."""


class Outer(SettingsTable):
    depth: Count
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = ()
    maybe: Inner | None = None


def problem_of(values: dict[str, object], prefix: str = "") -> str:
    with pytest.raises(ValidationError) as failure:
        Outer.model_validate(values)
    return first_problem(failure.value, Outer, prefix)


def test_all_keys_are_known_with_their_tables() -> None:
    assert known_keys(Outer) == [
        "depth",
        *("inner", "inner.size", "inner.is_on", "inner.span"),
        *("parts", "parts.size", "parts.is_on", "parts.span"),
        *("maybe", "maybe.size", "maybe.is_on", "maybe.span"),
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"dept": 1}, "the setting prepare.depth is missing."),
        ({"depth": 1, "dept": 1}, "unknown key 'prepare.dept'; did you mean 'prepare.depth'?"),
        ({"depth": 1, "inner": {"sise": 1}}, "unknown key 'prepare.inner.sise'; did you mean 'prepare.inner.size'?"),
        ({"depth": 1, "size": 1}, "unknown key 'prepare.size'; did you mean 'prepare.inner.size'?"),
        ({"depth": 0}, "prepare.depth = 0: input should be greater than or equal to 1."),
        ({"depth": "7"}, "prepare.depth = '7': input should be a valid integer."),
        ({"depth": True}, "prepare.depth = True: input should be a valid integer."),
        ({"depth": 1, "parts": [{}, {"size": 0}]}, "prepare.parts.2.size = 0: input should be greater than"),
        (
            {"depth": 1, "inner": {"span": "x"}},
            "prepare.inner.span cannot be 'x'. What it means: From and to, or false.",
        ),
        ({"depth": 1, "inner": 5}, "prepare.inner = 5: input should be a valid dictionary"),
        ({"depth": 1, "parts": {"size": 1}}, "prepare.parts = {'size': 1}: input should be a valid tuple."),
    ],
)
def test_the_setting_is_named(values: dict[str, object], expected: str) -> None:
    assert problem_of(values, "prepare").startswith(expected)


def test_without_a_prefix_keys_stand_alone() -> None:
    assert problem_of({"depth": 0}).startswith("depth = 0: ")


@given(st.text(min_size=1, max_size=12))
def test_any_unknown_key_gets_a_suggestion(key: str) -> None:
    assert "did you mean" in unknown_key(key, known_keys(Outer))


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("[1, 80]", [1, 80]), ("bpe", "bpe"), ('"3"', "3"), ("a = b", "a = b")],
)
def test_values_are_toml_or_plain_words(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_config_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    with pytest.raises(UsageError, match=r"There is no config file .*my\.toml"):
        read_toml(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_toml(tmp_path)
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"my\.toml cannot be read"):
        read_toml(path)
    path.write_text("[prepare\n")
    with pytest.raises(UsageError, match=r"my\.toml is not valid TOML: .*line 1"):
        read_toml(path)
