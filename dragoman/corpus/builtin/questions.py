"""Questions and commands."""

from dataclasses import replace
from random import Random

from dragoman.corpus.builtin import actions, choices, clauses, german, phrases, verbs
from dragoman.corpus.builtin.actions import TENSES
from dragoman.corpus.builtin.choices import chance, pick
from dragoman.corpus.builtin.clauses import Clause, Phrase
from dragoman.corpus.builtin.phrases import Nominal
from dragoman.corpus.builtin.sentence import Sentence, object_combination, spell
from dragoman.corpus.builtin.verbs import Verb

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
