"""Giving the parts of older versions their seals: the same rows, bound to their place."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from tamis.arrays import load_array
from tamis.store import parts
from tamis.store.atomic import writing
from tamis.store.seals import binding, seal_parquet, unwritten_seal


def seal_part(path: Path, uids: str) -> None:
    """Writes a part anew, with a seal; its rows have been checked.

    Args:
        path: a part of an older version.
        uids: hash of the uids of the shard's index.
    """
    if path.suffix == ".npy":
        parts.write_array(path, load_array(path), uids=uids)
        return
    table = pq.read_table(path, memory_map=True)
    footer = pq.read_metadata(path)
    group = footer.row_group(0) if footer.num_row_groups else None
    leaves = [group.column(number) for number in range(footer.num_columns)] if group is not None else []
    facts = {key.encode(): text.encode() for key, text in binding(path, table.num_rows, uids).items()}
    with writing(path) as temporary:
        with pq.ParquetWriter(
            temporary,
            table.schema,
            compression={leaf.path_in_schema: leaf.compression.replace("UNCOMPRESSED", "NONE") for leaf in leaves}
            or "NONE",
            use_dictionary=[leaf.path_in_schema for leaf in leaves if leaf.has_dictionary_page],
        ) as writer:
            writer.write_table(table, row_group_size=group.num_rows if group is not None else None)
            writer.add_key_value_metadata(facts | unwritten_seal(table.schema))
        seal_parquet(temporary)
