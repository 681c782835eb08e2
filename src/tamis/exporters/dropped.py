"""What a subset does not hold, as a Parquet table: every dropped pair with its step and its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.arrays import Float64s
from tamis.errors import RunError
from tamis.exporters.exporter import Exporter, is_parquet_of, parquet_schema
from tamis.selectors.expression import parse
from tamis.storage import writing
from tamis.store import Run
from tamis.store.reasons import Codes, Verdict
from tamis.store.subset import Subset
from tamis.uid import format_uids

#: Of each score that steps judged by, its values in one block of the run.
Scores = Mapping[str, Callable[[int], Float64s]]

_BLOCK = 1 << 18  # rows written at once

_SCHEMA = parquet_schema(
    [
        ("uid", pa.string()),
        ("key", pa.string()),
        ("shard", pa.dictionary(pa.int32(), pa.string())),
        ("step", pa.int32()),
        ("reason", pa.dictionary(pa.int32(), pa.string())),
        ("score", pa.float64()),
    ],
    "dropped",
)


@dataclass(frozen=True, kw_only=True)
class DroppedExport(Exporter):
    """Writes every pair that a subset does not hold: uid, key, shard, the step that dropped it, why, and its score.

    `step` is the number of the recipe's step, from 1. `score` is the value of the score that the step judged by, null
    where it judged by none (or by several, where parts of one step did). Pairs that were scored after the subset was
    chosen are among them, with neither.

    Cost: a reading of the index and of the scores judged by, shard by shard. Memory: a shard's columns; where a score
        holds rank(), eight bytes per row of the pool.
    """

    name: ClassVar[str] = "dropped"
    ending: ClassVar[str] = "parquet"

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file, a shard at a time, and returns how many rows it holds.

        Raises:
            RunError: the subset holds no reasons, or the run no longer has a score that its recipe judged by.
        """
        verdict, run, written = subset.verdict, subset.run, 0
        if verdict.dropped_by is None:
            raise RunError(f"nobody knows why pairs were dropped from {subset.name!r}. {verdict.problem}")
        scores = _scores(subset, verdict.dropped_by)
        texts = pa.array([reason.text for reason in verdict.why], pa.string())
        start = 0
        with writing(out) as temporary, pq.ParquetWriter(temporary, _SCHEMA, compression="ZSTD") as writer:
            for block, (shard, size) in enumerate(zip(run.shards, run.sizes, strict=True)):
                codes = verdict.dropped_by[start : start + size]
                start += size
                rows = np.flatnonzero(codes)
                if not rows.size:
                    continue
                index = run.index(shard, ["uid_hi", "uid_lo", "key"])
                judged = _judged_by(verdict, codes, scores, block)
                name = pa.array([shard], pa.string())
                for first in range(0, rows.size, _BLOCK):
                    some = rows[first : first + _BLOCK]
                    why = codes[some].astype(np.int32) - 1
                    steps = pa.array([reason.step for reason in verdict.why], pa.int32()).take(pa.array(why))
                    here = index.take(pa.array(some))
                    uids = format_uids(here["uid_hi"].to_numpy(), here["uid_lo"].to_numpy())
                    data = {
                        "uid": pa.array(uids).cast(pa.string()),
                        "key": here["key"],
                        "shard": pa.DictionaryArray.from_arrays(np.zeros(some.size, np.int32), name),
                        "step": steps,
                        "reason": pa.DictionaryArray.from_arrays(why, texts),
                        "score": pa.array(judged[some], mask=np.isnan(judged[some])),
                    }
                    writer.write_table(pa.table(data, schema=_SCHEMA))
                written += rows.size
        return written

    def wrote(self, out: Path, run: Run | None) -> bool:
        return is_parquet_of(out, self.name)


def _scores(subset: Subset, codes: Codes) -> Scores:
    """Returns the scores that rows fell by, as the steps saw them: without shards that were scored later.

    What minmax(), zscore() and rank() need of the whole pool is read now, once.
    """
    why, run = subset.verdict.why, subset.run
    later = [code for code, reason in enumerate(why, start=1) if reason.step is None]
    starts = np.concatenate([[0], np.cumsum(run.sizes, dtype=np.int64)])
    known = [
        block for block, size in enumerate(run.sizes)
        if size and not np.isin(codes[starts[block] : starts[block + 1]], later).all()
    ]  # fmt: skip
    place = {block: number for number, block in enumerate(known)}
    table = run.table(subset.verdict.names).part(known)

    def in_block(text: str) -> Callable[[int], Float64s]:
        values = parse(text).by_block(table)
        return lambda block: values(place[block])

    return {text: in_block(text) for text in {reason.score: None for reason in why} if text is not None}


def _judged_by(verdict: Verdict, codes: Codes, scores: Scores, block: int) -> Float64s:
    """Returns the value of each row of a block in the score that it fell by; NaN where there is none."""
    values = np.full(codes.size, np.nan)
    for text, values_in in scores.items():
        fell = np.isin(codes, [code for code, reason in enumerate(verdict.why, start=1) if reason.score == text])
        if fell.any():
            values[fell] = values_in(block)[fell]
    return values
