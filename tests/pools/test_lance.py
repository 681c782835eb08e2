"""Lance datasets as pools: the same samples as the same table in Parquet."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import caption, image_bytes

import tamis
from tamis.core.errors import DependencyError, PoolError, RunError
from tamis.pools import PoolSpec, open_pool
from tamis.pools import table_shards as tables
from tamis.runs.stream import samples_of

ROWS = 23
_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def images(kind: str) -> pa.Field:
    blob = {"lance-encoding:blob": "true"} if kind == "blob" else None
    return pa.field("image", {"struct": _STRUCT, "binary": pa.binary()}.get(kind, pa.large_binary()), metadata=blob)


def content(kind: str) -> pa.Table:
    files = [image_bytes(row, format="PNG" if row % 3 else "JPEG") for row in range(ROWS)]
    cells: list[Any] = [{"bytes": data, "path": None} if kind == "struct" else data for data in files]
    cells[4] = None
    cells[5] = {"bytes": b"none", "path": None} if kind == "struct" else b"none"
    texts = [None if row == 7 else f"{caption(row)} 図" for row in range(ROWS)]
    columns = {"image": cells, "caption": texts, "license": [f"by-{row}" for row in range(ROWS)]}
    schema = pa.schema([images(kind), ("caption", pa.string()), ("license", pa.string())])
    return pa.table(columns, schema=schema)


def write(path: Path, kind: str = "large") -> Path:
    lance.write_dataset(content(kind), path, max_rows_per_file=6)
    return path


@pytest.mark.parametrize("kind", ["large", "binary", "struct", "blob"])
def test_it_has_the_samples_of_its_rows_in_parquet(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SHARD_ROWS", 10)
    monkeypatch.setattr("tamis.pools.lance._BATCH_BYTES", 2000)
    write(tmp_path / "a.lance", kind)
    pq.write_table(content("struct" if kind == "struct" else "binary"), tmp_path / "a.parquet", row_group_size=6)
    pools = [open_pool(PoolSpec(path=str(tmp_path / name), fields=("license",))) for name in ("a.lance", "a.parquet")]
    assert [shard.name for shard in pools[0].shards] == ["a-rows000000000", "a-rows000000012"]
    one, two = ([sample for shard in pool.shards for sample in shard.samples()] for pool in pools)
    assert one == two
    assert len(one) == ROWS


def test_rows_are_read_again_in_any_order_and_deleted_ones_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "pool" / "a.lance", "blob")
    lance.dataset(str(path)).delete("license in ('by-0', 'by-9')")
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert (len(run), run.statuses["image_missing"], run.statuses["caption_missing"]) == (21, 1, 1)
    left = [image_bytes(row, format="PNG" if row % 3 else "JPEG") for row in range(ROWS) if row not in (0, 9)]
    order = [20, 0, 11, 12, 13, 11, 9, 1]
    samples = list(samples_of(run, order=order, fields={"image", "caption", "files"}))
    assert [sample.image for sample in samples] == [left[row] for row in order]
    assert [(sample.files or {})["txt"].decode() for sample in samples] == [sample.caption for sample in samples]
    subset = tamis.select(run, {"select": [{"at_least": {"score": "words", "value": 1, "missing": "drop"}}]})
    assert tamis.export(subset, "huggingface", tmp_path / "out") == 20
    written = pq.read_table(tmp_path / "out")["image"].combine_chunks().field("bytes")
    assert written[0].as_py() == left[0]


def changed(path: Path) -> None:
    first = content("large").slice(1)
    lance.write_dataset(first, path, mode="overwrite")


@pytest.mark.parametrize(
    ("change", "reason"),
    [(changed, "has changed since it was scored"), (shutil.rmtree, "no pool at"), (lambda path: damage(path), "read")],
    ids=["changed", "gone", "damaged"],
)
def test_other_content_is_an_error_with_the_name(change: Callable[[Path], Any], reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance")
    run = tamis.score(path, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    change(path)
    with pytest.raises((PoolError, RunError), match=rf"a\.lance.*{reason}|{reason}.*a\.lance"):
        list(samples_of(tamis.open_run(run.path), order=np.arange(8)))


def damage(path: Path) -> None:
    for file in (path / "data").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_what_is_no_dataset_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.lance").mkdir()
    with pytest.raises(PoolError, match=r"empty\.lance cannot be read"):
        open_pool(str(tmp_path / "empty.lance"))
    write(tmp_path / "some" / "a.lance")
    with pytest.raises(PoolError, match=r"nothing is there|cannot be read"):
        open_pool(str(tmp_path / "some" / "**" / "b*.lance"))
    assert len(open_pool(str(tmp_path / "some" / "**" / "*.lance")).shards) == 1
    with pytest.raises(PoolError, match="from a disk only"):
        open_pool("memory://bucket/a.lance")
    monkeypatch.setitem(__import__("sys").modules, "lance", None)
    write_again = tmp_path / "b.lance"
    shutil.copytree(tmp_path / "some" / "a.lance", write_again)
    with pytest.raises(DependencyError, match=r"tamis\[lance\]|\[lance\]"):
        open_pool(str(write_again))
