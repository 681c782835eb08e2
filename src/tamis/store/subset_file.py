"""Subset files: the kept rows of a run as Parquet, with the choice and its reasons in the footer.

Parquet readers ignore bytes that no offset in the footer points to. We store the codes of the reasons there, after the
last row group: a zstd block per shard, one or two bits per row. Another program may rewrite the file, for example with
fewer rows: rows are checked when they are read, and the reasons of such a file are lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tamis.errors import DamageError, RunError
from tamis.storage import local
from tamis.store.checked import CheckedParquet, parquet_writer, with_hash
from tamis.store.reasons import Codes

FACTS, _CODES = "tamis.subset", "tamis.dropped_by"

_KINDS = {"shard": pa.string(), "row": pa.int64(), "times": pa.uint16()}


def is_subset(path: Path) -> bool:
    """Whether a file is a subset file."""
    try:
        return FACTS.encode() in (pq.read_schema(local(path)).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def write_subset(
    path: Path,
    facts: Mapping[str, Any],
    places: Mapping[str, slice],
    keep: NDArray[np.bool_],
    times: NDArray[np.uint16] | None,
    codes: Codes | None,
) -> None:
    """Writes a subset file.

    Args:
        path: of the file.
        facts: JSON for the footer.
        places: of each shard's rows in the run.
        keep: (rows,) whether each is kept.
        times: (rows,) how often; None: once each.
        codes: (rows,) uint8 or uint16, why each is dropped; None: unknown.
    """
    schema = pa.schema(
        [("shard", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64())]
        + ([("times", pa.uint16())] if times is not None else []),
        metadata={FACTS: json.dumps(with_hash(facts), ensure_ascii=False).encode()},
    )
    with parquet_writer(path, schema, compression="ZSTD") as (writer, sink):
        for shard, place in places.items():
            rows = np.flatnonzero(keep[place])
            if rows.size:
                names = pa.DictionaryArray.from_arrays(np.zeros(rows.size, np.int32), pa.array([shard], pa.string()))
                often = [times[place][rows]] if times is not None else []
                writer.write_table(pa.table([names, rows, *often], schema=schema))
        if codes is not None:
            blocks = [pa.Codec("zstd").compress(codes[place].tobytes(), asbytes=True) for place in places.values()]
            where = {"type": codes.dtype.str, "begin": sink.tell(), "lengths": [len(block) for block in blocks]}
            sink.write(b"".join(blocks))
            writer.add_key_value_metadata({_CODES: json.dumps(where)})


def _malformed(path: Path, what: str) -> RunError:
    return RunError(f"{path} is not a subset file of tamis, or is damaged: {what}. Choose it again with `tamis select`")


class SubsetFile:
    """A subset file, opened for reading.

    Attributes:
        facts: what its footer says about the choice.
        has_times: whether rows may be kept more than once.
    """

    def __init__(self, path: Path) -> None:
        """Opens it.

        Raises:
            RunError: it is not a subset file, or is damaged.
        """
        self.path = path
        try:
            self._file = CheckedParquet(path, may_be_foreign=True)
            if self._file.sealed:
                self._file.verify()
            self.facts: dict[str, Any] = json.loads(self._file.facts.get(FACTS, "null"))
            if not isinstance(self.facts, dict) or with_hash(self.facts) != self.facts:
                raise _malformed(path, "its footer has no tamis.subset entry, or one that was changed")
            self._table = self._file.read(None)
        except (DamageError, ValueError, RecursionError) as error:
            raise _malformed(path, getattr(error, "what", "") or str(error)[:300]) from error
        self.has_times = "times" in self._table.column_names

    def rows(self) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.uint16] | None]]:
        """Yields each shard with its rows, and how often each is kept if the file has that.

        Raises:
            RunError: the shard or the run does not have such rows, or a row is kept twice.
        """
        names = ["shard", "row", *(["times"] if self.has_times else [])]
        schema = pa.schema([pa.field(name, _KINDS[name], nullable=False) for name in names])
        try:
            table = self._table.select(names).cast(schema)
        except (KeyError, ValueError) as error:  # Arrow's errors are ValueErrors
            raise _malformed(self.path, f"its columns are not the rows of a subset ({error})") from error
        shards = table.column("shard").combine_chunks().dictionary_encode()
        codes, rows = shards.indices.to_numpy(), table.column("row").to_numpy()
        times = table.column("times").to_numpy() if self.has_times else None
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(shards.dictionary) + 1))
        for number, shard in enumerate(shards.dictionary.to_pylist()):
            here = order[ends[number] : ends[number + 1]]
            size, some = self.facts["shards"].get(shard, (0,))[0], rows[here]
            often = None if times is None else times[here]
            wrong = some.min() < 0 or some.max() >= size or np.unique(some).size < some.size
            if wrong or (often is not None and not often.all()):
                what = f"it keeps a row that the shard {shard!r} does not have ({size:,} rows), or one twice"
                raise _malformed(self.path, what)
            yield shard, some, often

    def read_codes(self, places: Sequence[slice], out: Codes) -> bool:
        """Reads why rows are dropped.

        Args:
            places: where the codes of each shard of the choice go.
            out: (rows,) filled at these places.

        Returns:
            False if another program rewrote the file, which loses them.
        """
        if not self._file.sealed or _CODES not in self._file.facts:
            return False
        where = json.loads(self._file.facts[_CODES])
        kind = np.dtype(where["type"])
        with open(local(self.path), "rb") as file:
            file.seek(where["begin"])
            for place, length in zip(places, where["lengths"], strict=True):
                block, size = file.read(length), (place.stop - place.start) * kind.itemsize
                out[place] = np.frombuffer(pa.Codec("zstd").decompress(block, size) if size else b"", kind)
        return True
