"""Images that lost their EXIF: turned by the field `exif` that img2dataset writes, everywhere, and never twice."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Tamis
from factories import image_bytes, index_rows, pair, write_tar
from PIL import ExifTags, Image, ImageOps

import tamis
from tamis.core.errors import RunError
from tamis.core.types import EXIF_WORDS
from tamis.pools import PoolSpec
from tamis.pools.images import decode, orientation_left
from tamis.runs.stream import samples_of
from tamis.train.clip import pool_reading_settings


def tagged(seed: int, orientation: int) -> bytes:
    """Returns a photograph as a camera stores it, with its orientation in EXIF."""
    exif, out = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = orientation
    Image.open(io.BytesIO(image_bytes(seed))).save(out, "JPEG", exif=exif, quality=95)
    return out.getvalue()


def as_img2dataset(original: bytes, words: str) -> dict[str, bytes]:
    """Decoded without the orientation, encoded without EXIF (losslessly here), EXIF as text in the json."""
    out = io.BytesIO()
    Image.fromarray(np.asarray(Image.open(io.BytesIO(original)).convert("RGB"))).save(out, "PNG")
    exif = json.dumps({"Image Make": "a camera", "Image Orientation": words})
    return pair(0, exif=exif, original_width=480) | {"png": out.getvalue(), "jpg": b""}


def upright(original: bytes) -> Any:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(original))).convert("RGB"))


def sideways_pool(folder: Path, **files: bytes) -> list[bytes]:
    """Writes a pool of one image of each orientation; returns the originals."""
    originals = [tagged(seed, number) for seed, number in enumerate(EXIF_WORDS.values())]
    samples = []
    for seed, (original, words) in enumerate(zip(originals, EXIF_WORDS, strict=True)):
        made = as_img2dataset(original, words)
        samples.append((f"{seed}", {"png": made["png"], "txt": b"a cat", "json": made["json"]}))
    write_tar(
        folder / "0.tar", [*samples, *((name, {"jpg": data} | {"txt": b"a dog"}) for name, data in files.items())]
    )
    return originals


def score(pool: Path | PoolSpec, run: Path) -> tamis.Run:
    return tamis.score(pool, run=run, signals=["image_size", "image_hash"], quiet=True)


def test_every_orientation_is_that_of_pillow_with_the_original(tmp_path: Path) -> None:
    originals = sideways_pool(tmp_path / "pool")
    run = score(tmp_path / "pool", tmp_path / "run")
    assert run.facts["pool"]["orientation"] == "json"
    assert pool_reading_settings(run) == {"orientation": "json"}
    rows = index_rows(run)
    assert [row["exif_orientation"] for row in rows] == [None, *list(EXIF_WORDS)[1:]]
    for sample, original, row in zip(samples_of(run, fields=("pixels", "image")), originals, rows, strict=True):
        expected = upright(original)
        assert sample.image is not None
        np.testing.assert_array_equal(sample.pixels, expected)
        np.testing.assert_array_equal(decode(sample.image, max_pixels=10**6, orientation=sample.orientation), expected)
        assert (row["height"], row["width"]) == expected.shape[:2]
        turned = (row["original_height"], row["original_width"])
        assert turned == ((480, 320) if row["height"] > row["width"] else (320, 480))
    # Signals see what Pillow shows of the originals; a later pass reads the rows of the index.
    kept = [(str(number), {"jpg": original, "txt": b"a cat"}) for number, original in enumerate(originals)]
    write_tar(tmp_path / "originals" / "0.tar", kept)
    same = score(tmp_path / "originals", tmp_path / "other")
    assert "orientation" not in same.facts["pool"]
    for pool, one in (("pool", run), ("originals", same)):
        tamis.score(tmp_path / pool, run=one.path, signals=["image_quality"], quiet=True)
    for name in ("image_hash", "aspect_ratio", "brightness", "sharpest"):
        values = [pa.array(tamis.Run(path)[name].tolist()) for path in (tmp_path / "run", tmp_path / "other")]
        assert values[0].equals(values[1]), name


def test_nothing_is_turned_twice_and_none_leaves_it(tmp_path: Path) -> None:
    """An image that keeps its EXIF (`--disable_all_reencoding`) is turned by that, whatever the json says."""
    original = tagged(1, 6)
    exif = json.dumps({"Image Orientation": "Rotated 90 CW"})
    files = {"jpg": original, "txt": b"a cat", "json": json.dumps({"exif": exif}).encode()}
    broken = {"jpg": image_bytes(2), "txt": b"a dog", "json": json.dumps({"exif": "{Image Orientation"}).encode()}
    odd = {"jpg": image_bytes(3), "txt": b"a dog", "json": json.dumps({"exif": '{"Image Orientation": [6]}'}).encode()}
    write_tar(tmp_path / "pool" / "0.tar", [("a", files), ("b", broken), ("c", odd)])
    run = score(tmp_path / "pool", tmp_path / "run")
    assert [row["exif_orientation"] for row in index_rows(run)] == [None, None, None]
    np.testing.assert_array_equal(next(samples_of(run, fields=("pixels",))).pixels, upright(original))
    lying = {"png": as_img2dataset(original, "Rotated 90 CW")["png"], "txt": b"a cat", "json": files["json"]}
    write_tar(tmp_path / "more" / "0.tar", [("a", lying)])
    left = score(PoolSpec(path=str(tmp_path / "more"), orientation="none"), tmp_path / "left")
    assert [(row["width"], row["height"]) for row in index_rows(left)] == [(48, 32)]
    assert "orientation" not in left.facts["pool"]
    assert "exif_orientation" not in index_rows(left)[0]
    # A run goes on as it began.
    assert "exif_orientation" not in index_rows(score(tmp_path / "more", tmp_path / "left"))[0]
    assert next(samples_of(left, fields=("pixels",))).pixels.shape == (32, 48, 3)  # type: ignore[union-attr]
    with pytest.raises(RunError, match=r"another pool setting \(orientation: nothing then, 'json' now\)"):
        score(PoolSpec(path=str(tmp_path / "more"), orientation="json"), tmp_path / "left")


@pytest.mark.parametrize("offsets", ["Image StripOffsets", "Image TileOffsets"])
def test_tiffs_are_upright_because_opencv_turns_them(offsets: str) -> None:
    """Seen with OpenCV 4.12 and 5.0, all eight orientations: `imdecode` leaves JPEGs as they are, not TIFFs."""
    image, exif = image_bytes(0), {"Image Orientation": "Rotated 90 CW", "Thumbnail StripOffsets": "8"}
    assert orientation_left(json.dumps(exif), image) == "Rotated 90 CW"
    assert orientation_left(json.dumps(exif | {offsets: "8"}), image) is None


def test_a_pool_without_the_field_is_as_before(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [(f"{n}", pair(n)) for n in range(3)])
    run = score(tmp_path / "pool", tmp_path / "run")
    assert run.facts["pool"]["fields"] == []
    assert "orientation" not in run.facts["pool"]
    assert "exif_orientation" not in index_rows(run)[0]


def test_images_in_a_table_of_img2dataset_are_turned(tmp_path: Path) -> None:
    made = [as_img2dataset(tagged(n, number), words) for n, (words, number) in enumerate(EXIF_WORDS.items())]
    exif = [json.loads(one["json"])["exif"] for one in made]
    (tmp_path / "pool").mkdir()
    columns = {"jpg": [one["png"] for one in made], "caption": ["a cat"] * len(made), "exif": exif}
    pq.write_table(pa.table(columns), tmp_path / "pool" / "0.parquet")
    run = score(tmp_path / "pool", tmp_path / "run")
    for number, sample in enumerate(samples_of(run, fields=("pixels",))):
        np.testing.assert_array_equal(sample.pixels, upright(tagged(number, number + 1)))


def test_exports_that_encode_turn_and_those_that_copy_do_not(tmp_path: Path) -> None:
    truncated = as_img2dataset(tagged(9, 6), "Rotated 90 CW")["png"][:400]
    originals = sideways_pool(tmp_path / "pool")
    run = score(tmp_path / "pool", tmp_path / "run")
    subset = tamis.select(run, {"select": []})
    tamis.export(subset, "huggingface", tmp_path / "hf")
    rows = pq.read_table(next((tmp_path / "hf").glob("*.parquet"))).to_pylist()
    stored = [sample.image for sample in samples_of(run, fields=("image",))]
    for row, original, data in zip(rows, originals, stored, strict=True):
        plain = Image.open(io.BytesIO(row["image"]["bytes"]))
        np.testing.assert_array_equal(np.asarray(plain), upright(original))
        assert plain.getexif().get(ExifTags.Base.Orientation, 1) == 1
        assert (row["image"]["bytes"] == data) == (original is originals[0])
    tamis.export(subset, "webdataset", tmp_path / "tars")
    again = score(tmp_path / "tars", tmp_path / "again")
    assert [sample.image for sample in samples_of(again, fields=("image",))] == stored
    assert [row["exif_orientation"] for row in index_rows(again)] == [None, *list(EXIF_WORDS)[1:]]
    # A re-encoded image is upright for good, although the json still has the old field.
    lying = io.BytesIO()
    Image.open(io.BytesIO(stored[5] or b"")).save(lying, "GIF")
    files = {"gif": lying.getvalue(), "txt": b"a cat"}
    files["json"] = json.dumps({"exif": json.dumps({"Image Orientation": "Rotated 90 CW"})}).encode()
    write_tar(tmp_path / "gifs" / "0.tar", [("a", files), ("b", files | {"gif": truncated})])
    first = score(tmp_path / "gifs", tmp_path / "run-gifs")
    tamis.export(tamis.select(first, {"select": []}), "webdataset", tmp_path / "jpegs", images="jpeg")
    tamis.export(tamis.select(first, {"select": []}), "huggingface", tmp_path / "hf-gifs")
    second = score(tmp_path / "jpegs", tmp_path / "run-jpegs")
    found = [(row["width"], row["height"], row["exif_orientation"]) for row in index_rows(second)]
    assert found[0] == (32, 48, None)


def test_look_counts_them_and_shows_them_before_and_after(tmp_path: Path, tamis: Tamis) -> None:
    sideways_pool(tmp_path / "pool")
    done = tamis.ok("look", "pool", "--out", "look.html")
    assert "turned by the EXIF in the json" in done.err
    page = Path("look.html").read_text(encoding="utf-8")
    assert "7 images (87.5 %) are stored turned or mirrored." in page
    assert page.count('aria-label="as stored"') == 7
    assert "transform: rotate(-90deg)" in page
    assert "tamis run pool --recipe basic" in done.err
    assert "stored turned" not in tamis("look", "pool", "--out", "x.html", "--orientation", "none").out
    assert "stored turned" not in Path("x.html").read_text(encoding="utf-8")
