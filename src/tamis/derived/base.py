"""What a derived signal is, and how its columns get into a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from tamis.data import Column
from tamis.store.table import Table


class Saved(Protocol):
    """Keeps intermediate arrays in the run, so that an interrupted computation goes on where it was."""

    def __call__(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Returns the array of this name that an earlier call made; else makes and keeps it."""
        ...


@dataclass(frozen=True)
class Derived(ABC):
    """Base class of derived signals, which are frozen dataclasses of settings.

    Attributes:
        name: its name in recipes and folders.
        version: raise it when the same settings give other numbers.
        columns: all that it adds.
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

    @abstractmethod
    def compute(self, table: Table, saved: Saved) -> Mapping[str, NDArray[Any]]:
        """Returns {column: (rows,) float32, NaN for rows without a value}; other names are side files.

        The values depend on uids, columns and settings only, never on row order or blocks.

        Raises:
            RecipeError: a column or a file of the settings cannot be used.
        """
