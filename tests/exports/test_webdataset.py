"""WebDataset shards, read back with the webdataset library."""

import gzip
import io
import itertools
import json
import logging
import os
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported import Files, read_back, scored
from factories import image_bytes, pair, write_metadata, write_pool, write_tar
from PIL import Image

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.pools import tar as tar_module


def subset_of(run: tamis.Run, kept: Sequence[int] | None = None) -> tamis.Subset:
    keep = np.zeros(len(run), bool)
    keep[range(len(run)) if kept is None else list(kept)] = True
    return tamis.Subset(run=run, keep=keep, recipe={"name": "mine"})


def sizes(out: Path) -> Mapping[str, int]:
    found: Mapping[str, int] = json.loads((out / "sizes.json").read_text())
    return found


@pytest.mark.parametrize(("kept", "wanted"), [([1, 2, 8, 9, 19, 20], [5, 1]), ([], [])], ids=str)
def test_kept_samples_come_back_byte_for_byte_in_shards_of_the_size_asked_for(
    pool: Path, tmp_path: Path, kept: list[int], wanted: list[int]
) -> None:
    there = read_back(pool)
    subset = subset_of(scored(pool, tmp_path / "run"), kept)
    for path in pool.glob("*.tar"):  # a pool that was copied or grew is the same pool
        os.utime(path, (1, 1))
    write_tar(pool / "00009.tar", [("new", pair(77))])
    for out in (tmp_path / "out", tmp_path / "again"):
        assert tamis.export(subset, "webdataset", out, shard_size=5) == len(kept)
    assert sizes(tmp_path / "out") == {f"{number:05d}.tar": count for number, count in enumerate(wanted)}
    for path in sorted((tmp_path / "out").glob("*.tar")):
        assert len(read_back(tmp_path / "out", path.name)) == sizes(tmp_path / "out")[path.name]
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    assert read_back(tmp_path / "out") == [there[row] for row in kept]


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


LONG = f"part_1/{'long' * 40}/{'x' * 90}"


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ([LONG, f"{LONG}1"], [LONG, f"{LONG}1"]),
        (["v1.5/a", "v1.6/a", "b"], ["v1_5/a", "v1_6/a", "b"]),
        (["a", "b", "a_2", "a", "c", "a"], ["a", "b", "a_2", "a_3", "c", "a_4"]),
        (["../../evil", "/etc/passwd", "a/./b/../c", "good/one"], ["evil", "etc/passwd", "a/b/c", "good/one"]),
    ],
    ids=["long", "dotted", "repeated", "climbing"],
)
def test_keys_become_names_that_webdataset_reads(
    tmp_path: Path, keys: list[str], wanted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    samples = [(key, pair(seed)) for seed, key in enumerate(keys)]
    for shard in range(2):  # the fourth key and those after it are in another shard of the pool
        write_tar(tmp_path / "pool" / f"{shard}.tar", samples[3 * shard :][: 3 if not shard else None])
    with caplog.at_level(logging.WARNING):
        tamis.export(subset_of(scored(tmp_path / "pool", tmp_path / "run")), "webdataset", tmp_path / "out")
    assert read_back(tmp_path / "out") == [(key, pair(seed)) for seed, key in enumerate(wanted)]
    changed = sum(key != name for key, name in zip(keys, wanted, strict=True))
    assert (f"{changed} keys changed" in caplog.text) == bool(changed)
    assert sum(sizes(tmp_path / "out").values()) == sum(
        counted_by_datasets(tmp_path / "out", tmp_path / "cache").values()
    )


def test_a_row_that_is_kept_k_times_is_k_samples_and_compressed_shards_are_read_through_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_pool(tmp_path / "pool", shards=1, rows=5)
    (tar,) = folder.glob("*.tar")
    (folder / f"{tar.name}.gz").write_bytes(gzip.compress(tar.read_bytes()))
    tar.unlink()
    run = scored(folder, tmp_path / "run")
    times = np.array([2, 0, 3, 1, 1], np.uint16)
    subset = tamis.Subset(run=run, keep=times > 0, times=times)
    assert tamis.export(subset, "webdataset", tmp_path / "out", shard_size=4) == 7
    captions = run.index(run.shards[0], ["caption"])["caption"].to_pylist()
    found = read_back(tmp_path / "out")
    assert [files["txt"].decode() for _, files in found] == [captions[row] for row in (0, 0, 2, 2, 2, 3, 4)]
    assert len({key for key, _ in found}) == 7  # over both shards, one of which has the third copy of a row
    assert sizes(tmp_path / "out") == {"00000.tar": 4, "00001.tar": 3}  # no sample takes another one's name
    assert "1 shards are compressed" in caplog.text


def test_repeats_can_be_weights(tmp_path: Path) -> None:
    samples: list[tuple[str, Files]] = [
        ("a", pair(0, seen="ü")), ("b", pair(1)), ("c", {"txt": b"c"}), ("d", pair(2) | {"json": b"{"}),
    ]  # fmt: skip
    write_tar(tmp_path / "pool" / "0.tar", samples)
    run, times = scored(tmp_path / "pool", tmp_path / "run"), np.array([3, 0, 1, 2], np.uint16)
    subset = tamis.Subset(run=run, keep=times > 0, times=times)
    assert tamis.export(subset, "webdataset", tmp_path / "out", weights=True, shard_size=2) == 3
    found = read_back(tmp_path / "out")
    known = json.loads(samples[0][1]["json"])
    assert [json.loads(files["json"]) for _, files in found] == [known | {"weight": 3}, {"weight": 1}, {"weight": 2}]
    plain = [(key, {ext: data for ext, data in files.items() if ext != "json"}) for key, files in samples]
    assert [(key, {ext: data for ext, data in files.items() if ext != "json"}) for key, files in found] == [
        plain[0], plain[2], plain[3],
    ]  # fmt: skip
    with pytest.raises(RunError, match="another export"):
        tamis.export(subset, "webdataset", tmp_path / "out", shard_size=2)
    once = replace(subset, times=None)
    assert tamis.export(once, "webdataset", tmp_path / "once", weights=True) == 3
    assert {json.loads(files["json"])["weight"] for _, files in read_back(tmp_path / "once")} == {1}


def trained(out: Path) -> dict[str, list[tuple[bytes, str]]]:
    """What open_clip 3.3.0 trains on, by shard: `filter_no_caption_or_no_image`, then image "jpg;png;jpeg;webp"."""
    read = {path.name: [files for _, files in read_back(out, path.name)] for path in sorted(out.glob("*.tar"))}
    return {
        name: [
            (next(files[ext] for ext in ("jpg", "png", "jpeg", "webp") if ext in files), files["txt"].decode())
            for files in samples
            if "txt" in files and {"png", "jpg", "jpeg", "webp"} & files.keys()
        ]
        for name, samples in read.items()
    }


def counted_by_datasets(out: Path, cache: Path) -> dict[str, int]:
    """Samples with an image and a caption, as `datasets` reads an export; it needs the names of rare files."""
    datasets.disable_progress_bars()
    words = dict.fromkeys(("__key__", "__url__", "txt"), datasets.Value("string"))
    images = dict.fromkeys(("jpg", "jpeg", "png", "webp"), datasets.Image(decode=False))
    files = [str(path) for path in sorted(out.glob("*.tar"))]
    read = datasets.load_dataset(
        "webdataset", data_files=files, split="train", cache_dir=str(cache),
        features=datasets.Features({**words, **images}),
    )  # fmt: skip
    found = {Path(path).name: 0 for path in files}
    for row in read:
        found[Path(row["__url__"]).name] += row["txt"] is not None and any(row[ext] is not None for ext in images)
    return found


def of_all_kinds(given: str, texts: Sequence[str]) -> list[tuple[str, Files]]:
    """Samples of every kind, their captions in the json; some have another `txt`."""
    formats = ("JPEG", "JPEG", "PNG", "WEBP", "GIF", "GIF", "BMP", "JPEG")
    exts = ("jpg", "JPEG", "png", "WebP", "gif", "GIF", "bmp", "jpg")
    keys = ("a", "dir.1/b", "dir.1/d", "__e", "f", "g", "h", "__i__/j")
    files = [
        {ext: image_bytes(row, format=format)} for row, (ext, format) in enumerate(zip(exts, formats, strict=True))
    ]
    files[7]["jpg"] = b"no image"
    for row, (sample, text) in enumerate(zip(files, texts, strict=True)):
        sample["json"] = json.dumps({given: [text, "another"] if row % 2 else text}).encode()
        if row in (1, 2):
            sample["txt"] = b"not what was scored"
    without = {"png": image_bytes(20, format="PNG"), "json": b"{}", "txt": b"not scored"}
    return [*zip(keys, files, strict=True), ("k", without), ("l", {"txt": b"alone"})]


@pytest.mark.parametrize("captions", [None, "first", "each"])
@pytest.mark.parametrize("images", ["stored", "jpeg"])
def test_sizes_count_what_trainers_read_and_the_text_is_the_one_that_was_scored(
    tmp_path: Path, images: str, captions: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [f"caption {row}, größer" for row in range(8)]
    write_tar(tmp_path / "pool" / "0.tar", of_all_kinds("long", texts))
    spec = tamis.PoolSpec(
        path=str(tmp_path / "pool"), caption="json:long", captions=captions,
        image_extensions=("jpg", "jpeg", "png", "webp", "gif", "bmp"),
    )  # fmt: skip
    run = tamis.score(spec, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    out = tmp_path / "out"
    assert tamis.export(subset_of(run), "webdataset", out, images=images, shard_size=4) == len(run)
    seen = trained(out)
    assert sizes(out) == {name: len(pairs) for name, pairs in seen.items()}
    assert sizes(out) == counted_by_datasets(out, tmp_path / "cache")
    assert len(read_back(out)) == len(run)
    rows = (0, 1, 2, 3, 4, 5, 6, 7) if images == "jpeg" else (0, 1, 2, 3, 7)
    wanted = [text for row in rows for text in ([texts[row]] + ["another"] * (captions == "each" and row % 2))]
    assert [text for pairs in seen.values() for _, text in pairs] == wanted
    stored = [data for _, files in of_all_kinds("long", texts)[:8] for data in files.values()][: 3 * 8]
    kept = [image for pairs in seen.values() for image, _ in pairs]
    assert sum(image in stored for image in kept) == len(wanted) - (3 if captions != "each" else 4) * (images == "jpeg")
    assert f"{3 if captions == 'each' else 2} with gif" in caplog.text or images == "jpeg"
    assert "1 without a caption" in caplog.text
    assert ("--set images=jpeg" in caplog.text) == (images == "stored")
    with pytest.raises(RunError, match="another export"):
        tamis.export(subset_of(run), "webdataset", out, images={"jpeg": "stored"}.get(images, "jpeg"), shard_size=4)


def test_an_image_is_converted_as_it_was_judged_and_stays_if_it_cannot_be(tmp_path: Path) -> None:
    black_on_nothing = io.BytesIO()
    drawing = Image.new("RGBA", (40, 30), (0, 0, 0, 0))
    drawing.paste((0, 0, 0, 255), (0, 0, 20, 30))
    drawing.save(black_on_nothing, "GIF")
    table = {"image": [black_on_nothing.getvalue(), image_bytes(1), b"GIF89a broken"], "caption": ["one", "two", None]}
    pq.write_table(pa.table(table), tmp_path / "pool.parquet")
    run = scored(tamis.PoolSpec(path=str(tmp_path / "pool.parquet"), transparency="white"), tmp_path / "run")
    tamis.export(subset_of(run), "webdataset", tmp_path / "out", images="jpeg")
    (drawn, photo, broken) = (files for _, files in read_back(tmp_path / "out"))
    pixels = np.asarray(Image.open(io.BytesIO(drawn["jpg"])))
    assert (pixels[:, :16].max() < 30, pixels[:, 24:].min() > 225) == (True, True)
    assert photo["jpg"] == table["image"][1]
    assert broken.keys() == {"json"}  # a table's cell that is no image is no file, and there is no caption
    assert sizes(tmp_path / "out") == {"00000.tar": 2}
    with pytest.raises(RecipeError, match="images: expected 'stored' or 'jpeg', got 'jpg'"):
        tamis.export(subset_of(run), "webdataset", tmp_path / "else", images="jpg")


def prepared(out: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in (out / ".nv-meta").iterdir()}


def test_energon_gets_an_index_of_each_shard_and_keys_of_their_own(tmp_path: Path) -> None:
    long = "x" * 150  # its header is preceded by another, which holds the name
    for shard in range(2):  # the same keys twice
        samples = [(key, pair(10 * shard + row)) for row, key in enumerate(("a", long, "c"))]
        write_tar(tmp_path / "pool" / f"{shard}.tar", [*samples, ("d", {"txt": b"d", "png": image_bytes(9)})])
    subset = subset_of(scored(tmp_path / "pool", tmp_path / "run"))
    out = tmp_path / "out"
    assert tamis.export(subset, "webdataset", out, shard_size=5, energon=True) == 8
    assert sizes(out) == {"00000.tar": 5, "00001.tar": 3}
    keys = []
    for name, count in sizes(out).items():
        data = (out / name).read_bytes()
        places = np.frombuffer((out / f"{name}.idx").read_bytes(), "<u8").tolist()
        assert len(places) == count + 1
        assert (places[0], data[places[-1] :].strip(b"\0")) == (0, b"")
        assert data[places[-1] - 512 : places[-1]].strip(b"\0")  # the last block of the last sample
        for start, end in itertools.pairwise(places):  # the bytes between are a tar of one sample, whole
            with tarfile.open(fileobj=io.BytesIO(data[start:end] + bytes(1024))) as tar:
                names = tar.getnames()
            assert {Path(one).suffix for one in names} >= {".txt"}
            keys += {one.partition(".")[0] for one in names}
    first, second = ("a", long, "c", "d", "a_2"), (long, "c", "d")
    assert keys == [*(f"00000/{key}" for key in first), *(f"00001/{key}" for key in second)]
    assert prepared(out) == {
        ".info.json": {"shard_counts": sizes(out)},
        "split.yaml": {"split_parts": {"train": ["00000.tar", "00001.tar"], "val": [], "test": []}, "exclude": []},
        "dataset.yaml": {
            "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
            "field_map": {"image": "jpg,png", "caption": "txt"},
        },
    }
    (out / "00000.tar.idx").unlink()
    tamis.export(subset, "webdataset", out, shard_size=5, energon=True)
    assert (out / "00000.tar.idx").is_file()
    with pytest.raises(RunError, match="holds another export"):
        tamis.export(subset, "webdataset", out, shard_size=5)


def test_the_index_has_the_samples_that_energon_finds(tmp_path: Path) -> None:
    keys = ["part.1/a", "part.1/b", "part.1.2/a", "c", "__d__/e", f"{'f' * 120}/g.h/i"]
    write_tar(tmp_path / "pool" / "0.tar", [(key, pair(row)) for row, key in enumerate(keys)])
    run, out = scored(tmp_path / "pool", tmp_path / "run"), tmp_path / "out"
    tamis.export(subset_of(run), "webdataset", out, shard_size=4, energon=True)
    for name in ("00000.tar", "00001.tar"):
        places, last = [], None
        with tarfile.open(out / name) as tar:  # as `energon prepare` 7.4.1 does (`_preprocess_tar`)
            for member in tar:
                found = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", member.name)
                if found and not re.match(r"__[^/]*__($|/)", member.name):
                    places += [member.offset] * (found[1] != last)
                    last = found[1]
            places.append(tar.offset)
        assert np.frombuffer((out / f"{name}.idx").read_bytes(), "<u8").tolist() == places
        assert len(places) == prepared(out)[".info.json"]["shard_counts"][name] + 1


def test_only_the_bytes_of_kept_samples_are_read(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scored(pool, tmp_path / "run")
    asked: list[tuple[str, int, int]] = []
    plain = tar_module.read_ranges

    def spying(path: str, ranges: Any, file: Any) -> list[Any]:
        asked.extend((Path(path).name, offset, size) for offset, size in ranges)
        return plain(path, ranges, file)

    opened: list[Path] = []
    plain_open = tar_module.open_file
    monkeypatch.setattr(tar_module, "read_ranges", spying)
    monkeypatch.setattr(tar_module, "open_file", lambda path: (opened.append(Path(path)), plain_open(path))[1])
    tamis.export(subset_of(run, [2, 15]), "webdataset", tmp_path / "out")
    places = [(shard, run.index(shard)["members"].to_pylist()[row]) for shard, row in (("00000", 2), ("00002", 1))]
    assert asked == [(f"{shard}.tar", part["offset"], part["size"]) for shard, members in places for part in members]
    assert pool not in {path.parent for path in opened}  # no shard of it is read from its start


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
    assert sorted(path.name for path in out.iterdir()) == [*sorted(whole), "export.json", "sizes.json"]


@pytest.mark.parametrize("change", ["rows", "shard_size", "pool"])
def test_another_export_does_not_go_into_the_same_folder(pool: Path, tmp_path: Path, change: str) -> None:
    subset = subset_of(scored(pool, tmp_path / "run"), [1, 2, 8])
    tamis.export(subset, "webdataset", tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    if change == "rows":
        subset = subset_of(subset.run, [1, 3, 8])
    if change == "pool":  # as many rows as before, and other samples
        write_tar(pool / "00001.tar", [(f"00001{row:04d}", pair(500 + row)) for row in range(7)])
        (tmp_path / "run" / "index" / "00001.parquet").unlink()
        subset = subset_of(scored(pool, tmp_path / "run"), [1, 2, 8])
    with pytest.raises(RunError, match="holds another export"):
        tamis.export(subset, "webdataset", tmp_path / "out", **({"shard_size": 1} if change == "shard_size" else {}))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_files_of_others_are_left_alone(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    subset = subset_of(scored(pool, tmp_path / "run"), [0])
    for out in (tmp_path / "out", tmp_path / "out" / "thesis.tex"):
        with pytest.raises(RunError, match=r"thesis\.tex"):
            tamis.export(subset, "webdataset", out)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    tamis.export(subset, "webdataset", tmp_path / "good")
    shutil.copy(pool / "00000.tar", tmp_path / "good" / "mine.tar")
    with pytest.raises(RunError, match=r"mine\.tar"):  # a training on the folder would read it too
        tamis.export(subset, "webdataset", tmp_path / "good")


def test_a_shard_that_changed_since_it_was_scored_is_an_error(pool: Path, tmp_path: Path) -> None:
    """Else the old byte ranges would be read from the new file, and make broken samples."""
    path = pool / "00001.tar"
    subset = subset_of(scored(pool, tmp_path / "run"), [8, 9])
    size = path.stat().st_size
    write_tar(path, [(f"00001{row:04d}", pair(1000 + row)) for row in (1, 0, 2)])
    with open(path, "r+b") as file:
        file.truncate(size)
    with pytest.raises(RunError, match=r"00001\.tar has changed since it was scored"):
        tamis.export(subset, "webdataset", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar"))


def test_a_shard_that_is_gone_is_an_error_that_names_it(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    tamis.export(subset_of(run, [0]), "webdataset", tmp_path / "old")
    (pool / "00001.tar").unlink()
    with pytest.raises(RunError, match="the pool no longer has the shard '00001'"):
        tamis.export(subset_of(run, [0, 8]), "webdataset", tmp_path / "old", overwrite=True)
    assert (tmp_path / "old" / "00000.tar").is_file()  # nothing is deleted for what cannot be written
    with pytest.raises(RunError, match="the pool no longer has the shard '00001'"):
        tamis.export(subset_of(run, [8]), "webdataset", tmp_path / "out")
    assert tamis.export(subset_of(run, [0, 20]), "webdataset", tmp_path / "out") == 2  # none of its rows is kept


def test_samples_that_their_shard_cuts_off_are_left_out_and_that_is_said(
    pool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = read_back(pool)
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


def test_metadata_without_images_is_an_error_that_says_what_to_export_instead(tmp_path: Path) -> None:
    write_metadata(tmp_path / "pool" / "a.parquet")
    subset = subset_of(scored(tmp_path / "pool", tmp_path / "run"), [2, 3])
    with pytest.raises(RunError, match="metadata without images to copy: export npy, parquet or keys"):
        tamis.export(subset, "webdataset", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_overwrite_deletes_only_what_the_export_wrote_and_nothing_if_refused(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    tamis.export(subset_of(run), "webdataset", out, shard_size=5, energon=True)
    (out / "00099.tar").write_bytes(b"a year of work")
    (out / ".nv-meta" / "mine.yaml").write_bytes(b"mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"00099\.tar is not a shard of this export: move it elsewhere"):
        tamis.export(subset_of(run, [1]), "webdataset", out, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    (out / "00099.tar").unlink()
    shutil.move(out / ".nv-meta", elsewhere)
    (out / ".nv-meta").symlink_to(elsewhere)
    theirs = {path: path.read_bytes() for path in elsewhere.iterdir()}
    manifest = json.loads((out / "export.json").read_bytes())
    (tmp_path / "outside.tar").write_bytes(b"mine")
    manifest["files"] += ["../outside.tar", str(tmp_path / "outside.tar")]
    (out / "export.json").write_text(json.dumps(manifest))
    assert tamis.export(subset_of(run, [1]), "webdataset", out, overwrite=True) == 1
    assert sorted(os.listdir(out)) == [".nv-meta", "00000.tar", "export.json", "sizes.json"]
    assert (tmp_path / "outside.tar").read_bytes() == b"mine"
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == theirs


def test_an_export_that_is_the_pool_is_not_overwritten(pool: Path, tmp_path: Path) -> None:
    first = subset_of(scored(pool, tmp_path / "run"))
    tamis.export(first, "webdataset", tmp_path / "out")
    again = scored(tmp_path / "out", tmp_path / "again")
    before = read_back(tmp_path / "out")
    with pytest.raises(RunError, match="which this command reads: choose another folder"):
        tamis.export(subset_of(again, [0]), "webdataset", tmp_path / "out", overwrite=True)
    assert read_back(tmp_path / "out") == before
