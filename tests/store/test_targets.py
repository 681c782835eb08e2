"""Folders that hold somebody else's files are left as they are."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes

import tamis
from tamis.errors import RunError
from tamis.storage import writing
from tamis.store.targets import check_ending, check_own, inside


def check(folder: Path) -> None:
    check_own(folder, what="training", marks=["kept/*.json"], also=["lock", "kept"])


def test_a_folder_is_new_or_empty_or_carries_a_mark(tmp_path: Path) -> None:
    check(tmp_path / "new")
    check(tmp_path)
    (tmp_path / "lock").touch()
    (tmp_path / "kept").mkdir()
    with writing(tmp_path / "first.json") as temporary:
        temporary.touch()
    (tmp_path / "first.json").rename(tmp_path / temporary.name)  # as a command that was killed leaves it
    check(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match=r"contains other files \(notes.txt, \.\.\.\), no training: name another"):
        check(tmp_path)
    (tmp_path / "kept" / "1.json").touch()
    check(tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"file cannot be written into \(Not a directory\): name another folder \(--out\)"
    ):
        check(tmp_path / "file")


def test_what_a_command_reads_may_lie_in_its_folder_and_hidden_files_too(tmp_path: Path) -> None:
    (tmp_path / "runs[1]" / "a").mkdir(parents=True)
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "lost+found").mkdir()
    names = inside(tmp_path, [tmp_path / "runs[1]" / "a", tmp_path.parent, Path("lab/clip")])
    assert len(names) == 1
    check_own(tmp_path, what="bench", marks=[], also=names)
    with pytest.raises(RunError, match=r"other files \(runs\[1\]"):
        check_own(tmp_path, what="bench", marks=[])


def test_an_empty_name_is_no_file() -> None:
    with pytest.raises(RunError, match="choose another name"):
        check_ending(Path(""), "html")


def parquet_pool(folder: Path) -> Path:
    folder.mkdir()
    rows = {"image": [image_bytes(number) for number in range(4)], "caption": list("abcd")}
    pq.write_table(pa.table(rows), folder / "one.parquet")
    return folder


@pytest.mark.parametrize(("path", "joins"), [("pool", True), ("pool/*.parquet", True), ("pool/one.parquet", False)])
def test_a_new_file_is_refused_where_it_would_join_the_pool(path: str, joins: bool, tmp_path: Path) -> None:
    pool = parquet_pool(tmp_path / "pool")
    run = tamis.score(str(tmp_path / path), run=tmp_path / "run", signals=["caption_length"], quiet=True)
    subset = tamis.select(run, {"name": "all", "select": []})
    writes = [subset.save, lambda out: tamis.export(subset, "parquet", out)]
    for number, write in enumerate(writes):
        out = pool / f"{number}.parquet"
        with pytest.raises(RunError, match="would become a file of the pool") if joins else nullcontext():
            write(out)
        assert out.exists() is not joins
    assert tamis.export(subset, "npy", pool / "uids.npy") == 4


def test_a_subset_is_refused_in_a_run_but_for_its_own_folder(tmp_path: Path) -> None:
    run = tamis.score(
        str(parquet_pool(tmp_path / "pool")), run=tmp_path / "run", signals=["caption_length"], quiet=True
    )
    subset = tamis.select(run, {"name": "all", "select": []})
    for name in ("new.parquet", "index/new.parquet", "scores/new.parquet", "run.json"):
        with pytest.raises(RunError):
            subset.save(run.path / name)
    for _ in range(2):
        subset.save(run.path / "subsets" / "new.parquet")
