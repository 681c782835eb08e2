"""Captions in German, French, Spanish and Italian, which a rule for English should reject."""

from functools import cache
from typing import Any

import numpy as np

from tamis.lab.scenes import Scene
from tamis.lab.world import COLOURS, OBJECTS, PLACES, table

#: Articles of feminine nouns.
_FEMININE = ("une ", "una ", "un'", "eine ")


def foreign_caption(scene: Scene, rng: np.random.Generator) -> str:
    """Describes one subject of the scene in another language than English."""
    languages = _languages()
    language = languages[int(rng.integers(len(languages)))]
    phrase = language["nouns"][scene.subject]
    neuter = scene.subject in language.get("neuter", ())
    gender = "f" if phrase.startswith(_FEMININE) else "n" if neuter else "m"
    colour = language["colours"][gender][scene.colour]
    first = language.get("colour_first", False)
    article, noun = phrase.split(" ", 1) if first else (phrase, "")
    thing = f"{article} {colour} {noun}".strip()
    template = language["templates"][int(rng.integers(len(language["templates"])))]
    caption: str = template.format(thing=thing, place=language["places"][scene.place])
    return caption[0].upper() + caption[1:] if rng.random() < 0.5 else caption


@cache
def _languages() -> tuple[dict[str, Any], ...]:
    """The languages of foreign.yaml; its lists are in the order of the world's tables."""
    return tuple(
        {
            **language,
            "nouns": dict(zip(OBJECTS, language["nouns"], strict=True)),
            "colours": {gender: dict(zip(COLOURS, row, strict=True)) for gender, row in language["colours"].items()},
            "places": dict(zip(PLACES, language["places"], strict=True)),
        }
        for language in table("foreign.yaml").values()
    )
