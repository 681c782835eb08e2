"""The lab's world as tables (world.yaml): classes, colours, places, relations, and the sentences about them.

`objects` and `places` draw them, by the same names.
"""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

RGB = tuple[int, int, int]


@dataclass(frozen=True)
class Noun:
    """An object class: its singular and plural, and whether it is small enough to be on a table."""

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
    """A file of tables in this folder, its lists as tuples."""
    return _frozen(yaml.safe_load((files("tamis.lab") / name).read_text(encoding="utf-8")))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_WORLD = table("world.yaml")

OBJECTS: dict[str, Noun] = {one: Noun(one, many, bool(small)) for one, many, *small in _WORLD["objects"]}
#: (one, many, members) by the group's name.
GROUPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    name: (*group["names"], group["members"]) for name, group in _WORLD["groups"].items()
}
COLOURS: dict[str, RGB] = {name: colour["rgb"] for name, colour in _WORLD["colours"].items()}
NEAR_COLOURS: dict[str, tuple[str, ...]] = {name: colour["near"] for name, colour in _WORLD["colours"].items()}
PLACES: dict[str, Place] = {name: Place(**place) for name, place in _WORLD["places"].items()}
INDOORS: frozenset[str] = frozenset(_WORLD["indoors"])
RELATIONS: dict[str, Relation] = {name: Relation(**relation) for name, relation in _WORLD["relations"].items()}
COUNTS: dict[int, tuple[str, ...]] = _WORLD["counts"]
#: (weight, template); the first table says where, the second does not.
CAPTIONS_WITH_PLACE: tuple[tuple[float, str], ...] = _WORLD["captions_with_place"]
CAPTIONS_WITHOUT_PLACE: tuple[tuple[float, str], ...] = _WORLD["captions_without_place"]
ABSTRACT_WORDS: dict[str, tuple[str, ...]] = _WORLD["abstract_words"]
ABSTRACT_CAPTIONS: tuple[str, ...] = _WORLD["abstract_captions"]
VAGUE_CAPTIONS: tuple[str, ...] = _WORLD["vague_captions"]
WATERMARKS: tuple[str, ...] = _WORLD["watermarks"]
STAMPS: tuple[str, ...] = _WORLD["stamps"]
