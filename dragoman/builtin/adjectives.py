"""The adjectives, and the kinds of nouns that each can describe."""

from dataclasses import dataclass

from dragoman.builtin.nouns import read_entries


@dataclass(frozen=True, slots=True)
class Adjective:
    """One adjective; the stem takes the endings (teuer, but ein teures Auto)."""

    english: str
    german: str
    stem: str


_TABLE = """
    angry = wütend
    beautiful = schön
    big = groß
    black = schwarz
    blue = blau
    boring = langweilig
    brave = mutig
    bright = hell
    broken = kaputt
    brown = braun
    cheap = billig
    clean = sauber
    clever = klug
    cold = kalt
    comfortable = bequem
    curious = neugierig
    dangerous = gefährlich
    dark = dunkel, dunkl-
    delicious = lecker
    difficult = schwierig
    dirty = schmutzig
    empty = leer
    exciting = spannend
    expensive = teuer, teur-
    famous = berühmt
    fast = schnell
    fresh = frisch
    friendly = freundlich
    funny = lustig
    good = gut
    green = grün
    grey = grau
    happy = glücklich
    hardworking = fleißig
    healthy = gesund
    heavy = schwer
    honest = ehrlich
    hot = heiß
    hungry = hungrig
    important = wichtig
    interesting = interessant
    lazy = faul
    light = leicht
    lonely = einsam
    long = lang
    modern = modern
    narrow = schmal
    nervous = nervös
    new = neu
    nice = nett
    old = alt
    patient = geduldig
    polite = höflich
    poor = arm
    practical = praktisch
    proud = stolz
    quiet = ruhig
    red = rot
    rich = reich
    round = rund
    sad = traurig
    short = kurz
    sick = krank
    simple = einfach
    slow = langsam
    small = klein
    sour = sauer, saur-
    strange = seltsam
    strict = streng
    strong = stark
    sweet = süß
    terrible = schrecklich
    tired = müde, müd-
    ugly = hässlich
    useful = nützlich
    valuable = wertvoll
    warm = warm
    white = weiß
    wonderful = wunderbar
    yellow = gelb
    young = jung
    """


def _read_adjective(english: str, german: str) -> Adjective:
    lemma, _, stem = german.partition(", ")
    return Adjective(english, lemma, stem.removesuffix("-") or lemma)


ADJECTIVES = {english: _read_adjective(english, german) for english, german in read_entries(_TABLE)}

_COLOURS = "black blue brown green grey red white yellow"
_FITTING_WORDS = {
    "people": "angry brave clever curious famous friendly funny happy hardworking healthy honest hungry lazy lonely"
    " nervous nice old patient polite poor proud quiet rich sad sick small strict strong tired young",
    "animals": "beautiful big black brave brown clever dangerous fast grey healthy hungry lazy old quiet sick small"
    " strong tired white young",
    "fruits": "delicious fresh round sour sweet",
    "foods": "cold delicious expensive fresh good hot warm",
    "groceries": "cheap delicious fresh good",
    "drinks": "cold delicious fresh good hot sweet warm",
    "texts": "boring difficult exciting famous funny good important interesting long new old sad short strange useful",
    "clothes": "beautiful cheap clean comfortable dirty expensive modern new old practical ugly warm " + _COLOURS,
    "furniture": "beautiful big cheap clean comfortable expensive heavy modern new old practical small ugly white",
    "dishes": "clean dirty empty new old round small valuable " + _COLOURS,
    "items": "beautiful big cheap expensive light new old practical small strange useful valuable",
    "openables": "big broken brown heavy light narrow new old small ugly white",
    "devices": "broken cheap expensive good heavy modern new old practical simple small useful",
    "vehicles": "broken cheap dirty expensive fast modern new old slow " + _COLOURS,
    "transports": "comfortable empty fast modern slow",
    "rooms": "bright clean cold dark dirty narrow quiet small warm",
    "buildings": "beautiful big cheap dark empty famous modern new old small strange ugly",
    "areas": "beautiful big dangerous famous old quiet small",
    "waypoints": "beautiful clean dirty quiet",
    "parts": "beautiful broken dirty narrow new old ugly white red",
    "ideas": "clever dangerous difficult funny important interesting simple strange useful",
    "events": "boring exciting important long short terrible wonderful",
    "causes": "terrible",
}
ADJECTIVES_FITTING: dict[str, tuple[Adjective, ...]] = {
    kind: tuple(ADJECTIVES[word] for word in words.split()) for kind, words in _FITTING_WORDS.items()
}

# Temporary states of people, which can be a reason.
_MOOD_WORDS = "angry curious happy hungry lazy lonely nervous poor proud rich sad sick tired"
MOODS = tuple(ADJECTIVES[word] for word in _MOOD_WORDS.split())
