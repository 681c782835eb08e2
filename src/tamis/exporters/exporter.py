"""What an exporter is: a frozen record of settings that writes a subset."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.data import check_class_attributes
from tamis.store import Run
from tamis.store.subset import Subset

#: Metadata of our Parquet exports: which format wrote the file.
_FORMAT = b"tamis.export"


class Exporter(ABC):
    """Writes subsets in one format. Derive frozen dataclasses of settings from it.

    Attributes:
        name: what recipes and `--to` call the format.
        needs_pool: `write` takes the run's pool too, opened: for what copies samples. It costs a listing of the pool.
        ending: of the files it writes ("npy"): names that promise another format are refused; "" for any.
    """

    name: ClassVar[str]
    needs_pool: ClassVar[bool] = False
    ending: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_class_attributes(cls, {"name": str, "needs_pool": bool, "ending": str})
        for name in {"out", "overwrite"} & vars(cls).get("__annotations__", {}).keys():
            raise TypeError(f"{cls.__qualname__}: a setting cannot be called {name}: tamis.export takes it itself")
        takes = ("subset", "out", "pool") if cls.needs_pool else ("subset", "out")
        try:
            inspect.signature(cls.write).bind("self", *takes)
        except TypeError as error:
            raise TypeError(
                f"{cls.__qualname__}: needs_pool is {cls.needs_pool}, so write() must take {', '.join(takes)}: {error}"
            ) from error

    @abstractmethod
    def write(self, subset: Subset, out: Path, *pool: Any) -> int:
        """Writes a subset and returns how many pairs it has written.

        Args:
            subset: what to write.
            out: the file or folder. Write files with `tamis.storage.writing`: present means complete.
            pool: the run's pool, where `needs_pool` says so.

        Raises:
            RunError: the place cannot be written to, or the pool's files have changed.
        """

    def wrote(self, out: Path, run: Run | None) -> bool:
        """Tells whether what is at a path was written by this format, so that another export may replace it.

        Of a folder that is not empty it tells whether `write` may go on in it. No: the export is refused.

        Args:
            out: a regular file, or a folder that is not empty.
            run: the run that is exported; None where it is yet to be made.
        """
        return False


def parquet_schema(fields: Any, name: str) -> pa.Schema:
    """Returns the schema of a Parquet export, which says what format wrote the file."""
    return pa.schema(fields, metadata={_FORMAT: name})


def is_parquet_of(path: Path, name: str) -> bool:
    """Whether a file is a Parquet export of a format."""
    try:
        return (pq.read_schema(path).metadata or {}).get(_FORMAT) == name.encode()
    except (OSError, pa.ArrowException):
        return False
