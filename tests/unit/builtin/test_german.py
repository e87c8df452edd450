"""German paradigms against tables as a grammar book prints them."""

import pytest

from dragoman.builtin import german
from dragoman.builtin.lexicon import ADJECTIVES, NOUNS, Noun
from dragoman.builtin.verbs import VERBS, Verb

NOUN_NAMED = {noun.english: noun for nouns in NOUNS.values() for noun in nouns}
VERB_NAMED = {verb.infinitive: verb for verb in VERBS}

ARTICLES = {
    "der": "der den dem des / die die der der / das das dem des / die die den der",
    "kein": "kein keinen keinem keines / keine keine keiner keiner / kein kein keinem keines"
    " / keine keine keinen keiner",
    "mein": "mein meinen meinem meines / meine meine meiner meiner / mein mein meinem meines"
    " / meine meine meinen meiner",
    "unser": "unser unseren unserem unseres / unsere unsere unserer unserer / unser unser unserem unseres"
    " / unsere unsere unseren unserer",
    "dieser": "dieser diesen diesem dieses / diese diese dieser dieser / dieses dieses diesem dieses"
    " / diese diese diesen dieser",
}


@pytest.mark.parametrize("lemma", ARTICLES)
def test_determiners_in_all_genders_and_cases(lemma: str) -> None:
    expected = [tuple(row.split()) for row in ARTICLES[lemma].split(" / ")]
    assert [german.determiner_forms(lemma, slot) for slot in german.SLOTS] == expected


def test_indefinite_article() -> None:
    assert german.determiner_forms("ein", "m") == ("ein", "einen", "einem", "eines")
    assert german.determiner_forms("ein", "f") == ("eine", "eine", "einer", "einer")
    assert german.determiner_forms("ein", "n") == ("ein", "ein", "einem", "eines")


def test_numbers_are_not_inflected_but_quantifiers_are() -> None:
    assert german.determiner_forms("17", "p") == ("17", "17", "17", "17")
    assert german.determiner_forms("viele", "p") == ("viele", "viele", "vielen", "vieler")


ADJECTIVE_TABLES = {
    "strong": "guter guten gutem guten / gute gute guter guter / gutes gutes gutem guten / gute gute guten guter",
    "weak": "gute guten guten guten / gute gute guten guten / gute gute guten guten / guten guten guten guten",
    "mixed": "guter guten guten guten / gute gute guten guten / gutes gutes guten guten / guten guten guten guten",
}


@pytest.mark.parametrize("declension", ADJECTIVE_TABLES)
def test_adjective_endings_in_all_genders_and_cases(declension: str) -> None:
    expected = [tuple(row.split()) for row in ADJECTIVE_TABLES[declension].split(" / ")]
    assert [german.adjective_forms(ADJECTIVES["good"], declension, slot) for slot in german.SLOTS] == expected


@pytest.mark.parametrize(
    ("determiner", "declension"),
    [
        ("der", "weak"),
        ("dieser", "weak"),
        ("welcher", "weak"),
        ("ein", "mixed"),
        ("kein", "mixed"),
        ("ihr", "mixed"),
        ("", "strong"),
        ("drei", "strong"),
        ("17", "strong"),
        ("viele", "strong"),
        ("dessen", "strong"),
    ],
)
def test_determiner_chooses_the_declension(determiner: str, declension: str) -> None:
    assert german.declension_after(determiner) == declension


@pytest.mark.parametrize(
    ("english", "feminine"), [("expensive", "teure"), ("dark", "dunkle"), ("sour", "saure"), ("tired", "müde")]
)
def test_adjectives_whose_stem_changes(english: str, feminine: str) -> None:
    assert german.adjective_forms(ADJECTIVES[english], "weak", "f")[german.NOMINATIVE] == feminine


def test_personal_pronouns() -> None:
    accusative_and_dative = {person: forms[1:3] for person, forms in german.PERSONAL_PRONOUNS.items()}
    assert accusative_and_dative == {
        "ich": ("mich", "mir"),
        "du": ("dich", "dir"),
        "er": ("ihn", "ihm"),
        "sie": ("sie", "ihr"),
        "es": ("es", "ihm"),
        "wir": ("uns", "uns"),
        "sie (plural)": ("sie", "ihnen"),
        "wer": ("wen", "wem"),
    }


def test_relative_pronouns_differ_from_the_article_in_dative_plural_and_genitive() -> None:
    assert german.RELATIVE_PRONOUNS == {
        "m": ("der", "den", "dem", "dessen"),
        "f": ("die", "die", "der", "deren"),
        "n": ("das", "das", "dem", "dessen"),
        "p": ("die", "die", "denen", "deren"),
    }


@pytest.mark.parametrize(
    ("noun", "singular", "plural"),
    [
        ("man", "Mann Mann Mann Mannes", "Männer Männer Männern Männer"),
        ("woman", "Frau Frau Frau Frau", "Frauen Frauen Frauen Frauen"),
        ("boy", "Junge Jungen Jungen Jungen", "Jungen Jungen Jungen Jungen"),
        ("student", "Student Studenten Studenten Studenten", "Studenten Studenten Studenten Studenten"),
        ("farmer", "Bauer Bauern Bauern Bauern", "Bauern Bauern Bauern Bauern"),
        ("girl", "Mädchen Mädchen Mädchen Mädchens", "Mädchen Mädchen Mädchen Mädchen"),
        ("car", "Auto Auto Auto Autos", "Autos Autos Autos Autos"),
        ("museum", "Museum Museum Museum Museums", "Museen Museen Museen Museen"),
        ("bus", "Bus Bus Bus Busses", "Busse Busse Bussen Busse"),
        ("city", "Stadt Stadt Stadt Stadt", "Städte Städte Städten Städte"),
    ],
)
def test_noun_declension(noun: str, singular: str, plural: str) -> None:
    entry = NOUN_NAMED[noun]
    assert german.noun_forms(entry, entry.gender) == tuple(singular.split())
    assert german.noun_forms(entry, "p") == tuple(plural.split())


GENDERS = {
    "m": "table key apple letter rain judge train coffee",
    "f": "cup door question butter milk heater journey cat",
    "n": "window child girl boat bread knife rabbit room concert",
}


@pytest.mark.parametrize("gender", GENDERS)
def test_gender_of_nouns(gender: str) -> None:
    assert {NOUN_NAMED[noun].gender for noun in GENDERS[gender].split()} == {gender}


ALL_NOUNS = list(NOUN_NAMED.values())


@pytest.mark.parametrize("noun", ALL_NOUNS, ids=lambda noun: noun.english)
def test_every_noun_obeys_the_rules_of_its_suffix_and_class(noun: Noun) -> None:
    assert noun.german[0].isupper()
    if noun.german.endswith(("ung", "heit", "keit", "schaft", "rin", "gin", "ssin")):
        assert noun.gender == "f"
    if noun.german.endswith(("chen", "lein")) and noun.german != "Kuchen":
        assert noun.gender == "n"
    if noun.gender == "f":
        assert noun.genitive == noun.german
    elif not noun.is_weak:
        assert noun.genitive in (noun.german + "s", noun.german + "es", noun.german + "ses")
    else:
        assert noun.gender == "m"
        assert noun.genitive in (noun.german + "n", noun.german + "en")


@pytest.mark.parametrize(
    ("preposition", "phrase", "joined"),
    [
        ("in", "dem Garten", "im Garten"),
        ("in", "das Haus", "ins Haus"),
        ("in", "den Garten", "in den Garten"),
        ("an", "dem See", "am See"),
        ("zu", "dem Arzt", "zum Arzt"),
        ("zu", "der Schule", "zur Schule"),
        ("mit", "dem Hund", "mit dem Hund"),
        ("in", "einem Haus", "in einem Haus"),
    ],
)
def test_articles_melt_into_prepositions(preposition: str, phrase: str, joined: str) -> None:
    assert german.contract(preposition, phrase) == joined


@pytest.mark.parametrize(
    ("infinitive", "forms"),
    [
        ("kaufen", "kaufe kaufst kauft kaufen kaufen"),
        ("arbeiten", "arbeite arbeitest arbeitet arbeiten arbeiten"),
        ("öffnen", "öffne öffnest öffnet öffnen öffnen"),
        ("zeichnen", "zeichne zeichnest zeichnet zeichnen zeichnen"),
        ("tanzen", "tanze tanzt tanzt tanzen tanzen"),
        ("lächeln", "lächle lächelst lächelt lächeln lächeln"),
        ("füttern", "füttere fütterst füttert füttern füttern"),
        ("lesen", "lese liest liest lesen lesen"),
        ("essen", "esse isst isst essen essen"),
        ("geben", "gebe gibst gibt geben geben"),
        ("halten", "halte hältst hält halten halten"),
        ("fahren", "fahre fährst fährt fahren fahren"),
        ("einladen", "lade lädst lädt laden laden"),
        ("mitnehmen", "nehme nimmst nimmt nehmen nehmen"),
        ("anfangen", "fange fängst fängt fangen fangen"),
        ("wissen", "weiß weißt weiß wissen wissen"),
        ("sein", "bin bist ist sind sind"),
        ("haben", "habe hast hat haben haben"),
    ],
)
def test_present_tense(infinitive: str, forms: str) -> None:
    verb = VERB_NAMED[infinitive]
    assert [german.present(verb, person) for person in german.PERSONS] == forms.split()


@pytest.mark.parametrize(
    ("infinitive", "forms"),
    [
        ("können", "kann kannst kann können können"),
        ("müssen", "muss musst muss müssen müssen"),
        ("wollen", "will willst will wollen wollen"),
        ("dürfen", "darf darfst darf dürfen dürfen"),
        ("werden", "werde wirst wird werden werden"),
    ],
)
def test_present_tense_of_modal_and_auxiliary_verbs(infinitive: str, forms: str) -> None:
    assert list(german.IRREGULAR_PRESENT[infinitive].values()) == forms.split()


@pytest.mark.parametrize(
    ("infinitive", "participle", "auxiliary"),
    [
        ("kaufen", "gekauft", "hat"),
        ("arbeiten", "gearbeitet", "hat"),
        ("öffnen", "geöffnet", "hat"),
        ("beten", "gebetet", "hat"),
        ("füttern", "gefüttert", "hat"),
        ("besuchen", "besucht", "hat"),
        ("verkaufen", "verkauft", "hat"),
        ("umarmen", "umarmt", "hat"),
        ("unterstützen", "unterstützt", "hat"),
        ("übersetzen", "übersetzt", "hat"),
        ("bekommen", "bekommen", "hat"),
        ("vergessen", "vergessen", "hat"),
        ("reparieren", "repariert", "hat"),
        ("gratulieren", "gratuliert", "hat"),
        ("anprobieren", "anprobiert", "hat"),
        ("aufräumen", "aufgeräumt", "hat"),
        ("einschalten", "eingeschaltet", "hat"),
        ("anrufen", "angerufen", "hat"),
        ("vorbereiten", "vorbereitet", "hat"),
        ("gehen", "gegangen", "ist"),
        ("reisen", "gereist", "ist"),
        ("folgen", "gefolgt", "ist"),
        ("bleiben", "geblieben", "ist"),
        ("aufwachen", "aufgewacht", "ist"),
        ("einschlafen", "eingeschlafen", "ist"),
        ("zurückkommen", "zurückgekommen", "ist"),
    ],
)
def test_participle_and_auxiliary_of_the_perfect(infinitive: str, participle: str, auxiliary: str) -> None:
    verb = VERB_NAMED[infinitive]
    assert german.participle(verb) == participle
    assert german.perfect_auxiliary(verb, "er") == auxiliary


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.infinitive)
def test_every_participle_has_the_shape_of_one(verb: Verb) -> None:
    participle = german.participle(verb)
    assert participle.startswith(verb.prefix)
    assert participle.endswith(("t", "en", "an"))


@pytest.mark.parametrize(
    ("infinitive", "command"),
    [
        ("kaufen", "kauf"),
        ("warten", "warte"),
        ("öffnen", "öffne"),
        ("lesen", "lies"),
        ("helfen", "hilf"),
        ("fahren", "fahr"),
        ("laufen", "lauf"),
        ("mitnehmen", "nimm"),
        ("füttern", "füttere"),
        ("lächeln", "lächle"),
        ("reisen", "reise"),
    ],
)
def test_imperative(infinitive: str, command: str) -> None:
    assert german.imperative(VERB_NAMED[infinitive]) == command
