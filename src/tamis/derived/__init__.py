"""Derived signals: columns worked out from what a finished run stores. No model runs, and no pool is read.

Some look at all rows at once (the contrastive loss of a pair in random batches), others at the rows one by one (a
weighted sum of columns). To recipes, `select`, the report and the explorer their columns are like any signal's.
"""

from __future__ import annotations

from typing import Any

from tamis.derived.base import Derived as Derived
from tamis.registry import Register, undefined


def _wrong(cls: type[Any]) -> str:
    return undefined(cls) if issubclass(cls, Derived) else "does not derive from tamis.derived.Derived"


#: The derived signals by their names in recipes; each is imported when it is first used.
DERIVED = Register("derived signal", "tamis.derived", {"mix": "mix:Mix"}, _wrong)


def __getattr__(name: str) -> Any:
    return DERIVED.attribute(name)


__all__ = ["DERIVED", "Derived", *DERIVED.exported]
