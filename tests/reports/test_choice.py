"""The first page, for the person who decides: which subset, what it keeps, gains, drops and costs; on one sheet."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_view import sections_of, shown
from browsing import NO_AXE, NO_BROWSER, barriers
from factories import image_bytes, pair, score, write_run, write_tar

import tamis
from tamis.core.errors import RunError
from tamis.core.files.checked import with_hash
from tamis.reports.context import Context
from tamis.reports.page import gather, render
from tamis.runs import Run

SAYS = ["名古屋の赤い車", "כלב שחור רץ על החוף ליד הים הגדול", "a dog on a beach", "cat", " "]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 120 pairs with captions from left to right, from right to left, without spaces, and empty ones."""
    folder = tmp_path_factory.mktemp("choice")
    samples = [(f"{n:03}", {**pair(n), "jpg": image_bytes(n), "txt": SAYS[n % 5].encode()}) for n in range(120)]
    write_tar(folder / "pool" / "00000.tar", samples)
    return score(folder / "pool", folder / "run", "caption_length", "language", "image_size")


def by_words(least: int, name: str = "") -> dict[str, Any]:
    step = {"at_least": {"score": "words", "value": least, "missing": "drop"}}
    return {"name": name or f"words-{least}", "select": [step]}


def benched(folder: Path, gain: dict[str, float]) -> Run:
    run = write_run(folder / "run", {"x": [1.0, 2.0, 3.0, 4.0]})
    kept = {"top": 2, "all": 4}
    shared = {"usable": 4, "epochs": 2.0, "scores": {}, "tasks": {}, "kinds": {}, "scoring_seconds": None,
              "training_seconds": 1.0, "score": {**gain, "n": 3}}  # fmt: skip
    names = {"top": gain, "all": None}
    facts = {
        "kind": "tamis bench", "format": 1, "rows": 4, "baseline": "all", "seeds": [0, 1, 2],
        "training": {"samples": 8, "model": "convnet"}, "failed": {},
        "contenders": [{"name": name, "kept": kept[name], "gain": each, **shared} for name, each in names.items()],
        "overlap": {one: dict.fromkeys(names, 1.0) for one in names},
    }  # fmt: skip
    (run.path / "bench.json").write_text(json.dumps(with_hash(facts)))
    return run


def test_the_subset_is_the_first_or_the_named_one_and_the_page_says_how_it_was_chosen(run: Run) -> None:
    subsets = [tamis.select(run, by_words(least)) for least in (2, 4)]
    said = [
        (facts["subset"]["label"], facts["how"])
        for some, settings in ((subsets[:1], {}), (subsets, {}), (subsets, {"chosen": "words-4"}))
        if (facts := sections_of(run, some, **settings)["choice"])
    ]
    assert said == [("words-2", "only"), ("words-2", "first"), ("words-4", "named")]
    with pytest.raises(RunError, match=r"unknown subset 'words-5'.*words-4"):
        sections_of(run, subsets, chosen="words-5")
    assert "choice" not in sections_of(run, [])
    html = render(gather(Context(run, subsets, title="<Trial> & error")))
    assert "<title>&lt;Trial&gt; &amp; error · Tamis report</title>" in html
    with pytest.raises(ValueError, match="expected 100 pairs or more, got 99"):
        tamis.report(run, subsets, out="page.html", interactive=True, pairs=99)
    with pytest.raises(ValueError, match="leave them out with interactive"):
        tamis.report(run, subsets, out="page.html", chosen="words-4", interactive=True)


def test_it_has_eight_pairs_of_each_side_the_largest_reasons_and_what_scoring_cost(run: Run) -> None:
    subset = tamis.select(run, "basic")
    facts = sections_of(run, [subset])["choice"]
    assert [len(facts[side]) for side in ("kept", "dropped", "why")] == [8, 8, 8]
    assert all(subset.keep[each.row] for each in facts["kept"])
    assert not any(subset.keep[each.row] for each in facts["dropped"])
    counts = Counter(subset.verdict.reason_of(row) for row in np.flatnonzero(~subset.keep)).most_common(3)
    assert [each["rows"] for each in facts["reasons"]] == [rows for _, rows in counts]
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert facts["cost"]["seconds"] == pytest.approx(sum(event.get("seconds", 0) for event in events))
    assert len(facts["cost"]["slowest"]) == 3
    text = shown(run, [subset], "choice")[1]
    assert f"{subset.kept} of 120 pairs. It is the only subset given." in text
    assert "Not measured. tamis bench run trains a small model on each subset." in text
    assert "with a missing, empty or broken image or caption" in text


def test_the_gain_of_a_bench_is_said_with_its_interval(tmp_path: Path) -> None:
    top = {"name": "top", "select": [{"top_n": {"score": "x", "n": 2}}]}
    run = benched(tmp_path / "sure", {"value": 0.04, "low": 0.01, "high": 0.07})
    text = shown(run, [tamis.select(run, top)], "choice")[1]
    assert "+0.040 over all, 95 % interval +0.010 to +0.070 (3 seeds, convnet)." in text
    assert "significant" not in text
    assert "It is the baseline of the bench: score 0.040." in shown(
        run, [tamis.select(run, {"name": "all", "select": []})], "choice")[1]  # fmt: skip
    assert "The last bench did not train on this subset. top scored best." in shown(
        run, [tamis.select(run, {**top, "name": "other"})], "choice")[1]  # fmt: skip
    changed = {"name": "top", "select": [{"top_n": {"score": "x", "n": 3}}]}
    assert "did not train on this subset" in shown(run, [tamis.select(run, changed)], "choice")[1]
    run = benched(tmp_path / "unsure", {"value": 0.04, "low": -0.01, "high": 0.09})
    assert "It includes 0: the difference is not significant." in shown(run, [tamis.select(run, top)], "choice")[1]


def test_nothing_is_compared_with_a_random_subset(run: Run) -> None:
    subsets = [tamis.select(run, recipe) for recipe in (by_words(1), "random", by_words(4), "no-filter")]
    sections = sections_of(run, subsets)
    assert [each["label"] for each in sections["overlap"]["subsets"]] == ["words-1", "words-4"]
    assert {each[side]["label"] for each in sections["overlap"]["only"] for side in ("keeps", "drops")} <= {
        "words-1", "words-4"}  # fmt: skip
    text = shown(run, subsets, "findings")[1]
    assert "words-4 is part of words-1, which keeps" in text
    assert "disagree" not in text
    assert sections_of(run, subsets[:2]).get("overlap") is None


def test_sections_draw_different_pairs_and_the_same_ones_again(run: Run) -> None:
    subsets = [tamis.select(run, by_words(least, name)) for least, name in ((1, "a"), (1, "b"), (2, "c"), (2, "d"))]
    drawn = [
        [each["pair"].row for each in gallery["kept"]]
        for gallery in sections_of(run, subsets)["galleries"]["galleries"]
    ]
    again = [
        [each["pair"].row for each in gallery["kept"]]
        for gallery in sections_of(run, subsets)["galleries"]["galleries"]
    ]
    assert drawn == again
    # With one order for all, each of the eight pairs would be drawn by both of two equal subsets, and most by all four.
    assert max(Counter(row for rows in drawn for row in rows).values()) <= 3
    assert len({row for rows in drawn for row in rows}) >= 16


@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
def test_it_prints_on_one_sheet_and_tiles_have_captions(browser: Any, run: Run, tmp_path: Path) -> None:
    subsets = [tamis.select(run, recipe) for recipe in ("basic", by_words(4), "random")]
    page = tamis.report(run, subsets, out=tmp_path / "report.html", title="Which alt-texts to train on", overwrite=True)
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.goto(page.as_uri())
    for paper in ("A4", "Letter"):
        assert len(re.findall(rb"/Type\s*/Page\b(?!s)", tab.pdf(format=paper))) == 1
    tab.locator("#overlap-title").click()  # what is open is printed too
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", tab.pdf(format="A4"))) > 1
    for tile in tab.locator("#choice .tile, .strip .tile").all():
        caption = tile.locator(".caption")
        assert caption.inner_text().strip()
        lines = caption.evaluate("(each) => each.clientHeight / parseFloat(getComputedStyle(each).lineHeight)")
        assert lines < 2.2
    hebrew = tab.locator(".tile .caption", has_text="כלב").first
    assert hebrew.evaluate("(each) => getComputedStyle(each).direction") == "rtl"
    assert hebrew.get_attribute("title") == SAYS[1]
    tab.close()
    if not NO_AXE:
        for scheme, width in (("light", 1440), ("dark", 390)):
            tab = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
            tab.goto(page.as_uri())
            assert barriers(tab) == []
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            tab.close()
