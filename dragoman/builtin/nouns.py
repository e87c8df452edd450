"""The nouns, grouped by what can be done with them; each line is an entry as in a dictionary.

`brother = der Bruder, Bruders, Brüder` has article, genitive and plural. Feminine nouns omit the genitive, nouns of the
n-declension have `weak` instead, and nouns without plural omit it.
"""

from collections.abc import Iterator
from dataclasses import dataclass


def read_entries(table: str) -> Iterator[tuple[str, str]]:
    """Yields the two sides of every line."""
    for line in table.strip().splitlines():
        english, german = line.split(" = ")
        yield english.strip(), german.strip()


GENDER_OF_ARTICLE = {"der": "m", "die": "f", "das": "n"}


@dataclass(frozen=True, slots=True)
class Noun:
    """One noun, with what is needed to form its cases and plural."""

    english: str
    german: str
    gender: str
    genitive: str
    plural: str
    is_weak: bool
    kind: str


_TABLES = {
    "people": """
        man = der Mann, Mannes, Männer
        woman = die Frau, Frauen
        child = das Kind, Kindes, Kinder
        boy = der Junge, weak, Jungen
        girl = das Mädchen, Mädchens, Mädchen
        brother = der Bruder, Bruders, Brüder
        sister = die Schwester, Schwestern
        father = der Vater, Vaters, Väter
        mother = die Mutter, Mütter
        son = der Sohn, Sohnes, Söhne
        daughter = die Tochter, Töchter
        uncle = der Onkel, Onkels, Onkel
        aunt = die Tante, Tanten
        grandfather = der Großvater, Großvaters, Großväter
        grandmother = die Großmutter, Großmütter
        friend = der Freund, Freundes, Freunde
        neighbour = der Nachbar, weak, Nachbarn
        teacher = der Lehrer, Lehrers, Lehrer
        doctor = der Arzt, Arztes, Ärzte
        student = der Student, weak, Studenten
        farmer = der Bauer, weak, Bauern
        judge = der Richter, Richters, Richter
        engineer = der Ingenieur, Ingenieurs, Ingenieure
        baker = der Bäcker, Bäckers, Bäcker
        artist = der Künstler, Künstlers, Künstler
        writer = der Schriftsteller, Schriftstellers, Schriftsteller
        journalist = der Journalist, weak, Journalisten
        policeman = der Polizist, weak, Polizisten
        colleague = der Kollege, weak, Kollegen
        tourist = der Tourist, weak, Touristen
        customer = der Kunde, weak, Kunden
        guest = der Gast, Gastes, Gäste
        lawyer = der Anwalt, Anwalts, Anwälte
        soldier = der Soldat, weak, Soldaten
        king = der König, Königs, Könige
        queen = die Königin, Königinnen
        prince = der Prinz, weak, Prinzen
        princess = die Prinzessin, Prinzessinnen
        witness = der Zeuge, weak, Zeugen
        expert = der Experte, weak, Experten
        nurse = die Krankenschwester, Krankenschwestern
        actress = die Schauspielerin, Schauspielerinnen
        secretary = die Sekretärin, Sekretärinnen
        waiter = der Kellner, Kellners, Kellner
        boss = der Chef, Chefs, Chefs
        worker = der Arbeiter, Arbeiters, Arbeiter
        gardener = der Gärtner, Gärtners, Gärtner
        musician = der Musiker, Musikers, Musiker
        poet = der Dichter, Dichters, Dichter
        hunter = der Jäger, Jägers, Jäger
        pilot = der Pilot, weak, Piloten
        thief = der Dieb, Diebes, Diebe
        professor = der Professor, Professors, Professoren
        """,
    "animals": """
        dog = der Hund, Hundes, Hunde
        cat = die Katze, Katzen
        horse = das Pferd, Pferdes, Pferde
        cow = die Kuh, Kühe
        bird = der Vogel, Vogels, Vögel
        mouse = die Maus, Mäuse
        bear = der Bär, weak, Bären
        lion = der Löwe, weak, Löwen
        rabbit = das Kaninchen, Kaninchens, Kaninchen
        monkey = der Affe, weak, Affen
        pig = das Schwein, Schweines, Schweine
        duck = die Ente, Enten
        goat = die Ziege, Ziegen
        wolf = der Wolf, Wolfes, Wölfe
        fox = der Fuchs, Fuchses, Füchse
        elephant = der Elefant, weak, Elefanten
        donkey = der Esel, Esels, Esel
        goose = die Gans, Gänse
        """,
    "fruits": """
        apple = der Apfel, Apfels, Äpfel
        pear = die Birne, Birnen
        orange = die Orange, Orangen
        banana = die Banane, Bananen
        cherry = die Kirsche, Kirschen
        strawberry = die Erdbeere, Erdbeeren
        """,
    "foods": """
        egg = das Ei, Eies, Eier
        cake = der Kuchen, Kuchens, Kuchen
        potato = die Kartoffel, Kartoffeln
        tomato = die Tomate, Tomaten
        carrot = die Karotte, Karotten
        sausage = die Wurst, Würste
        biscuit = der Keks, Kekses, Kekse
        roll = das Brötchen, Brötchens, Brötchen
        soup = die Suppe, Suppen
        """,
    "groceries": """
        bread = das Brot, Brotes
        cheese = der Käse, Käses
        meat = das Fleisch, Fleisches
        rice = der Reis, Reises
        butter = die Butter
        chocolate = die Schokolade
        fruit = das Obst, Obstes
        honey = der Honig, Honigs
        """,
    "drinks": """
        water = das Wasser, Wassers
        milk = die Milch
        coffee = der Kaffee, Kaffees
        tea = der Tee, Tees
        beer = das Bier, Bieres
        wine = der Wein, Weines
        juice = der Saft, Saftes
        lemonade = die Limonade
        """,
    "texts": """
        book = das Buch, Buches, Bücher
        letter = der Brief, Briefes, Briefe
        newspaper = die Zeitung, Zeitungen
        novel = der Roman, Romans, Romane
        magazine = die Zeitschrift, Zeitschriften
        poem = das Gedicht, Gedichtes, Gedichte
        story = die Geschichte, Geschichten
        report = der Bericht, Berichtes, Berichte
        message = die Nachricht, Nachrichten
        text = der Text, Textes, Texte
        article = der Artikel, Artikels, Artikel
        contract = der Vertrag, Vertrages, Verträge
        """,
    "clothes": """
        shirt = das Hemd, Hemdes, Hemden
        coat = der Mantel, Mantels, Mäntel
        dress = das Kleid, Kleides, Kleider
        hat = der Hut, Hutes, Hüte
        jacket = die Jacke, Jacken
        skirt = der Rock, Rockes, Röcke
        shoe = der Schuh, Schuhes, Schuhe
        sock = die Socke, Socken
        sweater = der Pullover, Pullovers, Pullover
        scarf = der Schal, Schals, Schals
        glove = der Handschuh, Handschuhes, Handschuhe
        blouse = die Bluse, Blusen
        suit = der Anzug, Anzugs, Anzüge
        cap = die Mütze, Mützen
        boot = der Stiefel, Stiefels, Stiefel
        belt = der Gürtel, Gürtels, Gürtel
        """,
    "furniture": """
        table = der Tisch, Tisches, Tische
        chair = der Stuhl, Stuhles, Stühle
        bed = das Bett, Bettes, Betten
        cupboard = der Schrank, Schrankes, Schränke
        sofa = das Sofa, Sofas, Sofas
        shelf = das Regal, Regals, Regale
        armchair = der Sessel, Sessels, Sessel
        bench = die Bank, Bänke
        """,
    "dishes": """
        cup = die Tasse, Tassen
        plate = der Teller, Tellers, Teller
        glass = das Glas, Glases, Gläser
        bottle = die Flasche, Flaschen
        bowl = die Schüssel, Schüsseln
        vase = die Vase, Vasen
        pot = der Topf, Topfes, Töpfe
        pan = die Pfanne, Pfannen
        jug = der Krug, Kruges, Krüge
        """,
    "items": """
        key = der Schlüssel, Schlüssels, Schlüssel
        knife = das Messer, Messers, Messer
        spoon = der Löffel, Löffels, Löffel
        fork = die Gabel, Gabeln
        umbrella = der Regenschirm, Regenschirms, Regenschirme
        pencil = der Bleistift, Bleistifts, Bleistifte
        ball = der Ball, Balles, Bälle
        doll = die Puppe, Puppen
        ring = der Ring, Ringes, Ringe
        coin = die Münze, Münzen
        basket = der Korb, Korbes, Körbe
        ticket = die Fahrkarte, Fahrkarten
        map = die Karte, Karten
        gift = das Geschenk, Geschenks, Geschenke
        candle = die Kerze, Kerzen
        blanket = die Decke, Decken
        pillow = das Kissen, Kissens, Kissen
        photo = das Foto, Fotos, Fotos
        passport = der Pass, Passes, Pässe
        rope = das Seil, Seiles, Seile
        """,
    "openables": """
        door = die Tür, Türen
        window = das Fenster, Fensters, Fenster
        box = die Kiste, Kisten
        suitcase = der Koffer, Koffers, Koffer
        bag = die Tasche, Taschen
        gate = das Tor, Tores, Tore
        drawer = die Schublade, Schubladen
        parcel = das Paket, Paketes, Pakete
        """,
    "devices": """
        computer = der Computer, Computers, Computer
        radio = das Radio, Radios, Radios
        camera = die Kamera, Kameras
        lamp = die Lampe, Lampen
        television = der Fernseher, Fernsehers, Fernseher
        machine = die Maschine, Maschinen
        heater = die Heizung, Heizungen
        fridge = der Kühlschrank, Kühlschrankes, Kühlschränke
        printer = der Drucker, Druckers, Drucker
        oven = der Ofen, Ofens, Öfen
        """,
    "vehicles": """
        car = das Auto, Autos, Autos
        bicycle = das Fahrrad, Fahrrades, Fahrräder
        motorcycle = das Motorrad, Motorrades, Motorräder
        boat = das Boot, Bootes, Boote
        truck = der Lastwagen, Lastwagens, Lastwagen
        tractor = der Traktor, Traktors, Traktoren
        """,
    "transports": """
        bus = der Bus, Busses, Busse
        train = der Zug, Zuges, Züge
        tram = die Straßenbahn, Straßenbahnen
        plane = das Flugzeug, Flugzeugs, Flugzeuge
        ship = das Schiff, Schiffes, Schiffe
        ferry = die Fähre, Fähren
        """,
    "rooms": """
        kitchen = die Küche, Küchen
        room = das Zimmer, Zimmers, Zimmer
        cellar = der Keller, Kellers, Keller
        garage = die Garage, Garagen
        flat = die Wohnung, Wohnungen
        office = das Büro, Büros, Büros
        bathroom = das Badezimmer, Badezimmers, Badezimmer
        classroom = das Klassenzimmer, Klassenzimmers, Klassenzimmer
        """,
    "buildings": """
        house = das Haus, Hauses, Häuser
        school = die Schule, Schulen
        church = die Kirche, Kirchen
        hospital = das Krankenhaus, Krankenhauses, Krankenhäuser
        hotel = das Hotel, Hotels, Hotels
        restaurant = das Restaurant, Restaurants, Restaurants
        museum = das Museum, Museums, Museen
        theatre = das Theater, Theaters, Theater
        library = die Bibliothek, Bibliotheken
        castle = das Schloss, Schlosses, Schlösser
        factory = die Fabrik, Fabriken
        tower = der Turm, Turmes, Türme
        cinema = das Kino, Kinos, Kinos
        shop = der Laden, Ladens, Läden
        """,
    "areas": """
        garden = der Garten, Gartens, Gärten
        city = die Stadt, Städte
        village = das Dorf, Dorfes, Dörfer
        park = der Park, Parks, Parks
        forest = der Wald, Waldes, Wälder
        valley = das Tal, Tales, Täler
        zoo = der Zoo, Zoos, Zoos
        """,
    "waypoints": """
        lake = der See, Sees, Seen
        river = der Fluss, Flusses, Flüsse
        beach = der Strand, Strandes, Strände
        station = der Bahnhof, Bahnhofs, Bahnhöfe
        airport = der Flughafen, Flughafens, Flughäfen
        bus stop = die Haltestelle, Haltestellen
        coast = die Küste, Küsten
        """,
    "parts": """
        roof = das Dach, Daches, Dächer
        wall = die Wand, Wände
        entrance = der Eingang, Eingangs, Eingänge
        floor = der Boden, Bodens, Böden
        ceiling = die Decke, Decken
        staircase = die Treppe, Treppen
        """,
    "ideas": """
        question = die Frage, Fragen
        answer = die Antwort, Antworten
        problem = das Problem, Problems, Probleme
        idea = die Idee, Ideen
        plan = der Plan, Planes, Pläne
        mistake = der Fehler, Fehlers, Fehler
        rule = die Regel, Regeln
        word = das Wort, Wortes, Wörter
        solution = die Lösung, Lösungen
        joke = der Witz, Witzes, Witze
        task = die Aufgabe, Aufgaben
        proposal = der Vorschlag, Vorschlages, Vorschläge
        """,
    "events": """
        party = die Party, Partys
        concert = das Konzert, Konzertes, Konzerte
        meeting = die Sitzung, Sitzungen
        exam = die Prüfung, Prüfungen
        journey = die Reise, Reisen
        wedding = die Hochzeit, Hochzeiten
        dinner = das Abendessen, Abendessens, Abendessen
        game = das Spiel, Spieles, Spiele
        film = der Film, Filmes, Filme
        conversation = das Gespräch, Gespräches, Gespräche
        lesson = die Stunde, Stunden
        trip = der Ausflug, Ausflugs, Ausflüge
        """,
    "causes": """
        rain = der Regen, Regens
        storm = der Sturm, Sturmes
        snow = der Schnee, Schnees
        weather = das Wetter, Wetters
        fog = der Nebel, Nebels
        heat = die Hitze
        cold = die Kälte
        noise = der Lärm, Lärms
        strike = der Streik, Streiks
        danger = die Gefahr
        """,
}

# Mass nouns have no article where a countable noun has "a".
MASS_KINDS = frozenset({"groceries", "drinks"})
PLACE_KINDS = ("rooms", "buildings", "areas", "waypoints")


def _read_noun(kind: str, english: str, german: str) -> Noun:
    citation, *forms = german.split(", ")
    article, lemma = citation.split(" ")
    gender = GENDER_OF_ARTICLE[article]
    is_weak = "weak" in forms
    if gender == "f":
        forms.insert(0, lemma)
    genitive, plural = forms[0], forms[1] if len(forms) > 1 else ""
    # In the n-declension the genitive looks like the plural: des Jungen, die Jungen.
    return Noun(english, lemma, gender, plural if is_weak else genitive, plural, is_weak, kind)


NOUNS: dict[str, tuple[Noun, ...]] = {
    kind: tuple(_read_noun(kind, english, german) for english, german in read_entries(table))
    for kind, table in _TABLES.items()
}
