"""A subset as a Parquet table of ids and scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.exporters.exporter import Exporter, is_parquet_of, parquet_schema
from tamis.ids import format_uids
from tamis.storage import writing
from tamis.store import Run
from tamis.store.subset import Subset


@dataclass(frozen=True, kw_only=True)
class ParquetExport(Exporter):
    """Writes uid, shard, key and all score columns of the kept pairs, in the order of the pool.

    A pair that is kept k times has k rows. Scores that some shards still lack are left out, with a warning.

    Attributes:
        captions: also writes the captions.
    """

    name: ClassVar[str] = "parquet"
    ending: ClassVar[str] = "parquet"
    captions: bool = False

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file shard by shard and returns the number of rows in it."""
        run, table = subset.run, subset.run.table()
        scores = run.complete_score_names()
        texts = ["key", "caption"] if self.captions else ["key"]
        schema = parquet_schema(
            [(name, pa.string()) for name in ("uid", "shard", *texts)]
            + [(name, pa.float32() if table.kind(name) == "number" else pa.string()) for name in scores],
            self.name,
        )
        blocks = {shard: block for block, shard in enumerate(run.shards)}
        with writing(out) as temporary, pq.ParquetWriter(temporary, schema, compression="ZSTD") as writer:
            for shard, rows in subset.rows_by_shard():
                index = run.index(shard, ["uid_hi", "uid_lo", *texts]).take(pa.array(rows))
                uids = format_uids(index["uid_hi"].to_numpy(), index["uid_lo"].to_numpy())
                data: dict[str, Any] = {"uid": pa.array(uids).cast(pa.string()), "shard": [shard] * rows.size}
                data |= {name: index[name] for name in texts}
                for name, values in table.read(blocks[shard], scores).items():
                    if isinstance(values, np.ndarray):
                        data[name] = pa.array(values[rows], mask=np.isnan(values[rows]))
                    else:
                        data[name] = values.take(pa.array(rows)).cast(pa.string())
                writer.write_table(pa.table(data, schema=schema))
        return len(subset)

    def wrote(self, out: Path, run: Run | None) -> bool:
        return is_parquet_of(out, self.name)
