"""Subsets as lists, each one file: uids, keys, a Parquet table of scores, and the table of dropped pairs."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tamis.core.arrays import U64, Float64s, Rows, Times
from tamis.core.errors import RunError
from tamis.core.files.checked import footer_entry
from tamis.core.files.storage import writing
from tamis.core.ids import SUBSET_DTYPE, uid_order
from tamis.core.machine import cores
from tamis.exports.exporter import Exporter
from tamis.runs import Run
from tamis.runs.expression import parse
from tamis.runs.reasons import Codes
from tamis.runs.subset import OtherCaptions, Subset, other_captions

log = logging.getLogger(__name__)

#: Metadata of our Parquet exports: the format that wrote the file.
_FORMAT = "tamis.export"

_ROWS = 1 << 18  # dropped rows written at once

#: Uids are sorted in parts with the same leading bits, a few parts at once: sorting takes three times their own memory.
_PART_BITS = 7


@dataclass(frozen=True, kw_only=True)
class NpyExport(Exporter):
    """Writes the uids of a subset as one `.npy` of dtype (u8, u8), sorted by high half, then low half.

    DataComp's resharder emits a sample as often as its uid is in the file, so the uid of a row that is kept k times is
    written k times. It emits every sample of a uid: if rows share a uid, it is written max(times) times, and the log
    counts such rows.

    Attributes:
        ordered: writes the uids in the order of the subset instead, for loaders of your own: the resharder needs them
            sorted. Then every kept row has its uid, k times if it is kept k times.
    """

    name: ClassVar[str] = "npy"
    ending: ClassVar[str] = "npy"
    ordered: bool = False

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns the number of uids in it."""
        if self.ordered:
            high, low = subset.run.table().uids(subset.in_order())
            _write_uids(out, [np.stack([high, low], axis=1)])
            return high.size
        if subset.order is not None:
            log.info("uids are sorted, as DataComp's resharder needs them; --set ordered=true keeps the subset's order")
        high, low = subset.run.table().uids(np.flatnonzero(subset.keep))
        times = subset.times[subset.keep] if subset.times is not None else None
        part = (high >> np.uint64(64 - _PART_BITS)).astype(np.uint8)

        def sort(number: int) -> tuple[U64, int]:
            rows = np.flatnonzero(part == number)
            return _in_order(high[rows], low[rows], times if times is None else times[rows])

        with ThreadPoolExecutor(min(4, cores())) as pool:
            sorted_uids, repeats = zip(*pool.map(sort, range(1 << _PART_BITS)), strict=True)
        if repeated := sum(repeats):
            log.warning("%d kept rows have the same uid as another; the file does not count them again", repeated)
        _write_uids(out, sorted_uids)
        return sum(map(len, sorted_uids))

    def wrote(self, out: Path, run: Run | None) -> bool:
        try:
            with open(out, "rb") as file:
                np.lib.format.read_magic(file)
                return np.lib.format.read_array_header_1_0(file)[2] == SUBSET_DTYPE
        except (OSError, ValueError):
            return False


def _write_uids(out: Path, parts: Sequence[U64]) -> None:
    """Writes parts of uids, each (n, 2), as one array."""
    with writing(out) as temporary, open(temporary, "wb") as file:
        descr = np.lib.format.dtype_to_descr(SUBSET_DTYPE)
        header = {"descr": descr, "fortran_order": False, "shape": (sum(map(len, parts)),)}
        np.lib.format.write_array_header_1_0(file, header)
        for uids in parts:
            file.write(uids.data)


def _in_order(high: U64, low: U64, times: Times | None) -> tuple[U64, int]:
    """Returns the uids to write, (n, 2), and how many rows have the uid of another."""
    order = uid_order(high, low)
    uids = np.stack([high[order], low[order]], axis=1)
    new = np.append(True, (uids[1:] != uids[:-1]).any(axis=1))[: order.size]
    repeated = order.size - int(np.count_nonzero(new))
    if times is not None and order.size:
        return np.repeat(uids[new], np.maximum.reduceat(times[order], np.flatnonzero(new)), axis=0), repeated
    return uids[new] if repeated else uids, repeated


@dataclass(frozen=True, kw_only=True)
class KeysExport(Exporter):
    """Writes one line per kept pair in the subset's order or else the pool's, for loaders that choose samples by key.

    A pair that is kept k times has k lines. The keys of img2dataset name the shard, so they are unique in a pool;
    where keys are not, the log says so. A line break in a key is written as the two characters backslash and n (or r).

    Attributes:
        shard: writes `<shard>/<key>` instead of the key alone.
    """

    name: ClassVar[str] = "keys"
    shard: bool = False

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns the number of lines in it."""
        hashes = [np.empty(0, np.uint64)]  # 8 bytes per key; among 10^8 keys two collide with a chance of 1 in 3700
        lines = [pa.array([], pa.large_string())]  # of the kept pairs, if they are written in another order
        broken = 0
        with writing(out) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for keys, times in self._keys(subset):
                written = [_one_line(key) for key in keys]
                broken += sum(line != key for line, key in zip(written, keys, strict=True))
                digests = (xxhash.xxh3_64_intdigest(line.encode()) for line in written)
                hashes.append(np.fromiter(digests, np.uint64, len(written)))
                if subset.order is None:
                    file.writelines(f"{line}\n" * count for line, count in zip(written, times, strict=True))
                else:
                    lines.append(pa.array(written, pa.large_string()))
            if subset.order is not None:
                order = np.searchsorted(np.flatnonzero(subset.keep), subset.order)
                every = pa.concat_arrays(lines)
                for first in range(0, order.size, _ROWS):
                    some = every.take(pa.array(order[first : first + _ROWS]))
                    file.writelines(f"{line}\n" for line in some.to_pylist())
        if broken:
            log.warning("%d keys hold line breaks, which are written as \\n and \\r", broken)
        every = np.concatenate(hashes)
        if repeated := every.size - np.unique(every).size:
            what = "a loader that goes by key alone takes other samples too; export with 'shard: true', or by uid"
            log.warning("%d keys are not unique: %s", repeated, what)
        return len(subset)

    def _keys(self, subset: Subset) -> Iterator[tuple[list[str], list[int]]]:
        """Yields the keys of a shard's kept pairs, and how often each is kept."""
        for shard, rows in subset.rows_by_shard():
            kept, times = np.unique(rows, return_counts=True)
            keys = subset.run.index(shard, ["key"])["key"].take(pa.array(kept)).to_pylist()
            yield [f"{shard}/{key}" for key in keys] if self.shard else keys, times.tolist()

    def wrote(self, out: Path, run: Run | None) -> bool:
        """Whether the first ten lines of a file are keys of the run."""
        try:
            with open(out, encoding="utf-8") as file:
                lines = {line.rstrip("\n") for line in itertools.islice(file, 10)}
        except (OSError, ValueError):
            return False
        if run is None:
            return not lines
        for shard in run.shards:
            if not lines:
                break
            keys = [_one_line(key) for key in run.index(shard, ["key"])["key"].to_pylist()]
            lines -= {*keys, *(f"{shard}/{key}" for key in keys)}
        return not lines


def _one_line(key: str) -> str:
    return key.replace("\n", "\\n").replace("\r", "\\r")


class _ParquetExport(Exporter):
    """An exporter of one Parquet file, whose metadata names the format."""

    ending: ClassVar[str] = "parquet"

    def wrote(self, out: Path, run: Run | None) -> bool:
        return footer_entry(out, _FORMAT) == self.name


@dataclass(frozen=True, kw_only=True)
class ParquetExport(_ParquetExport):
    """Writes uid, shard, key and all score columns of the kept pairs, in the order of the pool.

    A pair that is kept k times has k rows. Scores that some shards still lack are left out, with a warning.

    Attributes:
        captions: also writes the captions; and alt_text, if other captions are chosen for some pairs. Without it,
            `caption` is then 1 for those pairs and 0 for the others.
    """

    name: ClassVar[str] = "parquet"
    captions: bool = False

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file shard by shard and returns the number of rows in it."""
        fields, columns = pair_columns(subset, captions=self.captions)
        schema = pa.schema(fields, metadata={_FORMAT: self.name})
        with writing(out) as temporary, pq.ParquetWriter(temporary, schema, compression="ZSTD") as writer:
            for shard, rows in subset.rows_by_shard():
                writer.write_table(pa.table(columns(shard, rows), schema=schema))
        return len(subset)


def pair_columns(subset: Subset, *, captions: bool) -> tuple[list[pa.Field], Callable[[str, Rows], dict[str, Any]]]:
    """Returns the columns of a table of pairs, and a function that reads them for rows of a shard."""
    run, table, scores = subset.run, subset.run.table(), subset.run.complete_score_names()
    blocks = {shard: block for block, shard in enumerate(run.shards)}
    others = other_captions(subset) if captions else OtherCaptions()
    texts = ["key", "caption"] if captions else ["key"]
    alt = ["alt_text"] if others else []
    chosen = None if captions else subset.caption
    fields = [pa.field(name, pa.string()) for name in ("uid", "shard", *texts, *alt)]
    fields += [] if chosen is None else [pa.field("caption", pa.uint8())]
    fields += [pa.field(name, pa.float32() if table.kind(name) == "number" else pa.string()) for name in scores]

    @functools.lru_cache(maxsize=1)
    def whole(shard: str) -> pa.Table:
        return run.block_to_arrow(blocks[shard], [*(["caption"] if captions else []), *scores])

    def columns(shard: str, rows: Rows) -> dict[str, Any]:
        found = whole(shard).take(pa.array(rows))
        data: dict[str, Any] = dict(zip(found.column_names, found.columns, strict=True))
        if others:
            data["alt_text"] = data["caption"]
            data["caption"] = others.instead(rows + run.row_ranges[shard].start, data["caption"].combine_chunks())
        if chosen is not None:
            data["caption"] = chosen[rows + run.row_ranges[shard].start]
        return data

    return fields, columns


_SCHEMA = pa.schema(
    [
        ("uid", pa.string()),
        ("key", pa.string()),
        ("shard", pa.dictionary(pa.int32(), pa.string())),
        ("step", pa.int32()),
        ("reason", pa.dictionary(pa.int32(), pa.string())),
        ("score", pa.float64()),
    ],
    metadata={_FORMAT: "dropped"},
)


@dataclass(frozen=True, kw_only=True)
class DroppedExport(_ParquetExport):
    """Writes every pair that a subset does not contain: uid, key, shard, the step that dropped it, why, and its score.

    `step` is the number of the recipe's step, from 1. `score` is the value that the step used; null without a single
    score. Rows scored after the subset was chosen have no step and no score.

    Cost: reads the index and the scores that steps used, shard by shard. Memory: a shard's columns; for a score
        with rank(), eight bytes per row of the pool.
    """

    name: ClassVar[str] = "dropped"

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file shard by shard and returns the number of rows in it.

        Raises:
            RunError: the subset has no reasons, or the run no longer has a score that its recipe used.
        """
        verdict, run, written = subset.verdict, subset.run, 0
        if verdict.dropped_by is None:
            raise RunError(f"it is not known why pairs were dropped from {subset.name!r}. {verdict.problem}")
        codes_of = [verdict.dropped_by[span] for span in run.row_ranges.values()]
        judged = _scores(subset, codes_of)
        reasons = pa.array([reason.text for reason in verdict.why], pa.string())
        steps = pa.array([reason.step for reason in verdict.why], pa.int32())
        with writing(out) as temporary, pq.ParquetWriter(temporary, _SCHEMA, compression="ZSTD") as writer:
            for block, codes in enumerate(codes_of):
                dropped = np.flatnonzero(codes)
                if not dropped.size:
                    continue
                pairs, scores = run.block_to_arrow(block, []), judged(block)
                for rows in np.split(dropped, range(_ROWS, dropped.size, _ROWS)):
                    why = codes[rows].astype(np.int32) - 1
                    some = pairs.take(pa.array(rows))
                    data = {
                        **{name: some[name] for name in ("uid", "key", "shard")},
                        "step": steps.take(pa.array(why)),
                        "reason": pa.DictionaryArray.from_arrays(why, reasons),
                        "score": pa.array(scores[rows], mask=np.isnan(scores[rows])),
                    }
                    writer.write_table(pa.table(data, schema=_SCHEMA))
                written += dropped.size
        return written


def _scores(subset: Subset, codes_of: list[Codes]) -> Callable[[int], Float64s]:
    """Returns a function that gives, for each row of a shard, the score it was dropped by, or NaN.

    minmax(), zscore() and rank() see only the shards that the steps saw, not shards that were scored later.
    """
    verdict = subset.verdict
    later = [code for code, reason in enumerate(verdict.why, start=1) if reason.step is None]
    seen = [block for block, codes in enumerate(codes_of) if codes.size and not np.isin(codes, later).all()]
    table = subset.run.table(verdict.names, blocks=seen)
    position = {block: number for number, block in enumerate(seen)}
    codes_by: dict[str, list[int]] = {}
    for code, reason in enumerate(verdict.why, start=1):
        if reason.score is not None:
            codes_by.setdefault(reason.score, []).append(code)
    values = {text: parse(text).fit(table) for text in codes_by}

    def judged(block: int) -> Float64s:
        found = np.full(codes_of[block].size, np.nan)
        for text, codes in codes_by.items():
            fell = np.isin(codes_of[block], codes)
            if fell.any():
                columns = table.read(position[block], sorted(parse(text).columns))
                found[fell] = values[text](columns, fell.size)[fell]
        return found

    return judged
