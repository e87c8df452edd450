"""The verbs, grouped by their objects, with their irregular forms.

English: `take +along, took` has an irregular past and a particle, which follows a pronoun (takes it along).
German: `mit/nehmen, nimm-, mitgenommen` has a separable prefix, the stem of "er nimmt", and an irregular participle;
a participle after `ist` marks the perfect with sein. After `|` are the kinds of nouns that can be the object.
"""

from dataclasses import dataclass

from dragoman.builtin.nouns import read_entries


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


_TRANSITIVE = """
    admire = bewundern | people buildings
    ask = fragen | people
    bring +along, brought = mit/bringen, mitgebracht | items fruits foods groceries drinks texts
    build, built = bauen | buildings
    buy, bought = kaufen | items texts clothes furniture dishes devices vehicles fruits foods groceries drinks
    call = an/rufen, angerufen | people
    carry = tragen, träg-, getragen | items furniture dishes openables
    check = überprüfen | texts devices vehicles ideas
    choose, chose = wählen | items clothes texts
    clean = putzen | rooms furniture
    close = schließen, geschlossen | openables
    copy = kopieren | texts ideas
    describe = beschreiben, beschrieben | people animals ideas areas
    discuss = besprechen, besprich-, besprochen | ideas
    draw, drew = zeichnen | people animals buildings
    drink, drank = trinken, getrunken | drinks
    eat, ate = essen, iss-, gegessen | fruits foods groceries
    explain = erklären | ideas
    feed, fed = füttern | animals
    find, found = finden, gefunden | people animals items texts clothes ideas
    forget, forgot = vergessen, vergiss-, vergessen | items ideas people
    greet = begrüßen | people
    hang +up, hung = auf/hängen | clothes
    hate = hassen | people ideas events
    hear, heard = hören | people animals
    hide, hid = verstecken | items texts
    hold, held = halten, hält-, gehalten | items dishes
    hug, hugged = umarmen | people
    hunt = jagen | animals
    invite = ein/laden, läd-, eingeladen | people
    know, knew = kennen, gekannt | people areas texts
    look for = suchen | people animals items clothes texts
    lose, lost = verlieren, verloren | items clothes texts
    love = lieben | people animals
    meet, met = treffen, triff-, getroffen | people
    miss = verpassen | transports events
    need = brauchen | items clothes furniture dishes devices vehicles people
    open = öffnen | openables
    order = bestellen | fruits foods drinks groceries
    paint = malen | people animals buildings transports fruits
    pay, paid = bezahlen | people
    photograph = fotografieren | people animals buildings transports
    pick +up = ab/holen | people
    prepare = vor/bereiten, vorbereitet | events
    print = drucken | texts
    read, read = lesen, lies-, gelesen | texts
    receive = bekommen, bekommen | texts items
    rent = mieten | vehicles
    repair = reparieren | devices vehicles openables
    save = retten | people animals
    see, saw = sehen, sieh-, gesehen | people animals vehicles buildings transports
    sell, sold = verkaufen | items texts clothes furniture dishes devices vehicles fruits foods groceries
    serve = servieren | foods drinks groceries
    share = teilen | fruits foods groceries
    steal, stole = stehlen, stiehl-, gestohlen | items vehicles
    support = unterstützen | people
    switch +off = aus/schalten | devices
    switch +on = ein/schalten | devices
    take, took = nehmen, nimm-, genommen | transports
    take +along, took = mit/nehmen, nimm-, mitgenommen | items clothes texts
    throw +away, threw = weg/werfen, wirf-, weggeworfen | items texts clothes
    tidy +up = auf/räumen | rooms
    translate = übersetzen, übersetzt | texts
    try = probieren | fruits foods groceries drinks
    try +on = an/probieren | clothes
    understand, understood = verstehen, verstanden | people ideas texts
    use = benutzen | items devices dishes
    visit = besuchen | people buildings areas
    wake +up, woke = wecken | people
    warn = warnen | people
    wash = waschen, wäsch-, gewaschen | clothes dishes vehicles
    watch = beobachten | people animals
    wear, wore = tragen, träg-, getragen | clothes
    write +down, wrote = auf/schreiben, aufgeschrieben | ideas texts
    """

_DATIVE = """
    answer = antworten | people
    believe = glauben | people
    congratulate = gratulieren | people
    follow = folgen, ist gefolgt | people animals vehicles
    help = helfen, hilf-, geholfen | people animals
    listen to = zu/hören | people
    thank = danken | people
    trust = vertrauen | people
    """

# These take a recipient in the dative besides their object: er gibt dem Kind den Ball.
_DITRANSITIVE = """
    bring, brought = bringen, gebracht | items texts clothes fruits foods drinks groceries
    give, gave = geben, gib-, gegeben | items texts clothes fruits foods dishes
    lend, lent = leihen, geliehen | items texts clothes vehicles devices
    recommend = empfehlen, empfiehl-, empfohlen | texts drinks foods buildings
    send, sent = schicken | texts items
    show, showed = zeigen | items texts clothes rooms buildings vehicles animals
    """

_INTRANSITIVE = """
    cough = husten
    cry = weinen
    dance = tanzen
    laugh = lachen
    play = spielen
    pray = beten, gebetet
    sing, sang = singen, gesungen
    sleep, slept = schlafen, schläf-, geschlafen
    smile = lächeln
    smoke = rauchen
    stay = bleiben, ist geblieben
    wait = warten
    watch TV = fern/sehen, sieh-, ferngesehen
    whisper = flüstern
    work = arbeiten
    """

# What happens to people without their choosing a way: no goal, and the perfect mostly with sein.
_CHANGES = """
    arrive = an/kommen, ist angekommen
    come back, came = zurück/kommen, ist zurückgekommen
    disappear = verschwinden, ist verschwunden
    fall asleep, fell = ein/schlafen, schläf-, ist eingeschlafen
    get up, got = auf/stehen, ist aufgestanden
    go away, went = weg/gehen, ist weggegangen
    wake up, woke = auf/wachen, ist aufgewacht
    """

_WALKING = """
    come, came = kommen, ist gekommen
    go, went = gehen, ist gegangen
    hurry = eilen, ist geeilt
    run, ran = laufen, läuf-, ist gelaufen
    """

_RIDING = """
    drive, drove = fahren, fähr-, ist gefahren
    ride, rode = reiten, ist geritten
    """

_TRAVEL = """
    drive, drove = fahren, fähr-, ist gefahren
    fly, flew = fliegen, ist geflogen
    travel, travelled = reisen, ist gereist
    """

# Events take place: the subject is the event itself.
_HAPPENING = """
    begin, began = an/fangen, fäng-, angefangen
    end = enden
    take place, took = statt/finden, stattgefunden
    """

# Something is put somewhere (accusative after a two-way preposition), then it is there (dative).
_PUTTING = """
    lay, laid = legen | texts clothes items
    place = stellen | dishes
    """

_RESTING = """
    lie, lay = liegen, gelegen | texts clothes items
    stand, stood = stehen, gestanden | dishes
    """

_SAYING = """
    believe = glauben
    hope = hoffen
    know, knew = wissen, gewusst
    say, said = sagen
    """


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
    return tuple(_read_verb(english, german, object_case) for english, german in read_entries(table))


TRANSITIVE = _read_verbs(_TRANSITIVE)
DATIVE = _read_verbs(_DATIVE, object_case="dative")
DITRANSITIVE = _read_verbs(_DITRANSITIVE)
INTRANSITIVE = _read_verbs(_INTRANSITIVE)
CHANGES = _read_verbs(_CHANGES)
WALKING = _read_verbs(_WALKING)
RIDING = _read_verbs(_RIDING)
TRAVEL = _read_verbs(_TRAVEL)
HAPPENING = _read_verbs(_HAPPENING)
PUTTING = _read_verbs(_PUTTING)
RESTING = _read_verbs(_RESTING)
SAYING = _read_verbs(_SAYING)
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
