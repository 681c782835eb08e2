"""A promise: a function of one case that finds what is broken; and those that all records of settings make."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tamis import recipe
from tamis.data import settings
from tamis.errors import DependencyError, ModelError


class Case(Protocol):
    """What promises are checked of: one record of settings, and what is known of it."""

    @property
    def title(self) -> str:
        """What messages call it: "the scorer 'clip' (tamis.signals.clip.ClipScore)"."""
        ...

    @property
    def record(self) -> Any:
        """The scorer, selector or exporter."""
        ...


C = TypeVar("C", bound=Case, contravariant=True)


class Broken(Exception):
    """What is wrong, in words: the promise and its title come before it."""


def expect(holds: Any, otherwise: str) -> None:
    """Raises `Broken` with a sentence unless something holds."""
    if not holds:
        raise Broken(otherwise)


@dataclass(frozen=True)
class Promise(Generic[C]):
    """One promise. Called with a case, it raises an AssertionError with a sentence where that breaks it.

    Attributes:
        check: looks for what is broken; its name is the promise.
    """

    check: Callable[[C], None]

    @property
    def name(self) -> str:
        """The promise in words."""
        return self.check.__name__.replace("_", " ")

    def __call__(self, case: C) -> None:
        try:
            self.check(case)
        except Broken as broken:
            raise AssertionError(f"{case.title} breaks the promise {self.name!r}: {broken}") from None
        except (ModelError, DependencyError):
            raise  # of this machine it can say nothing
        except Exception as error:
            raise AssertionError(
                f"{case.title} breaks the promise {self.name!r}: {type(error).__name__}: {error}"
            ) from error


def title(kind: str, record: Any) -> str:
    """Returns what messages call a record of a kind."""
    return f"the {kind} {getattr(record, 'name', '?')!r} ({type(record).__module__}.{type(record).__qualname__})"


def name_is_a_word(name: Any, what: str) -> None:
    """Expects a name that recipes, folders and expressions can hold."""
    word = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)
    expect(word, f"{what} must be a word of small letters, digits and _, got {name!r}")


def it_is_its_settings(case: Case) -> None:
    """Equal settings make equal records with equal hashes; copies and pickles are equal too."""
    record = case.record
    expect(dataclasses.is_dataclass(record), "it is no dataclass")
    fields = {setting.name: getattr(record, setting.name) for setting in dataclasses.fields(record) if setting.init}
    again = type(record)(**fields)
    for how, other in (
        ("made again of its settings", again),
        ("copied", copy.deepcopy(record)),
        ("pickled and read again", pickle.loads(pickle.dumps(record))),
    ):
        expect(other == record, f"{how} it is another: {other!r}, was {record!r}")
        expect(hash(other) == hash(record), f"{how} it has another hash")


def it_cannot_be_changed(case: Case) -> None:
    """The class is a frozen dataclass."""
    for name in ["name", *(setting.name for setting in dataclasses.fields(case.record))]:
        try:
            setattr(case.record, name, getattr(case.record, name))
        except (dataclasses.FrozenInstanceError, AttributeError):
            continue
        raise Broken(f"{name} can be set: write @dataclass(frozen=True, kw_only=True) above the class")


def its_settings_stand_in_a_recipe(case: Case) -> None:
    """Settings written as JSON, as recipes and run folders hold them, make an equal record."""
    written = settings(case.record)
    try:
        plain = json.loads(json.dumps(written, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Broken(f"its settings are not what YAML and JSON hold ({error}): {written!r}") from error
    again = recipe.build(type(case.record), plain, "a recipe")
    expect(again == case.record, f"a recipe with {plain} makes {again!r}, not {case.record!r}")


#: What every record of settings promises.
RECORD_PROMISES: tuple[Callable[[Case], None], ...] = (it_is_its_settings, it_cannot_be_changed)


def docstring(case: Case) -> str:
    """Returns the docstring of the class, and expects that each setting is told of under "Attributes:"."""
    text = inspect.getdoc(type(case.record)) or ""
    told = text.partition("Attributes:")[2]
    for setting in dataclasses.fields(case.record):
        # "name:" or, where several are told of together, "name, other:"
        there = re.search(rf"\b{setting.name}\b[\w, ]*:", told)
        expect(there, f"its docstring does not tell of the setting {setting.name} under 'Attributes:'")
    return text
