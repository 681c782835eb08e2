"""Subset files that somebody has changed: every one ends in our own error, or in the rows that it names."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import write_run

import tamis
from tamis.errors import RunError
from tamis.store import Run
from tamis.store.subset import Subset

RECIPE = {"name": "mine", "select": [{"top_n": {"score": "x", "n": 5}}]}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", {"x": list(range(12))}, shards=3)


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:
    tamis.select(run, RECIPE).save(tmp_path / "mine.parquet")
    return tmp_path / "mine.parquet"


def rewrite(file: Path, rows: list[tuple[Any, Any]] | None = None, facts: Any = None, **columns: Any) -> None:
    """Writes the file again as another program would: other rows, other facts."""
    table = pq.read_table(file)
    told = json.loads(table.schema.metadata[b"tamis.subset"])
    if rows is not None:
        table = pa.table({"shard": [shard for shard, _ in rows], "row": [row for _, row in rows]})
    for name, values in columns.items():
        place = table.column_names.index(name) if name in table.column_names else None
        table = table.append_column(name, values) if place is None else table.set_column(place, name, values)
    told = facts(told) if callable(facts) else told
    pq.write_table(table.replace_schema_metadata({"tamis.subset": json.dumps(told)}), file)


@pytest.mark.parametrize(
    "rows",
    [
        [("00001", -1)],
        [("00001", 4)],
        [("00001", 1), ("00001", 1)],
        [("00007", 1)],
        [("00001", None), ("00001", 1)],
        [("00001", "a")],
        [(3, 1)],
        [("00001", 1.5)],
    ],
)
def test_rows_that_the_run_does_not_have_are_refused(rows: list[tuple[Any, Any]], file: Path, run: Run) -> None:
    rewrite(file, [("00001", 2)])
    assert Subset.load(file, run).rows().tolist() == [6]
    rewrite(file, rows)
    with pytest.raises(RunError, match="is not a subset file"):
        Subset.load(file, run)


@pytest.mark.parametrize("often", [[0] * 5, [-1] * 5, [70_000] * 5, [None] * 5, ["x"] * 5])
def test_how_often_is_a_number_from_1(often: list[Any], file: Path, run: Run) -> None:
    rewrite(file, times=pa.array(often) if often[0] is not None else pa.array(often, pa.uint16()))
    with pytest.raises(RunError, match="is not a subset file"):
        Subset.load(file, run)


@pytest.mark.parametrize("change", [lambda facts: [], lambda facts: None, lambda facts: {**facts, "reads": ["y"]}])
def test_facts_that_were_changed_are_refused(change: Any, file: Path, run: Run) -> None:
    rewrite(file, facts=change)
    with pytest.raises(RunError, match="is not a subset file"):
        Subset.load(file, run)


def test_the_rows_of_other_samples_are_refused_though_names_and_sizes_agree(
    run: Run, file: Path, tmp_path: Path
) -> None:
    uids = [(1, number) for number in range(12)]
    other = write_run(tmp_path / "other", {"x": list(range(12))}, shards=3, uids=uids)
    with pytest.raises(RunError, match=r"chosen from a shard 00000 of 4 rows, .* has 4 rows of another file"):
        Subset.load(file, other)


def test_no_flipped_bit_changes_the_rows_of_a_subset(run: Run, file: Path) -> None:
    whole, right = file.read_bytes(), Subset.load(file, run).keep.tolist()
    rng = random.Random(3)
    silent = []
    for _ in range(200):
        changed = bytearray(whole)
        byte, bit = rng.randrange(len(whole)), rng.randrange(8)
        changed[byte] ^= 1 << bit
        file.write_bytes(bytes(changed))
        try:
            if Subset.load(file, run).keep.tolist() != right:
                silent.append((byte, bit))
        except RunError:
            pass
    assert silent == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"\0" * 50, b"PAR1\xff\xff\xff\x7fPAR1"])
def test_a_file_that_is_no_parquet_is_refused(content: bytes, file: Path, run: Run) -> None:
    file.write_bytes(content)
    with pytest.raises(RunError, match="is not a subset file of tamis"):
        Subset.load(file, run)
