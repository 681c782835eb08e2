"""The step `balance`: against a plain loop, counts per group, and what it says of the tail."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import write_run

import tamis
from tamis.core.errors import RecipeError
from tamis.core.ids import uniforms
from tamis.recipes.steps import Balance, run_steps
from tamis.runs.table import MemoryTable

ROWS = 3000


def captions(rows: int = ROWS) -> list[str | None]:
    """Zipf's entries: the first is in most captions."""
    rng = np.random.default_rng(3)
    found: list[str | None] = ["\t".join({f"e{n}" for n in rng.zipf(1.6, rng.integers(0, 4))}) for _ in range(rows)]
    found[7] = None
    return found


def as_published(entries: list[str | None], groups: list[str], t: float, seed: int) -> list[bool]:
    counts = Counter((g, e) for text, g in zip(entries, groups, strict=True) for e in (text or "").split("\t"))
    low = np.arange(len(entries), dtype=np.uint64)
    draws = uniforms(np.zeros_like(low), low, seed=seed, counters=[np.ones_like(low)])
    kept = []
    for draw, text, group in zip(draws, entries, groups, strict=True):
        own = [entry for entry in (text or "").split("\t") if entry]
        kept.append(bool(draw < 1 - math.prod(1 - min(1, t / counts[group, entry]) for entry in own)))
    return kept


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_it_keeps_what_the_plain_loop_keeps(block: int) -> None:
    entries, groups = captions(), ["de" if n % 5 == 0 else "en" for n in range(ROWS)]
    table = MemoryTable({"entries": entries, "language": groups}, block=block)
    plain = Balance(t=20, seed=4, missing="drop").select(table)
    assert plain.keep.tolist() == as_published(entries, ["all"] * ROWS, 20, 4)
    assert plain.counts["missing"] == 1
    assert plain.counts["contains no entry"] == entries.count("")
    each = Balance(t=20, per="language", missing="drop").select(table)
    assert each.keep.tolist() == as_published(entries, groups, 20, 0)
    assert [limit["group"] for limit in each.facts["limits"]] == ["en", "de"]


def test_the_tail_gets_a_larger_share_and_frequent_entries_about_t() -> None:
    facts: Any = Balance(t=20, missing="drop").select(MemoryTable({"entries": captions()})).facts
    assert facts["effective_entries_kept"] > 2 * facts["effective_entries_before"]
    first, last = facts["curve"][0], facts["curve"][-1]
    assert (first["rank"], first["entry"], first["pairs"] > 1000, first["kept"] < first["pairs"] / 2) == (1, "e1", 1, 1)
    assert (last["rank"], last["pairs"], last["kept"]) == (facts["entries"], 1, 1)
    whole = MemoryTable({"entries": captions()})
    by_tail: Any = Balance(tail=facts["share_of_tail"], missing="drop").select(whole).facts
    assert by_tail["t"] <= 20
    assert by_tail["share_of_tail"] == pytest.approx(facts["share_of_tail"], abs=0.1)


def test_counts_are_over_the_survivors_or_the_pool() -> None:
    table = MemoryTable({"entries": ["dog"] * 400, "x": np.arange(400, dtype=np.float32)})
    half = table.with_candidates(np.arange(400) < 200)
    survivors, pool = (Balance(t=100, of=of).select(half).counts["kept"] for of in ("survivors", "pool"))  # type: ignore[arg-type]
    assert (70 < survivors < 130, 30 < pool < 70) == (True, True)
    assert Balance(t=500).select(half).counts["kept"] == 200


def test_a_pool_without_rows_or_matches_is_no_error() -> None:
    for entries in ([], ["", ""], [None]):
        found = Balance(tail=0.2, missing="drop").select(MemoryTable({"entries": np.array(entries, object).tolist()}))
        assert found.counts["kept"] == 0


def test_bad_settings_and_columns_are_named() -> None:
    for settings, message in (
        ({}, "needs t .* or tail"),
        ({"t": 5, "tail": 0.1}, "not both"),
        ({"t": 0.5}, "t must be at least 1, got 0.5"),
        ({"tail": 6}, "tail must be"),
    ):
        with pytest.raises((ValueError, RecipeError), match=message):
            Balance(**settings)
    table = MemoryTable({"entries": ["a", None], "x": np.zeros(2, np.float32)})
    with pytest.raises(RecipeError, match="the column 'x' holds numbers, expected words"):
        run_steps(table, [Balance(t=1, entries="x")])


def test_a_cut_by_a_model_that_reads_english_only_says_what_it_does_to_other_languages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    language = ["de" if n % 3 == 0 else "en" for n in range(60)]
    scores = [n % 2 * 0.3 + (each == "en") * 0.1 for n, each in enumerate(language)]
    run = write_run(tmp_path / "run", {"clip": scores, "top_language": language})
    for model, step, warned in (
        ("openai/clip-vit-base-patch32", {"at_least": {"score": "clip", "value": 0.05}}, True),
        (
            "openai/clip-vit-base-patch32",
            {"top_fraction": {"score": "clip", "fraction": 0.5, "per": "top_language"}},
            False,
        ),
        (
            "laion/CLIP-ViT-B-32-xlm-roberta-base-laion5B-s13B-b90k",
            {"at_least": {"score": "clip", "value": 0.05}},
            False,
        ),
    ):
        for group in run.scores.values():
            group.facts["models"] = {model: "0"}  # type: ignore[index]
        caplog.clear()
        tamis.select(run, {"name": "mine", "select": [step]})
        text = "drops 50 % of the captions in other languages and 0 % of the English ones by scores of openai/clip"
        assert (text in caplog.text) == warned
        assert len(caplog.records) == int(warned)


def test_groups_without_any_value_leave_nothing() -> None:
    table = MemoryTable({"entries": ["a", "b"], "w": np.full(2, np.nan, np.float32)})
    found = Balance(tail=0.2, per="w", missing="drop").select(table)
    assert found.counts["missing"] == 2
    assert not found.keep.any()


def test_the_shipped_recipe_gives_each_language_its_own_limit(tmp_path: Path) -> None:
    entries, language = ["a"] * 94 + ["b"] * 6 + ["c"] * 40, ["en"] * 100 + ["de"] * 40
    subset = tamis.select(write_run(tmp_path / "run", {"entries": entries, "top_language": language}), "balance")
    limits: Any = subset.funnel[-1]["facts"]["limits"]
    assert [(limit["group"], limit["t"]) for limit in limits] == [("en", 6), ("de", 40)]
    assert subset.keep[94:].all()
    assert 0 < subset.keep[:94].sum() < 20
