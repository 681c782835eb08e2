"""Part files: what is written comes back, null for null, any rows in any order."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import uids_in

from tamis.core.errors import DamageError, RunError
from tamis.core.types import Column, Sample
from tamis.runs.parts import index_facts, numbers, read_columns, read_rows, read_samples, write_rows, write_scores
from tamis.runs.table import MemoryTable
from tamis.runs.writers import IndexWriter

#: A header whose bracket is not closed: NumPy lets the error of Python's tokenizer through.
TORN = b"\x93NUMPY\x01\x00\x0c\x00{'shape': (8"


@pytest.mark.parametrize("sizes", [[0], [2, 0, 5]])
def test_stored_features_are_numpys_own_files(sizes: list[int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(size, 4)).astype(np.float16) for size in sizes]
    write_rows(tmp_path / "a.npy", batches, uids="")
    expected = io.BytesIO()
    np.save(expected, np.concatenate(batches))
    assert (tmp_path / "a.npy").read_bytes().startswith(expected.getvalue())  # hashes follow, which NumPy passes over
    found = read_rows(tmp_path / "a.npy")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.concatenate(batches))


def test_scores_come_back_with_null_for_what_was_not_judged(tmp_path: Path) -> None:
    columns = [Column(name="a", unit="", better="high"), Column(name="w", unit="", better="neither", kind="word")]
    values = {"a": np.array([1.5, np.nan, -np.inf], np.float32), "w": ["x", None, ""]}
    write_scores(tmp_path / "a.parquet", columns, values, [None, "why", None], uids="")
    table = read_columns(tmp_path / "a.parquet", None)
    assert table["a"].to_pylist() == [1.5, None, -np.inf]
    assert table["w"].to_pylist() == ["x", None, ""]
    assert table["reason"].to_pylist() == [None, "why", None]
    np.testing.assert_array_equal(numbers(table["a"]), values["a"])
    with pytest.raises(RunError, match=r"'b'.*a, w, reason"):
        read_columns(tmp_path / "a.parquet", ["a", "b"])


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"\x93NUMPY\x01\x00", TORN]
)
def test_damaged_parts_are_errors_that_say_what_to_do(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    for read in (read_rows, index_facts, lambda damaged: read_columns(damaged, None)):
        with pytest.raises(DamageError, match="`tamis score`"):
            read(path)


def test_samples_come_back_from_the_index(tmp_path: Path) -> None:
    good = Sample(uid=(2**64 - 1, 1), key="a", caption="a cat", shown_caption="a cat", width=3, height=4, image_bytes=9)
    good.given = {"url": "http://x"}
    bad = Sample(uid=(0, 2), key="b", shown_caption="  ")
    bad.mark("caption_empty", "it has none")
    rows, path = IndexWriter(["url"], source="a.tar", stamp="1:2"), tmp_path / "b.c.parquet"
    rows.add(None, [good, bad])
    assert not rows.has_rows_of(path)
    rows.write(path)
    assert rows.has_rows_of(path)
    facts = index_facts(path)
    assert (facts.rows, facts.statuses, facts.stamp) == (2, {"ok": 1, "caption_empty": 1}, "1:2")
    assert facts.uids == uids_in(path)
    assert read_samples(path, ["url"]) == [good, bad]


def test_vectors_and_uids_come_in_the_order_asked_for_and_blocks_are_read_once() -> None:
    rows = np.arange(40, dtype=np.float16).reshape(20, 2)
    high, low = np.random.default_rng(1).integers(0, 2**64, (2, 20), dtype=np.uint64)
    seen = []

    class Noted(MemoryTable):
        def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
            seen.append(block)
            return super().read(block, names)

    table = Noted({"v": rows}, uids=(high, low), block=6)
    asked = np.array([19, 0, 7, 7, 1])
    found = table.vectors("v", asked)
    assert (found.tolist(), found.dtype, sorted(seen)) == (rows[asked].tolist(), np.float16, [0, 1, 3])
    for some in (asked, np.arange(20), np.empty(0, np.int64)):
        assert [half.tolist() for half in table.uids(some)] == [high[some].tolist(), low[some].tolist()]
