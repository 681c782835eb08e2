"""Makes records of settings from mappings, with errors that say what was expected."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Union, get_args, get_origin

import pydantic

from tamis.core.errors import RecipeError, brief, describe_type, hints_of, nearest

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")


#: Validates values against the types of a record's fields. Cached, because building one is slow.
_validator: Callable[[type[Any]], pydantic.TypeAdapter[Any]] = functools.cache(pydantic.TypeAdapter)  # type: ignore[assignment]


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Prefixes errors with the place in the recipe."""
    try:
        yield
    except (RecipeError, ValueError) as error:
        raise RecipeError(f"{where}: {error}") from error


def build(
    cls: type[Any],
    settings: Mapping[str, Any],
    where: str,
    extra: Sequence[str] = (),
    example: Callable[[type[Any], str], str] = lambda cls, setting: "",
) -> Any:
    """Makes a settings record from a mapping; missing fields keep their defaults.

    Raises RecipeError, with `where`, for an unknown key (the caller handles `extra`) or a value of the wrong kind; of
    a setting that is missing it says what `example` returns for it.
    """
    settings = {name: _subrecord(cls, name, value, where) for name, value in settings.items()}
    _check_keys(cls, settings, where, extra)
    one_of = getattr(cls, "ONE_OF", ())
    if one_of and not settings.keys() & {*one_of}:
        raise RecipeError(f"{where}: the setting {one_of[0]!r} is missing{example(cls, one_of[0])}")
    try:
        return _validator(cls).validate_python(settings)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        setting = ".".join(map(str, first["loc"]))
        if first["type"] in ("missing", "missing_keyword_only_argument", "missing_argument"):
            raise RecipeError(f"{where}: the setting {setting!r} is missing{example(cls, setting)}") from error
        if first["type"] == "value_error":  # a record's own check
            where = f"{where}, {setting}" if setting else where
            raise RecipeError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from error
        hint: Any = cls
        value: Any = settings
        for name in map(str, first["loc"]):  # to the setting, not to a list's entry or one kind of value
            if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
                hint, value, where = hints_of(hint)[name], value.get(name), f"{where}, {name}"  # type: ignore[arg-type]
        percent = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
        meant = f"; did you mean {float(percent[1]) / 100:g}?" if percent else ""
        raise RecipeError(f"{where}: expected {describe_type(hint)}, got {brief(value)}{meant}") from error
    except RecipeError as error:  # a record's own check, such as of a score expression
        raise RecipeError(f"{where}: {error}") from error


def _subrecord(cls: type[Any], name: str, value: Any, where: str) -> Any:
    """Builds a nested settings record whose class depends on its content, or that is one of several kinds of value."""
    hint = hints_of(cls).get(name)
    choose = getattr(hint, "class_of", None)
    if not isinstance(value, Mapping):
        return value
    if choose is None:
        records = [one for one in get_args(hint) if dataclasses.is_dataclass(one)]
        return build(records[0], value, f"{where}, {name}") if len(records) == 1 else value  # type: ignore[arg-type]
    with errors_at(f"{where}, {name}"):
        kind = choose(value)
    return value if kind is hints_of(cls)[name] else build(kind, value, f"{where}, {name}")


def _check_keys(cls: type[Any], settings: Mapping[str, Any], where: str, extra: Sequence[str] = ()) -> None:
    """Raises RecipeError for unknown keys, and for words that YAML reads as booleans."""
    hints = hints_of(cls)
    names = [setting.name for setting in dataclasses.fields(cls) if setting.init]
    for key, value in settings.items():
        if key not in names:
            for name in names:
                if dataclasses.is_dataclass(hints[name]) and key in hints_of(hints[name]):
                    raise RecipeError(f"{where}: {key!r} belongs in {name!r}: write {name}: {{{key}: {value}}}")
            known = [*names, *extra]
            near, listed = nearest(str(key)[:100], known), ", ".join(known) or "none"
            raise RecipeError(f"{where}: unknown setting {brief(key)}{near}; known: {listed}")
        hint = hints[key]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            _check_keys(hint, value, f"{where}, {key}")  # type: ignore[arg-type]  # a class, not an instance
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        booleans = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, bool)]
        if booleans and bool not in kinds:
            raise RecipeError(f"{where}, {key}: got {brief(booleans[0])}: in YAML yes and no are booleans: quote it")
