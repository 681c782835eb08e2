"""WebDataset tars: which members make a sample, where their bytes lie, and what becomes of bad ones."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from factories import caption, image_bytes, index_rows, pair, write_pool, write_tar
from hypothesis import given
from hypothesis import strategies as st
from processes import command

import tamis
from tamis.errors import PoolError
from tamis.pool import PoolSpec
from tamis.pool.tar import _Info
from tamis.store import Run
from tamis.uid import content_uid, format_uid

SCORES = ["caption_length", "image_size"]


def score(path: Path | list[str] | str, run: Path, **settings: object) -> Run:
    spec = PoolSpec(path=tuple(path) if isinstance(path, list) else str(path), **settings)  # type: ignore[arg-type]
    return tamis.score(spec, run=run, scores=SCORES, quiet=True)


def statuses(run: Run) -> dict[str, str]:
    return {row["key"]: row["status"] for row in index_rows(run)}


def write_members(path: Path, members: Mapping[str, bytes]) -> Path:
    """Writes a tar whose member names are given whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def sample(key: str, seed: int) -> dict[str, bytes]:
    return {f"{key}.{ext}": data for ext, data in pair(seed).items()}


def test_folder_glob_brace_range_list_and_file_name_the_same_shards(pool: Path, tmp_path: Path) -> None:
    paths = [
        str(pool),
        str(pool / "*.tar"),
        str(pool / "{00000..00002}.tar"),
        str(pool / "{00000,00001,00002}.tar"),
        [str(pool / f"0000{number}.tar") for number in (2, 0, 1)],
    ]
    runs = [score(path, tmp_path / f"run{number}") for number, path in enumerate(paths)]
    for run in runs:
        assert run.shards == ("00000", "00001", "00002")
        assert run.to_arrow().equals(runs[0].to_arrow())
    assert len(runs[0]) == 21


def test_rows_stand_in_the_order_of_the_tar(tmp_path: Path) -> None:
    keys = ["c", "a", "b"]
    write_tar(tmp_path / "pool" / "0.tar", [(key, pair(seed)) for seed, key in enumerate(keys)])
    rows = index_rows(score(tmp_path / "pool", tmp_path / "run"))
    assert [row["key"] for row in rows] == keys
    assert [row["caption"] for row in rows] == [caption(seed) for seed in range(3)]
    assert [(row["width"], row["height"]) for row in rows] == [(48, 32)] * 3
    assert [(row["original_width"], row["original_height"]) for row in rows] == [(480, 320)] * 3
    assert [format_uid(row["uid_hi"], row["uid_lo"]) for row in rows] == [
        f"{seed * 7919 + 1:032x}" for seed in (0, 1, 2)
    ]


@pytest.mark.parametrize(
    ("ending", "mode"), [("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")]
)
def test_a_compressed_tar_gives_the_rows_of_the_plain_one(ending: str, mode: str, tmp_path: Path) -> None:
    samples = [(f"{seed:04d}", pair(seed)) for seed in range(5)]
    write_tar(tmp_path / "plain" / "0.tar", samples)
    write_tar(tmp_path / "packed" / f"0.{ending}", samples, mode)
    plain, packed = (score(tmp_path / name, tmp_path / f"run-{name}") for name in ("plain", "packed"))
    assert packed.shards == ("0",)
    assert packed.to_arrow().equals(plain.to_arrow())
    assert packed.index("0").equals(plain.index("0"))


def test_a_compressed_tar_named_plainly_is_read_all_the_same(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0))], "w:gz")
    assert statuses(score(tmp_path / "pool", tmp_path / "run")) == {"a": "ok"}


def test_zstd_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "0.tar").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    run = score(tmp_path / "pool", tmp_path / "run")
    assert "zstd" in run.failures["0"]
    assert "unpack it or use gzip" in run.failures["0"]


def test_the_index_says_where_each_members_bytes_are(tmp_path: Path) -> None:
    long = "x" * 140  # longer than a tar header holds: written as an extra header
    samples = [("a", pair(0)), (f"{long}/b", pair(1)), ("ünïcode", pair(2) | {"txt": b""})]
    path = write_tar(tmp_path / "pool" / "0.tar", samples)
    run = score(path, tmp_path / "run")
    content = path.read_bytes()
    rows = index_rows(run)
    assert [row["key"] for row in rows] == ["a", f"{long}/b", "ünïcode"]
    for row, (_, files) in zip(rows, samples, strict=True):
        found = {part["ext"]: content[part["offset"] : part["offset"] + part["size"]] for part in row["members"]}
        assert found == files


def test_offsets_of_a_compressed_tar_count_unpacked_bytes(tmp_path: Path) -> None:
    import gzip

    path = write_tar(tmp_path / "pool" / "0.tar.gz", [("a", pair(0)), ("b", pair(1))], "w:gz")
    content = gzip.decompress(path.read_bytes())
    for row, seed in zip(index_rows(score(path, tmp_path / "run")), (0, 1), strict=True):
        found = {part["ext"]: content[part["offset"] : part["offset"] + part["size"]] for part in row["members"]}
        assert found == pair(seed)


def test_a_key_ends_at_the_first_dot_as_in_webdataset(tmp_path: Path) -> None:
    write_members(tmp_path / "pool" / "0.tar", sample("a", 0) | sample("photo.v2", 1))
    rows = index_rows(score(tmp_path / "pool", tmp_path / "run"))
    assert [(row["key"], row["status"]) for row in rows] == [("a", "ok"), ("photo", "image_missing")]
    assert rows[1]["reason"].startswith("no member is an image; the sample's members: v2.jpg, v2.txt, v2.json; a key")


def test_further_members_are_kept_and_make_no_samples(tmp_path: Path) -> None:
    extra = {"7.seg.png": image_bytes(9, format="PNG"), "7.cls": b"3"}
    write_members(tmp_path / "pool" / "0.tar", sample("7", 0) | extra | sample("8", 1))
    rows = index_rows(score(tmp_path / "pool", tmp_path / "run"))
    assert [(row["key"], row["status"]) for row in rows] == [("7", "ok"), ("8", "ok")]
    assert [part["ext"] for part in rows[0]["members"]] == ["jpg", "txt", "json", "seg.png", "cls"]
    assert (rows[0]["width"], rows[0]["image_bytes"]) == (48, len(pair(0)["jpg"]))


def test_extensions_are_read_in_any_case(tmp_path: Path) -> None:
    write_members(tmp_path / "pool" / "0.tar", {"a.JPG": image_bytes(0), "a.TXT": b"a cat"})
    rows = index_rows(score(tmp_path / "pool", tmp_path / "run"))
    assert [(row["status"], row["caption"]) for row in rows] == [("ok", "a cat")]


def test_keys_in_folders_keep_their_folder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        folder = tarfile.TarInfo("a.b")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in (sample("a.b/c/7", 0) | sample("d/7", 1)).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert statuses(score(tmp_path / "0.tar", tmp_path / "run")) == {"a.b/c/7": "ok", "d/7": "ok"}


@pytest.mark.parametrize("keys", [["a", "a", "b"], ["a", "b", "a"]], ids=["adjacent", "apart"])
def test_duplicate_keys_are_rows_of_their_own_with_a_reason(keys: list[str], tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [(key, pair(seed)) for seed, key in enumerate(keys)])
    run = score(tmp_path / "pool", tmp_path / "run")
    rows = index_rows(run)
    assert [row["key"] for row in rows] == keys
    assert [row["caption"] for row in rows] == [caption(seed) for seed in range(3)]
    second = [row for row in rows if row["key"] == "a"][1]
    assert second["status"] == "duplicate_key"
    assert second["reason"] == "an earlier sample of this shard has the key 'a' too"
    assert sorted(run.statuses.items()) == [("duplicate_key", 1), ("ok", 2)]
    assert run.to_numpy("words").tolist() == [len(caption(seed).split()) for seed in range(3)]


def test_two_samples_of_one_uid_are_two_rows(tmp_path: Path) -> None:
    uid = "0123456789abcdef0123456789ABCDEF"
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0, uid=uid)), ("b", pair(1, uid=uid))])
    run = score(tmp_path / "pool", tmp_path / "run")
    assert run.to_arrow()["uid"].to_pylist() == [uid.lower()] * 2
    assert statuses(run) == {"a": "ok", "b": "ok"}


def test_a_pair_without_uid_is_named_by_its_content(tmp_path: Path) -> None:
    files = {"jpg": image_bytes(0), "txt": b"a cat "}
    write_tar(tmp_path / "pool" / "0.tar", [("a", files), ("b", files | {"json": b'{"uid": 7}'})])
    wanted = format_uid(*content_uid(files["jpg"], b"a cat "))
    assert score(tmp_path / "pool", tmp_path / "run").to_arrow()["uid"].to_pylist() == [wanted, wanted]


# Samples that are not what they should be: changes to a good one, status, part of the reason, caption judged or not.
BAD = {
    "caption_missing": ({"txt": None}, "caption_missing", "there is no .txt member", False),
    "caption_empty": ({"txt": b" \n\t"}, "caption_empty", "the caption has 3 characters, all white space", False),
    "caption_without_bytes": ({"txt": b""}, "caption_empty", "the caption has 0 characters", False),
    "caption_not_utf8": ({"txt": b"a \xff cat"}, "caption_not_utf8", "not valid UTF-8 at byte 2", False),
    "json_missing": ({"json": None}, "ok", None, True),
    "json_cut": ({"json": b'{"uid": '}, "json_broken", "the json cannot be read", True),
    "json_list": ({"json": b"[1]"}, "json_broken", "the json holds a list, expected an object", True),
    "json_not_utf8": ({"json": b'{"a": "\xff"}'}, "json_broken", "the json cannot be read", True),
    "json_too_deep": ({"json": b"[" * 100_000}, "json_broken", "the json cannot be read", True),
    "json_odd_values": ({"json": b'{"uid": null, "original_width": "x", "original_height": 1e999}'}, "ok", None, True),
    "image_missing": ({"jpg": None}, "image_missing", "no member is an image; the sample's members: txt, json", True),
    "image_without_bytes": ({"jpg": b""}, "image_broken", "the image file has no bytes", True),
    "image_truncated": ({"jpg": image_bytes(0)[:300]}, "image_broken", "cannot be decoded", True),
    "image_is_text": ({"jpg": b"<html>not found</html>"}, "image_broken", "the file holds a web page (22 bytes)", True),
    "image_is_eps": ({"jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n"}, "image_refused", "the format EPS is none", True),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sample_is_a_row_with_a_reason(name: str, tmp_path: Path) -> None:
    changes, status, reason, judged = BAD[name]
    bad = {ext: data for ext, data in (pair(1) | changes).items() if data is not None}
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0)), ("b", bad), ("c", pair(2))])
    run = score(tmp_path / "pool", tmp_path / "run")
    rows = index_rows(run)
    assert [row["key"] for row in rows] == ["a", "b", "c"]
    assert [row["status"] for row in rows] == ["ok", status, "ok"]
    assert rows[1]["caption_judged"] is judged
    if reason is None:
        assert rows[1]["reason"] is None
    else:
        assert reason in rows[1]["reason"]
    words = run.to_numpy("words")
    assert words[1] == len(caption(1).split()) if judged else str(words[1]) == "nan"
    assert run.failures == {}


def test_a_caption_that_is_not_utf8_is_shown_with_marks(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0) | {"txt": b"a \xff cat"})])
    assert index_rows(score(tmp_path / "pool", tmp_path / "run"))[0]["caption"] == "a \N{REPLACEMENT CHARACTER} cat"


def test_captions_can_come_from_a_json_field(tmp_path: Path) -> None:
    samples = [
        ("a", pair(0, long_caption="from the json")),
        ("b", pair(1)),
        ("c", pair(2, long_caption=["the first", "the second"])),
        ("e", pair(2, long_caption={"en": "no text"})),
        ("d", pair(3) | {"json": b'{"long_caption": "half a \\ud83d pair"}'}),
    ]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    rows = index_rows(score(tmp_path / "pool", tmp_path / "run", caption="json:long_caption"))
    assert [row["status"] for row in rows] == ["ok", "caption_missing", "ok", "caption_missing", "caption_not_utf8"]
    assert [row["caption"] for row in rows[:4]] == ["from the json", None, "the first", None]
    fields = "json:uid, json:original_width, json:original_height"
    assert rows[1]["reason"] == f"there is no text in the json field 'long_caption'; the sample has: jpg, txt, {fields}"
    assert rows[3]["reason"] == "the json field 'long_caption' holds an object, expected text"


def test_lists_of_captions_are_warned_of_once_however_many_workers_there_are(tmp_path: Path) -> None:
    for name in "012":
        write_tar(tmp_path / "pool" / f"{name}.tar", [("a", pair(0, captions=["a dog", "two dogs"]))])
    given = ["--caption", "json:captions", "--signals", "caption_length", "--workers", "2"]
    done = command("score", tmp_path / "pool", "--run", tmp_path / "run", *given)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the json field 'captions' holds lists of captions") == 1
    assert [row["caption"] for row in index_rows(Run(tmp_path / "run"))] == ["a dog"] * 3


def test_captions_can_come_from_another_member(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0) | {"cap": b"another text"}), ("b", pair(1))])
    rows = index_rows(score(tmp_path / "pool", tmp_path / "run", caption="cap"))
    assert [row["caption"] for row in rows] == ["another text", None]
    assert rows[1]["reason"].startswith("there is no .cap member; the sample has: jpg, txt, json:uid, ")


def test_a_caption_s_extension_may_have_dots(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0) | {"alt.cap": b"another text"})])
    rows = index_rows(score(tmp_path / "pool", tmp_path / "run", caption="alt.cap"))
    assert [row["caption"] for row in rows] == ["another text"]


def test_json_fields_are_carried_into_the_index(tmp_path: Path) -> None:
    samples = [("a", pair(0, url="http://x", tags=["é", 1])), ("b", pair(1)), ("c", pair(2, url="\ud83d cut"))]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    run = score(tmp_path / "pool", tmp_path / "run", fields=("url", "tags"))
    rows = index_rows(run)
    assert run.failures == {}
    assert [row["tags"] for row in rows] == ['["é", 1]', None, None]
    assert [row["url"] for row in rows][:2] == ["http://x", None]
    assert rows[2]["url"].endswith(" cut")


@pytest.mark.parametrize("field", ["status", "width", "caption", "uid", "shard"])
def test_a_carried_field_may_not_hide_a_column_of_the_index(field: str, pool: Path, tmp_path: Path) -> None:
    with pytest.raises(tamis.errors.PoolError, match=f"the field '{field}' has the name of a column of the index"):
        score(pool, tmp_path / "run", fields=(field,))
    assert not (tmp_path / "run" / "run.json").exists()


def test_member_names_that_are_not_utf8_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for ext, data in pair(0).items():
            info = tarfile.TarInfo(f"caf\xe9.{ext}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    whole = path.read_bytes()
    assert statuses(score(path, tmp_path / "run")) == {"caf\\xe9": "ok"}
    path.write_bytes(whole[:900])  # in the middle of the image
    run = score(path, tmp_path / "cut")
    assert statuses(run) == {"caf\\xe9": "shard_cut"}


def cut(tmp_path: Path, where: str) -> tuple[Path, bytes]:
    """Writes a pool of one tar of four samples, cut off in the third."""
    path = write_tar(tmp_path / "pool" / "0.tar", [(name, pair(seed)) for seed, name in enumerate("abcd")])
    with tarfile.open(path) as tar:
        infos = {info.name: info for info in tar}
    image = infos["c.jpg"]
    stop = {
        "image": image.offset_data + 100,
        "header": image.offset + 100,
        "boundary": image.offset,
        "member boundary": infos["c.txt"].offset,
        "json": infos["c.json"].offset_data + 3,
    }[where]
    content = path.read_bytes()
    path.write_bytes(content[:stop])
    return path, content


CUTS = {
    "image": (["ok", "ok", "shard_cut"], "unexpected end of data"),
    "header": (["ok", "ok"], "without its end marker"),
    "boundary": (["ok", "ok"], "without its end marker"),
    "member boundary": (["ok", "ok", "shard_cut"], "without its end marker"),
    "json": (["ok", "ok", "shard_cut"], "unexpected end of data"),
}


@pytest.mark.parametrize("where", CUTS)
def test_a_cut_tar_is_reported_and_the_rows_before_the_cut_stay(where: str, tmp_path: Path) -> None:
    path, _ = cut(tmp_path, where)
    expected, reason = CUTS[where]
    run = score(path, tmp_path / "run")
    assert [row["status"] for row in index_rows(run)] == expected
    assert list(run.failures) == ["0"]
    assert reason in run.failures["0"]
    assert run.failures["0"].startswith(f"{path}: ")
    assert run.to_numpy("words")[:2].tolist() == [len(caption(seed).split()) for seed in range(2)]


def test_a_cut_in_a_member_that_nobody_reads_marks_its_sample(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0)), ("b", pair(1) | {"npy": bytes(5000)})])
    path.write_bytes(path.read_bytes()[:-12_000])
    run = score(path, tmp_path / "run")
    assert statuses(run) == {"a": "ok", "b": "shard_cut"}
    assert "unexpected end of data" in run.failures["0"]


def test_a_cut_compressed_tar_is_reported(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "pool" / "0.tar.gz", [(f"{seed}", pair(seed)) for seed in range(30)], "w:gz")
    path.write_bytes(path.read_bytes()[:-2000])
    run = score(path, tmp_path / "run")
    assert list(run.failures) == ["0"]
    assert 0 < len(run) < 30


def test_a_damaged_header_in_the_middle_is_reported(tmp_path: Path) -> None:
    path, content = cut(tmp_path, "boundary")
    stop = path.stat().st_size
    path.write_bytes(content[:stop] + b"\xaa" * 512 + content[stop + 512 :])
    run = score(path, tmp_path / "run")
    assert statuses(run) == {"a": "ok", "b": "ok"}
    assert "a header is damaged" in run.failures["0"]


def test_a_tar_without_members_is_good_and_has_no_rows(pool: Path, tmp_path: Path) -> None:
    write_tar(pool / "00003.tar", [])
    run = score(pool, tmp_path / "run")
    assert run.failures == {}
    assert run.sizes == (7, 7, 7, 0)
    assert len(run.to_numpy("words")) == 21


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file has no bytes"),
        (b"<html>404</html>" * 100, "this is not a tar file"),
        (b"\x1f\x8b", "cannot be read"),
    ],
    ids=["zero bytes", "garbage", "two bytes of gzip"],
)
def test_a_file_that_is_no_tar_is_a_bad_shard(content: bytes, reason: str, pool: Path, tmp_path: Path) -> None:
    (pool / "00001.tar").write_bytes(content)
    run = score(pool, tmp_path / "run")
    assert run.shards == ("00000", "00002")
    assert list(run.failures) == ["00001"]
    assert reason in run.failures["00001"]
    assert str(pool / "00001.tar") in run.failures["00001"]


def test_a_folder_named_like_a_tar_is_a_bad_shard(pool: Path, tmp_path: Path) -> None:
    (pool / "00003.tar").mkdir()
    run = score(pool, tmp_path / "run")
    assert len(run) == 21
    assert "Is a directory" in run.failures["00003"]


def test_a_bad_shard_is_reported_each_time_until_it_is_mended(pool: Path, tmp_path: Path) -> None:
    good = (pool / "00001.tar").read_bytes()
    (pool / "00001.tar").write_bytes(good[:8000])
    run = tmp_path / "run"
    arguments = ("score", pool, "--run", run, "--signals", "caption_length,image_size", "--quiet")
    for _ in range(2):
        done = command(*arguments)
        assert done.returncode == 1, done.stderr
        assert done.stdout == ""
        assert "shard 00001 failed: " in done.stderr
        assert "unexpected end of data" in done.stderr
        assert "2 of 3 shards are complete. Fix or replace what failed" in done.stderr
        record = json.loads((run / "failures" / "00001.json").read_text())
        assert record["shard"] == "00001"
        assert record["url"] == str(pool / "00001.tar")
        sizes = Run(run).sizes
        assert (sizes[0], sizes[2]) == (7, 7)
        assert 0 < sizes[1] < 7
        assert record["rows"] == sizes[1]
    (pool / "00001.tar").write_bytes(good)
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "21 pairs in 3 shards" in done.stderr
    assert ": 21 ok" in done.stderr
    assert Run(run).failures == {}
    assert list((run / "failures").iterdir()) == []
    assert len(Run(run).to_numpy("words")) == 21


def test_a_score_added_from_the_index_alone_does_not_hide_a_bad_shard(tmp_path: Path) -> None:
    path, content = cut(tmp_path, "image")
    first = tamis.score(path, run=tmp_path / "run", scores=["image_size"], quiet=True).failures
    second = tamis.score(path, run=tmp_path / "run", scores=["image_size", "caption_length"], quiet=True)
    assert list(first) == ["0"]
    assert second.failures == first
    assert len(second.to_numpy("words")) == 3
    assert "shard 0 failed" in command("score", path, "--run", tmp_path / "run", "--signals", "language", "-q").stderr
    path.write_bytes(content)
    mended = tamis.score(path, run=tmp_path / "run", scores=["image_size"], quiet=True)
    assert (mended.failures, len(mended)) == ({}, 4)


def test_a_pool_of_a_folder_with_tables_beside_is_its_tars(pool: Path, tmp_path: Path) -> None:
    (pool / "00000.parquet").write_bytes(b"img2dataset writes one beside each tar")
    (pool / "00000_stats.json").write_text("{}")
    (pool / "_tmp.tar").write_bytes(b"hidden")
    assert score(pool, tmp_path / "run").shards == ("00000", "00001", "00002")


def test_shards_of_one_stem_in_two_folders_keep_apart(tmp_path: Path) -> None:
    one, two = write_pool(tmp_path / "one", shards=1), write_pool(tmp_path / "two", shards=1, rows=4)
    run = score([str(one), str(two)], tmp_path / "run")
    assert sorted(run.sizes) == [4, 7]
    assert all(name.startswith("00000-") for name in run.shards)


ENDINGS = [("tar", "w"), ("tar.gz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")]


@pytest.mark.parametrize(("ending", "mode"), ENDINGS)
def test_what_follows_the_end_marker_is_reported_and_the_rows_before_it_stay(
    ending: str, mode: str, tmp_path: Path
) -> None:
    one = write_tar(tmp_path / f"one.{ending}", [("a", pair(0)), ("b", {"jpg": image_bytes(1)})], mode)
    two = write_tar(tmp_path / f"two.{ending}", [("c", pair(2))], mode)
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / f"0.{ending}").write_bytes(one.read_bytes() + two.read_bytes())
    run = score(tmp_path / "pool", tmp_path / "run")
    assert statuses(run) == {"a": "ok", "b": "caption_missing"}
    assert "something follows the tar's end marker" in run.failures["0"]


@pytest.mark.parametrize(("ending", "mode"), ENDINGS)
def test_padding_after_the_end_marker_is_nothing(ending: str, mode: str, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "pool" / f"0.{ending}", [("a", pair(0))], mode)
    path.write_bytes(path.read_bytes() + bytes(3_000_000))
    run = score(tmp_path / "pool", tmp_path / "run")
    assert (statuses(run), run.failures) == ({"a": "ok"}, {})


def test_a_tar_of_many_gzip_streams_is_read_whole(tmp_path: Path) -> None:
    """As bgzip writes them, and appended logs are."""
    import gzip

    path = write_tar(tmp_path / "pool" / "0.tar", [(f"{seed}", pair(seed)) for seed in range(20)])
    content = path.read_bytes()
    path.unlink()
    streams = [gzip.compress(content[start : start + 5000]) for start in range(0, len(content), 5000)]
    (tmp_path / "pool" / "0.tar.gz").write_bytes(b"".join(streams))
    run = score(tmp_path / "pool", tmp_path / "run")
    assert (len(run), run.statuses, run.failures) == (20, {"ok": 20}, {})


def test_members_above_the_limit_are_not_read(tmp_path: Path) -> None:
    samples = [
        ("a", pair(0)),
        ("b", pair(1) | {"jpg": bytes(5001)}),
        ("c", pair(2) | {"txt": bytes(5001)}),
        ("d", pair(3) | {"json": bytes(5001)}),
        ("e", pair(4) | {"npy": bytes(5001)}),
    ]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    run = score(tmp_path / "pool", tmp_path / "run", max_bytes=5000)
    rows = index_rows(run)
    assert run.failures == {}
    assert [row["status"] for row in rows] == ["ok", "image_too_large", "caption_missing", "json_broken", "ok"]
    assert [row["reason"] for row in rows[1:4]] == [
        f"the .{ext} member has 5,001 bytes, more than the limit of 5,000" for ext in ("jpg", "txt", "json")
    ]
    assert [row["image_bytes"] for row in rows[:2]] == [len(image_bytes(0)), 5001]


def test_a_bomb_of_text_takes_no_memory(tmp_path: Path) -> None:
    import tracemalloc

    from tamis.pool.tar import TarShard

    path = write_tar(tmp_path / "0.tar.gz", [("a", pair(0) | {"txt": bytes(200 << 20)}), ("b", pair(1))], "w:gz")
    tracemalloc.start()
    try:
        found = list(TarShard(name="0", url=str(path), spec=PoolSpec(path=str(path))).samples())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [sample.status for sample in found] == ["caption_missing", "ok"]
    assert found[0].reason == "the .txt member has 209,715,200 bytes, more than the limit of 16,777,216"
    assert peak < 32 << 20


@pytest.mark.parametrize("name", ["max_pixels", "max_bytes"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, expected 1 or more"):
        PoolSpec(path="pool", **{name: 0})  # type: ignore[arg-type]


def test_extensions_may_be_given_in_capitals(tmp_path: Path) -> None:
    write_members(tmp_path / "pool" / "0.tar", {"a.JPG": image_bytes(0), "a.TXT": b"a cat"})
    run = score(tmp_path / "pool", tmp_path / "run", caption="TXT", image_extensions=("JPG",))
    assert statuses(run) == {"a": "ok"}


def test_an_image_column_of_tars_is_an_error(pool: Path, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"'image' names a column of a table \('pic'\), and this pool is tars"):
        score(pool, tmp_path / "run", image="pic")


@given(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
    size=st.integers(0, 8**12),
    mode=st.integers(0, 0o7777),
    kind=st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE]),
    format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
    place=st.none() | st.integers(0, 511),
    byte=st.integers(0, 255),
)
def test_headers_of_the_usual_kind_are_read_as_tarfile_reads_them(
    name: str, size: int, mode: int, kind: bytes, format: int, place: int | None, byte: int
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type = size, mode, kind
    try:
        block = bytearray(info.tobuf(format, "utf-8", "surrogateescape")[-512:])
    except ValueError:  # too long for ustar
        return
    if place is not None:
        block[place] = byte
    try:
        usual = _Info.frombuf(bytes(block), "utf-8", "surrogateescape")
    except tarfile.TarError:
        return
    known = tarfile.TarInfo.frombuf(bytes(block), "utf-8", "surrogateescape")
    assert (usual.name, usual.size) == (known.name, known.size)
    assert usual.isreg() == known.isreg()
