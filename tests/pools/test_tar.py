"""WebDataset tars: which members make a sample, where their bytes are, what becomes of bad and of hostile ones."""

import bz2
import gzip
import io
import lzma
import tarfile
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import caption, image_bytes, index_rows, pair, write_tar
from hostile import END, good, header, member
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis.core.errors import PoolError, ShardError
from tamis.core.ids import content_uid, format_uid
from tamis.core.types import Sample
from tamis.pools import PoolSpec
from tamis.pools.source import SampleFault
from tamis.pools.tar import MAX_HEADER, TarShard, _Info
from tamis.runs import Run

SCORES = ["caption_length", "image_size"]


def score(path: Path | list[str] | str, run: Path, **settings: object) -> Run:
    spec = PoolSpec(path=tuple(path) if isinstance(path, list) else str(path), **settings)  # type: ignore[arg-type]
    return tamis.score(spec, run=run, signals=SCORES, quiet=True)


def shard(path: Path, **settings: Any) -> TarShard:
    return TarShard(name="0", url=str(path), spec=PoolSpec(path=str(path), **settings))


def read(path: Path, data: bytes | None = None, **settings: Any) -> tuple[list[Sample], str]:
    """Returns the samples of a tar, and why it ended early."""
    if data is not None:
        path.write_bytes(data)
    samples, found = shard(path, **settings).samples(), []
    try:
        for sample in samples:
            found.append(sample)
    except ShardError as error:
        return found, str(error)
    return found, ""


def statuses(samples: list[Sample]) -> dict[str, str]:
    return {sample.key: sample.status for sample in samples}


@pytest.mark.parametrize(
    ("ending", "mode"),
    [("tar", "w"), ("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz"), ("tar", "w:gz")],
)
def test_rows_are_those_of_the_tar_however_it_is_compressed(ending: str, mode: str, tmp_path: Path) -> None:
    keys = ["c", "a", f"{'x' * 140}/b", "ünïcode"]
    samples = [(key, pair(seed) | {"empty": b""}) for seed, key in enumerate(keys)]
    plain = write_tar(tmp_path / "0.tar", samples).read_bytes()
    run = score(write_tar(tmp_path / "pool" / f"0.{ending}", samples, mode).parent, tmp_path / "run")
    rows = index_rows(run)
    assert run.shards == ("0",)
    assert [row["key"] for row in rows] == keys
    assert [row["caption"] for row in rows] == [caption(seed) for seed in range(4)]
    assert [(row["width"], row["height"], row["original_width"]) for row in rows] == [(48, 32, 480)] * 4
    assert [format_uid(row["uid_hi"], row["uid_lo"]) for row in rows] == [f"{n * 7919 + 1:032x}" for n in range(4)]
    for row, (_, files) in zip(rows, samples, strict=True):  # offsets count unpacked bytes
        assert {part["ext"]: plain[part["offset"] : part["offset"] + part["size"]] for part in row["members"]} == files


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.JPG", "a.TXT"], {"a": ["jpg", "txt"]}),
        (["7.jpg", "7.txt", "7.seg.png", "7.cls", "8.jpg"], {"7": ["jpg", "txt", "seg.png", "cls"], "8": ["jpg"]}),
        (["a.b/c/7.jpg", "a.b/c/7.txt", "d/7.jpg"], {"a.b/c/7": ["jpg", "txt"], "d/7": ["jpg"]}),
        (["photo.v2.jpg", "photo.v2.txt"], {"photo": ["v2.jpg", "v2.txt"]}),
    ],
)
def test_a_key_ends_at_the_first_dot_of_the_file_name_as_in_webdataset(
    names: list[str], expected: dict[str, list[str]], tmp_path: Path
) -> None:
    content = b"".join(member(name, image_bytes(0) if name.lower().endswith("jpg") else b"a cat") for name in names)
    samples, error = read(tmp_path / "0.tar", content + END)
    assert error == ""
    assert {sample.key: [part.ext for part in sample.members] for sample in samples} == expected
    last = samples[-1]
    assert (last.status == "image_missing") == (last.key == "photo")


def test_uids_come_from_the_json_or_the_content_and_repeated_keys_are_rows_with_a_reason(tmp_path: Path) -> None:
    uid = "0123456789abcdef0123456789ABCDEF"
    files = {"jpg": image_bytes(0), "txt": b"a cat "}
    first, last = pair(0, uid=uid, url="http://x", tags=["é", 1]), pair(1, uid=uid, url="\ud83d cut")
    samples = [("a", first), ("a", files), ("b", files | {"json": b'{"uid": 7}'}), ("a", last)]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    run = score(tmp_path / "pool", tmp_path / "run", fields=("url", "tags"))
    rows = index_rows(run)
    assert [row["key"] for row in rows] == ["a", "a", "b", "a"]
    assert [row["status"] for row in rows] == ["ok", "duplicate_key", "ok", "duplicate_key"]
    assert "'a'" in rows[1]["reason"]
    own = format_uid(*content_uid(files["jpg"], b"a cat "))
    assert run.to_arrow()["uid"].to_pylist() == [uid.lower(), own, own, uid.lower()]
    assert not np.isnan(run.to_numpy("words")).any()
    # Fields of the json are carried as text, also those that are no text.
    assert [row["tags"] for row in rows] == ['["é", 1]', None, None, None]
    assert [row["url"] for row in rows][:2] == ["http://x", None]
    assert rows[3]["url"].endswith(" cut")


# Samples that are not what they should be: changes to a good one, status, part of the reason, caption judged or not.
BAD = {
    "caption_missing": ({"txt": None}, "caption_missing", ".txt", False),
    "caption_empty": ({"txt": b" \n\t"}, "caption_empty", "3 characters", False),
    "caption_without_bytes": ({"txt": b""}, "caption_empty", "0 characters", False),
    "caption_not_utf8": ({"txt": b"a \xff cat"}, "caption_not_utf8", "byte 2", False),
    "json_missing": ({"json": None}, "ok", None, True),
    "json_cut": ({"json": b'{"uid": '}, "json_broken", "the json cannot be read", True),
    "json_list": ({"json": b"[1]"}, "json_broken", "a list", True),
    "json_not_utf8": ({"json": b'{"a": "\xff"}'}, "json_broken", "the json cannot be read", True),
    "json_too_deep": ({"json": b"[" * 100_000}, "json_broken", "the json cannot be read", True),
    "json_odd_values": ({"json": b'{"uid": null, "original_width": "x", "original_height": 1e999}'}, "ok", None, True),
    "image_missing": ({"jpg": None}, "image_missing", "txt, json", True),
    "image_without_bytes": ({"jpg": b""}, "image_broken", "bytes", True),
    "image_truncated": ({"jpg": image_bytes(0)[:300]}, "image_broken", "", True),
    "image_is_text": ({"jpg": b"<html>not found</html>"}, "image_broken", "22 bytes", True),
    "image_is_eps": ({"jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n"}, "image_broken", "no format that trainers read", True),
}


def test_a_bad_sample_is_a_row_with_a_reason(tmp_path: Path) -> None:
    samples = [("first", pair(0))]
    for name, (changes, *_) in BAD.items():
        samples.append((name, {ext: data for ext, data in (pair(1) | changes).items() if data is not None}))
    write_tar(tmp_path / "pool" / "0.tar", [*samples, ("last", pair(2))])
    run = score(tmp_path / "pool", tmp_path / "run")
    assert run.failures == {}
    rows = {row["key"]: row for row in index_rows(run)}
    assert list(rows) == ["first", *BAD, "last"]
    for (name, row), words in zip(rows.items(), run.to_numpy("words").tolist(), strict=True):
        _, status, reason, judged = BAD.get(name, ({}, "ok", None, True))
        assert (row["status"], row["caption_judged"]) == (status, judged), name
        assert row["reason"] is None if reason is None else reason in row["reason"], name
        assert words > 0 if judged else str(words) == "nan", name
    assert rows["caption_not_utf8"]["caption"] == "a \N{REPLACEMENT CHARACTER} cat"


@pytest.mark.parametrize(
    ("setting", "files", "found", "reason"),
    [
        ("cap", {"cap": b"another text"}, "another text", None),
        ("alt.cap", {"alt.cap": b"another text"}, "another text", None),
        ("CAP", {}, None, "jpg, txt, json:uid"),
        ("json:alt", {"json": b'{"alt": "from the json"}'}, "from the json", None),
        ("json:alt", {"json": b'{"alt": ["the first", "the second"]}'}, "the first", None),
        ("json:alt", {"json": b'{"alt": {"en": "a"}}'}, None, "'alt' holds an object"),
        ("json:alt", {"json": b'{"alt2": ""}'}, None, "'json:alt2'"),
        ("json:alt", {"json": b'{"alt": "half a \\ud83d pair"}'}, None, "UTF-8"),
    ],
)
def test_captions_can_come_from_another_member_or_a_json_field(
    setting: str, files: Mapping[str, bytes], found: str | None, reason: str | None, tmp_path: Path
) -> None:
    path = write_tar(tmp_path / "0.tar", [("a", {**pair(0), **files})])
    (sample,) = shard(path, caption=setting).samples()
    assert sample.caption == found
    assert sample.reason is None if reason is None else reason in str(sample.reason)


def test_settings_that_do_not_fit_are_errors_before_any_work(pool: Path, tmp_path: Path) -> None:
    for settings in ({"fields": ("status",)}, {"fields": ("uid",)}, {"image": "pic"}):
        with pytest.raises(PoolError, match=r"'(status|uid|pic)'"):
            score(pool, tmp_path / "run", **settings)
    for name in ("max_pixels", "max_bytes"):
        with pytest.raises(ValueError, match=name):
            PoolSpec(path="pool", **{name: 0})  # type: ignore[arg-type]
    assert not (tmp_path / "run" / "run.json").exists()


def test_members_above_the_limit_are_not_read(tmp_path: Path) -> None:
    large = bytes(5001)
    samples = [(ext, pair(seed) | {ext: large}) for seed, ext in enumerate(("jpg", "txt", "json", "npy"))]
    found = list(shard(write_tar(tmp_path / "0.tar", samples), max_bytes=5000).samples())
    assert [sample.status for sample in found] == ["image_too_large", "caption_missing", "json_broken", "ok"]
    for sample in found[:3]:
        assert all(name in str(sample.reason) for name in (sample.key, "5,001", "5,000"))
    assert found[0].image_bytes == 5001


CUTS: dict[str, tuple[Callable[[dict[str, tarfile.TarInfo]], int], list[str], str]] = {
    "image": (lambda infos: infos["c.jpg"].offset_data + 100, ["ok", "ok", "shard_cut"], "unexpected end of data"),
    "header": (lambda infos: infos["c.jpg"].offset + 100, ["ok", "ok"], "without its end marker"),
    "boundary": (lambda infos: infos["c.jpg"].offset, ["ok", "ok"], "without its end marker"),
    "members": (lambda infos: infos["c.txt"].offset, ["ok", "ok", "shard_cut"], "without its end marker"),
    "json": (lambda infos: infos["c.json"].offset_data + 3, ["ok", "ok", "shard_cut"], "unexpected end of data"),
    "unread": (lambda infos: infos["c.npy"].offset_data + 9, ["ok", "ok", "shard_cut"], "unexpected end of data"),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("where", CUTS)
def test_a_cut_tar_is_reported_and_rows_before_stay(where: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = write_tar(tmp_path / "0.tar", [(name, pair(seed) | {"npy": bytes(999)}) for seed, name in enumerate("abcd")])
    with tarfile.open(path) as tar:
        infos = {info.name: info for info in tar}
    place, expected, reason = CUTS[where]
    content = path.read_bytes()
    found, error = read(path, pack(content[: place(infos)]))
    assert [sample.status for sample in found] == expected
    assert reason in error
    assert error.startswith(f"{path}: ")
    if where == "boundary":  # the same for a damaged header
        damaged = content[: place(infos)] + b"\xaa" * 512 + content[place(infos) + 512 :]
        assert [sample.status for sample in read(path, pack(damaged))[0]] == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "00003.tar"),
        (b"<html>404</html>" * 100, "00003.tar"),
        (b"\x1f\x8b", "00003.tar"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
        (None, "is not a regular file"),
    ],
    ids=["zero bytes", "garbage", "two bytes of gzip", "zstd", "folder"],
)
def test_a_file_that_is_no_tar_is_a_bad_shard(content: bytes | None, reason: str, pool: Path, tmp_path: Path) -> None:
    if content is None:
        (pool / "00003.tar").mkdir()
    else:
        (pool / "00003.tar").write_bytes(content)
    write_tar(pool / "00004.tar", [])  # no members: a good shard without rows
    run = score(pool, tmp_path / "run")
    assert run.shards == ("00000", "00001", "00002", "00004")
    assert (list(run.failures), run.sizes) == (["00003"], (7, 7, 7, 0))
    assert reason in run.failures["00003"]


def test_a_compressed_tar_that_is_cut_gives_the_samples_before(tmp_path: Path) -> None:
    content = write_tar(tmp_path / "0.tar", [(f"{seed}", pair(seed)) for seed in range(30)]).read_bytes()
    # As bgzip writes them: many streams.
    packed = b"".join(gzip.compress(content[start : start + 5000]) for start in range(0, len(content), 5000))
    assert [len(read(tmp_path / "0.tar.gz", packed)[0]), read(tmp_path / "0.tar.gz")[1]] == [30, ""]
    found, error = read(tmp_path / "0.tar.gz", packed[:-2000])
    assert error
    assert 0 < len(found) < 30
    reader = shard(tmp_path / "0.tar.gz").reader(whole=True, keep_open=False)
    again = reader.read(range(len(found)), [sample.members for sample in found], [None] * len(found))
    cut = [sample.status == "shard_cut" for sample in found]
    assert [isinstance(each, SampleFault) and each.kind == "cut" for each in again] == cut
    assert all(one.files == pair(n) for n, one in enumerate(again) if not isinstance(one, SampleFault))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("data", "expected", "reason"),
    [
        (good("a") + member("././@LongLink", b"b/last.txt\0", b"L") * 5000 + good("b") + END, ["ok"], "RecursionError"),
        (good("a") + END + bytes(64 << 20) + bytes(1 << 20), ["ok"], "zeros after the end of the archive"),
        (good("a") + END + bytes(300_000), ["ok"], ""),
        (good("a") + header("b.jpg", 1 << 62) + bytes(5000), ["ok", "shard_cut"], "4,611,686,018,427,387,904 bytes"),
        (gzip.compress(good("a") + header("b.bin", 1 << 62)), ["ok", "shard_cut"], "4,611,686,018,427,387,904 bytes"),
        (good("a") + END + good("b") + END, ["ok"], "data after the end of the archive was ignored"),
        (gzip.compress(good("a") + END) + gzip.compress(good("b") + END), ["ok"], "data after the end"),
        (lzma.compress(good("a") + END) + bytes(300_000), ["ok"], ""),
        (
            bz2.compress(good("a") + header("b.bin", 1 << 33), 1) + 75 * bz2.compress(bytes(4 << 20), 1),
            ["ok", "shard_cut"],
            "a decompression bomb",
        ),
        # Exports read by byte ranges: of a sparse member they would write other bytes than were scored.
        (good("a") + member("b.jpg", image_bytes(0), b"S") + good("c") + END, ["ok"], "sparse file"),
    ],
    ids=["long names", "zeros", "padding", "size", "size in gzip", "two tars", "two gzips", "xz", "bomb", "sparse"],
)
def test_odd_tars_end_with_a_reason(data: bytes, expected: list[str], reason: str, tmp_path: Path) -> None:
    found, error = read(tmp_path / "0.tar", data)
    assert [sample.status for sample in found] == expected
    assert reason in error
    assert bool(error) == bool(reason)


@pytest.mark.parametrize("size", [-512, MAX_HEADER + 1])
@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"0"])
def test_names_and_pax_headers_have_a_limit_and_no_size_is_below_zero(kind: bytes, size: int, tmp_path: Path) -> None:
    data = good("good") + header("h", size, kind) + bytes(MAX_HEADER + 512) + good("last", 1) + END
    found, error = read(tmp_path / "0.tar", data)
    assert found[0].key == "good"
    assert ("65,537 bytes" in error) == (size > 0 and kind != b"0")
    assert bool(error) == (size < 0 or kind != b"0")


def test_members_without_end_under_one_key_end_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.pools.tar._MOST_MEMBERS", 6)
    many = b"".join(member(f"b.{n}", b"") for n in range(7))
    found, error = read(tmp_path / "0.tar", good("a") * 5 + many + good("c") + END)
    assert [sample.key for sample in found] == ["a"] * 5 + ["b"]  # pairs of one key are rows, however many there are
    assert "'b'" in error


def test_what_is_held_of_one_sample_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "0.tar.gz", [("a", pair(0) | {"txt": bytes(200 << 20)}), ("b", pair(1))], "w:gz")
    tracemalloc.start()
    try:
        found, _ = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [sample.status for sample in found] == ["caption_missing", "ok"]
    assert peak < 32 << 20
    monkeypatch.setattr("tamis.pools.tar._HELD_BYTES", 5000)
    data = member("a.jpg", bytes(3000)) + member("a.png", bytes(3000)) + member("a.gif", bytes(1000)) + END
    (sample,) = read(tmp_path / "0.tar", data, image_extensions=("png", "jpg", "gif"))[0]
    assert (sample.status, sample.image, sample.image_bytes) == ("image_too_large", None, 3000)


def test_captions_of_a_shard_have_a_limit_together(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    with path.open("wb") as file:
        for number in range(30):
            file.write(header(f"{number}.txt", 10 << 20) + b"a cat")
            file.seek((10 << 20) - 5, 1)
        file.write(END)
    found = shard(path).samples()
    assert [next(found).key for _ in range(12)] == [f"{number}" for number in range(12)]
    with pytest.raises(ShardError, match="first 13 samples"):
        next(found)


@given(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
    size=st.integers(0, 8**12),
    mode=st.integers(0, 0o7777),
    kind=st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE]),
    format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
    place=st.none() | st.integers(0, 511),
    byte=st.integers(0, 255),
)
def test_headers_are_read_as_tarfile_reads_them(
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
        found = _Info.frombuf(bytes(block), "utf-8", "surrogateescape")
    except tarfile.TarError:
        return
    known = tarfile.TarInfo.frombuf(bytes(block), "utf-8", "surrogateescape")
    assert (found.name, found.size, found.isreg()) == (known.name, known.size, known.isreg())


def test_member_names_that_are_not_utf8_are_shown_escaped(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for ext, data in pair(0).items():
            info = tarfile.TarInfo(f"caf\xe9.{ext}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert statuses(read(tmp_path / "0.tar", out.getvalue())[0]) == {"caf\\xe9": "ok"}
    assert statuses(read(tmp_path / "0.tar", out.getvalue()[:900])[0]) == {"caf\\xe9": "shard_cut"}


def test_what_macs_and_file_servers_add_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side = b"\0\5\26\7\0\2\0\0Mac OS X        "
    (tmp_path / "pool").mkdir()
    for number in range(2):
        data = member("./._.DS_Store", side) + member("./.DS_Store", b"Bud1") + header("./", 0, tarfile.DIRTYPE)
        for seed in range(2):
            key = f"./{number}{seed}"
            data += b"".join(
                member(f"./._{number}{seed}.{ext}", side) + member(f"{key}.{ext}", one)
                for ext, one in pair(seed).items()
            )
            data += member(f"__MACOSX/._{seed}.jpg", side) + member(f"@eaDir/{seed}.jpg/thumb.jpg", image_bytes(seed))
        (tmp_path / "pool" / f"{number}.tar").write_bytes(data + member("Thumbs.db", b"x") + END)
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=SCORES)
    assert [row["key"] for row in index_rows(run)] == ["./00", "./01", "./10", "./11"]
    assert set(run.statuses) == {"ok"}
    assert capsys.readouterr().err.count("left out: 26 hidden files") == 1
    below_hidden = member("home/.cache/a.jpg", image_bytes(0)) + member("home/.cache/a.txt", b"a cat")
    assert statuses(read(tmp_path / "0.tar", below_hidden + END)[0]) == {"home/.cache/a": "ok"}


def test_a_link_in_a_tar_is_a_reason_that_names_it(tmp_path: Path) -> None:
    def link(name: str, target: str, kind: bytes) -> bytes:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        return info.tobuf(tarfile.GNU_FORMAT)

    text = member("b.txt", b"a cat")
    tar = good("a") + link("b.jpg", "a.jpg", tarfile.LNKTYPE) + text + good("c") + link("latest", "a", tarfile.SYMTYPE)
    tar += member("d.jpg", image_bytes(0)) + link("d.txt", "/data/d.txt", tarfile.SYMTYPE)
    found, _ = read(tmp_path / "0.tar", tar + END)
    assert statuses(found) == {"a": "ok", "b": "image_missing", "c": "ok", "d": "caption_missing"}
    reasons = {sample.key: sample.reason or "" for sample in found}
    assert "the .jpg member is a link to 'a.jpg'" in reasons["b"]
    assert "the .txt member is a link to '/data/d.txt'" in reasons["d"]
    assert found[3].no_caption == reasons["d"]
    assert [one.ext for one in found[1].members] == ["txt"]


def scattered(order: list[str]) -> bytes:
    files = {f"{key}.{ext}": data for seed, key in enumerate("abc") for ext, data in pair(seed, n=seed).items()}
    return b"".join(member(name, files[name]) for name in order) + END


ALL = [f"{key}.{ext}" for ext in ("jpg", "txt", "json") for key in "abc"]
SORTED = sorted(ALL, key=lambda name: name[0])


@pytest.mark.parametrize(
    "order",
    [
        ALL,  # all images, then all texts
        ALL[::-1],
        [*SORTED[:3], "b.jpg", "c.jpg", "b.txt", "c.json", "c.txt", "b.json"],  # after a whole sample
        ["a.json", *ALL[:6], *ALL[7:]],
    ],
)
def test_samples_whose_files_are_not_neighbours_are_read_whole(order: list[str], tmp_path: Path) -> None:
    usual = {sample.key: sample for sample in read(tmp_path / "sorted.tar", scattered(SORTED))[0]}
    found, problem = read(tmp_path / "0.tar", scattered(order), fields=("n",))
    assert problem == ""
    assert [sample.key for sample in found] == list(dict.fromkeys(name[0] for name in order))
    for sample in found:
        same = usual[sample.key]
        assert (sample.status, sample.uid, sample.caption, sample.image) == ("ok", same.uid, same.caption, same.image)
        assert sample.given == {"n": str("abc".index(sample.key))}
    write = tmp_path / "pool" / "0.tar"
    write.parent.mkdir()
    write.write_bytes(scattered(order))
    run = score(write.parent, tmp_path / "run")
    files = tamis.samples_of(run, fields=("key", "files"))
    assert {one.key: set(one.files or ()) for one in files} == {key: {"jpg", "txt", "json"} for key in "abc"}


def test_scattered_samples_that_cannot_be_read_whole_end_the_shard_without_rows(tmp_path: Path) -> None:
    """In a compressed tar; and where what is appended belongs to samples that were whole so far."""
    plain, later = scattered(ALL), scattered([*(name for name in SORTED if "json" not in name), "a.json"])
    (tmp_path / "pool").mkdir()
    for name, data in {"0.tar.gz": gzip.compress(plain), "1.tar": later, "2.tar": scattered(SORTED)}.items():
        (tmp_path / "pool" / name).write_bytes(data)
    run = score(tmp_path / "pool", tmp_path / "run")
    assert (run.shards, len(run)) == (("2",), 3)
    for name, exts in {"0": ".jpg, and later .txt", "1": ".jpg, .txt, and later .json"}.items():
        assert f"files of a sample must be neighbours: 'a' has {exts}" in run.failures[name]
        assert "tar --sort=name -cf sorted.tar -C sorted ." in run.failures[name]


def test_repeated_keys_are_no_scattered_samples(tmp_path: Path) -> None:
    jpg, txt = member("a.jpg", image_bytes(0)), member("a.txt", b"a cat")
    found, problem = read(tmp_path / "0.tar", jpg + txt + member("b.txt", b"") + jpg + txt + good("a") + END)
    assert problem == ""
    assert [(one.key, one.status) for one in found] == [
        *(("a", "ok"), ("b", "image_missing"), ("a", "duplicate_key"), ("a", "duplicate_key"))
    ]


def test_a_scattered_tar_that_is_cut_gives_its_whole_samples_and_the_reason(tmp_path: Path) -> None:
    data = scattered(ALL)
    found, problem = read(tmp_path / "0.tar", data[: data.rindex(b"c.txt")])
    assert [(one.key, one.caption is None) for one in found] == [("a", False), ("b", False), ("c", True)]
    assert "end marker" in problem
