"""Draws whole sentences at random, with one function for each kind of sentence."""

from dataclasses import replace
from random import Random

from dragoman.builtin import actions, choices, clauses, german, phrases, verbs
from dragoman.builtin.actions import TENSES
from dragoman.builtin.adverbials import FREQUENCIES
from dragoman.builtin.choices import chance, pick
from dragoman.builtin.clauses import Clause, Phrase, Sentence, ask, spell, state
from dragoman.builtin.lexicon import ADJECTIVES_FITTING, NOUNS, PLACE_KINDS
from dragoman.builtin.phrases import Combination, Nominal
from dragoman.builtin.verbs import Verb

Conjunction = tuple[str, str]

_REASONS: tuple[Conjunction, ...] = (("because", "weil"), ("although", "obwohl"))
_SEQUENCES: tuple[Conjunction, ...] = (("while", "während"), ("before", "bevor"))
_COORDINATORS: tuple[Conjunction, ...] = ((" and", " und"), (", but", ", aber"))
_TENSES = ("present", "past")
_THING_KINDS = ("texts", "clothes", "furniture", "dishes", "items", "devices", "vehicles")
_THINGS = tuple(noun for kind in _THING_KINDS for noun in NOUNS[kind])
_HEADS = _THINGS + NOUNS["people"] + NOUNS["animals"]
# What people do to a thing because of a property of the thing.
_DECISIONS = frozenset(
    ("buy", "sell", "need", "choose", "use", "wear", "wash", "repair", "throw away", "take along", "try on", "clean")
)
# Verbs whose object can be repeated by "it" or a relative pronoun.
_VERBS_OF_KIND = {
    kind: tuple(verb for verb in verbs.TRANSITIVE + verbs.DATIVE if kind in verb.object_kinds)
    for kind in (*_THING_KINDS, "people", "animals")
}
_DECISIONS_OF_KIND = {
    kind: tuple(verb for verb in _VERBS_OF_KIND[kind] if verb.lemma in _DECISIONS) for kind in _THING_KINDS
}
_VERBS_WITHOUT_PREFIX_OF_KIND = {
    kind: tuple(verb for verb in fitting if not verb.prefix) for kind, fitting in _VERBS_OF_KIND.items()
}
_DESCRIBED_KINDS = tuple(kind for kind in NOUNS if kind not in ("causes", "parts"))
_NOT_OWNED_KINDS = frozenset({"people", "animals", "transports", *PLACE_KINDS})
_FAMILY_WORDS = "man woman child boy girl brother sister father mother son daughter uncle aunt friend"
_FAMILY = frozenset(_FAMILY_WORDS.split())
_PROFESSIONS = tuple(
    noun for noun in NOUNS["people"] if noun.english not in _FAMILY and not noun.english.startswith("grand")
)
_ANIMAL_VERBS = tuple(verb for verb in verbs.VERBS if verb.lemma in ("sleep", "play", "wait", "stay"))
_PLEASE = Phrase("please", "bitte")
# "Where does she come?" would have to be "where from".
_VERBS_WITH_GOAL = tuple(verb for verb in verbs.WALKING + verbs.RIDING if verb.english != "come")


def statement(random: Random) -> Sentence:
    """Draws a statement, like: My brother bought a new car yesterday."""
    is_negated = chance(random, 0.18)
    subject = choices.choose_affirmed_subject(random) if is_negated else choices.choose_subject(random)
    clause = actions.choose_action(random, subject, pick(random, TENSES), is_negated)
    return state(actions.with_circumstances(random, clause))


def description(random: Random) -> Sentence:
    """Draws a description, like: The old church is not dark."""
    is_negated = chance(random, 0.2)
    noun = choices.choose_noun(random, _DESCRIBED_KINDS)
    if chance(random, 0.12):
        subject = choices.choose_part(random)
    elif noun.kind not in _NOT_OWNED_KINDS and chance(random, 0.15):
        subject = choices.choose_possession(random, noun, adjective_share=0.0)
    else:
        subject = choices.choose_plain(random, noun)
    tense = pick(random, _TENSES)
    return state(actions.describe(subject, pick(random, ADJECTIVES_FITTING[subject.kind]), tense, is_negated))


def mood(random: Random) -> Sentence:
    """Draws a frequency with a mood (only moods come and go), like: My sister is often sad."""
    clause = actions.choose_quality(random, choices.choose_plain_subject(random), pick(random, _TENSES))
    return state(replace(clause, frequency=pick(random, FREQUENCIES)))


def profession(random: Random) -> Sentence:
    """Draws a profession, like: Peter is a famous doctor."""
    is_negated = chance(random, 0.25)
    noun = pick(random, _PROFESSIONS)
    subject = choices.choose_name_of(random, "she" if noun.gender == "f" else "he")
    adjective = pick(random, ADJECTIVES_FITTING["people"])
    complement = phrases.noun_phrase(phrases.INDEFINITE, noun, adjective, is_negated=is_negated)
    tense = pick(random, _TENSES)
    return state(Clause(subject, verbs.BE, tense, is_negated=is_negated, direct_object=complement))


def animal_life(random: Random) -> Sentence:
    """Draws what an animal does, like: The tired horses slept behind the house."""
    subject = choices.choose_definite(random, pick(random, NOUNS["animals"]))
    verb = pick(random, _ANIMAL_VERBS)
    clause = Clause(subject, verb, pick(random, TENSES), place=choices.choose_location(random))
    return state(actions.with_circumstances(random, clause))


def resting_place(random: Random) -> Sentence:
    """Draws where a thing is, like: The key lies under the sofa."""
    verb = pick(random, verbs.RESTING)
    subject = choices.choose_definite(random, choices.choose_noun(random, verb.object_kinds))
    place = choices.choose_spot(random, german.DATIVE)
    return state(Clause(subject, verb, pick(random, _TENSES), place=place))


def happening(random: Random) -> Sentence:
    """Draws an event, like: The concert will take place on Friday."""
    tense = pick(random, ("past", "future"))
    subject = choices.choose_definite(random, pick(random, NOUNS["events"]))
    time = choices.choose_calendar_time(random, tense)
    clause = Clause(subject, pick(random, verbs.HAPPENING), tense)
    return state(replace(clause, front=time) if chance(random, 0.4) else replace(clause, time=time))


def yes_no_question(random: Random) -> Sentence:
    """Draws a yes-no question, like: Did your sister invite him?"""
    clause = _asked_clause(random, with_time_share=0.35)
    return ask(clause)


def adverbial_question(random: Random) -> Sentence:
    """Draws a question with an adverb, like: Why does Anna need a new coat?"""
    clause = _asked_clause(random, with_time_share=0.0)
    words = [("when", "wann"), ("why", "warum"), ("how often", "wie oft")]
    if clause.place is None and clause.verb not in verbs.CHANGES:
        words.append(("where", "wo"))
    word, german_word = pick(random, words)
    return ask(clause, word, german_word)


def goal_question(random: Random) -> Sentence:
    """Draws a question about a goal ("wohin" in German), like: Where did the doctor drive yesterday?"""
    tense = pick(random, TENSES)
    verb = pick(random, _VERBS_WITH_GOAL)
    time = choices.choose_time(random, tense) if chance(random, 0.6) else None
    clause = Clause(choices.choose_affirmed_subject(random), verb, tense, time=time)
    return ask(clause, "where", "wohin")


def subject_question(random: Random) -> Sentence:
    """Draws a question about the subject, like: Who opened the window?"""
    clause = actions.choose_deliberate_action(random, phrases.WHO, pick(random, TENSES))
    if chance(random, 0.3):
        clause = replace(clause, time=choices.choose_time(random, clause.tense))
    return state(clause, "?")


def object_question(random: Random) -> Sentence:
    """Draws a question about the object, like: Which book did your brother lose?"""
    verb = pick(random, verbs.TRANSITIVE + verbs.DATIVE)
    subject = choices.choose_affirmed_subject(random)
    clause = Clause(subject, verb, actions.visible_tense(verb, subject, pick(random, TENSES)))
    if verb not in verbs.STATES and chance(random, 0.3):
        clause = replace(clause, time=choices.choose_time(random, clause.tense))
    asked = _asked_object(random, verb)
    case = german.CASES.index(verb.object_case)
    combinations = clause.combinations + asked.combinations + _object_combination(verb, asked)
    source = clauses.english_question(clause, asked.english)
    return spell(source, clauses.german_question(clause, asked.german[case]), combinations, "?")


def command(random: Random) -> Sentence:
    """Draws a command, like: Please do not forget the key!"""
    is_negated = chance(random, 0.3)
    clause = actions.choose_deliberate_action(random, phrases.PRONOUNS["you"], "present", is_negated)
    if chance(random, 0.4):
        clause = replace(clause, front=_PLEASE)
    source, target = clauses.english_command(clause), clauses.german_command(clause)
    return spell(source, target, clause.combinations, "!")


def reason_about_subject(random: Random) -> Sentence:
    """Draws a reason about the subject, like: My brother stays at home because he is sick."""
    subject, tense = choices.choose_plain_subject(random), pick(random, _TENSES)
    deed = actions.choose_deliberate_action(random, subject, tense)
    conjunction = pick(random, _REASONS)
    mood = _reason(random, conjunction, phrases.anaphor(subject), tense)
    if chance(random, 0.4):
        taken_up = replace(deed, subject=phrases.anaphor(subject))
        return _subordinate_first(conjunction, replace(mood, subject=subject), taken_up)
    return _subordinate_last(conjunction, deed, mood)


def reason_about_object(random: Random) -> Sentence:
    """Draws a reason about the object, like: Anna sells the car because it (er, sie or es) is old."""
    noun, tense = pick(random, _THINGS), pick(random, _TENSES)
    thing = choices.choose_plain(random, noun)
    main = Clause(choices.choose_name(random), pick(random, _DECISIONS_OF_KIND[noun.kind]), tense, direct_object=thing)
    conjunction = pick(random, _REASONS)
    return _subordinate_last(conjunction, main, _reason(random, conjunction, phrases.anaphor(thing), tense))


def object_taken_up(random: Random) -> Sentence:
    """Draws a pronoun in the accusative, like: Peter washed the shirt before he sold it."""
    noun, tense = pick(random, _THINGS), pick(random, _TENSES)
    subject, thing = choices.choose_name(random), choices.choose_definite(random, noun)
    verb, other_verb = _two_verbs(random, noun.kind)
    main = Clause(subject, verb, tense, direct_object=thing)
    taken_up = Clause(phrases.anaphor(subject), other_verb, tense, direct_object=phrases.anaphor(thing))
    if chance(random, 0.5) and not {verb, other_verb} & verbs.STATES:
        return _subordinate_last(("before", "bevor"), main, taken_up)
    return _subordinate_last(("although", "obwohl"), main, replace(taken_up, is_negated=True))


def sequence(random: Random) -> Sentence:
    """Draws two deeds, like: The children play while we work."""
    tense = pick(random, _TENSES)
    main = actions.choose_deliberate_action(random, choices.choose_affirmed_subject(random), tense)
    other = actions.choose_deliberate_action(random, choices.choose_affirmed_subject(random), tense)
    return _subordinate_last(pick(random, _SEQUENCES), main, other)


def condition(random: Random) -> Sentence:
    """Draws a condition, like: If you help me, I will repair the car."""
    subordinate = actions.choose_deliberate_action(random, choices.choose_affirmed_subject(random), "present")
    main = actions.choose_deliberate_action(
        random, choices.choose_affirmed_subject(random), "future", chance(random, 0.2)
    )
    if chance(random, 0.6):
        return _subordinate_first(("if", "wenn"), subordinate, main)
    return _subordinate_last(("if", "wenn"), main, subordinate)


def report(random: Random) -> Sentence:
    """Draws reported speech, like: The teacher knows that Anna lost her key."""
    subject, tense = choices.choose_affirmed_subject(random), pick(random, _TENSES)
    main = Clause(subject, pick(random, verbs.SAYING), tense)
    other = choices.choose_affirmed_subject(random)
    content = actions.choose_quality if chance(random, 0.3) else actions.choose_action
    return _subordinate_last(("that", "dass"), main, content(random, other, tense, chance(random, 0.15)))


def coordination(random: Random) -> Sentence:
    """Draws two main clauses, like: Anna sings and Peter dances."""
    tense = pick(random, _TENSES)
    left = actions.choose_action(random, choices.choose_affirmed_subject(random), tense)
    right = actions.choose_action(random, choices.choose_affirmed_subject(random), tense)
    word, german_word = pick(random, _COORDINATORS)
    source = f"{clauses.english_statement(left)}{word} {clauses.english_statement(right)}"
    target = f"{clauses.german_statement(left)}{german_word} {clauses.german_statement(right)}"
    return spell(source, target, left.combinations + right.combinations)


def relative_on_subject(random: Random) -> Sentence:
    """Draws a relative clause after the subject, like: The man who bought the car is rich."""
    noun = pick(random, _HEADS if chance(random, 0.5) else NOUNS["people"])
    tense = pick(random, _TENSES)
    if noun.kind == "people" and chance(random, 0.5):
        described = _with_relative(random, choices.choose_definite(random, noun), tense)
        clause = actions.choose_action(random, described, tense)
    else:
        # The main clause says what the head is like; no adjective before may contradict that.
        described = _with_action_clause(random, choices.choose_plain(random, noun), tense)
        clause = actions.choose_quality(random, described, tense)
    return state(clause)


def relative_on_object(random: Random) -> Sentence:
    """Draws a relative clause after the object, like: We know the woman who lost her key.

    No part of the German verb may follow the object, or the relative clause would be separated from it.
    """
    noun = pick(random, _HEADS)
    verb = pick(random, _VERBS_WITHOUT_PREFIX_OF_KIND[noun.kind])
    described = _with_relative(random, choices.choose_plain(random, noun), pick(random, _TENSES))
    clause = Clause(choices.choose_affirmed_subject(random), verb, "present", direct_object=described)
    return state(clause)


def _asked_clause(random: Random, with_time_share: float) -> Clause:
    clause = actions.choose_deliberate_action(random, choices.choose_affirmed_subject(random), pick(random, TENSES))
    if chance(random, with_time_share):
        return replace(clause, time=choices.choose_time(random, clause.tense))
    return actions.with_modal(random, clause) if chance(random, 0.2) else clause


def _asked_object(random: Random, verb: Verb) -> Nominal:
    if chance(random, 0.5):
        return choices.choose_phrase(random, choices.choose_noun(random, verb.object_kinds), (phrases.WHICH,))
    return phrases.WHO if "people" in verb.object_kinds else phrases.WHAT


def _object_combination(verb: Verb, thing: Nominal) -> tuple[Combination, ...]:
    """Returns the relation of verb and object where the object is outside the verb's clause."""
    return (("object", verb.lemma, thing.lemma),) if thing.lemma else ()


def _reason(random: Random, conjunction: Conjunction, subject: Nominal, tense: str) -> Clause:
    """Draws what something is like; only after "although" does a negation make sense."""
    is_negated = conjunction[0] == "although" and chance(random, 0.3)
    return actions.choose_quality(random, subject, tense, is_negated)


def _two_verbs(random: Random, kind: str) -> tuple[Verb, Verb]:
    """Draws two verbs for the same object, the second one for a deed on purpose."""
    other_verb = pick(random, _DECISIONS_OF_KIND[kind])
    while (verb := pick(random, _VERBS_OF_KIND[kind])) == other_verb:
        pass
    return verb, other_verb


def _with_relative(random: Random, head: Nominal, tense: str) -> Nominal:
    draw = random.random()
    if draw < 0.15:
        return _with_quality_clause(random, head, tense)
    if draw < 0.3 and head.kind == "people":
        return _with_owning_clause(random, head, tense)
    return _with_action_clause(random, head, tense)


def _with_action_clause(random: Random, head: Nominal, tense: str) -> Nominal:
    is_agent = head.kind == "people" and chance(random, 0.5)
    return (_with_head_as_subject if is_agent else _with_head_as_object)(random, head, tense)


def _with_head_as_subject(random: Random, head: Nominal, tense: str) -> Nominal:
    clause = actions.choose_action(random, phrases.relative_pronoun(head), tense)
    return _attach(head, clause)


def _with_quality_clause(random: Random, head: Nominal, tense: str) -> Nominal:
    return _attach(head, actions.choose_quality(random, phrases.relative_pronoun(head), tense))


def _with_owning_clause(random: Random, head: Nominal, tense: str) -> Nominal:
    """Adds a clause about something owned, like: the woman whose dog is old."""
    thing = phrases.whose(head, pick(random, _THINGS + NOUNS["animals"]))
    return _attach(head, actions.choose_quality(random, thing, tense))


def _with_head_as_object(random: Random, head: Nominal, tense: str) -> Nominal:
    """Adds a clause with the head as object, like: the book that she reads; its verb decides the pronoun's case."""
    verb = pick(random, _VERBS_OF_KIND[head.kind])
    subject = choices.choose_affirmed_subject(random)
    clause = Clause(subject, verb, actions.visible_tense(verb, subject, tense))
    pronoun = german.RELATIVE_PRONOUNS[head.slot][german.CASES.index(verb.object_case)]
    return phrases.with_relative_clause(
        head,
        f"{phrases.relative_word(head)} {clauses.english_statement(clause)}",
        clauses.german_subordinate(clause, pronoun),
        clause.combinations + _object_combination(verb, head),
    )


def _attach(head: Nominal, clause: Clause) -> Nominal:
    source, target = clauses.english_statement(clause), clauses.german_subordinate(clause)
    return phrases.with_relative_clause(head, source, target, clause.combinations)


def _subordinate_last(conjunction: Conjunction, main: Clause, subordinate: Clause) -> Sentence:
    source = f"{clauses.english_statement(main)} {conjunction[0]} {clauses.english_statement(subordinate)}"
    target = f"{clauses.german_statement(main)}, {clauses.german_subordinate(subordinate, conjunction[1])}"
    return spell(source, target, main.combinations + subordinate.combinations)


def _subordinate_first(conjunction: Conjunction, subordinate: Clause, main: Clause) -> Sentence:
    """Joins two clauses; after a subordinate clause, the German main clause begins with its verb."""
    source = f"{conjunction[0]} {clauses.english_statement(subordinate)}, {clauses.english_statement(main)}"
    target = f"{clauses.german_subordinate(subordinate, conjunction[1])}, {clauses.german_question(main)}"
    return spell(source, target, subordinate.combinations + main.combinations)
