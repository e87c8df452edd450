"""English word forms, the irregular ones above all."""

import pytest

from dragoman.builtin import english
from dragoman.builtin.lexicon import NOUNS
from dragoman.builtin.verbs import VERBS

VERB_NAMED = {verb.lemma: verb for verb in VERBS}


@pytest.mark.parametrize(
    ("noun", "plural"),
    [
        ("dog", "dogs"),
        ("city", "cities"),
        ("boy", "boys"),
        ("church", "churches"),
        ("bus", "buses"),
        ("fox", "foxes"),
        ("child", "children"),
        ("man", "men"),
        ("woman", "women"),
        ("mouse", "mice"),
        ("knife", "knives"),
        ("thief", "thieves"),
        ("roof", "roofs"),
        ("potato", "potatoes"),
        ("radio", "radios"),
        ("bus stop", "bus stops"),
    ],
)
def test_plural(noun: str, plural: str) -> None:
    assert english.plural(noun) == plural


@pytest.mark.parametrize(
    ("verb", "third", "past"),
    [
        ("buy", "buys", "bought"),
        ("carry", "carries", "carried"),
        ("play", "plays", "played"),
        ("wash", "washes", "washed"),
        ("miss", "misses", "missed"),
        ("dance", "dances", "danced"),
        ("go", "goes", "went"),
        ("have", "has", "had"),
        ("hug", "hugs", "hugged"),
        ("travel", "travels", "travelled"),
        ("read", "reads", "read"),
        ("fall asleep", "falls asleep", "fell asleep"),
        ("look for", "looks for", "looked for"),
        ("take place", "takes place", "took place"),
    ],
)
def test_verb_forms(verb: str, third: str, past: str) -> None:
    assert english.third_person(verb) == third
    assert english.past(VERB_NAMED[verb]) == past


@pytest.mark.parametrize(
    ("word", "article"),
    [
        ("apple", "an"),
        ("house", "a"),
        ("honest man", "an"),
        ("useful key", "a"),
        ("old car", "an"),
        ("hungry dog", "a"),
    ],
)
def test_indefinite_article(word: str, article: str) -> None:
    assert english.indefinite_article(word) == article


def test_possessive() -> None:
    assert english.possessive("my brother", is_plural=False) == "my brother's"
    assert english.possessive("my brothers", is_plural=True) == "my brothers'"
    assert english.possessive("the children", is_plural=True) == "the children's"
    assert english.possessive("the boss", is_plural=False) == "the boss's"


def test_every_noun_has_one_translation() -> None:
    entries = [(noun.english, noun.german) for nouns in NOUNS.values() for noun in nouns]
    assert len({noun for noun, _ in entries}) == len(entries)


def test_singular_and_plural_always_differ() -> None:
    countable = [noun.english for nouns in NOUNS.values() for noun in nouns if noun.plural]
    assert [noun for noun in countable if english.plural(noun) == noun] == []
