"""Choosing rows by their scores: cheap, exact, repeatable. Nothing here runs a model."""

from __future__ import annotations

import inspect
from typing import Any

from tamis.plugins import Register
from tamis.selectors.clipcov import ClipCov
from tamis.selectors.distinct import Distinct
from tamis.selectors.herding import Herding
from tamis.selectors.image_based import ImageBased
from tamis.selectors.outcome import Outcome, Selection, Step, StepCount, run_steps, verdict
from tamis.selectors.semdedup import SemDeDup
from tamis.selectors.steps import (
    SELECTORS,
    AllOf,
    AnyOf,
    AtLeast,
    AtMost,
    Between,
    Equals,
    NoneOf,
    RandomFraction,
    TopFraction,
    TopN,
)


def _wrong(cls: type[Any]) -> str:
    if not hasattr(cls, "reads"):
        return "has no reads: the columns that it looks at, as a frozenset of names"
    if not callable(getattr(cls, "select", None)):
        return "has no select(table)"
    try:
        inspect.signature(cls.select).bind("self", "table")
    except TypeError as error:
        return f"has a select() that does not take a table alone ({error})"
    return ""


#: All selectors: those of `SELECTORS`, and those of other packages.
REGISTER = Register(kind="step", group="tamis.selectors", ours=SELECTORS, wrong=_wrong)

#: All by name, and one of a name: see `Register`.
selectors, selector_class = REGISTER.all, REGISTER.get

__all__ = [
    "REGISTER",
    "SELECTORS",
    "AllOf",
    "AnyOf",
    "AtLeast",
    "AtMost",
    "Between",
    "ClipCov",
    "Distinct",
    "Equals",
    "Herding",
    "ImageBased",
    "NoneOf",
    "Outcome",
    "RandomFraction",
    "Selection",
    "SemDeDup",
    "Step",
    "StepCount",
    "TopFraction",
    "TopN",
    "run_steps",
    "selector_class",
    "selectors",
    "verdict",
]
