"""The Ray engine makes the files of the local one and survives its actors. One Ray for the module: it takes seconds."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import parts_of, write_pool
from odd_scorers import Brightness, Faulty

import tamis
from tamis.errors import DependencyError, ScorerError
from tamis.run.engines import Ray
from tamis.store import Run

#: Ray leaves connections open when a program takes its leave.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
]

BAD = "000010003"  # a sample of the second shard


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray of two cores, whose actors find the tests' own scorers."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'tamis[ray]'")
    folder = tempfile.mkdtemp(prefix="ray")  # not pytest's: sockets have short paths
    for _ in range(3):  # Ray gives its processes 30 s to come up, which is too short on a machine that does other work
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        process = start_head(address, folder)
        if is_up(process, address):
            break
        process.wait()
    yield address
    process.terminate()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def start_head(address: str, folder: str) -> subprocess.Popen[bytes]:
    arguments = ["start", "--head", "--block", "--num-cpus=2", "--num-gpus=0", "--include-dashboard=false"]
    arguments += ["--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}", f"--temp-dir={folder}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_agent_register_timeout_ms": "250000"}
    with open(f"{folder}/head.log", "wb") as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def is_up(process: subprocess.Popen[bytes], address: str) -> bool:
    """Waits until a program can connect."""
    import ray

    while process.poll() is None:
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
        except Exception:  # not yet
            time.sleep(0.5)
            continue
        ray.shutdown()
        return True
    return False


def score(pool: Path, run: Path, *scorers: Any, **options: Any) -> Run:
    return tamis.score(pool, run=run, scores=list(scorers), quiet=True, device="cpu", **options)


def test_two_actors_make_what_one_worker_makes(cluster: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=7, rows=3)
    score(pool, tmp_path / "local", "caption_length", Brightness())
    run = score(pool, tmp_path / "ray", "caption_length", Brightness(), engine=Ray(cluster, workers=2))
    assert parts_of(run.path) == parts_of(tmp_path / "local")
    assert len(parts_of(run.path)) == 21
    assert (run.path / "events.jsonl").read_text().count('"shard done"') == 7
    assert list((run.path / "claims").iterdir()) == []


def test_a_shard_that_kills_its_actors_is_set_aside_and_named(cluster: str, pool: Path, tmp_path: Path) -> None:
    scorer = Faulty(key=BAD, how="kill", unless=str(tmp_path / "mended"))
    run = score(pool, tmp_path / "run", scorer, engine=Ray(cluster, workers=1))
    assert list(run.failures) == ["00001"]
    assert run.failures["00001"].startswith("2 workers died one after another at this shard, it is set aside")
    assert run.scores["faulty"].shards == {"00000", "00002"}  # nor does the one that waited behind it pay for it
    (tmp_path / "mended").touch()
    mended = score(pool, tmp_path / "run", scorer, workers=1)  # local takes over
    assert (mended.failures, mended.to_numpy("faulty").tolist()) == ({}, [1.0] * 21)


def test_a_scorer_that_raises_costs_its_shard_alone(cluster: str, pool: Path, tmp_path: Path) -> None:
    run = score(pool, tmp_path / "run", "caption_length", Faulty(key=BAD), engine=Ray(cluster, workers=2))
    assert run.failures == {"00001": "faulty: ZeroDivisionError: a fault of the scorer's"}
    assert len(run.to_numpy("words")) == 21


def test_a_scorer_that_breaks_its_promise_stops_the_run(cluster: str, pool: Path, tmp_path: Path) -> None:
    with pytest.raises(ScorerError, match="declares the column 'faulty' and does not emit it"):
        score(pool, tmp_path / "run", Faulty(key=BAD, how="lacking"), engine=Ray(cluster, workers=1))


def test_ray_that_is_not_installed_is_told_with_its_extra(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match=r"the package 'ray' is not installed; run: pip install 'tamis\[ray\]'"):
        score(pool, tmp_path / "run", "caption_length", engine=Ray())
