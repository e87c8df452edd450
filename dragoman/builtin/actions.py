"""Draws clauses at random: what somebody does, what something is like, and the circumstances."""

from dataclasses import replace
from random import Random

from dragoman.builtin import choices, german, verbs
from dragoman.builtin.adverbials import FREQUENCIES, MODALS_TO_NEGATE, PAST_MODALS, PRESENT_MODALS
from dragoman.builtin.choices import chance, pick
from dragoman.builtin.clauses import Clause, Phrase
from dragoman.builtin.lexicon import ADJECTIVES_FITTING, MOODS, Adjective
from dragoman.builtin.phrases import Combination, Nominal
from dragoman.builtin.verbs import Verb

TENSES = ("present", "present", "past", "past", "future")


def choose_action(random: Random, subject: Nominal, tense: str, is_negated: bool = False) -> Clause:
    """Draws what somebody does, without time or modal verb."""
    return pick(random, _WEIGHTED_ACTIONS)(random, subject, tense, is_negated)


def choose_deliberate_action(random: Random, subject: Nominal, tense: str, is_negated: bool = False) -> Clause:
    """Draws what somebody does on purpose: an action that can have a command or a date."""
    while (clause := choose_action(random, subject, tense, is_negated)).verb in verbs.STATES:
        pass
    return clause


def _transitive(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    verb = pick(random, verbs.TRANSITIVE)
    direct = choices.choose_object(random, verb, subject, is_negated)
    clause = Clause(subject, verb, visible_tense(verb, subject, tense), is_negated=is_negated, direct_object=direct)
    return replace(clause, manner=choices.choose_manner(random, verb))


def _dative(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    verb = pick(random, verbs.DATIVE)
    direct = choices.choose_object(random, verb, subject, is_negated)
    return Clause(subject, verb, visible_tense(verb, subject, tense), is_negated=is_negated, direct_object=direct)


def _possessing(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    direct = choices.choose_object(random, verbs.HAVE, subject, is_negated)
    tense = visible_tense(verbs.HAVE, subject, tense)
    return Clause(subject, verbs.HAVE, tense, is_negated=is_negated, direct_object=direct)


def _ditransitive(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    verb = pick(random, verbs.DITRANSITIVE)
    direct = choices.choose_thing(random, verb, is_negated)
    recipient = choices.choose_recipient(random, subject)
    return Clause(subject, verb, tense, is_negated=is_negated, recipient=recipient, direct_object=direct)


def _intransitive(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    verb = pick(random, verbs.INTRANSITIVE)
    # Never both manner and place: their order differs in German (im Garten laut), with "nicht" between them.
    manner = choices.choose_manner(random, verb)
    place = choices.choose_location(random) if manner is None and chance(random, 0.8) else None
    return Clause(subject, verb, tense, is_negated=is_negated, manner=manner, place=place)


def _change(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    return Clause(subject, pick(random, verbs.CHANGES), tense, is_negated=is_negated)


def _motion(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    verb = pick(random, verbs.WALKING + verbs.RIDING + verbs.TRAVEL)
    if verb in verbs.TRAVEL and (verb not in verbs.RIDING or chance(random, 0.4)):
        goal = choices.choose_city_goal(random)
    else:
        goal = choices.choose_goal(random, can_enter=verb in verbs.WALKING)
    return Clause(subject, verb, tense, is_negated=is_negated, manner=choices.choose_manner(random, verb), place=goal)


def _putting(random: Random, subject: Nominal, tense: str, is_negated: bool) -> Clause:
    verb = pick(random, verbs.PUTTING)
    direct = choices.choose_definite(random, choices.choose_noun(random, verb.object_kinds))
    spot = choices.choose_spot(random, german.ACCUSATIVE)
    return Clause(subject, verb, tense, is_negated=is_negated, direct_object=direct, place=spot)


_WEIGHTED_ACTIONS = (
    (_transitive,) * 18
    + (_dative,) * 3
    + (_possessing,)
    + (_ditransitive,) * 4
    + (_intransitive,) * 5
    + (_change,) * 2
    + (_motion,) * 4
    + (_putting,) * 2
)


def visible_tense(verb: Verb, subject: Nominal, tense: str) -> str:
    """Returns the present for states in the future, and where English hides the past: "they read" is ambiguous."""
    if verb in verbs.STATES and tense == "future":
        return "present"
    is_hidden = tense == "past" and verb.english == verb.english_past and subject.person != "he"
    return "present" if is_hidden else tense


def choose_quality(random: Random, subject: Nominal, tense: str, is_negated: bool = False) -> Clause:
    """Draws what something is like, or how somebody feels."""
    is_person = subject.kind in ("people", "name", "")
    adjective = pick(random, MOODS if is_person else ADJECTIVES_FITTING[subject.kind])
    return describe(subject, adjective, tense, is_negated)


def describe(subject: Nominal, adjective: Adjective, tense: str, is_negated: bool) -> Clause:
    """Builds a clause with an adjective as predicate."""
    combination: tuple[Combination, ...] = (("adjective", adjective.english, subject.lemma),) if subject.lemma else ()
    predicate = Phrase(adjective.english, adjective.german, combination)
    return Clause(subject, verbs.BE, tense, is_negated=is_negated, predicate=predicate)


def with_circumstances(random: Random, clause: Clause) -> Clause:
    """Adds a modal verb, a time or a frequency to a statement.

    With "nicht", a time is always fronted, because in the middle field it could be at two places in German.
    """
    if clause.verb in verbs.STATES:
        return clause
    clause = with_modal(random, clause) if chance(random, 0.25) else clause
    draw = random.random()
    if draw < 0.15 and not clause.is_negated and clause.modal is None and clause.tense != "future":
        return replace(clause, frequency=pick(random, FREQUENCIES))
    if draw < 0.5:
        time = choices.choose_time(random, clause.tense, clause.is_negated)
        is_fronted = clause.is_negated or chance(random, 0.4)
        return replace(clause, front=time) if is_fronted else replace(clause, time=time)
    if draw < 0.75 and clause.manner is None:
        return replace(clause, manner=choices.choose_company(random, clause.verb))
    return clause


def with_modal(random: Random, clause: Clause) -> Clause:
    """Adds a modal verb that the tense and the negation allow."""
    if clause.is_negated:
        return replace(clause, modal=pick(random, MODALS_TO_NEGATE), tense="present")
    if clause.tense == "past":
        return replace(clause, modal=pick(random, PAST_MODALS))
    return replace(clause, modal=pick(random, PRESENT_MODALS), tense="present")
