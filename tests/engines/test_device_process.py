"""Many workers and one process at the device: the files of one worker, whichever process dies."""

import multiprocessing
from pathlib import Path

import pytest
from factories import parts_of, score, write_pool
from odd_signals import Brightness, Faulty, FaultyBeside, Keeper

from tamis.core import machine
from tamis.core.errors import SignalError
from tamis.core.types import Device, Signal
from tamis.engines import local
from tamis.engines.local import Local, Rank
from tamis.engines.plan import Plan
from tamis.pools import open_pool
from tamis.signals.graph import Identities

BAD = "000010003"  # a sample of the second shard

SERVED = Local(2, one_process_per_device=True)


def test_workers_that_share_a_device_make_what_one_makes_alone(pool: Path, tmp_path: Path) -> None:
    (pool / "00002.tar").write_bytes((pool / "00002.tar").read_bytes()[:9_000])  # ends in the middle
    faulty = Faulty(key=BAD)
    alone = score(pool, tmp_path / "alone", "caption_length", Brightness(), faulty, batch_size=3)
    shared = score(pool, tmp_path / "shared", "caption_length", Brightness(), faulty, batch_size=3, engine=SERVED)
    assert parts_of(shared.path) == parts_of(alone.path)
    assert shared.failures == alone.failures
    assert shared.failures["00001"] == "faulty: ZeroDivisionError: a fault of the signal's"
    assert multiprocessing.active_children() == []


def test_a_device_process_that_dies_costs_the_shard_that_it_was_at(pool: Path, tmp_path: Path) -> None:
    write_pool(pool, shards=2, first=3)
    mended = tmp_path / "mended"
    signal = Faulty(key=BAD, how="kill", unless=str(mended))
    run = score(pool, tmp_path / "run", signal, engine=SERVED)
    assert list(run.failures) == ["00001"]
    assert run.failures["00001"].startswith("the device's process died at this shard")
    assert run.shards == ("00000", "00002", "00003", "00004")
    mended.touch()
    assert score(pool, tmp_path / "run", signal, engine=SERVED).failures == {}


@pytest.mark.attack
def test_a_broken_promise_at_the_device_stops_the_run(pool: Path, tmp_path: Path) -> None:
    with pytest.raises(SignalError, match="declares the column 'faulty' and does not emit it"):
        score(pool, tmp_path / "run", Faulty(key=BAD, how="lacking"), engine=SERVED)
    assert multiprocessing.active_children() == []


def test_what_a_node_keeps_of_a_batch_is_not_written_over_by_the_next(pool: Path, tmp_path: Path) -> None:
    run = score(pool, tmp_path / "run", Keeper(), batch_size=2, engine=SERVED)
    assert run.to_numpy("kept").tolist() == [1.0] * 21


def test_how_many_workers_there_are_follows_the_machine(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fitting(kind: str, signal: Signal, rank: Rank | None = None) -> int:
        identities = Identities(Device(kind=kind))
        plan = Plan(pool=open_pool(pool), signals=((signal.name, signal),), identities=identities)
        return Local(rank=rank, command=True)._count_workers(plan, [kind], 8, plan.tasks(pool / "no run"))

    monkeypatch.setattr(local, "memory", lambda: 64 << 30)
    reading = FaultyBeside(key=BAD)
    assert fitting("cuda:0", Brightness()) == 8  # one per core feeds the GPU
    assert fitting("cpu", Brightness()) == 1  # the model takes all cores
    assert fitting("cpu", reading) == 1  # too little to start processes for
    monkeypatch.setattr(local, "_SMALL_POOL", 1000)
    assert fitting("cpu", reading) == 8
    assert fitting("cpu", reading, Rank(local=(0, 16))) == 4  # of sixteen ranks on the machine
    monkeypatch.setattr(local, "memory", lambda: 3 << 30)
    assert fitting("cuda:0", Brightness()) == 3


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "100000\n", "cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_cores_and_memory_are_those_that_a_container_may_use(
    files: dict[str, str], limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_groups", lambda controller: [])
    unlimited = machine.cores()
    for name, text in {**files, "memory.max": f"{1 << 20}\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_groups", lambda controller: [tmp_path])
    assert (machine.cores(), machine.memory()) == (limit or unlimited, 1 << 20)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory() > 1 << 20


def test_control_groups_are_found_with_those_around_them(tmp_path: Path) -> None:
    listed = tmp_path / "listed"
    listed.write_text("3:cpu,cpuacct:/docker/x\n0::/a/b\n")
    root = tmp_path / "cgroup"
    assert machine._groups("memory", root, listed) == [root / "a/b", root / "a", root]
    assert machine._groups("cpu", root, listed)[:3] == [root / "cpu/docker/x", root / "cpu/docker", root / "cpu"]
