"""A finished sentence pair: capital letter, commas and closing mark."""

from dataclasses import dataclass

from dragoman.builtin import clauses
from dragoman.builtin.clauses import Clause
from dragoman.builtin.phrases import Combination, Nominal
from dragoman.builtin.verbs import Verb


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence in both languages, with the combinations of lemmas that the splits look at."""

    source: str
    target: str
    combinations: tuple[Combination, ...]


def spell(source: str, target: str, combinations: tuple[Combination, ...], mark: str = ".") -> Sentence:
    """Spells a sentence out."""
    return Sentence(_finish(source, mark), _finish(target, mark), combinations)


def stated(clause: Clause) -> Sentence:
    """A clause as a sentence of its own."""
    return spell(clauses.english_statement(clause), clauses.german_statement(clause), clause.combinations)


def object_combination(verb: Verb, thing: Nominal) -> tuple[Combination, ...]:
    """The relation of verb and object where the object stands outside the verb's clause."""
    return (("object", verb.lemma, thing.lemma),) if thing.lemma else ()


def _finish(text: str, mark: str) -> str:
    # A relative clause at the end brings its closing comma along; the closing mark replaces it.
    return text[0].upper() + text[1:].removesuffix(",").replace(",,", ",") + mark
