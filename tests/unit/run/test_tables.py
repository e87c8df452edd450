"""What is wrong with settings is one sentence that names the setting and, for a slip, the one that was meant."""

import re
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.run.config import build_settings, known_settings
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
        (
            {"depth": 1, "size": 1},
            "unknown key 'prepare.size'; did you mean 'prepare.inner.size' or 'prepare.parts.size' or "
            "'prepare.maybe.size'?",
        ),
        ({"depth": 1, "colour": 1}, "unknown key 'prepare.colour'. Known keys of prepare: depth, inner, parts, maybe."),
        (
            {"depth": 1, "parts": [{"x": 1}]},
            "unknown key 'prepare.parts.1.x'. Known keys of prepare.parts: size, is_on, span.",
        ),
        ({"depth": 0}, "prepare.depth = 0: it must be at least 1."),
        ({"depth": 10**15}, "prepare.depth = 1000000000000000: it must be at most 1,000,000,000,000."),
        ({"depth": "7"}, "prepare.depth = '7': it must be a whole number."),
        ({"depth": True}, "prepare.depth = true: it must be a whole number."),
        ({"depth": date(2026, 1, 2)}, "prepare.depth = 2026-01-02: it must be a whole number."),
        ({"depth": "x" * 500}, f"prepare.depth = '{'x' * 79} …: it must be a whole number."),
        ({"depth": 1, "inner": {"is_on": "yes"}}, "prepare.inner.is_on = 'yes': it must be true or false."),
        ({"depth": 1, "parts": [{}, {"size": 0}]}, "prepare.parts.2.size = 0: it must be at least 1."),
        (
            {"depth": 1, "inner": {"span": "x"}},
            "prepare.inner.span cannot be 'x'. What it means: From and to, or false.",
        ),
        ({"depth": 1, "inner": 5}, "prepare.inner = 5: it must be a table of keys and values."),
        (
            {"depth": 1, "parts": {"size": True}},
            'prepare.parts = {"size" = true}: it must be a list, written [a, b].',
        ),
    ],
)
def test_the_setting_is_named(values: dict[str, object], expected: str) -> None:
    assert problem_of(values, "prepare") == expected


def test_without_a_prefix_keys_stand_alone() -> None:
    assert problem_of({"depth": 0}).startswith("depth = 0: ")


@given(st.text(min_size=1, max_size=12))
def test_any_unknown_key_is_answered_with_known_ones(key: str) -> None:
    assert re.search("did you mean|Known keys", unknown_key(key, known_keys(Outer)))


@pytest.mark.parametrize("key", ["lr", "batch_size", "epochs", "optimizer", "early_stopping", "gpus", "x"])
def test_nothing_is_suggested_that_is_not_near(key: str) -> None:
    answer = unknown_key(f"training.{key}", known_settings())
    assert "did you mean" not in answer
    assert answer.startswith(f"unknown key 'training.{key}'. Known keys of training: seed, start_from, ")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("training.batch_tokens", "'training.global_batch_tokens' or 'training.initial_batch_tokens'"),
        ("training.warmup", "'training.warmup_steps'"),
        ("training.dropout", "'model.dropout'"),
        ("training.Max_Steps", "'training.max_steps'"),
        ("model.layers", "'model.encoder_layers' or 'model.decoder_layers'"),
        ("trainig.max_step", "'training.max_steps'"),
        ("data.weights.europarl", "'data.weights'"),
    ],
)
def test_what_is_near_is_suggested(key: str, meant: str) -> None:
    assert unknown_key(key, known_settings()) == f"unknown key {key!r}; did you mean {meant}?"


def test_no_wrong_value_of_any_setting_is_answered_in_words_of_python() -> None:
    wrong: list[object] = [True, -1, 0, 1.5, 10**30, float("nan"), "x", "", [], ["x"], {}, {"x": 1}, date(2026, 1, 2)]
    answers = [answer for key in known_settings() for value in wrong if (answer := answer_to(key, value))]
    assert len(answers) > 400
    for answer in answers:
        assert not re.search(
            r"tuple|dictionary|integer|boolean|string|NoneType|Path\(|True|False|None|nput should", answer
        )


def answer_to(key: str, value: object) -> str:
    """Returns what is wrong with the value of a setting; empty if it is allowed."""
    section, name = key.split(".")
    try:
        build_settings({section: {name: value}})
    except UsageError as error:
        return str(error)
    return ""


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
    with pytest.raises(UsageError, match="cannot be read: it is a folder, not a file"):
        read_toml(tmp_path)
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"my\.toml cannot be read: byte 1 is not UTF-8"):
        read_toml(path)
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(UsageError, match=r"my\.toml .* nested too deeply"):
        read_toml(path)
    path.write_text("[prepare\n")
    with pytest.raises(UsageError, match=r"my\.toml is not valid TOML: .*line 1"):
        read_toml(path)
