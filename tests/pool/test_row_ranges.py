"""Large Parquet files are cut into shards of row ranges: the same rows as in one piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import index_rows, write_metadata

import tamis
from tamis.pool import PoolSpec, open_pool, parquet, table

CAPTIONS = [
    'a "quoted" one',
    "two\nlines, one cell",
    'ends with a quote"',
    " ",
    "ünïcode",
    "",
    '"',
    "a,b\tc",
    "x\r",
    "plain",
]


def written(path: Path, captions: list[str]) -> Path:
    """Writes a Parquet file of one row group."""
    rows = [{"caption": text, "uid": f"{number + 1:032x}"} for number, text in enumerate(captions)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=len(rows))
    return path


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def cut() -> None:
        monkeypatch.setattr(table, "SHARD_ROWS", 7)
        monkeypatch.setattr(table, "WHOLE_ROWS", 20)

    return cut


def spec(path: Path) -> PoolSpec:
    return PoolSpec(path=str(path), image="none")


def score(path: Path, run: Path) -> tamis.Run:
    return tamis.score(spec(path), run=run, scores=["caption_length"], quiet=True)


def test_the_rows_of_all_shards_are_those_of_the_table(tmp_path: Path, small_shards: Callable[[], None]) -> None:
    path = written(tmp_path / "t.parquet", CAPTIONS * 5)
    whole = index_rows(score(path, tmp_path / "whole"))
    small_shards()
    run = score(path, tmp_path / "run")
    assert run.shards == tuple(f"t-rows{first:09d}" for first in range(0, 50, 7))
    assert run.sizes == (7, 7, 7, 7, 7, 7, 7, 1)
    assert index_rows(run) == whole
    assert [row["key"] for row in whole] == [f"{number:09d}" for number in range(50)]
    assert tamis.check(run.path).exit_code == 0
    in_reverse = [list(shard.samples()) for shard in reversed(open_pool(spec(path)).shards)]
    assert [sample.uid[1] for shard in reversed(in_reverse) for sample in shard] == list(range(1, 51))


def test_row_groups_stay_together_unless_one_is_too_large(tmp_path: Path, small_shards: Callable[[], None]) -> None:
    small_shards()
    path = tmp_path / "t.parquet"
    rows = pa.Table.from_pylist([{"caption": "a", "n": n} for n in range(60)])
    with pq.ParquetWriter(path, rows.schema) as writer:
        for first, last in ((0, 5), (5, 12), (12, 40), (40, 60)):
            writer.write_table(rows.slice(first, last - first), row_group_size=100)
    cuts = [shard.cut[:2] for shard in open_pool(spec(path)).shards]  # type: ignore[attr-defined]
    assert cuts == [(0, 12), (12, 7), (19, 7), (26, 7), (33, 7), (40, None)]


def test_images_of_a_large_row_group_are_read_again_shard_by_shard(
    tmp_path: Path, small_shards: Callable[[], None]
) -> None:
    from factories import image_bytes

    small_shards()
    data = [{"image": image_bytes(number), "caption": f"number {number}"} for number in range(24)]
    pq.write_table(pa.Table.from_pylist(data), tmp_path / "t.parquet")
    run = tamis.score(tmp_path / "t.parquet", run=tmp_path / "run", scores=["image_size"], quiet=True)
    assert run.sizes == (7, 7, 7, 3)
    order = [20, 3, 9, 8, 23, 0]
    found = list(tamis.samples_of(run, order=order, fields=("caption", "image")))
    assert [sample.image for sample in found] == [data[row]["image"] for row in order]


def test_a_file_is_read_once_by_one_process(
    tmp_path: Path, small_shards: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_shards()
    path = written(tmp_path / "t.parquet", CAPTIONS * 5)
    opened: list[Any] = []
    real = parquet._Position

    def position(*arguments: Any) -> Any:
        opened.append(arguments[2])
        return real(*arguments)

    monkeypatch.setattr(parquet, "_Position", position)
    assert len(index_rows(score(path, tmp_path / "run"))) == 50
    assert opened == [0, 0]  # for the first sample, before any work, and for all shards


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_metadata_and_its_embeddings_are_cut_alike(
    save: Callable[..., None], tmp_path: Path, small_shards: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tamis.pool import npz

    monkeypatch.setattr(npz, "_BLOCK", 3)
    arrays = write_metadata(tmp_path / "aa.parquet", rows=25)
    arrays["l14_img"] = np.asfortranarray(arrays["l14_img"])
    save(tmp_path / "aa.npz", **arrays)
    whole = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "whole", quiet=True)
    small_shards()
    run = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", quiet=True)
    assert run.sizes == (7, 7, 7, 4)
    assert index_rows(run) == index_rows(whole)
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.concatenate([run.embedding(name, shard) for shard in run.shards]), array)


def test_a_damaged_byte_of_an_array_costs_its_shard(tmp_path: Path) -> None:
    arrays = write_metadata(tmp_path / "aa.parquet")
    np.savez(tmp_path / "aa.npz", **arrays)
    content = bytearray((tmp_path / "aa.npz").read_bytes())
    content[3000] ^= 1
    (tmp_path / "aa.npz").write_bytes(content)
    run = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", quiet=True)
    assert "aa.npz: the embeddings cannot be read: BadZipFile: Bad CRC-32" in run.failures["aa"]


def test_an_array_that_is_too_short_costs_the_shards_that_lack_rows(
    tmp_path: Path, small_shards: Callable[[], None]
) -> None:
    small_shards()
    arrays = write_metadata(tmp_path / "aa.parquet", rows=25)
    np.savez(tmp_path / "aa.npz", b32_img=arrays["b32_img"][:10])
    run = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", quiet=True)
    assert list(run.failures) == ["aa-rows000000007", "aa-rows000000014", "aa-rows000000021"]
    assert "aa.npz: b32_img has 10 rows" in run.failures["aa-rows000000021"]
    np.testing.assert_array_equal(run.embedding("b32_img", "aa-rows000000000"), arrays["b32_img"][:7])
