"""Words without inflection: adverbs, times, names, cities, numbers, modal verbs."""

from dragoman.builtin.clauses import Modal, Phrase
from dragoman.builtin.nouns import read_entries
from dragoman.builtin.phrases import Name


def _read_phrases(table: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(english, german) for english, german in read_entries(table))


_CALENDAR = _read_phrases("""
    on Monday = am Montag
    on Tuesday = am Dienstag
    on Wednesday = am Mittwoch
    on Thursday = am Donnerstag
    on Friday = am Freitag
    on Saturday = am Samstag
    on Sunday = am Sonntag
    in January = im Januar
    in February = im Februar
    in March = im März
    in April = im April
    in May = im Mai
    in June = im Juni
    in July = im Juli
    in August = im August
    in September = im September
    in October = im Oktober
    in November = im November
    in December = im Dezember
    in spring = im Frühling
    in summer = im Sommer
    in autumn = im Herbst
    in winter = im Winter
    """)

TIMES = {
    "present": _read_phrases("""
        today = heute
        now = jetzt
        every day = jeden Tag
        every week = jede Woche
        every morning = jeden Morgen
        every evening = jeden Abend
        in the morning = am Morgen
        in the evening = am Abend
        at night = nachts
        """),
    # Without "every day", which does not fit a negation.
    "negated present": _read_phrases("""
        today = heute
        now = jetzt
        in the morning = am Morgen
        in the evening = am Abend
        """),
    "past": (
        *_read_phrases("""
            yesterday = gestern
            last week = letzte Woche
            last month = letzten Monat
            last year = letztes Jahr
            last night = letzte Nacht
            """),
        *_CALENDAR,
    ),
    "future": (
        *_read_phrases("""
            tomorrow = morgen
            soon = bald
            later = später
            next week = nächste Woche
            next month = nächsten Monat
            next year = nächstes Jahr
            """),
        *_CALENDAR,
    ),
}

# English unit in the plural, German unit in the dative plural, as "vor" and "in" need it.
TIME_UNITS = (("days", "Tagen"), ("weeks", "Wochen"), ("months", "Monaten"), ("years", "Jahren"))

FREQUENCIES = _read_phrases("""
    always = immer
    never = nie
    often = oft
    rarely = selten
    sometimes = manchmal
    usually = meistens
    """)

WHEREABOUTS = _read_phrases("""
    at home = zu Hause
    here = hier
    outside = draußen
    there = dort
    upstairs = oben
    """)

_PACES = _read_phrases("""
    carefully = vorsichtig
    quickly = schnell
    slowly = langsam
    """)
_SOUNDS = _read_phrases("""
    loudly = laut
    quietly = leise
    """)
_COMPANY = _read_phrases("alone = allein")
_QUALITIES = _read_phrases("""
    badly = schlecht
    well = gut
    """)

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

NUMBER_WORDS = tuple(
    read_entries("""
        two = zwei
        three = drei
        four = vier
        five = fünf
        six = sechs
        seven = sieben
        eight = acht
        nine = neun
        ten = zehn
        eleven = elf
        twelve = zwölf
        """)
)

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
COULD = Modal("could", "", "", "können", is_past=True)
MUST = Modal("must", "", "", "müssen")
HAD_TO = Modal("", "have to", "had to", "müssen", is_past=True)
WANT_TO = Modal("", "want to", "wants to", "wollen")
WANTED_TO = Modal("", "want to", "wanted to", "wollen", is_past=True)
MAY = Modal("may", "", "", "dürfen")
SHOULD = Modal("should", "", "", "sollen")
WOULD_LIKE_TO = Modal("would", "like to", "", "möchten")
PRESENT_MODALS = (CAN, WANT_TO, MAY, SHOULD, WOULD_LIKE_TO, MUST)
PAST_MODALS = (COULD, HAD_TO, WANTED_TO)
# "must not" forbids, but "muss nicht" permits; "may" has different meanings in questions and statements.
MODALS_TO_NEGATE = (CAN, WANT_TO, SHOULD)
