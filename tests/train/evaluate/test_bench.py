"""Ranking recipes by models trained on what each keeps: equal samples, the right pairs, intervals, resumption."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import WORDS, pair, write_tar
from faulty_server import Answer, FaultyServer, Request, files
from tiny_models import clip_folder, tokenizer_folder
from transformers import GPT2Config, GPT2LMHeadModel

import tamis
from tamis.core.errors import DiskFullError, PoolError, RecipeError, RunError
from tamis.core.files.checked import with_hash
from tamis.core.types import Device
from tamis.runs import Run
from tamis.runs.claims import lock_run
from tamis.runs.subset import Subset
from tamis.train.clip import Trained, train_clip
from tamis.train.evaluate import cells
from tamis.train.evaluate.bench import Bench, compare, gain, shares_of_kinds, summarise, truth_of
from tamis.train.evaluate.cells import CellResult, identity
from tamis.train.evaluate.tasks import find_tasks
from tamis.train.scales import CaptionTraining, ClipTraining

DEVICE = Device(kind="cpu", threads=1, batch_size=8)
Trainings = list[tuple[Subset, Trained]]
KINDS = ("visual", "text_only", "visual", "mismatched")  # of the rows of a shard, in turn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two shards of eight pairs whose true kinds are known."""
    folder = tmp_path_factory.mktemp("bench-pool")
    for shard in range(2):
        samples = [
            (f"{shard:05d}{row:04d}", pair(shard * 1000 + row, truth=KINDS[row % len(KINDS)])) for row in range(8)
        ]
        write_tar(folder / "pool" / f"{shard:05d}.tar", samples)
    spec = tamis.PoolSpec(path=str(folder / "pool"), fields=("truth",))
    return tamis.score(spec, run=folder / "run", signals=["caption_length"], quiet=True)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A retrieval task of five images."""
    folder = tmp_path_factory.mktemp("bench-tasks") / "found"
    folder.mkdir()
    for number in range(5):
        files = pair(5000 + number)
        (folder / f"{number}.jpg").write_bytes(files["jpg"])
        (folder / f"{number}.txt").write_bytes(files["txt"])
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ClipTraining:
    """Two steps of four pairs on a tiny checkpoint."""
    folder = clip_folder(tmp_path_factory.mktemp("tiny") / "clip")
    return ClipTraining(model=str(folder), samples=8, batch=4, learning_rate=1e-3, warmup=1)


def chosen(run: Run, name: str, rows: list[int], times: list[int] | None = None) -> Subset:
    keep = np.zeros(len(run), bool)
    keep[rows] = True
    many = None
    if times is not None:
        many = np.zeros(len(run), np.uint16)
        many[rows] = times
    return Subset(run=run, keep=keep, times=many, recipe={"name": name})


@pytest.fixture(scope="module")
def subsets(run: Run) -> list[Subset]:
    """Everything, the first shard, and three pairs of which one stands twice."""
    return [
        chosen(run, "no-filter", list(range(16))),
        chosen(run, "half", list(range(8))),
        chosen(run, "few", [1, 9, 14], [1, 2, 1]),
    ]


@pytest.fixture(scope="module")
def compared(tasks: Path, tiny: ClipTraining) -> Callable[..., Bench]:
    """Compares subsets with these tasks and this training."""
    return partial(compare, tasks=tasks, training=tiny, device=DEVICE)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    """What is trained, and what came of it."""
    seen: Trainings = []

    def noted(source: Subset, **settings: Any) -> Trained:
        done = train_clip(source, **settings)
        seen.append((source, done))
        return done

    monkeypatch.setattr(cells, "train_clip", noted)
    return seen


@pytest.fixture(scope="module")
def bench(subsets: list[Subset], tmp_path_factory: pytest.TempPathFactory, compared: Any) -> tuple[Bench, Path]:
    """A bench that is done, and its folder."""
    out = tmp_path_factory.mktemp("bench-done")
    return compared(subsets, out=out), out


def result(score: float) -> CellResult:
    return CellResult(
        scores={"found": score}, likelihoods={"found": -1.0}, samples=100, training_seconds=2.0, evaluation_seconds=0.5
    )


def test_every_recipe_sees_as_many_samples_and_only_its_own_pairs(
    subsets: list[Subset], tmp_path: Path, trainings: Trainings, compared: Any
) -> None:
    done = compared(subsets, out=tmp_path, seeds=2)
    assert done.failed == {}
    assert {trained.samples for _, trained in trainings} == {8}
    assert [(source.name, trained.pairs) for source, trained in trainings] == 2 * [
        ("no-filter", 16), ("half", 8), ("few", 3),
    ]  # fmt: skip
    for source, _ in trainings:
        mine = next(subset for subset in subsets if subset.name == source.name)
        assert np.array_equal(source.rows(), mine.rows())
    found = {one.name: one for one in done.contenders}
    assert {name: (one.kept, one.usable, one.epochs) for name, one in found.items()} == {
        "no-filter": (16, 16, 0.5), "half": (8, 8, 1.0), "few": (3, 3, 8 / 3),
    }  # fmt: skip


def test_a_bench_writes_its_result_and_leaves_no_models(bench: tuple[Bench, Path]) -> None:
    done, out = bench
    facts = json.loads((out / "bench.json").read_text())
    assert facts == with_hash(json.loads(json.dumps(done.facts())))
    assert (facts["kind"], facts["format"], facts["seeds"]) == ("tamis bench", 1, [0, 1, 2])
    results = [json.loads(path.read_text()) for path in (out / "cells").glob("*.json")]
    assert len(results) == 9
    assert {(*cell["scores"],) == (*cell["likelihoods"],) == ("found",) for cell in results} == {True}
    assert max(cell["likelihoods"]["found"] for cell in results) < 0
    for one in done.contenders:
        seconds = [cell["training_seconds"] for cell in results if cell["name"].startswith(f"{one.name}, seed")]
        assert one.training_seconds == pytest.approx(np.mean(seconds))
    assert list((out / "models").iterdir()) == []


def test_what_is_done_is_not_done_again_and_more_seeds_train_only_those(
    bench: tuple[Bench, Path], subsets: list[Subset], tmp_path: Path, trainings: Trainings, compared: Any
) -> None:
    done, out = bench
    assert compared(subsets, out=out) == done
    assert trainings == []
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    more = compared(subsets[2:], out=tmp_path, seeds=4)
    assert (len(trainings), more.seeds) == (1, (0, 1, 2, 3))
    assert list(more.contenders[0].scores) == [0, 1, 2, 3]


def test_an_error_fails_its_cell_and_a_full_disk_stops_everything(
    subsets: list[Subset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: Any
) -> None:
    error: Exception = RunError("the pool is gone")

    def broken(source: Subset, **settings: Any) -> Trained:
        if source.name == "half":
            raise error
        return train_clip(source, **settings)

    monkeypatch.setattr(cells, "train_clip", broken)
    done = compared(subsets, out=tmp_path, seeds=2)
    assert done.failed == {"half, seed 0": "the pool is gone", "half, seed 1": "the pool is gone"}
    last = done.contenders[-1]
    assert (last.name, last.score, last.gain, last.scores) == ("half", None, None, {})
    assert done.rows_of_table()[-1]["score"] == "–"
    error = DiskFullError("no space is left")
    with pytest.raises(DiskFullError):
        compared(subsets, out=tmp_path, seeds=2)


def test_what_cannot_be_compared_is_refused_before_any_training(
    run: Run, subsets: list[Subset], tasks: Path, tiny: ClipTraining, tmp_path: Path, trainings: Trainings,
    monkeypatch: pytest.MonkeyPatch, compared: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr("tamis.runs.claims.PATIENCE_SECONDS", 0.0)
    write_tar(tmp_path / "pool" / "0.tar", [("0000", pair(1))])
    other = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert truth_of(other) is None
    for change, kind, message in (
        ({"seeds": 1}, ValueError, "got 1"),
        ({"only": ["fuond"]}, RecipeError, "did you mean 'found'"),
        ({"tasks": "nowhere"}, PoolError, "nowhere"),
        ({"subsets": [subsets[1], subsets[1]]}, RecipeError, "half"),
        ({"subsets": []}, RecipeError, "one or more"),
        ({"subsets": [chosen(run, "nothing", [])]}, RunError, "nothing to train on"),
        ({"subsets": [subsets[0], chosen(other, "other", [0])]}, RecipeError, "of different runs"),
    ):
        with pytest.raises(kind, match=message):
            compared(**{"subsets": subsets, "out": tmp_path / "out", **change})
    with lock_run(tmp_path / "busy" / "cells"), pytest.raises(RunError, match="in use"):
        compared(subsets, out=tmp_path / "busy")
    assert trainings == []


def test_a_bench_that_was_stopped_goes_on_with_what_is_missing(
    bench: tuple[Bench, Path], subsets: list[Subset], tmp_path: Path, trainings: Trainings,
    monkeypatch: pytest.MonkeyPatch, compared: Any,
) -> None:  # fmt: skip
    counted = cells.evaluate_zero_shot

    def stopped(*arguments: Any, **settings: Any) -> Any:
        if len(trainings) == 5:  # trained, but not yet evaluated
            raise KeyboardInterrupt
        return counted(*arguments, **settings)

    monkeypatch.setattr(cells, "evaluate_zero_shot", stopped)
    with pytest.raises(KeyboardInterrupt):
        compared(subsets, out=tmp_path)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 4
    monkeypatch.setattr(cells, "evaluate_zero_shot", counted)
    trainings.clear()
    again = compared(subsets, out=tmp_path)
    assert len(trainings) == 5
    assert trainings[0][1].losses == []  # its model was there already
    before = {one.name: one.scores for one in bench[0].contenders}
    assert {one.name: one.scores for one in again.contenders} == before


def test_a_name_has_all_that_decides(
    run: Run, subsets: list[Subset], tasks: Path, tiny: ClipTraining, tmp_path: Path
) -> None:
    found, _ = find_tasks(tasks)
    spec = tamis.PoolSpec(path=run.facts["pool"]["path"], caption="json:truth")
    other = tamis.score(spec, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    names = {
        identity(subsets[2], tiny, found, "float32"),
        identity(subsets[1], tiny, found, "float32"),
        identity(replace(subsets[2], times=None), tiny, found, "float32"),
        identity(subsets[2], replace(tiny, seed=1), found, "float32"),
        identity(subsets[2], replace(tiny, samples=12), found, "float32"),
        identity(subsets[2], tiny, [replace(found[0], templates=("a {c}",))], "float32"),
        identity(subsets[2], tiny, found, "bf16"),
        identity(chosen(other, "few", [1, 9, 14], [1, 2, 1]), tiny, found, "float32"),  # other captions
    }
    assert len(names) == 8
    assert identity(replace(subsets[2], recipe={"name": "other"}), tiny, found, "float32") in names


def _when_there_is_a_child(do: Callable[[int], object]) -> threading.Thread:
    def wait() -> None:
        end = time.monotonic() + 280
        while time.monotonic() < end:
            for child in multiprocessing.active_children():
                if child.pid is not None:
                    do(child.pid)
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_cells_in_processes_of_their_own_give_the_same_and_one_that_dies_costs_its_cell_which_is_named(
    bench: tuple[Bench, Path], run: Run, tmp_path: Path, compared: Any
) -> None:
    """From a web server too, whose secret stands in no file: the processes are told."""

    def answer(request: Request) -> Answer:
        return content(request) if "sig=c0ffee" in request.path else Answer(403)

    pool = run.path.parent / "pool"
    content = files({f"/pool/{path.name}": path.read_bytes() for path in sorted(pool.iterdir())})
    with FaultyServer(answer) as server:
        spec = tamis.PoolSpec(path=f"{server.url}/pool/{{00000..00001}}.tar?sig=c0ffee", fields=("truth",))
        there = tamis.score(spec, run=tmp_path / "run", signals=["caption_length"], quiet=True)
        every = chosen(there, "no-filter", list(range(16)))
        killer = _when_there_is_a_child(lambda pid: os.kill(pid, signal.SIGKILL))
        done = compared([every], out=tmp_path / "out", seeds=2, workers=2)
        killer.join()
    ((name, why),) = done.failed.items()
    assert name.startswith("no-filter, seed ")
    assert "exit code -9" in why
    ((seed, score),) = done.contenders[0].scores.items()
    before = next(one for one in bench[0].contenders if one.name == "no-filter")
    assert score == before.scores[seed]


def test_the_ranking_by_hand(run: Run, subsets: list[Subset], tiny: ClipTraining) -> None:
    scores = {"no-filter": (0.30, 0.32, 0.34), "half": (0.41, 0.40, 0.45), "few": (0.10, 0.20, 0.30)}
    results = {(name, seed): result(score) for name, row in scores.items() for seed, score in enumerate(row)}
    done = summarise(subsets, results, tiny, (0, 1, 2), ["found"], {}, {"half": 12.0})
    assert [one.name for one in done.contenders] == ["half", "no-filter", "few"]
    half, base, few = done.contenders
    # Student's 97.5 % quantile for 2 degrees of freedom is 4.3027; s = 0.02, 0.02 / sqrt(3) = 0.011547.
    assert base.score is not None
    assert (base.score.value, base.score.low, base.score.high) == pytest.approx((0.32, 0.270317, 0.369683), abs=1e-6)
    # Differences .11, .08, .11: mean .10, s = .0173205, half 4.3027 * .01 = .043027.
    assert half.gain is not None
    assert (half.gain.value, half.gain.low, half.gain.high) == pytest.approx((0.10, 0.056973, 0.143027), abs=1e-6)
    # Differences -.20, -.12, -.04: mean -.12, s = .08, half 4.3027 * .0461880 = .198731.
    assert few.gain is not None
    assert (few.gain.low, few.gain.high) == pytest.approx((-0.318731, 0.078731), abs=1e-6)
    assert (base.gain, done.baseline) == (None, "no-filter")
    assert (done.better, done.worse, done.unclear) == (("half",), (), ("few",))
    # Halves .043027 and .198731: root of the mean square .143779, times 1 + 1.060660 / 4.302653.
    assert done.detectable == pytest.approx(0.179222, abs=1e-5)
    assert done.verdict()[-1] == "3 seeds cannot show differences below 0.179 (power 80 %)"
    assert (half.scoring_seconds, base.scoring_seconds, half.training_seconds) == (12.0, None, 2.0)
    shared = gain({seed: results["half", seed] for seed in (0, 1, 2)}, {1: results["few", 1], 2: results["few", 2]})
    assert shared is not None
    assert (shared.value, shared.n) == (pytest.approx(0.175), 2)
    table = done.rows_of_table()
    assert table[0]["gain over no-filter"] == "+0.100 [+0.057, +0.143]"
    assert (table[0]["scoring"], table[1]["scoring"], table[1]["gain over no-filter"]) == ("12 s", "–", "")


def test_overlap_and_kinds_by_hand(run: Run, subsets: list[Subset], tiny: ClipTraining) -> None:
    done = summarise(subsets, {}, tiny, (0, 1), ["found"], {}, {})
    assert done.overlap["half"] == {"no-filter": 0.5, "half": 1.0, "few": pytest.approx(1 / 10)}
    truth = truth_of(run)
    # Of each shard rows 0, 2, 4, 6 are visual, 1 and 5 text_only, 3 and 7 mismatched; few has 1, 9 and 14.
    assert shares_of_kinds(subsets[1], truth) == {"visual": (4, 8), "text_only": (2, 4), "mismatched": (2, 4)}
    assert shares_of_kinds(subsets[2], truth) == {"visual": (1, 8), "text_only": (2, 4), "mismatched": (0, 4)}
    assert done.rows_of_kinds()[0] == {
        "true kind": "visual", "pairs": "8", "no-filter": "100 %", "half": "50 %", "few": "12 %",
    }  # fmt: skip


def test_a_frozen_text_tower_reads_each_caption_once_for_all_trainings(
    run: Run, tmp_path: Path, trainings: Trainings, tiny: ClipTraining, compared: Any
) -> None:
    frozen = replace(tiny, freeze_text=True)
    few = chosen(run, "few", [1, 9, 12, 14])
    compared([few], out=tmp_path / "shared", training=frozen, seeds=2)
    (states,) = (tmp_path / "shared" / "text-states").glob("*.npy")
    assert len(np.load(states)) == len(run)
    how = cells.How(device=DEVICE)
    alone = train_clip(few, out=tmp_path / "a", training=frozen, how=how)
    assert trainings[0][1].losses == pytest.approx(alone.losses, abs=1e-6)


def test_captioners_are_ranked_by_cider(
    run: Run, subsets: list[Subset], tasks: Path, tiny: ClipTraining, tmp_path: Path
) -> None:
    language = tmp_path / "gpt2"
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS) + 4, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    ).save_pretrained(tokenizer_folder(language))
    training = CaptionTraining(vision=tiny.model, language=str(language), samples=8, batch=4)
    out = tmp_path / "out"
    done = compare(subsets[:2], tasks=tasks, out=out, training=training, device=DEVICE, seeds=2)
    assert (done.failed, done.tasks) == ({}, ("found",))
    results = [json.loads(path.read_text()) for path in (out / "cells").glob("*.json")]
    assert {one["name"]: one["scores"]["found"] for one in results} == {
        f"{one.name}, seed {seed}": score for one in done.contenders for seed, score in one.scores.items()
    }
    assert all(one["likelihoods"] == {} for one in results)
    assert done.facts()["training"]["model"] == f"{tiny.model} with {language}"
    folder = tmp_path / "classes"
    for name in ("dog", "cat"):
        (folder / name).mkdir(parents=True)
        (folder / name / "0.jpg").write_bytes(pair(1)["jpg"])
    with pytest.raises(PoolError, match="holds no images with captions"):
        compare(subsets[:2], tasks=folder, out=tmp_path / "no", training=training, device=DEVICE, seeds=2)
