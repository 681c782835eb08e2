"""The pairs that a subset does not hold, as a Parquet table: every dropped pair with its step and its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.arrays import Float64s
from tamis.errors import RunError
from tamis.exporters.exporter import Exporter, is_parquet_of, parquet_schema
from tamis.ids import format_uids
from tamis.selectors.expression import parse
from tamis.storage import writing
from tamis.store import Run
from tamis.store.reasons import Codes
from tamis.store.subset import Subset

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
    """Writes every pair that a subset does not contain: uid, key, shard, the step that dropped it, why, and its score.

    `step` is the number of the recipe's step, from 1. `score` is the value that the step used; null without a single
    score. Rows scored after the subset was chosen have no step and no score.

    Cost: reads the index and the scores that steps used, shard by shard. Memory: a shard's columns; for a score
        with rank(), eight bytes per row of the pool.
    """

    name: ClassVar[str] = "dropped"
    ending: ClassVar[str] = "parquet"

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file shard by shard and returns the number of rows in it.

        Raises:
            RunError: the subset has no reasons, or the run no longer has a score that its recipe used.
        """
        verdict, run, written = subset.verdict, subset.run, 0
        if verdict.dropped_by is None:
            raise RunError(f"it is not known why pairs were dropped from {subset.name!r}. {verdict.problem}")
        codes_of = [verdict.dropped_by[place] for place in run.places.values()]
        judged = _scores(subset, codes_of)
        reasons = pa.array([reason.text for reason in verdict.why], pa.string())
        steps = pa.array([reason.step for reason in verdict.why], pa.int32())
        with writing(out) as temporary, pq.ParquetWriter(temporary, _SCHEMA, compression="ZSTD") as writer:
            for block, (shard, codes) in enumerate(zip(run.shards, codes_of, strict=True)):
                dropped = np.flatnonzero(codes)
                if not dropped.size:
                    continue
                index = run.index(shard, ["uid_hi", "uid_lo", "key"])
                scores = judged(block)
                for rows in np.split(dropped, range(_BLOCK, dropped.size, _BLOCK)):
                    why = codes[rows].astype(np.int32) - 1
                    some = index.take(pa.array(rows))
                    uids = format_uids(some["uid_hi"].to_numpy(), some["uid_lo"].to_numpy())
                    data = {
                        "uid": pa.array(uids).cast(pa.string()),
                        "key": some["key"],
                        "shard": pa.DictionaryArray.from_arrays(np.zeros(rows.size, np.int32), [shard]),
                        "step": steps.take(pa.array(why)),
                        "reason": pa.DictionaryArray.from_arrays(why, reasons),
                        "score": pa.array(scores[rows], mask=np.isnan(scores[rows])),
                    }
                    writer.write_table(pa.table(data, schema=_SCHEMA))
                written += dropped.size
        return written

    def wrote(self, out: Path, run: Run | None) -> bool:
        return is_parquet_of(out, self.name)


def _scores(subset: Subset, codes_of: list[Codes]) -> Callable[[int], Float64s]:
    """Returns a function that gives, for each row of a shard, the score it was dropped by; NaN where there is none.

    minmax(), zscore() and rank() see the shards that the steps saw, without those that were scored later.
    """
    verdict = subset.verdict
    later = [code for code, reason in enumerate(verdict.why, start=1) if reason.step is None]
    seen = [block for block, codes in enumerate(codes_of) if codes.size and not np.isin(codes, later).all()]
    table = subset.run.table(verdict.names).part(seen)
    place = {block: number for number, block in enumerate(seen)}
    codes_by: dict[str, list[int]] = {}
    for code, reason in enumerate(verdict.why, start=1):
        if reason.score is not None:
            codes_by.setdefault(reason.score, []).append(code)
    values = {text: parse(text).by_block(table) for text in codes_by}

    def judged(block: int) -> Float64s:
        found = np.full(codes_of[block].size, np.nan)
        for text, codes in codes_by.items():
            fell = np.isin(codes_of[block], codes)
            if fell.any():
                found[fell] = values[text](place[block])[fell]
        return found

    return judged
