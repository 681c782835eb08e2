"""Pools of several splits: those of the Hub, CC3M's tars, folders called train and val."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import data_files
from factories import image_bytes, pair, write_tar
from processes import command

import tamis
from tamis.core.errors import PoolError, RunError
from tamis.pools import Pool, PoolSpec, open_pool


def tables(*names: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for row, name in enumerate(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"image": [image_bytes(row)], "text": [name]}), folder / name)

    return write


def tars(*names: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for row, name in enumerate(names):
            write_tar(folder / name, [(str(row), pair(row))])

    return write


def images(folder: Path) -> None:
    for row, name in enumerate(("train/a", "train/sub/test 1", "val/a")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for ext, data in pair(row).items():
            (folder / f"{name}.{ext}").write_bytes(data)


POOLS = {
    "the Hub": (tables("train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet")),
    "folders": tables("train/0.parquet", "train/1.parquet", "dev/0.parquet"),
    "CC3M": tars("cc3m-train-0000.tar", "cc3m-train-0001.tar", "cc3m-validation-0000.tar"),
    "COCO": tars("train2017.0.tar", "train2017.1.tar", "val2017.tar"),
    "ImageNet": images,
}


def rows(pool: Pool) -> int:
    return sum(1 for shard in pool.shards for _ in shard.samples())


@pytest.mark.parametrize("kind", POOLS)
def test_a_pool_of_several_splits_says_so_and_one_can_be_taken(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "test" / "pool"  # what is above the pool says nothing
    POOLS[kind](root)
    pool = open_pool(str(root))
    other = "test" if kind == "the Hub" else "validation"
    counts = ("6 files of train", "3 files of") if kind == "ImageNet" else ("2 files of train", "1 file of")
    assert pool.mixed.startswith("the pool mixes splits: ")
    for words in (counts[0], f"{counts[1]} {other}"):
        assert words in pool.mixed
    train = open_pool(PoolSpec(path=str(root), split="train"))
    assert (train.mixed, rows(train), rows(pool)) == ("", 2, 3)
    assert rows(open_pool(PoolSpec(path=str(root), split={"test": "test"}.get(other, "val")))) == 1
    with pytest.raises(PoolError, match=rf"unknown split 'trial'.*; known: .*{other}, train|did you mean 'train'"):
        open_pool(PoolSpec(path=str(root), split="trial"))


def test_other_names_are_no_splits(tmp_path: Path) -> None:
    tars("trainer-1.tar", "valley.tar", "latest.tar", "test.tar.old/0.tar")(tmp_path / "pool")
    assert open_pool(str(tmp_path / "pool")).mixed == ""
    tars("train-0.tar", "train-1.tar")(tmp_path / "all")
    assert open_pool(str(tmp_path / "all")).mixed == ""
    tars("train/0.tar", "bus/0.tar", "contest/0.tar")(tmp_path / "classes")
    assert open_pool(str(tmp_path / "classes")).mixed == ""


@pytest.mark.parametrize(
    "names",
    [
        ("my-train-file.parquet", "val.parquet", "eval_2.parquet", "a test.parquet"),
        ("train/0.parquet", "sub dev/0.parquet", "testing_1/0.parquet", "testing_1/train.parquet"),
        ("data/training-00000-of-00001.parquet", "data/valid-00000-of-00001.parquet"),
    ],
)
def test_splits_are_those_of_datasets(names: Sequence[str], tmp_path: Path) -> None:
    tables(*names)(tmp_path)
    path = os.fspath(tmp_path)
    theirs = data_files.DataFilesDict.from_patterns(data_files.get_data_patterns(path), base_path=path)
    assert len(theirs) > 1
    for split, files in theirs.items():
        ours = open_pool(PoolSpec(path=path, split=str(split)))
        assert sorted(shard.url for shard in ours.shards) == sorted(files)


def test_a_run_keeps_its_split_and_refuses_another(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    POOLS["CC3M"](pool)
    given = ["score", pool, "--run", tmp_path / "run", "--signals", "caption_length", "-q"]
    assert "the pool mixes splits: 2 files of train, 1 file of validation" in command(*given).stderr
    shared = [*given[:3], tmp_path / "one", *given[4:]]
    done = command(*shared, "--split", "train")
    assert (done.returncode, "mixes" in done.stderr) == (0, False)
    tars("cc3m-validation-0001.tar")(pool)
    run = tamis.score(pool, run=tmp_path / "one", signals=["image_size"], quiet=True)
    assert (len(run), run.facts["pool"]["split"]) == (2, "train")
    assert len(run.pool.shards) == 2
    assert "--split train" in run.score_command()
    with pytest.raises(RunError, match="split: 'train' then, 'validation' now"):
        tamis.score(PoolSpec(path=str(pool), split="validation"), run=tmp_path / "one", quiet=True)
    assert "split" not in tamis.Run(tmp_path / "run").facts["pool"]


def test_a_look_shows_that_splits_are_mixed(tmp_path: Path) -> None:
    POOLS["CC3M"](tmp_path / "pool")
    tamis.look(tmp_path / "pool", out=tmp_path / "look.html", quiet=True)
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert "the pool mixes splits: 2 files of train, 1 file of validation" in page
