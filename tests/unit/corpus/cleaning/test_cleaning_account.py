"""The report on a cleaning: counts in the order of the text, a page and a table that no example can break."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.corpus.cleaning.clean import Dropped, Example
from dragoman.corpus.cleaning.cleaning_account import FILTER_MEANINGS, CleaningAccount, dropped_message, table_lines
from dragoman.corpus.cleaning.filters import Rules, resolve_rules
from dragoman.corpus.settings import FilterSettings, PrepareSettings

STANDARD = resolve_rules(PrepareSettings(languages="en-de"))
TEXTS = st.text(
    st.one_of(st.sampled_from("`|\n\r\x1b#\u202e~ \\"), st.characters(exclude_categories=["Cs"])), max_size=60
)


def dropped(num_pairs: int, *names: str) -> Dropped:
    return Dropped(num_pairs, [Example(f"my.en, line {name}", f"source {name}", f"target {name}") for name in names])


def entry(account: CleaningAccount, name: str) -> dict:
    return next(item for item in account.record()["filters"] if item["name"] == name)


def account_of(rules: Rules, num_read: int, **found: Dropped) -> CleaningAccount:
    account = CleaningAccount(rules)
    account.add(num_read, found)
    return account


def test_blocks_add_up_in_their_order():
    account = CleaningAccount(STANDARD)
    account.add(100, {"empty": dropped(2, "1", "2")})
    account.add(100, {"empty": dropped(3, "3", "4", "5"), "identical": dropped(1, "6")})
    account.add(0, {"duplicates": dropped(4, "7")})
    record = account.record()
    assert (record["num_read"], record["num_kept"]) == (200, 190)
    empty = entry(account, "empty")
    assert (empty["num_dropped"], empty["share"], empty["is_on"]) == (5, 0.025, True)
    assert [example["source"] for example in empty["examples"]] == ["source 1", "source 2", "source 3"]
    assert entry(account, "duplicates")["num_dropped"] == 4


def test_adding_a_block_does_not_change_it():
    first, second = dropped(1, "1"), dropped(1, "2")
    account = account_of(STANDARD, 5, empty=first)
    account.add(5, {"empty": second})
    assert (first, second) == (dropped(1, "1"), dropped(1, "2"))


def test_every_filter_is_recorded_also_those_that_are_off():
    record = CleaningAccount(Rules(empty=True)).record()
    assert [item["name"] for item in record["filters"]] == list(FILTER_MEANINGS)
    assert [item["name"] for item in record["filters"] if item["is_on"]] == ["empty", "reserved_characters", "held_out"]
    assert json.loads(json.dumps(record)) == record
    assert (record["num_read"], record["num_kept"], record["filters"][0]["share"]) == (0, 0, 0.0)


def test_a_filter_that_is_off_lists_what_it_finds_and_keeps_it():
    rules = resolve_rules(PrepareSettings(filters=FilterSettings(overlap=False)))
    account = account_of(rules, 10, overlap=dropped(3, "1"))
    assert account.num_kept == 10
    assert entry(account, "overlap") | {"examples": []} == {
        "name": "overlap",
        "is_on": False,
        "num_found": 3,
        "num_dropped": 0,
        "share": 0.0,
        "examples": [],
    }
    assert "3 found, kept" in account.markdown()


def test_the_page_has_a_row_for_each_filter_with_its_threshold():
    page = account_of(STANDARD, 2000, length_ratio=dropped(1234, "1")).markdown()
    assert page.startswith("# Cleaning\n\n766 of 2,000 pairs were kept (38.30 %).")
    assert "| length_ratio | one side much longer than the other (kept: up to 9 times) | 1,234 | 61.70 % |" in page
    assert "| length_words | a side with too few or too many words (kept: 1 to 80) | 0 | 0.00 % |" in page
    assert "| script | a side in a script that its language does not use (kept: 50.00 % or more of its letters)" in page
    assert "| language | a side that is clearly in another language (25 characters or more) | 0 | 0.00 % |" in page
    assert "| numbers | different numbers on the two sides | off |  |" in page


def test_the_page_names_a_language_that_is_not_checked():
    page = CleaningAccount(resolve_rules(PrepareSettings(languages="qaa-de"))).markdown()
    assert "(25 characters or more; qaa is not checked)" in page


@given(TEXTS, TEXTS, TEXTS)
@example("```", "````text", "```\n# Title")
def test_no_example_breaks_the_page(place, source, target):
    rules = Rules(empty=True)
    page = account_of(rules, 3, empty=Dropped(1, [Example(place, source, target)])).markdown()
    plain = account_of(rules, 3, empty=dropped(1, "1")).markdown()
    assert len(page.split("\n")) == len(plain.split("\n"))
    fence = re.search(r"^(`{3,})text$", page, re.MULTILINE)
    assert fence
    # The fence is closed by the last line of the page and by none before it.
    _, _, inside = page.partition(fence.group())
    assert inside.count(fence[1]) == 1
    assert inside.endswith(f"\n{fence[1]}\n")
    assert page.replace("\n", "").isprintable()


@given(TEXTS, TEXTS, TEXTS)
def test_no_example_controls_the_terminal(place, source, target):
    lines = table_lines(account_of(STANDARD, 3, empty=Dropped(1, [Example(place, source, target)])).record())
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= 140


def test_the_table_is_aligned():
    lines = table_lines(account_of(STANDARD, 1000, empty=dropped(500, "1", "2"), identical=dropped(1)).record())
    table = lines[: len(FILTER_MEANINGS)]  # a header, and a row for each but held_out
    assert table[:2] == [
        "filter               pairs dropped    share",
        "empty                          500  50.00 %",
    ]
    assert "identical                        1   0.10 %" in table
    assert "numbers                        off" in table
    assert lines[len(table) :] == [
        "",
        "empty, for example:",
        "  my.en, line 1: source 1 ||| target 1",
        "  my.en, line 2: source 2 ||| target 2",
    ]


def test_pairs_beside_the_held_out_sets_are_not_called_dropped():
    account = account_of(STANDARD, 100, empty=dropped(5), held_out=dropped(12, "3"))
    left_out = "12 pairs share a sentence with the pairs held out for dev and test; training leaves them out."
    assert dropped_message(account.record()) == f"Cleaning dropped 5 of 100 pairs (empty 5). {left_out}"
    page, lines = account.markdown(), table_lines(account.record())
    assert f"\n\n{left_out}\n" in page
    assert "| held_out |" not in page
    assert left_out in lines
    assert not any(line.startswith("held_out ") for line in lines)
    # The keys of the JSON are those of earlier versions.
    assert entry(account, "held_out")["num_dropped"] == 12
    assert account.record()["num_kept"] == 83
    only = account_of(STANDARD, 100, held_out=dropped(1)).record()
    assert dropped_message(only) == (
        "1 pair shares a sentence with the pairs held out for dev and test; training leaves it out."
    )
    assert dropped_message(account_of(STANDARD, 100).record()) is None


def test_long_places_keep_their_end():
    example = Example("/a/very/long" * 10 + "/my.en, line 12", "a" * 200, "\x1b[31mred")
    line = table_lines(account_of(STANDARD, 3, empty=Dropped(1, [example])).record())[-1]
    assert "/my.en, line 12: aaa" in line
    assert "a… ||| \\x1b[31mred" in line


def test_an_unknown_filter_name_is_a_bug():
    with pytest.raises(KeyError):
        CleaningAccount(STANDARD).add(1, {"emptiness": Dropped()})


def test_the_message_about_dropped_pairs():
    account = CleaningAccount(Rules(empty=True, identical=True))
    assert dropped_message(account.record()) is None
    account.add(10, {"empty": Dropped(2), "identical": Dropped(1)})
    assert dropped_message(account.record()) == "Cleaning dropped 3 of 10 pairs (empty 2, identical 1)."
