"""A run is killed at random moments, however it is carried out; the next command makes it what it would have been."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray_cluster
from factories import index_rows, parts_of, write_pool
from processes import command

import tamis
from tamis.store import Run

SIGNALS = "caption_length,image_size,language"
SHARDS, ROWS = 24, 20
LOCAL_KILLS = int(os.environ.get("TAMIS_KILLS", "25"))
RAY_KILLS = max(1, LOCAL_KILLS // 5)

pytestmark = [
    pytest.mark.attack,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by Linux's /proc"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pool(tmp_path_factory.mktemp("faults") / "pool", shards=SHARDS, rows=ROWS)


@pytest.fixture(scope="module")
def undisturbed(pool: Path) -> tuple[dict[str, bytes], float]:
    """The parts, and the seconds that a command takes to make them."""
    run = pool.parent / "undisturbed"
    start = time.monotonic()
    assert command("score", pool, "--run", run, "--signals", SIGNALS, "-q").returncode == 0
    return parts_of(run), time.monotonic() - start


def scoring(pool: Path, run: Path, *engine: str, **variables: str) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "tamis", "score", str(pool), "--run", str(run), "--signals", SIGNALS, "-q"]
    return subprocess.Popen([*arguments, *engine], env={**os.environ, **variables}, stderr=subprocess.DEVNULL)


def family(parent: int) -> list[int]:
    """A process and all that it has started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            above = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(above, []).append(int(entry.parent.name))
    found = [parent]
    for process in found:
        found += children.get(process, [])
    return found


def named(processes: list[int], word: bytes) -> list[int]:
    found = []
    for process in processes:
        try:
            if word in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def check_whole(run: Path, parts: dict[str, bytes]) -> None:
    opened = Run(run)
    assert opened.failures == {}
    assert parts_of(run) == parts
    uids = Counter((row["uid_hi"], row["uid_lo"]) for row in index_rows(opened))
    assert (len(uids), set(uids.values())) == (SHARDS * ROWS, {1})
    assert list((run / "claims").iterdir()) == []
    assert tamis.doctor(run).exit_code == 0


@pytest.mark.parametrize("kill", range(LOCAL_KILLS))
@pytest.mark.parametrize("engine", [("--workers", "2"), ("--engine", "static", "--rank", "0", "--world", "2")])
def test_a_local_run_or_a_rank_that_is_killed(
    engine: tuple[str, ...], kill: int, pool: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    parts, seconds = undisturbed
    draw = random.Random(f"{engine} {kill}")
    run = tmp_path / "run"
    process = scoring(pool, run, *engine)
    time.sleep(draw.uniform(0.2, 1.2) * seconds)
    victim = draw.choice(family(process.pid))
    if process.poll() is None:
        os.kill(victim, signal.SIGKILL)
    process.wait()
    assert scoring(pool, run).wait() == 0
    check_whole(run, parts)


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    """What a command needs for talking to Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'tamis[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.SETTINGS.items():
            patch.setenv(name, value)
        yield ray_cluster.SETTINGS


@pytest.mark.parametrize("kill", range(RAY_KILLS))
def test_a_ray_run_whose_actors_or_driver_are_killed(
    kill: int, pool: Path, undisturbed: tuple[dict[str, bytes], float], variables: dict[str, str], tmp_path: Path
) -> None:
    parts, seconds = undisturbed
    with ray_cluster.cluster() as (address, head):
        for victim in ("actor", "driver"):
            draw = random.Random(f"{victim} {kill}")
            run = tmp_path / victim
            process = scoring(pool, run, "--engine", "ray", "--address", address, "--workers", "2", **variables)
            while not (run / "events.jsonl").exists() and process.poll() is None:
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.5) * seconds)
            actors = named(family(head.pid), b"ray::Worker")
            if process.poll() is None and (actors or victim == "driver"):
                os.kill(process.pid if victim == "driver" else draw.choice(actors), signal.SIGKILL)
            assert process.wait() == 0 or victim == "driver"
            engine = ("--engine", "ray", "--address", address) if victim == "driver" else ()
            assert scoring(pool, run, *engine, **variables).wait() == 0
            check_whole(run, parts)


@pytest.mark.parametrize("kill", range(max(1, RAY_KILLS // 5)))
def test_a_ray_run_whose_raylet_is_killed(
    kill: int, pool: Path, undisturbed: tuple[dict[str, bytes], float], variables: dict[str, str], tmp_path: Path
) -> None:
    """The only node is gone: the command waits for another one, until it is ended; any engine takes over."""
    parts, _ = undisturbed
    run = tmp_path / "run"
    with ray_cluster.cluster() as (address, head):
        process = scoring(pool, run, "--engine", "ray", "--address", address, "--workers", "2", **variables)
        while not (run / "events.jsonl").exists() and process.poll() is None:
            time.sleep(0.02)
        for raylet in named(family(head.pid), b"raylet/raylet"):
            os.kill(raylet, signal.SIGKILL)
        time.sleep(2)
        process.kill()
        process.wait()
    assert scoring(pool, run).wait() == 0
    check_whole(run, parts)
