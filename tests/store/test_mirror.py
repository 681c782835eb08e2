"""Runs at URLs: on a real S3 server, with mirrors in several caches that stand for as many machines."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
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
from tamis import api, storage
from tamis.data import Column
from tamis.errors import RunError
from tamis.run.local import Place
from tamis.run.static import Static
from tamis.store import Run, claims, manifest, mirror, parts
from tamis.store.atomic import write_json
from tamis.store.claims import being_done, claimed
from tamis.store.mirror import named, run_folder

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

    be("a")
    return be


def names_at_store(s3: Any, start: str = "pool/runs/mine") -> list[str]:
    """Returns the names of all objects of the run, as paths in there."""
    s3.invalidate_cache()
    return [name.removeprefix(f"{start}/") for name in sorted(s3.find(start))]


def at_store(s3: Any, names: Iterable[str] | None = None) -> dict[str, bytes]:
    """Returns objects of the run, or all of them."""
    return {name: s3.cat_file(f"pool/runs/mine/{name}") for name in (names_at_store(s3) if names is None else names)}


def part_names_at_store(s3: Any) -> list[str]:
    kinds = ("index/", "scores/", "embeddings/", "captions/", "texts/")
    return [name for name in names_at_store(s3) if name.startswith(kinds) and "json" not in name]


def parts_at_store(s3: Any) -> dict[str, bytes]:
    return at_store(s3, part_names_at_store(s3))


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
    others = set(names_at_store(s3)) - set(part_names_at_store(s3))
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
        assert f"{RUN}: 3 shards, 6 parts read to their last byte; everything" in tamis("check", RUN).out
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
        uids = parts.uids_in(run / "index" / f"{shard}.parquet")
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
    assert not [name for name in names_at_store(s3) if name.startswith("claims/")]
    events = at_store(s3, [name for name in names_at_store(s3) if name.startswith("events-rank")])
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
    assert api.check(RUN).exit_code == 0


def test_a_shard_is_one_machine_s_until_its_lease_has_ended(
    pool: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    monkeypatch.setattr(claims, "_RENEWALS", 0.1)  # it sleeps
    slept = score(pool).path
    with claimed(slept, "00000") as mine:
        assert mine
        machine("b")
        monkeypatch.setattr(claims, "NUMBERED_IN", "another machine")
        awake = run_folder(RUN)
        assert being_done(awake, ["00000", "00001"]) == {"00000"}
        with claimed(awake, "00000") as free:
            assert not free
        time.sleep(2.1)
        assert being_done(awake, ["00000"]) == set()
        with claimed(awake, "00000") as free:
            assert free
        monkeypatch.undo()
        machine("a")
    assert not [name for name in names_at_store(s3) if name.startswith("claims/")]


def test_a_command_waits_for_the_one_that_prepares_the_run_elsewhere(pool: Path, s3: Any) -> None:
    score(pool)
    s3.pipe_file("pool/runs/mine/lock", json.dumps({"process": 7, "doing": claims.PREPARES}).encode())
    threading.Timer(1.0, lambda: s3.rm_file("pool/runs/mine/lock")).start()
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
    monkeypatch.setattr(storage, "CONDITIONAL", ())
    score(pool, engine=Static(Place(0, 2)))
    indexed = {name for name in names_at_store(s3) if name.startswith("index/")}
    assert indexed == {"index/00000.parquet", "index/00002.parquet"}
    assert "do their own shares and take over none" in caplog.text
    machine("b")
    assert len(score(pool, engine=Static(Place(1, 2)))) == 21


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
        seen = [name for name in part_names_at_store(s3) if name.startswith("index/")]
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
    s3.pipe_file(f"pool/runs/mine/{foreign}", b"left over")
    machine("a")
    found = api.check(RUN)
    assert {(one.kind, one.path) for one in found.findings} >= {("damaged", part), ("left over", foreign)}
    assert {part, foreign} <= set(names_at_store(s3))
    assert api.check(RUN, delete=True).exit_code == 1
    assert not {part, foreign} & set(names_at_store(s3))
    score(pool)
    score(pool, tmp_path / "local")
    machine("b")
    assert api.check(RUN).exit_code == 0
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
    assert [name for name in names_at_store(s3) if name.startswith("unfinished/00000/")]
    machine("b")
    seen: list[int] = []
    real = unfinished.Unfinished._restore

    def restore(self: unfinished.Unfinished) -> None:
        real(self)
        seen.append(len(self.uids))

    monkeypatch.setattr(unfinished.Unfinished, "_restore", restore)
    score(pool, batch_size=2)
    assert max(seen) > 0
    assert not [name for name in names_at_store(s3) if name.startswith("unfinished/")]


def _hurried(then: Callable[[], None]) -> None:
    from tamis.store import unfinished

    unfinished.EVERY_SECONDS = 0.0
    then()


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("http://host/run", "a run cannot lie at http://"),
        ("memory://run", "a run cannot lie at memory://"),
        ("simplecache::s3://me:hush@pool/run", r"^simplecache::s3://pool/run: .* behind a chain of URLs"),
        (Path("s3://me:hush@pool/run"), "^s3:/pool/run: a Path has one slash where a URL has two"),
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
    monkeypatch.setattr(storage, "_PIECE", 100)
    store = storage.Remote("s3://pool/some")
    data = bytes(range(250)) * 5
    (tmp_path / "a").write_bytes(data)
    entry = store.upload("a b/ü", tmp_path / "a")
    assert store.look("a b/ü") == entry
    assert store.list("") == {"a b/ü": entry}
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


def test_two_machines_that_extend_a_run_at_once_lose_no_shard(
    tmp_path: Path, s3: Any, machine: Callable[[str], None]
) -> None:
    """What a machine has brought down moments before another one changed it is not believed."""
    pools = [write_pool(tmp_path / name, 1, 4, first) for name, first in (("one", 0), ("two", 5), ("three", 8))]
    score(pools[0])
    machine("b")
    run_folder(RUN)  # its command has begun
    machine("a")
    score(pools[1], grow=True)
    machine("b")
    assert list(score(pools[2], grow=True).urls) == ["00000", "00005", "00008"]
    assert len(Run(RUN)) == 12


@pytest.mark.parametrize("place", ["here", "there"])
def test_who_has_opened_a_run_just_before_it_grew_reads_the_longer_list(
    place: str, pool: Path, tmp_path: Path, machine: Callable[[str], None]
) -> None:
    where = RUN if place == "there" else tmp_path / "local"
    score(pool, where)
    machine("b")
    opened = Run(where)
    machine("a")
    score(write_pool(pool, 1, 7, 3), where)
    machine("b")
    mirror.look_again(opened.path, anew=True)
    assert len(opened.urls) == 4


def test_a_clock_that_was_set_back_keeps_no_file_that_the_store_has_no_more(
    pool: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = score(pool)
    (part,) = [name for name in part_names_at_store(s3) if name.startswith("scores/image_size") and "00001" in name]
    assert (run.path / part).exists()
    s3.rm_file(f"pool/runs/mine/{part}")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600.0)
    run = Run(RUN)
    assert not (run.path / part).exists()
    assert len(run.scores["image_size"].shards) == 2


def test_small_files_that_have_changed_are_replaced_and_never_away(
    pool: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    score(pool)
    machine("b")
    here = Run(RUN).path
    machine("a")
    score(write_pool(pool, 1, 7, 3))
    machine("b")
    seen, real = [], mirror.Mirror.fetch

    def fetch(self: mirror.Mirror, name: str) -> bool:
        seen.append((name, (here / name).is_file()))
        return real(self, name)

    monkeypatch.setattr(mirror.Mirror, "fetch", fetch)
    assert len(Run(RUN).urls) == 4
    assert {("run.json", True), ("shards.parquet", True)} <= set(seen)


def test_what_is_no_run_s_is_never_brought_down_nor_removed(
    pool: Path, s3: Any, machine: Callable[[str], None]
) -> None:
    for name in ("big.tar", "data/big.tar", "other/index/big.parquet", "index.html"):
        s3.pipe_file(f"pool/{name}", b"big")
    with pytest.raises(RunError, match="s3://pool is not a run folder"):
        Run("s3://pool")
    assert len(score(pool, "s3://pool/")) == 21
    machine("b")
    assert api.check("s3://pool").exit_code == 0
    run = Run("s3://pool")
    assert len(run) == 21
    assert [path for path in run.path.rglob("*") if path.is_file() and path.read_bytes() == b"big"] == []
    assert {"big.tar", "data/big.tar", "other/index/big.parquet", "index.html"} <= set(names_at_store(s3, "pool"))


def test_what_a_killed_process_left_of_a_fetch_goes_and_objects_that_are_folders_too_are_left_alone(
    pool: Path, s3: Any, machine: Callable[[str], None]
) -> None:
    run = score(pool).path
    (run / "index" / ".00001.parquet.0badcafe-1-0badcafe-0badcafe.tmp").write_bytes(b"half")
    os.utime(run / "index" / ".00001.parquet.0badcafe-1-0badcafe-0badcafe.tmp", (0, 0))
    (folder,) = {one.folder.name for one in Run(RUN).scores.values() if one.label == "image_size"}
    s3.pipe_file(f"pool/runs/mine/scores/{folder}", b"no folder")
    mirror.look_again(run, anew=True)
    assert len(Run(RUN)) == 21
    assert list(run.rglob("*.tmp")) == []


def test_what_was_kept_of_a_shard_goes_at_the_store_too_when_worker_processes_are_done_with_it(
    pool: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    words = ["score", str(pool), "--run", RUN, "--signals", ",".join(SCORERS), "-q", "--batch-size", "2"]
    command(*words, env=environment(), before=partial(_hurried, partial(die_at_file, 8)))
    assert [name for name in names_at_store(s3) if name.startswith("unfinished/")]
    machine("b")
    score(pool, batch_size=2, workers=2)
    assert [name for name in names_at_store(s3) if name.startswith("unfinished/")] == []


def test_a_mirror_of_a_run_that_was_removed_and_begun_anew_has_nothing_of_the_old_one(
    pool: Path, s3: Any, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_ROUNDED_SECONDS", 0.0)
    run = score(pool)
    s3.pipe_file("pool/runs/mine/embeddings/clip_image-1111/00000.npy", b"old")
    assert list(Run(RUN).embeddings) == ["clip_image-1111"]
    s3.rm("pool/runs/mine", recursive=True)
    assert len(score(pool)) == 21
    assert dict(Run(RUN).embeddings) == {}  # else its name would stand for two
    assert len((run.path / "events.jsonl").read_text().splitlines()) == 3


def test_a_file_of_the_mirror_that_a_power_cut_emptied_is_brought_anew(pool: Path) -> None:
    run = score(pool)
    for name in ("run.json", "index/00001.parquet"):
        os.truncate(run.path / name, 0)
    assert len(Run(RUN).to_arrow()) == 21


def test_a_mirror_that_goes_while_a_command_works_in_it_is_an_error_and_no_folder_of_its_own(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = score(pool).path
    (run / ".mirror" / "about.json").unlink()
    mirror._known.clear()  # as in a worker process that begins now
    with pytest.raises(RunError, match="mirrors no run any more: leave mirrors alone"):
        write_json(run / "failures" / "00001.json", {})
    monkeypatch.setenv("TAMIS_CACHE", "cache")
    with pytest.raises(RunError, match="is 'cache', expected a whole path"):
        score(pool)


def test_two_that_create_one_object_at_once_ask_again_where_the_store_says_so(
    s3: Any, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    onward, conflicts = passed_on(s3_server), []

    def conflicting(request: Request) -> Answer:
        if "If-None-Match" in request.headers and not conflicts:
            conflicts.append(request.path)
            return Answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
        return onward(request)

    with behind(conflicting, monkeypatch):
        assert storage.Remote("s3://pool/some").put("one", b"mine", if_absent=True)
    assert conflicts


def test_a_log_that_grows_while_it_is_put_up_is_put_up_again(
    tmp_path: Path, s3: Any, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    onward, log = passed_on(s3_server), tmp_path / "events.jsonl"
    log.write_text("one\n")

    def growing(request: Request) -> Answer:
        if request.method == "PUT" and log.read_text() == "one\n":
            log.write_text("one\ntwo\n")
            return Answer(503)
        return onward(request)

    with behind(growing, monkeypatch):
        assert storage.Remote("s3://pool/some").upload("events.jsonl", log).size == 8


def test_messages_name_files_of_a_run_at_a_url_by_their_url(pool: Path) -> None:
    run = score(pool)
    assert named(run.index_path("00001")) == f"{RUN}/index/00001.parquet"
    run.index_path("00001").write_bytes(b"damaged")
    with pytest.raises(RunError, match=f"^{RUN}/index/00001.parquet is damaged.*; delete it and repeat"):
        run.index("00001")


def test_names_of_runs_and_shards_may_be_odd(tmp_path: Path, s3: Any, machine: Callable[[str], None]) -> None:
    pool = write_pool(tmp_path / "pool", 6, 3)
    for path, name in zip(sorted(pool.glob("*.tar")), ("a b", "ü東", "c%20d", "e#f", "g?h=1", "i+j&k"), strict=True):
        path.rename(pool / f"{name}.tar")
    local, url = score(pool, tmp_path / "local"), "s3://pool/runs/my run #1%20?ü+&"
    score(pool, url)
    machine("b")
    assert Run(url).to_arrow().equals(local.to_arrow())
    assert Run(f"{url}/").to_arrow().equals(local.to_arrow())


@pytest.mark.parametrize("name", ["../evil", "index/../../evil", "scores//evil", "./evil", "/evil"])
def test_an_object_whose_name_leads_out_of_the_folder_is_left_alone(
    name: str, pool: Path, s3: Any, machine: Callable[[str], None], tmp_path: Path
) -> None:
    score(pool)
    s3.call_s3("put_object", Bucket="pool", Key=f"runs/mine/{name}", Body=b"evil")
    machine("b")
    assert Run(run_folder(RUN)).statuses == {"ok": 21}
    assert [path for path in tmp_path.rglob("*evil*") if path.read_bytes() == b"evil"] == []
    assert not storage.stays_inside(name)
