"""WebDataset shards, read back with the webdataset library."""

from __future__ import annotations

import gc
import gzip
import io
import json
import logging
import os
import shutil
import tarfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from factories import caption, image_bytes, pair, write_pool, write_tar

import tamis
from tamis.errors import PoolError, RunError
from tamis.pool import tar as tar_module

Files = dict[str, bytes]


def scored(pool: Path, folder: Path, **options: Any) -> tamis.Run:
    return tamis.score(pool, run=folder, scores=["caption_length"], quiet=True, **options)


def subset_of(run: tamis.Run, kept: Sequence[int] | None = None) -> tamis.Subset:
    keep = np.zeros(len(run), bool)
    keep[range(len(run)) if kept is None else list(kept)] = True
    return tamis.Subset(run=run, keep=keep, recipe={"name": "mine"})


def read_back(out: Path) -> list[tuple[str, Files]]:
    """Every sample of an exported folder as the webdataset library gives it."""
    urls = sorted(str(path) for path in out.glob("*.tar"))
    if not urls:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves its files to the garbage collector
        gc.freeze()  # which need not look at the libraries that other tests have loaded
        samples = list(webdataset.WebDataset(urls, shardshuffle=False))
        gc.collect()
        gc.unfreeze()
    return [
        (sample["__key__"], {ext: data for ext, data in sample.items() if not ext.startswith("__")})
        for sample in samples
    ]


def source(pool: Path) -> list[tuple[str, Files]]:
    return read_back(pool)


def sizes(out: Path) -> Mapping[str, int]:
    found: Mapping[str, int] = json.loads((out / "sizes.json").read_text())
    return found


# ---- what comes out


def test_kept_samples_come_back_byte_for_byte(pool: Path, tmp_path: Path) -> None:
    kept = [0, 3, 6, 7, 13, 20]
    run = scored(pool, tmp_path / "run")
    assert tamis.export(subset_of(run, kept), "webdataset", tmp_path / "out") == 6
    there = source(pool)
    assert read_back(tmp_path / "out") == [there[row] for row in kept]
    assert sizes(tmp_path / "out") == {"00000.tar": 6}


@pytest.mark.parametrize(
    ("shard_size", "wanted"), [(1, [1] * 6), (2, [2, 2, 2]), (5, [5, 1]), (6, [6]), (7, [6])], ids=str
)
def test_shards_hold_as_many_samples_as_asked(pool: Path, tmp_path: Path, shard_size: int, wanted: list[int]) -> None:
    kept = [1, 2, 8, 9, 19, 20]
    subset = subset_of(scored(pool, tmp_path / "run"), kept)
    assert tamis.export(subset, "webdataset", tmp_path / "out", shard_size=shard_size) == 6
    assert list(sizes(tmp_path / "out").values()) == wanted
    assert sorted(sizes(tmp_path / "out")) == sorted(path.name for path in (tmp_path / "out").glob("*.tar"))
    for name, count in sizes(tmp_path / "out").items():
        with tarfile.open(tmp_path / "out" / name) as tar:
            assert len({member.name.partition(".")[0] for member in tar}) == count
    there = source(pool)
    assert read_back(tmp_path / "out") == [there[row] for row in kept]


def test_nothing_kept_is_an_export_without_shards(pool: Path, tmp_path: Path) -> None:
    subset = subset_of(scored(pool, tmp_path / "run"), [])
    assert tamis.export(subset, "webdataset", tmp_path / "out") == 0
    assert sizes(tmp_path / "out") == {}
    assert list((tmp_path / "out").glob("*.tar")) == []


def test_the_same_subset_makes_the_same_bytes(pool: Path, tmp_path: Path) -> None:
    subset = subset_of(scored(pool, tmp_path / "run"), [4, 5, 11])
    for name in ("one", "two"):
        tamis.export(subset, "webdataset", tmp_path / name)
    assert (tmp_path / "one" / "00000.tar").read_bytes() == (tmp_path / "two" / "00000.tar").read_bytes()


def test_members_of_every_kind_are_copied_even_those_nobody_can_read(tmp_path: Path) -> None:
    samples: list[tuple[str, Files]] = [
        ("a", pair(0) | {"seg.png": b"\x00mask", "npy": b""}),
        ("b", {"jpg": b"no image at all", "txt": b"\xff\xfe", "json": b"{"}),
        ("c", {"txt": b"alone"}),
        ("d", {"png": image_bytes(3, format="PNG"), "txt": "Größe ü".encode()}),
    ]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    tamis.export(subset_of(scored(tmp_path / "pool", tmp_path / "run")), "webdataset", tmp_path / "out")
    assert read_back(tmp_path / "out") == samples


def test_keys_in_folders_and_very_long_keys_survive(tmp_path: Path) -> None:
    samples = [(f"part.1/{'long' * 40}/{'x' * 90}{number}", pair(number)) for number in range(3)]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    tamis.export(subset_of(scored(tmp_path / "pool", tmp_path / "run"), [0, 2]), "webdataset", tmp_path / "out")
    assert read_back(tmp_path / "out") == [samples[0], samples[2]]


def test_dots_in_keys_become_underscores(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ["photo.v1", "photo.v2", "plain"]
    rows = {"key": keys, "image": [pair(seed)["jpg"] for seed in range(3)], "caption": ["a cat"] * 3}
    pq.write_table(pa.table(rows), tmp_path / "pool.parquet")
    subset = subset_of(scored(tmp_path / "pool.parquet", tmp_path / "run"))
    with caplog.at_level(logging.WARNING):
        tamis.export(subset, "webdataset", tmp_path / "out")
    assert [key for key, _ in read_back(tmp_path / "out")] == ["photo_v1", "photo_v2", "plain"]
    assert "2 keys were changed" in caplog.text


def test_keys_that_meet_in_a_shard_are_numbered(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0)), ("b", pair(1)), ("a_2", pair(5))])
    write_tar(tmp_path / "pool" / "1.tar", [("a", pair(2)), ("c", pair(3)), ("a", pair(4))])
    tamis.export(subset_of(scored(tmp_path / "pool", tmp_path / "run")), "webdataset", tmp_path / "out")
    found = read_back(tmp_path / "out")
    assert [key for key, _ in found] == ["a", "b", "a_2", "a_3", "c", "a_4"]
    assert [files for _, files in found] == [pair(seed) for seed in (0, 1, 5, 2, 3, 4)]


def test_a_sample_without_a_name_gets_one(tmp_path: Path) -> None:
    """webdataset skips files that begin with a dot: the sample would vanish."""
    write_tar(tmp_path / "pool" / "0.tar", [("", pair(0)), ("b", pair(1))])
    tamis.export(subset_of(scored(tmp_path / "pool", tmp_path / "run")), "webdataset", tmp_path / "out")
    assert [key for key, _ in read_back(tmp_path / "out")] == ["_", "b"]


# ---- what is read


def test_only_the_byte_ranges_of_kept_samples_are_read(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scored(pool, tmp_path / "run")
    asked: list[tuple[str, int, int]] = []
    plain = tar_module.read_ranges

    def spying(path: str, ranges: Any) -> list[bytes]:
        wanted = list(ranges)
        asked.extend((Path(path).name, offset, size) for offset, size in wanted)
        return plain(path, wanted)

    opened: list[str] = []
    plain_open = tar_module.open_file
    monkeypatch.setattr(tar_module, "read_ranges", spying)
    monkeypatch.setattr(tar_module, "open_file", lambda path: (opened.append(path), plain_open(path))[1])
    tamis.export(subset_of(run, [2, 15]), "webdataset", tmp_path / "out")
    wanted = [("00000.tar", part) for part in run.members("00000", [2])[0]]
    wanted += [("00002.tar", part) for part in run.members("00002", [1])[0]]
    assert asked == [(name, part.offset, part.size) for name, part in wanted]
    assert sum(size for _, _, size in asked) < 0.1 * sum(path.stat().st_size for path in pool.glob("*.tar"))
    assert opened == []  # no shard is read from its start


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.bz2", ".tar.xz", ".tar"])
def test_compressed_shards_are_read_through_and_that_is_said(
    tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [(f"{row:04d}", pair(row)) for row in range(6)]
    path = tmp_path / "pool" / f"0{ending}"
    if ending == ".tar":  # compressed, and not called so
        write_tar(tmp_path / "plain.tar", samples)
        path.parent.mkdir()
        path.write_bytes(gzip.compress((tmp_path / "plain.tar").read_bytes()))
    else:
        write_tar(path, samples, mode=f"w:{ending.rpartition('.')[2]}")
    subset = subset_of(scored(tmp_path / "pool", tmp_path / "run"), [1, 4])
    with caplog.at_level(logging.WARNING):
        assert tamis.export(subset, "webdataset", tmp_path / "out", shard_size=1) == 2
    assert read_back(tmp_path / "out") == [samples[1], samples[4]]
    assert "1 shards are compressed" in caplog.text


# ---- stopping and going on


def test_an_export_goes_on_where_it_stopped(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subset = subset_of(scored(pool, tmp_path / "run"))
    out = tmp_path / "out"
    tamis.export(subset, "webdataset", out, shard_size=8)
    whole = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("*.tar")}
    assert len(whole) == 3
    (out / "00001.tar").unlink()
    (out / "sizes.json").unlink()
    (out / ".00001.tar.0a1b2c3d.tmp").write_bytes(b"half a shard")  # what a kill leaves
    assert tamis.export(subset, "webdataset", out, shard_size=8) == 21
    again = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("*.tar")}
    assert again["00000.tar"] == whole["00000.tar"]  # the time too: it was not written again
    assert again["00002.tar"] == whole["00002.tar"]
    assert again["00001.tar"][0] == whole["00001.tar"][0]
    assert sizes(out) == {"00000.tar": 8, "00001.tar": 8, "00002.tar": 5}
    assert sorted(path.name for path in out.iterdir()) == [*sorted(whole), "export.json", "sizes.json", "written.jsonl"]


@pytest.mark.parametrize("change", ["cut", "foreign", "bit", "not_noted", "notes_damaged"])
def test_a_shard_that_is_not_as_it_was_written_is_written_again(
    pool: Path, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    subset = subset_of(scored(pool, tmp_path / "run"))
    out = tmp_path / "out"
    tamis.export(subset, "webdataset", out, shard_size=8)
    whole = {path.name: path.read_bytes() for path in out.glob("*.tar")}
    tar, notes = out / "00001.tar", out / "written.jsonl"
    content = whole["00001.tar"]
    if change == "cut":
        tar.write_bytes(content[: len(content) // 2])
    elif change == "foreign":
        shutil.copy(pool / "00000.tar", tar)
    elif change == "bit":
        tar.write_bytes(bytes([*content[:3000], content[3000] ^ 1, *content[3001:]]))
    elif change == "not_noted":
        notes.unlink()
    else:
        notes.write_text("[]\n" + notes.read_text().replace("00001.tar", "00009.tar") + '{"name": "00001.t')
    assert tamis.export(subset, "webdataset", out, shard_size=8) == 21
    assert {path.name: path.read_bytes() for path in out.glob("*.tar")} == whole
    count = 3 if change == "not_noted" else 1
    assert f"{count} shards in {out} are not those that this export wrote" in caplog.text
    caplog.clear()
    tamis.export(subset, "webdataset", out, shard_size=8)
    assert "written again" not in caplog.text


def test_a_shard_of_another_is_refused_by_name(pool: Path, tmp_path: Path) -> None:
    subset = subset_of(scored(pool, tmp_path / "run"))
    tamis.export(subset, "webdataset", tmp_path / "out")
    shutil.copy(pool / "00000.tar", tmp_path / "out" / "mine.tar")
    with pytest.raises(RunError, match=r"mine\.tar is no shard of this export: move it elsewhere"):
        tamis.export(subset, "webdataset", tmp_path / "out")


@pytest.mark.parametrize("change", ["rows", "shard_size"])
def test_another_export_does_not_go_into_the_same_folder(pool: Path, tmp_path: Path, change: str) -> None:
    run = scored(pool, tmp_path / "run")
    tamis.export(subset_of(run, [1, 2]), "webdataset", tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    other = subset_of(run, [1, 3] if change == "rows" else [1, 2])
    options = {"shard_size": 1} if change == "shard_size" else {}
    with pytest.raises(RunError, match="holds another export; delete it, or choose another folder"):
        tamis.export(other, "webdataset", tmp_path / "out", **options)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_shard_that_was_replaced_and_indexed_again_makes_another_export(pool: Path, tmp_path: Path) -> None:
    """As many rows as before, and other samples: the shards that are there hold the old ones."""
    tamis.export(subset_of(scored(pool, tmp_path / "run")), "webdataset", tmp_path / "out", shard_size=8)
    write_tar(pool / "00001.tar", [(f"00001{row:04d}", pair(500 + row)) for row in range(7)])
    (tmp_path / "run" / "index" / "00001.parquet").unlink()
    subset = tamis.select(scored(pool, tmp_path / "run"), {"select": []})
    assert len(subset) == 21
    with pytest.raises(RunError, match="holds another export"):
        tamis.export(subset, "webdataset", tmp_path / "out", shard_size=8)


def test_a_folder_with_other_things_in_it_is_left_alone(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    subset = subset_of(scored(pool, tmp_path / "run"), [0])
    with pytest.raises(RunError, match=r"out holds no webdataset export but other files \(thesis.tex, ...\)"):
        tamis.export(subset, "webdataset", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is there and is no webdataset export of tamis"):
        tamis.export(subset, "webdataset", tmp_path / "out" / "thesis.tex")


# ---- a pool that is not what it was


def test_a_shorter_source_shard_is_an_error(pool: Path, tmp_path: Path) -> None:
    subset = subset_of(scored(pool, tmp_path / "run"))
    with open(pool / "00001.tar", "r+b") as file:
        file.truncate(9_000)
    with pytest.raises(RunError, match=r"00001\.tar has changed since it was scored: .*put the old file back"):
        tamis.export(subset, "webdataset", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar"))


def test_another_file_of_the_same_size_is_an_error(pool: Path, tmp_path: Path) -> None:
    """Its byte ranges would be read without complaint, and make broken samples."""
    path = pool / "00001.tar"
    subset = subset_of(scored(pool, tmp_path / "run"), [8, 9])
    size = path.stat().st_size
    samples = [(f"00001{row:04d}", pair(1000 + row)) for row in (1, 0, 2)]
    write_tar(path, samples)
    with open(path, "r+b") as file:
        file.truncate(size)
    with pytest.raises(RunError, match=r"00001\.tar has changed since it was scored"):
        tamis.export(subset, "webdataset", tmp_path / "out")


def test_a_copied_pool_is_the_same_pool(pool: Path, tmp_path: Path) -> None:
    """Copying gives files another time; their samples lie where they lay."""
    run = scored(pool, tmp_path / "run")
    before = source(pool)
    for path in pool.glob("*.tar"):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        os.utime(path, (1, 1))
    tamis.export(subset_of(run, [0, 9, 20]), "webdataset", tmp_path / "out")
    assert read_back(tmp_path / "out") == [before[row] for row in (0, 9, 20)]


def test_a_shard_that_is_gone_is_an_error_that_names_it(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    (pool / "00001.tar").unlink()
    with pytest.raises(RunError, match="the pool no longer has the shard '00001'"):
        tamis.export(subset_of(run, [8]), "webdataset", tmp_path / "out")
    assert tamis.export(subset_of(run, [0, 20]), "webdataset", tmp_path / "out") == 2  # nothing of it is kept
    shutil.rmtree(pool)
    with pytest.raises(PoolError, match="no pool at"):
        tamis.export(subset_of(run, [0]), "webdataset", tmp_path / "other")


def test_samples_that_their_shard_cuts_off_are_left_out_and_that_is_said(
    pool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = source(pool)
    path = pool / "00002.tar"
    with tarfile.open(path) as tar:
        cut = tar.getmembers()[3 * 4].offset_data + 100  # in the middle of the fifth sample's image
    with open(path, "r+b") as file:
        file.truncate(cut)
    run = scored(pool, tmp_path / "run")
    assert run.statuses == {"ok": 18, "shard_cut": 1}
    with caplog.at_level(logging.WARNING):
        assert tamis.export(tamis.select(run, "no-filter"), "webdataset", tmp_path / "out") == 18
    assert read_back(tmp_path / "out") == before[:18]
    assert sizes(tmp_path / "out") == {"00000.tar": 18}
    assert "1 kept samples are left out" in caplog.text


# ---- other kinds of pools


@pytest.mark.parametrize("kind", ["paths.csv", "paths.jsonl", "struct.parquet", "bytes.parquet"])
def test_tables_are_exported_as_shards(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "pool"
    (folder / "images").mkdir(parents=True)
    images, captions = [image_bytes(seed) for seed in range(5)], [caption(seed) for seed in range(5)]
    for seed, data in enumerate(images):
        (folder / "images" / f"{seed}.jpg").write_bytes(data)
    paths = [f"images/{seed}.jpg" for seed in range(5)]
    if kind == "paths.csv":
        lines = ["image,caption", *(f"{path},{text}" for path, text in zip(paths, captions, strict=True))]
        (folder / kind).write_text("\n".join(lines) + "\n")
    elif kind == "paths.jsonl":
        rows = [{"image": path, "caption": text} for path, text in zip(paths, captions, strict=True)]
        (folder / kind).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        structs = [{"bytes": data, "path": f"{seed}.jpg"} for seed, data in enumerate(images)]
        column = pa.array(structs if kind.startswith("struct") else images)
        pq.write_table(pa.table({"image": column, "caption": captions}), folder / kind)
    run = scored(folder / kind, tmp_path / "run")
    assert tamis.export(subset_of(run, [1, 4]), "webdataset", tmp_path / "out") == 2
    found = read_back(tmp_path / "out")
    assert [(files["jpg"], files["txt"].decode()) for _, files in found] == [
        (images[row], captions[row]) for row in (1, 4)
    ]
    assert [key for key, _ in found] == ["000000001", "000000004"]


def test_metadata_without_images_is_an_error_that_says_what_to_export_instead(tmp_path: Path) -> None:
    rows = {
        "uid": [f"{row:032x}" for row in range(4)],
        "url": ["http://x"] * 4,
        "text": [caption(row) for row in range(4)],
        "original_width": [300] * 4,
        "original_height": [200] * 4,
        "clip_l14_similarity_score": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    }
    (tmp_path / "pool").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "pool" / "a.parquet")
    run = scored(tmp_path / "pool", tmp_path / "run")
    subset = tamis.select(run, "clip-50", settings=["columns.clip=clip_l14_similarity_score"])
    with pytest.raises(RunError, match="metadata without image files to copy: export npy, parquet or keys"):
        tamis.export(subset, "webdataset", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert tamis.export(subset, "npy", tmp_path / "subset.npy") == 2
    assert np.load(tmp_path / "subset.npy").tolist() == [(0, 2), (0, 3)]


def test_an_exported_pool_is_a_pool(pool: Path, tmp_path: Path) -> None:
    first = scored(pool, tmp_path / "run")
    tamis.export(subset_of(first, [3, 10]), "webdataset", tmp_path / "out")
    again = scored(tmp_path / "out", tmp_path / "again")
    assert again.to_arrow(["words"]).column("uid").to_pylist() == [
        first.to_arrow(["words"]).column("uid").to_pylist()[row] for row in (3, 10)
    ]


def test_tars_with_pax_headers_are_recognised_after_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "pool" / "0.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for row in range(3):
            for ext, data in pair(row).items():
                info = tarfile.TarInfo(f"größe{row}.{ext}")
                info.size, info.mtime = len(data), 1.5  # a fraction needs a record of its own
                tar.addfile(info, io.BytesIO(data))
    run = scored(path.parent, tmp_path / "run")
    os.utime(path, (1, 1))
    tamis.export(subset_of(run, [1]), "webdataset", tmp_path / "out")
    assert read_back(tmp_path / "out") == [("größe1", pair(1))]


def test_growing_a_pool_keeps_the_shards_that_were_there(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    run = scored(tmp_path / "pool", tmp_path / "run")
    subset = subset_of(run, [2])
    write_pool(tmp_path / "pool", shards=1, first=1)
    tamis.export(subset, "webdataset", tmp_path / "out")
    assert read_back(tmp_path / "out") == [("000000002", pair(2))]


def test_keys_that_climb_out_of_the_folder_are_tamed(tmp_path: Path) -> None:
    keys = ["../../evil", "/etc/passwd", "a/./b/../c", "good/one"]
    write_tar(tmp_path / "pool" / "0.tar", [(key, pair(seed)) for seed, key in enumerate(keys)])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", scores=["caption_length"], quiet=True)
    subset = tamis.select(run, "no-filter")
    tamis.export(subset, "webdataset", tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        names = [name.removesuffix(".jpg") for name in tar.getnames() if name.endswith(".jpg")]
    assert names == ["evil", "etc/passwd", "a/b/c", "good/one"]
