"""Subsets: which rows of a run a recipe keeps, with the recipe and its funnel. One Parquet file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tamis.errors import RunError
from tamis.store.atomic import writing
from tamis.store.run import Run
from tamis.uid import SUBSET_DTYPE

if TYPE_CHECKING:
    import pandas

_FACTS = b"tamis.subset"


@dataclass(frozen=True, kw_only=True)
class Subset:
    """The rows of a run that a recipe keeps.

    Attributes:
        run: the run it was chosen from.
        keep: (rows,) bool, in the order of the run's rows.
        recipe: the recipe as resolved, its `name` among it.
        funnel: a line per step: step, before, kept, dropped by reason, cut.
        reads: the score columns it looked at.
    """

    run: Run
    keep: NDArray[np.bool_]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    funnel: Sequence[Mapping[str, Any]] = ()
    reads: Sequence[str] = ()

    def __len__(self) -> int:
        return int(np.count_nonzero(self.keep))

    def __repr__(self) -> str:
        return f"Subset({self.name!r}, {len(self):,} of {self.keep.size:,} pairs)"

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", "subset"))

    def rows_by_shard(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yields each shard with the numbers of its kept rows; shards without any are left out."""
        start = 0
        for shard, size in zip(self.run.shards, self.run.sizes, strict=True):
            rows = np.flatnonzero(self.keep[start : start + size])
            start += size
            if rows.size:
                yield shard, rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the subset: one row per kept pair (shard, row in it), with recipe and funnel beside.

        Raises:
            RunError: the folder cannot be written to, or the path holds a file of another kind.
        """
        path = Path(path).expanduser()
        if path.is_file() and not _is_subset(path):
            raise RunError(f"{path} is there and is no subset file of tamis: choose another name, or delete it")
        schema = pa.schema(
            [("shard", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64())],
            metadata={
                _FACTS: json.dumps(
                    {
                        "recipe": dict(self.recipe),
                        "funnel": [dict(line) for line in self.funnel],
                        "reads": list(self.reads),
                        "pool_rows": int(self.keep.size),
                        "shards": _shard_facts(self.run),
                    },
                    ensure_ascii=False,
                ).encode()
            },
        )
        with writing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="ZSTD") as writer:
            for shard, rows in self.rows_by_shard():
                names = pa.DictionaryArray.from_arrays(np.zeros(rows.size, np.int32), pa.array([shard], pa.string()))
                writer.write_table(pa.table([names, rows], schema=schema))

    @classmethod
    def load(cls, path: str | os.PathLike[str], run: Run) -> Subset:
        """Reads a subset of a run.

        Raises:
            RunError: the file is none, or is of another run.
        """
        try:
            table = pq.read_table(path)
            facts = json.loads((table.schema.metadata or {})[_FACTS])
        except FileNotFoundError as error:
            raise RunError(
                f"there is no subset at {path}; make one with `tamis select RUN --recipe R --out FILE`"
            ) from error
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise RunError(f"{path} is no subset file of tamis ({type(error).__name__}: {error})") from error
        starts = dict(zip(run.shards, np.concatenate([[0], np.cumsum(run.sizes)]).tolist(), strict=False))
        known = _shard_facts(run)
        keep = np.zeros(len(run), bool)
        for shard, (size, stamp) in facts["shards"].items():
            if known.get(shard) != [size, stamp]:
                what = f"{known[shard][0]:,} rows of another file" if shard in known else "no such shard"
                raise RunError(
                    f"{path} was chosen from a shard {shard} of {size:,} rows, {run.path} has {what}: it is another "
                    "run's, or the shard has changed; select again"
                )
        if table.num_rows:
            names = table.column("shard").unify_dictionaries().combine_chunks()
            offsets = np.array([starts[name] for name in names.dictionary.to_pylist()], np.int64)
            keep[offsets[names.indices.to_numpy()] + table.column("row").to_numpy()] = True
        return cls(run=run, keep=keep, recipe=facts["recipe"], funnel=facts["funnel"], reads=facts["reads"])

    def uids(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Returns the halves of the kept pairs' uids, in the order of the run's rows."""
        return self.run.table().uids(np.flatnonzero(self.keep))

    def to_numpy(self) -> NDArray[np.void]:
        """Returns the kept uids as DataComp's structured array (u8, u8), in the order of the run's rows."""
        high, low = self.uids()
        out = np.empty(high.size, SUBSET_DTYPE)
        out["f0"], out["f1"] = high, low
        return out

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns uid, shard, key and score columns of the kept pairs."""
        return self.run.to_arrow(columns).filter(pa.array(self.keep))

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """Returns what `to_arrow` returns, as a pandas DataFrame."""
        frame: pandas.DataFrame = self.to_arrow(columns).to_pandas()
        return frame


def _is_subset(path: Path) -> bool:
    try:
        return _FACTS in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def _shard_facts(run: Run) -> dict[str, list[Any]]:
    """Returns rows and stamp of each shard: what tells a run's shards from those of another run of the same names."""
    return {name: [size, stamp] for name, size, stamp in zip(run.shards, run.sizes, run.stamps, strict=True)}
