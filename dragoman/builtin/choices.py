"""Draws noun phrases, subjects, objects, times and places that fit their verb."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from dragoman.builtin import german, phrases
from dragoman.builtin.adverbials import (
    CITIES,
    MANNERS_FITTING,
    NAMES,
    NUMBER_WORDS,
    TIME_UNITS,
    TIMES,
    TITLED_NAMES,
    VERBS_FOR_SOMEBODY,
    VERBS_IN_COMPANY,
    WHEREABOUTS,
)
from dragoman.builtin.clauses import Phrase
from dragoman.builtin.lexicon import ADJECTIVES_FITTING, MASS_KINDS, NOUNS, PLACE_KINDS, Adjective, Noun
from dragoman.builtin.phrases import Determiner, Nominal
from dragoman.builtin.verbs import Verb

Item = TypeVar("Item")

_ADJECTIVE_SHARE = 0.35
_PLURAL_SHARE = 0.3

_BARE_MASS = Determiner("", "", "s", is_indefinite=True)
# Repetition is weight: definite and possessive phrases are the most frequent.
_DEFINITE = (phrases.THE,) * 8 + phrases.POSSESSIVES + (phrases.THIS,) * 2
# Nobody owns a valley or a station.
_PUBLIC = (phrases.THE, phrases.THE, phrases.THIS)
_PUBLIC_KINDS = frozenset({"areas", "waypoints", "transports"})
_COUNTABLE = _DEFINITE + (phrases.INDEFINITE,) * 5 + (phrases.BARE,) * 2
_MASS = (phrases.THE,) * 3 + phrases.POSSESSIVES + (_BARE_MASS,) * 6
_SUBJECT = _DEFINITE * 2 + (phrases.INDEFINITE,) * 4 + (phrases.EVERY,) * 2 + (phrases.NO,)
_PREPOSITIONS_OF_FURNITURE = (("on", "auf"), ("under", "unter"), ("behind", "hinter"), ("next to", "neben"))
_PREPOSITIONS_OF_PLACES = (("in front of", "vor"), ("behind", "hinter"), ("next to", "neben"))
_WITH_SOMEBODY = (("with", "mit", german.DATIVE), ("without", "ohne", german.ACCUSATIVE))
_FOR_SOMEBODY = (("for", "für", german.ACCUSATIVE),)
_PREPOSITIONS_OF_EVENTS = (
    ("after", "nach", german.DATIVE),
    ("before", "vor", german.DATIVE),
    ("during", "während", german.GENITIVE),
)
_PREPOSITIONS_OF_CAUSES = (("because of", "wegen", german.GENITIVE), ("despite", "trotz", german.GENITIVE))
_PLACES = tuple(noun for kind in PLACE_KINDS for noun in NOUNS[kind])
_ENTERABLE = tuple(noun for noun in _PLACES if noun.kind != "waypoints")
_PEOPLE_WITH_SEX = tuple(noun for noun in NOUNS["people"] if noun.english != "child")
_PRONOUNS = tuple(phrases.PRONOUNS.values())
_OTHER_PRONOUNS = (phrases.PRONOUNS["he"], phrases.PRONOUNS["she"], phrases.PRONOUNS["they"])
_NAMES_OF = {pronoun: tuple(name for name in NAMES if name.pronoun == pronoun) for pronoun in ("he", "she")}
_OWNERS = (phrases.THE, *phrases.POSSESSIVES)


def pick(random: Random, items: Sequence[Item]) -> Item:
    """Draws one of the items, each equally likely; 3 times as fast as Random.choice."""
    return items[int(random.random() * len(items))]


def chance(random: Random, share: float) -> bool:
    """Returns True in the given share of calls."""
    return random.random() < share


def choose_noun(random: Random, kinds: Sequence[str]) -> Noun:
    """Draws a noun of one of the kinds; every kind is equally likely, so that no word is rare."""
    return pick(random, NOUNS[pick(random, kinds)])


def _choose_adjective(random: Random, noun: Noun, share: float = _ADJECTIVE_SHARE) -> Adjective | None:
    """Draws an adjective that can describe the noun in the given share of calls."""
    return pick(random, ADJECTIVES_FITTING[noun.kind]) if chance(random, share) else None


def choose_phrase(
    random: Random,
    noun: Noun,
    determiners: Sequence[Determiner],
    is_negated: bool = False,
    adjective_share: float = _ADJECTIVE_SHARE,
) -> Nominal:
    """Draws a noun phrase with a noun; an indefinite one gets "kein" if negated."""
    determiner = pick(random, determiners)
    is_plural = determiner.number == "p" or (
        determiner.number == "sp" and noun.plural != "" and chance(random, _PLURAL_SHARE)
    )
    is_negated = is_negated and determiner.is_indefinite
    adjective = _choose_adjective(random, noun, adjective_share)
    return phrases.noun_phrase(determiner, noun, adjective, is_plural, is_negated)


def choose_object(random: Random, verb: Verb, subject: Nominal, is_negated: bool = False) -> Nominal:
    """Draws an object of the verb: mostly a noun phrase, sometimes a name, a pronoun or a quantity."""
    noun = choose_noun(random, verb.object_kinds)
    if noun.kind == "people" and chance(random, 0.35):
        return _choose_other_pronoun(random, subject) if chance(random, 0.5) else choose_name(random)
    if noun.kind in MASS_KINDS:
        return choose_phrase(random, noun, _MASS, is_negated)
    if not is_negated and chance(random, 0.14):
        return _choose_quantity(random, noun)
    if noun.kind not in ("people", "animals", *PLACE_KINDS) and chance(random, 0.07):
        return choose_possession(random, noun)
    return choose_phrase(random, noun, _PUBLIC if noun.kind in _PUBLIC_KINDS else _COUNTABLE, is_negated)


def choose_thing(random: Random, verb: Verb, is_negated: bool) -> Nominal:
    """Draws what is given; never a pronoun, since German reverses the order of two pronouns."""
    noun = choose_noun(random, verb.object_kinds)
    return choose_phrase(random, noun, _MASS if noun.kind in MASS_KINDS else _COUNTABLE, is_negated)


def choose_recipient(random: Random, subject: Nominal) -> Nominal:
    """Draws who gets something."""
    draw = random.random()
    if draw < 0.3:
        return _choose_other_pronoun(random, subject)
    return choose_name(random) if draw < 0.5 else _choose_person(random)


def _choose_quantity(random: Random, noun: Noun) -> Nominal:
    """Draws many, some or a number of things; digits are the same in both languages, so that they are copied."""
    if chance(random, 0.3):
        return choose_phrase(random, noun, phrases.QUANTIFIERS)
    english, german_number = _choose_number(random)
    return choose_phrase(random, noun, (Determiner(english, german_number, "p"),))


def _choose_number(random: Random, limit: int = 10_000) -> tuple[str, str]:
    """Draws a number, in words up to twelve and in digits above."""
    if chance(random, 0.6):
        return pick(random, NUMBER_WORDS)
    number = f"{random.randrange(13, 100 if chance(random, 0.7) else limit):,}"
    return number, number


def choose_name(random: Random) -> Nominal:
    """Draws a first name, or a surname with its title."""
    return phrases.name_phrase(pick(random, NAMES if chance(random, 0.7) else TITLED_NAMES))


def choose_name_of(random: Random, pronoun: str) -> Nominal:
    """Draws a first name for the pronoun "he" or "she"."""
    return phrases.name_phrase(pick(random, _NAMES_OF[pronoun]))


def _choose_pronoun(random: Random) -> Nominal:
    """Draws a personal pronoun that needs no antecedent."""
    return pick(random, _PRONOUNS)


def _choose_other_pronoun(random: Random, subject: Nominal) -> Nominal:
    """Draws a pronoun for another person than the subject, since "I see me" would have to be reflexive."""
    return pick(random, _OTHER_PRONOUNS if subject.person in ("I", "you", "we") else _PRONOUNS)


def choose_subject(random: Random) -> Nominal:
    """Draws somebody who acts."""
    draw = random.random()
    if draw < 0.22:
        return _choose_pronoun(random)
    if draw < 0.42:
        return choose_name(random)
    if draw < 0.48:
        return _choose_quantity(random, pick(random, NOUNS["people"]))
    return choose_phrase(random, pick(random, NOUNS["people"]), _SUBJECT)


def choose_affirmed_subject(random: Random) -> Nominal:
    """Draws a subject that a pronoun can repeat and that can be negated: not "no child" or "every child"."""
    draw = random.random()
    if draw < 0.25:
        return _choose_pronoun(random)
    return choose_name(random) if draw < 0.5 else _choose_person(random)


def choose_plain_subject(random: Random) -> Nominal:
    """Draws a subject without an adjective, which could contradict what the clause says about it.

    A child is left out, because "it" could then mean the child or the thing it holds.
    """
    draw = random.random()
    if draw < 0.2:
        return _choose_pronoun(random)
    return choose_name(random) if draw < 0.45 else choose_plain(random, pick(random, _PEOPLE_WITH_SEX))


def _choose_person(random: Random) -> Nominal:
    """Draws a definite person, as head of a relative clause or as companion."""
    return choose_phrase(random, pick(random, NOUNS["people"]), _DEFINITE)


def choose_definite(random: Random, noun: Noun) -> Nominal:
    """Draws a definite phrase with the noun."""
    return choose_phrase(random, noun, _DEFINITE)


def choose_plain(random: Random, noun: Noun) -> Nominal:
    """Draws a definite phrase with the noun, without adjective."""
    determiners = _PUBLIC if noun.kind in _PUBLIC_KINDS else _DEFINITE
    return choose_phrase(random, noun, determiners, adjective_share=0.0)


def choose_possession(random: Random, noun: Noun, adjective_share: float = _ADJECTIVE_SHARE) -> Nominal:
    """Draws something that belongs to somebody, in the genitive."""
    adjective = _choose_adjective(random, noun, adjective_share)
    is_plural = noun.plural != "" and chance(random, 0.2)
    if chance(random, 0.4):
        owner = choose_name(random)
    else:
        owner = phrases.noun_phrase(pick(random, _OWNERS), pick(random, NOUNS["people"]), None, chance(random, 0.2))
    thing = phrases.noun_phrase(phrases.THE, noun, adjective, is_plural)
    bare = phrases.noun_phrase(_BARE_MASS, noun, adjective, is_plural)
    return phrases.possessed(owner, thing, bare)


def choose_part(random: Random) -> Nominal:
    """Draws a part of a building: the roof of the church."""
    part = phrases.noun_phrase(phrases.THE, pick(random, NOUNS["parts"]), None)
    whole = choose_phrase(random, pick(random, NOUNS["buildings"]), (phrases.THE, phrases.THIS))
    return phrases.part_of(part, whole)


def choose_time(random: Random, tense: str, is_negated: bool = False) -> Phrase:
    """Draws a time that agrees with the tense, or an event or cause."""
    draw = random.random()
    if draw < 0.1:
        return prepositional(pick(random, _PREPOSITIONS_OF_EVENTS), _definite_singular(random, "events"))
    if draw < 0.2:
        return prepositional(pick(random, _PREPOSITIONS_OF_CAUSES), _definite_singular(random, "causes"))
    if draw < 0.4 and tense != "present":
        return _distance(random, tense)
    return pick(random, TIMES["negated present" if is_negated and tense == "present" else tense])


def choose_calendar_time(random: Random, tense: str) -> Phrase:
    """Draws a plain time, for events of the calendar."""
    return pick(random, TIMES[tense])


def choose_location(random: Random) -> Phrase:
    """Draws where something happens: the dative after a two-way preposition."""
    draw = random.random()
    if draw < 0.15:
        return pick(random, WHEREABOUTS)
    if draw < 0.3:
        city = pick(random, CITIES)
        return Phrase(f"in {city}", f"in {city}")
    place = choose_phrase(random, pick(random, _PLACES), (phrases.THE,))
    if draw < 0.6 and place.kind == "buildings":
        english, preposition = pick(random, _PREPOSITIONS_OF_PLACES)
    else:
        english, preposition = ("at", "an") if place.kind == "waypoints" else ("in", "in")
    return prepositional((english, preposition, german.DATIVE), place)


def choose_goal(random: Random, can_enter: bool) -> Phrase:
    """Draws where somebody goes: "into" is "in" with the accusative, "to" is "zu" with the dative."""
    if can_enter and chance(random, 0.5):
        place = phrases.noun_phrase(phrases.THE, noun := pick(random, _ENTERABLE), _choose_adjective(random, noun))
        return prepositional(("into", "in", german.ACCUSATIVE), place)
    place = phrases.noun_phrase(phrases.THE, noun := pick(random, _PLACES), _choose_adjective(random, noun))
    return prepositional(("to", "zu", german.DATIVE), place)


def choose_city_goal(random: Random) -> Phrase:
    """Draws a city as goal: "nach", without article."""
    city = pick(random, CITIES)
    return Phrase(f"to {city}", f"nach {city}")


def choose_spot(random: Random, case: int) -> Phrase:
    """Draws a place at furniture: accusative for motion, dative for rest."""
    english, preposition = pick(random, _PREPOSITIONS_OF_FURNITURE)
    return prepositional((english, preposition, case), _definite_singular(random, "furniture"))


def choose_company(random: Random, verb: Verb) -> Phrase | None:
    """Draws with, without or for somebody, if it fits the verb."""
    fitting = (_WITH_SOMEBODY if verb.lemma in VERBS_IN_COMPANY else ()) + (
        _FOR_SOMEBODY if verb.lemma in VERBS_FOR_SOMEBODY else ()
    )
    return prepositional(pick(random, fitting), _choose_person(random)) if fitting else None


def choose_manner(random: Random, verb: Verb) -> Phrase | None:
    """Draws how something is done, if the lexicon has a fitting adverb."""
    manners = MANNERS_FITTING.get(verb.lemma)
    return pick(random, manners) if manners and chance(random, 0.4) else None


def prepositional(preposition: tuple[str, str, int], phrase: Nominal) -> Phrase:
    """Joins a preposition and a noun phrase in the case that the preposition needs."""
    english, german_preposition, case = preposition
    return Phrase(
        f"{english} {phrase.english_object}",
        german.contract(german_preposition, phrase.german[case]),
        phrase.combinations,
    )


def _definite_singular(random: Random, kind: str) -> Nominal:
    noun = pick(random, NOUNS[kind])
    return phrases.noun_phrase(phrases.THE, noun, _choose_adjective(random, noun))


def _distance(random: Random, tense: str) -> Phrase:
    english, german_number = _choose_number(random, limit=100)
    unit, german_unit = pick(random, TIME_UNITS)
    if tense == "future":
        return Phrase(f"in {english} {unit}", f"in {german_number} {german_unit}")
    if chance(random, 0.3):
        year = random.randrange(1950, 2025)
        return Phrase(f"in {year}", f"im Jahr {year}")
    return Phrase(f"{english} {unit} ago", f"vor {german_number} {german_unit}")
