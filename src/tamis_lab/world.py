"""The tables of the lab's world (world.yaml): objects, colours, places, relations and sentences; and its scenes.

`objects` and `places` have the drawings, under the same names.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np
import yaml

from tamis.core.errors import unknown_message

T = TypeVar("T")
RGB = tuple[int, int, int]


@dataclass(frozen=True)
class Noun:
    """An object class: singular, plural, and whether it is small enough to stand on a table."""

    one: str
    many: str
    small: bool = False


@dataclass(frozen=True)
class Place:
    """A place: a noun for "a beach with two cats", and phrases for "two cats on a beach"."""

    noun: str
    phrases: tuple[str, ...]
    on_top: tuple[str, ...] = ()  # more phrases for small things: "an apple on a kitchen table"


@dataclass(frozen=True)
class Relation:
    """Where the subject is for the viewer: `phrases` follow the subject, `inverse` the other object."""

    phrases: tuple[str, ...]
    inverse: tuple[str, ...]


def table(name: str) -> Any:
    """Reads a YAML file of this package, with lists as tuples."""
    return _frozen(yaml.safe_load((files("tamis_lab") / name).read_text(encoding="utf-8")))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_WORLD = table("world.yaml")

OBJECTS: dict[str, Noun] = {one: Noun(one, many, bool(small)) for one, many, *small in _WORLD["objects"]}
#: {group: (singular, plural, members)}
GROUPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    name: (*group["names"], group["members"]) for name, group in _WORLD["groups"].items()
}
COLOURS: dict[str, RGB] = {name: colour["rgb"] for name, colour in _WORLD["colours"].items()}
NEAR_COLOURS: dict[str, tuple[str, ...]] = {name: colour["near"] for name, colour in _WORLD["colours"].items()}
PLACES: dict[str, Place] = {name: Place(**place) for name, place in _WORLD["places"].items()}
INDOORS: frozenset[str] = frozenset(_WORLD["indoors"])
RELATIONS: dict[str, Relation] = {name: Relation(**relation) for name, relation in _WORLD["relations"].items()}
COUNTS: dict[int, tuple[str, ...]] = _WORLD["counts"]
#: {template: weight}, with and without the place.
CAPTIONS_WITH_PLACE, CAPTIONS_WITHOUT_PLACE = (
    {str(template): float(weight) for weight, template in _WORLD[name]}
    for name in ("captions_with_place", "captions_without_place")
)
ABSTRACT_WORDS: dict[str, tuple[str, ...]] = _WORLD["abstract_words"]
ABSTRACT_CAPTIONS: tuple[str, ...] = _WORLD["abstract_captions"]
VAGUE_CAPTIONS: tuple[str, ...] = _WORLD["vague_captions"]
WATERMARKS: tuple[str, ...] = _WORLD["watermarks"]
STAMPS: tuple[str, ...] = _WORLD["stamps"]

_RELATED_SHARE = 0.4
# With these relations there may be two subjects; the others leave no room for them at 128 pixels.
_SIDEWAYS = ("left of", "right of", "next to")
_COUNT_SHARES = {1: 0.56, 2: 0.19, 3: 0.13, 4: 0.12}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One to four equal objects (the subject) at a place, perhaps with an object of another class.

    Attributes:
        subject: a key of `OBJECTS`.
        colour: a key of `COLOURS`.
        place: a key of `PLACES`.
        count: number of subjects, 1 to 4; at most 2 with another object, and 1 above, below or in front of it.
        relation: a key of `RELATIONS`: where the subject is relative to the other object; None without another object.
        other, other_colour: the other object and its colour, or None.

    Raises:
        ValueError: an unknown name, or a combination that cannot be drawn.
    """

    subject: str
    colour: str
    place: str
    count: int = 1
    relation: str | None = None
    other: str | None = None
    other_colour: str | None = None

    def __post_init__(self) -> None:
        _check_known("object", self.subject, OBJECTS)
        _check_known("colour", self.colour, COLOURS)
        _check_known("place", self.place, PLACES)
        if (self.relation is None) != (self.other is None) or (self.other is None) != (self.other_colour is None):
            raise ValueError(f"relation, other and other_colour must be given together or not at all, got {self}")
        most = max(COUNTS)
        if self.relation is not None and self.other is not None and self.other_colour is not None:
            _check_known("relation", self.relation, RELATIONS)
            _check_known("object", self.other, OBJECTS)
            _check_known("colour", self.other_colour, COLOURS)
            most = 2 if self.relation in _SIDEWAYS else 1
        if not 1 <= self.count <= most:
            raise ValueError(f"count must be 1 to {most} for relation {self.relation!r}, got {self.count}")

    @property
    def objects(self) -> tuple[str, ...]:
        """The classes in the image: the subject and, if any, the other object."""
        return (self.subject,) if self.other is None else (self.subject, self.other)


def zipf_weights(exponent: float = 1.0) -> dict[str, float]:
    """Weights classes by their rank in `OBJECTS`: 1, 1/2^e, 1/3^e, ..., scaled to sum 1."""
    raw = [rank**-exponent for rank in range(1, len(OBJECTS) + 1)]
    return {name: weight / sum(raw) for name, weight in zip(OBJECTS, raw, strict=True)}


def sample_scene(
    rng: np.random.Generator, class_weights: Mapping[str, float] | None = None, *, unlike: Scene | None = None
) -> Scene:
    """Draws a scene.

    Args:
        class_weights: {class: relative frequency}; other classes do not occur. None: all equal.
        unlike: a scene; the new one has another place and none of its objects.

    Raises:
        ValueError: the weights leave fewer than two classes, or name an unknown one.
    """
    weights = dict.fromkeys(OBJECTS, 1.0) if class_weights is None else dict(class_weights)
    for name in weights:
        _check_known("object", name, OBJECTS)
    if unlike is not None:
        weights = {name: w for name, w in weights.items() if name not in unlike.objects}
    if sum(w > 0 for w in weights.values()) < 2:
        raise ValueError(f"class_weights need at least two classes with a positive weight, got {weights}")
    colours, relations = list(COLOURS), list(RELATIONS)
    places = [place for place in PLACES if unlike is None or place != unlike.place]

    subject = pick_weighted(rng, weights)
    colour = colours[int(rng.integers(len(colours)))]
    place = places[int(rng.integers(len(places)))]
    if rng.random() >= _RELATED_SHARE:
        return Scene(subject=subject, colour=colour, place=place, count=pick_weighted(rng, _COUNT_SHARES))
    relation = relations[int(rng.integers(len(relations)))]
    others = [c for c in colours if c != colour]  # two colours, so that swapping them makes a caption wrong
    return Scene(
        subject=subject,
        colour=colour,
        place=place,
        count=2 if relation in _SIDEWAYS and rng.random() < 0.2 else 1,
        relation=relation,
        other=pick_weighted(rng, {name: w for name, w in weights.items() if name != subject}),
        other_colour=others[int(rng.integers(len(others)))],
    )


def pick(choices: Sequence[T], rng: np.random.Generator) -> T:
    """Draws a choice; all are equally likely."""
    return choices[int(rng.integers(len(choices)))]


def pick_weighted(rng: np.random.Generator, weights: Mapping[T, float]) -> T:
    """Draws a key in proportion to its weight."""
    point = rng.random() * sum(weights.values())
    for name, weight in weights.items():
        point -= weight
        if point < 0:
            return name
    return [name for name, weight in weights.items() if weight > 0][-1]  # only if rounding left nothing


def _check_known(what: str, name: str, table: Collection[str]) -> None:
    if name not in table:
        raise ValueError(unknown_message(what, name, table))
