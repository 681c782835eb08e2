"""Reads and writes Parquet, `.npy` and JSON files of a run so that every changed bit is found.

A part holds the names of its shard and folder, its number of rows and a hash of the shard's uids. Parquet pages have
checksums, verified when they are read. These do not cover page headers and the footer, so the footer holds a *seal* of
two hashes: one of the footer, verified when the file is opened, and one of all bytes before it, verified by
`tamis check` and for subsets. A `.npy` file ends with the same facts and a hash. A JSON object has a hash of its other
keys.

The hashes find damage and mix-ups. They are not signatures: a program that can write to a run can write hashes too.
Other readers (DuckDB, polars) do not verify page checksums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tamis.core.arrays import U64, Floats
from tamis.core.errors import DamageError, RunError
from tamis.core.files.storage import access_error, local_copy, read_json, write_json, writing
from tamis.core.ids import json_digest

_HASH = "tamis.xxh3"
_PIECE = 4 << 20  # bytes hashed at once
_TAIL = 8 << 10  # bytes of the first read at the end of a file: most footers are shorter

#: The key of the seal in a Parquet footer, and how Thrift writes it before a text of 32 characters.
_SEAL = "tamis.seal"
_SEAL_START = _SEAL.encode() + b"\x18\x20"

#: Version of our Parquet files. Other writers use a newer one, so a file of another version was rewritten.
_PARQUET = "1.0"

#: Separates an array from its facts, at the end of its `.npy` file; NumPy reads only the array.
_FACTS = b"\ntamis "
_LONGEST_FACTS = 4096  # bytes

#: Arrays whose hash this process has verified: path, inode, size and time.
_verified: set[tuple[Any, ...]] = set()

_REMEDY = "delete it and repeat `tamis score` (`tamis check RUN` finds all damage)"
_REMEDIES = {
    "run.json": "restore it, or start another run folder",
    "training.json": "restore it, or delete the model's folder and repeat the command",
    "bench.json": "delete it, and repeat `tamis bench`",
    "choose.json": "delete it, and repeat `tamis choose`",
    "shares.json": "delete it, and repeat `tamis choose --curve`",
}


#: The name of the scores that people typed: no command can make their parts again.
LABEL = "label"
TYPED_REMEDY = "it holds tags or views that people made: restore it, or delete it if nobody needs them"


def is_typed(path: Path) -> bool:
    """Whether a file holds what people typed."""
    tags = path.suffix == ".parquet" and path.parent.name.startswith(f"{LABEL}-")
    return tags or path.name == "views.json"


def damage_error(path: Path, what: str, remedy: str = "") -> DamageError:
    """Returns the error for a file that has changed since it was written."""
    remedy = remedy or (TYPED_REMEDY if is_typed(path) else _REMEDIES.get(path.name, _REMEDY))
    return DamageError(f"{path} is damaged, or not the file that belongs there: {what}; {remedy}", what)


# ---- the shard that a part belongs to


@dataclass(frozen=True)
class Owner:
    """The shard that a part must belong to: the number of rows in its index, and their `uids_digest`."""

    rows: int
    uids: str


def uids_digest(high: U64, low: U64) -> str:
    """Returns the xxh3-64 of the uids of all rows, in order: 16 hex digits."""
    total = xxhash.xxh3_64()
    for half in (high, low):
        total.update(np.ascontiguousarray(half, "<u8").data)
    return total.hexdigest()


def _binding(path: Path, rows: int, uids: str) -> dict[str, str]:
    return {"tamis.shard": path.stem, "tamis.maker": path.parent.name, "tamis.rows": str(rows), "tamis.uids": uids}


def check_binding(path: Path, facts: Mapping[str, str], owner: Owner | None) -> None:
    """Raises DamageError unless a part was written for its shard and folder and, with an `owner`, for those rows."""
    rows, uids = (owner.rows, owner.uids) if owner else (facts.get("tamis.rows"), facts.get("tamis.uids"))
    for key, expected in _binding(path, cast(int, rows), cast(str, uids)).items():
        if facts.get(key) != expected:
            what = key.removeprefix("tamis.")
            raise damage_error(path, f"its {what} should be {expected!r}, but is {facts.get(key)!r}")


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turns errors of reading into DamageError if the content is wrong, RunError if the disk failed."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        short = str(error).partition("\n")[0][:200]
        raise access_error(path, error) or damage_error(path, f"it cannot be read ({short})") from error


# ---- Parquet


@contextmanager
def parquet_writer(
    path: Path, schema: pa.Schema, *, durable: bool = False, **encoding: Any
) -> Iterator[tuple[pq.ParquetWriter, pa.NativeFile]]:
    """Yields pyarrow's writer (with `encoding`) of a sealed Parquet file with page checksums, and its file."""
    with writing(path, durable=durable) as temporary:
        with (
            pa.OSFile(os.fspath(temporary), "wb") as sink,
            pq.ParquetWriter(sink, schema, write_page_checksum=True, version=_PARQUET, **encoding) as writer,
        ):
            yield writer, sink
            writer.add_key_value_metadata({_SEAL: "0" * 32})
        with open(temporary, "r+b") as file:
            start, footer = _footer(file)
            body = _hash_of(file, start).hexdigest()
            seal = footer.rindex(_SEAL_START) + len(_SEAL_START)
            file.seek(start + seal)
            file.write((_hash_of_footer(footer, seal, body) + body).encode())


def write_parquet(
    path: Path, table: pa.Table, *, uids: str | None, facts: Mapping[str, str] = {}, row_group_size: int, **how: Any
) -> None:
    """Writes a table as a sealed Parquet file, with `facts` in its footer.

    `uids` is the hash of the shard's uids, or None if the file is not a part of a shard.
    """
    with parquet_writer(path, table.schema, **how) as (writer, _):
        writer.write_table(table, row_group_size=row_group_size)
        binding = _binding(path, table.num_rows, uids) if uids is not None else {}
        writer.add_key_value_metadata({**facts, **binding})


def footer_entry(path: Path, name: str) -> str | None:
    """Returns an entry of a Parquet file's footer; None if there is none, or it is no such file."""
    try:
        entry = (pq.read_metadata(local_copy(path)).metadata or {}).get(name.encode())
    except (OSError, pa.ArrowException):
        return None
    return entry if entry is None else entry.decode(errors="replace")


def _footer(file: Any) -> tuple[int, bytes]:
    """Returns the offset of a Parquet file's footer, and the footer with its length and the closing magic."""
    size = file.seek(0, os.SEEK_END)
    end = max(0, size - _TAIL)
    file.seek(end)
    tail: bytes = file.read()
    start = max(0, size - 8 - int.from_bytes(tail[-8:-4], "little"))
    if start >= end:
        return start, tail[start - end :]
    file.seek(start)
    return start, file.read()


def _hash_of(file: Any, stop: int) -> Any:
    """Returns the xxh3-64 of the bytes before `stop`."""
    file.seek(0)
    total = xxhash.xxh3_64()
    for start in range(0, stop, _PIECE):
        total.update(file.read(min(_PIECE, stop - start)))
    return total


def _hash_of_footer(footer: bytes, seal: int, body: str) -> str:
    return xxhash.xxh3_64_hexdigest(footer[:seal] + body.encode() + footer[seal + 32 :])


class CheckedParquet:
    """A Parquet file of a run. Its footer is checked when it is opened, its pages when they are read.

    It is not memory-mapped: if a mapped file becomes shorter, or a sector is unreadable, the process is killed.

    Attributes:
        facts: the texts in the footer.
        rows: number of rows.
        sealed: whether Tamis wrote it; False only with `may_be_foreign`.
    """

    def __init__(self, path: Path, *, may_be_foreign: bool = False) -> None:
        """Opens a file; raises DamageError if its footer has changed, RunError if the disk fails.

        `may_be_foreign` also accepts a file that another program wrote.
        """
        self.path = path
        with _read_errors(path):
            self._bytes = pa.OSFile(os.fspath(local_copy(path)))
            self._start, footer = _footer(self._bytes)
            self._file = pq.ParquetFile(self._bytes, page_checksum_verification=True)
            metadata = self._file.metadata
            self.facts = {key.decode(): text.decode() for key, text in (metadata.metadata or {}).items()}
            self.rows: int = metadata.num_rows
        # We do not look at the metadata of columns: if it is damaged, pyarrow crashes the process.
        self.sealed = _SEAL in self.facts and metadata.format_version == _PARQUET
        if self.sealed:
            hashes, seal = self.facts[_SEAL], footer.rfind(_SEAL_START) + len(_SEAL_START)
            if _hash_of_footer(footer, seal, hashes[16:]) != hashes[:16]:
                raise damage_error(path, "its footer has changed")
        elif not may_be_foreign:
            raise damage_error(path, "it has no checksums")

    def verify(self, columns: Sequence[str] = ()) -> None:
        """Hashes the whole file; raises DamageError if a byte has changed or a column is missing."""
        with _read_errors(self.path):
            if _hash_of(self._bytes, self._start).hexdigest() != self.facts[_SEAL][16:]:
                raise damage_error(self.path, "its bytes have changed")
        self._check_columns(columns)

    def read(self, names: Sequence[str] | None) -> pa.Table:
        """Returns the named columns, or all; raises DamageError if one is missing or a page has changed."""
        self._check_columns(names or ())
        with _read_errors(self.path):
            table = self._file.read(columns=list(names) if names is not None else None, use_threads=False)
        if table.num_rows != self.rows:
            raise damage_error(self.path, f"{table.num_rows} rows of {self.rows} could be read")
        return table

    def _check_columns(self, names: Sequence[str]) -> None:
        with _read_errors(self.path):  # not when opened: `tamis status` opens every part just for its facts
            there = self._file.schema_arrow.names if names else []
        for name in names:
            if name not in there:
                raise damage_error(self.path, f"it has no column {name!r}; it has {', '.join(there)}")


# ---- arrays


def write_array(path: Path, values: Floats, *, uids: str = "") -> None:
    """Writes one array as a `.npy` file, followed by the facts of its shard and a hash."""
    values = np.ascontiguousarray(values)
    with writing(path) as temporary:
        with open(temporary, "wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
            if values.size:  # np.save uses C's stdio, which does not report a full disk
                file.write(values.data.cast("B"))
        finish_array(temporary, path, len(values), uids)


def finish_array(file: Path, path: Path, rows: int, uids: str) -> None:
    """Appends the facts of its shard and a hash to an array's `file`, which will be renamed to `path`."""
    facts = _binding(path, rows, uids)
    with open(file, "r+b") as handle:
        total = _hash_of(handle, file.stat().st_size)
        total.update(json.dumps(facts).encode())
        handle.write(_FACTS + json.dumps({**facts, _HASH: total.hexdigest()}).encode())


def read_array(path: Path, owner: Owner | None = None) -> NDArray[Any]:
    """Returns an array of a run, memory-mapped; raises DamageError if it is missing, damaged or another shard's.

    A process verifies a file's hash again only if the file has changed.
    """
    with _read_errors(path):
        with open(local_copy(path), "rb") as file:
            facts = _verified_facts(path, file)
        check_binding(path, facts, owner)
        found: NDArray[Any] = np.load(local_copy(path), mmap_mode="r" if facts["tamis.rows"] != "0" else None)
        return found


def _verified_facts(path: Path, file: Any) -> dict[str, str]:
    about = os.fstat(file.fileno())
    file.seek(max(0, about.st_size - _LONGEST_FACTS))
    _, mark, text = file.read().rpartition(_FACTS)
    try:
        facts: dict[str, str] = json.loads(text) if mark else {}
        digest = facts.pop(_HASH)
    except (ValueError, KeyError, AttributeError) as error:
        raise damage_error(path, "no hash follows the array") from error
    key = (str(path), about.st_ino, about.st_size, about.st_mtime_ns)
    if key not in _verified:
        total = _hash_of(file, about.st_size - len(text) - len(_FACTS))
        total.update(json.dumps(facts).encode())
        if total.hexdigest() != digest:
            raise damage_error(path, "its bytes have changed")
        _verified.add(key)
    return facts


def verify_again() -> None:
    """Forgets which arrays are verified, so that each is verified again when it is next opened."""
    _verified.clear()


# ---- JSON


def with_hash(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns facts with their hash."""
    plain = {key: value for key, value in facts.items() if key != "hash"}
    return {**plain, "hash": json_digest(plain)}


def write_record(path: Path, facts: Mapping[str, Any], *, durable: bool = True) -> None:
    """Writes facts with their hash; `durable` as for `tamis.core.files.storage.writing`."""
    write_json(path, with_hash(facts), durable=durable)


def read_record(path: Path, remedy: str = "") -> dict[str, Any]:
    """Returns what `write_record` wrote; raises DamageError, with a `remedy`, if the file has changed."""
    what = "its content has changed"
    try:
        facts = read_json(path)
        if isinstance(facts, dict) and with_hash(facts) == facts:
            return facts
    except DamageError as error:
        what = error.what
    except ValueError:  # NaN or a lone surrogate: we write neither
        pass
    raise damage_error(path, what, remedy)


def read_result(path: Path, command: str) -> dict[str, Any] | None:
    """Returns the result of a command from its file, None if there is no file; RunError for another version's."""
    facts = read_record(path) if path.is_file() else None
    if facts is not None and (facts.get("kind"), facts.get("format")) != (command, 1):
        raise RunError(f"{path} was written by another version of tamis: delete it, or repeat `{command}`")
    return facts


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects in a growing file, one a line. Skips a last line that a killed process truncated."""
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                return
            value = None
        if not isinstance(value, dict):
            raise damage_error(path, f"line {number} is not a JSON object")
        yield value
