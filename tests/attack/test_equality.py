"""However a run is carried out, its parts are the same bytes: a lab pool, `lab/clip` in float32, every engine."""

from __future__ import annotations

import importlib.util
import os
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


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("engine", ["local", "static", "ray", "ray after local"])
def test_every_engine_makes_the_same_parts(
    engine: str, killed: bool, pool: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    run, kind = tmp_path / "run", engine.partition(" ")[0]
    if kind == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    if engine != kind:
        assert started(pool, run, "--workers", "2", shards="*[036].tar").wait() == 0
        assert 0 < len(parts_of(run)) < len(whole)
    grow = ("--grow",) if engine != kind else ()
    places: list[tuple[str, ...]] = [("--engine", kind, "--workers", "2", *grow)]
    if kind == "static":
        places = [("--engine", kind, "--rank", str(rank), "--world", "3") for rank in range(3)]
    if killed:
        before, process = len(list(run.glob("index/*.parquet"))), started(pool, run, *places[-1])
        while process.poll() is None and len(list(run.glob("index/*.parquet"))) <= before:
            time.sleep(0.01)
        process.kill()
        process.wait()
    commands, actors = [started(pool, run, *place) for place in places], 0
    while any(command.poll() is None for command in commands):
        actors = max(actors, len(named(family(commands[0].pid), b"ray::Worker")))
        time.sleep(0.2)
    assert [command.returncode for command in commands] == [0] * len(places)
    assert actors == (2 if kind == "ray" else 0)
    found = parts_of(run)
    assert sorted(found) == sorted(whole)
    assert [name for name in whole if found[name] != whole[name]] == []
    assert tamis.check(run).exit_code == 0
