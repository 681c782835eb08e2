"""A run has one pool: a part of it adds nothing, another one is added when asked for, and none is in the run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Tamis
from factories import write_pool

import tamis as package
from tamis.errors import RunError
from tamis.store import Run

SIGNALS = ("--run", "run", "--signals", "caption_length", "-q")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def pool_of(run: str = "run") -> Any:
    pool = json.loads(Path(run, "run.json").read_text())["pool"]["path"]
    recipe = yaml.safe_load(Path(run, "recipe.yaml").read_text())["pool"]
    assert recipe == pool
    return pool


def test_a_part_of_the_pool_is_scored_and_the_run_keeps_its_pool(tamis: Tamis, tmp_path: Path) -> None:
    pool = str(write_pool(tmp_path / "pool", shards=6, rows=2))
    assert tamis("score", pool, *SIGNALS).code == 0
    done = tamis("score", "pool/{00000..00003}.tar", "--run", "run", "--signals", "image_size", "-q")
    assert (done.code, pool_of()) == (0, [pool])
    assert sorted(Run("run").scores["image_size"].shards) == [f"0000{number}" for number in range(4)]
    done = tamis("score", *shlex.split(Run("run").scoring())[2:], "--signals", "image_size", "-q")
    assert done.code == 0, done.err
    assert len(Run("run").scores["image_size"].shards) == 6
    # A range that became longer is another pool; a run may be next to its pool's files, in an empty folder.
    (tmp_path / "pool" / "run").mkdir()
    ranged = ("--run", "pool/run", "--signals", "caption_length", "-q")
    assert [tamis("score", f"pool/{{00000..0000{last}}}.tar", *ranged).code for last in (1, 2)] == [0, 2]
    assert tamis("score", "pool", *ranged, "--grow").code == 0
    assert pool_of("pool/run") == [str(tmp_path / "pool" / "{00000..00001}.tar"), pool]
    assert tamis("score", "pool/**/*.tar", *ranged, "--grow").code == 0
    (tmp_path / "pool").rename(tmp_path / "moved")
    assert (tamis("score", "moved", *SIGNALS).code, pool_of()) == (0, [str(tmp_path / "moved")])


def test_another_pool_is_added_when_that_is_asked_for(tamis: Tamis, tmp_path: Path) -> None:
    one, two = str(write_pool(tmp_path / "one", shards=2, rows=2)), str(write_pool(tmp_path / "two", 2, 2, first=1))
    assert tamis("score", one, *SIGNALS).code == 0
    before = files(tmp_path / "run")
    for more in ((), ("--dry-run",)):
        done = tamis("score", two, *SIGNALS, *more)
        assert (done.code, files(tmp_path / "run") == before) == (2, True)
        assert f"run holds the pool {one} (2 shards). {two} has 2 shards that it lacks, the first: 00001-" in done.err
        assert "--grow" in done.err
    assert tamis("score", two, *SIGNALS, "--grow").code == 0
    assert pool_of() == [one, two]
    write_pool(tmp_path / "two", 1, 2, first=3)  # each of its places may grow
    assert tamis("score", two, *SIGNALS).code == 0
    assert pool_of() == [one, two]
    assert tamis("score", *shlex.split(Run("run").scoring())[2:], "--signals", "image_size", "-q").code == 0
    assert len(Run("run").scores["image_size"].shards) == 5
    assert len(Run("run")) == 10


def test_a_recipes_pool_is_the_runs_too(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_pool(tmp_path / name, shards=1, rows=2)
    recipe = {"pool": str(tmp_path / "one"), "run": str(tmp_path / "run"), "signals": ["caption_length"], "select": []}
    package.run_recipe(recipe, quiet=True)
    other = {**recipe, "pool": str(tmp_path / "two")}
    for call in (package.plan, package.run_recipe):
        with pytest.raises(RunError, match=r"1 shards that it lacks.*--grow"):
            call(recipe=other)  # type: ignore[operator]
    assert package.plan(recipe=other, grow=True).missing[0].shards == 1
    assert len(package.run_recipe(other, grow=True, quiet=True).run) == 4


# ---- where a run may be


@pytest.mark.parametrize(
    ("pool", "run"),
    [
        ("pool", "pool"),
        ("pool", "linked"),
        ("linked", "pool"),
        ("pool/{00000..00001}.tar", "pool"),
        ("above/**/*", "above/run"),
        ("above/inner", "above"),
        ("pool", "pool/00000.tar"),
        ("pool", "photos"),
    ],
)
def test_a_run_is_not_made_among_other_files(pool: str, run: str, tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=2, rows=2)
    write_pool(tmp_path / "above" / "inner", shards=2, rows=2)
    (tmp_path / "linked").symlink_to("pool")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    before = files(tmp_path)
    for more in (("--dry-run",), ()):
        done = tamis("score", pool, "--run", run, "--signals", "caption_length", "-q", *more)
        assert (done.code, files(tmp_path) == before) == (2, True), done.err
        assert "--run" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["above", "linked", "photos", "pool"]
