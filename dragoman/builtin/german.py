"""German word forms: endings of nouns, adjectives and articles, and forms of verbs."""

from functools import cache

from dragoman.builtin.lexicon import Adjective, Noun
from dragoman.builtin.verbs import Verb

CASES = ("nominative", "accusative", "dative", "genitive")
NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
SLOTS = ("m", "f", "n", "p")

Forms = tuple[str, str, str, str]


def _by_slot(table: str) -> dict[str, Forms]:
    """Reads four lines (m, f, n, p) of four endings each; `-` is no ending."""
    rows = [[ending.strip("-") for ending in line.split()] for line in table.strip().splitlines()]
    return {slot: (row[0], row[1], row[2], row[3]) for slot, row in zip(SLOTS, rows, strict=True)}


_DEFINITE_ARTICLE = _by_slot("""
    der den dem des
    die die der der
    das das dem des
    die die den der
    """)

# dieser, jeder, welcher
_DER_WORD_ENDINGS = _by_slot("""
    er en em es
    e  e  er er
    es es em es
    e  e  en er
    """)

# ein, kein, mein
_EIN_WORD_ENDINGS = _by_slot("""
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

_ADJECTIVE_ENDINGS = {
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
    """Returns the four cases of a determiner; words without endings, such as numbers, have one form for all."""
    if lemma == "der":
        return _DEFINITE_ARTICLE[slot]
    if declension_after(lemma) == "mixed":
        return _with_endings(lemma, _EIN_WORD_ENDINGS[slot])
    if lemma in ("dieser", "jeder", "welcher"):
        return _with_endings(lemma.removesuffix("er"), _DER_WORD_ENDINGS[slot])
    if lemma in ("viele", "einige"):
        return _with_endings(lemma.removesuffix("e"), _DER_WORD_ENDINGS[slot])
    return (lemma, lemma, lemma, lemma)


@cache
def declension_after(determiner: str) -> str:
    """Returns which adjective endings follow a determiner."""
    if determiner in ("der", "dieser", "jeder", "welcher"):
        return "weak"
    if determiner in ("ein", "kein", "mein", "dein", "sein", "ihr", "unser"):
        return "mixed"
    return "strong"


@cache
def noun_forms(noun: Noun, slot: str) -> Forms:
    """Returns the four cases of a noun in the singular (its own gender) or the plural."""
    if slot == "p":
        return (noun.plural, noun.plural, _dative_plural(noun.plural), noun.plural)
    if noun.is_weak:
        return (noun.german, noun.genitive, noun.genitive, noun.genitive)
    return (noun.german, noun.german, noun.german, noun.genitive)


@cache
def adjective_forms(adjective: Adjective, declension: str, slot: str) -> Forms:
    """Returns the four cases of an attributive adjective."""
    return _with_endings(adjective.stem, _ADJECTIVE_ENDINGS[declension][slot])


def contract(preposition: str, phrase: str) -> str:
    """Joins preposition and noun phrase, and contracts them: zu dem Haus -> zum Haus."""
    article, _, rest = phrase.partition(" ")
    contraction = _CONTRACTIONS.get(f"{preposition} {article}")
    return f"{contraction} {rest}" if contraction and rest else f"{preposition} {phrase}"


def _with_endings(stem: str, endings: Forms) -> Forms:
    # "unser" keeps its e: "unsere, unseren" are as correct as "unsre, unsren".
    return (stem + endings[0], stem + endings[1], stem + endings[2], stem + endings[3])


def _dative_plural(plural: str) -> str:
    return plural if plural.endswith(("n", "s")) else plural + "n"


PERSONS = ("ich", "du", "er", "wir", "sie")


def _by_person(forms: str) -> dict[str, str]:
    return dict(zip(PERSONS, forms.split(), strict=True))


IRREGULAR_PRESENT = {
    "sein": _by_person("bin bist ist sind sind"),
    "haben": _by_person("habe hast hat haben haben"),
    "werden": _by_person("werde wirst wird werden werden"),
    "wissen": _by_person("weiß weißt weiß wissen wissen"),
    "können": _by_person("kann kannst kann können können"),
    "müssen": _by_person("muss musst muss müssen müssen"),
    "wollen": _by_person("will willst will wollen wollen"),
    "dürfen": _by_person("darf darfst darf dürfen dürfen"),
    "sollen": _by_person("sollte solltest sollte sollten sollten"),  # English should
    "möchten": _by_person("möchte möchtest möchte möchten möchten"),  # English would like to
}

# Only these use the simple past; all other verbs use the perfect, as in spoken German.
SIMPLE_PAST = {
    "sein": _by_person("war warst war waren waren"),
    "haben": _by_person("hatte hattest hatte hatten hatten"),
    "können": _by_person("konnte konntest konnte konnten konnten"),
    "müssen": _by_person("musste musstest musste mussten mussten"),
    "wollen": _by_person("wollte wolltest wollte wollten wollten"),
}

_INSEPARABLE_PREFIXES = ("be", "emp", "ent", "er", "ge", "ver", "zer", "über", "unter", "um")


@cache
def present(verb: Verb, person: str) -> str:
    """Returns the present tense without a separable prefix: er "ruft" for anrufen."""
    bare = verb.infinitive.removeprefix(verb.prefix)
    if bare in IRREGULAR_PRESENT:
        return IRREGULAR_PRESENT[bare][person]
    if person in ("wir", "sie"):
        return bare
    if person == "ich":
        return _first_person(bare)
    return _second_or_third_person(verb, bare, person)


@cache
def participle(verb: Verb) -> str:
    """Returns the past participle: gekauft, angerufen, besucht, repariert."""
    if verb.participle:
        return verb.participle
    bare = verb.infinitive.removeprefix(verb.prefix)
    stem = _stem(bare)
    ending = "et" if _needs_e(stem) else "t"
    return verb.prefix + ("" if _has_no_ge(bare) else "ge") + stem + ending


def perfect_auxiliary(verb: Verb, person: str) -> str:
    """Returns the form of haben or sein for the perfect of the verb."""
    return IRREGULAR_PRESENT["sein" if verb.is_sein_perfect else "haben"][person]


@cache
def imperative(verb: Verb) -> str:
    """Returns the informal singular command without a separable prefix: nimm, warte, ruf."""
    bare = verb.infinitive.removeprefix(verb.prefix)
    if verb.changed_stem and "ä" not in verb.changed_stem:  # e -> i is kept (lies!), a -> ä is not (fahr!)
        return verb.changed_stem
    stem = _stem(bare)
    if bare.endswith(("eln", "ern")):
        return _first_person(bare)
    # After s, the form with e is usual: reise!
    return stem + ("e" if _needs_e(stem) or stem.endswith("s") else "")


def _stem(bare: str) -> str:
    return bare.removesuffix("n") if bare.endswith(("eln", "ern")) else bare.removesuffix("en")


def _first_person(bare: str) -> str:
    # lächeln loses the e of its stem (ich lächle), füttern keeps it (ich füttere).
    return bare.removesuffix("eln") + "le" if bare.endswith("eln") else _stem(bare) + "e"


def _second_or_third_person(verb: Verb, bare: str, person: str) -> str:
    stem = verb.changed_stem or _stem(bare)
    link = "e" if _needs_e(stem) and not verb.changed_stem else ""
    if person == "du":
        return stem + link + ("t" if stem.endswith(("s", "ß", "z", "x")) else "st")
    # A changed stem that ends in t gets no second t: er hält.
    return stem if verb.changed_stem and stem.endswith("t") else stem + link + "t"


def _needs_e(stem: str) -> bool:
    """Whether an ending needs a linking e to be spoken: arbeit-e-t, öffn-e-t, but lern-t."""
    return stem.endswith(("t", "d", "ffn", "chn"))


def _has_no_ge(bare: str) -> bool:
    return bare.endswith("ieren") or bare.startswith(_INSEPARABLE_PREFIXES)
