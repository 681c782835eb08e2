"""Tables of image and caption: Parquet, CSV, TSV, JSON lines; large Parquet files are cut into row ranges."""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import caption, image_bytes, index_rows, write_metadata

import tamis
from tamis.core.errors import PoolError, RecipeError, ShardError, UnreachedError
from tamis.core.ids import content_uid, format_uid
from tamis.core.types import Sample
from tamis.pools import PoolSpec, datacomp, open_pool, table_shards
from tamis.pools import rows as pool_rows
from tamis.pools.datacomp import metadata_pool
from tamis.pools.source import SampleFault
from tamis.pools.text_files import read_captions_file
from tamis.runs import Run

Rows = Sequence[Mapping[str, Any]]


def score(path: Path, run: Path, **settings: Any) -> Run:
    spec = PoolSpec(path=str(path), **settings)
    scores = ["caption_length"] if settings.get("image") == "none" else ["caption_length", "image_size"]
    return tamis.score(spec, run=run, signals=scores, quiet=True)


def shard_of(path: Path, **settings: Any) -> Any:
    return open_pool(PoolSpec(path=str(path), **settings)).shards[0]


def samples_of(path: Path, **settings: Any) -> list[Sample]:
    return list(shard_of(path, **settings).samples())


def write_images(folder: Path, count: int = 3) -> list[str]:
    """Writes images and returns their paths relative to the folder."""
    (folder / "images").mkdir(parents=True)
    for seed in range(count):
        (folder / "images" / f"{seed}.jpg").write_bytes(image_bytes(seed))
    return [f"images/{seed}.jpg" for seed in range(count)]


def write_csv(path: Path, rows: Rows, delimiter: str = ",") -> None:
    lines = [delimiter.join(rows[0]), *(delimiter.join(str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "csv": write_csv,
    "tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


@pytest.mark.parametrize("ending", WRITERS)
def test_every_kind_of_table_gives_the_same_rows(ending: str, tmp_path: Path) -> None:
    """Paths are relative to the table; captions that look like numbers stay as written; a missing file is a reason."""
    paths = [*write_images(tmp_path), *["images/0.jpg"] * 5, "images/none.jpg", ""]
    texts = [caption(0), caption(1), caption(2), "007", "1e5", "NaN", "null", "true", "a", "b"]
    path = tmp_path / f"pairs.{ending}"
    WRITERS[ending](path, [{"image": p, "caption": text} for p, text in zip(paths, texts, strict=True)])
    run = score(path, tmp_path / "run")
    found = index_rows(run)
    assert run.shards == ("pairs",)
    assert [row["key"] for row in found] == [f"{number:09d}" for number in range(10)]
    assert [row["caption"] for row in found] == texts
    assert [row["status"] for row in found] == ["ok"] * 8 + ["image_missing"] * 2
    assert found[8]["reason"].count("'images/none.jpg'") == 1
    assert "'image'" in found[9]["reason"]
    assert (found[0]["width"], found[0]["height"]) == (48, 32)
    assert [part["ext"] for part in found[0]["members"]] == ["jpg", "txt"]
    wanted = [format_uid(*content_uid(image_bytes(seed), caption(seed).encode())) for seed in range(3)]
    assert run.to_arrow()["uid"].to_pylist()[:3] == wanted


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_captions_are_texts_or_lists_of_texts(ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / f"p.{ending}"
    WRITERS[ending](path, [{f"of_{ending}": texts} for texts in (["a dog", "two dogs"], ["a cat"], [])])
    found = samples_of(path, caption=f"of_{ending}", image="none")
    assert [sample.caption for sample in found] == ["a dog", "a cat", None]
    assert [f"'of_{ending}'" in record.message for record in caplog.records] == [True]
    for value in (7, 0.5, True, {"en": "a dog"}, [1, 2], [{"text": "a dog"}], b"a dog"):
        if isinstance(value, bytes) and ending == "jsonl":
            continue  # JSON has none
        WRITERS[ending](path, [{"image": "a.jpg", "caption": value, "alt": "b", "other": None}])
        with pytest.raises(PoolError, match=r"'caption' .* image, alt, other"):
            score(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_caption_of_another_kind_is_a_row_with_a_reason_and_words_of_arrow_are_texts(
    tmp_path: Path,
) -> None:
    values: list[Any] = ["a dog", 7, {"en": "a dog"}, ["a cat", "cats"], [7], None, False]
    write_jsonl(tmp_path / "p.jsonl", [{"caption": value} for value in values])
    found = samples_of(tmp_path / "p.jsonl", image="none")
    assert [sample.caption for sample in found] == ["a dog", None, None, "a cat", None, None, None]
    kinds = ("None", "a number", "an object", "None", "a number", "no text", "true or false")
    assert [kind in str(sample.reason) for sample, kind in zip(found, kinds, strict=True)] == [True] * 7
    words = (pa.array(["a dog"]).cast(kind) for kind in (pa.dictionary(pa.int32(), pa.string()), pa.large_string()))
    for column in (*words, pa.array([["a dog"]], pa.list_(pa.large_string(), 1))):
        pq.write_table(pa.table({"caption": column}), tmp_path / "p.parquet")
        assert samples_of(tmp_path / "p.parquet", image="none")[0].caption == "a dog"


def test_parquet_with_image_bytes_and_with_the_image_struct_of_hugging_face(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    cells: list[tuple[Any, str, str | None]] = [
        (image_bytes(0), "ok", "jpg"),
        (image_bytes(1, format="PNG"), "ok", "png"),
        (b"", "image_broken", None),
        (None, "image_missing", None),
        (b"no image", "image_broken", None),
    ]
    structs: list[tuple[Any, str, str | None]] = [
        ({"bytes": image_bytes(1, format="PNG"), "path": "cat.png"}, "ok", "png"),
        ({"bytes": image_bytes(2, format="WEBP"), "path": None}, "ok", "webp"),
        ({"bytes": None, "path": path}, "ok", "jpg"),
        ({"bytes": None, "path": None}, "image_missing", None),
    ]
    for number, column in enumerate((cells, structs)):
        rows = [{"image": value, "text": caption(n), "uid": f"{n:032x}"} for n, (value, _, _) in enumerate(column)]
        write_parquet(tmp_path / f"{number}.parquet", rows)
        run = score(tmp_path / f"{number}.parquet", tmp_path / f"run{number}", format="table")
        found = index_rows(run)
        assert [row["status"] for row in found] == [status for _, status, _ in column]
        for row, (_, _, ext) in zip(found, column, strict=True):
            assert ext in (None, row["members"][0]["ext"])
        assert run.to_arrow()["uid"].to_pylist() == [f"{n:032x}" for n in range(len(column))]


def test_columns_can_be_chosen_and_those_that_are_not_there_are_listed(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 2)
    rows = [{"image": "wrong", "pic": path, "caption": "wrong", "blip": caption(n)} for n, path in enumerate(paths)]
    write_csv(tmp_path / "p.csv", rows)
    found = samples_of(tmp_path / "p.csv", image="pic", caption="blip")
    assert [(sample.status, sample.caption) for sample in found] == [("ok", caption(0)), ("ok", caption(1))]
    with pytest.raises(PoolError, match=r"'blib'.*'blip'.* image, pic, caption"):
        samples_of(tmp_path / "p.csv", caption="blib")
    for ending, write in WRITERS.items():
        write(tmp_path / f"p.{ending}", [{"picture": "a.jpg", "sentence": "b"}])
        with pytest.raises(PoolError, match=r"picture, sentence.*--image"):
            samples_of(tmp_path / f"p.{ending}")


@pytest.mark.parametrize("column", ["image", "pic"])
def test_a_table_with_url_and_text_and_images_is_no_metadata_of_datacomp(column: str, tmp_path: Path) -> None:
    row = {"uid": f"{7:032x}", "url": "https://x.org/0.jpg", "text": "a cat", column: write_images(tmp_path, 1)[0]}
    write_parquet(tmp_path / "p.parquet", [row])
    found = open_pool(PoolSpec(path=str(tmp_path / "p.parquet"), image="pic" if column == "pic" else None))
    assert (found.kind, found.has_images) == ("table", True)
    assert [sample.status for sample in found.shards[0].samples()] == ["ok"]


TSV = ['"an open quote', 'a 5" nail', '"quoted ""by"" pandas"', '"two" "parts"', '"', '""']

# Content of a text table, and the caption and the status (or a part of the reason) of each of its rows.
TEXTS: dict[str, tuple[str, bytes, list[tuple[str | None, str]]]] = {
    "too few or too many cells, and blank lines": (
        "csv",
        b"caption,key\na cat,k\nshort\n\na,l,more\n\n",
        [("a cat", "ok"), ("short", "1 cells"), ("a", "3 cells")],
    ),
    "quoted commas and line breaks": (
        "csv",
        b'caption,key\n"a cat,\nand ""more""",k\n',
        [('a cat,\nand "more"', "ok")],
    ),
    "quotes in a TSV swallow no rows": (
        "tsv",
        "".join(f"{line}\n" for line in ['"caption"', *TSV]).encode(),
        [(text, "ok") for text in (*TSV[:2], 'quoted "by" pandas', *TSV[3:5])] + [(None, "caption_empty")],
    ),
    "a byte order mark": ("csv", "\ufeffcaption,key\na cat,k\n".encode(), [("a cat", "ok")]),
    "not UTF-8": ("csv", b"caption,key\ncaf\xe9,k\xe9y\na cat,b\n", [(None, "caption_not_utf8"), ("a cat", "ok")]),
    "sizes that are no numbers": (
        "csv",
        b"caption,original_width\na,\xc2\xb2\nb," + b"9" * 5000 + b"\n",
        [("a", "ok"), ("b", "ok")],
    ),
    "duplicate keys": ("csv", b"caption,key\na,k\nb,k\n", [("a", "ok"), ("b", "duplicate_key")]),
    "broken lines of JSON": (
        "jsonl",
        b'{"caption": "a"}\n{"caption": \n[1, 2]\n\n' + b"[" * 100_000 + b'\n{"caption": "b"}',
        [
            ("a", "ok"),
            (None, "JSON"),
            (None, "a list"),
            (None, "JSON"),
            ("b", "ok"),
        ],
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_rows_of_text_tables(name: str, tmp_path: Path) -> None:
    ending, content, expected = TEXTS[name]
    (tmp_path / f"p.{ending}").write_bytes(content)
    found = samples_of(tmp_path / f"p.{ending}", image="none")
    assert [sample.caption for sample in found] == [text for text, _ in expected]
    for sample, (_, problem) in zip(found, expected, strict=True):
        assert problem in (sample.status, sample.reason) or problem in str(sample.reason)
    if name == "not UTF-8":
        assert (found[0].key, found[0].shown_caption) == ("k\\udce9y", "caf\N{REPLACEMENT CHARACTER}")


def test_a_row_without_end_is_an_error_of_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_rows, "LONGEST_LINE", 1 << 20)
    (tmp_path / "a.csv").write_bytes(b'image,caption\nx.jpg,b\nx.jpg,"' + b'b\n","' * 300_000)
    with pytest.raises(ShardError, match="1,048,576 characters"):
        samples_of(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("ending", "module"),
    [("csv", "rows"), ("jsonl", "rows"), ("parquet", "rows"), ("parquet", "groups"), ("parquet", "datacomp")],
)
def test_a_table_that_the_disk_does_not_give_may_be_whole(
    module: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_answer(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = str(tmp_path / f"p.{ending}")
    spec = PoolSpec(path=path)
    WRITERS[ending](Path(path), [{"image": "a.jpg", "caption": caption(row)} for row in range(12)])
    if module == "groups":
        found = pool_rows.TABLES[".parquet"]._replace(groups=without_answer)
        monkeypatch.setattr(pool_rows, "TABLES", {**pool_rows.TABLES, ".parquet": found})
    else:
        monkeypatch.setattr(f"tamis.pools.{module}.open_file", without_answer)
    with pytest.raises(UnreachedError, match=rf"p\.{ending}"):
        metadata_pool(spec, {path: "p"}) if module == "datacomp" else table_shards.table_shards(path, "p", spec)


def test_a_file_that_is_no_table_stops_and_one_damaged_inside_is_a_bad_shard(tmp_path: Path) -> None:
    for ending, content in (("parquet", b"PAR1 and then something else PAR1"), ("jsonl", b"{broken\n"), ("csv", b"")):
        (tmp_path / f"p.{ending}").write_bytes(content)
        with pytest.raises(PoolError, match=rf"p\.{ending}"):
            open_pool(str(tmp_path / f"p.{ending}"))
    (tmp_path / "pool").mkdir()
    rows = [{"image": image_bytes(n), "caption": "a"} for n in range(6)]
    for name in "ab":
        write_parquet(tmp_path / "pool" / f"{name}.parquet", rows)
    bad = tmp_path / "pool" / "b.parquet"
    content = bad.read_bytes()
    bad.write_bytes(content[:10] + bytes(590) + content[600:])
    run = score(tmp_path / "pool", tmp_path / "run")
    assert (run.shards, list(run.failures)) == (("a",), ["b"])
    bad.write_bytes(content[:-50])
    with pytest.raises(PoolError, match=r"b\.parquet"):
        open_pool(str(tmp_path / "pool"))


SECRET = "hunter2-AKIA1234"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", f"{SECRET}\n"),
        ("a.csv", f"uid,captions\n{SECRET},{SECRET},{SECRET}\n"),
        ("a.csv", f"key,captions\na,{SECRET}\n"),
        ("a.jsonl", f"{SECRET}\n"),
    ],
)
def test_what_is_no_table_is_not_quoted(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RecipeError, match="captions_from") as error:
        read_captions_file(tmp_path / name)
    with pytest.raises(PoolError) as same:
        table_shards.table_shards(str(tmp_path / name), "a", PoolSpec(path=name))
    assert SECRET not in str(error.value) + str(same.value)


def test_images_that_are_no_regular_files_or_too_large_are_not_read(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    (tmp_path / "big.jpg").write_bytes(bytes(5001))
    os.mkfifo(tmp_path / "pipe.jpg")
    paths = ["pipe.jpg", f"file://{tmp_path}/pipe.jpg", "/dev/zero", str(tmp_path), path, "big.jpg"]
    write_csv(tmp_path / "p.csv", [{"image": path, "caption": "a cat"} for path in paths])
    write_parquet(tmp_path / "p.parquet", [{"image": image, "caption": ""} for image in (image_bytes(0), bytes(5001))])
    found = samples_of(tmp_path / "p.csv", max_bytes=5000)
    assert [sample.status for sample in found] == ["image_missing"] * 4 + ["ok", "image_too_large"]
    assert ["'pipe.jpg'" in str(found[0].reason), "'big.jpg' has 5,001 bytes" in str(found[5].reason)] == [True, True]
    assert samples_of(tmp_path / "p.parquet", max_bytes=5000)[1].status == "image_too_large"


def test_only_images_are_copied(tmp_path: Path) -> None:
    good = write_images(tmp_path, 1)[0]
    (tmp_path / "secret.jpg").write_text("root:x:0:0:root:/root:/bin/bash")
    (tmp_path / "photo.sh").write_bytes(image_bytes(1, format="PNG"))
    paths = [good, "secret.jpg", "secret.jpg", "photo.sh", "none.jpg"]
    lines = [b"image,caption", *(f"{path},caf".encode() + b"\xe9" for path in paths)]
    (tmp_path / "p.csv").write_bytes(b"\n".join(lines))
    shard = shard_of(tmp_path / "p.csv")
    members = [sample.members for sample in shard.samples()]
    found = shard.reader(whole=True, keep_open=True).read(range(5), members, [None] * 5)
    assert not any(isinstance(one, SampleFault) for one in found)
    texts = {"json", "txt"}
    assert [set(one.files) for one in found] == [texts | {"jpg"}, texts, texts, texts | {"png"}, texts]
    assert found[0].files["jpg"] == image_bytes(0)
    assert json.loads(found[0].files["json"])["caption"] == "caf\udce9"
    assert found[0].files["txt"].decode() == "caf\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_shards, "SHARD_ROWS", 7)
    monkeypatch.setattr(table_shards, "WHOLE_ROWS", 20)


@pytest.mark.usefixtures("small_shards")
def test_a_large_parquet_file_is_cut_into_ranges_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = [{"image": image_bytes(n), "caption": f"number {n}", "uid": f"{n + 1:032x}"} for n in range(50)]
    write_parquet(tmp_path / "t.parquet", data)
    opened: list[int] = []
    begin = pool_rows._rows_from

    def counted(url: str, columns: Any, first: int, batch: int) -> Any:
        opened.append(first)
        return begin(url, columns, first, batch)

    with monkeypatch.context() as patch:
        patch.setattr(pool_rows, "_rows_from", counted)
        run = score(tmp_path / "t.parquet", tmp_path / "run")
    assert opened == [0, 0]  # for the first sample, before any work, and for all shards
    assert run.shards == tuple(f"t-rows{first:09d}" for first in range(0, 50, 7))
    assert run.sizes == (7, 7, 7, 7, 7, 7, 7, 1)
    rows = index_rows(run)
    assert [row["key"] for row in rows] == [f"{number:09d}" for number in range(50)]
    assert [(row["caption"], row["uid_lo"]) for row in rows] == [(f"number {n}", n + 1) for n in range(50)]
    assert tamis.check(run.path).exit_code == 0
    monkeypatch.setattr(table_shards.TableShard, "batch", 3)  # more than one before the first row
    in_reverse = [list(shard.samples()) for shard in reversed(open_pool(str(tmp_path / "t.parquet")).shards)]
    assert [sample.uid[1] for shard in reversed(in_reverse) for sample in shard] == list(range(1, 51))
    order = [20, 3, 49, 8, 23, 0]
    found = tamis.samples_of(run, order=order, fields=("caption", "image"))
    assert [sample.image for sample in found] == [data[row]["image"] for row in order]


@pytest.mark.usefixtures("small_shards")
def test_row_groups_stay_together_unless_one_is_too_large(tmp_path: Path) -> None:
    content = pa.Table.from_pylist([{"caption": "a"} for _ in range(60)])
    with pq.ParquetWriter(tmp_path / "t-rows000000006.parquet", content.schema) as writer:
        for first, last in ((0, 5), (5, 12), (12, 40), (40, 60)):
            writer.write_table(content.slice(first, last - first), row_group_size=100)
    shards = open_pool(PoolSpec(path=str(tmp_path), image="none")).shards
    ranges = [shard.range[:2] for shard in shards]  # type: ignore[attr-defined]
    assert ranges == [(0, 12), (12, 7), (19, 7), (26, 7), (33, 7), (40, None)]
    run = score(tmp_path, tmp_path / "run", image="none")
    again = score(tmp_path, tmp_path / "run", image="none")
    assert run.shards == again.shards == tuple(f"t-rows000000006-rows{first:09d}" for first, _ in ranges)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_metadata_and_embeddings_cut_alike(
    save: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datacomp, "_BLOCK", 3)
    arrays = write_metadata(tmp_path / "aa.parquet", rows=25)
    arrays["l14_img"] = np.asfortranarray(arrays["l14_img"])
    save(tmp_path / "aa.npz", **arrays)
    run = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", quiet=True)
    assert (run.sizes, run.failures) == ((7, 7, 7, 4), {})
    assert run.to_arrow()["uid"].to_pylist() == pq.read_table(tmp_path / "aa.parquet")["uid"].to_pylist()
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.concatenate([run.embedding(name, shard) for shard in run.shards]), array)
    np.savez(tmp_path / "aa.npz", b32_img=arrays["b32_img"][:10])
    short = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "short", quiet=True)
    assert list(short.failures) == ["aa-rows000000007", "aa-rows000000014", "aa-rows000000021"]
    assert "aa.npz: b32_img has 10 rows" in short.failures["aa-rows000000021"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.uint8()), [[1, 2]]),
        (pa.list_(pa.list_(pa.list_(pa.uint8()))), [[[[1], [2]]]]),
        (pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()})), [[{"bytes": b"x", "path": "x"}]]),
        (pa.list_(pa.string()), [["a.jpg", "b.jpg"]]),
        (pa.int64(), [3]),
    ],
)
def test_a_column_that_cannot_hold_images_is_refused_or_passed_over(kind: Any, values: Any, tmp_path: Path) -> None:
    columns = {"image": pa.array(values, kind), "text": ["a dog"]}
    pq.write_table(pa.table(columns), tmp_path / "pool.parquet")
    for settings in ({}, {"image": "image"}):
        with pytest.raises(PoolError, match=r"the image column 'image' holds .*, expected the bytes of an image file"):
            shard_of(tmp_path / "pool.parquet", **settings)
    (name,) = write_images(tmp_path, 1)
    pq.write_table(pa.table({**columns, "image_path": [name]}), tmp_path / "other.parquet")
    assert samples_of(tmp_path / "other.parquet")[0].image == image_bytes(0)
