"""Choosing and clustering rows by their scores: cheap, exact, repeatable. Nothing here runs a model."""

from __future__ import annotations

import inspect
from typing import Any

from tamis.registry import Classes, Register

#: Every selector by the name that recipes use; each is imported when it is asked for.
SELECTORS = Classes(
    "tamis.selectors",
    {
        "at_least": "steps:AtLeast",
        "at_most": "steps:AtMost",
        "between": "steps:Between",
        "top_fraction": "steps:TopFraction",
        "top_n": "steps:TopN",
        "equals": "steps:Equals",
        "random_fraction": "steps:RandomFraction",
        "clipcov": "clipcov:ClipCov",
        "semdedup": "semdedup:SemDeDup",
        "distinct": "distinct:Distinct",
        "image_based": "image_based:ImageBased",
        "all_of": "steps:AllOf",
        "any_of": "steps:AnyOf",
        "none_of": "steps:NoneOf",
    },
)

#: Names re-exported from `tamis.selectors.outcome` for selector authors.
_PARTS = ("Outcome", "Selection", "Step", "StepCount", "run_steps", "verdict")


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


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        from tamis.selectors import outcome

        return getattr(outcome, name)
    return SELECTORS.attribute(name)


__all__ = ["REGISTER", "SELECTORS", "selector_class", "selectors", *_PARTS, *SELECTORS.class_names]
