"""The verbs of lexicon.toml, grouped by their objects, with their irregular forms."""

from dataclasses import dataclass

from dragoman.builtin.lexicon import LEXICON


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb, with what is needed to form its tenses; an empty field means that the regular rule applies."""

    english: str
    particle: str
    english_past: str
    infinitive: str
    prefix: str
    changed_stem: str
    participle: str
    is_sein_perfect: bool
    object_case: str = "accusative"
    object_kinds: tuple[str, ...] = ()

    @property
    def lemma(self) -> str:
        """English name of the verb, with its particle."""
        return f"{self.english} {self.particle}".strip()


def _read_english(entry: str) -> tuple[str, str, str]:
    base, _, past = entry.partition(", ")
    base, _, particle = base.partition(" +")
    return base, particle, past


def _read_verb(english: str, german: str, object_case: str) -> Verb:
    forms, _, kinds = german.partition(" | ")
    base, particle, past = _read_english(english)
    citation, *irregular = forms.split(", ")
    prefix, _, bare = citation.rpartition("/")
    changed_stem = next((form.removesuffix("-") for form in irregular if form.endswith("-")), "")
    participle = next((form for form in irregular if not form.endswith("-")), "")
    return Verb(
        english=base,
        particle=particle,
        english_past=past,
        infinitive=prefix + bare,
        prefix=prefix,
        changed_stem=changed_stem,
        participle=participle.removeprefix("ist "),
        is_sein_perfect=participle.startswith("ist "),
        object_case=object_case,
        object_kinds=tuple(kinds.split()),
    )


def _read_verbs(table: str, object_case: str = "accusative") -> tuple[Verb, ...]:
    return tuple(_read_verb(english, german, object_case) for english, german in LEXICON["verbs"][table].items())


TRANSITIVE = _read_verbs("transitive")
DATIVE = _read_verbs("dative", object_case="dative")
DITRANSITIVE = _read_verbs("ditransitive")
INTRANSITIVE = _read_verbs("intransitive")
CHANGES = _read_verbs("changes")
WALKING = _read_verbs("walking")
RIDING = _read_verbs("riding")
TRAVEL = _read_verbs("travel")
HAPPENING = _read_verbs("happening")
PUTTING = _read_verbs("putting")
RESTING = _read_verbs("resting")
SAYING = _read_verbs("saying")
BE = _read_verb("be", "sein, ist gewesen", "nominative")
HAVE = _read_verb("have, had", "haben, gehabt | animals items vehicles texts devices clothes", "accusative")
VERBS = (
    *TRANSITIVE,
    *DATIVE,
    *DITRANSITIVE,
    *INTRANSITIVE,
    *CHANGES,
    *WALKING,
    *RIDING,
    *TRAVEL,
    *HAPPENING,
    *PUTTING,
    *RESTING,
    *SAYING,
    BE,
    HAVE,
)

# States, not actions: they have no times, no future and no commands.
STATES = frozenset(
    {HAVE}
    | {
        verb
        for verb in VERBS
        if verb.english in ("admire", "believe", "hate", "know", "love", "need", "trust", "understand")
    }
)
