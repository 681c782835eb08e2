"""Captions: descriptions of a scene, and fluent sentences without visual content."""

from functools import cache
from typing import Any

import numpy as np

from tamis_lab.world import (
    ABSTRACT_CAPTIONS,
    ABSTRACT_WORDS,
    CAPTIONS_WITH_PLACE,
    CAPTIONS_WITHOUT_PLACE,
    COLOURS,
    COUNTS,
    GROUPS,
    INDOORS,
    OBJECTS,
    PLACES,
    RELATIONS,
    VAGUE_CAPTIONS,
    Scene,
    pick,
    pick_weighted,
    table,
)

_PLACE_SHARE = 0.7  # share of captions that name the place
_COLOURLESS_SHARE = 0.06  # share of captions without the subject's colour
_INVERSE_SHARE = 0.2  # share that says "a tree to the right of a car" if a car is left of a tree


def describe(
    scene: Scene, rng: np.random.Generator, *, with_place: bool | None = None, coloured: bool | None = None
) -> str:
    """Writes a grammatical English caption of at least three words.

    It names the subject and its count, nearly always its colour, and often the place and the other object's colour.
    Some begin with a capital or end with a full stop. `with_place` and `coloured` fix whether place and colour are
    named; a caption that would have two words names the colour anyway.
    """
    often = rng.random() < _PLACE_SHARE
    with_place = often if with_place is None else with_place
    template = pick_weighted(rng, CAPTIONS_WITH_PLACE if with_place else CAPTIONS_WITHOUT_PLACE)
    # Without article and colour, "bicycle, street" would be two words, which caption rules drop.
    by_chance = "{bare}" in template or rng.random() >= _COLOURLESS_SHARE
    coloured = by_chance if coloured is None else coloured or "{bare}" in template
    inverse = scene.relation is not None and scene.count == 1 and rng.random() < _INVERSE_SHARE
    place = PLACES[scene.place]
    phrases = place.phrases
    if place.on_top and all(OBJECTS[name].small for name in scene.objects):
        phrases += place.on_top * 2  # twice: small things are usually on top of something
    caption = template.format(
        things=_things(scene, rng, article=True, coloured=coloured, inverse=inverse),
        bare=_things(scene, rng, article=False, coloured=coloured, inverse=inverse),
        place=pick(phrases, rng),
        scenery=with_article(place.noun),
        spot=place.noun,
        are="is" if scene.count == 1 else "are",
    )
    if rng.random() < 0.15:
        caption = caption[0].upper() + caption[1:]
    if rng.random() < 0.12:
        caption += "."
    return caption


def noun_phrase(noun: str, colour: str | None, count: int, rng: np.random.Generator, *, article: bool = True) -> str:
    """ "a red apple", "two red apples", "an owl"; without article "red apple", "two red apples", "owl"."""
    words = OBJECTS[noun].one if count == 1 else OBJECTS[noun].many
    if colour is not None:
        words = f"{colour} {words}"
    if count > 1:
        return f"{pick(COUNTS[count], rng) if article else COUNTS[count][0]} {words}"
    return with_article(words) if article else words


def with_article(words: str) -> str:
    """Adds "a" or "an", by the first letter, which is right for every word in the world's tables."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def abstract_caption(rng: np.random.Generator) -> str:
    """A fluent sentence or title that no image can show: "an idea whose time has come"."""
    words = {kind: pick(choices, rng) for kind, choices in ABSTRACT_WORDS.items()}
    others = [value for value in ABSTRACT_WORDS["value"] if value != words["value"]]
    caption = pick(ABSTRACT_CAPTIONS, rng).format(
        **words, value_2=pick(others, rng), a_idea=with_article(words["idea"])
    )
    return caption[0].upper() + caption[1:] if rng.random() < 0.3 else caption


def vague_caption(scene: Scene, rng: np.random.Generator) -> tuple[str, str | None]:
    """A true caption that fits many scenes ("an animal outdoors"), and its group, a key of `GROUPS`, or None."""
    group, (one, many, _) = next(item for item in GROUPS.items() if scene.subject in item[1][2])
    template = pick(VAGUE_CAPTIONS, rng)
    caption = template.format(
        thing=one if scene.count == 1 else many,
        where="indoors" if scene.place in INDOORS else "outdoors",
        are="is" if scene.count == 1 else "are",
    )
    caption = caption[0].upper() + caption[1:] if rng.random() < 0.15 else caption
    return caption, group if "{thing}" in template else None


def _things(scene: Scene, rng: np.random.Generator, *, article: bool, coloured: bool, inverse: bool) -> str:
    colour = scene.colour if coloured else None
    if scene.relation is None or scene.other is None:
        return noun_phrase(scene.subject, colour, scene.count, rng, article=article)
    relation = RELATIONS[scene.relation]
    other_colour = scene.other_colour if rng.random() < 0.75 else None
    if inverse:
        first = noun_phrase(scene.other, other_colour, 1, rng, article=article)
        return f"{first} {pick(relation.inverse, rng)} {noun_phrase(scene.subject, colour, 1, rng)}"
    first = noun_phrase(scene.subject, colour, scene.count, rng, article=article)
    return f"{first} {pick(relation.phrases, rng)} {noun_phrase(scene.other, other_colour, 1, rng)}"


#: Feminine articles.
_FEMININE = ("une ", "una ", "un'", "eine ")


def foreign_caption(scene: Scene, rng: np.random.Generator) -> str:
    """Describes a subject of the scene in a language other than English."""
    language = pick(_languages(), rng)
    phrase = language["nouns"][scene.subject]
    neuter = scene.subject in language.get("neuter", ())
    gender = "f" if phrase.startswith(_FEMININE) else "n" if neuter else "m"
    colour = language["colours"][gender][scene.colour]
    first = language.get("colour_first", False)
    article, noun = phrase.split(" ", 1) if first else (phrase, "")
    thing = f"{article} {colour} {noun}".strip()
    caption: str = pick(language["templates"], rng).format(thing=thing, place=language["places"][scene.place])
    return caption[0].upper() + caption[1:] if rng.random() < 0.5 else caption


@cache
def _languages() -> tuple[dict[str, Any], ...]:
    """Reads the languages in foreign.yaml, whose lists have the order of the world's tables."""
    return tuple(
        {
            **language,
            "nouns": dict(zip(OBJECTS, language["nouns"], strict=True)),
            "colours": {gender: dict(zip(COLOURS, row, strict=True)) for gender, row in language["colours"].items()},
            "places": dict(zip(PLACES, language["places"], strict=True)),
        }
        for language in table("foreign.yaml").values()
    )
