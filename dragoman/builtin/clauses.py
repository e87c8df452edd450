"""Clauses in both languages (who does what, when, where), and how they become sentences.

A clause is a statement, question, command or subordinate clause. English keeps its word order and needs "do"; German
puts the finite verb second, first or last around the same middle field.
"""

from dataclasses import dataclass
from functools import cache

from dragoman.builtin import english, german
from dragoman.builtin.phrases import Combination, Nominal
from dragoman.builtin.verbs import Verb


@dataclass(frozen=True, slots=True)
class Phrase:
    """Text that is the same in every clause: an adverb, a prepositional phrase, a predicate."""

    english: str
    german: str
    combinations: tuple[Combination, ...] = ()


@dataclass(frozen=True, slots=True)
class Modal:
    """A modal verb; in English an auxiliary (can) or a full verb that needs "do" (want to)."""

    english_auxiliary: str
    english_verb: str
    english_inflected: str
    infinitive: str
    is_past: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """The content of a clause; the functions below write it in each language."""

    subject: Nominal
    verb: Verb
    tense: str = "present"
    modal: Modal | None = None
    is_negated: bool = False
    recipient: Nominal | None = None
    direct_object: Nominal | None = None
    front: Phrase | None = None
    time: Phrase | None = None
    frequency: Phrase | None = None
    manner: Phrase | None = None
    place: Phrase | None = None
    predicate: Phrase | None = None

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """All pairs of lemmas that are in a grammatical relation in the clause."""
        found = self.subject.combinations
        if self.recipient:
            found += self.recipient.combinations
        if self.direct_object:
            found += self.direct_object.combinations
            # The complement of "be" is not an object.
            if self.direct_object.lemma and self.verb.object_case != "nominative":
                found += (("object", self.verb.lemma, self.direct_object.lemma),)
        for phrase in (self.place, self.front, self.time, self.predicate, self.manner):
            if phrase:
                found += phrase.combinations
        return found


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence in both languages, with its combinations of lemmas, by which the splits are made."""

    source: str
    target: str
    combinations: tuple[Combination, ...]


def spell(source: str, target: str, combinations: tuple[Combination, ...], mark: str = ".") -> Sentence:
    """Builds a sentence from its words: adds the capital letter and the closing mark."""
    return Sentence(_finish(source, mark), _finish(target, mark), combinations)


def _finish(text: str, mark: str) -> str:
    # A relative clause at the end has a closing comma, which the closing mark replaces.
    return text[0].upper() + text[1:].removesuffix(",").replace(",,", ",") + mark


def state(clause: Clause, mark: str = ".") -> Sentence:
    """Builds a sentence from one clause with the word order of a statement."""
    return spell(english_statement(clause), german_statement(clause), clause.combinations, mark)


def ask(clause: Clause, question_word: str = "", german_question_word: str = "") -> Sentence:
    """Builds a question from one clause."""
    source, target = english_question(clause, question_word), german_question(clause, german_question_word)
    return spell(source, target, clause.combinations, "?")


def english_statement(clause: Clause) -> str:
    """Writes an English main or subordinate clause, which have the same word order."""
    auxiliary, main = _english_verb(clause, needs_auxiliary=clause.is_negated)
    negation = "not" if clause.is_negated else ""
    if auxiliary == "can" and negation:
        auxiliary, negation = "cannot", ""
    front = clause.front.english if clause.front else ""
    return _join(front, clause.subject.english, auxiliary, negation, *_english_rest(clause, main))


def english_question(clause: Clause, question_word: str = "") -> str:
    """Writes an English question: the auxiliary comes before the subject, after a question word if there is one."""
    auxiliary, main = _english_verb(clause, needs_auxiliary=True)
    return _join(question_word, auxiliary, clause.subject.english, *_english_rest(clause, main))


def english_command(clause: Clause) -> str:
    """Writes an English command: the bare verb, with "do" only for the negation."""
    opening = "do not" if clause.is_negated else ""
    front = clause.front.english if clause.front else ""
    return _join(front, opening, *_english_rest(clause, clause.verb.english))


def german_statement(clause: Clause) -> str:
    """Writes a German main clause: the verb is second, after the fronted phrase or the subject."""
    finite, closing = _german_verb(clause)
    subject = clause.subject.german[german.NOMINATIVE]
    opening = [clause.front.german, finite, subject] if clause.front else [subject, finite]
    return _join(*opening, *_german_middle(clause), closing)


def german_question(clause: Clause, question_word: str = "") -> str:
    """Writes a German question: the verb is first, or second after a question word."""
    finite, closing = _german_verb(clause)
    return _join(question_word, finite, clause.subject.german[german.NOMINATIVE], *_german_middle(clause), closing)


def german_subordinate(clause: Clause, opening: str = "") -> str:
    """Writes a German subordinate clause: the finite verb is last, joined with its separable prefix."""
    finite, closing = _german_verb(clause)
    verbs = closing + finite if clause.verb.prefix and closing == clause.verb.prefix else _join(closing, finite)
    return _join(opening, clause.subject.german[german.NOMINATIVE], *_german_middle(clause), verbs)


def german_command(clause: Clause) -> str:
    """Writes a German command: the verb is first, without a subject; "bitte" may precede it."""
    front = clause.front.german if clause.front else ""
    return _join(front, german.imperative(clause.verb), *_german_middle(clause), clause.verb.prefix)


def _english_verb(clause: Clause, needs_auxiliary: bool) -> tuple[str, str]:
    """Returns the auxiliary (or nothing) and the rest of the English verb."""
    person, verb = clause.subject.person, clause.verb
    if clause.modal:
        return _english_modal(clause.modal, verb.english, person, needs_auxiliary)
    if clause.tense == "future":
        return "will", verb.english
    is_past = clause.tense == "past"
    if verb.english == "be":
        forms = english.BE_PAST if is_past else english.BE_PRESENT
        return forms.get(person, "were" if is_past else "are"), ""
    if needs_auxiliary:
        return _form_of_do(person, is_past), verb.english
    if is_past:
        return "", english.past(verb)
    return "", english.third_person(verb.english) if person == "he" else verb.english


def _english_modal(modal: Modal, infinitive: str, person: str, needs_auxiliary: bool) -> tuple[str, str]:
    if modal.english_auxiliary:
        return modal.english_auxiliary, _join(modal.english_verb, infinitive)
    if needs_auxiliary:
        return _form_of_do(person, modal.is_past), f"{modal.english_verb} {infinitive}"
    inflected = modal.english_inflected if person == "he" or modal.is_past else modal.english_verb
    return "", f"{inflected} {infinitive}"


def _form_of_do(person: str, is_past: bool) -> str:
    if is_past:
        return "did"
    return "does" if person == "he" else "do"


def _english_rest(clause: Clause, main: str) -> list[str]:
    """Returns everything after the auxiliary."""
    frequency = clause.frequency.english if clause.frequency else ""
    adverbials = [phrase.english for phrase in (clause.predicate, clause.manner, clause.place, clause.time) if phrase]
    recipient = clause.recipient.english_object if clause.recipient else ""
    direct, particle = clause.direct_object, clause.verb.particle
    if direct and direct.is_pronoun:
        return [frequency, main, recipient, direct.english_object, particle, *adverbials]
    return [frequency, main, particle, recipient, direct.english_object if direct else "", *adverbials]


@cache
def _german_finite(verb: Verb, tense: str, modal: Modal | None, person: str) -> tuple[str, str]:
    if modal:
        table = german.SIMPLE_PAST if modal.is_past else german.IRREGULAR_PRESENT
        return table[modal.infinitive][person], verb.infinitive
    if tense == "future":
        return german.IRREGULAR_PRESENT["werden"][person], verb.infinitive
    if tense == "present":
        return german.present(verb, person), verb.prefix
    if verb.infinitive in german.SIMPLE_PAST:
        return german.SIMPLE_PAST[verb.infinitive][person], ""
    # The English simple past becomes the German perfect, as in spoken German.
    return german.perfect_auxiliary(verb, person), german.participle(verb)


def _german_verb(clause: Clause) -> tuple[str, str]:
    """Returns the finite verb, and the end of the clause: prefix, participle or infinitive."""
    return _german_finite(clause.verb, clause.tense, clause.modal, clause.subject.german_person)


def _german_middle(clause: Clause) -> list[str]:
    """Returns the middle field: pronouns, time, frequency, recipient, object, nicht, manner, place, predicate."""
    pronouns: list[str] = []
    nouns: list[str] = []
    if clause.recipient:
        (pronouns if clause.recipient.is_pronoun else nouns).append(clause.recipient.german[german.DATIVE])
    direct = clause.direct_object
    if direct:
        form = direct.german[german.CASES.index(clause.verb.object_case)]
        (pronouns if direct.is_pronoun else nouns).append(form)
    negation = "nicht" if clause.is_negated and not (direct and direct.is_negated) else ""
    before = [phrase.german for phrase in (clause.time, clause.frequency) if phrase]
    after = [phrase.german for phrase in (clause.manner, clause.place, clause.predicate) if phrase]
    return [*pronouns, *before, *nouns, negation, *after]


def _join(*words: str) -> str:
    return " ".join(filter(None, words))
