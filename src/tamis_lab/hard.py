"""Pairs that are hard to judge: captions with a small error, vague captions, titles and watermarks.

In the first four kinds exactly one attribute of the caption is slightly wrong: a similar colour, a count that is off by
one, the opposite side, or another object of the same group. Such captions test compositional understanding (Yuksekgonul
et al. 2023, When and why vision-language models behave like bags-of-words; Ma et al. 2023, CREPE).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from tamis_lab.captions import describe, vague_caption
from tamis_lab.world import COUNTS, GROUPS, NEAR_COLOURS, OBJECTS, Scene, pick, sample_scene

HardKind = Literal[
    "wrong_colour",
    "wrong_count",
    "wrong_relation",
    "wrong_object",
    "vague",
    "half_described",
    "large_text",
    "watermark",
]
HARD_KINDS: tuple[HardKind, ...] = get_args(HardKind)

#: A value that a sample's json can hold.
Detail = str | int | float | list[str] | None

# "Next to" has no opposite. For "in front of" we swap the objects: the caption then says that the subject is behind.
_OPPOSITES = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


#: (caption, the scene that it describes or None if it names no class, more values for the sample's json)
Said = tuple[str, Scene | None, Mapping[str, Detail]]


def scene_for(kind: HardKind, rng: np.random.Generator, weights: Mapping[str, float]) -> Scene:
    """Draws a scene that fits the kind: with a direction, several objects, or two classes."""
    fits: dict[str, Callable[[Scene], bool]] = {
        "wrong_count": lambda scene: scene.relation is None and scene.count > 1,
        "wrong_relation": lambda scene: scene.relation in (*_OPPOSITES, "in front of"),
        "half_described": lambda scene: scene.relation is not None,
    }
    while True:
        scene = sample_scene(rng, weights)
        if kind not in fits or fits[kind](scene):
            return scene


def say(kind: HardKind, scene: Scene, rng: np.random.Generator, weights: Mapping[str, float]) -> Said:
    """Captions the scene as the kind demands.

    Details for a wrong attribute: `wrong` (which one), `shown` (the truth), `said` (the caption's value). For half a
    description: `left_out`. For a vague caption: `said`, its group or None.
    """
    if kind == "vague":
        caption, group = vague_caption(scene, rng)
        return caption, None, {"said": group}
    if kind == "half_described":
        return _half(scene, rng)
    if kind == "watermark":
        return describe(scene, rng), scene, {}
    if kind == "large_text":
        other = sample_scene(rng, weights, unlike=scene)
        return describe(other, rng), other, {}
    described, shown, said = _WRONG[kind](scene, rng)
    caption = describe(described, rng, coloured=True if kind == "wrong_colour" else None)
    return caption, described, {"wrong": kind.removeprefix("wrong_"), "shown": shown, "said": said}


def _half(scene: Scene, rng: np.random.Generator) -> Said:
    """Describes only one object, without the place."""
    assert scene.other is not None
    assert scene.other_colour is not None
    subject_only = bool(rng.random() < 0.5)
    if subject_only:
        left, described = scene.other, replace(scene, relation=None, other=None, other_colour=None)
    else:
        left, described = scene.subject, Scene(subject=scene.other, colour=scene.other_colour, place=scene.place)
    return describe(described, rng, with_place=False), described, {"left_out": [left, scene.place]}


def _wrong_colour(scene: Scene, rng: np.random.Generator) -> tuple[Scene, str, str]:
    # Never the other object's colour: no right caption gives one colour to both.
    said = pick([colour for colour in NEAR_COLOURS[scene.colour] if colour != scene.other_colour], rng)
    return replace(scene, colour=said), scene.colour, said


def _wrong_count(scene: Scene, rng: np.random.Generator) -> tuple[Scene, int, int]:
    said = pick([count for count in COUNTS if abs(count - scene.count) == 1], rng)
    return replace(scene, count=said), scene.count, said


def _wrong_relation(scene: Scene, rng: np.random.Generator) -> tuple[Scene, str, str]:
    assert scene.relation is not None
    assert scene.other is not None
    assert scene.other_colour is not None
    if scene.relation in _OPPOSITES:
        said = _OPPOSITES[scene.relation]
        return replace(scene, relation=said), scene.relation, said
    swapped = replace(
        scene, subject=scene.other, colour=scene.other_colour, other=scene.subject, other_colour=scene.colour
    )
    return swapped, scene.relation, "behind"


def _wrong_object(scene: Scene, rng: np.random.Generator) -> tuple[Scene, str, str]:
    shown = pick(scene.objects, rng)
    alike = next(members for _, _, members in GROUPS.values() if shown in members)
    # If the whole group is in the image, name any other object.
    free = [name for name in (*alike, *OBJECTS) if name not in scene.objects]
    said = pick(free[: max(1, sum(name not in scene.objects for name in alike))], rng)
    return (replace(scene, subject=said) if shown == scene.subject else replace(scene, other=said)), shown, said


_WRONG: Mapping[str, Callable[[Scene, np.random.Generator], tuple[Scene, str | int, str | int]]] = {
    "wrong_colour": _wrong_colour,
    "wrong_count": _wrong_count,
    "wrong_relation": _wrong_relation,
    "wrong_object": _wrong_object,
}
