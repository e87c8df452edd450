"""Draws sentences of all kinds, in proportions that keep every construction well attested."""

from collections.abc import Callable
from random import Random

from dragoman.corpus.builtin import compounds, questions, statements
from dragoman.corpus.builtin.choices import pick
from dragoman.corpus.builtin.sentence import Sentence

# Lengths that a small model learns quickly.
MIN_WORDS, MAX_WORDS = 4, 14

_WEIGHTS: dict[Callable[[Random], Sentence], int] = {
    statements.statement: 30,
    statements.description: 10,
    statements.mood: 2,
    statements.profession: 2,
    statements.animal_life: 2,
    statements.resting_place: 3,
    statements.happening: 2,
    questions.yes_no_question: 6,
    questions.adverbial_question: 4,
    questions.goal_question: 1,
    questions.subject_question: 3,
    questions.object_question: 4,
    questions.command: 4,
    compounds.reason_about_subject: 6,
    compounds.reason_about_object: 4,
    compounds.object_taken_up: 3,
    compounds.sequence: 2,
    compounds.condition: 3,
    compounds.report: 4,
    compounds.coordination: 3,
    compounds.relative_on_subject: 6,
    compounds.relative_on_object: 4,
}
_WEIGHTED_KINDS = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))


def draw_sentence(random: Random) -> Sentence:
    """Draws until a sentence has a length within the bounds."""
    while True:
        sentence = pick(random, _WEIGHTED_KINDS)(random)
        if MIN_WORDS <= sentence.source.count(" ") + 1 <= MAX_WORDS:
            return sentence
