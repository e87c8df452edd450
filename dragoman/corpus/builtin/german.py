"""German nouns and what stands before or for them: articles, adjective endings, pronouns, contractions.

Forms are tuples in the order of `CASES`; slots are the three genders and "p", the plural that has none.
"""

from functools import cache

from dragoman.corpus.builtin.adjectives import Adjective
from dragoman.corpus.builtin.nouns import Noun

CASES = ("nominative", "accusative", "dative", "genitive")
NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
SLOTS = ("m", "f", "n", "p")

Forms = tuple[str, str, str, str]


def _by_slot(table: str) -> dict[str, Forms]:
    """Reads four lines m, f, n, p of four endings each; `-` is no ending."""
    rows = [[ending.strip("-") for ending in line.split()] for line in table.strip().splitlines()]
    return {slot: (row[0], row[1], row[2], row[3]) for slot, row in zip(SLOTS, rows, strict=True)}


DEFINITE_ARTICLE = _by_slot("""
    der den dem des
    die die der der
    das das dem des
    die die den der
    """)

# dieser, jeder, welcher
DER_WORD_ENDINGS = _by_slot("""
    er en em es
    e  e  er er
    es es em es
    e  e  en er
    """)

# ein, kein, mein
EIN_WORD_ENDINGS = _by_slot("""
    -  en em es
    e  e  er er
    -  -  em es
    e  e  en er
    """)

RELATIVE_PRONOUNS = _by_slot("""
    der den dem   dessen
    die die der   deren
    das das dem   dessen
    die die denen deren
    """)

ADJECTIVE_ENDINGS = {
    # after der, dieser, jeder, welcher
    "weak": _by_slot("""
        e  en en en
        e  e  en en
        e  e  en en
        en en en en
        """),
    # after ein, kein, mein
    "mixed": _by_slot("""
        er en en en
        e  e  en en
        es es en en
        en en en en
        """),
    # after nothing, a number, viele, einige
    "strong": _by_slot("""
        er en em en
        e  e  er er
        es es em en
        e  e  en er
        """),
}

PERSONAL_PRONOUNS: dict[str, Forms] = {
    "ich": ("ich", "mich", "mir", "meiner"),
    "du": ("du", "dich", "dir", "deiner"),
    "er": ("er", "ihn", "ihm", "seiner"),
    "sie": ("sie", "sie", "ihr", "ihrer"),
    "es": ("es", "es", "ihm", "seiner"),
    "wir": ("wir", "uns", "uns", "unser"),
    "sie (plural)": ("sie", "sie", "ihnen", "ihrer"),
    "wer": ("wer", "wen", "wem", "wessen"),
}
PRONOUN_OF_SLOT = {"m": "er", "f": "sie", "n": "es", "p": "sie (plural)"}

_CONTRACTIONS = {
    "an das": "ans",
    "an dem": "am",
    "bei dem": "beim",
    "in das": "ins",
    "in dem": "im",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
}


@cache
def determiner_forms(lemma: str, slot: str) -> Forms:
    """The four cases of a determiner: der, ein-words, der-words; numbers and "viele" have one form for all."""
    if lemma == "der":
        return DEFINITE_ARTICLE[slot]
    if declension_after(lemma) == "mixed":
        return _with_endings(lemma, EIN_WORD_ENDINGS[slot])
    if lemma in ("dieser", "jeder", "welcher"):
        return _with_endings(lemma.removesuffix("er"), DER_WORD_ENDINGS[slot])
    if lemma in ("viele", "einige"):
        return _with_endings(lemma.removesuffix("e"), DER_WORD_ENDINGS[slot])
    return (lemma, lemma, lemma, lemma)


@cache
def declension_after(determiner: str) -> str:
    """Which adjective endings a determiner calls for."""
    if determiner in ("der", "dieser", "jeder", "welcher"):
        return "weak"
    if determiner in ("ein", "kein", "mein", "dein", "sein", "ihr", "unser"):
        return "mixed"
    return "strong"


@cache
def noun_forms(noun: Noun, slot: str) -> Forms:
    """The four cases of a noun in the singular (its own gender) or the plural."""
    if slot == "p":
        return (noun.plural, noun.plural, _dative_plural(noun.plural), noun.plural)
    if noun.is_weak:
        return (noun.german, noun.genitive, noun.genitive, noun.genitive)
    return (noun.german, noun.german, noun.german, noun.genitive)


@cache
def adjective_forms(adjective: Adjective, declension: str, slot: str) -> Forms:
    """The four cases of an attributive adjective."""
    return _with_endings(adjective.stem, ADJECTIVE_ENDINGS[declension][slot])


def contract(preposition: str, phrase: str) -> str:
    """Joins preposition and noun phrase, melting an article into it: zu dem Haus -> zum Haus."""
    article, _, rest = phrase.partition(" ")
    contraction = _CONTRACTIONS.get(f"{preposition} {article}")
    return f"{contraction} {rest}" if contraction and rest else f"{preposition} {phrase}"


def _with_endings(stem: str, endings: Forms) -> Forms:
    # unser loses nothing here: the full forms "unsere, unseren" are as right as "unsre, unsren".
    return (stem + endings[0], stem + endings[1], stem + endings[2], stem + endings[3])


def _dative_plural(plural: str) -> str:
    return plural if plural.endswith(("n", "s")) else plural + "n"
