"""Words without inflection: adverbs, times, names, cities, numbers, modal verbs."""

from dragoman.builtin.clauses import Modal, Phrase
from dragoman.builtin.lexicon import LEXICON
from dragoman.builtin.phrases import Name


def _phrases(table: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(english, german) for english, german in LEXICON["phrases"][table].items())


_CALENDAR = _phrases("calendar")

TIMES = {
    "present": _phrases("present"),
    # Without "every day", which does not fit a negation.
    "negated present": _phrases("negated_present"),
    "past": (
        *_phrases("past"),
        *_CALENDAR,
    ),
    "future": (
        *_phrases("future"),
        *_CALENDAR,
    ),
}

# English unit in the plural, German unit in the dative plural, as "vor" and "in" need it.
TIME_UNITS = (("days", "Tagen"), ("weeks", "Wochen"), ("months", "Monaten"), ("years", "Jahren"))

FREQUENCIES = _phrases("frequencies")

WHEREABOUTS = _phrases("whereabouts")

_PACES = _phrases("paces")
_SOUNDS = _phrases("sounds")
_COMPANY = _phrases("company")
_QUALITIES = _phrases("qualities")

# Verbs that can have a companion or a beneficiary.
_IN_COMPANY = "build clean dance discuss drink drive eat fly hunt play pray prepare repair sing travel visit wait work"
_FOR_SOMEBODY = "build buy carry choose copy draw find open order paint print repair translate wash work"
VERBS_IN_COMPANY = frozenset(_IN_COMPANY.split())
VERBS_FOR_SOMEBODY = frozenset(_FOR_SOMEBODY.split())

_VERBS_OF_MANNER = (
    (_PACES, "carry check clean close draw drink drive eat open read repair ride wash"),
    (_SOUNDS, "cough cry laugh pray sing"),
    (_QUALITIES, "dance play sing sleep work"),
    (_COMPANY, "arrive come dance go play sing stay travel wait work"),
)
MANNERS_FITTING: dict[str, tuple[Phrase, ...]] = {
    verb: sum((manners for manners, fitting in _VERBS_OF_MANNER if verb in fitting.split()), ())
    for verb in sorted({verb for _, fitting in _VERBS_OF_MANNER for verb in fitting.split()})
}

NUMBER_WORDS: tuple[tuple[str, str], ...] = tuple(LEXICON["numbers"].items())

_WOMEN = "Anna Clara Elena Emma Eva Fatima Helena Ingrid Julia Laura Lena Maria Mia Monika Nina Olga Paula Petra Sabine"
_MEN = "Adam Ali Anton Daniel David Emil Erik Georg Jan Karl Kevin Leo Martin Michael Oliver Omar Paul Peter Simon"
_SURNAMES = "Albrecht Becker Hartmann Keller Krüger Lehmann Meyer Neumann Schneider Schmidt Wagner Weber Zimmermann"
NAMES = (
    *(Name(name, "she") for name in _WOMEN.split()),
    *(Name(name, "he") for name in _MEN.split()),
)
TITLED_NAMES = tuple(
    Name(name, pronoun, title) for title, pronoun in (("Mr", "he"), ("Mrs", "she")) for name in _SURNAMES.split()
)
# Spelled the same in both languages, so that names are copied.
_CITY_NAMES = "Amsterdam Berlin Boston Bremen Dresden Dublin Hamburg Leipzig London Madrid Oslo Paris Salzburg"
CITIES = tuple(_CITY_NAMES.split())

CAN = Modal("can", "", "", "können")
_COULD = Modal("could", "", "", "können", is_past=True)
_MUST = Modal("must", "", "", "müssen")
HAD_TO = Modal("", "have to", "had to", "müssen", is_past=True)
WANT_TO = Modal("", "want to", "wants to", "wollen")
_WANTED_TO = Modal("", "want to", "wanted to", "wollen", is_past=True)
_MAY = Modal("may", "", "", "dürfen")
_SHOULD = Modal("should", "", "", "sollen")
_WOULD_LIKE_TO = Modal("would", "like to", "", "möchten")
PRESENT_MODALS = (CAN, WANT_TO, _MAY, _SHOULD, _WOULD_LIKE_TO, _MUST)
PAST_MODALS = (_COULD, HAD_TO, _WANTED_TO)
# "must not" forbids, but "muss nicht" permits; "may" has different meanings in questions and statements.
MODALS_TO_NEGATE = (CAN, WANT_TO, _SHOULD)
