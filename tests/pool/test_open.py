"""Finding a pool: what a path means, and what is said when nothing is there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes, write_metadata, write_pool, write_tar
from processes import command

import tamis
from tamis.errors import PoolError
from tamis.pool import PoolSpec, open_pool
from tamis.pool.files import expand_braces
from tamis.pool.source import RESERVED
from tamis.store.parts import INDEX_FIELDS


@pytest.mark.parametrize(
    ("pattern", "first", "last", "count"),
    [
        ("a/{00000..00031}.tar", "a/00000.tar", "a/00031.tar", 32),
        ("a/{8..11}.tar", "a/8.tar", "a/11.tar", 4),
        ("a/{08..11}.tar", "a/08.tar", "a/11.tar", 4),
        ("{a,b}/{0..1}.tar", "a/0.tar", "b/1.tar", 4),
        ("a/0.tar", "a/0.tar", "a/0.tar", 1),
    ],
)
def test_brace_ranges_are_spelt_out_as_shells_do(pattern: str, first: str, last: str, count: int) -> None:
    found = expand_braces(pattern)
    assert (found[0], found[-1], len(found)) == (first, last, count)


def test_a_wrong_path_says_what_was_looked_for(tmp_path: Path) -> None:
    done = command("score", tmp_path / "nowhere", "--run", tmp_path / "run", "--signals", "caption_length")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"no pool at '{tmp_path / 'nowhere'}': nothing is there" in done.stderr
    assert "*.tar" in done.stderr
    assert "*.parquet" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_without_shards_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"")
    with pytest.raises(PoolError, match=r"the folder holds no \*\.tar, .*\*\.jsonl"):
        open_pool(tmp_path / "pictures")
    with pytest.raises(PoolError, match=r"the folder holds no \*\.parquet$"):
        open_pool(PoolSpec(path=str(tmp_path / "pictures"), format="datacomp"))


def test_a_glob_that_meets_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="nothing is there"):
        open_pool(tmp_path / "*.tar")


def test_a_range_with_missing_files_names_the_first(pool: Path, tmp_path: Path) -> None:
    (pool / "00001.tar").unlink()
    pattern = str(pool / "{00000..00004}.tar")
    with pytest.raises(PoolError) as error:
        tamis.score(pattern, run=tmp_path / "run", scores=["caption_length"])
    assert str(error.value).startswith(f"3 of the files that {pattern!r} names are not there, the first: ")
    assert str(pool / "00001.tar") in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_range_that_runs_backwards_is_an_error() -> None:
    with pytest.raises(
        PoolError, match=r"the range \{00007\.\.00003\} in '.*pool/\{00007\.\.00003\}.tar' runs backwards"
    ):
        open_pool("pool/{00007..00003}.tar")


def test_a_file_of_another_kind_is_no_pool(tmp_path: Path) -> None:
    (tmp_path / "pool.zip").write_bytes(b"PK")
    with pytest.raises(PoolError, match=r"pool\.zip' is not a pool file: expected tars \(.*\) or tables \(.*\)"):
        open_pool(tmp_path / "pool.zip")


def test_a_named_file_is_never_left_out_silently(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("image,caption\n")
    with pytest.raises(PoolError, match=r"more\.csv' cannot be read together with the webdataset pool"):
        open_pool(PoolSpec(path=(str(pool), str(tmp_path / "more.csv"))))


def test_no_path_at_all_is_an_error() -> None:
    with pytest.raises(PoolError, match="the pool has no path"):
        open_pool(PoolSpec(path=()))


def test_an_unknown_protocol_says_so(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"cannot open 'nosuch://bucket/\*\.tar': .*nosuch"):
        open_pool("nosuch://bucket/*.tar")


def test_a_path_named_twice_is_read_once(pool: Path) -> None:
    twice = open_pool(PoolSpec(path=(str(pool), str(pool / "00001.tar"))))
    assert [shard.name for shard in twice.shards] == ["00000", "00001", "00002"]


def test_the_home_folder_may_be_written_as_a_tilde(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(pool.parent))
    assert len(open_pool("~/pool").shards) == 3


def test_signs_of_globs_in_a_real_file_name_are_taken_literally(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a[1].tar", [])
    assert [shard.url for shard in open_pool(path).shards] == [str(path)]


ODD = "odd [1] {x} {0..2}"


@pytest.mark.parametrize("ending", ["", "/*.tar", "/{00000..00002}.tar", "/0000[02].tar", "/**/*.tar"])
def test_signs_of_a_real_folder_are_taken_literally_and_those_behind_it_not(tmp_path: Path, ending: str) -> None:
    write_pool(tmp_path / ODD)
    write_pool(tmp_path / "odd 1 x 0")  # what the signs would mean
    shards = open_pool(f"{tmp_path / ODD}{ending}").shards
    assert {Path(shard.url).parent.name for shard in shards} == {ODD}
    assert [shard.name for shard in shards] == [
        f"0000{number}" for number in ((0, 2) if "[02]" in ending else range(3))
    ]


def test_pools_of_every_kind_and_what_is_made_of_them_may_lie_in_an_odd_folder(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    write_pool(folder / "tars", shards=2, rows=3)
    write_metadata(folder / "metadata" / "a.parquet", rows=3)
    (folder / "images").mkdir()
    lines = ["file_name,caption"]
    for seed in range(3):
        (folder / "images" / f"{seed} [0] {{1}}.jpg").write_bytes(image_bytes(seed))
        lines.append(f"{seed} [0] {{1}}.jpg,a dog")
    (folder / "images" / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    table = {"image": [image_bytes(seed) for seed in range(3)], "caption": ["a dog"] * 3}
    pq.write_table(pa.table(table), folder / "table.parquet")
    for pool in ("tars", "metadata", "images", "images/metadata.csv", "table.parquet"):
        run = tamis.score(folder / pool, run=folder / "runs" / pool, scores=["caption_length"], quiet=True)
        assert (run.failures, set(run.to_numpy("status"))) == ({}, {"ok"})
        subset = tamis.select(run, {"select": []})
        subset.save(folder / f"{run.path.name}.subset.parquet")
        kept = tamis.Subset.load(folder / f"{run.path.name}.subset.parquet", run)
        assert len(kept) == len(run) == (6 if pool == "tars" else 3)
        if pool != "metadata":
            assert sum(1 for one in tamis.samples_of(kept, fields=("image",)) if one.image) == len(run)


def test_names_given_in_a_run_stay_when_stems_meet_later(tmp_path: Path) -> None:
    one, two = write_pool(tmp_path / "one", shards=1), write_pool(tmp_path / "two", shards=1, rows=2)
    run = tamis.score(one, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    assert run.shards == ("00000",)
    both = PoolSpec(path=(str(one), str(two)))
    grown = tamis.score(both, run=tmp_path / "run", scores=["caption_length"], grow=True, quiet=True)
    assert grown.shards[0] == "00000"
    assert grown.shards[1].startswith("00000-")
    assert grown.sizes == (7, 2)


def test_the_reserved_names_are_the_columns_of_the_index() -> None:
    assert {field.name for field in INDEX_FIELDS} | {"uid", "shard"} == set(RESERVED)
