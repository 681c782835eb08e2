"""`tamis distil`: what is judged, what is kept and recorded, what goes on, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Tamis
from factories import parts_of
from odd_signals import JUDGED, Judged

import tamis as library
from tamis import distilled
from tamis.arrays import Float64s, Mask
from tamis.errors import RecipeError, RunError
from tamis.explore.columns import HeldRun
from tamis.explore.queries import Explorer
from tamis.graph import Executor
from tamis.math.distil import Certificate, Decisions
from tamis.pool import PoolSpec
from tamis.run.plan import Plan
from tamis.scoring import Scoring
from tamis.store import Run
from tamis.store.reasons import bound_of
from tamis.store.subset import Subset

pytest.importorskip("sklearn")

ROWS = 1200
TOP: dict[str, Any] = {"score": "judged", "fraction": 0.3, "missing": "drop"}
WORDS: dict[str, Any] = {"at_least": {"score": "words", "value": 2}}


@dataclass(frozen=True)
class World:
    """A pool of captions that begin with their true score, and embeddings that explain most of it."""

    pool: PoolSpec
    run: Path
    recipe: dict[str, Any]
    truth: np.ndarray[Any, np.dtype[np.float32]]  # the rows that the recipe's first step drops have a nan

    def distil(self, *select: dict[str, Any], **how: Any) -> Subset:
        recipe = {**self.recipe, **({"select": list(select)} if select else {})}
        given = {"run": self.run, "recipe": recipe, "at_most_wrong": 0.3, "least": 0, "quiet": True, "workers": 1}
        return library.distil(self.pool, "judged", **{**given, **how})

    def best(self, n: int) -> Mask:
        return self.truth >= np.sort(np.nan_to_num(self.truth, nan=-9))[-n]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(distilled, "_SAMPLE", (0.05, 200, 2000))
    JUDGED.clear()
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, ROWS, 4)).astype(np.float32)
    image[7] = 0  # no embedding
    truth = (image[:, 0] + text[:, 1] + 0.2 * rng.normal(size=ROWS)).astype(np.float32).round(3)
    keys = [f"k{row:04d}" for row in range(ROWS)]
    (tmp_path / "pool").mkdir()
    for shard in range(3):
        part = slice(shard * ROWS // 3, (shard + 1) * ROWS // 3)
        captions = [
            f"{value:.3f}{f' word{row}' if row % 6 else ''}"
            for row, value in enumerate(truth[part].tolist(), part.start)
        ]
        pq.write_table(pa.table({"key": keys[part], "caption": captions}), tmp_path / "pool" / f"{shard}.parquet")
    truth[::6] = np.nan
    kind = pa.list_(pa.float32(), 4)
    sides = {name: pa.array(list(rows), kind) for name, rows in (("image", image), ("text", text))}
    pq.write_table(pa.table({"key": keys, **sides}), tmp_path / "vectors.parquet")
    recipe = {
        "name": "mine",
        "signals": [{"clip": {"embeddings_from": str(tmp_path / "vectors.parquet")}}, "caption_length", Judged()],
        "keep": ["embeddings"],
        "select": [WORDS, {"top_fraction": TOP}],
    }
    pool = PoolSpec(path=str(tmp_path / "pool"), format="table", caption="caption", image="none")
    return World(pool, tmp_path / "run", recipe, truth)


def jaccard(one: Mask, other: Mask) -> float:
    return np.count_nonzero(one & other) / np.count_nonzero(one | other)


def test_few_rows_are_judged_the_bound_holds_and_stands_in_every_output(world: World, tmp_path: Path) -> None:
    subset = world.distil()
    assert subset.kept == 300
    facts = subset.funnel[-1]["facts"]
    assert jaccard(subset.keep, world.best(300)) >= facts["jaccard_at_least"] >= 0.7
    assert len(JUDGED) == facts["scored"] < facts["candidates"] == 1000
    assert (facts["predicted_from"], facts["confidence"]) == ("clip", 0.95)
    run = subset.run
    asked, values = run.asked(run.scores["judged"]), run["judged_distilled"]
    assert asked is not None
    assert asked[7]  # no embedding predicts it
    np.testing.assert_array_equal(values[asked], world.truth[asked])
    assert np.isnan(values[::6]).all()
    sentence = bound_of(subset.funnel[-1])
    assert f"at least {facts['jaccard_at_least']:g}, with 95% confidence; {len(JUDGED):,} of 1,000" in sentence
    subset.save(tmp_path / "mine.parquet")
    loaded = Subset.load(tmp_path / "mine.parquet", run)
    assert loaded.funnel[-1]["facts"] == facts
    assert loaded.recipe["signals"][2] == {"judged": {}}  # the recipe had an object
    library.export(loaded, "npy", tmp_path / "mine.npy")
    croissant = json.loads((tmp_path / "mine.npy.croissant.json").read_text())
    assert croissant["rai:dataPreprocessingProtocol"][-1] == sentence
    assert sentence in croissant["description"]
    page = library.report(run, [loaded], out=tmp_path / "report.html").read_text()
    assert sentence in page
    explored = Explorer(HeldRun(run.path), [loaded], library.select).chosen({"saved": 0}, [])
    assert [line["bound"] for line in explored["funnel"]] == ["", sentence]
    # select gives the same rows, another choice has no bound, and all scores need none
    assert library.select(run, world.recipe).keep.tolist() == subset.keep.tolist()
    with pytest.raises(RunError, match="nobody asked for"):
        library.select(run, {**world.recipe, "select": [{"top_fraction": TOP}]})
    full = library.score(world.pool, run=world.run, recipe=world.recipe, quiet=True)
    exact = library.select(full, world.recipe)
    assert "facts" not in exact.funnel[-1]
    assert exact.keep.tolist() == world.best(300).tolist()


def test_only_the_full_pass_stores_embeddings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, tasks = [], Plan.tasks  # a signal that is asked for some rows could not store what it shares with clip
    monkeypatch.setattr(Plan, "tasks", lambda plan, run: (kept.append(plan.keep), tasks(plan, run))[1])
    world.distil()
    assert kept[0] == ("embeddings",)
    assert len(kept) > 3
    assert not any(kept[1:])


def test_the_passes_of_a_command_share_their_models(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, load = Counter[str](), Executor._load
    monkeypatch.setattr(Executor, "_load", lambda self, node: (loads.update([node.name]), load(self, node))[1])
    world.distil()
    assert loads["judged"] == loads["caption_length"] == 1


def test_an_interrupted_command_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, score = [], Scoring.score

    def dies(*given: Any, **how: Any) -> Run:
        calls.append(how)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(*given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Scoring, "score", dies)
        with pytest.raises(KeyboardInterrupt):
            world.distil()
    assert JUDGED
    subset = world.distil()
    assert len(JUDGED) == subset.funnel[-1]["facts"]["scored"]
    before = parts_of(world.run)
    again = world.distil()
    assert (again.keep.tolist(), parts_of(world.run)) == (subset.keep.tolist(), before)


def test_the_sample_and_the_audit_do_not_depend_on_shards(world: World, tmp_path: Path) -> None:
    one = world.distil(at_most_wrong=0.4)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "pool").glob("*.parquet"))]
    (tmp_path / "other").mkdir()
    pq.write_table(pa.concat_tables(tables[::-1]), tmp_path / "other" / "0.parquet")
    spec = PoolSpec(path=str(tmp_path / "other"), format="table", caption="caption", image="none")
    two = World(spec, tmp_path / "two", world.recipe, world.truth).distil(at_most_wrong=0.4)
    assert two.funnel == one.funnel
    assert np.sort(two.to_numpy()).tolist() == np.sort(one.to_numpy()).tolist()


def test_copies_of_a_pair_are_drawn_one_by_one(world: World, tmp_path: Path) -> None:
    """600 of the 1,000 candidates have one uid. A sample of all of them or none would tell nothing of the others."""
    for path in (tmp_path / "pool").glob("*.parquet"):
        captions = pq.read_table(path)["caption"].to_pylist()
        captions[1::2] = ["-9.000 word"] * len(captions[1::2])
        pq.write_table(pq.read_table(path).set_column(1, "caption", pa.array(captions)), path)
    world.distil(at_most_wrong=0.5)
    assert JUDGED[:200].count("-9.000 word") == pytest.approx(120, abs=20)


def test_a_small_pool_is_scored_in_full(world: World, caplog: pytest.LogCaptureFixture) -> None:
    subset = world.distil(WORDS, {"top_n": {"score": "judged", "n": 100}}, least=200_000)
    assert "judged judges all 1,000 candidates" in caplog.text
    assert subset.keep.tolist() == world.best(100).tolist()
    assert "facts" not in subset.funnel[-1]
    assert len(JUDGED) == 1000


def test_where_no_audit_proves_the_bound_the_choice_is_exact(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    certify = distilled.certify
    monkeypatch.setattr(distilled, "certify", lambda *given, **how: certify(*given, **how)._replace(jaccard=0.61))
    subset = world.distil()
    assert "prove a Jaccard index of 0.610 only: judged judges the other" in caplog.text
    assert subset.keep.tolist() == world.best(300).tolist()
    assert "facts" not in subset.funnel[-1]
    assert len(JUDGED) == 1000


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ([], "that read one: 0"),
        ([{"top_fraction": TOP}, {"at_least": {"score": "judged", "value": 0}}], "that read one: 2"),
        ([{"at_least": {"score": "judged", "value": 0}}], "top_fraction or top_n"),
        ([{"top_fraction": {**TOP, "per": "words"}}], "without 'per'"),
        ([{"top_fraction": {**TOP, "score": "-judged"}}, {"equals": {"score": "status", "value": "ok"}}], "alone"),
    ],
)
def test_recipes_without_one_cut_are_errors_before_any_work(
    world: World, select: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(RecipeError, match=f"tamis distil needs exactly one step.*{message}"):
        world.distil(recipe={**world.recipe, "select": select})
    assert not world.run.exists()


def test_predictions_are_not_used_for_other_candidates(world: World, tmp_path: Path) -> None:
    """A partial run, and a reference file with other contents, although the steps are the same."""
    world.distil()
    index = world.run / "index" / "0.parquet"
    index.rename(tmp_path / "aside.parquet")
    with pytest.raises(RunError, match=r"judged_distilled, which is for .* of other candidates than"):
        library.select(world.run, world.recipe, partial=True)
    (tmp_path / "aside.parquet").rename(index)
    run = Run(world.run)
    (images,) = (name for name in run.embeddings if name.startswith("image"))
    vectors = np.concatenate([run.embedding(images, shard) for shard in run.shards]).astype(np.float32)
    other = {"reference": str(tmp_path / "other.npy"), "hashes": False, "embedding": "image_embedding"}
    steps = [WORDS, {"not_in": {**other, "cosine": 0.9999, "missing": "drop"}}, {"top_fraction": TOP}]
    np.save(tmp_path / "other.npy", vectors[10:40])
    world.distil(*steps)
    np.save(tmp_path / "other.npy", vectors[50:80])  # as many rows
    with pytest.raises(RunError, match="other candidates than this run"):
        library.select(world.run, {**world.recipe, "select": steps})
    subset = world.distil(*steps)
    assert not subset.keep[50:80].any()
    assert library.select(world.run, {**world.recipe, "select": steps}).keep.tolist() == subset.keep.tolist()


def test_other_bad_inputs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (0, 1, 5, float("nan")):
        with pytest.raises(ValueError, match="at_most_wrong must be above 0 and below 1"):
            world.distil(at_most_wrong=wrong)
    limited = [*world.recipe["signals"][:2], {"sieve": {"adaptive": True, "label": "judged"}}]
    with pytest.raises(RecipeError, match="leave out 'within' and 'adaptive'"):
        world.distil(recipe={**world.recipe, "signals": limited, "select": []})
    with pytest.raises(RecipeError, match="unknown signal 'judged'"):
        world.distil(recipe={**world.recipe, "signals": world.recipe["signals"][:2]})
    with pytest.raises(RecipeError, match="nosuch"):
        world.distil(WORDS, {"top_fraction": TOP}, {"at_least": {"score": "nosuch", "value": 1}})
    derived = [*world.recipe["signals"], {"mix": {"terms": {"judged": 1}}}]
    with pytest.raises(RecipeError, match="mix reads 'judged' of all rows, so tamis distil saves"):
        world.distil(recipe={**world.recipe, "signals": derived})
    for recipe in (world.recipe, {**world.recipe, "keep": []}):
        with pytest.raises(RunError, match="stores no embeddings of caption_length: add 'keep"):
            world.distil(recipe=recipe, source="caption_length")
        with pytest.raises(RunError, match=r"unknown signal 'clop'.*did you mean 'clip'"):
            world.distil(recipe=recipe, source="clop")
    with pytest.raises(RunError, match="stores no embeddings of clip: add 'keep"):
        world.distil(recipe={**world.recipe, "keep": []})
    assert not world.run.exists()
    with monkeypatch.context() as patch:
        patch.setattr(distilled, "_LEAST", 500)
        with pytest.raises(RunError, match=r"only \d+ of 200 rows of the sample have embeddings and 'judged'"):
            world.distil()
    assert world.distil(recipe={**world.recipe, "keep": []}).kept == 300  # the run stores them already


def test_rows_without_a_score_are_an_error_or_dropped(world: World) -> None:
    for path in sorted(Path(world.pool.paths[0]).glob("*.parquet")):
        table = pq.read_table(path)
        lacks = {0: "nan word", 1: "inf word", 2: "-inf word"}  # an infinite score is the highest, or the lowest
        captions = [lacks.get(n % 30, text) for n, text in enumerate(table["caption"].to_pylist())]
        pq.write_table(table.set_column(1, "caption", pa.array(captions)), path)
    with pytest.raises(RecipeError, match="rows have no value for 'judged'"):
        world.distil(WORDS, {"top_fraction": {**TOP, "missing": "error"}})
    subset = world.distil(at_most_wrong=0.5)
    asked = subset.run.asked(subset.run.scores["judged"])
    run = library.score(world.pool, run=world.run, recipe=world.recipe, quiet=True)
    truth = library.select(run, world.recipe)
    assert subset.kept == truth.kept
    assert jaccard(subset.keep, truth.keep) >= subset.funnel[-1]["facts"]["jaccard_at_least"]
    assert asked is not None
    judged = np.where(asked & (run["words"] == 2), run["judged"], np.nan)
    assert np.count_nonzero(np.isinf(judged)) > 20
    assert subset.keep[judged == np.inf].all()
    assert not subset.keep[judged == -np.inf].any()


def test_ridge_is_the_solution_of_its_equations() -> None:
    """(X'X + penalty) w = X'y on standardised features, for one of the penalties; folds are fifths in order."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 5)) * np.arange(1, 6)
    y = x @ rng.normal(size=5) + 3 * rng.normal(size=60)
    predict, crossed = distilled.ridge(x, y)

    def fits(seen: Mask, some: Float64s, predicted: Float64s) -> bool:
        centre, spread = x[seen].mean(0), x[seen].std(0)
        xs, ys = (x[seen] - centre) / spread, y[seen] - y[seen].mean()
        weights = [np.linalg.solve(xs.T @ xs + 10**k * np.eye(5), xs.T @ ys) for k in np.arange(0, 6.5, 0.5)]
        slow = [(some - centre) / spread @ one + y[seen].mean() for one in weights]
        return any(np.allclose(one, predicted) for one in slow)

    new = rng.normal(size=(3, 5))
    assert fits(np.ones(60, bool), new, predict(new))
    for fold in range(5):
        hidden = np.arange(60) // 12 == fold
        assert fits(~hidden, x[hidden], crossed[hidden])
    new[1, 2] = np.nan
    assert np.isnan(predict(new)).tolist() == [False, True, False]


def test_stored_values_rank_the_kept_rows_first() -> None:
    """Also where float32 does not tell a prediction from a score at the cut; rows 0 and 1 have equal scores."""
    truth = np.array([1.0, 1.0, np.nan, np.nan, 0.5, np.nan])
    known = np.array([True, True, False, False, True, True])
    values = np.array([1.0, 1 - 1e-9, 1 - 1e-10, 1 - 2e-9, 0.5, -np.inf])
    keep = np.array([True, False, True, False, False, False])
    found = Certificate(Decisions(values, keep, values, 1.0), known, 0, 1.0)
    stored = distilled._stored(found, truth)
    assert stored.dtype == np.float32
    assert np.array_equal(stored[known], truth[known].astype(np.float32), equal_nan=True)
    assert stored[2] > stored[0] == stored[1] > stored[3] > stored[4]


def test_the_command(
    pool: Path, tamis: Tamis, tmp_path: Path, clip_model: str, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        json.dumps({
            "signals": [{"clip": {"model": clip_model}}, "caption_length"], "keep": ["embeddings"],
            "select": [{"top_n": {"score": "words", "n": 5}}],
        })
    )  # fmt: skip
    out, given = tmp_path / "mine.parquet", ("--run", tmp_path / "run", "--recipe", recipe, "-q")
    assert tamis("distil", "caption_length", pool, *given, "--at-most-wrong", "5").code == 2
    assert tamis("distil", "caption_length", pool, *given, "--engine", "static").code == 2
    done = tamis("distil", "caption_length", pool, *given, "--out", out, "--from", "clip", "--workers", 1)
    assert done.code == 0, done.err
    assert "caption_length judges all 21 candidates: an audit would cost more" in caplog.text
    assert "top 5 by words" in done.out
    assert Subset.load(out, Run(tmp_path / "run")).kept == 5
