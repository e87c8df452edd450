"""Plain text, TSV and JSON lines: what is translated in a line, and what is written for it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.formats.blocks import Unreadable
from dragoman.run.errors import UsageError
from dragoman.translation.files.order import TranslationOrder
from dragoman.translation.files.records import choose_format
from dragoman.translation.search import Sampling, SearchSettings
from dragoman.translation.translator import Translation

BEST = Translation("das Haus", -0.25, ((0, 0), (1, 1)))
SECOND = Translation("ein\tHaus", -1.5, ((1, 1),))
BLANK = Translation("", 0.0, ())


def written(line: str, *translations: Translation, **order: object) -> str:
    return TranslationOrder(**order).lines().render(line, 7, translations)


def test_plain_lines_and_their_columns() -> None:
    assert written("the house", BEST) == "das Haus"
    assert written("the house", BEST, with_scores=True, with_alignment=True) == "das Haus\t-0.2500\t0-0 1-1"
    assert written("the house", BEST, SECOND, num_best=2, with_scores=True) == (
        "7\tdas Haus\t-0.2500\n7\tein Haus\t-1.5000"
    )
    assert written("the house", BEST, num_best=1) == "7\tdas Haus"
    assert written("", BLANK, with_scores=True, with_alignment=True) == ""
    assert written("", BLANK, num_best=3) == "7\t"


def test_a_tsv_keeps_its_columns_and_gets_new_ones_at_the_end() -> None:
    order = {"format": "tsv", "column": 2}
    assert TranslationOrder(**order).lines().parse("1\t the  house\tx").text == "the house"
    assert written("1\tthe house\tx", BEST, **order) == "1\tthe house\tx\tdas Haus"
    assert written("1\tthe house", BEST, SECOND, num_best=2, with_alignment=True, **order) == (
        "1\tthe house\tdas Haus\t0-0 1-1\n1\tthe house\tein Haus\t1-1"
    )
    assert written("", BLANK, **order) == ""
    assert written("1\t", BLANK, **order) == "1\t\t"
    with pytest.raises(Unreadable, match="has 1 column, but column 2 is needed"):
        TranslationOrder(**order).lines().parse("alone")


def test_json_lines_get_a_translation() -> None:
    line = '{"id": 1, "title": "the house"}'
    order = {"format": "jsonl", "field": "title"}
    assert TranslationOrder(**order).lines().parse(line).text == "the house"
    assert json.loads(written(line, BEST, **order)) == {"id": 1, "title": "the house", "translation": "das Haus"}
    found = json.loads(written(line, BEST, SECOND, num_best=2, with_scores=True, with_alignment=True, **order))
    assert found["translation"] == "das Haus"
    assert found["n_best"] == [
        {"translation": "das Haus", "score": -0.25, "alignment": "0-0 1-1"},
        {"translation": "ein\tHaus", "score": -1.5, "alignment": "1-1"},
    ]
    assert written(" ", BLANK, **order) == ""
    assert written('{"title": "a", "x": "\\ud800"}', BEST, **order).encode()


def test_a_json_line_keeps_all_that_it_holds() -> None:
    line = '{"n":1e999, "big":12345678901234567890.10, "x":"\\ud800", "text":"the house" } '
    assert written(line, BEST, format="jsonl") == (
        '{"n":1e999, "big":12345678901234567890.10, "x":"\\ud800", "text":"the house", "translation": "das Haus"}'
    )


@pytest.mark.parametrize(
    ("key", "asked"), [("score", "with_scores"), ("alignment", "with_alignment"), ("n_best", "num_best")]
)
def test_no_value_of_a_json_line_is_replaced(key: str, asked: str) -> None:
    line = f'{{"text": "the house", "{key}": 5}}'
    with pytest.raises(Unreadable, match=f'already has a "{key}"'):
        TranslationOrder("jsonl", **{asked: 1}).lines().parse(line)
    assert TranslationOrder("jsonl").lines().parse(line).text == "the house"


def test_a_json_line_has_demands_of_its_own() -> None:
    order = TranslationOrder("jsonl", prefix="Das", required=("Haus",), forbidden=("Heim",))
    plain = order.lines().parse('{"text": "the house"}')
    assert (plain.prefix, plain.required, plain.forbidden) == ("Das", ("Haus",), ("Heim",))
    own = order.lines().parse('{"text": "a", "prefix": "Ein", "require": "groß", "forbid": ["alt", "neu"]}')
    assert (own.prefix, own.required, own.forbidden) == ("Ein", ("Haus", "groß"), ("Heim", "alt", "neu"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not an object"),
        ('{"a": 1}', 'has no "text"'),
        ('{"text": 1}', 'no text in "text"'),
        ('{"text": "a", "translation": "b"}', "would be lost"),
        ('{"text": "a", "require": 3}', 'no words in "require"'),
        ('{"text": "a", "forbid": [""]}', 'no words in "forbid"'),
        ('{"text": "a\\u0000"}', "NUL"),
        ('{"text": "\\ud800"}', "half a character"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_json_lines(line: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        TranslationOrder("jsonl").lines().parse(line)


@given(st.text(max_size=40))
def test_any_line_is_either_read_or_refused(line: str) -> None:
    for kind in ("text", "tsv", "jsonl"):
        lines = TranslationOrder(kind).lines()
        try:
            source = lines.parse(line.replace("\n", " "))
        except Unreadable:
            continue
        assert "\n" not in source.text


def test_the_format_is_chosen_by_options_and_names() -> None:
    assert choose_format(Path("a.en"), None, None, None) == "text"
    assert choose_format(Path("a.tsv.gz"), None, None, None) == "tsv"
    assert choose_format(Path("a.jsonl.zst"), None, None, None) == "jsonl"
    assert choose_format(Path("a.tsv"), "text", None, None) == "text"
    assert choose_format(Path("-"), None, 2, None) == "tsv"
    assert choose_format(Path("-"), None, None, "title") == "jsonl"
    for wrong in [("xml", None, None), ("text", 2, None), (None, 1, "a"), ("tsv", None, "a")]:
        with pytest.raises(UsageError):
            choose_format(Path("a"), *wrong)
    with pytest.raises(UsageError, match="parquet"):
        choose_format(Path("a.parquet"), None, None, None)


def test_an_order_travels_as_json_and_decides_the_search() -> None:
    order = TranslationOrder(
        num_best=6, sampling=Sampling(top_k=5), max_subwords=9, with_alignment=True, required=("a", "b")
    )
    assert TranslationOrder.from_json(json.loads(json.dumps(order.to_json()))) == order
    settings = order.settings(SearchSettings(beam_size=2), is_beam_chosen=True)
    assert (settings.num_best, settings.max_subwords, settings.with_alignment) == (6, 10, True)
    assert settings.sampling == Sampling(top_k=5)
    wide = TranslationOrder(num_best=6)
    assert wide.settings(SearchSettings(beam_size=2)).beam_size == 6
    with pytest.raises(UsageError, match="--beam-size 6"):
        wide.settings(SearchSettings(beam_size=2), is_beam_chosen=True)
