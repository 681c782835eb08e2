"""Choosing and clustering rows by their scores: cheap, exact, repeatable. Nothing here runs a model."""

from __future__ import annotations

import inspect
from typing import Any

from tamis.core.registry import Register


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


#: Every selector by the name that recipes use; each is imported when it is asked for.
SELECTORS = Register(
    "step",
    "tamis.selectors",
    "tamis.recipes.steps",
    {
        "at_least": "steps:AtLeast",
        "at_most": "steps:AtMost",
        "between": "steps:Between",
        "top_fraction": "steps:TopFraction",
        "top_n": "steps:TopN",
        "equals": "steps:Equals",
        "tagged": "steps:Tagged",
        "random_fraction": "steps:RandomFraction",
        "sample": "sample:Sample",
        "choose_caption": "choose_caption:ChooseCaption",
        "balance": "balance:Balance",
        "cabs": "cabs:Cabs",
        "clipcov": "clipcov:ClipCov",
        "d2": "density:D2",
        "density": "density:Density",
        "semdedup": "semdedup:SemDeDup",
        "distinct": "distinct:Distinct",
        "not_in": "not_in:NotIn",
        "hash_match": "not_in:HashMatch",
        "image_based": "clusters:ImageBased",
        "norm_sim_d": "norm_sim_d:NormSimD",
        "all_of": "steps:AllOf",
        "any_of": "steps:AnyOf",
        "none_of": "steps:NoneOf",
    },
    _wrong,
)

#: Every selector by name, including other packages'; and one selector by its name.
selectors, selector_class = SELECTORS.all, SELECTORS.named

#: Names re-exported from `tamis.recipes.steps.outcome` for selector authors.
_PARTS = (
    "Blockwise",
    "DropReason",
    "IfMissing",
    "Outcome",
    "ReadsColumns",
    "Rule",
    "Selection",
    "Step",
    "run_steps",
    "verdict",
)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        from tamis.recipes.steps import outcome

        return getattr(outcome, name)
    return SELECTORS.attribute(name)


__all__ = ["SELECTORS", "selector_class", "selectors", *_PARTS, *SELECTORS.exported]
