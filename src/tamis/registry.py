"""Scorers, selectors and exporters by name: ours, imported when asked for, and those that other packages bring."""

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
    """The classes of a package by the names that recipes use. One is imported when it is asked for."""

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        """Args:
        package: where they are, "tamis.signals".
        places: module and class by name: {"clip": "clip:ClipScore"}.
        """
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

    def attribute(self, cls: str) -> type[Any]:
        """Returns a class by its own name, for the `__getattr__` of the package.

        Raises:
            AttributeError: the package has none of that name.
        """
        for name, place in self._places.items():
            if place.endswith(f":{cls}"):
                return self[name]
        raise AttributeError(f"module {self._package!r} has no attribute {cls!r}")


@dataclass(frozen=True, kw_only=True)
class Register:
    """One kind of thing by name: what comes with Tamis, and what installed packages register.

    Ours win a clash of names, and asking for one of ours looks at no other package.

    Attributes:
        kind: what messages call one of them ("scorer").
        group: where packages register: `[project.entry-points."<group>"] name = "module:Class"`.
        ours: the classes that come with Tamis.
        wrong: says what is wrong with a class of another package, to follow its name ("has no select()"); "" for
            nothing. That it is a frozen dataclass of the registered name is known by then.
    """

    kind: str
    group: str
    ours: Mapping[str, type[Any]]
    wrong: Callable[[type[Any]], str]

    def all(self) -> dict[str, type[Any]]:
        """Returns every class by name, sorted. One that cannot be used is left out, and the log says why."""
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
        """Returns one class, and imports no other package than the one it comes from.

        Raises:
            RecipeError: there is none of that name (the nearest is named), or its package is at fault.
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
        except (Exception, SystemExit) as error:  # somebody else's module: anything can happen while it is imported
            raise RecipeError(
                f"{title} cannot be loaded ({type(error).__name__}: {error}): repair or uninstall that package"
            ) from error
        fault = self._fault(name, found)
        if fault:
            raise RecipeError(f"{title} cannot be used: {entries[0].value} {fault}. Repair or uninstall that package")
        return found  # type: ignore[no-any-return]  # looked at above

    def _fault(self, name: str, found: Any) -> str:
        if not isinstance(found, type):
            return f"is no class, but {found!r}"
        parameters = getattr(found, "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            return "is no frozen dataclass: write @dataclass(frozen=True, kw_only=True) above it"
        own = getattr(found, "name", None)
        if own != name:  # folders and stored recipes have the class's name, and must lead back here
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
    """Returns what of its base class's promises a class has not defined, as a fault; "" for nothing."""
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    return f"does not define {', '.join(lacking)}()" if lacking else ""
