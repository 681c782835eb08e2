"""Reading a subset file. Another program may have written it again, with fewer rows, say: its rows are checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
from numpy.typing import NDArray

from tamis.errors import DamageError, RunError
from tamis.store.checked import CheckedParquet
from tamis.store.records import with_hash

FACTS = b"tamis.subset"


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", strict=True)


class _Line(_Record):
    step: str
    before: pydantic.NonNegativeInt
    kept: pydantic.NonNegativeInt
    dropped: dict[str, int]


class _Reason(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    text: str
    step: int | None = None
    score: str | None = None


class _Cut(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    step: str
    score: str
    low: float | None
    high: float | None
    code: pydantic.NonNegativeInt
    dropped: pydantic.NonNegativeInt


class _Partial(_Record):
    missing: pydantic.PositiveInt
    of: pydantic.NonNegativeInt
    shards: list[str]


class SubsetFacts(_Record):
    """`tamis.subset` in the footer of a subset file."""

    recipe: dict[str, Any]
    funnel: list[_Line]
    reads: list[str]
    pool_rows: pydantic.NonNegativeInt
    shards: dict[str, tuple[pydantic.NonNegativeInt, str, str]]  # rows, stamp and the hash of the uids
    partial: _Partial | None = None
    reasons: list[_Reason] = []
    cuts: list[_Cut] = []


def malformed(path: Path, what: str) -> RunError:
    """Returns the error for a file that is not a good subset file."""
    return RunError(f"{path} is not a subset file of tamis, or is damaged: {what}. Choose it again with `tamis select`")


def read_subset(path: Path) -> tuple[pa.Table, dict[str, Any], Mapping[bytes, bytes]]:
    """Returns the rows of a subset file, the facts of the choice in its footer, and all texts of the footer.

    Raises:
        RunError: it is not a subset file, or is damaged.
    """
    try:
        file = CheckedParquet(path, may_lack_checksums=True)
        table = file.read(None)
    except DamageError as error:
        raise malformed(path, str(error.what or error)) from error
    texts = {key.encode(): text.encode() for key, text in file.facts.items()}
    if FACTS not in texts:
        raise malformed(path, "its footer says nothing of a choice")
    try:
        SubsetFacts.model_validate_json(texts[FACTS])
        facts: dict[str, Any] = json.loads(texts[FACTS])
    except (ValueError, RecursionError) as error:  # pydantic's is a ValueError
        raise malformed(path, f"its footer cannot be read ({str(error)[:300]})") from error
    if "hash" in facts and with_hash(facts) != facts:
        raise malformed(path, "the facts in its footer are not as they were written")
    for name in ("shard", "row", *({"times"} & set(table.column_names))):
        if table.column_names.count(name) != 1:
            raise malformed(path, f"it has no column {name!r}; it has {', '.join(table.column_names)}")
        kind = table.column(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) if name == "shard" else pa.types.is_integer(kind)):
            raise malformed(path, f"its column {name!r} holds {kind}")
        if table.column(name).null_count:
            raise malformed(path, f"its column {name!r} has gaps")
    return table, facts, texts


def rows_of(
    path: Path, table: pa.Table, facts: Mapping[str, Any]
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.uint16] | None]]:
    """Yields each shard with its rows, and how often each is kept if the file has that.

    Raises:
        RunError: a shard that the choice did not have, a row that the shard does not have, or one kept 0 times.
    """
    names = table.column("shard").cast(pa.string()).combine_chunks().dictionary_encode()
    codes, rows = names.indices.to_numpy(), table.column("row").to_numpy()
    times = table.column("times").to_numpy() if "times" in table.column_names else None
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1))
    for number, shard in enumerate(names.dictionary.to_pylist()):
        if shard not in facts["shards"]:
            raise malformed(path, f"it keeps rows of a shard {shard!r} that it was not chosen from")
        here = order[ends[number] : ends[number + 1]]
        size, some = facts["shards"][shard][0], rows[here]
        outside = some[(some < 0) | (some >= size)]
        if outside.size:
            raise malformed(path, f"it keeps row {outside[0]} of the shard {shard!r}, which has {size:,} rows")
        values, counts = np.unique(some, return_counts=True)
        if (counts > 1).any():
            raise malformed(path, f"it names row {values[counts > 1][0]} of the shard {shard!r} twice")
        often = None if times is None else times[here]
        if often is not None and ((often < 1) | (often > np.iinfo(np.uint16).max)).any():
            raise malformed(path, f"it keeps a row of the shard {shard!r} less than once, or more than 65,535 times")
        yield shard, some.astype(np.int64), often
