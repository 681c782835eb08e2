"""Where commands write: folders that hold other files, and files that would join the pool, are refused."""

from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes

import tamis
from tamis.core.errors import RunError
from tamis.core.files.storage import writing
from tamis.core.files.targets import check_ending, check_own


def check(folder: Path) -> None:
    check_own(folder, what="training", marks=["kept/*.json"], also=["lock", "kept"])


def test_a_folder_is_new_or_empty_or_carries_a_mark(tmp_path: Path) -> None:
    check(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    check(tmp_path)
    (tmp_path / "lock").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "lost+found").mkdir()
    with writing(tmp_path / "first.json") as temporary:
        temporary.touch()
    (tmp_path / "first.json").rename(tmp_path / temporary.name)  # as a command that was killed leaves it
    check(tmp_path)
    (tmp_path / "notes.txt").touch()
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(RunError, match=r"notes\.txt"):
            check(place)
    (tmp_path / "kept" / "1.json").touch()
    check(tmp_path)


def test_what_a_command_reads_may_be_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "runs[1]" / "a").mkdir(parents=True)
    read = [tmp_path / "runs[1]" / "a", tmp_path.parent, Path("lab/clip")]
    check_own(tmp_path, what="bench", marks=[], read=read)
    with pytest.raises(RunError, match=r"runs\[1\]"):
        check_own(tmp_path, what="bench", marks=[])
    with pytest.raises(RunError):
        check_ending(Path(""), "html")


@pytest.mark.parametrize(("path", "joins"), [("pool", True), ("pool/*.parquet", True), ("pool/one.parquet", False)])
def test_a_new_file_is_refused_where_it_would_join_the_pool_or_the_run(path: str, joins: bool, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    rows = {"image": [image_bytes(number) for number in range(4)], "caption": list("abcd")}
    pq.write_table(pa.table(rows), pool / "one.parquet")
    run = tamis.score(str(tmp_path / path), run=tmp_path / "run", signals=["caption_length"], quiet=True)
    subset = tamis.select(run, {"name": "all", "select": []})
    for number, write in enumerate((subset.save, lambda out: tamis.export(subset, "parquet", out))):
        out = pool / f"{number}.parquet"
        with pytest.raises(RunError, match=out.name) if joins else nullcontext():
            write(out)
        assert out.exists() is not joins
    assert tamis.export(subset, "npy", pool / "uids.npy") == 4
    for name in ("new.parquet", "index/new.parquet", "run.json"):
        with pytest.raises(RunError, match=name):
            subset.save(run.path / name)
    for _ in range(2):
        subset.save(run.path / "subsets" / "new.parquet")
