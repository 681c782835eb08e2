"""What signals, selectors and exporters have in common: settings that make equal records, in Python and in recipes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import re
from typing import Any

from tamis import recipe
from tamis.data import settings


def check_word(name: Any, what: str) -> None:
    """Asserts that recipes, folders and expressions can hold a name."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", str(name)), f"{what} must consist of small letters, digits and _: {name!r}"


def check_record(record: Any, *, in_recipes: bool = True) -> str:
    """Asserts that a record is a frozen dataclass whose settings make an equal one; returns its name for messages."""
    if inspect.isclass(record):
        raise TypeError(f"expected an object, got its class: {record.__name__}()")
    cls = type(record)
    title = f"{getattr(record, 'name', '?')} ({cls.__module__}.{cls.__qualname__})"
    check_word(getattr(record, "name", None), f"the name of {title}")
    frozen = dataclasses.is_dataclass(record) and cls.__dataclass_params__.frozen
    assert frozen, f"{title}: write @dataclass(frozen=True, kw_only=True) above the class"
    fields = {setting.name: getattr(record, setting.name) for setting in dataclasses.fields(record) if setting.init}
    for other in (cls(**fields), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        same = other == record and hash(other) == hash(record)
        assert same, f"{title} is not equal to a copy of itself, by its settings, by copy or by pickle: {other!r}"
    if in_recipes:
        try:
            plain = json.loads(json.dumps(settings(record), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"the settings of {title} cannot be written as JSON: {error}") from error
        again = recipe.build(cls, plain, "a recipe")
        assert again == record, f"a recipe with {plain} makes {again!r}, not {record!r}"
    return title
