"""A run on an S3 server that spoils a share of the requests; three machines work on it and one is killed.

Every part is there, byte for byte.

`make attack` prints a table: share of faulty requests, requests, faults by kind.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import fsspec
import pytest
from factories import parts_of, write_pool
from faulty_server import FAULTS, S3_ENVIRONMENT, FaultyServer, forget_clients, moto_server, passed_on
from processes import command, die_at_file
from s3_fixtures import LIBRARIES_WARN

import tamis
from tamis.runs import Run

pytestmark = [*LIBRARIES_WARN, pytest.mark.attack, pytest.mark.timeout(1800)]

RUN = "s3://pool/runs/mine"


@pytest.mark.parametrize(("rate", "seed"), [(0.01, 1), (0.01, 2), (0.05, 1), (0.2, 1)])
def test_a_run_at_a_url_is_whole_though_a_rank_is_killed_and_the_store_fails(
    rate: float,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    limits = {"TAMIS_REMOTE_WAIT": "0.02", "TAMIS_REMOTE_STALL": "5", "TAMIS_REMOTE_LEASE": "6"}
    for name, value in {**S3_ENVIRONMENT, **limits}.items():
        monkeypatch.setenv(name, value)
    pool = write_pool(tmp_path / "pool", 12, 10)
    local = tamis.score(str(pool), run=tmp_path / "local", signals=["caption_length", "image_size"], quiet=True)
    words = ["score", str(pool), "--run", RUN, "--signals", "caption_length,image_size", "-q", "--engine", "static"]
    rounds = 0
    with (
        moto_server() as behind,
        FaultyServer(passed_on(behind), rate=rate, seed=seed, faults=(*FAULTS, "lost")) as server,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", behind)
        forget_clients()
        fs = fsspec.filesystem("s3")
        with suppress(FileExistsError):  # the servers of one process share what they hold
            fs.mkdir("pool")
        environment = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "TAMIS_"))}
        environment["AWS_ENDPOINT_URL"] = server.url
        while len(server.requests) < 3 / rate or rounds < 3:
            rounds += 1
            ranks = {}
            with ThreadPoolExecutor(3) as threads:
                for rank in range(3):
                    own = {**environment, "TAMIS_CACHE": str(tmp_path / f"cache-{rounds}-{rank}")}
                    place = ("--rank", str(rank), "--world", "3", "--workers", str(1 + rank % 2))
                    # The second machine is killed somewhere, with what it has of claims and half-made parts.
                    dies = partial(die_at_file, 8 + 3 * rounds % 12) if rank == 1 else None
                    ranks[rank] = threads.submit(command, *words, *place, env=own, before=dies)
            ended = {rank: one.result() for rank, one in ranks.items()}
            assert (ended[0].returncode, ended[2].returncode) == (0, 0), ended[0].stderr + ended[2].stderr
            fs.invalidate_cache()
            start = "pool/runs/mine/"
            there = {name.removeprefix(start): fs.cat_file(name) for name in fs.find("pool/runs/mine")}
            wanted = parts_of(tmp_path / "local")
            assert {name: data for name, data in there.items() if name in wanted} == wanted
            parts = {name for name in there if name.startswith(("index/", "scores/")) and "json" not in name}
            assert parts == set(wanted)
            monkeypatch.setenv("TAMIS_CACHE", str(tmp_path / f"reader-{rounds}"))
            assert Run(RUN).to_arrow().equals(local.to_arrow())
            fs.rm("pool/runs/mine", recursive=True)
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(server.faults.items()))
        line = (
            f"a run at a URL, {rate:.0%}: {rounds} times 3 ranks, 1 killed; {len(server.requests):,} requests; {faults}"
        )
        record_property("measured", line)
    forget_clients()
