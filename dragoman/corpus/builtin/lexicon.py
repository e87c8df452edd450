"""The whole lexicon at a glance: every word the built-in corpus can use, by its English lemma."""

from dragoman.corpus.builtin.adjectives import ADJECTIVES
from dragoman.corpus.builtin.adverbials import (
    CITIES,
    FREQUENCIES,
    MANNERS_FITTING,
    NAMES,
    NUMBER_WORDS,
    TIMES,
    TITLED_NAMES,
    WHEREABOUTS,
)
from dragoman.corpus.builtin.nouns import NOUNS
from dragoman.corpus.builtin.verbs import VERBS


def list_lemmas() -> dict[str, frozenset[str]]:
    """The English lemmas of each part of speech."""
    manners = {phrase.english for phrases in MANNERS_FITTING.values() for phrase in phrases}
    times = {phrase.english for phrases in TIMES.values() for phrase in phrases}
    adverbs = {phrase.english for phrase in FREQUENCIES + WHEREABOUTS} | manners | times
    return {
        "nouns": frozenset(noun.english for nouns in NOUNS.values() for noun in nouns),
        "verbs": frozenset(verb.lemma for verb in VERBS),
        "adjectives": frozenset(ADJECTIVES),
        "adverbs": frozenset(adverbs),
        "names": frozenset(name.name for name in NAMES + TITLED_NAMES) | frozenset(CITIES),
        "numbers": frozenset(english for english, _ in NUMBER_WORDS),
    }
