"""Noun phrases in both languages, from articles to relative clauses, and pronouns and names."""

from dataclasses import dataclass, replace
from functools import cache

from dragoman.builtin import english, german
from dragoman.builtin.german import Forms
from dragoman.builtin.lexicon import Adjective, Noun

# Two lemmas in a grammatical relation, such as ("adjective", "red", "car") or ("object", "buy", "car").
Combination = tuple[str, str, str]

# English pronouns name the person of a verb: "he" also covers she, it and every singular noun.
_GERMAN_PERSON = {"I": "ich", "you": "du", "he": "er", "we": "wir", "they": "sie"}


@dataclass(frozen=True, slots=True)
class Nominal:
    """A phrase that can be subject or object, with its forms in both languages."""

    english: str
    english_object: str
    german: Forms
    person: str
    slot: str
    pronoun: str
    lemma: str = ""
    kind: str = ""
    combinations: tuple[Combination, ...] = ()
    is_pronoun: bool = False
    is_negated: bool = False

    @property
    def german_person(self) -> str:
        """Person of the German verb."""
        return _GERMAN_PERSON[self.person]


@dataclass(frozen=True, slots=True)
class Determiner:
    """First word of a noun phrase; `number` says if it allows singular ("s"), plural ("p") or both ("sp")."""

    english: str
    german: str
    number: str = "sp"
    english_plural: str = ""
    is_indefinite: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """A proper name, which is copied; `title` has cases in German (Herr, Herrn)."""

    name: str
    pronoun: str
    title: str = ""


THE = Determiner("the", "der")
INDEFINITE = Determiner("a", "ein", "s", is_indefinite=True)
BARE = Determiner("", "", "p", is_indefinite=True)
THIS = Determiner("this", "dieser", english_plural="these")
EVERY = Determiner("every", "jeder", "s")
NO = Determiner("no", "kein", "s")
WHICH = Determiner("which", "welcher")
POSSESSIVES = tuple(
    Determiner(word, stem)
    for word, stem in (
        ("my", "mein"),
        ("your", "dein"),
        ("his", "sein"),
        ("her", "ihr"),
        ("our", "unser"),
        ("their", "ihr"),
    )
)
QUANTIFIERS = (Determiner("many", "viele", "p"), Determiner("some", "einige", "p"))

# "you" is always the informal singular, so that a sentence has only one translation.
PRONOUNS = {
    "I": Nominal("I", "me", german.PERSONAL_PRONOUNS["ich"], "I", "m", "I", is_pronoun=True),
    "you": Nominal("you", "you", german.PERSONAL_PRONOUNS["du"], "you", "m", "you", is_pronoun=True),
    "he": Nominal("he", "him", german.PERSONAL_PRONOUNS["er"], "he", "m", "he", is_pronoun=True),
    "she": Nominal("she", "her", german.PERSONAL_PRONOUNS["sie"], "he", "f", "she", is_pronoun=True),
    "we": Nominal("we", "us", german.PERSONAL_PRONOUNS["wir"], "we", "p", "we", is_pronoun=True),
    "they": Nominal("they", "them", german.PERSONAL_PRONOUNS["sie (plural)"], "they", "p", "they", is_pronoun=True),
}
WHO = Nominal("who", "who", german.PERSONAL_PRONOUNS["wer"], "he", "m", "he", is_pronoun=True)
WHAT = Nominal("what", "what", ("was", "was", "was", "wessen"), "he", "n", "it", is_pronoun=True)

# Here the pronoun differs from the grammatical gender; the lexicon has no other people of neuter gender.
_PRONOUN_OF_NEUTER_PERSON = {"girl": "she", "child": "it"}


def noun_phrase(
    determiner: Determiner,
    noun: Noun,
    adjective: Adjective | None = None,
    is_plural: bool = False,
    is_negated: bool = False,
) -> Nominal:
    """Builds a noun phrase; if negated, German has "kein" where English negates the verb (does not buy a book)."""
    slot = "p" if is_plural else noun.gender
    german_determiner = "kein" if is_negated else determiner.german
    english_words = _english_words(determiner, noun, adjective, is_plural)
    return Nominal(
        english=english_words,
        english_object=english_words,
        german=_german_forms(german_determiner, noun, adjective, slot),
        person="they" if is_plural else "he",
        slot=slot,
        pronoun="they" if is_plural else _pronoun_for(noun),
        lemma=noun.english,
        kind=noun.kind,
        combinations=(("adjective", adjective.english, noun.english),) if adjective else (),
        is_negated=is_negated,
    )


def possessed(owner: Nominal, thing: Nominal, thing_without_article: Nominal) -> Nominal:
    """Builds a noun phrase with an owner: my brother's car, das Auto meines Bruders; Anna's car, Annas Auto."""
    owner_english = english.possessive(owner.english, owner.person == "they")
    if owner.kind == "name":
        forms = _join_forms([owner.german[german.GENITIVE]] * 4, thing_without_article.german)
    else:
        forms = _join_forms(thing.german, [owner.german[german.GENITIVE]] * 4)
    phrase = f"{owner_english} {thing_without_article.english}"
    combinations = owner.combinations + thing.combinations
    return replace(thing, english=phrase, english_object=phrase, german=forms, combinations=combinations)


def part_of(part: Nominal, whole: Nominal) -> Nominal:
    """Builds a phrase for a part of a thing: the roof of the house, das Dach des Hauses."""
    phrase = f"{part.english} of {whole.english}"
    forms = _join_forms(part.german, [whole.german[german.GENITIVE]] * 4)
    combinations = part.combinations + whole.combinations
    return replace(part, english=phrase, english_object=phrase, german=forms, combinations=combinations)


def with_relative_clause(
    head: Nominal, english_clause: str, german_clause: str, combinations: tuple[Combination, ...]
) -> Nominal:
    """Adds a relative clause to a noun phrase; `clauses.spell` removes its closing comma at the end of a sentence."""
    phrase = f"{head.english} {english_clause}"
    forms = _join_forms(head.german, [f", {german_clause},"] * 4, glue="")
    return replace(
        head, english=phrase, english_object=phrase, german=forms, combinations=head.combinations + combinations
    )


def relative_pronoun(head: Nominal) -> Nominal:
    """Returns the subject of a relative clause, with the gender and number of the head."""
    word = relative_word(head)
    return replace(head, english=word, german=german.RELATIVE_PRONOUNS[head.slot], combinations=(), is_pronoun=True)


def whose(owner: Nominal, noun: Noun) -> Nominal:
    """Returns the subject of a relative clause about something owned; dessen and deren agree with the owner."""
    pronoun = german.RELATIVE_PRONOUNS[owner.slot][german.GENITIVE]
    return noun_phrase(Determiner("whose", pronoun), noun)


def relative_word(head: Nominal) -> str:
    """Returns the English relative pronoun: who for people, that for everything else."""
    return "who" if head.kind in ("people", "name") else "that"


def anaphor(antecedent: Nominal) -> Nominal:
    """Returns the pronoun that refers to a phrase; "it" has the gender of the German noun."""
    if antecedent.pronoun != "it":
        return replace(PRONOUNS[antecedent.pronoun], lemma=antecedent.lemma, kind=antecedent.kind)
    forms = german.PERSONAL_PRONOUNS[german.PRONOUN_OF_SLOT[antecedent.slot]]
    return Nominal("it", "it", forms, "he", antecedent.slot, "it", antecedent.lemma, antecedent.kind, is_pronoun=True)


@cache
def name_phrase(name: Name) -> Nominal:
    """Builds a person's name: Anna, or Herr Weber and Herrn Weber."""
    slot = "f" if name.pronoun == "she" else "m"
    if not name.title:
        forms = (name.name, name.name, name.name, f"{name.name}s")
        return Nominal(name.name, name.name, forms, "he", slot, name.pronoun, kind="name")
    # Herr belongs to the n-declension.
    nominative, oblique = ("Herr", "Herrn") if name.title == "Mr" else ("Frau", "Frau")
    forms = (
        f"{nominative} {name.name}",
        f"{oblique} {name.name}",
        f"{oblique} {name.name}",
        f"{oblique} {name.name}s",
    )
    phrase = f"{name.title} {name.name}"
    return Nominal(phrase, phrase, forms, "he", slot, name.pronoun, kind="name")


def _english_words(determiner: Determiner, noun: Noun, adjective: Adjective | None, is_plural: bool) -> str:
    words = english.plural(noun.english) if is_plural else noun.english
    if adjective:
        words = f"{adjective.english} {words}"
    opening = determiner.english_plural if is_plural and determiner.english_plural else determiner.english
    if opening == "a":
        opening = english.indefinite_article(words)
    return f"{opening} {words}" if opening else words


def _german_forms(determiner: str, noun: Noun, adjective: Adjective | None, slot: str) -> Forms:
    forms = german.noun_forms(noun, slot)
    if adjective:
        declension = german.declension_after(determiner)
        forms = _join_forms(german.adjective_forms(adjective, declension, slot), forms)
    return _join_forms(german.determiner_forms(determiner, slot), forms) if determiner else forms


def _join_forms(left: list[str] | Forms, right: list[str] | Forms, glue: str = " ") -> Forms:
    return (
        left[0] + glue + right[0],
        left[1] + glue + right[1],
        left[2] + glue + right[2],
        left[3] + glue + right[3],
    )


def _pronoun_for(noun: Noun) -> str:
    if noun.kind != "people":
        return "it"
    return _PRONOUN_OF_NEUTER_PERSON[noun.english] if noun.gender == "n" else {"m": "he", "f": "she"}[noun.gender]
