"""Reading a subset file without trusting it: whatever is wrong with it ends in our own error.

A file as `Subset.save` wrote it has hashes. Another program may have written it anew, with fewer rows, say: then they
are not compared, and its rows are checked all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pydantic
from numpy.typing import NDArray

from tamis.errors import DamageError, RunError
from tamis.store.checked import CheckedParquet
from tamis.store.records import with_hash

FACTS = b"tamis.subset"

_Count = Annotated[int, pydantic.Field(ge=0)]


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", strict=True)


class _Line(_Record):
    """A line of the funnel; `tamis.selectors.outcome`."""

    step: str
    before: _Count
    kept: _Count
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
    code: _Count
    dropped: _Count


class _Partial(_Record):
    missing: Annotated[int, pydantic.Field(ge=1)]
    of: _Count
    shards: list[str]


class SubsetFacts(_Record):
    """`tamis.subset` in the footer of a subset file."""

    recipe: dict[str, Any]
    funnel: list[_Line]
    reads: list[str]
    pool_rows: _Count
    shards: dict[str, list[Any]]  # rows, stamp and the hash of the uids
    partial: _Partial | None = None
    reasons: list[_Reason] = []
    cuts: list[_Cut] = []

    @pydantic.field_validator("shards")
    @classmethod
    def _known_rows(cls, shards: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for name, facts in shards.items():
            rows, *texts = facts or [None]
            right = isinstance(rows, int) and not isinstance(rows, bool) and rows >= 0
            if not right or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"does not say rows, stamp and uids of the shard {name!r}")
        return shards


def malformed(path: Path, what: str) -> RunError:
    """Returns the error for a subset file that is not as one should be."""
    return RunError(f"{path} is not a subset file of tamis, or is damaged: {what}. Choose it again with `tamis select`")


def read_subset(path: Path) -> tuple[pa.Table, dict[str, Any], Mapping[bytes, bytes]]:
    """Returns the rows of a subset file, what its footer says of the choice, and all of the footer's texts.

    Raises:
        RunError: it is no subset file, or is damaged.
    """
    try:
        file = CheckedParquet(path, may_lack_checksums=True)
        table = file.read(None)
    except DamageError as error:
        raise malformed(path, str(error.what or error)) from error
    texts = {key.encode(): text.encode() for key, text in file.facts.items()}
    try:
        facts = json.loads(texts[FACTS])
        SubsetFacts.model_validate(facts)
        if "hash" in facts and with_hash(facts) != facts:
            raise malformed(path, "what its footer says of the choice is not what was written")
    except KeyError as error:
        raise malformed(path, "its footer says nothing of a choice") from error
    except (ValueError, RecursionError) as error:  # pydantic's is a ValueError
        raise malformed(path, f"its footer cannot be read ({str(error)[:300]})") from error
    for name in ("shard", "row", *({"times"} & set(table.column_names))):
        _check_column(path, table, name)
    return table, facts, texts


def _check_column(path: Path, table: pa.Table, name: str) -> None:
    if table.column_names.count(name) != 1:
        raise malformed(path, f"it has no column {name!r}; it has {', '.join(table.column_names)}")
    held = table.column(name).type
    held = held.value_type if pa.types.is_dictionary(held) else held
    if not (pa.types.is_string(held) if name == "shard" else pa.types.is_integer(held)):
        raise malformed(path, f"its column {name!r} holds {held}")
    if table.column(name).null_count:
        raise malformed(path, f"its column {name!r} has gaps")


def rows_of(
    path: Path, table: pa.Table, facts: Mapping[str, Any]
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.uint16] | None]]:
    """Yields each shard with its rows, and how often each is kept where the file says that.

    Raises:
        RunError: a shard that the choice did not look at, a row that it has not, or one that is kept less than once.
    """
    if not table.num_rows:
        return
    names = table.column("shard").cast(pa.string()).combine_chunks().dictionary_encode()
    codes, words = names.indices.to_numpy(), names.dictionary.to_pylist()
    rows = table.column("row").to_numpy()
    times = table.column("times").to_numpy() if "times" in table.column_names else None
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(words) + 1))
    for number, shard in enumerate(words):
        if shard not in facts["shards"]:
            raise malformed(path, f"it keeps rows of a shard {shard!r} that it was not chosen from")
        here = order[ends[number] : ends[number + 1]]
        size, some = facts["shards"][shard][0], rows[here]
        outside = (some < 0) | (some >= size)
        if outside.any():
            raise malformed(path, f"it keeps row {some[outside][0]} of the shard {shard!r}, which has {size:,} rows")
        some = some.astype(np.int64)
        values, counts = np.unique(some, return_counts=True)
        if (counts > 1).any():
            raise malformed(path, f"it names row {values[counts > 1][0]} of the shard {shard!r} twice")
        often = None if times is None else times[here]
        if often is not None and ((often < 1) | (often > np.iinfo(np.uint16).max)).any():
            raise malformed(path, f"it keeps a row of the shard {shard!r} less than once, or more than 65,535 times")
        yield shard, some, often
