"""Signals, selectors and exporters by name: built-in ones, imported on demand, and those of other packages."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tamis.errors import RecipeError, unknown

log = logging.getLogger(__name__)


class Classes(Mapping[str, type[Any]]):
    """Classes of a package by name, imported on demand: `Classes("tamis.signals", {"clip": "clip:ClipScore"})`."""

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        self._package, self._places = package, dict(places)

    def __getitem__(self, name: str) -> type[Any]:
        module, _, cls = self._places[name].partition(":")
        found: type[Any] = getattr(importlib.import_module(f"{self._package}.{module}"), cls)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    @property
    def class_names(self) -> list[str]:
        """The classes' own names, for the package's `__all__`."""
        return [place.partition(":")[2] for place in self._places.values()]

    def attribute(self, cls: str) -> type[Any]:
        """Returns a class by its own name, for the package's `__getattr__`."""
        for name, place in self._places.items():
            if place.endswith(f":{cls}"):
                return self[name]
        raise AttributeError(f"module {self._package!r} has no attribute {cls!r}")


@dataclass(frozen=True, kw_only=True)
class Register:
    """One kind of class by name: built-in ones, and those that installed packages register.

    Built-in names take precedence and need no entry-point lookup.

    Attributes:
        kind: the word for one of them in messages ("signal").
        group: of entry points: `[project.entry-points."<group>"] name = "module:Class"`.
        ours: the built-in classes.
        wrong: describes what is wrong with a package's class ("has no select()"); "" for nothing. It is only called for
            frozen dataclasses of the right name.
    """

    kind: str
    group: str
    ours: Mapping[str, type[Any]]
    wrong: Callable[[type[Any]], str]

    def all(self) -> dict[str, type[Any]]:
        """Returns every class by name, sorted. Logs and leaves out those that cannot be used."""
        found: dict[str, type[Any]] = {}
        for name, entries in self._registered().items():
            if name in self.ours:
                log.warning(
                    "Tamis has its own %s %r: that of the package %r is not used", self.kind, name, _owner(entries)
                )
                continue
            try:
                found[name] = self.get(name)
            except RecipeError as error:
                log.warning("%s", error)
        return dict(sorted((found | dict(self.ours)).items()))

    def get(self, name: str) -> type[Any]:
        """Returns one class; imports only the package it comes from.

        Raises:
            RecipeError: there is none of that name, or its package is at fault.
        """
        if name in self.ours:
            return self.ours[name]
        registered = self._registered()
        if name not in registered:
            raise RecipeError(unknown(self.kind, name, {*self.ours, *registered}))
        entries = registered[name]
        owner = _owner(entries)
        if len(entries) > 1:
            raise RecipeError(f"the packages {owner} each register a {self.kind} {name!r}: uninstall all but one")
        title = f"the {self.kind} {name!r} of the package {owner!r}"
        try:
            found = entries[0].load()
        except (Exception, SystemExit) as error:  # importing a package may raise anything
            raise RecipeError(
                f"{title} cannot be loaded ({type(error).__name__}: {error}): repair or uninstall that package"
            ) from error
        fault = self._fault(name, found)
        if fault:
            raise RecipeError(f"{title} cannot be used: {entries[0].value} {fault}. Repair or uninstall that package")
        return found  # type: ignore[no-any-return]  # looked at above

    def _fault(self, name: str, found: Any) -> str:
        if not isinstance(found, type):
            return f"is not a class: {found!r}"
        parameters = getattr(found, "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            return "is not a frozen dataclass: write @dataclass(frozen=True, kw_only=True) above it"
        own = getattr(found, "name", None)
        if own != name:  # folders and stored recipes use the class's name
            return f"has the name {own!r}: entry point and class attribute must say the same"
        return self.wrong(found)

    def _registered(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found


def _owner(entries: list[EntryPoint]) -> str:
    return ", ".join(sorted(entry.dist.name if entry.dist is not None else entry.module for entry in entries))


def undefined(cls: type[Any]) -> str:
    """Describes which abstract methods a class lacks; "" for none."""
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    return f"does not define {', '.join(lacking)}()" if lacking else ""
