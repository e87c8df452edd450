"""Word order and agreement, construction by construction."""

from dataclasses import replace

import pytest

from dragoman.builtin import adverbials, clauses, german, phrases
from dragoman.builtin.choices import prepositional
from dragoman.builtin.clauses import Clause, Phrase, spell
from dragoman.builtin.lexicon import ADJECTIVES, NOUNS
from dragoman.builtin.phrases import INDEFINITE, POSSESSIVES, THE, Determiner, Name, Nominal
from dragoman.builtin.verbs import BE, VERBS

NOUN_NAMED = {noun.english: noun for nouns in NOUNS.values() for noun in nouns}
VERB_NAMED = {verb.infinitive: verb for verb in VERBS}
MY = POSSESSIVES[0]
YESTERDAY = Phrase("yesterday", "gestern")
ANNA = phrases.name_phrase(Name("Anna", "she"))


def phrase(
    determiner: Determiner, noun: str, adjective: str = "", is_plural: bool = False, is_negated: bool = False
) -> Nominal:
    return phrases.noun_phrase(determiner, NOUN_NAMED[noun], ADJECTIVES.get(adjective), is_plural, is_negated)


def call(**settings: object) -> Clause:
    clause = Clause(phrase(MY, "brother"), VERB_NAMED["anrufen"], direct_object=phrase(THE, "teacher"))
    return replace(clause, **settings)  # type: ignore[arg-type]


def both(clause: Clause) -> tuple[str, str]:
    return clauses.english_statement(clause), clauses.german_statement(clause)


@pytest.mark.parametrize(
    ("settings", "english", "german_text"),
    [
        ({}, "my brother calls the teacher", "mein Bruder ruft den Lehrer an"),
        ({"tense": "past"}, "my brother called the teacher", "mein Bruder hat den Lehrer angerufen"),
        ({"tense": "future"}, "my brother will call the teacher", "mein Bruder wird den Lehrer anrufen"),
        ({"modal": adverbials.WANT_TO}, "my brother wants to call the teacher", "mein Bruder will den Lehrer anrufen"),
        ({"modal": adverbials.HAD_TO}, "my brother had to call the teacher", "mein Bruder musste den Lehrer anrufen"),
        ({"is_negated": True}, "my brother does not call the teacher", "mein Bruder ruft den Lehrer nicht an"),
        (
            {"is_negated": True, "modal": adverbials.CAN},
            "my brother cannot call the teacher",
            "mein Bruder kann den Lehrer nicht anrufen",
        ),
        (
            {"tense": "past", "front": YESTERDAY},
            "yesterday my brother called the teacher",
            "gestern hat mein Bruder den Lehrer angerufen",
        ),
        (
            {"tense": "past", "time": YESTERDAY},
            "my brother called the teacher yesterday",
            "mein Bruder hat gestern den Lehrer angerufen",
        ),
        (
            {"direct_object": phrases.PRONOUNS["she"], "frequency": Phrase("often", "oft")},
            "my brother often calls her",
            "mein Bruder ruft sie oft an",
        ),
    ],
)
def test_main_clause(settings: dict[str, object], english: str, german_text: str) -> None:
    assert both(call(**settings)) == (english, german_text)


def test_verb_is_last_in_subordinate_clauses() -> None:
    assert clauses.german_subordinate(call(), "weil") == "weil mein Bruder den Lehrer anruft"
    assert clauses.german_subordinate(call(tense="past"), "dass") == "dass mein Bruder den Lehrer angerufen hat"
    assert clauses.german_subordinate(call(modal=adverbials.CAN), "wenn") == "wenn mein Bruder den Lehrer anrufen kann"
    assert clauses.german_subordinate(call(is_negated=True), "obwohl") == "obwohl mein Bruder den Lehrer nicht anruft"


def test_questions() -> None:
    assert clauses.english_question(call(tense="past")) == "did my brother call the teacher"
    assert clauses.german_question(call(tense="past")) == "hat mein Bruder den Lehrer angerufen"
    assert clauses.english_question(call(), "why") == "why does my brother call the teacher"
    assert clauses.german_question(call(), "warum") == "warum ruft mein Bruder den Lehrer an"


def test_commands() -> None:
    command = call(subject=phrases.PRONOUNS["you"])
    assert clauses.german_command(command) == "ruf den Lehrer an"
    assert clauses.english_command(replace(command, is_negated=True)) == "do not call the teacher"
    assert clauses.german_command(replace(command, is_negated=True)) == "ruf den Lehrer nicht an"


def test_indefinite_objects_are_negated_by_kein() -> None:
    clause = Clause(ANNA, VERB_NAMED["kaufen"], is_negated=True)
    new_car = phrase(INDEFINITE, "car", "new", is_negated=True)
    assert both(replace(clause, direct_object=new_car)) == (
        "Anna does not buy a new car",
        "Anna kauft kein neues Auto",
    )


def test_nicht_stands_before_place_and_predicate() -> None:
    place = prepositional(("in", "in", german.DATIVE), phrase(THE, "garden"))
    sleeping = Clause(ANNA, VERB_NAMED["schlafen"], is_negated=True, place=place)
    assert both(sleeping) == ("Anna does not sleep in the garden", "Anna schläft nicht im Garten")
    tired = Clause(ANNA, BE, is_negated=True, predicate=Phrase("tired", "müde"))
    assert both(tired) == ("Anna is not tired", "Anna ist nicht müde")


def test_dative_verbs_and_recipients() -> None:
    student = phrase(THE, "student")
    assert both(Clause(ANNA, VERB_NAMED["helfen"], direct_object=student))[1] == "Anna hilft dem Studenten"
    giving = Clause(ANNA, VERB_NAMED["geben"], "past", recipient=student, direct_object=phrase(INDEFINITE, "key"))
    assert both(giving) == ("Anna gave the student a key", "Anna hat dem Studenten einen Schlüssel gegeben")


def test_two_way_prepositions() -> None:
    bed = phrase(THE, "table")
    assert prepositional(("on", "auf", german.ACCUSATIVE), bed).german == "auf den Tisch"
    assert prepositional(("on", "auf", german.DATIVE), bed).german == "auf dem Tisch"


def test_perfect_with_sein_and_the_simple_past_of_sein() -> None:
    assert both(Clause(ANNA, VERB_NAMED["ankommen"], "past")) == ("Anna arrived", "Anna ist angekommen")
    assert both(Clause(phrases.PRONOUNS["I"], BE, "past", predicate=Phrase("sad", "traurig")))[1] == "ich war traurig"


def test_english_particles_follow_pronouns_but_precede_nouns() -> None:
    fetching = Clause(ANNA, VERB_NAMED["abholen"], direct_object=phrase(THE, "child"))
    assert clauses.english_statement(fetching) == "Anna picks up the child"
    taken_up = replace(fetching, direct_object=phrases.PRONOUNS["they"])
    assert both(taken_up) == ("Anna picks them up", "Anna holt sie ab")


def test_genitive() -> None:
    brother = phrase(MY, "brother")
    car, bare_car = phrase(THE, "car", "new"), phrase(Determiner("", ""), "car", "new")
    owned = phrases.possessed(brother, car, bare_car)
    assert (owned.english, owned.german[german.NOMINATIVE]) == ("my brother's new car", "das neue Auto meines Bruders")
    assert phrases.possessed(ANNA, car, bare_car).german[german.DATIVE] == "Annas neuem Auto"
    roof = phrases.part_of(phrase(THE, "roof"), phrase(THE, "house", "old"))
    assert (roof.english, roof.german[german.ACCUSATIVE]) == ("the roof of the old house", "das Dach des alten Hauses")


def test_titles_are_declined() -> None:
    mister = phrases.name_phrase(Name("Weber", "he", "Mr"))
    assert mister.german == ("Herr Weber", "Herrn Weber", "Herrn Weber", "Herrn Webers")


@pytest.mark.parametrize(("noun", "pronoun"), [("key", "er"), ("lamp", "sie"), ("book", "es"), ("girl", "sie")])
def test_pronoun_takes_the_gender_of_its_antecedent(noun: str, pronoun: str) -> None:
    assert phrases.anaphor(phrase(THE, noun)).german[german.NOMINATIVE] == pronoun


def test_relative_clause_is_set_off_by_commas() -> None:
    head = phrase(THE, "man", is_plural=True)
    clause = Clause(phrases.relative_pronoun(head), VERB_NAMED["schlafen"])
    text = clauses.german_subordinate(clause)
    described = phrases.with_relative_clause(head, clauses.english_statement(clause), text, ())
    main = Clause(described, BE, predicate=Phrase("tired", "müde"))
    sentence = spell(*both(main), ())
    assert sentence.source == "The men who sleep are tired."
    assert sentence.target == "Die Männer, die schlafen, sind müde."
    at_the_end = spell(*both(Clause(ANNA, VERB_NAMED["sehen"], direct_object=described)), ())
    assert at_the_end.target == "Anna sieht die Männer, die schlafen."


def test_whose_agrees_with_the_owner() -> None:
    assert phrases.whose(phrase(THE, "woman"), NOUN_NAMED["dog"]).german[german.NOMINATIVE] == "deren Hund"
    assert phrases.whose(phrase(THE, "child"), NOUN_NAMED["cat"]).german[german.NOMINATIVE] == "dessen Katze"
