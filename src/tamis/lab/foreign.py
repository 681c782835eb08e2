"""The world in German, French, Spanish and Italian: captions that a rule for English should turn away."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tamis.lab.scenes import Scene
from tamis.lab.world import COLOURS, OBJECTS, PLACES


@dataclass(frozen=True)
class _Language:
    """Enough of a language for "a red dog on a beach".

    Attributes:
        nouns: class name to (article with noun, gender), gender m, f or n.
        colours: colour to its form for each gender.
        places: place to a phrase.
        templates: sentences around `{thing}` and `{place}`.
        colour_first: whether the adjective stands before the noun.
    """

    nouns: dict[str, tuple[str, str]]
    colours: dict[str, dict[str, str]]
    places: dict[str, str]
    templates: tuple[str, ...]
    colour_first: bool = False


def foreign_caption(scene: Scene, rng: np.random.Generator) -> str:
    """Describe one subject of the scene in a language other than English."""
    language = _LANGUAGES[int(rng.integers(len(_LANGUAGES)))]
    phrase, gender = language.nouns[scene.subject]
    colour = language.colours[scene.colour][gender]
    article, noun = phrase.split(" ", 1) if language.colour_first else (phrase, "")
    thing = f"{article} {colour} {noun}".strip()
    template = language.templates[int(rng.integers(len(language.templates)))]
    caption = template.format(thing=thing, place=language.places[scene.place])
    return caption[0].upper() + caption[1:] if rng.random() < 0.5 else caption


def _table(names: Iterable[str], rows: str) -> dict[str, str]:
    """Pair the world's names, in their order, with the words of the rows, separated by commas."""
    words = [word.strip() for word in rows.replace("\n", ",").split(",") if word.strip()]
    return dict(zip(names, words, strict=True))


def _nouns(rows: str, neuter: str = "") -> dict[str, tuple[str, str]]:
    """The article gives the gender away, but for German "ein"."""
    genders = dict.fromkeys(neuter.split(), "n")
    return {
        name: (phrase, "f" if phrase.startswith(("une ", "una ", "un'", "eine ")) else genders.get(name, "m"))
        for name, phrase in _table(OBJECTS, rows).items()
    }


def _colours(rows: str) -> dict[str, dict[str, str]]:
    """One row per gender, m, f and (where the language has it) n; each has a word per colour."""
    forms = [dict(zip(COLOURS, row.split(), strict=True)) for row in rows.strip().splitlines()]
    return {name: {gender: form[name] for gender, form in zip("mfn", forms, strict=False)} for name in COLOURS}


# Rows are in the order of OBJECTS, COLOURS and PLACES; a missing word fails at import.
_GERMAN = _Language(
    nouns=_nouns(
        """ein Hund, ein Auto, eine Katze, ein Haus, eine Blume, ein Baum, ein Hemd, ein Vogel
        ein Stuhl, ein Apfel, ein Buch, ein Sofa, ein Hut, ein Bus, ein Fisch, eine Lampe
        ein Fahrrad, eine Flasche, ein Becher, ein Schmetterling, ein Lastwagen, ein Bett, ein Wecker
        ein Flugzeug
        eine Gitarre, ein Hase, ein Regenschirm, eine Kerze, ein Segelboot, ein Elefant, eine Erdbeere
        eine Burg
        ein Schaf, eine Banane, eine Eule, ein Schlüssel, ein Pilz, ein Bleistift, eine Schildkröte
        eine Teekanne
        ein Hammer, ein Kaktus, ein Hubschrauber, eine Karotte, eine Giraffe, eine Rakete, ein Tintenfisch
        eine Schnecke""",
        neuter="car house shirt book sofa bicycle bed airplane sailboat sheep",
    ),
    colours=_colours("""
        roter oranger gelber grüner blauer violetter rosafarbener brauner schwarzer weißer grauer
        rote orange gelbe grüne blaue violette rosafarbene braune schwarze weiße graue
        rotes oranges gelbes grünes blaues violettes rosafarbenes braunes schwarzes weißes graues
    """),
    places=_table(
        PLACES,
        """am Strand, im Wald, auf der Straße, in der Küche, im Schnee, in der Wüste, unter dem Sternenhimmel
        auf der Wiese, in den Bergen, im Wohnzimmer, in der Bücherei, am Ufer des Sees""",
    ),
    templates=(
        "{thing} {place}",
        "das ist {thing} {place}",
        "hier steht {thing} {place}",
        "auf dem Bild ist {thing} {place} zu sehen",
        "{thing} {place}, aufgenommen im Sommer",
    ),
    colour_first=True,
)
_FRENCH = _Language(
    nouns=_nouns(
        """un chien, une voiture, un chat, une maison, une fleur, un arbre, une chemise, un oiseau
        une chaise, une pomme, un livre, un canapé, un chapeau, un autobus, un poisson, une lampe
        un vélo, une bouteille, un gobelet, un papillon, un camion, un lit, un réveil, un avion
        une guitare, un lapin, un parapluie, une bougie, un voilier, un éléphant, une fraise, un château
        un mouton, une banane, un hibou, une clé, un champignon, un crayon, une tortue, une théière
        un marteau, un cactus, un hélicoptère, une carotte, une girafe, une fusée, un poulpe, un escargot""",
    ),
    colours=_colours("""
        rouge orange jaune vert bleu violet rose marron noir blanc gris
        rouge orange jaune verte bleue violette rose marron noire blanche grise
    """),
    places=_table(
        PLACES,
        """sur la plage, dans la forêt, dans la rue, dans la cuisine, dans la neige, dans le désert
        sous le ciel étoilé, dans la prairie, à la montagne, dans le salon, dans la bibliothèque
        au bord du lac""",
    ),
    templates=(
        "{thing} {place}",
        "voici {thing} {place}",
        "une photo qui montre {thing} {place}",
        "il y a {thing} {place}",
        "on voit {thing} {place}",
    ),
)
_SPANISH = _Language(
    nouns=_nouns(
        """un perro, un coche, un gato, una casa, una flor, un árbol, una camisa, un pájaro
        una silla, una manzana, un libro, un sofá, un sombrero, un autobús, un pez, una lámpara
        una bicicleta, una botella, una taza, una mariposa, un camión, una cama, un despertador, un avión
        una guitarra, un conejo, un paraguas, una vela, un velero, un elefante, una fresa, un castillo
        una oveja, un plátano, un búho, una llave, una seta, un lápiz, una tortuga, una tetera
        un martillo, un cactus, un helicóptero, una zanahoria, una jirafa, un cohete, un pulpo, un caracol""",
    ),
    colours=_colours("""
        rojo naranja amarillo verde azul morado rosa marrón negro blanco gris
        roja naranja amarilla verde azul morada rosa marrón negra blanca gris
    """),
    places=_table(
        PLACES,
        """en la playa, en el bosque, en la calle, en la cocina, en la nieve, en el desierto
        bajo el cielo estrellado, en el prado, en las montañas, en la sala de estar, en la biblioteca
        a la orilla del lago""",
    ),
    templates=(
        "{thing} {place}",
        "esta es la foto de {thing} {place}",
        "aquí hay {thing} {place}",
        "se puede ver {thing} {place}",
        "una imagen que muestra {thing} {place}",
    ),
)
_ITALIAN = _Language(
    nouns=_nouns(
        """un cane, un'automobile, un gatto, una casa, un fiore, un albero, una camicia, un uccello
        una sedia, una mela, un libro, un divano, un cappello, un autobus, un pesce, una lampada
        una bicicletta, una bottiglia, una tazza, una farfalla, un camion, un letto, un orologio, un aereo
        una chitarra, un coniglio, un ombrello, una candela, una barca a vela, un elefante, una fragola
        un castello
        una pecora, una banana, un gufo, una chiave, un fungo, una matita, una tartaruga, una teiera
        un martello, un cactus, un elicottero, una carota, una giraffa, un razzo, un polpo, una lumaca""",
    ),
    colours=_colours("""
        rosso arancione giallo verde blu viola rosa marrone nero bianco grigio
        rossa arancione gialla verde blu viola rosa marrone nera bianca grigia
    """),
    places=_table(
        PLACES,
        """sulla spiaggia, nel bosco, per la strada, nella cucina, nella neve, nel deserto
        sotto il cielo stellato, sul prato, in montagna, nel soggiorno, nella biblioteca
        sulla riva del lago""",
    ),
    templates=(
        "{thing} {place}",
        "ecco {thing} {place}",
        "questa foto mostra {thing} {place}",
        "c'è {thing} {place}",
        "si vede {thing} {place}",
    ),
)
_LANGUAGES: tuple[_Language, ...] = (_GERMAN, _FRENCH, _SPANISH, _ITALIAN)
