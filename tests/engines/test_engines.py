"""Engines: they all make the same parts, do every shard once, and name a bad one."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from factories import parts_of, score, write_pool
from odd_signals import CALLS, Brightness, Faulty

import tamis
from tamis.core.errors import StopError
from tamis.engines import local
from tamis.engines.local import Local, Rank, rank_of
from tamis.engines.named import engine_named
from tamis.runs import Run

BAD = "000010003"  # a sample of the second shard

#: A rank that reads its number from the environment, as a scheduler would start it.
RANK = """
import sys
sys.path.insert(0, sys.argv[3])
import os, tamis
from odd_signals import Brightness
from tamis.engines.local import Local
from tamis.engines.local import rank_of
engine = Local(rank=rank_of())
tamis.score(sys.argv[1], run=sys.argv[2], signals=["caption_length", Brightness()], engine=engine, quiet=True)
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of eight shards of three pairs."""
    return write_pool(tmp_path_factory.mktemp("many") / "pool", shards=8, rows=3)


@pytest.fixture(scope="module")
def whole(many: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parts that one worker makes of it."""
    run = tmp_path_factory.mktemp("whole") / "run"
    score(many, run, "caption_length", Brightness())
    parts = parts_of(run)
    assert len(parts) == 24
    return parts


def test_three_ranks_started_at_once_make_what_one_worker_makes(
    many: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    arguments = [
        sys.executable,
        "-c",
        RANK,
        str(many),
        str(tmp_path / "run"),
        str(Path(__file__).parents[1] / "helpers"),
    ]
    ranks = [subprocess.Popen(arguments, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}) for rank in range(3)]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    assert parts_of(tmp_path / "run") == whole
    run = Run(tmp_path / "run")
    assert (run.failures, tamis.check(run.path).exit_code) == ({}, 0)
    assert sorted(path.name for path in run.path.glob("status*")) == [f"status-rank{rank}.json" for rank in range(3)]
    events = [json.loads(line) for path in run.path.glob("events-rank*") for line in path.read_text().splitlines()]
    assert Counter(event["shard"] for event in events if event["rows"]) == {f"{number:05}": 1 for number in range(8)}


def test_a_rank_does_not_try_again_what_failed_elsewhere_meanwhile(pool: Path, tmp_path: Path) -> None:
    bad, run = Faulty(key=BAD), tmp_path / "run"
    CALLS.append(lambda: score(pool / "00001.tar", run, bad) and None)  # while the rank is at its first shard
    done = score(pool, run, bad, Faulty(key="000000003", how="call"), engine=Local(rank=Rank(0, 3)))
    assert done.failures == {"00001": "faulty: ZeroDivisionError: a fault of the signal's"}
    assert '"shard": "00001"' in (run / "events.jsonl").read_text()
    assert '"shard": "00001"' not in (run / "events-rank0.jsonl").read_text()
    assert '"shard": "00002"' in (run / "events-rank0.jsonl").read_text()
    score(pool, tmp_path / "other", bad, engine=Local(rank=Rank(0, 3)))  # its own failures are not tried again either
    assert (tmp_path / "other" / "events-rank0.jsonl").read_text().count('"shard": "00001"') == 1


def test_a_run_moves_between_engines(many: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    some = tamis.PoolSpec(path=[str(many / f"0000{number}.tar") for number in (0, 5)])
    tamis.score(some, run=tmp_path / "run", signals=["caption_length"], quiet=True, engine=Local(rank=Rank(0, 2)))
    tamis.score(many, run=tmp_path / "run", signals=["caption_length"], workers=2, grow=True, quiet=True)
    score(many, tmp_path / "run", "caption_length", Brightness(), engine=Local(rank=Rank(1, 2)))
    assert parts_of(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Rank(3, 8, (1, 2))),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1"}, Rank(5, 6, (1, 2))),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_TASKS_PER_NODE": "4(x2)",
             "SLURM_CPUS_PER_TASK": "12", "SLURM_GPUS_PER_TASK": "2"},
            Rank(5, 8, (1, 4), cores=12, own_gpus=True),
        ),
        # A Slurm array of the tasks 10, 12, 14: the third of them.
        (
            {"SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "2",
             "SLURM_ARRAY_TASK_COUNT": "3"},
            Rank(2, 3),
        ),
        # The same with four processes in each task, of which this is the second.
        (
            {"SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "2",
             "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"},
            Rank(9, 12),
        ),
        # torchrun inside a Slurm job: what torchrun says counts.
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Rank(1, 2)),
    ],
)  # fmt: skip
def test_the_number_of_a_rank_is_what_its_launcher_says(environment: dict[str, str], rank: Rank) -> None:
    assert rank_of(environment) == rank
    assert rank_of(environment, rank=0, world=2) == Rank(0, 2)


def test_ranks_of_one_machine_share_its_cores(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(local, "decoders", lambda available: seen.append(available) or 1)
    bound = Rank(1, 4, (1, 4), cores=12)
    for cores, rank in ((12, bound), (96, bound), (96, Rank(1, 4, (1, 4))), (2, Rank(1, 4, (1, 4)))):
        monkeypatch.setattr(local, "cores", lambda cores=cores: cores)
        score(pool, tmp_path / "run", "caption_length", engine=Local(1, rank))
    assert seen == [12, 12, 24, 1]


@pytest.mark.parametrize(
    ("environment", "rank", "world", "reason"),
    [
        ({}, None, None, "which rank is this process"),
        ({}, 1, None, "--rank and --world belong together"),
        ({}, 2, 2, "ranks are 0 to 1"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None, None, "the variable RANK must be a whole number, it is 'x'"),
    ],
)
def test_a_rank_that_makes_no_sense_is_an_error(
    environment: dict[str, str], rank: int | None, world: int | None, reason: str
) -> None:
    with pytest.raises(StopError, match=reason):
        rank_of(environment, rank=rank, world=world)


def test_engines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_named("local", workers=3) == Local(3, command=True)
    assert engine_named("static", rank=1, world=2) == Local(None, Rank(1, 2), command=True)
    with pytest.raises(StopError, match="unknown engine 'statik' \\(did you mean 'static'\\?\\)"):
        engine_named("statik")
    with pytest.raises(StopError, match="--address goes with --engine ray, not with --engine local"):
        engine_named("local", address="auto")
