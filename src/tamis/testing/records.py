"""What scorers, selectors and exporters have in common: settings that make equal records, here and in recipes."""

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


def title_of(record: Any) -> str:
    """Returns what messages call a record: "clip (tamis.signals.clip.ClipScore)"."""
    return f"{getattr(record, 'name', '?')} ({type(record).__module__}.{type(record).__qualname__})"


def check_word(name: Any, what: str) -> None:
    """Asserts that recipes, folders and expressions can hold a name."""
    right = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert right, f"{what} must be a word of small letters, digits and _, got {name!r}"


def check_record(record: Any, documented: bool, *, in_recipes: bool = True) -> None:
    """Asserts that a record is a frozen dataclass whose settings make an equal one, also from a recipe."""
    if inspect.isclass(record):
        raise TypeError(f"an object is checked, not its class: {record.__name__}()")
    title, cls = title_of(record), type(record)
    check_word(getattr(record, "name", None), f"the name of {title}")
    assert dataclasses.is_dataclass(record), f"{title} is no dataclass"
    assert cls.__dataclass_params__.frozen, f"{title}: write @dataclass(frozen=True, kw_only=True) above the class"
    fields = {setting.name: getattr(record, setting.name) for setting in dataclasses.fields(record) if setting.init}
    for how, other in (
        ("made again of its settings", cls(**fields)),
        ("copied", copy.deepcopy(record)),
        ("pickled and read again", pickle.loads(pickle.dumps(record))),
    ):
        assert other == record, f"{title} is another one when {how}: {other!r}"
        assert hash(other) == hash(record), f"{title} has another hash when {how}"
    if in_recipes:
        written = settings(record)
        try:
            plain = json.loads(json.dumps(written, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"the settings of {title} are not what JSON holds ({error}): {written!r}") from error
        again = recipe.build(cls, plain, "a recipe")
        assert again == record, f"a recipe with {plain} makes {again!r}, not {record!r}"
    if documented:
        told = (inspect.getdoc(cls) or "").partition("Attributes:")[2]
        for setting in dataclasses.fields(record):
            there = re.search(rf"\b{setting.name}\b[\w, ]*:", told)
            assert there, f"the docstring of {title} does not tell of the setting {setting.name} under 'Attributes:'"
