"""The Ray engine makes the files of the local one and survives its actors. One Ray for the module: it takes seconds."""

import importlib.util
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray_cluster
from command_line import Done, Tamis
from factories import parts_of, write_pool, write_run
from odd_signals import Brightness, Faulty, FaultyBeside
from processes import family, named
from s3_fixtures import parts_at_store

import tamis
from tamis.core.errors import DependencyError, SignalError, StopError, install
from tamis.engines import ray as engine_of_ray
from tamis.engines.ray import Ray
from tamis.runs import Run, regroup
from tamis.runs.subset import Subset

#: Ray leaves connections open when a program takes its leave.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("default::DeprecationWarning"),  # of the libraries of the server that speaks S3
]

BAD = "000010003"  # a sample of the second shard


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, int]]:
    """The address of a Ray of two cores, and its process."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'tamis[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.SETTINGS.items():
            patch.setenv(name, value)
        with ray_cluster.cluster() as (address, process):
            yield address, process.pid


@pytest.fixture
def cluster(head: tuple[str, int]) -> str:
    """The address of a Ray of two cores."""
    return head[0]


def score(pool: Path, run: Path, *signals: Any, **options: Any) -> Run:
    return tamis.score(pool, run=run, signals=list(signals), quiet=True, device="cpu", **options)


def test_two_actors_make_what_one_worker_makes(cluster: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=7, rows=7)
    score(pool, tmp_path / "local", "caption_length", Brightness())
    run = score(pool, tmp_path / "ray", "caption_length", Brightness(), engine=Ray(cluster, workers=2))
    assert parts_of(run.path) == parts_of(tmp_path / "local")
    assert len(parts_of(run.path)) == 21
    assert (run.path / "events.jsonl").read_text().count('"shard done"') == 7
    assert list((run.path / "claims").iterdir()) == []


def test_actors_score_within_a_subset(cluster: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=3, rows=7)
    whole = score(pool, tmp_path / "whole", "caption_length", Brightness())
    run = score(pool, tmp_path / "run", "caption_length", engine=Ray(cluster, workers=2))
    rows = np.arange(len(run)) % 2 == 0
    done = score(pool, run.path, Brightness(), engine=Ray(cluster, workers=2), within=Subset(run=run, keep=rows))
    np.testing.assert_array_equal(done["brightness"], np.where(rows, whole["brightness"], np.nan))
    score(pool, run.path, Brightness(), engine=Ray(cluster, workers=2))
    assert parts_of(run.path) == parts_of(whole.path)


CAPTIONS = {"score": "a", "other": "b", "text": "word"}
RECIPES: list[list[Any]] = [
    [{"at_least": {"score": "a", "value": 0.2}}, {"top_fraction": {"score": "minmax(a) + zscore(b)", "fraction": 0.3}}],
    [{"equals": {"score": "word", "value": ["en", "de"], "missing": "drop"}}, {"random_fraction": {"fraction": 0.5}}],
    [{"top_n": {"score": "rank(a) * b", "n": 40, "per": "word", "missing": "drop"}}],
    [
        {"balance": {"entries": "word", "t": 50, "missing": "drop"}},
        {"balance": {"entries": "word", "tail": 0.9, "per": "word"}},
    ],
    [{"semdedup": {"epsilon": 0.3, "clusters": 9, "missing": "drop"}}],
    [{"semdedup": {"fraction": 0.5, "clusters": 9, "missing": "drop"}}, {"density": {"fraction": 0.5, "clusters": 5}}],
    [{"d2": {"score": "a", "fraction": 0.5, "k": 3, "clusters": 9, "missing": "drop"}}],
    [{"clipcov": {"fraction": 0.5, "per": "word", "terms": ["cov", "class_reg", "inter"], "missing": "drop"}}],
    [{"norm_sim_d": {"fraction": 0.5, "rounds": 3, "missing": "drop"}}, {"sample": {"score": "a", "fraction": 1.5}}],
    [{"distinct": {"hash": "hash", "colours": None, "lightness": None}}, {"choose_caption": CAPTIONS}],
    [{"all_of": [[{"top_fraction": {"score": "tied", "fraction": 0.5}}], [{"at_most": {"score": "a", "value": 0.8}}]]}],
]


@pytest.mark.parametrize("steps", RECIPES)
def test_actors_select_the_rows_that_threads_select(
    cluster: str, steps: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"a": rng.random(900), "b": rng.random(900), "tied": rng.integers(0, 3, 900)}
    columns["word"] = [[None, "en", "de", "fr"][n] for n in rng.integers(0, 4, 900)]
    columns["hash"] = [f"{n:016x}" for n in rng.integers(0, 2**12, 900)]
    images, texts = (rng.normal(size=(900, 8)) + 3 * np.eye(8)[rng.integers(0, 8, 900)] for _ in range(2))
    images[5::90] = np.nan
    embeddings = {"image_embedding": images, "text_embedding": texts}
    run = write_run(tmp_path / "run", columns, shards=7, embeddings=embeddings)
    monkeypatch.setattr(regroup, "_BUCKET", 5_000)
    here = tamis.select(run, {"select": steps})
    there = tamis.select(run, {"select": steps}, engine=Ray(cluster, workers=2))
    assert (there.funnel, there.kept) == (here.funnel, here.kept)
    np.testing.assert_array_equal(there.keep, here.keep)


def test_workers_that_are_killed_while_they_deal_rows_or_work_on_groups_change_nothing(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    vectors = {"image_embedding": rng.normal(size=(900, 8))}
    run = write_run(tmp_path / "run", {"a": rng.random(900)}, shards=7, embeddings=vectors)
    label = rng.integers(-1, 9, 900).astype(np.int32)
    monkeypatch.setattr(regroup, "_BUCKET", 5_000)
    monkeypatch.setattr(engine_of_ray, "_ROWS_AT_ONCE", 200)

    def die_once(name: str) -> None:
        if not (tmp_path / name).exists():
            (tmp_path / name).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def found(killed: bool) -> list[Any]:
        def score(columns: Any, rows: int) -> Any:
            _ = die_once(f"dealt-{columns['a'][0]}") if killed else None
            return columns["a"].astype(float)

        def work(group: int, places: slice, rows: Any, given: Any) -> Any:
            _ = die_once(f"group-{group}") if killed and group % 3 == 0 else None
            return group, places, rows.tobytes()

        dealt = regroup.regroup(table, ["image_embedding"], label, 9, score=(["a"], score))
        return list(dealt.scan(work))

    table = run.table()
    expected = found(False)
    with Ray(cluster, workers=2).cluster_reader() as table.run_on_cluster:
        assert found(True) == expected
    assert [len(list(tmp_path.glob(f"{what}-*"))) for what in ("dealt", "group")] == [7, 3]


def test_a_group_that_its_worker_has_no_memory_for_says_what_to_do(cluster: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"a": [0.1, 0.2]}, embeddings={"image_embedding": np.ones((2, 4))})

    def full(columns: Any, rows: int) -> Any:
        raise MemoryError("no memory")

    table, label = run.table(), np.zeros(2, np.int32)
    with Ray(cluster, workers=2).cluster_reader() as table.run_on_cluster:
        dealt = regroup.regroup(table, ["image_embedding"], label, 1, score=(["a"], full))
        with pytest.raises(StopError, match=r"Ray failed: a worker died, probably out of memory: give workers more"):
            list(dealt.scan(lambda *some: some[0]))


def test_the_command_says_of_a_cluster_what_it_says_of_threads(cluster: str, tamis: Tamis, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"a": [0.1, None, 0.3]})
    Path("one.yaml").write_text("select:\n- at_least: {score: a, value: 0.2}\n")
    command, ray = (
        ("select", run.path, "--recipe", "one.yaml", "--overwrite"),
        ("--engine", "ray", "--address", cluster),
    )

    def same(*settings: str) -> Done:
        here, there = (tamis(*command, "--out", "x.parquet", *settings, *more) for more in ((), ray))
        assert here == there
        return here

    assert same("--set", "select.at_least.missing=drop").code == 0
    assert "1 of 3 rows have no value for 'a'" in same().err
    (part,) = run.path.glob("scores/*/00001.parquet")
    part.write_bytes(part.read_bytes()[:-40])
    assert "00001" in same("--set", "select.at_least.missing=drop").err


URL = "s3://pool/runs/mine"


@pytest.fixture
def at_store(cluster: str, s3: Any, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store that the cluster's nodes and this machine reach, with a cache of its own each."""
    import ray

    monkeypatch.setenv("TAMIS_CACHE", str(tmp_path / "driver"))
    ours = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    variables = {"env_vars": {**ours, "TAMIS_CACHE": str(tmp_path / "nodes")}}
    ray.init(address=cluster, runtime_env=variables, log_to_driver=False, configure_logging=False)
    yield s3
    ray.shutdown()


def test_actors_upload_the_parts_of_a_run_at_a_url_themselves(tmp_path: Path, at_store: Any) -> None:
    pool = write_pool(tmp_path / "pool", shards=7, rows=7)
    local = score(pool, tmp_path / "local", "caption_length", Brightness())
    run = score(pool, URL, "caption_length", Brightness(), engine=Ray(workers=2))  # type: ignore[arg-type]
    assert parts_at_store(at_store) == parts_of(tmp_path / "local")
    copies = {name: len(list((tmp_path / name).glob("runs/**/*.parquet"))) for name in ("driver", "nodes")}
    assert copies == {"driver": 1, "nodes": 21}  # who uploads keeps a copy: the list of shards, and all parts
    assert not at_store.glob("pool/runs/mine/claims/*")
    assert run.to_arrow().equals(local.to_arrow())


def test_an_actor_with_a_gpu_takes_its_share_of_what_its_node_has(at_store: Any) -> None:
    import ray

    def there(machine: int) -> tuple[int, int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_of_ray, "cores", lambda: machine)
            return engine_of_ray.share_of_node()

    task = ray.remote(num_gpus=1, num_cpus=1)(there)
    assert ray.get([task.remote(1), task.remote(16)]) == [(1, 2), (1, 2)]  # the node has two cores and two GPUs


@pytest.mark.attack
def test_workers_in_an_actor_feed_its_device(cluster: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=7, rows=7)
    faulty = FaultyBeside(key=BAD, how="kill")
    engine = Ray(cluster, workers=1, one_process_per_device=True)
    score(pool, tmp_path / "local", "caption_length", Brightness())
    run = score(pool, tmp_path / "ray", "caption_length", Brightness(), engine=engine, threads=2)
    assert parts_of(run.path) == parts_of(tmp_path / "local")
    run = score(pool, tmp_path / "ray", "caption_length", Brightness(), faulty, engine=engine, threads=2)
    assert list(run.failures) == ["00001"]
    assert run.failures["00001"].startswith("the worker process died (killed by signal 9)")
    assert run.scores["faulty_beside"].shards == {f"0000{number}" for number in (0, 2, 3, 4, 5, 6)}


@pytest.mark.attack
def test_a_shard_that_kills_its_actors_is_set_aside_and_named(cluster: str, pool: Path, tmp_path: Path) -> None:
    signal = Faulty(key=BAD, how="kill", unless=str(tmp_path / "mended"))
    run = score(pool, tmp_path / "run", signal, engine=Ray(cluster, workers=1))
    assert list(run.failures) == ["00001"]
    assert run.failures["00001"].startswith("two workers died on this shard")
    assert run.scores["faulty"].shards == {"00000", "00002"}  # nor does the one that waited behind it pay for it
    (tmp_path / "mended").touch()
    mended = score(pool, tmp_path / "run", signal, workers=1)  # local takes over
    assert (mended.failures, mended.to_numpy("faulty").tolist()) == ({}, [1.0] * 21)


@pytest.mark.attack
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds connections by Linux's /proc")
def test_an_actor_that_cannot_be_reached_for_a_moment_costs_no_shard(head: tuple[str, int], tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=24, rows=20)
    run, broken = tmp_path / "run", list[int]()

    def breaks() -> None:
        for shards in (2, 6, 10):
            while len(list((run / "index").glob("[0-9]*.parquet"))) < shards:
                time.sleep(0.01)
            for actor in named(family(head[1]), b"ray::Worker"):
                for _ in range(500):  # it may be about to connect again
                    if count := ray_cluster.disconnect(actor):
                        break
                    time.sleep(0.01)
                broken.append(count)

    thread = threading.Thread(target=breaks)
    thread.start()
    done = score(pool, run, "caption_length", Brightness(), engine=Ray(head[0], workers=1))
    thread.join()
    assert min(broken) >= 1
    assert (done.failures, len(done.to_numpy("words"))) == ({}, 480)


@pytest.mark.attack
def test_a_signal_that_raises_costs_its_shard_and_one_that_breaks_its_promise_stops_the_run(
    cluster: str, pool: Path, tmp_path: Path
) -> None:
    run = score(pool, tmp_path / "run", "caption_length", Faulty(key=BAD), engine=Ray(cluster, workers=2))
    assert run.failures == {"00001": "faulty: ZeroDivisionError: a fault of the signal's"}
    assert len(run.to_numpy("words")) == 21
    with pytest.raises(SignalError, match="declares the column 'faulty' and does not emit it"):
        score(pool, tmp_path / "other", Faulty(key=BAD, how="lacking"), engine=Ray(cluster, workers=1))


def test_ray_that_is_not_installed_is_an_error_with_its_extra(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match=re.escape(f"the package 'ray' is not installed; run: {install('ray')}")):
        score(pool, tmp_path / "run", "caption_length", engine=Ray())
