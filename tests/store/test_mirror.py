"""Runs at URLs: on a real S3 server, with mirrors in several caches that stand for as many machines."""

from __future__ import annotations

import dataclasses
import http.client
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from command_line import Tamis
from factories import parts_of, write_pool
from faulty_server import Answer, Answers, FaultyServer, Request, forget_clients, passed_on
from processes import command, die_at_file

import tamis as package
from tamis import api
from tamis.data import Column
from tamis.errors import RunError
from tamis.run.engines import Place, Static
from tamis.store import Run, leases, manifest, mirror, objects, parts
from tamis.store.atomic import write_json
from tamis.store.lock import being_done, claimed
from tamis.store.mirror import mirror_of, named, run_folder

# The libraries of the server and of its client, not ours, warn.
pytestmark = [
    pytest.mark.filterwarnings("default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::ResourceWarning"),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]

RUN = "s3://pool/runs/mine"
SCORERS = ["caption_length", "image_size"]
HALF = {"name": "half", "select": [{"top_fraction": {"score": "characters", "fraction": 0.5}}]}


def score(pool: Path, run: str | Path = RUN, **options: Any) -> Run:
    return package.score(str(pool), run=run, scores=SCORERS, quiet=True, **options)


@pytest.fixture(autouse=True)
def machine(s3: Any, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Goes on as another machine would: with a cache of its own."""

    def be(name: str) -> None:
        monkeypatch.setenv("TAMIS_CACHE", str(tmp_path / f"cache-{name}"))
        leases._offsets.clear()

    be("a")
    return be


def at_store(s3: Any, start: str = "pool/runs/mine") -> dict[str, bytes]:
    """Returns every object of the run, by its path in there."""
    s3.invalidate_cache()
    return {name.removeprefix(f"{start}/"): s3.cat_file(name) for name in sorted(s3.find(start))}


def parts_at_store(s3: Any) -> dict[str, bytes]:
    kinds = ("index/", "scores/", "embeddings/", "captions/", "texts/")
    return {name: data for name, data in at_store(s3).items() if name.startswith(kinds) and "json" not in name}


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
    pool: Path, tmp_path: Path, s3: Any, machine: Callable[[str], None]
) -> None:
    local = score(pool, tmp_path / "local")
    run = score(pool)
    assert parts_at_store(s3) == parts_of(tmp_path / "local")
    others = set(at_store(s3)) - set(parts_at_store(s3))
    assert {name.rpartition("/")[2] for name in others} == {
        *("run.json", "recipe.yaml", "shards.parquet", "scorer.json", "status.json", "events.jsonl")
    }
    machine("b")
    other = Run(RUN)
    assert other.path != run.path
    assert not list(other.path.glob("scores/*/*.parquet"))  # parts come when they are asked for
    assert other.to_arrow().equals(local.to_arrow())
    before = {path: path.stat().st_mtime_ns for path in other.path.rglob("*.parquet")}
    assert score(pool).to_arrow().equals(local.to_arrow())
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing came twice


def test_every_command_takes_the_url(pool: Path, s3: Any, tamis: Tamis, machine: Callable[[str], None]) -> None:
    assert tamis("score", pool, "--run", RUN, "--signals", "caption_length", "--dry-run").out.count(f"{RUN} (new)") == 1
    assert tamis("score", pool, "--run", RUN, "--signals", "caption_length", "-q").code == 0
    for place in "b":
        machine(place)
        status = tamis("status", RUN)
        assert (status.code, f"{RUN}: done" in status.out, "3/3 shards, 21 pairs" in status.out) == (0, True, True)
        Path("half.yaml").write_text("select: [{top_fraction: {score: characters, fraction: 0.5}}]")
        assert tamis("select", RUN, "--recipe", "half.yaml", "--out", "half.parquet").code == 0
        assert tamis("export", RUN, "half.parquet", "half.npy", "--to", "npy").err == "wrote 11 pairs to half.npy\n"
        assert tamis("report", RUN, "half.parquet", "--out", "page.html").code == 0
        assert f"{RUN}: 3 shards, 6 parts read to their last byte; everything" in tamis("doctor", RUN).out
        assert tamis("compact", RUN).code == 0
        assert [name for name in parts_at_store(s3) if not name.endswith(".pack")] == []
    assert tamis("score", write_pool(pool, 1, 7, 3), "--run", RUN, "--signals", "caption_length", "-q").code == 0
    machine("d")
    assert len(Run(RUN)) == 28


def write_teachers(run: Path) -> None:
    """Adds made-up embeddings, and scores of ICC's teachers, to a run."""
    facts = {"label": "", "version": 1, "settings": {"model": "none"}}
    columns = [Column(name=name, unit="share", better="high") for name in ("vba", "sba")]
    told = {**facts, "name": "teachers", "label": "teachers", "columns": [dataclasses.asdict(one) for one in columns]}
    manifest.describe(run, {"embeddings/image_embedding-1": {**facts, "name": "image_embedding"}, "scores/t-1": told})
    for number, shard in enumerate(Run(run).shards):
        uids = parts.uids_of(run / "index" / f"{shard}.parquet")
        vectors = np.random.default_rng(number).normal(size=(7, 8))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        parts.write_rows(run / f"embeddings/image_embedding-1/{shard}.npy", [vectors.astype(np.float16)], uids=uids)
        half = np.linspace(0, 1, 7, dtype=np.float32)
        values = {"vba": half, "sba": 1 - half}
        parts.write_scores(run / f"scores/t-1/{shard}.parquet", columns, values, [None] * 7, uids=uids)


def test_commands_of_learning_take_the_url(
    pool: Path, tamis: Tamis, machine: Callable[[str], None], tmp_path: Path
) -> None:
    write_teachers(score(pool).path)
    Path("half.yaml").write_text("select: [{top_fraction: {score: characters, fraction: 0.5}}]")
    Path("odd.yaml").write_text("select: [{top_fraction: {score: odd, fraction: 0.5}}]")
    for words, told in {
        f"cluster {RUN} --clusters 2": "21 rows have the columns cluster.cluster and cluster.centroid_cosine",
        f"check half.yaml --run {RUN}": "the recipe is good",
        f"train icc {RUN} --weights 5,4,-4 --stages 1 --out icc": "21 captions, 0 of them labelled, are",
        f"train clip {RUN} --subset none --out m": "there is no subset at none",
        f"bench pool --run {RUN} --out b --recipes odd.yaml": ", vba, width",
    }.items():
        machine(str(hash(words)))  # each on another one, with an empty mirror
        done = tamis(*words.split())
        assert told in done.out + done.err, words


@pytest.mark.parametrize(
    "words",
    [
        f"select {RUN} --recipe half.yaml --out s3://pool/half.parquet",
        f"export {RUN} s3://pool/half.parquet out.npy --to npy",
        f"report {RUN} --out s3://pool/page.html",
        f"train clip {RUN} --out s3://pool/model",
        f"bench {RUN} --out s3://pool/bench",
        "run whole.yaml",
    ],
)
def test_where_a_path_is_wanted_a_url_stops_the_command(words: str, tamis: Tamis) -> None:
    Path("whole.yaml").write_text(f"{{pool: pool, run: '{RUN}', scores: [caption_length], report: 's3://pool/p.html'}}")
    done = tamis(*words.split())
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"tamis: s3:/pool/\S+: a path on a disk is wanted here, not the URL of a store.*\n", done.err)
    assert not Path("s3:").exists()


def test_a_recipe_whose_run_is_a_url_puts_its_subset_and_its_page_there(pool: Path, s3: Any, tmp_path: Path) -> None:
    recipe = {**HALF, "pool": str(pool), "run": RUN, "scores": ["caption_length"]}
    done = api.run_recipe(recipe, quiet=True)
    assert done.subset is not None
    there = at_store(s3)
    assert {"subsets/half.parquet", "report.html"} <= set(there)
    assert there["report.html"] == done.report.read_bytes()


def test_ranks_on_two_machines_share_a_run(tmp_path: Path, s3: Any) -> None:
    pool = write_pool(tmp_path / "pool", 6, 7)
    local = score(pool, tmp_path / "local")
    words = ["score", str(pool), "--run", RUN, "--signals", ",".join(SCORERS), "-q", "--engine", "static"]
    done = []

    def rank(number: int) -> None:
        env = {**environment(), "TAMIS_CACHE": str(tmp_path / f"rank{number}")}
        done.append(command(*words, "--rank", str(number), "--world", "2", env=env))

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    assert parts_at_store(s3) == parts_of(tmp_path / "local")
    assert Run(RUN).to_arrow().equals(local.to_arrow())
    assert not [name for name in at_store(s3) if name.startswith("claims/")]
    events = at_store(s3)
    told = b"".join(events.get(f"events-rank{number}.jsonl", b"") for number in range(2))  # one may come too late
    assert told.count(b'"rows": 7') == 6  # none was done twice


@pytest.mark.parametrize(
    "files", [8, *(pytest.param(files, marks=pytest.mark.attack) for files in (0, 2, 4, 5, 6, 7, 9, 10, 12, 14))]
)
def test_a_machine_that_dies_anywhere_is_followed_by_one_with_an_empty_mirror(
    files: int, pool: Path, tmp_path: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    score(pool, tmp_path / "local")
    words = ["score", str(pool), "--run", RUN, "--signals", ",".join(SCORERS), "-q"]
    killed = command(*words, env=environment(), before=partial(die_at_file, files))
    assert killed.returncode == -signal.SIGKILL
    machine("b")
    score(pool)
    assert parts_at_store(s3) == parts_of(tmp_path / "local")
    machine("c")
    assert api.doctor(RUN).exit_code == 0


def test_a_shard_is_one_machine_s_until_its_lease_has_ended_and_then_who_slept_writes_nothing(
    pool: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    monkeypatch.setattr(leases.Lease, "keep", lambda self: None)  # it sleeps
    slept = score(pool).path
    path = slept / "scores" / "other-1" / "00000.parquet"
    with claimed(slept, "00000") as mine:
        assert mine
        machine("b")
        awake = run_folder(RUN)
        assert being_done(awake, ["00000", "00001"]) == {"00000"}
        with claimed(awake, "00000") as free:
            assert not free
        time.sleep(2.1)
        assert being_done(awake, ["00000"]) == set()
        with claimed(awake, "00000") as free:
            assert free
            assert {"claims/00000.001", "claims/00000.002"} <= set(at_store(s3))
            machine("a")
            with pytest.raises(RunError, match=r"claims/00000.001 at s3://pool/runs/mine was taken over"):
                write_json(path, {})
            machine("b")
        machine("a")
    assert not [name for name in at_store(s3) if name.startswith(("claims/", "scores/other-1"))]


def test_the_lease_of_a_dead_process_of_this_machine_is_free_at_once(pool: Path, s3: Any) -> None:
    run = score(pool).path
    found = mirror_of(run)
    assert found is not None
    s3.pipe_file("pool/runs/mine/claims/00000.001", f"{found.ident} word process 1 on here\n".encode())
    (run / "claims" / "00000").write_text("")
    assert being_done(run, ["00000"]) == set()
    with claimed(run, "00000") as mine:
        assert mine


def test_a_command_waits_for_the_one_that_prepares_the_run_elsewhere(pool: Path, s3: Any) -> None:
    score(pool)
    s3.pipe_file("pool/runs/mine/claims/.lock.001", b"other word process 7 on there, which prepares the run\n")
    threading.Timer(1.0, lambda: s3.rm_file("pool/runs/mine/claims/.lock.001")).start()
    start = time.monotonic()
    assert len(score(pool)) == 21
    assert time.monotonic() - start > 0.9


def test_a_store_without_conditional_writes_has_ranks_that_take_over_nothing(
    pool: Path,
    s3: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    machine: Callable[[str], None],
) -> None:
    monkeypatch.setattr(objects, "CONDITIONAL", ())
    score(pool, engine=Static(Place(0, 2)))
    indexed = {name for name in at_store(s3) if name.startswith("index/")}
    assert indexed == {"index/00000.parquet", "index/00002.parquet"}
    assert "do their own shares and take over none" in caplog.text
    machine("b")
    assert len(score(pool, engine=Static(Place(1, 2)))) == 21


def test_a_server_that_ignores_the_condition_is_found_out(
    pool: Path, s3_server: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    onward = passed_on(s3_server)

    def ignoring(request: Request) -> Answer:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "if-none-match"}
        return onward(Request(request.method, request.path, headers, request.body))

    with behind(ignoring, monkeypatch):
        found = mirror_of(run_folder(RUN))
        assert found is not None
        assert not leases.hold(found)


def test_1_percent_of_faulty_answers_costs_nothing(
    tmp_path: Path, s3_server: str, s3: Any, monkeypatch: pytest.MonkeyPatch, machine: Callable[[str], None]
) -> None:
    pool = write_pool(tmp_path / "pool", 6, 5)
    local = score(pool, tmp_path / "local")
    faults = ("500", "503", "reset", "truncated", "lost")
    with behind(passed_on(s3_server), monkeypatch, rate=0.01, faults=faults) as server:
        for place in "bc":
            machine(place)
            assert score(pool).to_arrow().equals(local.to_arrow())
        assert len(server.requests) > 150
        assert server.faults.total() >= 1
    assert parts_at_store(s3) == parts_of(tmp_path / "local")


def test_an_upload_that_breaks_off_shows_nothing_and_is_made_again(
    pool: Path, tmp_path: Path, s3_server: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = score(pool, tmp_path / "local")
    parts = urlsplit(s3_server)
    onward, broken = passed_on(s3_server), []

    def breaks(request: Request) -> Answer:
        if request.method != "PUT" or "/index/" not in request.path or request.path in broken:
            return onward(request)
        broken.append(request.path)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        connection.putrequest("PUT", request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            connection.putheader(name, value)
        connection.endheaders(request.body[: len(request.body) // 2])
        connection.close()
        seen = [name for name in parts_at_store(s3) if name.startswith("index/")]
        assert f"index/{request.path.rpartition('/')[2]}" not in seen
        raise ConnectionResetError

    with behind(breaks, monkeypatch):
        score(pool)
    assert len(broken) == 3
    assert parts_at_store(s3) == parts_of(tmp_path / "local")
    assert Run(RUN).to_arrow().equals(local.to_arrow())


def test_a_store_that_stays_away_ends_the_command_and_the_next_one_goes_on(
    pool: Path, tmp_path: Path, s3_server: str, s3: Any, monkeypatch: pytest.MonkeyPatch, machine: Callable[[str], None]
) -> None:
    onward = passed_on(s3_server)
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "2")

    def half(request: Request) -> Answer:
        lost = request.method == "PUT" and request.path.endswith("index/00001.parquet")
        return Answer(503) if lost else onward(request)

    with behind(half, monkeypatch), pytest.raises(RunError, match=r"index/00001.parquet: 2 tries failed.*repeat"):
        score(pool)
    machine("b")
    local = score(pool, tmp_path / "local")
    assert score(pool).to_arrow().equals(local.to_arrow())


def test_what_is_removed_goes_at_the_store_and_at_other_machines(
    pool: Path, tmp_path: Path, s3: Any, machine: Callable[[str], None]
) -> None:
    score(pool)
    machine("b")
    assert len(Run(RUN)) == 21
    group = next(iter(Run(RUN).scores.values()))
    part = f"scores/{group.folder.name}/00001.parquet"
    foreign = f"scores/{group.folder.name}/99999.parquet"
    s3.pipe_file(f"pool/runs/mine/{part}", b"damaged")
    s3.pipe_file(f"pool/runs/mine/{foreign}", b"foreign")
    machine("a")
    found = api.doctor(RUN)
    assert {(one.kind, one.path) for one in found.findings} >= {("damage", part), ("foreign", foreign)}
    assert {part, foreign} <= set(at_store(s3))
    assert api.doctor(RUN, repair=True).exit_code == 1
    assert not {part, foreign} & set(at_store(s3))
    score(pool)
    score(pool, tmp_path / "local")
    machine("b")
    assert api.doctor(RUN).exit_code == 0
    assert parts_at_store(s3) == parts_of(tmp_path / "local")


def test_rows_that_a_dead_machine_had_done_of_a_shard_are_taken_up(
    pool: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tamis.store import unfinished

    monkeypatch.setattr(unfinished, "EVERY_SECONDS", 0.0)
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    words = ["score", str(pool), "--run", RUN, "--signals", ",".join(SCORERS), "-q", "--batch-size", "2"]
    at_first = partial(die_at_file, 8)
    killed = command(*words, env=environment(), before=partial(_hurried, at_first))
    assert killed.returncode == -signal.SIGKILL
    assert [name for name in at_store(s3) if name.startswith("unfinished/00000/")]
    machine("b")
    seen: list[int] = []
    real = unfinished.Unfinished._restore

    def restore(self: unfinished.Unfinished) -> None:
        real(self)
        seen.append(len(self.uids))

    monkeypatch.setattr(unfinished.Unfinished, "_restore", restore)
    score(pool, batch_size=2)
    assert max(seen) > 0
    assert not [name for name in at_store(s3) if name.startswith("unfinished/")]


def _hurried(then: Callable[[], None]) -> None:
    from tamis.store import unfinished

    unfinished.EVERY_SECONDS = 0.0
    then()


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("http://host/run", "a run cannot lie at http://"),
        ("memory://run", "a run cannot lie at memory://"),
        ("simplecache::s3://pool/run", "behind a chain of URLs"),
        (Path("s3://pool/run"), "a Path has one slash where a URL has two"),
        ("s3://nobucket/run", "make the bucket first, or mend the URL"),
    ],
)
def test_a_url_at_which_no_run_can_lie_is_refused(run: str | Path, why: str, pool: Path) -> None:
    with pytest.raises(RunError, match=why):
        score(pool, run)


def test_a_url_without_a_run_is_none() -> None:
    with pytest.raises(RunError, match=r"^s3://pool/runs/mine is not a run folder: it holds no run.json"):
        Run(RUN)


def test_a_file_url_is_a_path(pool: Path, tmp_path: Path) -> None:
    assert score(pool, f"file://{tmp_path}/run").path == tmp_path / "run"


def test_secrets_of_a_url_are_in_no_file_and_no_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    found = mirror._made("ftp://me:hush@127.0.0.1/runs/mine")
    assert named(found.folder) == "ftp://127.0.0.1/runs/mine"
    assert "hush" not in caplog.text + str(found.folder)
    assert "hush" not in "".join(path.read_text() for path in found.folder.rglob("*.json"))


def test_a_mirror_by_its_own_path_is_the_run_and_one_of_another_cache_is_refused(
    pool: Path, machine: Callable[[str], None]
) -> None:
    folder = score(pool).path
    assert named(Run(folder).path) == RUN
    machine("b")
    with pytest.raises(RunError, match=f"mirrors the run {RUN}: name that URL"):
        Run(folder)


def test_a_large_object_comes_in_pieces_and_one_that_is_replaced_meanwhile_is_an_error(
    tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_PIECE", 100)
    store = objects.Objects("s3://pool/some")
    data = bytes(range(250)) * 5
    (tmp_path / "a").write_bytes(data)
    entry = store.put("a b/ü", tmp_path / "a")
    assert store.look("a b/ü") == entry
    assert store.below("") == {"a b/ü": entry}
    store.fetch("a b/ü", entry, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == data
    s3.pipe_file("pool/some/a b/ü", bytes(reversed(data)))
    with pytest.raises(RunError, match="has changed while it was read"):
        store.fetch("a b/ü", entry, tmp_path / "b")


def test_a_run_folder_that_was_copied_to_a_url_is_a_run_there(
    pool: Path, tmp_path: Path, s3: Any, machine: Callable[[str], None]
) -> None:
    local = score(pool, tmp_path / "local")
    for path in local.path.rglob("*"):
        if path.is_file():
            s3.pipe_file(f"pool/runs/mine/{path.relative_to(local.path)}", path.read_bytes())
    s3.pipe_file("pool/runs/mine/claims/00000", b"a claim that was copied too")
    assert score(pool).to_arrow().equals(local.to_arrow())
    write_pool(pool, 1, 7, 3)
    assert len(score(pool)) == 28


@pytest.mark.parametrize("name", ["../evil", "index/../../evil", "scores//evil", "./evil", "/evil"])
def test_an_object_whose_name_leads_out_of_the_folder_is_left_alone(
    name: str, pool: Path, s3: Any, machine: Callable[[str], None], tmp_path: Path
) -> None:
    score(pool)
    s3.call_s3("put_object", Bucket="pool", Key=f"runs/mine/{name}", Body=b"evil")
    machine("b")
    assert Run(run_folder(RUN)).statuses == {"ok": 21}
    assert [path for path in tmp_path.rglob("*evil*") if path.read_bytes() == b"evil"] == []
    assert not objects.stays_inside(name)
