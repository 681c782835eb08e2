"""What an exporter is: a frozen record of settings that writes a subset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tamis.core.types import check_class_attributes
from tamis.runs import Run
from tamis.runs.subset import Subset


@dataclass(frozen=True, kw_only=True)
class Exporter(ABC):
    """Writes subsets in one format. Derive frozen dataclasses of settings from it.

    Attributes:
        name: what recipes and `--to` call the format.
        ending: extension of the files it writes ("npy"). Another format's extension is refused; "" accepts any.
        croissant: a setting of every format: `export` also writes Croissant metadata next to the output.
    """

    name: ClassVar[str]
    ending: ClassVar[str] = ""
    croissant: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_class_attributes(cls, {"name": str, "ending": str})
        for name in {"out", "overwrite", "croissant"} & vars(cls).get("__annotations__", {}).keys():
            raise TypeError(f"{cls.__qualname__}: a setting cannot be called {name}, which is an argument of export")

    @abstractmethod
    def write(self, subset: Subset, out: Path) -> int:
        """Writes a subset and returns the number of pairs written.

        Args:
            out: the file or folder. `tamis.core.files.storage.writing` makes files appear when complete.

        Raises:
            RunError: the place cannot be written to, or the pool's files have changed.
        """

    def wrote(self, out: Path, run: Run | None) -> bool:
        """Whether this format wrote what is at a path. Only then may an export replace the file, or continue a folder.

        Args:
            out: a regular file, or a folder that is not empty.
            run: the run that is exported; None if it does not exist yet.
        """
        return False

    def clear(self, out: Path, subset: Subset) -> None:
        """Removes another subset's export of this format from a folder, when `--overwrite` asks for it."""
        return None
