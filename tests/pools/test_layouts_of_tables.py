"""Tables as other tools write them: separators, images in base64, Arrow's file form, no header, captions of bytes."""

import base64
import json
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from factories import image_bytes, score

import tamis
from tamis.core.errors import PoolError
from tamis.core.types import Sample
from tamis.pools import PoolSpec, open_pool
from tamis.pools.text_files import read_texts
from tamis.runs.stream import samples_of

TEXTS = ['a dog, two cats; "three" | four', "a cat", '"quoted" first']


def read(path: Path, **settings: Any) -> list[Sample]:
    pool = open_pool(PoolSpec(path=str(path), **settings))
    return [sample for shard in pool.shards for sample in shard.samples()]


@pytest.fixture
def frame(tmp_path: Path) -> pandas.DataFrame:
    for seed in range(3):
        (tmp_path / f"{seed}.jpg").write_bytes(image_bytes(seed))
    return pandas.DataFrame({"filepath": [f"{seed}.jpg" for seed in range(3)], "title": TEXTS})


@pytest.mark.parametrize("mark", [",", "\t", ";", "|"])
def test_a_csv_may_have_another_separator(mark: str, frame: pandas.DataFrame, tmp_path: Path) -> None:
    """As pandas writes and open_clip reads them, with quotes where they are needed."""
    frame.to_csv(tmp_path / "pool.csv", sep=mark, index=False)
    found = read(tmp_path / "pool.csv")
    assert [sample.caption for sample in found] == pandas.read_csv(tmp_path / "pool.csv", sep=mark)["title"].tolist()
    assert [(sample.status, sample.image) for sample in found] == [("ok", image_bytes(seed)) for seed in range(3)]
    assert read_texts(tmp_path / "pool.csv").texts == TEXTS


def test_flickr30k_has_bars_and_blanks(frame: pandas.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(
        "image_name| comment_number| comment\n0.jpg| 0| A dog , a cat .\n1.jpg| 1| Two dogs .\n"
    )
    found = read(tmp_path / "results.csv", caption="comment")
    assert [(sample.caption, sample.status) for sample in found] == [("A dog , a cat .", "ok"), ("Two dogs .", "ok")]


def test_a_table_without_a_header_says_how_to_add_one(tmp_path: Path) -> None:
    (tmp_path / "cc3m.tsv").write_text("a dog runs\thttps://example.org/1.jpg\na cat\thttps://example.org/2.jpg\n")
    with pytest.raises(PoolError, match=r"no header: sed -i '1i caption\\turl' FILE adds one.*img2dataset"):
        open_pool(str(tmp_path / "cc3m.tsv"))
    (tmp_path / "cc3m.tsv").write_text("caption\turl\na dog runs\thttps://example.org/1.jpg\n")
    assert [sample.caption for sample in read(tmp_path / "cc3m.tsv", image="none")] == ["a dog runs"]


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
def test_images_in_base64(ending: str, tmp_path: Path) -> None:
    images = [image_bytes(seed, format=kind) for seed, kind in enumerate(("JPEG", "PNG", "GIF", "WEBP"))]
    cells = [base64.b64encode(data).decode() for data in images]
    cells[1] = f"data:image/png;base64,{cells[1]}"
    cells[2] = cells[2].rstrip("=")
    rows = [*zip(cells, "abcd", strict=True), (cells[0][:80] + "=a", "e")]
    path = tmp_path / f"pool.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table(dict(zip(("image", "text"), map(list, zip(*rows, strict=True)), strict=True))), path)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps({"image": image, "text": text}) + "\n" for image, text in rows))
    else:
        frame = pandas.DataFrame(rows, columns=["image", "text"])
        frame.to_csv(path, sep="," if ending == "csv" else "\t", index=False)
    run = score(PoolSpec(path=str(path)), tmp_path / "run", "image_size")
    assert run.statuses == {"ok": 4, "image_broken": 1}
    again = list(samples_of(run, order=[3, 0, 2, 1], fields={"image"}))
    assert [sample.image for sample in again] == [images[row] for row in (3, 0, 2, 1)]


@pytest.mark.parametrize("ending", ["arrow", "feather", "ipc"])
@pytest.mark.parametrize("compression", ["lz4", "zstd", "uncompressed"])
def test_arrow_files_are_read_like_arrow_streams(ending: str, compression: str, tmp_path: Path) -> None:
    images = [image_bytes(seed) for seed in range(5)]
    table = pa.table({"image": images, "text": pa.array(list("abcde"), pa.string_view())})
    feather.write_feather(table, tmp_path / f"pool.{ending}", compression=compression, chunksize=2)
    run = score(PoolSpec(path=str(tmp_path / f"pool.{ending}")), tmp_path / "run", "image_size")
    assert (run["caption"].tolist(), run.statuses) == (list("abcde"), {"ok": 5})
    again = samples_of(run, order=[4, 0, 3], fields={"image", "files"})
    assert [sample.image for sample in again] == [images[row] for row in (4, 0, 3)]
    if ending == "arrow":
        with pa.ipc.new_stream(tmp_path / "stream.arrow", table.schema) as writer:
            writer.write_table(table, 2)
        assert [one.image for one in read(tmp_path / "stream.arrow")] == images


def test_a_look_finds_captions_that_are_the_text_of_bytes(tmp_path: Path) -> None:
    texts = [str(b"a dog"), "b'oh", str(b"it's"), "bob's cat'", None]
    pq.write_table(pa.table({"image": [image_bytes(seed) for seed in range(5)], "text": texts}), tmp_path / "p.parquet")
    tamis.look(tmp_path / "p.parquet", out=tmp_path / "look.html", quiet=True)
    facts = json.loads((tmp_path / "look.json").read_text(encoding="utf-8"))
    (found,) = (kind for kind in facts["sections"]["findings"]["pool"] if kind["ident"] == "bytes")
    assert (found["rows"], found["sentence"]) == (2, "2 captions (40.0 %) are Python's text of bytes, b'...'.")
