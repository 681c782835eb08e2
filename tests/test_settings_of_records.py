"""Every record of settings refuses a word that a setting does not know, and settings that others make meaningless."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from tamis.errors import RecipeError
from tamis.features.text_boxes import FastBoxes, TextBoxes
from tamis.recipe import load
from tamis.selectors import ClipCov, Distinct

#: Layers whose records people make by hand; others are results.
ASKED = ("features", "signals", "selectors", "exporters", "pool.source", "train")

#: What settings without a default are given here.
GIVEN = {"score": "clip", "value": 0.5, "low": 0.1, "high": 0.5, "fraction": 0.5, "n": 3, "epsilon": 0.1}


def records() -> Iterator[tuple[type[Any], str]]:
    """Every record that people make, with each of its settings that takes one of several words."""
    for layer in ASKED:
        top = importlib.import_module(f"tamis.{layer}")
        names = [found.name for found in pkgutil.walk_packages(getattr(top, "__path__", []), f"tamis.{layer}.")]
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
    budget = next((name for name in ("fraction", "epsilon") if name in cls.__dataclass_fields__), None)
    return {name: GIVEN.get(name, "lab/clip") for name in [*required, *([budget] if budget else [])]}


RECORDS = sorted(set(records()), key=lambda one: (one[0].__name__, one[1]))


def test_there_are_such_settings_in_every_layer_that_has_some() -> None:
    assert {cls.__module__.split(".")[1] for cls, _ in RECORDS} == {"features", "signals", "selectors", "pool", "train"}
    assert len(RECORDS) >= 20


@pytest.mark.parametrize(("cls", "name"), RECORDS, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_word_that_is_none_of_a_settings_words_is_an_error_in_python_too(cls: type[Any], name: str) -> None:
    settings = needed(cls)
    for word in get_args(get_type_hints(cls)[name]):
        assert cls(**(settings | {name: word})) is not None
    with pytest.raises(ValueError, match=f"unknown {name} 'nonesuch'; known: "):
        cls(**(settings | {name: "nonesuch"}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ClipCov(n=1, alpha=0.5, terms=("cov",)),
            "the terms are cov, without 'label': leave out alpha=0.5",
        ),
        (lambda: ClipCov(n=1, inter="sum", terms=("cov", "label")), "without 'inter': leave out inter='sum'"),
        (
            lambda: ClipCov(n=1, diversity="share", terms=("label", "self")),
            "no term of label, self compares chosen pairs: leave out diversity='share'",
        ),
        (lambda: ClipCov(n=1, of="pool"), "n is a number of pairs, of nothing: leave out of='pool'"),
        (lambda: Distinct(colours=None, tolerance=5), "colours: null compares no colours: leave out tolerance=5"),
        (lambda: Distinct(lightness=None, levels=5), "lightness: null compares no lightness: leave out levels=5"),
        (lambda: TextBoxes(reader=None, legible=0.5), "with reader: null no region is read: leave out legible=0.5"),
        (lambda: FastBoxes(legible=0.5), "legible"),
    ],
)
def test_a_setting_whose_partner_is_missing_is_an_error_that_names_it(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_the_same_settings_with_their_partners_are_taken() -> None:
    ClipCov(fraction=0.1, of="pool", alpha=0.5, inter="sum", diversity="share")
    ClipCov(n=1, terms=("class", "label"), alpha=0.5, diversity="share")
    Distinct(tolerance=3, levels=3)
    TextBoxes(legible=0.5)


def test_a_recipe_is_told_where_such_a_setting_stands() -> None:
    step = {"clipcov": {"n": 1, "terms": ["cov"], "alpha": 0.5}}
    with pytest.raises(RecipeError, match=r"select\[0\], clipcov: the terms are cov, without 'label': leave out alpha"):
        load({"select": [step]})
