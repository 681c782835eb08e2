"""Parquet with images, read back by the `datasets` library."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import caption, image_bytes, pair, write_tar

import tamis
from tamis.core.errors import RunError
from tamis.core.ids import format_uid
from tamis.exports import huggingface
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.tagging import Tags


@pytest.fixture
def subset(tmp_path: Path) -> tamis.Subset:
    """Pairs of two shards, one kept twice, one without an image, and one that is no image at all."""
    write_tar(tmp_path / "pool" / "0.tar", [(f"a{row}", pair(row)) for row in range(5)])
    others: list[tuple[str, dict[str, bytes]]] = [
        ("b0", {"png": image_bytes(7, format="PNG"), "txt": "Größe 図".encode()}),
        ("b1", {"txt": b"alone"}),
        ("b2", {"jpg": b"no image", "txt": b"broken"}),
    ]
    write_tar(tmp_path / "pool" / "1.tar", others)
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    times = np.array([1, 0, 2, 1, 1, 1, 1, 1], np.uint16)
    return tamis.Subset(run=run, keep=times > 0, times=times, recipe={"name": "mine"})


def load(out: Path, cache: Path, **options: Any) -> Any:
    datasets.disable_progress_bars()
    return datasets.load_dataset(str(out), split="train", cache_dir=str(cache), **options)


def test_load_dataset_has_images_and_bytes(
    subset: tamis.Subset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "_GROUP_ROWS", 2)
    out = tmp_path / "out"
    assert tamis.export(subset, "huggingface", out, shard_size=5) == 8
    names = [f"train-0000{number}-of-00002.parquet" for number in range(2)]
    assert sorted(path.name for path in out.iterdir()) == ["_export.json", *names]
    shown = load(out, tmp_path / "cache")
    assert shown.features["image"] == datasets.Image()
    assert shown[0]["image"].size == next(iter(load(out, tmp_path / "cache", streaming=True)))["image"].size
    assert shown[5]["image"].mode == "RGB"
    assert pq.read_table(out).num_rows == 8
    plain = shown.cast_column("image", datasets.Image(decode=False))
    images = [pair(row)["jpg"] for row in (0, 2, 2, 3, 4)] + [image_bytes(7, format="PNG"), None, b"no image"]
    assert [row["image"] and row["image"]["bytes"] for row in plain] == images
    assert [row["image"] and row["image"]["path"] for row in plain][4:] == ["a4.jpg", "b0.png", None, "b2.jpg"]
    assert plain["caption"] == [*(caption(row) for row in (0, 2, 2, 3, 4)), "Größe 図", "alone", "broken"]
    assert plain["key"] == ["a0", "a2", "a2", "a3", "a4", "b0", "b1", "b2"]
    assert plain["shard"] == ["0"] * 5 + ["1"] * 3
    assert plain["uid"] == [format_uid(*uid) for uid in zip(*(half.tolist() for half in subset.uids()), strict=True)]
    np.testing.assert_array_equal(np.array(plain["words"], np.float32), subset["words"])
    facts = pq.ParquetFile(out / names[0]).metadata
    assert [facts.row_group(group).num_rows for group in range(facts.num_row_groups)] == [2, 2, 1]
    assert facts.row_group(0).column(0).has_offset_index


def test_an_empty_subset_is_a_file_without_rows(subset: tamis.Subset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tamis.export(tamis.Subset(run=subset.run, keep=np.zeros(8, bool)), "huggingface", out) == 0
    table = pq.read_table(out)
    assert (table.num_rows, table.column_names[:2]) == (0, ["image", "uid"])
    assert list(load(out, tmp_path / "cache", streaming=True)) == []


def test_the_path_of_an_image_is_a_plain_name(tmp_path: Path) -> None:
    keys = ["../../etc/a", "b", "c\\d"]
    write_tar(tmp_path / "pool" / "0.tar", [(key, pair(row)) for row, key in enumerate(keys)])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    tamis.export(tamis.select(run, "no-filter"), "huggingface", tmp_path / "out")
    images = pq.read_table(tmp_path / "out")["image"].to_pylist()
    assert [image["path"] for image in images] == ["a.jpg", "b.jpg", "d.jpg"]


def test_row_groups_are_small_enough_for_the_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [(f"{row}", pair(row)) for row in range(6)])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    largest = max(sum(map(len, pair(row).values())) for row in range(6))
    monkeypatch.setattr(huggingface, "_GROUP_BYTES", 2 * largest)
    tamis.export(tamis.select(run, "no-filter"), "huggingface", tmp_path / "out")
    facts = pq.ParquetFile(tmp_path / "out" / "train-00000-of-00001.parquet").metadata
    groups = [facts.row_group(group) for group in range(facts.num_row_groups)]
    assert sum(group.num_rows for group in groups) == 6
    assert len(groups) >= 2
    assert max(group.column(0).total_uncompressed_size for group in groups) < 2 * largest + 1000


def test_it_is_a_pool_again_with_the_same_uids_and_an_export_goes_on(subset: tamis.Subset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tamis.export(subset, "huggingface", out, shard_size=3)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "train-00001-of-00003.parquet").unlink()
    assert tamis.export(subset, "huggingface", out, shard_size=3) == 8
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    scored = tamis.score(tmp_path / "pool", run=subset.run.path, signals=["image_hash"], quiet=True)
    later = tamis.Subset(run=scored, keep=subset.keep, times=subset.times)
    with pytest.raises(RunError, match="holds another export"):  # its files have other columns
        tamis.export(later, "huggingface", out, shard_size=3)
    again = tamis.score(out, run=tmp_path / "again", signals=["caption_length"], quiet=True)
    assert again.table().uids(np.arange(8))[1].tolist() == subset.uids()[1].tolist()
    assert json.loads(whole["_export.json"])["samples"] == 8


def test_an_export_from_before_tags_changed_is_not_taken_for_the_same(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "00000.tar", [(f"{n:05d}", pair(n)) for n in range(3)])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    for tag in ("nice", "fine"):
        Tags(CachedRun(run.path)).change(np.arange(1), add=[tag])
        subset = tamis.select(run.path, "no-filter")
        tamis.export(subset, "huggingface", tmp_path / "out", overwrite=tag == "fine")
        assert tamis.export(subset, "huggingface", tmp_path / "out")  # the same again changes nothing
    tags = pq.read_table(tmp_path / "out" / "train-00000-of-00001.parquet").column("tagged").to_pylist()
    assert tags == ["fine,nice", None, None]
    Tags(CachedRun(run.path)).change(np.arange(1), remove=["nice"])
    with pytest.raises(RunError, match="holds another export"):
        tamis.export(tamis.select(run.path, "no-filter"), "huggingface", tmp_path / "out")
