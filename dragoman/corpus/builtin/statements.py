"""Statements of one clause."""

from dataclasses import replace
from random import Random

from dragoman.corpus.builtin import actions, choices, german, phrases, verbs
from dragoman.corpus.builtin.actions import TENSES
from dragoman.corpus.builtin.adjectives import ADJECTIVES_FITTING
from dragoman.corpus.builtin.adverbials import FREQUENCIES
from dragoman.corpus.builtin.choices import chance, pick
from dragoman.corpus.builtin.clauses import Clause
from dragoman.corpus.builtin.nouns import NOUNS, PLACE_KINDS
from dragoman.corpus.builtin.sentence import Sentence, stated

_DESCRIBED_KINDS = tuple(kind for kind in NOUNS if kind not in ("causes", "parts"))
_NOT_OWNED_KINDS = frozenset({"people", "animals", "transports", *PLACE_KINDS})
_FAMILY_WORDS = "man woman child boy girl brother sister father mother son daughter uncle aunt friend"
_FAMILY = frozenset(_FAMILY_WORDS.split())
_PROFESSIONS = tuple(
    noun for noun in NOUNS["people"] if noun.english not in _FAMILY and not noun.english.startswith("grand")
)
_ANIMAL_VERBS = tuple(verb for verb in verbs.VERBS if verb.lemma in ("sleep", "play", "wait", "stay"))


def statement(random: Random) -> Sentence:
    """My brother bought a new car yesterday."""
    is_negated = chance(random, 0.18)
    subject = choices.choose_affirmed_subject(random) if is_negated else choices.choose_subject(random)
    clause = actions.choose_action(random, subject, pick(random, TENSES), is_negated)
    return stated(actions.with_circumstances(random, clause))


def description(random: Random) -> Sentence:
    """The old church is not dark."""
    is_negated = chance(random, 0.2)
    noun = choices.choose_noun(random, _DESCRIBED_KINDS)
    if chance(random, 0.12):
        subject = choices.choose_part(random)
    elif noun.kind not in _NOT_OWNED_KINDS and chance(random, 0.15):
        subject = choices.choose_possession(random, noun, adjective_share=0.0)
    else:
        subject = choices.choose_plain(random, noun)
    tense = pick(random, ("present", "past"))
    return stated(actions.describe(subject, pick(random, ADJECTIVES_FITTING[subject.kind]), tense, is_negated))


def mood(random: Random) -> Sentence:
    """My sister is often sad: only moods come and go."""
    clause = actions.choose_quality(random, choices.choose_plain_subject(random), pick(random, ("present", "past")))
    return stated(replace(clause, frequency=pick(random, FREQUENCIES)))


def profession(random: Random) -> Sentence:
    """Peter is a famous doctor."""
    is_negated = chance(random, 0.25)
    noun = pick(random, _PROFESSIONS)
    subject = choices.choose_name_of(random, "she" if noun.gender == "f" else "he")
    adjective = pick(random, ADJECTIVES_FITTING["people"])
    complement = phrases.noun_phrase(phrases.INDEFINITE, noun, adjective, is_negated=is_negated)
    tense = pick(random, ("present", "past"))
    return stated(Clause(subject, verbs.BE, tense, is_negated=is_negated, direct_object=complement))


def animal_life(random: Random) -> Sentence:
    """The tired horses slept behind the house."""
    subject = choices.choose_definite(random, pick(random, NOUNS["animals"]))
    verb = pick(random, _ANIMAL_VERBS)
    clause = Clause(subject, verb, pick(random, TENSES), place=choices.choose_location(random))
    return stated(actions.with_circumstances(random, clause))


def resting_place(random: Random) -> Sentence:
    """The key lies under the sofa."""
    verb = pick(random, verbs.RESTING)
    subject = choices.choose_definite(random, choices.choose_noun(random, verb.object_kinds))
    place = choices.choose_spot(random, german.DATIVE)
    return stated(Clause(subject, verb, pick(random, ("present", "past")), place=place))


def happening(random: Random) -> Sentence:
    """The concert will take place on Friday."""
    tense = pick(random, ("past", "future"))
    subject = choices.choose_definite(random, pick(random, NOUNS["events"]))
    time = choices.choose_calendar_time(random, tense)
    clause = Clause(subject, pick(random, verbs.HAPPENING), tense)
    return stated(replace(clause, front=time) if chance(random, 0.4) else replace(clause, time=time))
