"""The page without a server, in a real browser: its answers are the server's, and it loads nothing."""

import base64
import io
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import PIL.Image
import pytest
import yaml
from browsing import NO_AXE, NO_BROWSER, barriers
from explored_page import HOSTILE
from explored_tab import PHONE, new_tab
from factories import write_run

import tamis
from tamis.commands.report import open_explorer
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.image_cache import Images
from tamis.reports.explore.pages import Pages
from tamis.reports.explore.static import bundle, draw
from tamis.runs.subset import Subset

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
if NO_AXE:
    pytest.skip(NO_AXE, allow_module_level=True)
from playwright.sync_api import expect

ROWS = 400

#: A recipe for each kind of step that the page applies itself.
RECIPES: dict[str, list[Any]] = {
    "every pair": [],
    "at_least, float32": [{"at_least": {"score": "a", "value": 0.3, "missing": "drop"}}],
    "at_most of an integer": [{"at_most": {"score": "n", "value": 4}}],
    "between": [{"between": {"score": "a", "low": 0.2, "high": 0.7, "missing": "drop"}}],
    "equals a word": [{"equals": {"score": "w", "value": ["red", "blue"], "missing": "drop"}}],
    "readable": [{"equals": {"score": "status", "value": ["ok", "json_broken", "duplicate_key"]}}],
    "equals a number": [{"equals": {"score": "n", "value": [2, 3]}}],
    "top_fraction with ties": [{"top_fraction": {"score": "n", "fraction": 0.29}}],
    "top_fraction of the pool": [
        {"at_least": {"score": "n", "value": 2}},
        {"top_fraction": {"score": "a", "fraction": 0.3, "of": "pool", "missing": "drop"}},
    ],
    "top_n": [{"top_n": {"score": "b", "n": 37}}],
    "random_fraction": [{"random_fraction": {"fraction": 0.5, "seed": 0}}],
    "an expression": [{"at_least": {"score": "0.5*minmax(a) + 0.5*rank(b)", "value": 0.6, "missing": "drop"}}],
    "a line": [{"at_most": {"score": "1 - b", "value": 0.8}}],
    "all_of": [{"all_of": [{"at_least": {"score": "b", "value": 0.2}}, [{"top_n": {"score": "n", "n": 200}}]]}],
    "any_of": [{"any_of": [{"at_least": {"score": "b", "value": 0.9}}, {"equals": {"score": "n", "value": 5}}]}],
    "none_of": [{"none_of": [[{"at_most": {"score": "b", "value": 0.1}}], [{"equals": {"score": "n", "value": 0}}]]}],
    "an alias": [{"at_least": {"score": "mine", "value": 0.5}}],
    "groups in groups": [
        {"any_of": [[{"top_n": {"score": "n", "n": 9}}, {"all_of": [{"at_least": {"score": "b", "value": 0.1}}]}],
                    {"none_of": [{"at_most": {"score": "1 - b", "value": 0.9}}]},
                    [{"at_least": {"score": "a", "value": 0.8, "missing": "drop"}}]]},
        {"at_most": {"score": "mine", "value": 0.9}},
        {"at_most": {"score": "b", "value": 0.8}},
    ],
}  # fmt: skip


def as_recipe(name: str) -> dict[str, Any]:
    aliases = {"columns": {"mine": "b"}} if name in ("an alias", "groups in groups") else {}
    return {"name": "recipe", **aliases, "select": RECIPES[name]}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[tamis.Run, list[Path]]:
    """A run with ties, nulls and words, and a subset for each recipe."""
    folder, random = tmp_path_factory.mktemp("static"), np.random.default_rng(0)
    a = random.random(ROWS).astype(np.float32)
    a[::7] = np.nan
    a[1] = np.float32(0.3)
    columns = {"a": a, "b": random.random(ROWS), "n": random.integers(0, 6, ROWS)}
    words = [None if row % 11 == 0 else ["red", "blue", "green"][row % 3] for row in range(ROWS)]
    run = write_run(folder / "run", {**columns, "w": words})
    paths = []
    for number, name in enumerate(RECIPES):
        paths.append(folder / f"{number}.parquet")
        tamis.select(run, as_recipe(name) | {"name": f"r{number}"}).save(paths[-1])
    return run, paths


def asked(tab: Any, name: str, **about: Any) -> Any:
    """What the page's own code answers; run next to the page, since its policy lets no other script into it."""
    if not tab.evaluate("typeof globalThis.ask === 'function'"):
        web = {entry.name: entry.read_text("utf-8") for entry in (files("tamis.reports.explore") / "web").iterdir()}
        probe = 'import { ask } from "./ask.js";\nglobalThis.ask = ask;'
        script = bundle({**web, "ask.js": web["static.js"], "probe.js": probe}, "probe.js")
        tab.evaluate(f"() => {{ {script} }}")
    return tab.evaluate("([name, about]) => ask(name, about)", [name, about])


def open_page(tab: Any, page: Path, **state: Any) -> None:
    tab.goto("about:blank")
    tab.goto(f"{page.as_uri()}#{urlencode({key: json.dumps(value) for key, value in state.items()})}")
    tab.wait_for_selector("body.ready")


@pytest.fixture(scope="module")
def whole(given: tuple[tamis.Run, list[Path]], browser: Any) -> Iterator[tuple[Any, Pages]]:
    """The page with all pairs in a tab, and what a server answers."""
    run, paths = given
    page = tamis.report(run, paths, out=run.path.parent / "whole.html", interactive=True)
    explorer, _ = open_explorer(run, paths, partial=False)
    with new_tab(browser, page.as_uri()) as tab:
        open_page(tab, page)
        yield tab, Pages(explorer, Images(explorer.run))


VIEW = {
    "show": "all", "reason": 0, "ranges": [], "words": [], "tags": [], "captions": [], "sort": "row", "column": "",
    "descending": True, "region": [],
}  # fmt: skip


def served(pages: Pages, name: str, **about: Any) -> Any:
    """What a server answers, as JSON holds it."""
    return json.loads(json.dumps(pages.answers[name](about)))


def changed(name: str) -> dict[str, Any]:
    """A recipe that no subset has, so that the page applies it."""
    return {**as_recipe(name), "select": [*RECIPES[name], {"at_least": {"score": "n", "value": -1}}]}


@pytest.mark.parametrize("name", RECIPES)
def test_with_all_pairs_the_page_keeps_what_select_keeps(name: str, whole: tuple[Any, Pages]) -> None:
    tab, pages = whole
    question = {"recipe": changed(name), "view": VIEW, "columns": ["a", "n"], "start": 0, "count": 240}
    ours, theirs = asked(tab, "rows", **question), served(pages, "rows", **question)
    assert ours == {**theirs, "drawn": False}  # every card with its verdict and reason
    numbers = ("rows", "kept", "times", "bars", "shown")
    for view in (VIEW, {**VIEW, "ranges": [["a", 0.2, 0.7]], "captions": ["dog | cat"]}):
        question = {"recipe": changed(name), "columns": ["a", "b", "n"], "view": view}
        ours, theirs = asked(tab, "choose", **question), served(pages, "choose", **question)
        assert [ours[key] for key in numbers] == [theirs[key] for key in numbers]
    lines = [
        [{key: line[key] for key in ("step", "before", "kept")} for line in each["funnel"]] for each in (ours, theirs)
    ]
    assert lines[0] == lines[1]
    tops = [[line["cut"] for line in each["funnel"] if line["step"].startswith("top ")] for each in (ours, theirs)]
    assert tops[0] == tops[1]
    reasons = [[reason for reason in each["reasons"] if reason["rows"]] for each in (ours, theirs)]
    assert reasons[0] == reasons[1]
    cuts = [
        [[cut[key] for key in ("score", "low", "high", "dropped")] for cut in each["cuts"]] for each in (ours, theirs)
    ]
    assert cuts[0] == cuts[1]
    question = {"row": 9, "recipe": changed(name), "recipes": []}
    assert asked(tab, "pair", **question)["scores"] == served(pages, "pair", **question)["scores"]


@pytest.mark.parametrize(
    "view",
    [
        {"sort": "random"},
        {"sort": "cut"},
        {"sort": "score", "column": "a", "descending": False},
        {"sort": "score", "column": "n"},
        {"sort": "extremes", "column": "b"},
        {"show": "dropped", "ranges": [["a", 0.3, None], ["b", None, 0.5]]},
        {"show": "kept", "words": [["w", "red"]], "captions": ["DOG"]},
        {"words": [["w", "red"], ["w", "blue"]], "captions": ["CAT | dog |", "a"]},
        {"region": [1, 0]},
        {"reason": 1, "sort": "random"},
    ],
    ids=str,
)
def test_views_list_the_same_pairs_in_the_same_order(view: dict[str, Any], whole: tuple[Any, Pages]) -> None:
    tab, pages = whole
    about = {
        "recipe": changed("top_fraction of the pool"),
        "view": VIEW | view,
        "columns": ["b"],
        "start": 0,
        "count": 240,
    }
    about["compared"] = [{"name": "r1", "saved": 1}, changed("top_n")] if "region" in view else []
    assert asked(tab, "rows", **about) == {**served(pages, "rows", **about), "drawn": False}


def test_charts_and_comparisons_have_the_same_numbers(whole: tuple[Any, Pages]) -> None:
    tab, pages = whole
    recipe = changed("between")
    compared = [{"name": "r1", "saved": 1}, changed("top_n"), recipe]
    for name, about in {
        "histograms": {"columns": ["a", "b", "n"]},
        "regions": {"compared": compared},
        "words": {"column": "w", "part": "E", "recipe": recipe, "view": {**VIEW, "captions": ["dog"]}},
    }.items():
        assert asked(tab, name, **about) == served(pages, name, **about), name
    about = {"row": 9, "recipe": recipe, "recipes": [["mine", recipe], ["r1", compared[0]]]}
    ours, theirs = asked(tab, "pair", **about), served(pages, "pair", **about)
    assert {**ours, "url": None, "painted": theirs["painted"]} == theirs


@pytest.fixture(scope="module")
def sampled(given: tuple[tamis.Run, list[Path]]) -> Path:
    """The page with a quarter of the pairs."""
    run, paths = given
    return tamis.report(run, paths[1:3], out=run.path.parent / "sampled.html", interactive=True, pairs=100)


def test_of_a_sample_single_pairs_are_judged_as_select_judges_them(
    sampled: Path, given: tuple[tamis.Run, list[Path]], browser: Any
) -> None:
    run, paths = given
    with new_tab(browser, sampled.as_uri()) as tab:
        open_page(tab, sampled)
        for name in ("between", "equals a word", "any_of", "an alias"):
            about = {"recipe": changed(name), "view": VIEW, "columns": [], "start": 0, "count": ROWS}
            cards, keep = asked(tab, "rows", **about)["cards"], tamis.select(run, changed(name)).keep
            assert 90 <= len(cards) <= 100
            assert [card["kept"] for card in cards] == [bool(keep[card["row"]]) for card in cards]
        # What a given subset keeps is counted; a number that the recipe sets is known; the rest has an interval.
        first = tamis.select(run, as_recipe("at_least, float32"))
        said = asked(tab, "choose", recipe=as_recipe("at_least, float32"))
        assert (said["kept"], said["models"]) == (first.kept, [f"Counted over all {ROWS} pairs"])
        assert asked(tab, "choose", recipe=changed("top_n"))["kept"] == pytest.approx(37, abs=3)
        assert asked(tab, "choose", recipe=as_recipe("top_n"))["kept"] == 37
        # Not known: a share of survivors that are estimated, or a number near that of the pairs with a value.
        some = {"name": "some", "select": [*RECIPES["between"], *RECIPES["top_fraction with ties"]]}
        assert "Estimated" in asked(tab, "choose", recipe=some)["models"][0]
        many = {"top_n": {"score": "a", "n": int(np.isfinite(run.to_pandas(["a"])["a"]).sum()), "missing": "drop"}}
        assert "Estimated" in asked(tab, "choose", recipe={"name": "many", "select": [many]})["models"][0]
        found = asked(tab, "choose", recipe=changed("between"))
        keep = tamis.select(run, changed("between")).keep
        count, margin = estimate(CachedRun(run.path), paths[1:3], keep)
        assert found["kept"] == pytest.approx(count)
        ends = f"{(count - margin) / ROWS:.1%} to {(count + margin) / ROWS:.1%}".replace("%", "", 1).replace("%", " %")
        assert ends in found["models"][0]
        assert count - margin <= keep.sum() <= count + margin


def estimate(run: CachedRun, paths: list[Path], keep: Any) -> tuple[float, float]:
    """How many pairs of a run a recipe keeps, and half the 95 % interval, stratum by stratum: Cochran 1977, 5.4."""
    rows, strata, sizes = draw(run, [Subset.load(path, run) for path in paths], 100)
    total = variance = 0.0
    for stratum, size in enumerate(sizes.tolist()):
        here = keep[rows[strata == stratum]]
        if here.size:
            total += size * here.mean()
            share = (here.sum() + 2) / (here.size + 4)
            variance += size**2 * (1 - here.size / size) * share * (1 - share) / here.size
    return total, 1.96 * variance**0.5


def test_a_reader_moves_a_slider_opens_a_pair_and_copies_the_command(sampled: Path, browser: Any) -> None:
    settings = {"color_scheme": "dark", "permissions": ["clipboard-read", "clipboard-write"]}
    with new_tab(browser, sampled.as_uri(), **settings) as tab:
        open_page(tab, sampled)
        expect(tab.locator("main")).to_contain_text("Only r1, dropped by r2")
        expect(tab.locator("main [role=option]").first).to_be_visible()
        tab.click("#view-grid")
        given = asked(tab, "choose", recipe=as_recipe("at_least, float32"))
        assert tab.locator("#kept").inner_text() == str(given["kept"])
        tab.fill("#number-0-value", "0.6")
        tab.keyboard.press("Enter")
        expect(tab.locator("#recipe")).to_contain_text("Estimated from the")
        expect(tab.locator(".kept-head")).to_have_text(re.compile(r"^about \d+ of 400 pairs kept$"))
        expect(tab.locator("main > .told")).to_contain_text("drawn pairs")
        assert barriers(tab) == []
        tab.click("#copy-export")
        command = tab.evaluate("navigator.clipboard.readText()")
        written = command.partition("<<'RECIPE'\n")[2].partition("RECIPE\n")[0]
        assert yaml.safe_load(written)["select"] == [{"at_least": {"score": "a", "value": 0.6, "missing": "drop"}}]
        assert command.endswith(f"tamis select '{asked(tab, 'facts')['run']}' --recipe 'r1.yaml' --out 'r1.parquet'")
        tab.locator("[role=option]:visible").first.click()
        expect(tab.locator("dialog")).to_contain_text("percentile")


#: Tries to run a script, to load an image and to connect; returns what the policy refused.
TRY = """() => new Promise((done) => {
  const refused = [];
  document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
  const script = document.createElement("script");
  script.textContent = "window.hurt = 1";
  document.body.append(script);
  new Image().src = "https://pool.example/image.png";
  fetch("https://pool.example/").catch(() => setTimeout(() => done(refused), 100));
})"""


def test_the_policy_refuses_other_scripts_images_from_elsewhere_and_connections(sampled: Path, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(sampled.as_uri())
    tab.wait_for_selector("body.ready")
    assert sorted(tab.evaluate(TRY)) == ["connect-src", "img-src", "script-src-elem"]
    assert tab.evaluate("window.hurt") is None
    tab.close()


def test_findings_with_their_pairs_and_colours_of_the_map_are_the_servers(
    mixed_run: Path, tmp_path: Path, browser: Any
) -> None:
    page = tamis.report(mixed_run, out=tmp_path / "page.html", interactive=True)
    explorer, _ = open_explorer(mixed_run, [], partial=False)
    pages = Pages(explorer, Images(explorer.run))
    with new_tab(browser, page.as_uri()) as tab:
        open_page(tab, page, view="findings")
        expect(tab.locator("#findings button").first).to_be_visible()
        found = asked(tab, "findings")
        assert found == served(pages, "findings")
        assert len(found["findings"]) > 2
        for finding in found["findings"]:
            about = {"recipe": {"select": []}, "view": VIEW, "columns": [], "start": 0, "count": 60}
            about["finding"] = finding["ident"]
            assert asked(tab, "rows", **about) == {**served(pages, "rows", **about), "drawn": False}
        long = {"name": "long", "select": [{"at_least": {"score": "words", "value": 5}}]}
        for by in ("kept", "status", "disagreement"):
            compared = [long, {"name": "all", "select": []}] if by == "disagreement" else []
            about = {"map": "image_embedding", "by": by, "recipe": long, "compared": compared}
            packed = pages.answers["colours"](about)
            facts = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
            shown = asked(tab, "colours", **about)[0]
            assert shown["legend"] == [entry for entry in facts["legend"] if by == "kept" or entry["rows"]]
            assert (shown["others"], shown["none"]) == (facts["others"], facts["none"])


def test_a_step_that_needs_the_whole_pool_drops_what_it_dropped_in_the_given_subset(
    mixed_run: Path, tmp_path: Path, browser: Any
) -> None:
    first = [{"distinct": {"missing": "drop"}}, {"at_least": {"score": "words", "value": 4}}]
    subset = tamis.select(mixed_run, {"name": "one", "select": first})
    page = tamis.report(mixed_run, [subset], out=tmp_path / "page.html", interactive=True)
    moved = {"name": "one", "select": [first[0], {"at_least": {"score": "words", "value": 6}}]}
    with new_tab(browser, page.as_uri()) as tab:
        open_page(tab, page, view="grid", show="dropped", sort="row")
        about = {"recipe": moved, "view": VIEW, "columns": [], "start": 0, "count": 60}
        keep = tamis.select(mixed_run, moved).keep.tolist()
        assert [card["kept"] for card in asked(tab, "rows", **about)["cards"]] == keep
        assert asked(tab, "choose", recipe=moved)["models"][0].startswith("Counted")
        behind = {"name": "one", "select": [{"at_least": {"score": "words", "value": 3}}, first[0]]}
        assert "in the subset one, but" in asked(tab, "choose", recipe=behind)["models"][0]
        other = {"name": "other", "select": [{"distinct": {"distance": 2, "missing": "drop"}}]}
        assert "whole pool" in tab.evaluate(
            "(recipe) => ask('choose', { recipe }).catch((error) => error.message)", other
        )
        hidden = tab.locator("#view-copies, #save, .tag-bar")
        assert hidden.count() == 3
        assert not any(hidden.evaluate_all("(some) => some.map((one) => one.checkVisibility())"))
        copies = {row: subset.verdict.original_of(row) for row in (11, 12)}
        assert sorted(copies.values(), key=str) != [None, None]
        for row, original in copies.items():
            (verdict,) = asked(tab, "pair", row=row, recipes=[["one", {"name": "one", "saved": 0}]])["verdicts"]
            assert verdict["repeats"] == original


def test_hostile_captions_are_text_and_images_have_no_metadata(mixed_run: Path, tmp_path: Path, browser: Any) -> None:
    page = tamis.report(mixed_run, out=tmp_path / "page.html", interactive=True)
    written = page.read_text(encoding="utf-8")
    assert "<script>window.hurt" not in written
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)", written.partition("<script")[0])
    with new_tab(browser, page.as_uri(), viewport=PHONE) as tab:
        open_page(tab, page, recipe={"name": "mine", "select": []}, sort="row")
        for row, caption in enumerate(HOSTILE[:6]):
            open_page(tab, page, recipe={"name": "mine", "select": []}, pair=row)
            expect(tab.locator("dialog blockquote")).to_contain_text(caption.split()[0])
            assert tab.evaluate("window.hurt") is None
        assert asked(tab, "pair", row=6, recipes=[])["caption_length"] == 100_000
        open_page(tab, page, recipe={"name": "mine", "select": []}, sort="row")
        image = tab.locator("[role=option] img").first
        expect(image).to_have_js_property("complete", True)
        assert image.evaluate("(image) => image.naturalWidth") == 48
        assert tab.locator("[role=option]", has=tab.locator("i", has_text="image broken")).count() == 1
        open_page(tab, page, recipe={"name": "mine", "select": []}, view="map")
        expect(tab.locator(".legend")).to_contain_text("kept 59")
        assert barriers(tab) == []
    for data in re.findall(r"^[A-Za-z0-9+/=]{80,}$", written, re.MULTILINE):
        assert not PIL.Image.open(io.BytesIO(base64.b64decode(data))).getexif()
