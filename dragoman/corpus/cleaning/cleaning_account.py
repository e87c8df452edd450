"""Reports on a cleaning: how many pairs each filter dropped, with examples, as text and as JSON."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from dragoman.corpus.cleaning.clean import Dropped, Example
from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.language import has_known_script, is_known_language

# In the order in which the filters are applied.
FILTER_MEANINGS: dict[str, str] = {
    "empty": "a side without text",
    "reserved_characters": "▁ (U+2581) or ▅ (U+2585), which the tokenizer uses as marks",
    "control_characters": "control or private-use characters, or U+FFFD from a failed conversion",
    "length_words": "a side with too few or too many words",
    "length_characters": "a side with too few or too many characters",
    "length_ratio": "one side much longer than the other",
    "identical": "identical source and target",
    "script": "a side in a script that its language does not use",
    "language": "a side that is clearly in another language",
    "numbers": "different numbers on the two sides",
    "overlap": "a sentence of a given dev or test set",
    "duplicates": "the same content as an earlier pair",
    "near_duplicates": "the content of an earlier pair except for case, digits, punctuation and white space",
    "held_out": "a sentence that was held out for dev or test",
}
_HELD_OUT = "held_out"
"""Not a filter: nothing is wrong with these pairs, but dev and test would no longer be unseen."""

_MAX_PLACE_CHARACTERS = 40
_MAX_SIDE_CHARACTERS = 44
_MIN_FENCE = 3


class CleaningAccount:
    """Counts the pairs that were read and dropped; blocks are added in the order of the text."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.num_read = 0
        self._found = {name: Dropped() for name in FILTER_MEANINGS}

    @property
    def num_kept(self) -> int:
        """Pairs that no filter dropped."""
        return self.num_read - sum(map(self._num_dropped, self._found))

    def add(self, num_read: int, dropped: Mapping[str, Dropped]) -> None:
        """Adds a block; what a filter finds while it is off (e.g. overlap) is listed but not counted as dropped."""
        self.num_read += num_read
        for name, more in dropped.items():
            self._found[name].merge(more)

    def record(self) -> dict[str, Any]:
        """Returns the counts as plain values for JSON; lists every filter in order, also those that are off."""
        return {"num_read": self.num_read, "num_kept": self.num_kept, "filters": list(map(self._entry, self._found))}

    def markdown(self) -> str:
        """Returns the counts as a page: a table of the filters, then the first pairs that each dropped."""
        lines = ["# Cleaning", "", kept_message(self.record()), "", *self._markdown_table()]
        if left_out := left_out_message(self.record()):
            lines += ["", left_out]
        for name, found in self._found.items():
            if found.examples:
                lines += ["", f"## {name}", "", *_fenced(found.examples)]
        return "\n".join(lines) + "\n"

    def why_nothing_is_left(self) -> str:
        """Returns the message for a text of which no pair was kept, with the filters that dropped most."""
        if not self.num_read:
            return "The training files have no sentence pairs; give more text."
        dropped = sorted(((self._num_dropped(name), name) for name in self._found), reverse=True)
        reasons = ", ".join(f"{name} {number:,}" for number, name in dropped[:3] if number)
        return (
            f"Cleaning dropped all {self.num_read:,} pairs ({reasons}). Check the files and their languages. If "
            f"both are right, turn a filter of `dragoman prepare` off, e.g. --filter {dropped[0][1]}=off, or all with "
            "--cleaning none."
        )

    def _num_dropped(self, name: str) -> int:
        return self._found[name].num_pairs if self.rules.is_on(name) else 0

    def _share(self, num_pairs: int) -> float:
        return num_pairs / self.num_read if self.num_read else 0.0

    def _entry(self, name: str) -> dict[str, Any]:
        num_dropped = self._num_dropped(name)
        return {
            "name": name,
            "is_on": self.rules.is_on(name),
            "num_found": self._found[name].num_pairs,
            "num_dropped": num_dropped,
            "share": self._share(num_dropped),
            "examples": [asdict(example) for example in self._found[name].examples],
        }

    def _markdown_table(self) -> Iterator[str]:
        yield "| filter | drops pairs with | pairs dropped | share |"
        yield "|---|---|---:|---:|"
        for name, meaning in FILTER_MEANINGS.items():
            if name == _HELD_OUT:
                continue
            _, num_dropped, share = _row(self._entry(name))
            yield f"| {name} | {meaning}{_threshold(name, self.rules)} | {num_dropped} | {share} |"


def kept_message(record: Mapping[str, Any]) -> str:
    """Says how many pairs were kept; takes the result of `CleaningAccount.record`."""
    num_read, num_kept = record["num_read"], record["num_kept"]
    return (
        f"{num_kept:,} of {num_read:,} pairs were kept ({_percent(num_kept / num_read if num_read else 0.0)}). "
        "A dropped pair is counted for the first filter, from top to bottom, that it does not pass."
    )


def dropped_message(record: Mapping[str, Any]) -> str | None:
    """Says how many pairs were dropped and why, and how many were left out beside the held-out sets; None if none."""
    dropped = {entry["name"]: entry["num_dropped"] for entry in _filter_entries(record) if entry["num_dropped"]}
    reasons = ", ".join(f"{name} {num_pairs:,}" for name, num_pairs in dropped.items())
    by_filters = f"Cleaning dropped {sum(dropped.values()):,} of {record['num_read']:,} pairs ({reasons})."
    return " ".join(filter(None, (by_filters if dropped else None, left_out_message(record)))) or None


def left_out_message(record: Mapping[str, Any]) -> str | None:
    """Says how many good pairs were left out because of the held-out sets; None if none were."""
    num_pairs = sum(entry["num_dropped"] for entry in record["filters"] if entry["name"] == _HELD_OUT)
    if not num_pairs:
        return None
    share, them = ("pair shares", "it") if num_pairs == 1 else ("pairs share", "them")
    return f"{num_pairs:,} {share} a sentence with the pairs held out for dev and test; training leaves {them} out."


def _filter_entries(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for entry in record["filters"] if entry["name"] != _HELD_OUT]


def table_lines(record: Mapping[str, Any]) -> list[str]:
    """Returns lines for the terminal: a table, then the first pairs that each filter dropped."""
    rows = [("filter", "pairs dropped", "share"), *map(_row, _filter_entries(record))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        f"{name:<{widths[0]}}  {num_dropped:>{widths[1]}}  {share:>{widths[2]}}" for name, num_dropped, share in rows
    ]
    left_out = left_out_message(record)
    return (
        [line.rstrip() for line in table] + ([left_out] if left_out else []) + list(_example_lines(record["filters"]))
    )


def _row(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns filter, pairs dropped and share as text."""
    name, num_found = entry["name"], entry["num_found"]
    if entry["is_on"]:
        return name, f"{num_found:,}", _percent(entry["share"])
    return name, f"off; {num_found:,} found, kept" if num_found else "off", ""


def _example_lines(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for entry in entries:
        if entry["examples"]:
            yield ""
            yield f"{entry['name']}, for example:"
            yield from (_example_line(Example(**example)) for example in entry["examples"])


def _percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")


def _threshold(name: str, rules: Rules) -> str:
    """Describes the threshold of a filter that is on and has one, to follow its meaning."""
    if not rules.is_on(name):
        return ""
    match name, getattr(rules, name):
        case "length_words" | "length_characters", (least, most):
            return f" (kept: {least:,} to {most:,})"
        case "length_ratio", most:
            return f" (kept: up to {most:g} times)"
        case "script", share:
            return f" (kept: {_percent(share)} or more of its letters{_unchecked(has_known_script, rules)})"
        case "language", least:
            return f" ({least:,} characters or more{_unchecked(is_known_language, rules)})"
        case _:
            return ""


def _unchecked(is_known: Callable[[str], bool], rules: Rules) -> str:
    return "".join(f"; {code} is not checked" for code in rules.languages or () if not is_known(code))


def visible(text: str) -> str:
    """Escapes characters that are not printable, so that text of a corpus cannot control a terminal or break a line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _fenced(examples: list[Example]) -> list[str]:
    """Formats examples as a block of code, with a fence that no line inside can close."""
    lines = [
        line
        for example in examples
        for line in (
            visible(example.place),
            f"  source: {visible(example.source)}",
            f"  target: {visible(example.target)}",
        )
    ]
    longest_run = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(_MIN_FENCE, longest_run + 1)
    return [f"{fence}text", *lines, fence]


def _example_line(example: Example) -> str:
    place = visible(example.place)
    if len(place) > _MAX_PLACE_CHARACTERS:
        # The file name and the line number are at the end.
        place = "…" + place[1 - _MAX_PLACE_CHARACTERS :]
    return f"  {place}: {_cut(visible(example.source))} ||| {_cut(visible(example.target))}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SIDE_CHARACTERS else text[: _MAX_SIDE_CHARACTERS - 1] + "…"
