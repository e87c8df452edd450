"""Sentences of two clauses: subordinate, relative, reported and coordinate."""

from dataclasses import replace
from random import Random

from dragoman.builtin import actions, choices, clauses, german, phrases, verbs
from dragoman.builtin.choices import chance, pick
from dragoman.builtin.clauses import Clause
from dragoman.builtin.nouns import NOUNS
from dragoman.builtin.phrases import Nominal
from dragoman.builtin.sentence import Sentence, object_combination, spell
from dragoman.builtin.verbs import Verb

Conjunction = tuple[str, str]

_REASONS: tuple[Conjunction, ...] = (("because", "weil"), ("although", "obwohl"))
_SEQUENCES: tuple[Conjunction, ...] = (("while", "während"), ("before", "bevor"))
_COORDINATORS: tuple[Conjunction, ...] = ((" and", " und"), (", but", ", aber"))
_TENSES = ("present", "past")
_THING_KINDS = ("texts", "clothes", "furniture", "dishes", "items", "devices", "vehicles")
_THINGS = tuple(noun for kind in _THING_KINDS for noun in NOUNS[kind])
_HEADS = _THINGS + NOUNS["people"] + NOUNS["animals"]
# What people do to a thing for a reason that lies in the thing.
_DECISIONS = frozenset(
    ("buy", "sell", "need", "choose", "use", "wear", "wash", "repair", "throw away", "take along", "try on", "clean")
)
# Things get lost, sold or repaired by these, so that "it" or a relative pronoun can take them up.
_VERBS_OF_KIND = {
    kind: tuple(verb for verb in verbs.TRANSITIVE + verbs.DATIVE if kind in verb.object_kinds)
    for kind in (*_THING_KINDS, "people", "animals")
}
_DECISIONS_OF_KIND = {
    kind: tuple(verb for verb in _VERBS_OF_KIND[kind] if verb.lemma in _DECISIONS) for kind in _THING_KINDS
}
_UNDIVIDED_VERBS_OF_KIND = {
    kind: tuple(verb for verb in fitting if not verb.prefix) for kind, fitting in _VERBS_OF_KIND.items()
}


def reason_about_subject(random: Random) -> Sentence:
    """My brother stays at home because he is sick."""
    subject, tense = choices.choose_plain_subject(random), pick(random, _TENSES)
    deed = actions.choose_deed(random, subject, tense)
    conjunction = pick(random, _REASONS)
    mood = _reason(random, conjunction, phrases.anaphor(subject), tense)
    if chance(random, 0.4):
        taken_up = replace(deed, subject=phrases.anaphor(subject))
        return _subordinate_first(conjunction, replace(mood, subject=subject), taken_up)
    return _subordinate_last(conjunction, deed, mood)


def reason_about_object(random: Random) -> Sentence:
    """Anna sells the car because it is old: "it" is er, sie or es after the noun it stands for."""
    noun, tense = pick(random, _THINGS), pick(random, _TENSES)
    thing = choices.choose_plain(random, noun)
    main = Clause(choices.choose_name(random), pick(random, _DECISIONS_OF_KIND[noun.kind]), tense, direct_object=thing)
    conjunction = pick(random, _REASONS)
    return _subordinate_last(conjunction, main, _reason(random, conjunction, phrases.anaphor(thing), tense))


def object_taken_up(random: Random) -> Sentence:
    """Peter washed the shirt before he sold it: a pronoun in the accusative."""
    noun, tense = pick(random, _THINGS), pick(random, _TENSES)
    subject, thing = choices.choose_name(random), choices.choose_definite(random, noun)
    verb, other_verb = _two_verbs(random, noun.kind)
    main = Clause(subject, verb, tense, direct_object=thing)
    taken_up = Clause(phrases.anaphor(subject), other_verb, tense, direct_object=phrases.anaphor(thing))
    if chance(random, 0.5) and not {verb, other_verb} & verbs.STATES:
        return _subordinate_last(("before", "bevor"), main, taken_up)
    return _subordinate_last(("although", "obwohl"), main, replace(taken_up, is_negated=True))


def sequence(random: Random) -> Sentence:
    """The children play while we work."""
    tense = pick(random, _TENSES)
    main = actions.choose_deed(random, choices.choose_affirmed_subject(random), tense)
    other = actions.choose_deed(random, choices.choose_affirmed_subject(random), tense)
    return _subordinate_last(pick(random, _SEQUENCES), main, other)


def condition(random: Random) -> Sentence:
    """If you help me, I will repair the car."""
    subordinate = actions.choose_deed(random, choices.choose_affirmed_subject(random), "present")
    main = actions.choose_deed(random, choices.choose_affirmed_subject(random), "future", chance(random, 0.2))
    if chance(random, 0.6):
        return _subordinate_first(("if", "wenn"), subordinate, main)
    return _subordinate_last(("if", "wenn"), main, subordinate)


def report(random: Random) -> Sentence:
    """The teacher knows that Anna lost her key."""
    subject, tense = choices.choose_affirmed_subject(random), pick(random, _TENSES)
    main = Clause(subject, pick(random, verbs.SAYING), tense)
    other = choices.choose_affirmed_subject(random)
    content = actions.choose_quality if chance(random, 0.3) else actions.choose_action
    return _subordinate_last(("that", "dass"), main, content(random, other, tense, chance(random, 0.15)))


def coordination(random: Random) -> Sentence:
    """Anna sings and Peter dances; after und and aber the verb stays second."""
    tense = pick(random, _TENSES)
    left = actions.choose_action(random, choices.choose_affirmed_subject(random), tense)
    right = actions.choose_action(random, choices.choose_affirmed_subject(random), tense)
    word, german_word = pick(random, _COORDINATORS)
    source = f"{clauses.english_statement(left)}{word} {clauses.english_statement(right)}"
    target = f"{clauses.german_statement(left)}{german_word} {clauses.german_statement(right)}"
    return spell(source, target, left.combinations + right.combinations)


def relative_on_subject(random: Random) -> Sentence:
    """The man who bought the car is rich."""
    noun = pick(random, _HEADS if chance(random, 0.5) else NOUNS["people"])
    tense = pick(random, _TENSES)
    if noun.kind == "people" and chance(random, 0.5):
        described = _with_relative(random, choices.choose_definite(random, noun), tense)
        clause = actions.choose_action(random, described, tense)
    else:
        # The main clause says what the head is like; nothing before it may contradict that.
        described = _with_deed(random, choices.choose_plain(random, noun), tense)
        clause = actions.choose_quality(random, described, tense)
    return spell(clauses.english_statement(clause), clauses.german_statement(clause), clause.combinations)


def relative_on_object(random: Random) -> Sentence:
    """We know the woman who lost her key; the verb must not follow its object, or German would tear the clause off."""
    noun = pick(random, _HEADS)
    verb = pick(random, _UNDIVIDED_VERBS_OF_KIND[noun.kind])
    described = _with_relative(random, choices.choose_plain(random, noun), pick(random, _TENSES))
    clause = Clause(choices.choose_affirmed_subject(random), verb, "present", direct_object=described)
    return spell(clauses.english_statement(clause), clauses.german_statement(clause), clause.combinations)


def _reason(random: Random, conjunction: Conjunction, subject: Nominal, tense: str) -> Clause:
    """What something is like; only what could have hindered is sensibly denied."""
    is_negated = conjunction[0] == "although" and chance(random, 0.3)
    return actions.choose_quality(random, subject, tense, is_negated)


def _two_verbs(random: Random, kind: str) -> tuple[Verb, Verb]:
    """Two things to do with the same object, the second of them done on purpose."""
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
    return _with_deed(random, head, tense)


def _with_deed(random: Random, head: Nominal, tense: str) -> Nominal:
    is_agent = head.kind == "people" and chance(random, 0.5)
    return (_with_acting_clause if is_agent else _with_undergoing_clause)(random, head, tense)


def _with_acting_clause(random: Random, head: Nominal, tense: str) -> Nominal:
    clause = actions.choose_action(random, phrases.relative_pronoun(head), tense)
    return _attach(head, clause)


def _with_quality_clause(random: Random, head: Nominal, tense: str) -> Nominal:
    return _attach(head, actions.choose_quality(random, phrases.relative_pronoun(head), tense))


def _with_owning_clause(random: Random, head: Nominal, tense: str) -> Nominal:
    """The woman whose dog is old: dessen and deren agree with the owner, and no article follows."""
    thing = phrases.whose(head, pick(random, _THINGS + NOUNS["animals"]))
    return _attach(head, actions.choose_quality(random, thing, tense))


def _with_undergoing_clause(random: Random, head: Nominal, tense: str) -> Nominal:
    """The book that she reads, the man who we help: the case of the pronoun comes from the verb."""
    verb = pick(random, _VERBS_OF_KIND[head.kind])
    subject = choices.choose_affirmed_subject(random)
    clause = Clause(subject, verb, actions.visible_tense(verb, subject, tense))
    pronoun = german.RELATIVE_PRONOUNS[head.slot][german.CASES.index(verb.object_case)]
    return phrases.with_relative_clause(
        head,
        f"{phrases.relative_word(head)} {clauses.english_statement(clause)}",
        clauses.german_subordinate(clause, pronoun),
        clause.combinations + object_combination(verb, head),
    )


def _attach(head: Nominal, clause: Clause) -> Nominal:
    source, target = clauses.english_statement(clause), clauses.german_subordinate(clause)
    return phrases.with_relative_clause(head, source, target, clause.combinations)


def _subordinate_last(conjunction: Conjunction, main: Clause, subordinate: Clause) -> Sentence:
    source = f"{clauses.english_statement(main)} {conjunction[0]} {clauses.english_statement(subordinate)}"
    target = f"{clauses.german_statement(main)}, {clauses.german_subordinate(subordinate, conjunction[1])}"
    return spell(source, target, main.combinations + subordinate.combinations)


def _subordinate_first(conjunction: Conjunction, subordinate: Clause, main: Clause) -> Sentence:
    """The subordinate clause fills the first place, so the main clause begins with its verb."""
    source = f"{conjunction[0]} {clauses.english_statement(subordinate)}, {clauses.english_statement(main)}"
    target = f"{clauses.german_subordinate(subordinate, conjunction[1])}, {clauses.german_question(main)}"
    return spell(source, target, subordinate.combinations + main.combinations)
