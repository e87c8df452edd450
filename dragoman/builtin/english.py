"""English word forms: plural, third person, past, possessive, and the article a or an."""

from functools import cache

from dragoman.builtin.verbs import Verb

_IRREGULAR_PLURALS = {
    "child": "children",
    "goose": "geese",
    "knife": "knives",
    "man": "men",
    "mouse": "mice",
    "policeman": "policemen",
    "scarf": "scarves",
    "shelf": "shelves",
    "thief": "thieves",
    "wolf": "wolves",
    "woman": "women",
    "potato": "potatoes",
    "tomato": "tomatoes",
}
BE_PRESENT = {"I": "am", "he": "is"}
BE_PAST = {"I": "was", "he": "was"}

_IRREGULAR_THIRD_PERSON = {"have": "has", "go": "goes"}
_SPOKEN_WITH_VOWEL = ("honest",)
_SPOKEN_WITH_CONSONANT = ("useful", "university")


@cache
def plural(noun: str) -> str:
    """Returns the plural of a noun."""
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    return noun[:-1] + "ies" if _ends_in_consonant_y(noun) else noun + _sibilant_e(noun) + "s"


@cache
def third_person(verb: str) -> str:
    """Returns the present tense after he, she, it; only the first word of "fall asleep" changes."""
    head, space, rest = verb.partition(" ")
    if head in _IRREGULAR_THIRD_PERSON:
        form = _IRREGULAR_THIRD_PERSON[head]
    elif _ends_in_consonant_y(head):
        form = head[:-1] + "ies"
    else:
        form = head + _sibilant_e(head) + "s"
    return form + space + rest


@cache
def past(verb: Verb) -> str:
    """Returns the simple past; the lexicon has the irregular forms and those that double a consonant."""
    head, space, rest = verb.english.partition(" ")
    if verb.english_past:
        form = verb.english_past
    elif _ends_in_consonant_y(head):
        form = head[:-1] + "ied"
    else:
        form = head + ("d" if head.endswith("e") else "ed")
    return form + space + rest


@cache
def indefinite_article(next_word: str) -> str:
    """Returns a or an, depending on the sound that follows."""
    if next_word.startswith(_SPOKEN_WITH_VOWEL):
        return "an"
    return "an" if next_word[0] in "aeiou" and not next_word.startswith(_SPOKEN_WITH_CONSONANT) else "a"


def possessive(noun_phrase: str, is_plural: bool) -> str:
    """Returns the possessive: my brother's, my brothers', the children's."""
    return noun_phrase + ("'" if is_plural and noun_phrase.endswith("s") else "'s")


def _ends_in_consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def _sibilant_e(word: str) -> str:
    return "e" if word.endswith(("s", "x", "ch", "sh")) else ""
