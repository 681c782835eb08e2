"""Every record of settings refuses a word that a setting does not know, and settings that others make meaningless."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from tamis.recipes.steps import ClipCov, Distinct
from tamis.signals.features.text_boxes import TextBoxes

#: Rooms whose records people make by hand; others are results.
MADE_BY_HAND = ("signals", "recipes.steps", "exports", "pools.source", "train.icc", "train.loop")

#: What settings without a default are given here.
GIVEN = {"score": "clip", "value": 0.5, "low": 0.1, "high": 0.5, "fraction": 0.5, "n": 3, "epsilon": 0.1, "tail": 0.2}


def records() -> Iterator[tuple[type[Any], str]]:
    """Every record that people make, with each of its settings that takes one of several words."""
    for room in MADE_BY_HAND:
        top = importlib.import_module(f"tamis.{room}")
        names = [found.name for found in pkgutil.walk_packages(getattr(top, "__path__", []), f"tamis.{room}.")]
        for name in [top.__name__, *names]:
            for cls in vars(importlib.import_module(name)).values():
                if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == name):
                    continue
                try:
                    hints = get_type_hints(cls)
                except NameError:  # it holds what is imported for type checkers alone, such as tensors: no settings
                    continue
                for setting in dataclasses.fields(cls):
                    if setting.init and get_origin(hints[setting.name]) is Literal and not cls.__name__.startswith("_"):
                        yield cls, setting.name


def needed(cls: type[Any]) -> dict[str, Any]:
    """Returns a value for each setting without a default, and one budget where two are offered."""
    required = [one.name for one in dataclasses.fields(cls) if one.init and one.default is dataclasses.MISSING]
    required = [name for name in required if cls.__dataclass_fields__[name].default_factory is dataclasses.MISSING]
    budget = next((name for name in ("fraction", "epsilon", "tail") if name in cls.__dataclass_fields__), None)
    return {name: GIVEN.get(name, "lab/clip") for name in [*required, *([budget] if budget else [])]}


RECORDS = sorted(set(records()), key=lambda one: (one[0].__name__, one[1]))


def test_a_word_that_is_none_of_a_settings_words_is_an_error_in_python_too() -> None:
    assert {cls.__module__.split(".")[1] for cls, _ in RECORDS} == {
        *("signals", "recipes", "pools", "train", "exports")
    }
    for cls, name in RECORDS:
        settings = needed(cls)
        for word in get_args(get_type_hints(cls)[name]):
            assert getattr(cls(**(settings | {name: word})), name) == word
        with pytest.raises(ValueError, match=f"unknown {name} 'nonesuch'.*; known: "):
            cls(**(settings | {name: "nonesuch"}))


@pytest.mark.parametrize(
    ("cls", "settings", "partner", "message"),
    [
        (ClipCov, {"n": 1, "alpha": 0.5, "terms": ("cov",)}, {"terms": ("cov", "label")}, "alpha=0.5"),
        (ClipCov, {"n": 1, "inter": "sum", "terms": ("cov",)}, {"terms": ("cov", "inter")}, "inter='sum'"),
        (
            ClipCov,
            {"n": 1, "diversity": "share", "terms": ("label",), "alpha": 0.5},
            {"terms": ("class", "label")},
            "diversity='share'",
        ),
        (ClipCov, {"n": 1, "of": "pool"}, {"n": None, "fraction": 0.1}, "of='pool'"),
        (Distinct, {"colours": None, "tolerance": 5}, {"colours": "colours"}, "tolerance=5"),
        (Distinct, {"lightness": None, "levels": 5}, {"lightness": "lightness"}, "levels=5"),
        (TextBoxes, {"reader": None, "legible": 0.5}, {"reader": TextBoxes().reader}, "legible=0.5"),
    ],
)
def test_a_setting_whose_partner_is_missing_is_an_error_that_names_it(
    cls: Any, settings: dict[str, Any], partner: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"leave out {message}")):
        cls(**settings)
    cls(**settings | partner)
