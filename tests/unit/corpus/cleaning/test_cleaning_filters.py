"""Which filters are on: presets, changes to them, and what the languages allow."""

import pytest

from dragoman.corpus.cleaning.clean import build_checks
from dragoman.corpus.cleaning.cleaning_account import FILTER_MEANINGS
from dragoman.corpus.cleaning.filters import Rules, resolve_rules
from dragoman.corpus.settings import FilterSettings, PrepareSettings
from dragoman.run.errors import UsageError

MOSES = ["empty", "reserved_characters", "length_words", "length_ratio"]
STANDARD = [
    "empty",
    "reserved_characters",
    "control_characters",
    "length_words",
    "length_characters",
    "length_ratio",
    "identical",
]


def rules_of(cleaning="standard", languages=None, **filters) -> Rules:
    settings = PrepareSettings(cleaning=cleaning, languages=languages, filters=FilterSettings(**filters))
    return resolve_rules(settings)


def order_of(rules: Rules) -> list[str]:
    return [name for name, _ in build_checks(rules)]


@pytest.mark.parametrize(
    ("cleaning", "languages", "order", "of_corpus"),
    [
        ("none", "en-de", ["empty", "reserved_characters"], ["held_out"]),
        ("moses", "en-de", MOSES, ["held_out"]),
        ("standard", None, STANDARD, ["overlap", "duplicates", "held_out"]),
        ("standard", "en-de", [*STANDARD, "script", "language"], ["overlap", "duplicates", "held_out"]),
        ("strict", None, [*STANDARD, "numbers"], ["overlap", "duplicates", "near_duplicates", "held_out"]),
        (
            "strict",
            "en-de",
            [*STANDARD, "script", "language", "numbers"],
            ["overlap", "duplicates", "near_duplicates", "held_out"],
        ),
    ],
)
def test_presets(cleaning, languages, order, of_corpus):
    rules = rules_of(cleaning, languages)
    assert order_of(rules) == order
    assert [name for name in FILTER_MEANINGS if rules.is_on(name)] == [*order, *of_corpus]


def test_thresholds_of_the_presets():
    standard, strict = rules_of("standard", "en-de"), rules_of("strict", "en-de")
    assert (standard.length_words, standard.length_characters) == ((1, 80), (1, 2000))
    assert (standard.length_ratio, strict.length_ratio) == (9.0, 4.0)
    assert (standard.script, standard.language) == (0.5, 25)


def test_changes_override_the_preset_in_both_directions():
    rules = rules_of("standard", length_words=(2, 250), length_ratio=False, identical=False, numbers=True)
    assert rules.length_words == (2, 250)
    assert rules.length_ratio is None
    assert order_of(rules) == [
        "empty",
        "reserved_characters",
        "control_characters",
        "length_words",
        "length_characters",
        "numbers",
    ]


def test_every_setting_has_a_rule_and_every_rule_a_meaning():
    assert set(FilterSettings.model_fields) | {"reserved_characters", "held_out"} == set(FILTER_MEANINGS)
    every_pair_filter = order_of(rules_of("strict", "en-de"))
    assert list(FILTER_MEANINGS) == [*every_pair_filter, "overlap", "duplicates", "near_duplicates", "held_out"]


@pytest.mark.parametrize("changes", [{"script": 0.7}, {"language": 30}])
def test_filters_that_need_the_languages_say_so(changes):
    with pytest.raises(UsageError, match="--languages"):
        rules_of("none", **changes)


def test_turning_them_off_needs_no_languages():
    assert order_of(rules_of("standard", script=False, language=False)) == STANDARD


@pytest.mark.parametrize("name", ["length_words", "length_characters"])
def test_a_reversed_range_is_refused(name):
    with pytest.raises(UsageError, match=rf"{name}.*\[1, 80\]"):
        rules_of(**{name: (80, 1)})


@pytest.mark.parametrize("languages", ["eng-deu", "en_GB-de", "EN-ger"])
def test_languages_have_many_spellings(languages):
    assert rules_of(languages=languages) == rules_of(languages="en-de")


def test_filters_that_know_neither_language_are_off():
    assert order_of(rules_of(languages="qaa-qab")) == STANDARD
    assert order_of(rules_of(languages="qaa-de")) == [*STANDARD, "script", "language"]


def test_normalise_is_passed_on():
    assert not resolve_rules(PrepareSettings(normalise=False)).normalise
