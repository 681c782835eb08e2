"""Pools of tars, of tables and of files, for tests of what is alike for all of them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from factories import image_bytes, pair, write_pool


def write_kind(folder: Path, kind: str, shards: int = 2, rows: int = 7) -> Path:
    """Writes a pool of a kind: tar, table (Parquet files with the images) or folder (one shard of files)."""
    if kind == "tar":
        return write_pool(folder, shards, rows)
    folder.mkdir()
    for shard in range(shards if kind == "table" else 0):
        cells = [{"image": image_bytes(7 * shard + row), "caption": f"a cat {shard} {row}"} for row in range(rows)]
        pq.write_table(pa.Table.from_pylist(cells), folder / f"{shard:05}.parquet")
    for row in range(rows if kind == "folder" else 0):
        for ending, data in pair(row).items():
            (folder / f"{row:05}.{ending}").write_bytes(data)
    return folder
