"""Signals, selectors and exporters by name: built-in ones, imported on demand, and those of other packages."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tamis.core.errors import RecipeError, unknown_message

log = logging.getLogger(__name__)


class Register(Mapping[str, type[Any]]):
    """Classes of one kind by name. As a mapping it holds the built-in classes, each imported on first use.

    Installed packages register others: `[project.entry-points."<group>"] name = "module:Class"`. Built-in names take
    precedence and need no entry-point lookup.

    Args:
        kind: what messages call such a class ("signal").
        group: the entry points' group.
        package: contains the built-in classes.
        built_in: name to "module:Class" in the package.
        wrong: says what is wrong with another package's class ("has no select()"); "" for nothing. Only called for
            frozen dataclasses of the right name.
    """

    def __init__(
        self, kind: str, group: str, package: str, built_in: Mapping[str, str], wrong: Callable[[type[Any]], str]
    ) -> None:
        self.kind, self.group, self.package = kind, group, package
        self.built_in, self.wrong = dict(built_in), wrong

    def __getitem__(self, name: str) -> type[Any]:
        module, _, cls = self.built_in[name].partition(":")
        found: type[Any] = getattr(importlib.import_module(f"{self.package}.{module}"), cls)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.built_in)

    def __len__(self) -> int:
        return len(self.built_in)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in

    @property
    def exported(self) -> list[str]:
        """The built-in classes' own names, for the package's `__all__`."""
        return [where.partition(":")[2] for where in self.built_in.values()]

    def attribute(self, cls: str) -> type[Any]:
        """Returns a built-in class by its own name, for the package's `__getattr__`."""
        for name, where in self.built_in.items():
            if where.endswith(f":{cls}"):
                return self[name]
        raise AttributeError(f"module {self.package!r} has no attribute {cls!r}")

    def all(self) -> dict[str, type[Any]]:
        """Returns every usable class by name, sorted; logs the others."""
        found: dict[str, type[Any]] = {}
        for name, entries in self._registered().items():
            if name in self:
                owner = _owner(entries)
                log.warning("Tamis has its own %s %r: that of the package %r is not used", self.kind, name, owner)
                continue
            try:
                found[name] = self.named(name)
            except RecipeError as error:
                log.warning("%s", error)
        return dict(sorted((found | dict(self)).items()))

    def named(self, name: str, others: Iterable[str] = ()) -> type[Any]:
        """Returns a class, importing only its package; raises RecipeError if it is unknown or faulty.

        `others` are names of another register, among which the name that was meant may be.
        """
        if name in self:
            return self[name]
        registered = self._registered()
        if name not in registered:
            raise RecipeError(unknown_message(self.kind, name, {*self, *registered, *others}))
        entries = registered[name]
        owner = _owner(entries)
        if len(entries) > 1:
            raise RecipeError(f"the packages {owner} each register a {self.kind} {name!r}: uninstall all but one")
        title = f"the {self.kind} {name!r} of the package {owner!r}"
        try:
            found = entries[0].load()
        except (Exception, SystemExit) as error:  # importing a package may raise anything
            what = f"{type(error).__name__}: {error}"
            raise RecipeError(f"{title} cannot be loaded ({what}): repair or uninstall that package") from error
        fault = self._fault(name, found)
        if fault:
            raise RecipeError(f"{title} cannot be used: {entries[0].value} {fault}. Repair or uninstall that package")
        return found  # type: ignore[no-any-return]  # checked above

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


def missing_methods(cls: type[Any]) -> str:
    """Describes which abstract methods a class lacks; "" for none."""
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    return f"does not define {', '.join(lacking)}()" if lacking else ""
