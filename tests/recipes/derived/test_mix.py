"""The derived signal `mix`, and `tamis train mix`, which fits its weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Tamis
from factories import write_run

from tamis.core.errors import RecipeError
from tamis.core.records import build
from tamis.recipes.derived.concepts import ConceptWeight
from tamis.recipes.derived.mix import Mix
from tamis.runs.subset import Subset
from tamis.runs.table import MemoryTable, Table
from tamis.train.mix_weights import train_mix


def mixed(mix: Mix, table: Table) -> Any:
    return mix.compute(table, lambda name, make: make())


def test_a_case_worked_by_hand() -> None:
    """1, 2, 3 have mean 2 and deviation √(2/3); a constant adds nothing; a missing value leaves no sum."""
    columns = {"a": np.array([1, 2, 3, np.nan], np.float32), "b": np.full(4, 5, np.float32)}
    found = mixed(Mix(terms={"a": 2, "b": -1}), MemoryTable(columns))
    np.testing.assert_allclose(found["mix"], [-(6**0.5), 0, 6**0.5, np.nan], rtol=1e-6)
    np.testing.assert_allclose(found["moments.npy"], [[2, (2 / 3) ** 0.5], [5, 0]])


def test_a_file_holds_its_own_moments_and_embeddings(tmp_path: Path) -> None:
    """0.5 (3 - 1) / 4 + 2 · 0.6 - (0.8 - 0.3) / 0.5 + 0.1 = 0.55, whatever else is in the pool."""
    (tmp_path / "w.yaml").write_text(
        "bias: 0.1\nterms:\n  a: {weight: 0.5, mean: 1, deviation: 4}\n"
        "  v: {weight: [2, -1], mean: [0, 0.3], deviation: [1, 0.5]}\n"
    )
    mix = Mix(weights=str(tmp_path / "w.yaml"))
    assert mix.reads == {"a", "v"}
    vectors = np.array([[0.6, 0.8], [np.nan, np.nan]], np.float16)
    found = mixed(mix, MemoryTable({"a": np.array([3, 3], np.float32), "v": vectors}))["mix"]
    np.testing.assert_allclose(found, [0.55, np.nan], atol=2e-3)  # the embeddings are float16
    with pytest.raises(RecipeError, match="another model"):
        mixed(mix, MemoryTable({"a": np.ones(1, np.float32), "v": np.ones((1, 4), np.float16)}))


def test_blocks_and_row_order_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(9, 1, (2, 10_000)).astype(np.float32)
    order = rng.permutation(a.size)
    mix = Mix(terms={"a": 0.6, "b": 0.4})
    whole = mixed(mix, MemoryTable({"a": a, "b": b}))["mix"]
    other = mixed(mix, MemoryTable({"a": a[order], "b": b[order]}, block=777))["mix"]
    np.testing.assert_allclose(other, whole[order], atol=1e-5)


def test_a_column_without_any_value_is_refused() -> None:
    table = MemoryTable({"a": np.ones(3, np.float32), "b": np.array([np.nan, np.inf, np.nan], np.float32)})
    with pytest.raises(RecipeError, match="no row has a finite value of 'b'"):
        mixed(Mix(terms={"a": 1, "b": 1}), table)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either terms"),
        ({"terms": {"a": 1}, "weights": "w.yaml"}, "either terms"),
        ({"terms": {"a": "much"}}, "terms"),
        ({"terms": {"a": float("inf")}}, "finite"),
        ({"wieghts": "w.yaml"}, "did you mean 'weights'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(Mix, settings, "signals[0], mix")


def test_a_path_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(RecipeError, match="does not exist or cannot be read"):
        ConceptWeight(concepts="\0").contents()


@pytest.mark.parametrize("text", ["- 1", "terms: {a: {weight: .nan}}", "terms: {a: {wieght: 1}}", "[1", "\x00"])
def test_a_file_that_holds_no_weights_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"w\.yaml is not a weights file of `tamis train mix`"):
        _ = Mix(weights=str(tmp_path / "w.yaml")).reads


def two_runs(folder: Path, shards: int = 3) -> tuple[Any, Any]:
    """A target whose column `a` is one deviation above the pool's, and whose `b` and `c` are like the pool's."""
    rng = np.random.default_rng(1)
    runs = []
    for number, (size, shift) in enumerate([(400, 1.0), (3000, 0.0)]):
        columns = {"a": rng.normal(shift, 1, size), "b": rng.normal(7, 3, size), "c": np.full(size, 2.0)}
        uids = [(number, row) for row in range(size)]
        runs.append(write_run(folder / f"{number}-{shards}", columns, shards=shards, uids=uids))
    return runs[0], runs[1]


def test_the_head_finds_the_column_that_differs(tmp_path: Path) -> None:
    """Between N(1, 1) and N(0, 1) the log-odds have slope 1, and the AUC is Φ(1 / √2) = 0.760."""
    target, pool = two_runs(tmp_path)
    done = train_mix(target, pool, ["a", "b", "c"], out=tmp_path / "w.yaml")
    assert done.auc.low < 0.760 < done.auc.high
    a, b = done.coefficients["a"], done.coefficients["b"]
    assert a.low < 1 < a.high
    assert a.low > 0.8
    assert b.low < 0 < b.high
    assert (done.coefficients["c"].value, done.target, done.pool, done.left_out) == (0, 400, 3000, 0)
    scores = mixed(Mix(weights=str(tmp_path / "w.yaml")), pool.table())["mix"]
    assert scores.mean() == pytest.approx(-0.5, abs=0.15)  # E[x - 1/2] over N(0, 1)
    again = two_runs(tmp_path, shards=1)
    train_mix(*again, ["a", "b", "c"], out=tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == (tmp_path / "w.yaml").read_text()


def test_a_target_inside_the_pool_is_not_used_as_the_pool(tmp_path: Path) -> None:
    _, pool = two_runs(tmp_path)
    chosen = Subset(run=pool, keep=pool["a"] > 1)
    done = train_mix(chosen, pool, ["a"], out=tmp_path / "w.yaml")
    assert done.target == len(chosen)
    assert done.pool == 3000 - len(chosen)
    assert done.auc.value == 1
    one = train_mix(chosen, pool, ["b"], out=tmp_path / "b.yaml")
    assert one.auc.low < 0.5 < one.auc.high


def test_what_cannot_be_fitted_is_said(tmp_path: Path) -> None:
    _, pool = two_runs(tmp_path)
    few = Subset(run=pool, keep=np.arange(3000) < 50)
    with pytest.raises(RecipeError, match="50 and 2,950 pairs are too few"):
        train_mix(few, pool, ["a"], out=tmp_path / "w.yaml")
    with pytest.raises(RecipeError, match="3,000 and 0 pairs are too few"):
        train_mix(pool, pool, ["a"], out=tmp_path / "w.yaml")
    words = write_run(tmp_path / "words", {"a": ["x"] * 400})
    with pytest.raises(RecipeError, match="holds words, expected numbers"):
        train_mix(words, pool, ["a"], out=tmp_path / "w.yaml")


def test_the_command_line_fits_derives_and_selects(tamis: Tamis, tmp_path: Path) -> None:
    two_runs(tmp_path)
    done = tamis.ok("train", "mix", "--target", "0-3", "--pool", "1-3", "--columns", "a,b", "--out", "mix.yaml")
    assert "on held-out pairs: 400 of the target, 3,000 of the pool" in done.out
    assert set(yaml.safe_load((tmp_path / "mix.yaml").read_text())["terms"]) == {"a", "b"}
    tamis.ok("derive", "1-3", "--signals", "mix", "--set", "signals.mix.weights=mix.yaml")
    (tmp_path / "r.yaml").write_text("select:\n- top_fraction: {score: mix, fraction: 0.1}\n")
    chosen = tamis.ok("select", "1-3", "--recipe", "r.yaml", "--out", "s.parquet", "--json")
    assert '"kept": 300' in chosen.out
