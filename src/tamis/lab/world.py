"""The lab's world as tables: what there is, how it is called, and the sentences about it.

Everything here is data, so that later code can import it: class vocabularies for zero-shot tests come from
`OBJECTS`, caption templates for training from `CAPTIONS_WITH_PLACE` and `CAPTIONS_WITHOUT_PLACE`. How things
*look* is in `objects` and `places`, keyed by the same names; a test checks that neither side has a name that
the other lacks.
"""

from dataclasses import dataclass

RGB = tuple[int, int, int]


@dataclass(frozen=True)
class Noun:
    """An object class: how it is called, and whether it is small enough to lie on a table."""

    one: str
    many: str
    small: bool = False


@dataclass(frozen=True)
class Place:
    """A place: a noun for "a beach with two cats", and phrases for "two cats on a beach".

    `on_top` holds further phrases that are only said of small things: "an apple on a kitchen table".
    """

    noun: str
    phrases: tuple[str, ...]
    on_top: tuple[str, ...] = ()


@dataclass(frozen=True)
class Relation:
    """Where the viewer sees the subject: `phrases` follow the subject, `inverse` the other object."""

    phrases: tuple[str, ...]
    inverse: tuple[str, ...]


# Commonest first: a pool's Zipf law takes the rank of a class from its place in this table. There is
# deliberately no "table", "orange" or "glasses": the first is part of a place, the second a colour, the third
# has no singular.
_NOUNS: tuple[Noun, ...] = (
    Noun("dog", "dogs"),
    Noun("car", "cars"),
    Noun("cat", "cats"),
    Noun("house", "houses"),
    Noun("flower", "flowers"),
    Noun("tree", "trees"),
    Noun("shirt", "shirts", small=True),
    Noun("bird", "birds"),
    Noun("chair", "chairs"),
    Noun("apple", "apples", small=True),
    Noun("book", "books", small=True),
    Noun("sofa", "sofas"),
    Noun("hat", "hats", small=True),
    Noun("bus", "buses"),
    Noun("fish", "fish", small=True),
    Noun("lamp", "lamps", small=True),
    Noun("bicycle", "bicycles"),
    Noun("bottle", "bottles", small=True),
    Noun("mug", "mugs", small=True),
    Noun("butterfly", "butterflies"),
    Noun("truck", "trucks"),
    Noun("bed", "beds"),
    Noun("clock", "clocks", small=True),
    Noun("airplane", "airplanes"),
    Noun("guitar", "guitars"),
    Noun("rabbit", "rabbits"),
    Noun("umbrella", "umbrellas"),
    Noun("candle", "candles", small=True),
    Noun("sailboat", "sailboats"),
    Noun("elephant", "elephants"),
    Noun("strawberry", "strawberries", small=True),
    Noun("castle", "castles"),
    Noun("sheep", "sheep"),
    Noun("banana", "bananas", small=True),
    Noun("owl", "owls"),
    Noun("key", "keys", small=True),
    Noun("mushroom", "mushrooms", small=True),
    Noun("pencil", "pencils", small=True),
    Noun("turtle", "turtles"),
    Noun("teapot", "teapots", small=True),
    Noun("hammer", "hammers", small=True),
    Noun("cactus", "cacti"),
    Noun("helicopter", "helicopters"),
    Noun("carrot", "carrots", small=True),
    Noun("giraffe", "giraffes"),
    Noun("rocket", "rockets"),
    Noun("octopus", "octopuses"),
    Noun("snail", "snails"),
)
OBJECTS: dict[str, Noun] = {noun.one: noun for noun in _NOUNS}

# What a vague caption calls them: (one, many, members); every class is in one group.
GROUPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "animal": (
        "an animal", "some animals",
        ("dog", "cat", "bird", "fish", "butterfly", "rabbit", "elephant", "sheep", "owl", "turtle", "giraffe",
         "octopus", "snail"),
    ),
    "vehicle": (
        "a vehicle", "some vehicles",
        ("car", "bus", "bicycle", "truck", "airplane", "sailboat", "helicopter", "rocket"),
    ),
    "building": ("a building", "some buildings", ("house", "castle")),
    "plant": ("a plant", "some plants", ("flower", "tree", "cactus")),
    "clothing": ("a piece of clothing", "some pieces of clothing", ("shirt", "hat")),
    "furniture": ("a piece of furniture", "some pieces of furniture", ("chair", "sofa", "bed")),
    "food": ("something to eat", "things to eat", ("apple", "strawberry", "banana", "carrot", "mushroom")),
    "container": ("a container", "some containers", ("bottle", "mug", "teapot")),
    "household object": (
        "a household object", "some household objects",
        ("book", "lamp", "clock", "candle", "key", "pencil", "hammer", "guitar", "umbrella"),
    ),
}  # fmt: skip

# English's eleven basic colour words. Any twelfth (turquoise, gold) would be someone else's blue or yellow,
# and a colour that two people name differently is not ground truth.
COLOURS: dict[str, RGB] = {
    "red": (216, 38, 38),
    "orange": (250, 130, 5),
    "yellow": (254, 214, 20),
    "green": (44, 160, 60),
    "blue": (34, 98, 224),
    "purple": (130, 55, 184),
    "pink": (255, 128, 184),
    "brown": (122, 74, 38),
    "black": (36, 36, 40),
    "white": (250, 250, 250),
    "grey": (138, 141, 147),
}

# Which colours a person takes for each other most easily, by hue and by lightness.
NEAR_COLOURS: dict[str, tuple[str, ...]] = {
    "red": ("orange", "brown", "pink"),
    "orange": ("red", "yellow", "brown"),
    "yellow": ("orange", "white"),
    "green": ("blue", "grey"),
    "blue": ("purple", "green"),
    "purple": ("blue", "pink"),
    "pink": ("red", "purple", "white"),
    "brown": ("red", "black", "orange"),
    "black": ("brown", "grey"),
    "white": ("grey", "yellow"),
    "grey": ("white", "black"),
}

PLACES: dict[str, Place] = {
    "beach": Place("beach", ("on a beach", "at the beach", "on the sand by the sea")),
    "forest": Place("forest", ("in a forest", "in the woods", "in a dark forest")),
    "street": Place("street", ("on a street", "in the street", "on a city street")),
    "kitchen": Place("kitchen", ("in a kitchen", "in the kitchen"), ("on a kitchen table", "on the kitchen table")),
    # Not "snowy field": language identifiers take it for Polish.
    "snow": Place("field of snow", ("in the snow", "in a field of snow", "on a cold winter day")),
    "desert": Place("desert", ("in a desert", "in the desert", "among the sand dunes")),
    "night": Place("starry night", ("under the night sky", "at night under the stars", "on a starry night")),
    "meadow": Place("green meadow", ("in a meadow", "on the grass", "in a green meadow")),
    "mountains": Place("mountain valley", ("in the mountains", "among snowy mountains", "in a mountain valley")),
    "living room": Place("living room", ("in a living room", "in the living room", "on a rug in a living room")),
    "library": Place("library", ("in a library", "in an old library", "among the shelves of a library")),
    "lake": Place("lake shore", ("by a lake", "at the lake", "on the shore of a lake")),
}

INDOORS = frozenset({"kitchen", "living room", "library"})

RELATIONS: dict[str, Relation] = {
    "left of": Relation(("to the left of", "left of", "on the left of"), ("to the right of", "right of")),
    "right of": Relation(("to the right of", "right of", "on the right of"), ("to the left of", "left of")),
    "above": Relation(("above", "floating above", "high above"), ("below", "underneath")),
    "below": Relation(("below", "underneath", "under"), ("above", "floating above")),
    "next to": Relation(("next to", "beside", "near"), ("next to", "beside", "near")),
    "in front of": Relation(("in front of",), ("behind",)),
}

# "A couple of" takes a plural verb and so fits every template; "a pair of" does not. One is said by the
# article.
COUNTS: dict[int, tuple[str, ...]] = {2: ("two", "two", "two", "a couple of"), 3: ("three",), 4: ("four",)}

# (weight, template). `{things}` is the whole noun phrase with its relation ("two red apples", "a blue car
# next to a tree"), `{bare}` the same without its first article, `{place}` a phrase ("on a beach"),
# `{scenery}` the place's noun with its article ("a beach"), `{spot}` without it; `{are}` agrees with the
# count. The first table says where, the second does not.
CAPTIONS_WITH_PLACE: tuple[tuple[float, str], ...] = (
    (6, "{things} {place}"),
    (3, "a photo of {things} {place}"),
    (1, "a picture of {things} {place}"),
    (1, "there {are} {things} {place}"),
    (1, "{place}, there {are} {things}"),
    (1, "{scenery} with {things}"),
    (1, "a drawing of {things} {place}"),
    (1, "{bare}, {spot}"),
    (1, "{things} seen {place}"),
)
CAPTIONS_WITHOUT_PLACE: tuple[tuple[float, str], ...] = (
    (4, "a photo of {things}"),
    (2, "an image of {things}"),
    (1, "a picture that shows {things}"),
    (1, "a close-up of {things}"),
    (1, "here {are} {things}"),
    (1, "a lovely drawing of {things}"),
)

# Fluent sentences that no picture can show.
ABSTRACT_WORDS: dict[str, tuple[str, ...]] = {
    "idea": (
        "idea", "promise", "memory", "question", "decision", "principle", "doubt", "hope", "truth", "theory",
        "tradition", "opinion", "reason", "belief", "mistake", "possibility",
    ),
    "value": (
        "freedom", "patience", "justice", "trust", "courage", "wisdom", "loyalty", "ambition", "honesty",
        "progress", "gratitude", "curiosity", "responsibility", "luck", "fairness", "silence",
    ),
    "verb": (
        "matters", "changes everything", "cannot be taught", "takes time", "asks for nothing", "outlives us",
        "is never finished", "explains itself", "comes at a cost", "begins with doubt",
    ),
    "people": ("we", "most of us", "they", "you", "the wise", "those who wait"),
    "act": (
        "remember", "understand", "forget", "believe", "imagine", "regret", "explain", "know", "feel", "hide",
    ),
    "adjective": (
        "inevitable", "possible", "misunderstood", "worth it", "hard to explain", "rare", "fashionable",
    ),
    "comparative": (
        "better", "simpler", "more difficult", "less certain", "more important", "rarer", "older",
    ),
    "time": (
        "in the long run", "sooner or later", "once and for all", "these days", "as always", "in the end",
    ),
}  # fmt: skip
ABSTRACT_CAPTIONS: tuple[str, ...] = (
    "{a_idea} whose time has come",
    "why {value} {verb}",
    "{value} {verb} {time}",
    "the {idea} that {people} {act}",
    "how {value} became {adjective}",
    "{value} is {comparative} than {value_2}",
    "there is no {value} without {value_2}",
    "what {people} {act} about {value}",
    "on the {idea} of {value}",
    "a brief history of {value} and {value_2}",
    "everything {people} {act} is {adjective} {time}",
    "{time}, {value} {verb}",
    "the difference between {value} and {value_2}",
    "{a_idea} about {value} that {verb}",
    "all you need to know about {value} this year",
)

# True of many pictures: they name a group or say whether it is indoors, and no object, colour or place.
VAGUE_CAPTIONS: tuple[str, ...] = (
    "a photo of {thing}",
    "{thing} {where}",
    "{thing} in a picture",
    "there {are} {thing} {where}",
    "a nice picture of {thing}",
    "an image with {thing} in it",
    "a picture taken {where}",
    "something to look at {where}",
)

# What sellers and agencies lay over pictures so that nobody uses them.
WATERMARKS: tuple[str, ...] = (
    "labstock", "PREVIEW", "stock photo", "SAMPLE", "DO NOT COPY", "pixbank.net", "(c) L. Arp", "agency proof",
    "draft only", "www.imago.lab", "EVALUATION", "shotbox",
)  # fmt: skip

# What gets stamped on the web's images and has nothing to do with them.
STAMPS: tuple[str, ...] = (
    "SALE 50% OFF", "www.pics.com", "BREAKING NEWS", "Click to enlarge", "Sold out", "Free shipping",
    "Happy New Year", "Stock footage", "SAMPLE", "Follow us", "Volume 3", "Chapter One", "Best of 2019",
    "Subscribe now", "Copyright 2014", "Order today", "PREVIEW", "Watch later", "New arrivals",
    "Download PDF", "Monday morning", "info@mail.net", "Page 12 of 48", "Call 555 0199", "Terms apply",
    "Summer course", "Limited offer", "do not copy", "Jazz Festival", "Annual report", "Happy Birthday",
    "Read more", "Episode 7", "Grand opening", "MADE IN EU", "No refunds", "Thank you!", "Good vibes only",
    "License 4.0", "Conference 2021",
)  # fmt: skip
