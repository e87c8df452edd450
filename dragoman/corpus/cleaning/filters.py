"""Which filters are on and with which thresholds: what a preset, the changes to it and the languages come to."""

from dataclasses import dataclass
from typing import Any

from dragoman.corpus.cleaning.language import is_known_language
from dragoman.corpus.cleaning.language_codes import split_languages
from dragoman.corpus.cleaning.scripts import has_known_script
from dragoman.run.errors import UsageError
from dragoman.run.preparation import Cleaning, PrepareSettings

# In the order in which they are applied: cheap ones first, so that the costly ones see less text.
PAIR_FILTERS = (
    "empty",
    "reserved_characters",
    "control_characters",
    "length_words",
    "length_characters",
    "length_ratio",
    "identical",
    "script",
    "language",
    "numbers",
)
# These need the whole corpus, not one pair.
CORPUS_FILTERS = ("overlap", "duplicates", "near_duplicates", "held_out")

_NONE: dict[str, Any] = {"empty": True}
_SEEDS = _NONE | {"length_words": (1, 80), "length_ratio": 9.0}
_STANDARD = _SEEDS | {
    "length_characters": (1, 2000),
    "control_characters": True,
    "identical": True,
    "duplicates": True,
    "overlap": True,
    "script": 0.5,
    "language": 25,
}
_STRICT = _STANDARD | {"numbers": True, "near_duplicates": True, "length_ratio": 4.0}
_PRESETS: dict[Cleaning, dict[str, Any]] = {
    "none": _NONE,
    "seeds": _SEEDS,
    "standard": _STANDARD,
    "strict": _STRICT,
}


@dataclass(frozen=True)
class Rules:
    """Every filter with its threshold; False or None is off."""

    empty: bool = False
    reserved_characters: bool = True
    control_characters: bool = False
    length_words: tuple[int, int] | None = None
    length_characters: tuple[int, int] | None = None
    length_ratio: float | None = None
    identical: bool = False
    script: float | None = None
    language: int | None = None
    numbers: bool = False
    duplicates: bool = False
    near_duplicates: bool = False
    overlap: bool = False
    held_out: bool = True
    normalise: bool = True
    languages: tuple[str, str] | None = None
    """Codes of source and target; `script` and `language` are on only if they are known."""

    def is_on(self, name: str) -> bool:
        """Whether the filter drops pairs."""
        return getattr(self, name) not in (None, False)

    def order(self) -> list[str]:
        """The filters that are on and judge a pair by itself, in the order they are applied."""
        return [name for name in PAIR_FILTERS if self.is_on(name)]


def resolve_rules(settings: PrepareSettings) -> Rules:
    """Works out the filters from the preset, the changes to it and the languages.

    `seeds` is the rule of Moses' clean-corpus-n with 1 and 80. Words are the runs between white space; a pair is
    dropped if a side has fewer than 1 or more than 80 words, or one side more than 9 times the words of the other
    (its characters, where most letters are in a script without spaces).
    """
    changes = settings.filters.model_dump(exclude_none=True)
    _check_ranges(changes)
    languages = split_languages(settings.languages) if settings.languages else None
    # A filter that is merely switched on has the threshold of the standard.
    thresholds = _PRESETS[settings.cleaning] | {
        name: _STANDARD.get(name, True) if value is True else value for name, value in changes.items()
    }
    if languages is None:
        _check_languages_not_needed(changes)
    # A filter that can judge neither side is off, and the account says so.
    if not any(map(has_known_script, languages or ())):
        thresholds["script"] = None
    if not any(map(is_known_language, languages or ())):
        thresholds["language"] = None
    # Off is False in the settings of every filter, but None among thresholds; a share of 0 drops nothing either.
    on = {name: value for name, value in thresholds.items() if value}
    return Rules(**on, normalise=settings.normalise, languages=languages)


def _check_languages_not_needed(changes: dict[str, Any]) -> None:
    for name in ("script", "language"):
        if changes.get(name):
            raise UsageError(
                f"The filter prepare.filters.{name} needs to know the languages; give them, e.g. --languages en-de."
            )


def _check_ranges(changes: dict[str, Any]) -> None:
    for name in ("length_words", "length_characters"):
        least, most = changes[name] if isinstance(changes.get(name), tuple) else (0, 0)
        if least > most:
            raise UsageError(
                f"prepare.filters.{name} is [{least}, {most}]: the least comes first, so write [{most}, {least}]."
            )
