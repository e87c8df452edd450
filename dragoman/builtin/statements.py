"""Simple sentences: statements and questions."""

from dataclasses import replace
from random import Random

from dragoman.builtin import actions, choices, clauses, german, phrases, verbs
from dragoman.builtin.actions import TENSES
from dragoman.builtin.adjectives import ADJECTIVES_FITTING
from dragoman.builtin.adverbials import FREQUENCIES
from dragoman.builtin.choices import chance, pick
from dragoman.builtin.clauses import Clause, Phrase
from dragoman.builtin.nouns import NOUNS, PLACE_KINDS
from dragoman.builtin.phrases import Nominal
from dragoman.builtin.sentence import Sentence, object_combination, spell, stated
from dragoman.builtin.verbs import Verb

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


_PLEASE = Phrase("please", "bitte")
# "Where does she come?" would have to be "where from".
_VERBS_WITH_GOAL = tuple(verb for verb in verbs.WALKING + verbs.RIDING if verb.english != "come")


def yes_no_question(random: Random) -> Sentence:
    """Did your sister invite him?"""
    clause = _asked_clause(random, with_time_share=0.35)
    return spell(clauses.english_question(clause), clauses.german_question(clause), clause.combinations, "?")


def adverbial_question(random: Random) -> Sentence:
    """Why does Anna need a new coat?"""
    clause = _asked_clause(random, with_time_share=0.0)
    words = [("when", "wann"), ("why", "warum"), ("how often", "wie oft")]
    if clause.place is None and clause.verb not in verbs.CHANGES:
        words.append(("where", "wo"))
    word, german_word = pick(random, words)
    source, target = clauses.english_question(clause, word), clauses.german_question(clause, german_word)
    return spell(source, target, clause.combinations, "?")


def goal_question(random: Random) -> Sentence:
    """Where did the doctor drive yesterday? German asks "wohin" after verbs of motion."""
    tense = pick(random, TENSES)
    verb = pick(random, _VERBS_WITH_GOAL)
    time = choices.choose_time(random, tense) if chance(random, 0.6) else None
    clause = Clause(choices.choose_affirmed_subject(random), verb, tense, time=time)
    source, target = clauses.english_question(clause, "where"), clauses.german_question(clause, "wohin")
    return spell(source, target, clause.combinations, "?")


def subject_question(random: Random) -> Sentence:
    """Who opened the window?"""
    clause = actions.choose_deed(random, phrases.WHO, pick(random, TENSES))
    if chance(random, 0.3):
        clause = replace(clause, time=choices.choose_time(random, clause.tense))
    source, target = clauses.english_statement(clause), clauses.german_statement(clause)
    return spell(source, target, clause.combinations, "?")


def object_question(random: Random) -> Sentence:
    """Whom or what or which: Which book did your brother lose?"""
    verb = pick(random, verbs.TRANSITIVE + verbs.DATIVE)
    subject = choices.choose_affirmed_subject(random)
    clause = Clause(subject, verb, actions.visible_tense(verb, subject, pick(random, TENSES)))
    if verb not in verbs.STATES and chance(random, 0.3):
        clause = replace(clause, time=choices.choose_time(random, clause.tense))
    asked = _asked_object(random, verb)
    case = german.CASES.index(verb.object_case)
    combinations = clause.combinations + asked.combinations + object_combination(verb, asked)
    source = clauses.english_question(clause, asked.english)
    return spell(source, clauses.german_question(clause, asked.german[case]), combinations, "?")


def command(random: Random) -> Sentence:
    """Please do not forget the key!"""
    is_negated = chance(random, 0.3)
    clause = actions.choose_deed(random, phrases.PRONOUNS["you"], "present", is_negated)
    if chance(random, 0.4):
        clause = replace(clause, front=_PLEASE)
    source, target = clauses.english_command(clause), clauses.german_command(clause)
    return spell(source, target, clause.combinations, "!")


def _asked_clause(random: Random, with_time_share: float) -> Clause:
    clause = actions.choose_deed(random, choices.choose_affirmed_subject(random), pick(random, TENSES))
    if chance(random, with_time_share):
        return replace(clause, time=choices.choose_time(random, clause.tense))
    return actions.with_modal(random, clause) if chance(random, 0.2) else clause


def _asked_object(random: Random, verb: Verb) -> Nominal:
    if chance(random, 0.5):
        return choices.choose_phrase(random, choices.choose_noun(random, verb.object_kinds), (phrases.WHICH,))
    return phrases.WHO if "people" in verb.object_kinds else phrases.WHAT
