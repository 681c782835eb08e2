"""Fields of the pool that hold numbers: cut, ranked and plotted like scores, and kept as text."""

import datetime
import decimal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes, pair, score, write_tar

import tamis
from tamis.core.errors import PoolError, RecipeError, RunError
from tamis.pools import PoolSpec
from tamis.reports.context import Context
from tamis.reports.explore.cached_run import CachedRun, View
from tamis.reports.explore.queries import Explorer
from tamis.reports.page import gather, render
from tamis.runs import Run
from tamis.runs.table import are_numbers, as_numbers

VALUES = [0.5, 0.25, None, "0.125", float("nan"), 20190101123]
READ = [0.5, 0.25, np.nan, 0.125, np.nan, np.float32(20190101123)]


def pool_of(folder: Path, values: Sequence[Any], name: str = "similarity") -> PoolSpec:
    """Two tars, whose samples have values of a field in their json."""
    half = -(-len(values) // 2)
    for first in (0, half):
        rows = enumerate(values[first : first + half], first)
        write_tar(folder / f"{first}.tar", [(f"{row}", pair(row, **{name: value, "kind": "a"})) for row, value in rows])
    return PoolSpec(path=str(folder), fields=(name, "kind"))


def kept(run: Run, *steps: Any) -> list[int]:
    return np.flatnonzero(tamis.select(run, {"select": list(steps)}).keep).tolist()


@pytest.fixture(params=["in the index", "added later"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    spec = pool_of(tmp_path / "pool", VALUES)
    if request.param == "added later":
        tamis.score(spec.path, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    return score(spec, tmp_path / "run", "caption_length")


def test_recipes_use_a_field_of_numbers_like_a_score(run: Run) -> None:
    assert kept(run, {"at_least": {"score": "similarity", "value": 0.25, "missing": "drop"}}) == [0, 1, 5]
    assert kept(run, {"top_n": {"score": "-log(similarity)", "n": 2, "missing": "drop"}}) == [1, 3]
    assert kept(run, {"equals": {"score": "similarity", "value": [0.5, 0.125], "missing": "drop"}}) == [0, 3]
    assert kept(run, {"top_n": {"score": "rank(similarity)", "n": 1, "missing": "drop"}}) == [5]
    with pytest.raises(RecipeError, match="2 of 6 rows have no value for 'similarity'"):
        kept(run, {"at_most": {"score": "similarity", "value": 1}})
    assert kept(run, {"at_least": {"score": "similarity", "value": 20190101123, "missing": "drop"}}) == [5]
    assert kept(run, {"at_least": {"score": "similarity", "value": 20190101124, "missing": "drop"}}) == []
    assert kept(run, {"equals": {"score": "similarity", "value": 20190101124, "missing": "drop"}}) == []
    mixed = tamis.derive(run, [{"mix": {"terms": {"similarity": 1.0, "words": 0.0}}}])
    assert np.isnan(mixed["mix"]).tolist() == np.isnan(READ).tolist()


def test_a_field_of_numbers_stays_text_where_words_are_read(run: Run) -> None:
    """No digit of an id is lost."""
    assert run["similarity"].tolist() == ["0.5", "0.25", None, "0.125", "NaN", "20190101123"]
    assert kept(run, {"equals": {"score": "similarity", "value": "20190101123", "missing": "drop"}}) == [5]
    best = {"top_n": {"score": "words", "n": 1, "per": "similarity", "missing": "drop"}}
    assert kept(run, best) == [0, 1, 3, 4, 5]


def test_a_field_of_words_is_no_score(run: Run) -> None:
    with pytest.raises(RecipeError, match="'kind' holds words, expected numbers"):
        kept(run, {"at_most": {"score": "kind", "value": 1}})
    assert run.number_fields == ("similarity",)


def test_one_word_in_any_shard_makes_words_of_a_field(tmp_path: Path) -> None:
    for name, values in (("early", ["high", 1, 2, 3]), ("late", [1, 2, 3, "high"]), ("none", [None] * 4)):
        run = score(pool_of(tmp_path / name, values), tmp_path / f"{name}-run", "caption_length")
        assert run.number_fields == ()
        with pytest.raises(RecipeError, match="'similarity' holds words, expected numbers"):
            kept(run, {"at_most": {"score": "similarity", "value": 1}})


def test_the_report_draws_fields_of_numbers(run: Run) -> None:
    page = gather(Context(run, []))
    facts = page["sections"]
    drawn = {one["column"]["name"]: one for one in facts["scores"]["distributions"]}
    assert drawn["similarity"]["histogram"].judged == 4
    assert drawn["similarity"]["strip"][0]["pair"].row == 3
    assert [one["name"] for one in facts["values"]["columns"]] == ["kind"]
    assert "similarity" in render(page)


def test_the_explorer_sorts_and_cuts_by_fields_of_numbers(run: Run) -> None:
    explorer = Explorer(CachedRun(run.path), [], lambda held, recipe: tamis.select(held, recipe))
    assert "similarity" in explorer.numbers
    assert "similarity" not in explorer.words
    ranges = (("similarity", 0.2, 0.6),)
    rows, total = explorer.view(View(ranges=ranges, sort="score", column="similarity"), {})
    assert (rows.tolist(), total) == ([0, 1], 2)
    assert explorer.histograms(["similarity"])["similarity"]["null"] == 2
    cards = explorer.cards([3, 4], {}, ["similarity"])
    assert [card["scores"]["similarity"] for card in cards] == [0.125, None]


def test_texts_that_are_numbers() -> None:
    numbers = ["85", "85\nbecause it fits", " 7 ", "-3e-2", "+5", ".5"]
    others = ["1e999", "nan", "3 dogs", "1,5", "2019-01-02", None]
    found = as_numbers(pa.array(numbers + others))
    np.testing.assert_array_equal(found, [85, 85, 7, -0.03, 5, 0.5, *[np.nan] * 6])
    assert are_numbers(pa.array(["1", "NaN", None, "", "-inf", "None", "3 dogs"])) is False
    assert are_numbers(pa.array(["1", "None"]).dictionary_encode()) is True
    assert are_numbers(pa.array(["", None])) is None
    assert are_numbers(pa.array([], pa.string())) is None


def test_all_columns_of_a_table_are_fields(tmp_path: Path) -> None:
    columns = {"image": [image_bytes(0), image_bytes(1)], "text": ["a dog", "a cat"], "width": [3, 4]}
    columns |= {"clip_b32": [0.25, 0.5], "clip_l14": [0.5, None], "nsfw": ["no", "no"], "vector": [[1.0], [2.0]]}
    pq.write_table(pa.table(columns), tmp_path / "pool.parquet")
    run = score(PoolSpec(path=str(tmp_path / "pool.parquet"), fields=("*",)), tmp_path / "run", "caption_length")
    assert run.facts["pool"]["fields"] == ["clip_b32", "clip_l14", "nsfw"]
    assert kept(run, {"at_least": {"score": "clip_b32 + clip_l14", "value": 0, "missing": "drop"}}) == [0]
    later = PoolSpec(path=str(tmp_path / "pool.parquet"), fields=("clip_*",))
    run = tamis.score(later, run=tmp_path / "later", quiet=True)
    assert run.number_fields == ("clip_b32", "clip_l14")
    with pytest.raises(RunError, match=r"If the pool's json or table has it: tamis score .* --field nsfw$"):
        kept(run, {"equals": {"score": "nsfw", "value": "no"}})
    recipe = {"pool": later.path, "run": str(tmp_path / "r"), "select": [{"equals": {"score": "nsfw", "value": "no"}}]}
    with pytest.raises(RecipeError, match=r"if the pool's json or table has it: --set 'pool.fields=\[nsfw\]'"):
        tamis.run_recipe(recipe, quiet=True)


def test_a_pattern_needs_columns(tmp_path: Path) -> None:
    pool_of(tmp_path / "pool", [1, 2])
    with pytest.raises(PoolError, match=r"the field '\*' is a pattern, which needs a table"):
        score(PoolSpec(path=str(tmp_path / "pool"), fields=("*",)), tmp_path / "run", "caption_length")


def test_values_that_json_does_not_know_are_text(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "text": ["a dog"],
        "day": [datetime.date(2024, 5, 1)],
        "price": [decimal.Decimal("1.50")],
    }
    pq.write_table(pa.table(columns), tmp_path / "pool.parquet")
    spec = PoolSpec(path=str(tmp_path / "pool.parquet"), image="none", fields=("day", "price"))
    run = score(spec, tmp_path / "run", "caption_length")
    assert (run["day"].tolist(), run["price"].tolist()) == (["2024-05-01"], ["1.50"])
    assert run.number_fields == ("price",)
