"""Single sections: what they gather of small runs, and what the page shows of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_view import parsed, sections_of, shown
from factories import pair, text_pool, write_pool, write_run, write_tar

import tamis
from tamis.core.files.checked import with_hash
from tamis.recipes.recipe import load
from tamis.reports import traits
from tamis.reports.context import Context
from tamis.reports.page import gather, render, write_report
from tamis.reports.sections.subsets import STRIP
from tamis.runs import Run
from tamis.runs.subset import Subset


def every(run: Run, name: str = "all") -> Subset:
    return Subset(run=run, keep=np.ones(len(run), bool), recipe={"name": name, "select": []})


def gallery_of(run: Run, subset: Subset) -> Any:
    (gallery,) = sections_of(run, [subset])["galleries"]["galleries"]
    return gallery


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Forty pairs: six in French, four tiny ones, and scores."""
    rows = np.arange(40)
    columns = {
        "top_language": ["fr" if row < 6 else "en" for row in rows],
        "english": [0.01 if row < 4 else 0.4 for row in rows],
        "words": [8.0] * 40,
        "shorter_side": [100.0 if row >= 36 else 300.0 for row in rows],
        "clip": (rows / 40).tolist(),
        "tmars": ((rows * 7 % 40) / 40).tolist(),
        "other_language": [0.9 if row < 6 else 0.0 for row in rows],
        "characters": [40.0] * 40,
    }
    return write_run(tmp_path_factory.mktemp("findings") / "run", columns)


def three(run: Run) -> list[Subset]:
    clean = [
        {"equals": {"score": "top_language", "value": "en"}},
        {"at_least": {"score": "shorter_side", "value": 200}},
    ]
    half = [{"name": f"by {name}", "select": [{"top_n": {"score": name, "n": 20}}]} for name in ("clip", "tmars")]
    return [tamis.select(run, each) for each in ({"name": "clean", "select": clean}, *half)]


def test_findings_of_the_pool_the_subsets_and_where_two_disagree(forty: Run) -> None:
    subsets = three(forty)
    said = sections_of(forty, subsets)["findings"]
    assert [tuple(each[name] for name in ("rows", "sentence", "ident")) for each in said["pool"]] == [
        (4, "4 captions (10.0 %) are probably not in English.", "language"),
        (4, "4 images (10.0 %) are tiny.", "tiny"),
    ]
    assert [tuple(each.values()) for each in said["subsets"][0]["drops"]] == [
        (6, "not English by DataComp's rule", "drop-0-1"),
        (4, "with a tiny image", "drop-0-2"),
    ]
    by_clip, by_tmars = (set(np.flatnonzero(each.keep)) for each in subsets[1:])
    html, text = shown(forty, subsets, "findings")
    assert all(f'href="#{place}"' in html for place in ("drop-0-1", "drop-1-1", "only-1-2"))
    parts = [
        tamis.select(forty, {"name": f"top {n}", "select": [{"top_n": {"score": "clip", "n": n}}]}) for n in (5, 9)
    ]
    assert "top 5 is part of top 9, which keeps 4 more." in shown(forty, parts, "findings")[1]
    assert "4 captions (10.0 %) are probably not in English." in text
    assert f"by clip and by tmars disagree on {2 * len(by_clip - by_tmars)}: " in text
    assert f"only by tmars keeps, {len(by_clip & by_tmars)} both keep." in text


def test_sections_with_nothing_to_say_are_left_out(small_run: Run) -> None:
    alone = sections_of(small_run, [])
    assert list(alone) == ["findings", "scores", "pool"]
    assert [alone["findings"][name] for name in ("pool", "subsets")] == [[], []]
    assert "4 pairs: all can be read, and the scores show nothing unusual." in shown(small_run, [], "findings")[1]
    assert set(sections_of(small_run, [every(small_run)])) - set(alone) == {"choice", "funnels", "galleries"}


def test_another_language_is_claimed_only_where_it_is_fairly_sure(tmp_path: Path) -> None:
    rows = [  # top language, its probability, English's, words, characters; the report says so, the recipe drops it
        ("fr", 0.9, 0.001, 9, 30, True, True),
        ("fr", 0.6, 0.019, 5, 30, True, True),
        ("fr", 0.59, 0.019, 5, 30, False, True),
        ("fr", 0.9, 0.02, 5, 30, False, False),
        ("fr", 0.9, 0.001, 4, 30, False, False),
        ("en", 0.0, 0.9, 9, 30, False, False),
        ("zh", 0.6, 0.049, 1, 8, True, True),  # no spaces: a sentence; the recipe drops it as too short
        ("zh", 0.9, 0.0, 1, 7, False, True),
        ("zh", 0.9, 0.05, 1, 8, False, True),
        (None, np.nan, np.nan, np.nan, np.nan, False, True),
    ]
    top, other, english, words, characters, *_ = zip(*rows, strict=True)
    columns = {"top_language": top, "other_language": other, "english": english, "words": words}
    columns |= {"characters": characters, "shorter_side": [300] * len(rows), "aspect_ratio": [1] * len(rows)}
    run = write_run(tmp_path / "run", columns)
    kinds = {each["ident"]: each for each in sections_of(run, [])["findings"]["pool"]}
    assert sorted(each.row for each in kinds["language"]["pairs"]) == [n for n, row in enumerate(rows) if row[5]]
    kept = np.flatnonzero(tamis.select(run, "basic-multilingual-safe").keep).tolist()
    assert kept == [number for number, row in enumerate(rows) if not row[6]]


def test_what_is_looked_for_is_what_the_recipes_ask() -> None:
    asked = {
        rule["score"]: rule["value"]
        for name in ("basic", "text_match")
        for step in load(name).text["select"]
        for kind, rule in step.items()
        if kind in ("at_least", "at_most", "equals")
    }
    assert asked["top_language"] == traits.LANGUAGE
    assert (asked["shorter_side"], asked["aspect_ratio"]) == (traits.SHORTER_SIDE, traits.ASPECT_RATIO)
    assert (asked["words"], asked["text_match"]) == (traits.WORDS, traits.SHARED - 1)
    any_of = load("basic-multilingual-safe").text["select"][1]["any_of"]
    assert any_of[0][0]["at_least"] == {"score": "english", "value": traits.ENGLISH, "missing": "drop"}
    assert any_of[1][0]["at_most"] == {"score": "words", "value": traits.ENOUGH_WORDS - 1, "missing": "drop"}


def test_correlations_are_those_of_ranks(forty: Run, tmp_path: Path) -> None:
    said = sections_of(forty, [])["correlation"]
    assert said["names"] == ["english", "words", "shorter_side", "clip", "tmars", "other_language", "characters"]
    assert said["matrix"][3, 3] == pytest.approx(1)
    assert said["matrix"][2, 3] < -0.5
    pool = write_pool(tmp_path / "pool", shards=1, rows=12)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length", "image_size"], quiet=True)
    sections = sections_of(run, [])
    names, matrix = sections["correlation"]["names"], sections["correlation"]["matrix"]
    assert matrix[names.index("words"), names.index("characters")] > 0.9


def test_every_step_has_its_cut_and_its_pairs(tmp_path: Path) -> None:
    words = ["en"] * 30 + ["fr"] * 10
    run = write_run(tmp_path / "run", {"x": list(range(40)), "top_language": words, "y": [*range(5, 44), np.nan]})
    steps = [
        {"equals": {"score": "top_language", "value": "en"}},
        {"between": {"score": "x", "low": 4, "high": 24}},
        {"at_least": {"score": "y", "value": 2, "missing": "drop"}},
    ]
    subset = tamis.select(run, {"name": "s", "select": steps})
    gallery = gallery_of(run, subset)
    assert [(each["before"], each["kept"]) for each in gallery["steps"]] == [(40, 30), (30, 21), (21, 21)]
    (language,), (between,), (last,) = (step["fallen"] for step in gallery["steps"])
    assert (language["reason"], language["rows"], language["lines"]) == ("top_language is not en", 10, [])
    assert len(language["dropped"]) == STRIP
    assert all(each["pair"].words["top_language"] == "fr" for each in language["dropped"])
    (line,) = between["lines"]
    assert line["marks"] == (4, 24)
    assert {each["score"] for each in line["just_dropped"]} == {3, 2, 1, 0, 25, 26, 27, 28}
    assert (last["rows"], [each["score"] for each in last["lines"][0]["just_kept"]][:2]) == (0, [9, 10])  # none fell
    _, text = shown(run, [subset], "galleries")
    assert "cut at" not in text
    assert all(words in text for words in ("drops 10 of 40", "drops 9 of 30", "drops nothing"))


def test_a_strip_shows_the_nearest_first_whatever_the_order_of_rows(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 30, 60).astype(float)  # with ties
    uids = [(number * 7919, number) for number in range(60)]
    seen = []
    for name, order in (("a", np.arange(60)), ("b", np.random.default_rng(2).permutation(60))):
        run = write_run(tmp_path / name, {"x": values[order].tolist()}, uids=[uids[row] for row in order])
        subset = tamis.select(run, {"name": "s", "select": [{"top_fraction": {"score": "x", "fraction": 0.5}}]})
        gallery = gallery_of(run, subset)
        (line,) = gallery["steps"][0]["fallen"][0]["lines"]
        kept, dropped = np.sort(run["x"][subset.keep]), np.sort(run["x"][~subset.keep])[::-1]
        assert [each["score"] for each in line["just_kept"]] == kept[:STRIP].tolist()
        assert [each["score"] for each in line["just_dropped"]] == dropped[:STRIP].tolist()
        assert {each["why"] for each in gallery["dropped"]} == {"Step 1: x below the cut"}
        strips = (line["just_kept"], line["just_dropped"], gallery["kept"], gallery["dropped"])
        seen.append([[int(order[each["pair"].row]) for each in strip] for strip in strips])
        assert [len(strip) for strip in seen[-1]] == [STRIP] * 4
    assert seen[0] == seen[1]


STEPS = [
    {"at_least": {"score": "mine", "value": 1.5}},
    {"top_n": {"score": "minmax(mine)", "n": 2}},
    {"at_most": {"score": "width", "value": 100, "missing": "drop"}},
]
RECIPE = {"name": "mine", "columns": {"mine": "given.x"}, "select": STEPS}


def test_only_cuts_that_still_hold_are_drawn(tmp_path: Path) -> None:
    """Not those that depend on the whole of a pool that has grown, nor those of a score that is gone."""
    run = write_run(tmp_path / "run", {"x": [1, 2, 3, 4, 5, 6]}, shards=3)
    parts = [run.index_path("00002"), run.path / "scores" / "given-0000000000000000" / "00002.parquet"]
    for part in parts:
        part.rename(part.with_suffix(".tomorrow"))
    tamis.select(run.path, RECIPE, partial=True).save(tmp_path / "mine.parquet")

    def drawn() -> list[str]:
        run = Run(tmp_path / "run")
        (verdict,) = Context(run, [Subset.load(tmp_path / "mine.parquet", run)]).verdicts
        return [cut.score for cut in verdict.cuts]

    for part in parts:
        part.with_suffix(".tomorrow").rename(part)
    assert drawn() == ["mine", "width"]
    shutil.rmtree(run.path / "scores")
    assert drawn() == ["width"]
    run = Run(run.path)
    subset = Subset.load(tmp_path / "mine.parquet", run)
    assert "Step 1: mine below 1.5" in shown(run, [subset], "galleries")[1]


@pytest.mark.parametrize(
    ("steps", "marks"),
    [  # per score the cuts of each subset
        ([[{"at_least": {"score": "x*x", "value": cut}}] for cut in (4, 36)], {"x": [[], []], "x*x": [[4], [36]]}),
        ([[{"at_least": {"score": "1 - 2*x", "value": -11}}]], {"x": [[6]]}),  # a line of a column is drawn as it
        ([[{"at_least": {"score": "x", "value": 3}}, {"top_n": {"score": "minmax(x) + x", "n": 2}}]],
         {"x": [[3]], "minmax(x) + x": [[pytest.approx(8 + 8 / 9)]]}),
    ],
)  # fmt: skip
def test_cuts_are_marked_on_columns_and_on_computed_scores(tmp_path: Path, steps: Any, marks: dict[str, Any]) -> None:
    run = write_run(tmp_path / "run", {"x": [float(number) for number in range(10)]})
    subsets = [tamis.select(run, {"name": "s", "select": each}) for each in steps]
    drawn = sections_of(run, subsets)["scores"]["distributions"]
    assert {each["column"]["name"]: [list(cuts) for cuts in each["marks"]] for each in drawn} == marks
    for each in drawn:
        assert [int(kept.sum()) for kept in each["histogram"].kept] == [len(subset) for subset in subsets]


def test_a_column_that_two_signals_give_is_drawn_once(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1)  # of 48 x 32 pixels, once 480 x 320
    asked = [{"image_size": {"of": of}} for of in ("original", "stored")]
    run = tamis.score(pool, run=tmp_path / "run", signals=asked, quiet=True)
    cut = {"score": f"{sorted(run.scores)[1]}.aspect_ratio", "value": 3}
    drawn = sections_of(run, [tamis.select(run, {"select": [{"at_most": cut}]})])["scores"]["distributions"]
    assert [each["column"]["name"] for each in drawn] == ["shorter_side", "aspect_ratio", "shorter_side"]
    assert [drawn[1]["signal"], *drawn[1]["also"]] == sorted(run.scores)
    assert [list(marks) for marks in drawn[1]["marks"]] == [[3.0]]
    assert [drawn[0]["also"], drawn[2]["also"]] == [[], []]


def test_a_score_has_a_pair_at_each_quantile_and_equal_values_one_for_all(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [0.0] * 60 + [float(number) for number in range(1, 41)]})
    (drawn,) = sections_of(run, [])["scores"]["distributions"]
    assert [(each["levels"], each["value"]) for each in drawn["strip"]] == [
        ([0.01, 0.1, 0.25, 0.5], 0), ([0.75], 15), ([0.9], 30), ([0.99], 39),
    ]  # fmt: skip
    assert [each["pair"].numbers["x"] for each in drawn["strip"]] == [0, 15, 30, 39]
    assert "1 to 50 % · 0" in shown(run, [], "scores")[1]


def test_values_are_counted_for_the_pool_and_each_subset(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"w": ["a", "b", "a", None, "a", "b"]})
    some = Subset(run=run, keep=np.array([1, 1, 0, 1, 0, 0], bool), recipe={"name": "some"})
    said = sections_of(run, [every(run), some])["values"]
    (column,) = said["columns"]
    assert (column["judged"], column["distinct"], column["others"]) == (5, 2, 0)
    counts = [tuple(value.values()) for value in column["values"]]
    assert counts == [("a", 3, (3, 1)), ("b", 2, (2, 1)), (None, 1, (1, 1))]
    assert "all pairs6100 % 100 %6 50.0 %3" in shown(run, [every(run), some], "values")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"v{number}" for number in range(40)], "Not listed: w (nearly every pair has a value of its own)."),
        ([""] * 60 + [f"sale {number}" for number in range(40)], "Not listed: w (free text, which"),
        ([f"v{number}" for number in range(15)], "v14"),  # few enough to be shown whatever they are
        ([f"v{number % 250:03d}" for number in range(1000)], "and 50 rarer ones"),
    ],
)
def test_columns_in_which_pairs_have_their_own_values_are_not_listed(
    tmp_path: Path, words: list[str], said: str
) -> None:
    run = write_run(tmp_path / "run", {"w": words})
    assert said in shown(run, [], "values")[1]
    assert ("Not listed" in said) == (not sections_of(run, [])["values"]["columns"])


def test_words_of_the_kept_captions_compared_with_those_of_the_pool(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [float(number) for number in range(60)]})
    captions = [str(row) for shard in run.shards for row in run.index(shard, ["caption"]).column("caption").to_pylist()]
    dogs = np.array(["dog" in caption.split() for caption in captions])
    assert 5 <= dogs.sum() <= 55
    chosen = [Subset(run=run, keep=dogs, recipe={"name": "dogs"}), every(run)]
    (of,) = sections_of(run, chosen)["values"]["captions"]["subsets"]  # one that keeps all captions is left out
    assert of["kept"] == dogs.sum()
    part, first = dogs.mean(), of["more"][0]
    assert first["surprise"] == pytest.approx(dogs.sum() * (1 - part) / (dogs.sum() * part * (1 - part)) ** 0.5)
    assert all(each["kept"] / each["pool"] < part for each in of["less"])
    assert f"dog100 %{dogs.sum()} of {dogs.sum()}" in shown(run, chosen, "values")[1]


def test_medium_phrases_are_counted_for_captions_and_the_nearest_generated_ones(
    tmp_path: Path, clip_model: str
) -> None:
    pytest.importorskip("torch")
    captions = ["Stock photo of a red dog", "photos of a cat", "a red dog", "A photo of a dog, photo of a cat", "???"]
    samples = [(f"{n:09d}", pair(n) | {"txt": text.encode()}) for n, text in enumerate(captions)]
    write_tar(tmp_path / "pool" / "00000.tar", samples)
    said = "".join(f'{{"key": "{n:09d}", "caption": "a picture of a dog"}}\n' for n in range(len(captions)))
    (tmp_path / "said.jsonl").write_text(said)
    entry = {"captions_from": str(tmp_path / "said.jsonl"), "encoder": clip_model, "medium": "tamis"}
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=[{"sieve": entry}], quiet=True)
    (of,) = sections_of(run, [])["values"]["medium"]
    assert (of["label"], of["phrases"]) == ("sieve", "tamis")
    assert of["generated"]["phrases"] == (("a picture of", 4),)  # the caption of "???" has no nearest one
    text = shown(run, [], "values")[1]
    assert "Of 5 captions 3 (60.0 %) lost 45 characters; 0 became empty." in text
    assert "stock photo of" in text


def test_only_groups_of_repeats_that_the_run_still_has_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0] * 6}, uids=[(0, number) for number in range(6)])
    uids = [f"{number:032x}" for number in range(6)]
    groups = [
        {"size": 3, "rows": [4, 1, 2], "uids": [uids[4], uids[1], uids[2]]},
        {"size": 2, "rows": [0, 3], "uids": [uids[0], uids[5]]},  # the run has other pairs there now
    ]
    facts = {"largest_groups": groups, "method": "<b>any</b>"}
    line = {"step": "one of each", "before": 6, "kept": 4, "dropped": {}, "facts": facts}
    subset = Subset(run=run, keep=np.array([1, 0, 0, 1, 1, 1], bool), recipe={"name": "once"}, funnel=[line])
    (of,) = sections_of(run, [subset])["findings"]["repeated"]
    assert [(group["size"], [each.row for each in group["pairs"]]) for group in of["groups"]] == [(3, [4, 1, 2])]
    _, text = shown(run, [subset], "findings")
    assert text.index("stays ") < text.index("repeats it")
    assert "method: <b>any</b>" in shown(run, [subset], "funnels")[1]


def test_repeats_of_the_pool_are_shown_where_no_recipe_looks_for_them(tmp_path: Path) -> None:
    images = {number: pair(number)["jpg"] for number in range(3)}
    write_tar(tmp_path / "pool" / "00000.tar", [(f"{n}", pair(n) | {"jpg": images[n % 3]}) for n in range(5)])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["image_hash"], quiet=True)
    sections = sections_of(run, [every(run)])
    (of,) = sections["findings"]["repeated"]
    assert of["subset"] is None
    assert sorted(sorted(each.row for each in group["pairs"]) for group in of["groups"]) == [[0, 3], [1, 4]]
    assert [(each["sentence"], each["drops"]) for each in sections["findings"]["pool"]] == [
        ("2 images (40.0 %) are near-copies of another.", "The recipe distinct keeps one of each."),
        ("2 images (40.0 %) are the same file as another.", "The recipe distinct keeps one of each."),
    ]
    once = tamis.select(run, "distinct")
    sections = sections_of(run, [every(run), once])
    assert [each["subset"]["place"] for each in sections["findings"]["repeated"]] == [1]
    assert 'href="#repeated-0"' in shown(run, [once], "galleries")[0]


def test_overlap_of_two_subsets_by_hand(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0, 3.0, 4.0]})
    keeps = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], bool)
    subsets = [Subset(run=run, keep=keep, recipe={"name": name}) for keep, name in zip(keeps, "ab", strict=True)]
    said = sections_of(run, subsets)["overlap"]
    assert said["shared"].tolist() == [[3, 2], [2, 3]]
    assert said["jaccard"].tolist() == [[1.0, 0.5], [0.5, 1.0]]
    assert [(each["keeps"]["label"], each["rows"], each["pairs"][0].row) for each in said["only"]] == [
        ("a", 1, 0), ("b", 1, 3),
    ]  # fmt: skip
    html, text = shown(run, subsets, "overlap")
    attributes = parsed(html)[1]
    assert ("href", "#only-1-0") in attributes
    assert "33.3 % of its own" in text


def test_notes_say_which_subset_cannot_be_explained(small_run: Run) -> None:
    odd = Subset(run=small_run, keep=np.array([True, False, True, True]), recipe={"name": "odd"})
    facts = gather(Context(small_run, [every(small_run), odd]))
    assert [each["subset"] for each in facts["notes"]["unexplained"]] == ["odd"]
    assert "odd: the page cannot say why pairs were dropped." in render(facts)


def benched(folder: Path) -> Run:
    def measured(value: float, half: float) -> dict[str, float]:
        return {"value": value, "low": value - half, "high": value + half, "n": 3}

    def contender(name: str, kept: int, gain: dict[str, float] | None) -> dict[str, Any]:
        return {
            "name": name, "kept": kept, "usable": kept, "epochs": 24.0, "scores": {"0": 0.3}, "gain": gain,
            "score": measured(0.3, 0.1), "tasks": {"objects": measured(0.25, 0.1)}, "kinds": {"visual": [kept // 2, 3]},
            "scoring_seconds": None, "training_seconds": 61.7,
        }  # fmt: skip

    run = write_run(folder / "run", {"x": [1.0, 2.0, 3.0, 4.0]})
    facts = {
        "kind": "tamis bench", "format": 1, "rows": 4, "baseline": "no-filter", "seeds": [0, 1, 2],
        "training": {"samples": 24576, "model": "convnet"}, "failed": {"<b>, seed 1": "its process died"},
        "contenders": [contender("<b>", 2, measured(-0.02, 0.05)), contender("no-filter", 4, None)],
        "overlap": {"<b>": {"<b>": 1.0, "no-filter": 0.5}, "no-filter": {"<b>": 0.5, "no-filter": None}},
    }  # fmt: skip
    (run.path / "bench.json").write_text(json.dumps(with_hash(facts)))
    return run


def test_the_last_bench_is_shown_with_scores_gains_kinds_and_overlap(tmp_path: Path) -> None:
    run = benched(tmp_path)
    html, text = shown(run, [], "bench")
    tags, attributes, _ = parsed(html)
    assert "b" not in tags  # a recipe's name is no markup
    for words in ("24,576 samples", "0.300", "0.200 to 0.400", "−0.020", "−0.070 to +0.030", "62 s", "33.3 %", "0.50"):
        assert words in text
    assert "<b>, seed 1 has no result: its process died" in text
    assert tags.count("svg") == 3  # two scores, one gain
    assert ("class", "cut") in attributes


def test_the_pairs_that_lose_most_are_shown_outlined_and_painted_over(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("rapidocr")
    folder = text_pool(tmp_path / "pool", "a red car", "two green apples")
    signals = [{"tmars": {"model": "lab/clip"}}, "text_match"]  # it reads: without the text it sees nothing
    run = tamis.score(folder, run=tmp_path / "run", signals=signals, quiet=True)
    said = sections_of(run, [])["text"]
    drop = run.to_numpy("clip_drop")
    rows = [each.row for each in said["pairs"]]
    assert rows == [row for row in np.argsort(-drop, kind="stable") if drop[row] > 0]
    assert rows
    assert set(rows) <= {3, 4}
    for each in said["pairs"]:
        assert each.painted[0] != each.painted[1] != each.thumbnail
        assert each.painted[1].startswith("data:image/")
    page = write_report(run, [], tmp_path / "report.html").read_text()
    assert page.count("text outlined and painted over") == len(rows)
