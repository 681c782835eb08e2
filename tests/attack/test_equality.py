"""However a run is carried out, its parts are the same bytes: a lab pool, `lab/clip` in float32, every engine."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ray_cluster
from factories import parts_of
from processes import family, named

import tamis
from tamis.lab import make_pool
from tamis.store import Run

pytestmark = [
    pytest.mark.attack,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHARDS, ROWS = 8, 16

RECIPE = """
signals:
- clip: {model: lab/clip}
- caption_length
- image_size
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "pool"
    make_pool(folder, pairs=SHARDS * ROWS, seed=0, shard_size=ROWS)
    folder.with_name("recipe.yaml").write_text(RECIPE)
    return folder


def started(pool: Path, run: Path, *options: str, shards: str = "*.tar") -> subprocess.Popen[bytes]:
    """Starts `tamis score` on a pool, or on some of its shards."""
    words = ["score", *map(str, sorted(pool.glob(shards))), "--run", str(run), "-q"]
    words += ["--recipe", str(pool.with_name("recipe.yaml"))]
    same = ["--device", "cpu", "--precision", "float32", "--threads", "1", "--batch-size", "8"]
    environment = {**os.environ, **ray_cluster.SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-m", "tamis", *words, *same, *options], env=environment)


@pytest.fixture(scope="module")
def whole(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parts that one worker makes."""
    run = tmp_path_factory.mktemp("one") / "run"
    assert started(pool, run, "--workers", "1").wait() == 0
    scores = Run(run).to_numpy("clip")
    assert scores.size == SHARDS * ROWS
    assert len(set(scores[np.isfinite(scores)].tolist())) > 0.8 * SHARDS * ROWS
    return parts_of(run)


def check(run: Path, whole: dict[str, bytes]) -> None:
    found = parts_of(run)
    assert sorted(found) == sorted(whole)
    assert [name for name in whole if found[name] != whole[name]] == []
    assert tamis.check(run).exit_code == 0


def test_four_workers(pool: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    assert started(pool, tmp_path / "run", "--workers", "4").wait() == 0
    check(tmp_path / "run", whole)


def test_three_ranks_started_at_once(pool: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    places = [("--engine", "static", "--rank", str(rank), "--world", "3") for rank in range(3)]
    ranks = [started(pool, tmp_path / "run", *place) for place in places]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    check(tmp_path / "run", whole)


def test_a_kill_and_the_same_command_again(pool: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = started(pool, run, "--workers", "2")
    while process.poll() is None and not list(run.glob("index/*.parquet")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(parts_of(run)) < len(whole)
    assert started(pool, run, "--workers", "2").wait() == 0
    check(run, whole)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.parametrize("some_locally_first", [False, True])
def test_two_actors_of_a_ray_that_the_command_starts(
    some_locally_first: bool, pool: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    if some_locally_first:
        assert started(pool, run, "--workers", "2", shards="*[036].tar").wait() == 0
        assert 0 < len(parts_of(run)) < len(whole)
    command, actors = started(pool, run, "--engine", "ray", "--workers", "2"), 0
    while command.poll() is None:
        actors = max(actors, len(named(family(command.pid), b"ray::Worker")))
        time.sleep(0.2)
    assert command.returncode == 0
    assert actors == 2 or not Path("/proc").is_dir()
    check(run, whole)
