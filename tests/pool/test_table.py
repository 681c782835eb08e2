"""Tables of image and caption: Parquet, CSV, TSV, JSON lines."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import caption, image_bytes, index_rows, write_metadata
from processes import command

import tamis
from tamis.data import Sample
from tamis.errors import PoolError, UnreachedError
from tamis.pool import PoolSpec, open_pool, table
from tamis.pool.datacomp import metadata_shards
from tamis.pool.source import Problem
from tamis.store import Run
from tamis.uid import content_uid, format_uid


def score(path: Path, run: Path, **settings: Any) -> Run:
    return tamis.score(
        PoolSpec(path=str(path), **settings), run=run, scores=["caption_length", "image_size"], quiet=True
    )


def write_images(folder: Path, count: int = 3) -> list[str]:
    """Writes images and returns their paths relative to the folder."""
    (folder / "images").mkdir(parents=True)
    for seed in range(count):
        (folder / "images" / f"{seed}.jpg").write_bytes(image_bytes(seed))
    return [f"images/{seed}.jpg" for seed in range(count)]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> None:
    lines = [delimiter.join(rows[0]), *(delimiter.join(str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tsv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_csv(path, rows, "\t")


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)


WRITERS: dict[str, Callable[[Path, Sequence[Mapping[str, Any]]], None]] = {
    "csv": write_csv,
    "tsv": write_tsv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


def files_of(shard: Any, samples: Sequence[Sample]) -> list[Mapping[str, bytes]]:
    """All files of all samples of a shard, read again."""
    found = shard.reader(whole=True, keep_open=True).read(range(len(samples)), [one.members for one in samples])
    assert not any(isinstance(one, Problem) for one in found)
    return [one.files for one in found]


@pytest.mark.parametrize("ending", WRITERS)
def test_image_paths_are_relative_to_the_table(ending: str, tmp_path: Path) -> None:
    paths = write_images(tmp_path)
    WRITERS[ending](tmp_path / f"pairs.{ending}", [{"image": p, "caption": caption(n)} for n, p in enumerate(paths)])
    run = score(tmp_path / f"pairs.{ending}", tmp_path / "run")
    rows = index_rows(run)
    assert run.shards == ("pairs",)
    assert [row["key"] for row in rows] == ["000000000", "000000001", "000000002"]
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert [row["caption"] for row in rows] == [caption(seed) for seed in range(3)]
    assert [(row["width"], row["height"]) for row in rows] == [(48, 32)] * 3
    assert [part["ext"] for part in rows[0]["members"]] == ["jpg", "txt"]
    wanted = [format_uid(*content_uid(image_bytes(seed), caption(seed).encode())) for seed in range(3)]
    assert run.to_arrow()["uid"].to_pylist() == wanted


@pytest.mark.parametrize("ending", WRITERS)
def test_a_missing_image_file_is_a_row_with_a_reason(ending: str, tmp_path: Path) -> None:
    paths = [*write_images(tmp_path, 1), "images/none.jpg", ""]
    WRITERS[ending](tmp_path / f"pairs.{ending}", [{"image": path, "caption": "a cat"} for path in paths])
    rows = index_rows(score(tmp_path / f"pairs.{ending}", tmp_path / "run"))
    assert [row["status"] for row in rows] == ["ok", "image_missing", "image_missing"]
    assert rows[1]["reason"].startswith("the image 'images/none.jpg' cannot be read: FileNotFoundError")
    assert rows[2]["reason"] == "there is no image in the column 'image'"


@pytest.mark.parametrize("ending", WRITERS)
def test_captions_that_look_like_numbers_stay_as_written(ending: str, tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    rows = [{"image": path, "caption": text} for text in ("007", "1e5", "NaN", "null", "true")]
    WRITERS[ending](tmp_path / f"pairs.{ending}", rows)
    found = index_rows(score(tmp_path / f"pairs.{ending}", tmp_path / "run"))
    assert [row["caption"] for row in found] == ["007", "1e5", "NaN", "null", "true"]
    assert [row["status"] for row in found] == ["ok"] * 5


LISTS = [["a dog", "two dogs"], ["a cat"], []]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_of_a_list_of_captions_the_first_is_taken_and_a_warning_says_so(
    ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    image = write_images(tmp_path, 1)[0]
    rows = [{"image": image, f"of_{ending}": captions} for captions in LISTS]
    WRITERS[ending](tmp_path / f"pairs.{ending}", rows)
    found = index_rows(score(tmp_path / f"pairs.{ending}", tmp_path / "run", caption=f"of_{ending}"))
    assert [row["caption"] for row in found] == ["a dog", "a cat", None]
    assert [row["status"] for row in found] == ["ok", "ok", "caption_missing"]
    wanted = f"the column 'of_{ending}' holds lists of captions: the first of each is taken, the others are left out"
    assert [record.message for record in caplog.records] == [wanted]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, "a number|int64"),
        (0.5, "a number|double"),
        (True, "true or false|bool"),
        ({"en": "a dog"}, "an object|struct<en: string>"),
        ([1, 2], "a list|list<element: int64>"),
        ([{"text": "a dog"}], r"a list|list<element: struct<text: string>>"),
        (b"a dog", "binary"),
    ],
)
def test_captions_that_are_no_text_are_an_error_before_any_work(
    value: Any, kind: str, ending: str, tmp_path: Path
) -> None:
    if isinstance(value, bytes) and ending == "jsonl":
        return  # JSON has none
    WRITERS[ending](tmp_path / f"pairs.{ending}", [{"image": "a.jpg", "caption": value, "alt": "b", "other": None}])
    wanted = f"the column 'caption' holds ({kind}), and captions are text; its columns of text: image, alt, other"
    with pytest.raises(PoolError, match=wanted):
        score(tmp_path / f"pairs.{ending}", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_among_texts_a_caption_of_another_kind_is_a_row_with_a_reason(tmp_path: Path) -> None:
    image = write_images(tmp_path, 1)[0]
    values: list[Any] = ["a dog", 7, {"en": "a dog"}, ["a cat", "cats"], [7], None, False]
    write_jsonl(tmp_path / "pairs.jsonl", [{"image": image, "caption": value} for value in values])
    found = index_rows(score(tmp_path / "pairs.jsonl", tmp_path / "run"))
    assert [row["caption"] for row in found] == ["a dog", None, None, "a cat", None, None, None]
    assert [row["reason"] for row in found] == [
        None,
        "the column 'caption' holds a number, expected text",
        "the column 'caption' holds an object, expected text",
        None,
        "the column 'caption' holds a number, expected text",
        "there is no text in the column 'caption'",
        "the column 'caption' holds true or false, expected text",
    ]


def test_words_of_a_dictionary_and_long_strings_are_text(tmp_path: Path) -> None:
    image = write_images(tmp_path, 1)[0]
    kinds = [pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.list_(pa.large_string(), 1)]
    for number, kind in enumerate(kinds):
        values = pa.array([["a dog"]], kind) if number == 2 else pa.array(["a dog"]).cast(kind)
        pq.write_table(pa.table({"image": [image], "caption": values}), tmp_path / f"{number}.parquet")
        assert index_rows(score(tmp_path / f"{number}.parquet", tmp_path / f"run{number}"))[0]["caption"] == "a dog"


def test_parquet_with_image_bytes(tmp_path: Path) -> None:
    rows = [{"image": image_bytes(seed), "text": caption(seed), "uid": f"{seed:032x}"} for seed in range(2)]
    rows += [{"image": b"", "text": "empty", "uid": None}, {"image": None, "text": "none", "uid": None}]
    rows += [{"image": b"no image", "text": "", "uid": None}]
    write_parquet(tmp_path / "pairs.parquet", rows)
    run = score(tmp_path / "pairs.parquet", tmp_path / "run", format="table")
    found = index_rows(run)
    assert [row["status"] for row in found] == ["ok", "ok", "image_broken", "image_missing", "caption_empty"]
    assert [row["image_bytes"] for row in found] == [len(image_bytes(0)), len(image_bytes(1)), 0, 0, 8]
    assert run.to_arrow()["uid"].to_pylist()[:2] == [f"{seed:032x}" for seed in range(2)]
    assert found[4]["caption_judged"] is False


def test_parquet_with_the_image_struct_of_hugging_face(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    structs: list[dict[str, Any]] = [
        {"bytes": image_bytes(1, format="PNG"), "path": "cat.png"},
        {"bytes": image_bytes(2, format="WEBP"), "path": None},
        {"bytes": None, "path": path},
        {"bytes": None, "path": None},
    ]
    write_parquet(tmp_path / "data.parquet", [{"image": image, "caption": "a cat"} for image in structs])
    rows = index_rows(score(tmp_path / "data.parquet", tmp_path / "run"))
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "image_missing"]
    assert [row["members"][0]["ext"] for row in rows][:3] == ["png", "webp", "jpg"]


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 2)
    rows = [{"image": "wrong", "pic": path, "caption": "wrong", "blip": caption(n)} for n, path in enumerate(paths)]
    write_csv(tmp_path / "pairs.csv", rows)
    done = command(
        *("score", tmp_path / "pairs.csv", "--run", tmp_path / "run", "--signals", "caption_length"),
        *("--image", "pic", "--caption", "blip", "--field", "caption_length", "-q"),
    )
    assert done.returncode == 0, done.stderr
    found = index_rows(Run(tmp_path / "run"))
    assert [(row["status"], row["caption"]) for row in found] == [("ok", caption(0)), ("ok", caption(1))]


def test_a_table_without_the_column_asked_for_lists_its_columns(tmp_path: Path) -> None:
    write_csv(tmp_path / "pairs.csv", [{"image": "a", "captions": "b"}])
    with pytest.raises(PoolError) as error:
        score(tmp_path / "pairs.csv", tmp_path / "run", caption="caption")
    assert str(error.value).endswith(
        "pairs.csv has no column 'caption' (did you mean 'captions'?); its columns: image, captions"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ending", WRITERS)
def test_a_table_with_other_columns_lists_them_and_says_how_to_name_the_right_one(ending: str, tmp_path: Path) -> None:
    WRITERS[ending](tmp_path / f"pairs.{ending}", [{"picture": "a.jpg", "sentence": "b"}])
    done = command("score", tmp_path / f"pairs.{ending}", "--run", tmp_path / "run", "--signals", "caption_length")
    assert done.returncode == 2
    assert "has no column that looks like the image (looked for image, image_path, jpg" in done.stderr
    assert "its columns: picture, sentence." in done.stderr
    assert "--image" in done.stderr


@pytest.mark.parametrize(
    ("ending", "content"),
    [("parquet", b"PAR1 and then something else PAR1"), ("parquet", b""), ("jsonl", b"{broken\n"), ("csv", b"")],
)
def test_a_file_that_is_no_table_stops_before_any_work(ending: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"pairs.{ending}").write_bytes(content)
    with pytest.raises(PoolError, match=rf"pairs\.{ending}"):
        score(tmp_path / f"pairs.{ending}", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_with_too_few_or_too_many_cells_are_rows_with_a_reason(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    (tmp_path / "pairs.csv").write_text(f"caption,image,key\na cat,{path},k\nshort\n\na,{path},l,more\n\n")
    rows = index_rows(score(tmp_path / "pairs.csv", tmp_path / "run"))
    assert [row["status"] for row in rows] == ["ok", "json_broken", "json_broken"]
    assert [row["reason"] for row in rows[1:]] == [
        "the row has 1 cells, the header 3",
        "the row has 4 cells, the header 3",
    ]
    assert [row["key"] for row in rows] == ["k", "000000001", "l"]


def test_quoted_cells_may_hold_commas_and_line_breaks(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    (tmp_path / "pairs.csv").write_text(f'caption,image\n"a cat,\nand ""more""",{path}\n')
    assert index_rows(score(tmp_path / "pairs.csv", tmp_path / "run"))[0]["caption"] == 'a cat,\nand "more"'


def test_quotes_in_a_tsv_swallow_no_rows(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    written = ['"an open quote', 'a 5" nail', '"quoted ""by"" pandas"', '"two" "parts"', '"', '""']
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{line}\n" for line in ['"caption"\timage', *(f"{w}\t{path}" for w in written)])
    )
    rows = index_rows(score(tmp_path / "pairs.tsv", tmp_path / "run"))
    assert [row["caption"] for row in rows] == [*written[:2], 'quoted "by" pandas', *written[3:5], ""]
    assert [row["status"] for row in rows] == ["ok"] * 5 + ["caption_empty"]


def test_a_csv_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    (tmp_path / "pairs.csv").write_text(f"caption,image\na cat,{path}\n", encoding="utf-8-sig")
    assert index_rows(score(tmp_path / "pairs.csv", tmp_path / "run"))[0]["caption"] == "a cat"


def test_invalid_utf8_in_a_csv_costs_its_row_alone(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0].encode()
    lines = [b"caption,image,key", b"caf\xe9,%b,k\xe9y" % path, b"a cat,%b,b" % path, b"x,caf\xe9.jpg,c"]
    (tmp_path / "pairs.csv").write_bytes(b"\n".join(lines))
    run = score(tmp_path / "pairs.csv", tmp_path / "run", fields=())
    rows = index_rows(run)
    assert run.failures == {}
    assert [row["status"] for row in rows] == ["caption_not_utf8", "ok", "image_missing"]
    assert rows[0]["caption"] == "caf\N{REPLACEMENT CHARACTER}"
    assert rows[0]["key"] == "k\\udce9y"


def test_invalid_utf8_in_a_carried_field_costs_nothing(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0].encode()
    (tmp_path / "pairs.csv").write_bytes(b"caption,image,source\na cat,%b,caf\xe9\n" % path)
    run = score(tmp_path / "pairs.csv", tmp_path / "run", fields=("source",))
    assert (run.failures, index_rows(run)[0]["source"]) == ({}, "caf\\udce9")


def test_broken_lines_of_jsonl_are_rows_with_a_reason(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    good = json.dumps({"image": path, "caption": "a cat"})
    lines = [good, '{"image": ', "[1, 2]", "", "[" * 100_000, good]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    run = score(tmp_path / "pairs.jsonl", tmp_path / "run")
    rows = index_rows(run)
    assert run.failures == {}
    assert [row["status"] for row in rows] == ["ok", "json_broken", "json_broken", "json_broken", "ok"]
    assert rows[1]["reason"].startswith("the line is not JSON")
    assert rows[2]["reason"] == "the line holds a list, expected an object"


def test_duplicate_keys_of_a_table_are_rows_with_a_reason(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    write_jsonl(tmp_path / "p.jsonl", [{"image": path, "caption": "a", "key": key} for key in ("x", "y", "x")])
    rows = index_rows(score(tmp_path / "p.jsonl", tmp_path / "run"))
    assert [(row["key"], row["status"]) for row in rows] == [("x", "ok"), ("y", "ok"), ("x", "duplicate_key")]


def grouped(path: Path, rows: int = 10, group: int = 3, first: int = 0) -> Path:
    data = [{"image": image_bytes(seed), "caption": caption(seed)} for seed in range(first, first + rows)]
    pq.write_table(pa.Table.from_pylist(data), path, row_group_size=group)
    return path


def test_row_groups_become_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = grouped(tmp_path / "pairs.parquet")
    whole = score(path, tmp_path / "whole")
    monkeypatch.setattr(table, "SHARD_ROWS", 5)
    run = score(path, tmp_path / "run")
    assert run.shards == ("pairs-rows000000000", "pairs-rows000000006")
    assert run.sizes == (6, 4)
    assert whole.shards == ("pairs",)
    columns = ["uid", "key", "words", "characters", "shorter_side"]
    assert run.to_arrow().select(columns).equals(whole.to_arrow().select(columns))


def test_a_table_of_many_shards_keeps_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = grouped(tmp_path / "pairs.parquet")
    monkeypatch.setattr(table, "SHARD_ROWS", 5)
    first = score(path, tmp_path / "run")
    before = {part: part.stat().st_mtime_ns for part in (tmp_path / "run").rglob("*.parquet")}
    again = score(path, tmp_path / "run")
    assert again.shards == first.shards
    assert {part: part.stat().st_mtime_ns for part in (tmp_path / "run").rglob("*.parquet")} == before


def test_a_table_named_like_a_row_range_keeps_its_name(tmp_path: Path) -> None:
    path = grouped(tmp_path / "pairs-rows000000006.parquet")
    for _ in range(2):
        assert score(path, tmp_path / "run").shards == ("pairs-rows000000006",)


def _without_answer(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("ending", "place"), [("csv", "rows"), ("jsonl", "rows"), ("parquet", "rows"), ("parquet", "table")]
)
def test_a_table_that_the_disk_does_not_give_is_no_wrong_pool(
    place: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"pairs.{ending}"
    WRITERS[ending](path, [{"image": "a.jpg", "caption": caption(row)} for row in range(12)])
    with monkeypatch.context() as patch:
        patch.setattr(f"tamis.pool.{place}.open_file", _without_answer)  # for the columns; or for the row groups
        with pytest.raises(UnreachedError, match=rf"pairs\.{ending} cannot be reached now \(.*repeat the command"):
            table.table_shards(str(path), "pairs", PoolSpec(path=str(path)))
    assert table.table_shards(str(path), "pairs", PoolSpec(path=str(path)))


def test_metadata_that_the_disk_does_not_give_is_not_taken_for_one_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_metadata(tmp_path / "0.parquet")
    stems = {str(tmp_path / "0.parquet"): "0"}
    with monkeypatch.context() as patch:
        patch.setattr("tamis.pool.datacomp.open_file", _without_answer)
        with pytest.raises(UnreachedError, match="cannot be reached now"):
            metadata_shards(stems, PoolSpec(path=str(tmp_path)))
    assert [shard.pairs for shard in metadata_shards(stems, PoolSpec(path=str(tmp_path)))] == [5]


def test_a_table_cut_in_the_middle_stops_before_any_work(tmp_path: Path) -> None:
    path = grouped(tmp_path / "pairs.parquet")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(PoolError, match=r"pairs\.parquet cannot be read as a table"):
        score(path, tmp_path / "run")


def test_a_table_damaged_inside_is_a_bad_shard(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    grouped(tmp_path / "pool" / "a.parquet")
    bad = grouped(tmp_path / "pool" / "b.parquet", rows=6)
    content = bytearray(bad.read_bytes())
    content[10:600] = bytes(590)
    bad.write_bytes(content)
    run = score(tmp_path / "pool", tmp_path / "run")
    assert run.shards == ("a",)
    assert list(run.failures) == ["b"]
    assert "cannot be read further" in run.failures["b"]


def test_several_tables_of_a_folder_are_shards(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    grouped(tmp_path / "pool" / "a.parquet", rows=2)
    grouped(tmp_path / "pool" / "b.parquet", rows=3, first=2)
    run = score(tmp_path / "pool", tmp_path / "run")
    assert (run.shards, run.sizes) == (("a", "b"), (2, 3))


def shard_of(path: Path, **settings: Any) -> Any:
    return open_pool(PoolSpec(path=str(path), **settings)).shards[0]


def test_images_that_are_no_regular_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    paths = ["pipe.jpg", f"file://{tmp_path}/pipe.jpg", "/dev/zero", str(tmp_path)]
    write_csv(tmp_path / "pairs.csv", [{"image": path, "caption": "a cat"} for path in paths])
    rows = index_rows(score(tmp_path / "pairs.csv", tmp_path / "run"))
    assert [row["status"] for row in rows] == ["image_missing"] * 4
    assert [row["reason"] for row in rows] == [f"the image {path!r} is not a regular file" for path in paths]


def test_images_above_the_limit_of_bytes_are_not_read(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    (tmp_path / "big.jpg").write_bytes(bytes(5001))
    write_csv(tmp_path / "p.csv", [{"image": image, "caption": "a cat"} for image in (path, "big.jpg")])
    write_parquet(tmp_path / "p.parquet", [{"image": image, "caption": ""} for image in (image_bytes(0), bytes(5001))])
    for name in ("p.csv", "p.parquet"):
        rows = [sample.status for sample in shard_of(tmp_path / name, max_bytes=5000, format="table").samples()]
        assert rows[1] == "image_too_large"
    last = list(shard_of(tmp_path / "p.csv", max_bytes=5000).samples())[1]
    assert last.reason == "the image 'big.jpg' has 5,001 bytes, more than the limit of 5,000"


def test_files_that_are_no_images_are_not_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = write_images(tmp_path, 1)[0]
    (tmp_path / "secret.jpg").write_text("root:x:0:0:root:/root:/bin/bash")
    (tmp_path / "photo.sh").write_bytes(image_bytes(1, format="PNG"))
    paths = [good, "secret.jpg", "secret.jpg", "photo.sh", "none.jpg"]
    write_csv(tmp_path / "pairs.csv", [{"image": path, "caption": "a cat"} for path in paths])
    shard = shard_of(tmp_path / "pairs.csv")
    samples = list(shard.samples())
    assert [sample.status for sample in samples] == ["ok"] * 4 + ["image_missing"]
    found = files_of(shard, samples)
    assert [sorted(files) for files in found] == [
        ["jpg", "json", "txt"],
        ["json", "txt"],
        ["json", "txt"],
        ["json", "png", "txt"],
        ["json", "txt"],
    ]
    assert found[0]["jpg"] == image_bytes(0)
    assert len(caplog.records) == 1
    assert "what the column 'image' holds is not an image in row 1" in caplog.text


def test_rows_that_are_not_utf8_can_be_copied(tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0].encode()
    (tmp_path / "pairs.csv").write_bytes(b"caption,image\ncaf\xe9,%b\n" % path)
    shard = shard_of(tmp_path / "pairs.csv")
    (files,) = files_of(shard, list(shard.samples()))
    assert json.loads(files["json"])["caption"] == "caf\udce9"
    assert files["txt"].decode() == "caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("column", ["image", "image_path", "pic"])
def test_a_table_with_url_and_text_and_images_is_no_metadata_of_datacomp(column: str, tmp_path: Path) -> None:
    path = write_images(tmp_path, 1)[0]
    row = {"uid": f"{7:032x}", "url": "https://x.org/0.jpg", "text": "a cat", column: path}
    write_parquet(tmp_path / "pairs.parquet", [row])
    found = open_pool(PoolSpec(path=str(tmp_path / "pairs.parquet"), image="pic" if column == "pic" else None))
    assert (found.kind, found.has_images) == ("table", True)
    assert [sample.status for sample in found.shards[0].samples()] == ["ok"]
