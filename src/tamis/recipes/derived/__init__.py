"""Derived signals: columns computed from what a finished run stores, without a model or the pool.

Some look at all rows at once (the contrastive loss of a pair in random batches), others at the rows one by one (a
weighted sum of columns). To recipes, `select`, the report and the explorer their columns are like any signal's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from tamis.core.ids import setting_digest
from tamis.core.registry import Register, missing_methods
from tamis.core.types import Column, references

if TYPE_CHECKING:
    from tamis.runs.table import Table

#: `saved(name, make)` returns the array of this name that an earlier, interrupted call made; else makes and saves it.
Saved = Callable[[str, Callable[[], NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class Derived(ABC):
    """Base class of derived signals, which are frozen dataclasses of settings.

    Attributes:
        name: its name in recipes and folders.
        version: raise it when the same settings give other numbers.
        columns: every column that it adds.
        lacking: why a row has no value.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]]
    lacking: ClassVar[str] = "the row has no embedding"

    @property
    @abstractmethod
    def reads(self) -> frozenset[str]:
        """The columns of the run that it reads, and no others."""

    def contents(self) -> Mapping[str, str]:
        """Returns {setting: digest} of the files that settings name; raises RecipeError if one cannot be read."""
        files = references(self, "file")
        return {setting: setting_digest(path, f"{self.name}: {setting}") for setting, path in files.items()}

    @abstractmethod
    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        """Returns {column: (rows,) float32, NaN for rows without a value; or words, None}; other names: side files.

        Words are a list, or a chunked Arrow array.

        The values depend on uids, columns and settings only, never on row order or blocks.

        Raises:
            RecipeError: a column or a file of the settings cannot be used.
        """


def _wrong(cls: type[Any]) -> str:
    return missing_methods(cls) if issubclass(cls, Derived) else "does not derive from tamis.recipes.derived.Derived"


#: The derived signals by their names in recipes; each is imported when it is first used.
DERIVED = Register(
    "derived signal",
    "tamis.derived",
    "tamis.recipes.derived",
    {
        "clip_loss": "clip_loss:ClipLoss",
        "concept_weight": "concepts:ConceptWeight",
        "concepts": "concepts:Concepts",
        "entries": "entries:Entries",
        "hash_match": "hash_match:HashMatch",
        "mix": "mix:Mix",
        "norm_sim": "norm_sim:NormSim",
        "scores_from": "scores_from:ScoresFrom",
        "vote": "vote:Vote",
    },
    _wrong,
)


def __getattr__(name: str) -> Any:
    return DERIVED.attribute(name)


__all__ = ["DERIVED", "Derived", *DERIVED.exported]
