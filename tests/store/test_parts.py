"""Part files: what is written comes back, null for null."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from tamis.data import Column, Sample
from tamis.errors import RunError
from tamis.store.parts import (
    index_facts,
    numbers,
    read_columns,
    read_rows,
    read_samples,
    uids_in,
    write_rows,
    write_scores,
)
from tamis.store.writers import IndexWriter

#: A header whose bracket is not closed: NumPy lets the error of Python's tokenizer through.
TORN = b"\x93NUMPY\x01\x00\x0c\x00{'shape': (8"


@pytest.mark.parametrize("sizes", [[0], [3], [2, 0, 5]])
def test_stored_features_are_numpys_own_files(sizes: list[int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(size, 4)).astype(np.float16) for size in sizes]
    write_rows(tmp_path / "a.npy", batches, uids="")
    whole = np.concatenate(batches)
    expected = io.BytesIO()
    np.save(expected, whole)
    assert (tmp_path / "a.npy").read_bytes().startswith(expected.getvalue())  # hashes follow, which NumPy passes over
    found = read_rows(tmp_path / "a.npy")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, whole)


def test_scores_come_back_with_null_for_what_was_not_judged(tmp_path: Path) -> None:
    columns = [Column(name="a", unit="", better="high"), Column(name="w", unit="", better="neither", kind="word")]
    values = {"a": np.array([1.5, np.nan, -np.inf], np.float32), "w": ["x", None, ""]}
    write_scores(tmp_path / "a.parquet", columns, values, [None, "why", None], uids="")
    table = read_columns(tmp_path / "a.parquet", None)
    assert table["a"].to_pylist() == [1.5, None, -np.inf]
    assert table["w"].to_pylist() == ["x", None, ""]
    assert table["reason"].to_pylist() == [None, "why", None]
    np.testing.assert_array_equal(numbers(table["a"]), values["a"])


def test_a_column_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    column = Column(name="a", unit="", better="high")
    write_scores(tmp_path / "a.parquet", [column], {"a": np.zeros(1)}, [None], uids="")
    with pytest.raises(RunError, match=r"has no column 'b'; it has a, reason"):
        read_columns(tmp_path / "a.parquet", ["a", "b"])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x93NUMPY\x01\x00", TORN])
def test_damaged_parts_are_errors_that_say_what_to_do(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    for read in (read_rows, index_facts, lambda damaged: read_columns(damaged, None)):
        with pytest.raises(RunError, match="delete it and repeat `tamis score`"):
            read(path)


def test_samples_come_back_from_the_index(tmp_path: Path) -> None:
    good = Sample(uid=(2**64 - 1, 1), key="a", caption="a cat", shown_caption="a cat", width=3, height=4, image_bytes=9)
    good.given = {"url": "http://x"}
    bad = Sample(uid=(0, 2), key="b", shown_caption="  ")
    bad.mark("caption_empty", "it has none")
    rows = IndexWriter(["url"], source="a.tar", stamp="1:2")
    rows.add(None, [good, bad])
    assert not rows.is_written(tmp_path / "a.parquet")
    rows.write(tmp_path / "a.parquet")
    assert rows.is_written(tmp_path / "a.parquet")
    facts = index_facts(tmp_path / "a.parquet")
    assert (facts.rows, facts.statuses, facts.stamp) == (2, {"ok": 1, "caption_empty": 1}, "1:2")
    assert facts.uids == uids_in(tmp_path / "a.parquet")
    assert read_samples(tmp_path / "a.parquet", ["url"]) == [good, bad]


def test_a_footer_tells_of_its_own_part_alone(tmp_path: Path) -> None:
    index = tmp_path / "index"
    for number, name in enumerate(["a", "b.c"]):
        rows = IndexWriter([], source=f"{name}.tar", stamp=f"{number}:{number}")
        rows.add(None, [Sample(uid=(number, row), key=str(row), caption="x") for row in range(number + 1)])
        rows.write(index / f"{name}.parquet")
    assert [index_facts(index / f"{name}.parquet").rows for name in ("a", "b.c")] == [1, 2]
    whole = (index / "a.parquet").read_bytes()
    (index / "b.c.parquet").write_bytes(whole)
    with pytest.raises(RunError, match=r"b\.c\.parquet is damaged.*it was written for the shard 'a'"):
        index_facts(index / "b.c.parquet")
    for place_of_bit in (len(whole) - 20, len(whole) - 300):
        changed = bytearray(whole)
        changed[place_of_bit] ^= 1
        (index / "a.parquet").write_bytes(changed)
        with pytest.raises(RunError, match=r"a\.parquet is damaged"):
            index_facts(index / "a.parquet")
