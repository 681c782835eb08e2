"""Folders of images with captions next to them, and datasets as Hugging Face writes them to disk and to the hub."""

import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import caption, image_bytes, index_rows, pair, write_pool

import tamis
from tamis.core.errors import PoolError, RunError
from tamis.pools import PoolSpec, folder, open_pool, table_shards
from tamis.runs.stream import samples_of


def score(path: Path, run: Path, **settings: Any) -> tamis.Run:
    return tamis.score(PoolSpec(path=str(path), **settings), run=run, signals=["image_size"], quiet=True)


def write(root: Path, files: Mapping[str | bytes, bytes]) -> Path:
    for name, data in files.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(data)
    return root


def photos(root: Path, numbers: range) -> Path:
    return write(root, {f"{n:05}.{ext}": data for n in numbers for ext, data in pair(n).items() if ext != "json"})


def rows_of(path: Path, **settings: Any) -> dict[str, Any]:
    shards = open_pool(PoolSpec(path=str(path), **settings)).shards
    return {sample.key: sample for shard in shards for sample in shard.samples()}


def test_unpacked_tars_have_the_rows_the_files_and_the_exports_of_the_tars(tmp_path: Path) -> None:
    """A row is read again by its place; also after other files came before and after it."""
    tars = write_pool(tmp_path / "tars", shards=2, rows=4)
    for path in sorted(tars.glob("*.tar")):
        with tarfile.open(path) as tar:
            tar.extractall(tmp_path / "photos" / path.stem, filter="data")
    runs = score(tars, tmp_path / "a"), score(tmp_path / "photos", tmp_path / "b")
    assert runs[1].facts["pool"]["kind"] == "folder"
    one, two = ([row for shard in run.shards for row in index_rows(run, shard)] for run in runs)
    for was, now in zip(one, two, strict=True):
        assert now["key"].rpartition("/")[2] == was["key"]
        same = ("uid_hi", "uid_lo", "caption", "status", "image_bytes", "image_xxh3", "original_width")
        assert [now[name] for name in same] == [was[name] for name in same]
    photos(tmp_path / "photos" / "00000", range(90, 93))
    (tmp_path / "photos" / "00000" / "!.jpg").write_bytes(image_bytes(5))
    exports = []
    for run in runs:
        out = run.path.with_suffix(".export")
        tamis.export(tamis.select(run, {"select": []}), to="webdataset", out=out)
        with tarfile.open(out / "00000.tar") as tar:
            exports.append({Path(one.name).name: tar.extractfile(one).read() for one in tar})  # type: ignore[union-attr]
    assert len(exports[0]) == 24
    assert exports[0] == exports[1]
    pixels = [[sample.pixels for sample in samples_of(run, order=[6, 1, 1], fields={"pixels"})] for run in runs]
    np.testing.assert_array_equal(pixels[0], pixels[1])


def test_every_odd_file_is_a_row_with_a_reason_or_no_row(tmp_path: Path) -> None:
    """What may be any file of this machine is not read, whatever the folder's links say."""
    root, picture = tmp_path / "photos", image_bytes(1)
    (tmp_path / "secret.txt").write_text("a password")
    (tmp_path / "elsewhere.jpg").write_bytes(picture)
    write(root, {
        "UPPER.JPG": picture, "UPPER.TXT": b"upper case", "v1.2.jpg": picture, "v1.2.txt": b"dots", "v1.jpg": picture,
        "two.jpg": picture, "two.png": image_bytes(2, format="PNG"), "two.txt": b"a jpg", "words.txt": b"words",
        "twice.jpg": picture, "twice.JPG": picture, "twice.txt": b"twice", "new\nline.jpg": picture,
        "new\nline.txt": b"new line", b"caf\xe9.jpg": picture, b"caf\xe9.txt": b"a cafe", "bad.jpg": picture,
        "bad.txt": b"caf\xe9", ".hidden.jpg": picture, ".git/a.jpg": picture, "notes.md": b"none", "out.jpg": picture,
        "huge.jpg": picture, "pipe.txt": b"no image", "text.txt": b"no image", "gone.txt": b"a link to nothing",
        "far.txt": b"a link", "near.jpg": picture, "_.jpg": picture, "_.txt": b"an underscore", "note.json": b"{}",
    })  # fmt: skip
    with (root / "huge.txt").open("wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(root / "pipe.jpg")
    for name, target in {
        "out.txt": tmp_path / "secret.txt", "text.jpg": tmp_path / "secret.txt", "gone.jpg": tmp_path / "nothing",
        "far.jpg": tmp_path / "elsewhere.jpg", "near.txt": root / "words.txt", "loop": root, "self.txt": "self.txt",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    found = rows_of(root)
    good = {
        "UPPER": "upper case", "v1.2": "dots", "two": "a jpg", "new\nline": "new line", "caf\\udce9": "a cafe",
        "far": "a link", "near": "words", "_": "an underscore",
    }  # fmt: skip
    assert {key: (found[key].caption, found[key].status) for key in good} == {
        key: (text, "ok") for key, text in good.items()
    }
    assert found["two"].image == picture
    faults = {
        "v1": ("caption_missing", "there is no .txt file"),
        "words": ("image_missing", "no file is an image; the sample's files: txt"),
        "bad": ("caption_not_utf8", ""),
        "out": ("caption_missing", "the .txt file is a link to a file outside the folder"),
        "huge": ("caption_missing", "the .txt file has 1,073,741,824 bytes"),
        "pipe": ("image_missing", "the .jpg file is not a regular file"),
        "text": ("image_missing", "the .jpg file is a link to a file outside the folder"),
        "gone": ("image_missing", "the .jpg file cannot be read: No such file"),
        "self": ("image_missing", "no file is an image"),
        "twice": ("duplicate_key", "an earlier sample of this shard has the key"),
    }
    for key, (status, reason) in faults.items():
        assert (found[key].status, reason in (found[key].reason or "")) == (status, True), key
    assert found.keys() == good.keys() | faults.keys()
    run = score(root, tmp_path / "run")
    assert run.statuses["ok"] + len(faults) == len(run) - 1  # of `twice`, one row of two
    texts = {sample.key: sample for sample in samples_of(run, fields={"key", "files"}, errors="mark")}
    assert b"a password" not in [data for sample in texts.values() for data in (sample.files or {}).values()]
    assert (texts["two"].files or {}).keys() == {"jpg", "png", "txt"}
    assert (texts["huge"].files or {}).keys() == {"jpg"}


def test_links_into_the_store_of_git_annex_or_dvc_are_followed(tmp_path: Path) -> None:
    """Links to other files outside are not, and the message names them."""
    for inner in (".git/annex/objects/a1", ".dvc/cache/files"):
        store, root = tmp_path / "project" / inner, tmp_path / "project" / "photos" / inner[1:4]
        write(store, {"1": image_bytes(1), "2": b"a cat"})
        root.mkdir(parents=True)
        (root / "a.jpg").symlink_to(store / "1")
        (root / "a.txt").symlink_to(f"../../{inner}/2")
        assert rows_of(root)["a"].caption == "a cat"
        elsewhere = tmp_path / f"other-{inner[1:4]}"
        shutil.copytree(root, elsewhere, symlinks=True)
        (elsewhere / "a.txt").unlink()
        (elsewhere / "a.txt").symlink_to(store / "2")
        with pytest.raises(
            PoolError, match=r"the \.txt file is a link to a file outside the folder: copy it with 'cp -rL'"
        ):
            tamis.score(elsewhere, run=tmp_path / "run", signals=["caption_length"], quiet=True)
        os.rename(elsewhere / "a.txt", elsewhere / "a.json")
        with pytest.raises(PoolError, match=r"1 image without captions; a \.json is a link to a file outside"):
            score(elsewhere, tmp_path / "run")


def test_images_of_every_usual_ending_are_read_in_folders_and_tars(tmp_path: Path) -> None:
    kinds = {"jfif": "JPEG", "jpe": "JPEG", "BMP": "BMP", "tif": "TIFF", "tiff": "TIFF", "avif": "AVIF", "gif": "GIF"}
    files = {f"{n}.{ending}": image_bytes(n, format=kind) for n, (ending, kind) in enumerate(kinds.items())}
    texts = {f"{n}.txt": b"a cat" for n in range(len(kinds))}
    root = write(tmp_path / "photos", {**files, **texts})  # type: ignore[arg-type]
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "0.tar", "w") as tar:
        for name in sorted({**files, **texts}):
            tar.add(root / name, name)
    for pool in (root, tmp_path / "tars"):
        run = score(pool, tmp_path / f"run-{pool.name}")
        assert [(row["key"], row["status"]) for row in index_rows(run)] == [(f"{n}", "ok") for n in range(len(kinds))]
    # A run keeps the endings that it was made with.
    old = score(root, tmp_path / "run", image_extensions=("gif", "bmp"))
    assert old.statuses == {"ok": 2, "image_missing": 5}
    assert tamis.score(root, run=tmp_path / "run", signals=["image_hash"], quiet=True).statuses == old.statuses
    with pytest.raises(RunError, match="image_extensions"):
        score(root, tmp_path / "run", image_extensions=("gif",))


def test_what_is_left_out_of_a_folder_is_counted(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", range(2))
    write(root, {"._0.jpg": b"", ".DS_Store": b"", "@eaDir/0.jpg/thumb.jpg": image_bytes(0), "__MACOSX/._0.jpg": b""})
    (root / "more").symlink_to(photos(tmp_path / "more", range(2)))
    pool = open_pool(root)
    assert pool.about.endswith("a folder of 2 images; captions: txt; left out: 2 hidden files, 1 linked folder")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "more").symlink_to(root)
    with pytest.raises(PoolError, match="no image, tar or table; left out: 1 linked folder"):
        open_pool(tmp_path / "links")


def test_captions_in_json_are_found_by_the_usual_names_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    files = {}
    for number in range(3):
        facts = {"lens": 3, "text": caption(number), "long": f"{number} long", "uid": f"{number:032x}"}
        files |= {f"a/{number}.jpg": image_bytes(number), f"a/{number}.json": json.dumps(facts).encode()}
    root = write(tmp_path / "photos", {**files, "readme.txt": b"of no image", "a/other.json": b"[]"})
    assert [sample.caption for sample in rows_of(root).values()] == [caption(0), caption(1), caption(2), None]
    assert "captions: json:text; without an image: 1" in open_pool(root).about
    asked = rows_of(root, caption="json:long", fields=("lens",))
    assert [asked[f"a/{number}"].caption for number in range(3)] == ["0 long", "1 long", "2 long"]
    assert (asked["a/2"].uid, asked["a/2"].given) == ((0, 2), {"lens": "3"})


def test_a_folder_is_cut_into_shards_whose_ends_stay_when_files_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder, "SHARD_PAIRS", 4)
    root = photos(tmp_path / "photos", range(10, 20))
    first = open_pool(root)
    names = [shard.name for shard in first.shards]
    assert [len(list(shard.samples())) for shard in first.shards] == [4, 4, 2]
    assert [name[:19] for name in names] == ["photos", "photos-rows00000000", "photos-rows00000000"]
    run = score(root, tmp_path / "run")
    before = {shard.name: shard.stamp() for shard in first.shards}
    photos(root, range(5, 8))
    photos(root, range(30, 39))
    grown = open_pool(root, run.urls)
    assert [shard.name for shard in grown.shards] == names
    assert [shard.name for shard in grown.shards if shard.stamp() == before[shard.name]] == names[1:2]
    score(root, tmp_path / "run")
    assert "2 shards of another size or time than when indexed; to read one again, delete" in caplog.text
    assert len(tamis.Run(tmp_path / "run")) == 10
    for shard in (names[0], names[2]):  # what the warning says
        (tmp_path / "run" / "index" / f"{shard}.parquet").unlink()
    again = score(root, tmp_path / "run")
    assert (len(again), again.sizes) == (22, (7, 4, 11))
    assert len(set(again.to_arrow()["uid"].to_pylist())) == 22
    moved = shutil.move(root, tmp_path / "there" / "photos")
    assert [shard.name for shard in open_pool(moved, run.urls).shards] == names
    photos(Path(moved), range(1, 2))
    failed = tamis.score(moved, run=tmp_path / "run", signals=["image_hash"], quiet=True).failures
    assert failed.keys() == {names[0]}
    assert "the shard photos now has another key in row 0" in failed[names[0]]


def test_a_shard_whose_first_pair_is_gone_is_still_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SHARD_PAIRS", 4)
    root = photos(tmp_path / "photos", range(12))
    run = score(root, tmp_path / "run")
    for number in (2, 4, 8):  # two first pairs
        for ending in ("jpg", "txt"):
            (root / f"{number:05}.{ending}").unlink()
    keep = np.ones(12, bool)
    keep[[2, 4, 8]] = False
    run = tamis.open_run(run.path)  # which lists the folder again
    kept = tamis.Subset(run=run, keep=keep, recipe={"name": "mine"})
    assert tamis.export(kept, "webdataset", tmp_path / "out") == 9
    images = [sample.image for sample in samples_of(kept, fields={"image"})]
    assert images == [image_bytes(number) for number in range(12) if keep[number]]
    (gone,) = samples_of(run, order=[4], fields={"image"}, errors="mark")
    assert "the .jpg file is no longer there" in str(gone.problem)
    for part in (tmp_path / "run" / "index").iterdir():
        part.unlink()
    assert score(root, tmp_path / "run").sizes == (9, 0, 0)


def test_a_run_grows_by_another_folder_of_the_same_name(tmp_path: Path) -> None:
    one, two = photos(tmp_path / "a" / "photos", range(3)), photos(tmp_path / "b" / "photos", range(3, 5))
    score(one, tmp_path / "run")
    grown = tamis.score(two, run=tmp_path / "run", signals=["image_size"], grow=True, quiet=True)
    assert sorted(grown.sizes) == [2, 3]
    assert [sample.image for sample in samples_of(grown, fields={"image"})] == [image_bytes(n) for n in range(5)]
    assert len(tamis.score(PoolSpec(path=(str(one), str(two))), run=tmp_path / "both", signals=["image_size"])) == 5


@pytest.mark.parametrize(
    ("files", "settings", "reason"),
    [
        ({}, {}, "it holds no image, tar or table"),
        ({"a.jpg": b"", "b/c.png": b""}, {}, "it holds 2 images without captions"),
        ({"a.jpg": b"", "a.json": b'{"width": 3}'}, {}, "it holds 1 image without captions"),
        ({"a.jpg": b"", "a.txt": b""}, {"caption": "json:text"}, "it holds 1 image without captions"),
        ({"a.txt": b"a cat"}, {"format": "folder"}, "it holds no image"),
    ],
)
def test_a_folder_that_is_no_pool_says_what_is_missing_and_what_a_pool_is(
    files: dict[str | bytes, bytes], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    forms = (
        r"tars as img2dataset writes them; a table with .*\.csv.*; a folder of images with a \.txt or \.json next to"
    )
    with pytest.raises(PoolError, match=f"{reason}.*{forms}"):
        open_pool(PoolSpec(path=str(write(tmp_path / "photos", files)), **settings))


def test_tables_of_urls_say_that_nothing_is_downloaded(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("url,caption\nhttps://a.org/1.jpg,a cat\n")
    with pytest.raises(PoolError, match="images at URLs are not downloaded: img2dataset does"):
        open_pool(tmp_path / "a.csv")


def test_a_run_inside_the_folder_is_refused(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", range(2))
    with pytest.raises(RunError, match="overlap"):
        score(root, root / "run")


def test_folders_of_img2dataset_are_read_next_to_its_tables_of_urls(tmp_path: Path) -> None:
    root = photos(tmp_path / "pool" / "00000", range(3)).parent
    pq.write_table(pa.table({"url": ["a"], "caption": ["b"]}), root / "00000.parquet")
    (root / "00000_stats.json").write_text("{}")
    assert [sample.status for sample in rows_of(root).values()] == ["ok"] * 3


def hub_rows(count: int) -> dict[str, list[Any]]:
    return {
        "img": [{"bytes": image_bytes(n), "path": None} for n in range(count)],
        "text": [*map(caption, range(count))],
    }


def test_a_saved_dataset_has_the_rows_of_its_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(table_shards, "SHARD_ROWS", 10)
    features = datasets.Features({"img": datasets.Image(), "text": datasets.Value("string")})
    one = datasets.Dataset.from_dict(hub_rows(23), features=features)
    both = datasets.DatasetDict({"train": one, "test": one.select(range(3))})
    both.save_to_disk(tmp_path / "saved")
    one.save_to_disk(tmp_path / "one")
    (tmp_path / "one" / "cache-0123.arrow").write_bytes(b"of an earlier map")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for name, part in both.items():
        part.to_parquet(str(tmp_path / "hub" / "data" / f"{name}-00000-of-00001.parquet"))
    wanted = [image_bytes(n) for n in range(23)]
    assert [sample.image for sample in rows_of(tmp_path / "one").values()] == wanted
    for name in ("saved", "hub"):
        run = score(tmp_path / name, tmp_path / "runs" / name)
        assert (len(run), run.statuses["ok"]) == (26, 26)
        images = [sample.image for sample in samples_of(run, order=[25, 4, 0], fields={"image"})]
        assert {len(image or b"") for image in images} <= {len(image) for image in wanted}
        tamis.export(tamis.select(run, {"select": []}), to="webdataset", out=tmp_path / "runs" / f"{name}.out")
