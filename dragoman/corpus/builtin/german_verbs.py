"""German verbs: present tense, participle, auxiliary of the perfect, imperative.

Persons are named after pronouns: ich, du, er, wir, sie. The familiar plural "ihr" is left out,
because English "you" must have one translation only.
"""

from functools import cache

from dragoman.corpus.builtin.verbs import Verb

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

# Only these are told in the simple past; all other verbs in the perfect, as in spoken German.
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
    """The present tense without a separable prefix: er "ruft" for anrufen."""
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
    """The past participle: gekauft, angerufen, besucht, repariert."""
    if verb.participle:
        return verb.participle
    bare = verb.infinitive.removeprefix(verb.prefix)
    stem = _stem(bare)
    ending = "et" if _needs_e(stem) else "t"
    return verb.prefix + ("" if _has_no_ge(bare) else "ge") + stem + ending


def perfect_auxiliary(verb: Verb, person: str) -> str:
    """The finite form of haben or sein that the perfect of the verb takes."""
    return IRREGULAR_PRESENT["sein" if verb.is_sein_perfect else "haben"][person]


@cache
def imperative(verb: Verb) -> str:
    """The familiar singular command without a separable prefix: nimm, warte, ruf."""
    bare = verb.infinitive.removeprefix(verb.prefix)
    if verb.changed_stem and "ä" not in verb.changed_stem:  # e -> i is kept (lies!), a -> ä is not (fahr!)
        return verb.changed_stem
    stem = _stem(bare)
    if bare.endswith(("eln", "ern")):
        return _first_person(bare)
    # After s the short form sounds clipped: reise!
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
    # A changed stem that already ends in t takes no second one: er hält.
    return stem if verb.changed_stem and stem.endswith("t") else stem + link + "t"


def _needs_e(stem: str) -> bool:
    """Whether an ending needs a linking e to be spoken: arbeit-e-t, öffn-e-t, but lern-t."""
    return stem.endswith(("t", "d", "ffn", "chn"))


def _has_no_ge(bare: str) -> bool:
    return bare.endswith("ieren") or bare.startswith(_INSEPARABLE_PREFIXES)
