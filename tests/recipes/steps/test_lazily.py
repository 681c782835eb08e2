"""Columns that are requested only where a recipe still needs them: the same rows stay, whatever the recipe."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.core.errors import RecipeError
from tamis.recipes import recipe
from tamis.recipes.steps.outcome import arrange, run_in_any_order, run_steps
from tamis.runs.table import MemoryTable

NAMES = "abc"


def drawn(seed: int, rows: int) -> MemoryTable:
    """Columns with ties and gaps, and words."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        name: rng.choice([0.0, 0.25, 0.5, 0.5, 0.75, 1.0, np.nan], rows).astype(np.float32) for name in NAMES
    }
    columns["w"] = [[None, "en", "de"][number] for number in rng.integers(0, 3, rows)]
    return MemoryTable(columns, block=5)


class OfSome(MemoryTable):
    """The same table where only some rows of columns were requested: others have no value."""

    def __init__(self, table: MemoryTable, requested: Mapping[str, Any]) -> None:
        super().__init__(table._columns, block=max(table.sizes, default=1))
        self._requested = requested

    def read(self, block: int, names: Any) -> dict[str, Any]:
        place = slice(*self.starts[block : block + 2])
        found, requested = super().read(block, names), self._requested
        for name in set(names) & set(requested):
            if name == "w":
                cells = zip(found[name].to_pylist(), requested[name][place], strict=True)
                found[name] = pa.array([word if wanted else None for word, wanted in cells], pa.string())
            else:
                found[name] = np.where(requested[name][place], found[name], np.nan)
        return found

    def requested(self, name: str) -> Any:
        return self._requested.get(name)


missing = st.sampled_from([{"missing": "drop"}] * 4 + [{}])
score = st.sampled_from(["a", "b", "c", "1 - b", "a + b", "minmax(a) + b", "rank(c)"])
level = st.sampled_from([0.25, 0.5, 0.75])
of = st.sampled_from(["survivors", "pool"])
step = st.one_of(
    *(
        st.builds(lambda name, s, v, m: {name: {"score": s, "value": v, **m}}, st.just(name), score, level, missing)
        for name in ("at_least", "at_most", "at_least")
    ),
    st.builds(lambda s, m: {"between": {"score": s, "low": 0.2, "high": 0.6, **m}}, score, missing),
    st.builds(lambda v, m: {"equals": {"score": "w", "value": v, **m}}, st.sampled_from(["en", "de"]), missing),
    st.builds(
        lambda s, f, o: {"top_fraction": {"score": s, "fraction": f, "of": o, "missing": "drop"}}, score, level, of
    ),
    st.builds(
        lambda s, o: {"top_fraction": {"score": s, "fraction": 0.5, "of": o, "missing": "drop", "per": "w"}}, score, of
    ),
    st.builds(lambda s, n: {"top_n": {"score": s, "n": n, "missing": "drop"}}, score, st.integers(0, 9)),
    st.builds(lambda o: {"random_fraction": {"fraction": 0.5, "of": o}}, of),
    st.builds(lambda s: {"sample": {"score": s, "n": 5, "missing": "drop"}}, score),
)
part = st.lists(step, min_size=1, max_size=3)
group = st.builds(
    lambda kind, parts: {kind: parts},
    st.sampled_from(["all_of", "all_of", "any_of", "none_of"]),
    st.lists(part, max_size=3, min_size=1),
)
steps = st.lists(st.one_of(step, step, group), min_size=1, max_size=4)


@settings(max_examples=300)
@given(steps, st.integers(0, 10**6), st.integers(0, 24), st.permutations([*NAMES, "w"]))
def test_lazy_equals_full_always(chosen: list[Any], seed: int, rows: int, order: list[str]) -> None:
    table, loaded = drawn(seed, rows), recipe.load({"select": chosen}).steps
    try:
        full = run_steps(table, loaded)
    except RecipeError:
        return
    requested = {name: np.zeros(rows, bool) for name in order}
    some, rng = OfSome(table, requested), np.random.default_rng(seed)

    def rank(one: Any) -> float:
        return max((order.index(name) for name in one.reads), default=-1)

    for _ in range(50):
        found = run_steps(some, arrange(loaded, rank))
        if found.unscored is None:
            break
        requested[found.unscored.column] |= found.unscored.rows
        order = [str(name) for name in rng.permutation(order)]  # corrected as it runs
    assert found.unscored is None
    np.testing.assert_array_equal(found.keep, full.keep)
    assert (found.times is None) == (full.times is None)
    if full.times is not None:
        np.testing.assert_array_equal(found.times, full.times)
    np.testing.assert_array_equal(run_in_any_order(some, loaded).keep, full.keep)  # `select` finds an order too


def test_what_is_needed_of_each_column() -> None:
    table = drawn(3, 200)

    def needed(*chosen: Any, last: str = "c") -> dict[str, int]:
        requested = {name: np.zeros(200, bool) for name in NAMES}
        order = arrange(recipe.load({"select": list(chosen)}).steps, lambda one: float(last in one.reads))
        while True:
            if (unscored := run_steps(OfSome(table, requested), order).unscored) is None:
                return {name: int(rows.sum()) for name, rows in requested.items()}
            requested[unscored.column] |= unscored.rows

    half = {"missing": "drop", "value": 0.5}
    a, c = {"at_least": {"score": "a", **half}}, {"at_least": {"score": "c", **half}}
    top = {"top_fraction": {"score": "a", "fraction": 0.25, "of": "pool", "missing": "drop"}}
    kept = int(run_steps(table, recipe.load({"select": [a]}).steps).keep.sum())
    assert needed(c, a) == {"a": 200, "b": 0, "c": kept}
    assert needed(top, c) == {"a": 200, "b": 0, "c": 50}
    assert needed({"all_of": [[c], [top]]}) == {"a": 200, "b": 0, "c": 50}
    assert needed({"all_of": [[{"top_n": {"score": "c", "n": 9, "missing": "drop"}}], [top]]})["c"] == 200
    assert needed(a, {"at_least": {"score": "rank(c)", **half}}) == {"a": 200, "b": 0, "c": 200}


def test_a_step_that_may_end_the_recipe_is_not_moved_before_another() -> None:
    table = MemoryTable({"a": np.array([0.0, 1.0], np.float32), "b": np.array([np.nan, 1.0], np.float32)})
    loaded = recipe.load(
        {
            "select": [
                {"at_least": {"score": "a", "value": 1, "missing": "drop"}},
                {"at_least": {"score": "b", "value": 1}},
            ]
        }
    ).steps
    assert [one.score for one in arrange(loaded, lambda one: float("a" in one.reads))] == ["a", "b"]  # type: ignore[attr-defined]
    unscored = run_in_any_order(OfSome(table, {"a": np.zeros(2, bool)}), loaded).unscored
    assert str(unscored) == "at_least: 'a >= 1' looks at 2 rows whose 'a' is not scored yet"
