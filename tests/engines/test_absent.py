"""A pool of which no sample has an image or a caption: most likely a setting names the wrong member or field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from factories import image_bytes, pair, write_tar
from processes import command

import tamis
from tamis.core.errors import PoolError
from tamis.pools import PoolSpec
from tamis.runs import Run

CAPTIONS, IMAGES = ["caption_length"], ["image_hash"]


def score(path: Path, signals: Sequence[str], **settings: Any) -> Run:
    return tamis.score(PoolSpec(path=str(path), **settings), run=path.parent / "run", signals=signals, quiet=True)


def shard(path: Path, rows: int = 3, lacks: Sequence[str] = (), **fields: Any) -> Path:
    """Writes a tar of pairs without some of their members."""
    samples = [(f"{path.stem}{row:04d}", pair(row, **fields)) for row in range(rows)]
    return write_tar(path, [(key, {ext: files[ext] for ext in files if ext not in lacks}) for key, files in samples])


def test_a_misspelt_caption_field_stops_the_command_before_any_work(tmp_path: Path) -> None:
    for name in "01":
        shard(tmp_path / "pool" / f"{name}.tar", title="a cat")
    given = [tmp_path / "pool", "--run", tmp_path / "run", "--signals", "caption_length"]
    done = command("score", *given, "--caption", "json:titel")
    assert done.returncode == 2
    for name in ("0.tar", "'titel'", "'json:title'", "jpg, txt, json:uid", "--caption"):
        assert name in done.stderr
    assert not (tmp_path / "run").exists()
    assert command("score", *given, "--caption", "json:title").returncode == 0


def test_a_pool_without_captions_or_images_goes_on_where_nothing_looks_at_them(tmp_path: Path) -> None:
    shard(tmp_path / "silent" / "pool" / "0.tar", lacks=["txt"])
    with pytest.raises(PoolError, match=r"3 samples.* caption.*\.txt"):
        score(tmp_path / "silent" / "pool", CAPTIONS)
    assert score(tmp_path / "silent" / "pool", IMAGES).statuses == {"caption_missing": 3}
    shard(tmp_path / "blind" / "pool" / "0.tar", lacks=["jpg"])
    with pytest.raises(PoolError, match=r"3 samples.* image.* txt, json"):
        score(tmp_path / "blind" / "pool", IMAGES)
    assert score(tmp_path / "blind" / "pool", CAPTIONS).statuses == {"image_missing": 3}


@pytest.mark.parametrize(
    ("signals", "settings", "reason"),
    [
        (IMAGES, {"caption": "text"}, r"\.text .*'txt'"),
        (CAPTIONS, {"image_extensions": ("tiff",)}, "--image-extensions"),
    ],
)
def test_what_was_named_must_be_there_whatever_looks_at_it(
    signals: list[str], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    shard(tmp_path / "pool" / "0.tar")
    with pytest.raises(PoolError, match=reason):
        score(tmp_path / "pool", signals, **settings)
    (tmp_path / "pool.csv").write_text("image,caption\nhere/0.jpg,a dog\nhere/1.jpg,a cat\n")
    with pytest.raises(PoolError, match=r"2 samples.* image.*'here/0.jpg'"):
        score(tmp_path / "pool.csv", IMAGES)
    assert score(tmp_path / "pool.csv", CAPTIONS, image="none").statuses == {"ok": 2}


def test_damaged_images_and_empty_captions_are_not_absent(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [(key, {"jpg": image_bytes(0)[:200], "txt": b" "}) for key in "ab"])
    assert score(tmp_path / "pool", [*CAPTIONS, *IMAGES]).statuses == {"caption_empty": 2}


def test_a_first_shard_that_cannot_be_read_or_has_no_samples_says_nothing_of_the_pool(tmp_path: Path) -> None:
    path = shard(tmp_path / "cut" / "pool" / "0.tar", rows=1, lacks=["txt"])
    path.write_bytes(path.read_bytes()[:800])
    shard(tmp_path / "cut" / "pool" / "1.tar")
    assert list(score(tmp_path / "cut" / "pool", [*CAPTIONS, *IMAGES]).failures) == ["0"]
    write_tar(tmp_path / "pool" / "0.tar", [])
    shard(tmp_path / "pool" / "1.tar", lacks=["txt"])
    with pytest.raises(PoolError, match=r"1\.tar: .*3 samples"):
        score(tmp_path / "pool", CAPTIONS)


def test_a_later_shard_without_captions_fails_until_its_file_is_another_and_keeps_its_rows(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    shard(pool / "0.tar", rows=4)
    shard(pool / "1.tar", rows=20, lacks=["txt"])
    shard(pool / "2.tar", rows=19, lacks=["txt"])  # so few may well have none
    shard(pool / "3.tar", rows=4)
    for _ in range(2):
        run = score(pool, CAPTIONS)
        assert list(run.failures) == ["1"]
        assert "20 samples" in run.failures["1"]
        assert run.sizes == (4, 20, 19, 4)
    shard(pool / "1.tar", rows=20)
    mended = score(pool, CAPTIONS)
    assert (mended.failures, mended.statuses["ok"]) == ({}, 28)


@pytest.mark.parametrize("signal", ["image_size", "file_hash", {"image_size": {"of": "stored"}}])
def test_whatever_looks_at_images_needs_one(signal: Any, tmp_path: Path) -> None:
    shard(tmp_path / "pool" / "0.tar", lacks=["jpg"], original_width=None)
    with pytest.raises(PoolError, match=r"none of its 3 samples has an image: .* txt, json.*--image-extensions"):
        score(tmp_path / "pool", [signal])


def test_sizes_in_the_json_need_no_image(tmp_path: Path) -> None:
    shard(tmp_path / "pool" / "0.tar", lacks=["jpg"], original_width=640, original_height=480)
    with pytest.raises(PoolError, match="has an image"):
        score(tmp_path / "pool", [{"image_size": {"of": "stored"}}])
    run = score(tmp_path / "pool", ["image_size"])
    assert run["shorter_side"].tolist() == [480] * 3


def test_a_reason_has_at_most_200_characters(tmp_path: Path) -> None:
    (tmp_path / "pool.csv").write_text(f"image,caption\n{'x' * 5000}.jpg,a dog\n")
    run = score(tmp_path / "pool.csv", CAPTIONS)
    reason = run.index("pool", ["reason"])["reason"][0].as_py()
    assert (len(reason), reason[:12], reason[-3:]) == (200, "the image 'x", "...")
