"""The words of lexicon.toml: nouns by what can be done with them, and the adjectives that can describe them."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

LEXICON: dict[str, dict[str, Any]] = tomllib.loads(
    files("dragoman.builtin").joinpath("lexicon.toml").read_text(encoding="utf-8")
)
_GENDER_OF_ARTICLE = {"der": "m", "die": "f", "das": "n"}


@dataclass(frozen=True, slots=True)
class Noun:
    """One noun, with what is needed to form its cases and plural."""

    english: str
    german: str
    gender: str
    genitive: str
    plural: str
    is_weak: bool
    kind: str


# Mass nouns have no article where a countable noun has "a".
MASS_KINDS = frozenset({"groceries", "drinks"})
PLACE_KINDS = ("rooms", "buildings", "areas", "waypoints")


def _read_noun(kind: str, english: str, german: str) -> Noun:
    citation, *forms = german.split(", ")
    article, lemma = citation.split(" ")
    gender = _GENDER_OF_ARTICLE[article]
    is_weak = "weak" in forms
    if gender == "f":
        forms.insert(0, lemma)
    genitive, plural = forms[0], forms[1] if len(forms) > 1 else ""
    # In the n-declension the genitive looks like the plural: des Jungen, die Jungen.
    return Noun(english, lemma, gender, plural if is_weak else genitive, plural, is_weak, kind)


NOUNS: dict[str, tuple[Noun, ...]] = {
    kind: tuple(_read_noun(kind, english, german) for english, german in table.items())
    for kind, table in LEXICON["nouns"].items()
}


@dataclass(frozen=True, slots=True)
class Adjective:
    """One adjective; the stem takes the endings (teuer, but ein teures Auto)."""

    english: str
    german: str
    stem: str


def _read_adjective(english: str, german: str) -> Adjective:
    lemma, _, stem = german.partition(", ")
    return Adjective(english, lemma, stem.removesuffix("-") or lemma)


ADJECTIVES = {english: _read_adjective(english, german) for english, german in LEXICON["adjectives"].items()}

ADJECTIVES_FITTING: dict[str, tuple[Adjective, ...]] = {
    kind: tuple(ADJECTIVES[word] for word in words.split()) for kind, words in LEXICON["adjectives_fitting"].items()
}

# Temporary states of people, which can be a reason.
_MOOD_WORDS = "angry curious happy hungry lazy lonely nervous poor proud rich sad sick tired"
MOODS = tuple(ADJECTIVES[word] for word in _MOOD_WORDS.split())
