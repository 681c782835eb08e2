"""Runs at URLs: on a real S3 server, with caches that stand for as many machines."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import parts_of, uids_in, write_pool
from faulty_server import Answer, Answers, FaultyServer, Request, forget_clients, passed_on
from processes import command, die_at_file
from s3_fixtures import parts_at_store

import tamis as package
from tamis.commands.run_recipe import run_recipe
from tamis.core.errors import RunError
from tamis.core.files import storage
from tamis.core.files.storage import RemotePath, location
from tamis.engines.local import Local, Rank
from tamis.runs import Run, claims, manifest, parts
from tamis.runs.check import lines
from tamis.runs.claims import claim_shard, claimed_shards

RUN = "s3://pool/runs/mine"
SIGNALS = ["caption_length", "image_size"]
WORDS = ("--run", RUN, "--signals", ",".join(SIGNALS), "-q")
HALF = {"name": "half", "select": [{"top_fraction": {"score": "characters", "fraction": 0.5}}]}


def score(pool: Path, run: str | Path = RUN, **options: Any) -> Run:
    return package.score(str(pool), run=run, signals=SIGNALS, quiet=True, **options)


@pytest.fixture(autouse=True)
def machine(s3: Any, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Goes on as another machine would: with an empty cache."""

    def be(name: str) -> None:
        monkeypatch.setenv("TAMIS_CACHE", str(tmp_path / f"cache-{name}"))
        storage._known.clear()

    be("a")
    yield be
    storage._known.clear()


def names_at_store(s3: Any, start: str = "pool/runs/mine") -> list[str]:
    s3.invalidate_cache()
    return [name.removeprefix(f"{start}/") for name in sorted(s3.find(start))]


def at_store(s3: Any, names: Iterable[str] | None = None) -> dict[str, bytes]:
    return {name: s3.cat_file(f"pool/runs/mine/{name}") for name in (names_at_store(s3) if names is None else names)}


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "TAMIS_"))}


@contextmanager
def behind(answer: Answers, monkeypatch: pytest.MonkeyPatch, **faults: Any) -> Iterator[FaultyServer]:
    with FaultyServer(answer, **faults) as server, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        forget_clients()
        yield server
    forget_clients()


def test_a_run_at_a_url_holds_what_a_local_one_holds_and_another_machine_reads_it(
    pool: Path, tmp_path: Path, s3: Any, machine: Callable[[str], None], s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = score(pool, f"file://{tmp_path}/local")
    run = score(pool)
    assert isinstance(run.path, RemotePath)
    assert parts_at_store(s3) == parts_of(tmp_path / "local")
    others = set(names_at_store(s3)) - set(parts_at_store(s3))
    assert {name.rpartition("/")[2] for name in others} == {
        *("run.json", "recipe.yaml", "shards.parquet", "signal.json", "status.json", "events.jsonl")
    }
    machine("b")
    other = Run(RUN)
    assert other.to_arrow().equals(local.to_arrow())
    assert other["characters"].tolist() == local["characters"].tolist()
    with behind(passed_on(s3_server), monkeypatch) as server:
        assert Run(RUN).to_arrow().equals(local.to_arrow())
    asked = [one.path for one in server.requests if one.method == "GET" and "/scores/" in one.path]
    assert [path for path in asked if path.endswith(".parquet")] == []  # copies are downloaded once


def test_every_command_takes_the_url(pool: Path, s3: Any, tamis: Tamis, machine: Callable[[str], None]) -> None:
    Path("half.yaml").write_text("select: [{top_fraction: {score: characters, fraction: 0.5}}]")
    assert f"{RUN} (new)" in tamis("score", pool, "--run", RUN, "--signals", "caption_length", "--dry-run").out
    tamis.ok("score", pool, "--run", RUN, "--signals", "caption_length", "-q")
    run = Run(RUN)
    manifest.describe(run.path, {"embeddings/image_embedding-1": {"name": "image_embedding"}})
    for shard in run.shards:
        vectors = np.random.default_rng(0).normal(size=(7, 8)).astype(np.float16)
        uids = uids_in(run.index_path(shard))
        parts.write_rows(run.path / f"embeddings/image_embedding-1/{shard}.npy", [vectors], uids=uids)
    for words, output in {
        f"status {RUN}": "3/3 shards, 21 pairs",
        f"cluster {RUN} --clusters 2": "21 rows",
        f"check half.yaml --run {RUN}": "",
        f"select {RUN} --recipe half.yaml --out half.parquet": "",
        f"export {RUN} half.parquet half.npy --to npy": "11 pairs",
        f"report {RUN} half.parquet --out page.html": "",
        f"check {RUN}": "3 shards, 12 parts",
        f"score {write_pool(pool, 1, 7, 3)} --run {RUN} --signals caption_length -q": "",
    }.items():
        machine(str(hash(words)))
        done = tamis(*words.split())
        assert (done.code, output in done.out + done.err) == (0, True), (words, done)
    assert len(Run(RUN)) == 28


@pytest.mark.parametrize(
    "words",
    [
        f"select {RUN} --recipe half.yaml --out s3://pool/half.parquet",
        f"export {RUN} s3://pool/half.parquet out.npy --to npy",
        "run whole.yaml",
    ],
)
def test_where_a_path_is_wanted_a_url_stops_the_command(words: str, tamis: Tamis) -> None:
    recipe = {"pool": "pool", "run": RUN, "signals": ["caption_length"], "report": "s3://pool/p.html"}
    Path("whole.yaml").write_text(json.dumps(recipe))
    done = tamis(*words.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert re.search(r"s3:/pool/\S+", done.err)
    assert not Path("s3:").exists()


def test_a_recipe_whose_run_is_a_url_puts_its_subset_and_its_page_there(pool: Path, s3: Any) -> None:
    for _ in range(2):
        done = run_recipe({**HALF, "pool": str(pool), "run": RUN, "signals": ["caption_length"]}, quiet=True)
        there = at_store(s3)
        assert "subsets/half.parquet" in there
        assert there["report.html"] == done.report.read_bytes()


def test_ranks_on_two_machines_share_a_run(tmp_path: Path, s3: Any) -> None:
    pool = write_pool(tmp_path / "pool", 6, 7)
    local = score(pool, tmp_path / "local")
    done = []

    def rank(number: int) -> None:
        env = {**environment(), "TAMIS_CACHE": str(tmp_path / f"rank{number}")}
        words = ["score", str(pool), *WORDS, "--engine", "static", "--rank", str(number), "--world", "2"]
        done.append(command(*words, env=env))

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    assert parts_at_store(s3) == parts_of(tmp_path / "local")
    assert Run(RUN).to_arrow().equals(local.to_arrow())
    assert not [name for name in names_at_store(s3) if name.startswith(("claims/", "lock"))]
    events = at_store(s3, [name for name in names_at_store(s3) if name.startswith("events-rank")])
    assert b"".join(events.values()).count(b'"rows": 7') == 6  # none was done twice


def _hurried(then: Callable[[], None]) -> None:
    from tamis.runs import writers

    writers.EVERY_SECONDS = 0.0
    then()


@pytest.mark.parametrize(
    "files", [8, 12, *(pytest.param(files, marks=pytest.mark.attack) for files in (0, 2, 4, 5, 6, 7, 9, 10, 14))]
)
def test_a_machine_that_dies_anywhere_is_followed_by_another_which_takes_up_what_it_kept(
    files: int, pool: Path, tmp_path: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    score(pool, tmp_path / "local", batch_size=2)
    words = ["score", str(pool), *WORDS, "--batch-size", "2"]
    killed = command(*words, env=environment(), before=partial(_hurried, partial(die_at_file, files)))
    assert killed.returncode == -signal.SIGKILL
    kept = [name for name in names_at_store(s3) if name.startswith("unfinished/")]
    assert kept or files < 8
    machine("b")
    score(pool, batch_size=2, workers=1 + files // 12)
    assert parts_at_store(s3) == parts_of(tmp_path / "local")
    machine("c")
    assert package.check(RUN).exit_code == 0
    left = [name for name in names_at_store(s3) if name.startswith(("unfinished/", "claims/"))]
    assert not left or files >= 10  # killed after the parts were there: the next work on the shard deletes it


def test_a_shard_is_one_machine_s_until_its_lease_has_ended(
    pool: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    monkeypatch.setattr(claims, "_RENEWALS", 0.1)  # it sleeps
    run = score(pool).path
    with claim_shard(run, "00000") as acquired:
        assert acquired
        monkeypatch.setattr(claims, "NUMBERED_IN", "another machine")
        assert claimed_shards(run, ["00000", "00001"]) == {"00000"}
        with claim_shard(run, "00000") as free:
            assert not free
        time.sleep(2.1)
        assert claimed_shards(run, ["00000"]) == set()
        with claim_shard(run, "00000") as free:
            assert free
    assert not [name for name in names_at_store(s3) if name.startswith("claims/")]


def test_a_store_without_conditional_writes_has_ranks_that_take_over_nothing(
    pool: Path, s3: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CREATES_ONLY_IF_ABSENT", ())
    score(pool, engine=Local(rank=Rank(0, 2)))
    indexed = {name for name in names_at_store(s3) if name.startswith("index/")}
    assert indexed == {"index/00000.parquet", "index/00002.parquet"}
    assert "no conditional writes" in caplog.text
    assert len(score(pool, engine=Local(rank=Rank(1, 2)))) == 21


@pytest.mark.parametrize("rate", [0.01, pytest.param(0.05, marks=pytest.mark.attack)])
def test_faulty_answers_cost_nothing(
    rate: float, tmp_path: Path, s3_server: str, s3: Any, monkeypatch: pytest.MonkeyPatch, machine: Any
) -> None:
    pool = write_pool(tmp_path / "pool", 6, 5)
    local = score(pool, tmp_path / "local")
    faults = ("500", "503", "reset", "truncated", "lost")
    with behind(passed_on(s3_server), monkeypatch, rate=rate, faults=faults) as server:
        for place in "bc":
            machine(place)
            assert score(pool).to_arrow().equals(local.to_arrow())
        assert server.faults.total() >= 1
    assert parts_at_store(s3) == parts_of(tmp_path / "local")


def test_a_store_that_stays_away_ends_the_command_and_the_next_one_goes_on(
    pool: Path, tmp_path: Path, s3_server: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    onward = passed_on(s3_server)
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "2")

    def half(request: Request) -> Answer:
        lost = request.method == "PUT" and request.path.endswith("index/00001.parquet")
        return Answer(503) if lost else onward(request)

    with behind(half, monkeypatch), pytest.raises(RunError, match=r"index/00001\.parquet"):
        score(pool)
    assert not [name for name in names_at_store(s3) if "00001" in name and name.startswith(("index/", "scores/"))]
    local = score(pool, tmp_path / "local")
    assert score(pool).to_arrow().equals(local.to_arrow())


def test_what_the_check_says_to_delete_from_a_store_is_made_again(
    pool: Path, tmp_path: Path, s3: Any, machine: Callable[[str], None]
) -> None:
    run = score(pool)
    part = str(run.scores["image_size"].folder.relative_to(run.path) / "00001.parquet")
    kinds = {part: "damaged", part.replace("00001", "99999"): "left over"}
    for name in kinds:
        s3.pipe_file(f"pool/runs/mine/{name}", b"damaged")
    found = package.check(RUN)
    assert {one.path: one.kind for one in found.findings} == kinds
    assert {f"{RUN}/{name}" for name in kinds} <= set(lines(found))
    for name in kinds:
        s3.rm_file(f"pool/runs/mine/{name}")
    assert len(Run(RUN).scores["image_size"].shards) == 2
    score(pool)
    score(pool, tmp_path / "local")
    machine("b")
    assert package.check(RUN).exit_code == 0
    assert parts_at_store(s3) == parts_of(tmp_path / "local")


@pytest.mark.parametrize(
    "run",
    [
        "http://host/run",
        "memory://run",
        "simplecache::s3://me:hush@pool/run",
        Path("s3://me:hush@pool/run"),
        "s3://nobucket/run",
    ],
)
def test_a_url_at_which_no_run_can_be_is_refused_and_its_secrets_are_not_shown(run: str | Path, pool: Path) -> None:
    with pytest.raises(RunError, match=re.escape(str(run).partition(":")[0])) as error:
        score(pool, run)
    assert "hush" not in str(error.value)
    assert str(location("ftp://me:hush@127.0.0.1/runs/mine") / "run.json") == "ftp://127.0.0.1/runs/mine/run.json"


def test_fields_that_were_added_later_and_records_of_failures_are_found_at_a_url(pool: Path, s3: Any) -> None:
    spec = package.PoolSpec(path=str(pool))
    for fields in ((), ("source",), ()):
        package.score(replace(spec, fields=fields), run=RUN, signals=["caption_length"], quiet=True)
    assert manifest.fields_of(location(RUN), manifest.read_manifest(location(RUN))) == ((), ("source",))
    s3.pipe_file("pool/runs/mine/failures/00000.json", b"{}")
    assert [finding.path for finding in package.check(RUN).findings] == ["failures/00000.json"]


def test_whether_a_run_is_at_a_url_is_not_denied_when_the_store_stays_away(
    s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with behind(lambda request: Answer(503), monkeypatch), pytest.raises(RunError, match="the run's store failed"):
        storage.is_run(RUN)
    assert not storage.is_run(RUN)


def test_a_large_object_comes_in_pieces_of_one_version(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PIECE", 100)
    path, data = location("s3://pool/some/large"), bytes(range(250)) * 5
    storage.put(path, data)
    with path.open("rb") as file:
        assert file.read() == data
    fetched, replaced = storage.fetch, bytes(reversed(data))

    def replacing(url: str, start: int, end: int, **settings: Any) -> bytes:
        answer = fetched(url, start, end, **settings)
        if answer == data[500:600]:  # another machine writes it while it is read
            s3.pipe_file("pool/some/large", replaced)
        return answer

    storage.drop_cached(path)
    monkeypatch.setattr(storage, "fetch", replacing)
    with path.open("rb") as file:
        assert file.read() == replaced


def test_two_machines_that_extend_a_run_at_once_lose_no_shard(tmp_path: Path, machine: Callable[[str], None]) -> None:
    pools = [write_pool(tmp_path / name, 1, 4, first) for name, first in (("one", 0), ("two", 5), ("three", 8))]
    score(pools[0])
    stale = dict(storage._known)  # another machine's command has begun
    score(pools[1], grow=True)
    machine("b")
    storage._known.update(stale)
    assert list(score(pools[2], grow=True).urls) == ["00000", "00005", "00008"]
    assert len(Run(RUN)) == 12


def test_other_objects_of_the_bucket_are_left_alone(pool: Path, s3: Any, machine: Callable[[str], None]) -> None:
    names = {"big.tar", "data/big.tar", "other/index/big.parquet", "index.html"}
    for name in names:
        s3.pipe_file(f"pool/{name}", b"big")
    with pytest.raises(RunError, match=r"^s3://pool is not a run folder"):
        Run("s3://pool")
    assert len(score(pool, "s3://pool/")) == 21
    assert package.check("s3://pool").exit_code == 0
    assert names <= set(names_at_store(s3, "pool"))
    for odd in ("../evil", "index/../../evil", "index//evil", "./evil"):
        s3.call_s3("put_object", Bucket="pool", Key=odd, Body=b"evil")
    machine("b")
    assert Run("s3://pool").statuses == {"ok": 21}


def test_names_of_runs_and_shards_may_be_odd(tmp_path: Path, s3: Any, machine: Callable[[str], None]) -> None:
    pool = write_pool(tmp_path / "pool", 6, 3)
    for path, name in zip(sorted(pool.glob("*.tar")), ("a b", "ü東", "c%20d", "e#f", "g?h=1", "i+j&k"), strict=True):
        path.rename(pool / f"{name}.tar")
    local, url = score(pool, tmp_path / "local"), "s3://pool/runs/my run #1%20?ü+&"
    score(pool, url)
    machine("b")
    assert Run(url).to_arrow().equals(local.to_arrow())
    assert Run(f"{url}/").to_arrow().equals(local.to_arrow())


def test_a_copy_that_a_power_cut_emptied_is_downloaded_again(pool: Path, tmp_path: Path) -> None:
    run = score(pool)
    copies = list((tmp_path / "cache-a").rglob("*.parquet"))
    for copy in copies:
        os.truncate(copy, 0)
    assert copies
    assert len(Run(run.path).to_arrow()) == 21


def test_one_of_several_creates_an_object_though_the_store_asks_again_or_the_answer_is_lost(
    s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    onward, asked = passed_on(s3_server), []

    def conflicting(request: Request) -> Answer:
        asked.append("If-None-Match" in request.headers)
        if len(asked) == 1:
            return Answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
        return onward(request)

    path = location("s3://pool/some/one")
    with behind(conflicting, monkeypatch, first=["", "lost"]) as server:
        assert storage.put(path, b"mine", if_absent=True)
        assert (asked[:3], server.faults) == ([True] * 3, {"lost": 1})
        assert not storage.put(path, b"another's", if_absent=True)
        assert path.read_bytes() == b"mine"


def test_a_log_at_a_url_keeps_the_lines_of_earlier_commands() -> None:
    for line in ("one", "two"):
        log = storage.Log(location(RUN) / "events.jsonl")
        log.append(line)
        log.flush()
    assert (location(RUN) / "events.jsonl").read_text() == "one\ntwo\n"
