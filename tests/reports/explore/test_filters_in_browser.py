"""Filters, searching while one types, saved views, and the pair view, in a real browser."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import NO_AXE, NO_BROWSER, barriers
from explored_page import Page, served
from explored_tab import CUT, opened, shows

import tamis

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
from playwright.sync_api import expect

SHARE = {"name": "share", "select": [{"top_fraction": {"score": "words", "fraction": 0.5, "missing": "drop"}}]}
TOLD = "main > .told"


def passing(run: tamis.Run, *texts: str) -> list[int]:
    """Rows whose captions have one of some texts."""
    captions = run["caption"]
    return [row for row in range(60) if captions[row] and any(text in captions[row].lower() for text in texts)]


def test_captions_are_searched_while_one_types(tab: Any, page: Page) -> None:
    run = tamis.open_run(page.run)
    asked: list[str] = []
    tab.on("request", lambda sent: asked.append(sent.post_data) if sent.url.endswith("ask/rows") else None)
    opened(tab, page)
    shows(tab, 60)
    letters = run["caption"][20].lower()[:12]
    asked.clear()
    tab.locator("#caption").press_sequentially(letters, delay=5)
    expect(tab.locator(TOLD)).to_have_text(f"{len(passing(run, letters))} pairs".replace("1 pairs", "1 pair"))
    assert len(asked) < len(letters) / 2  # not one for each letter
    expect(tab.locator(".busy")).to_be_hidden()
    tab.press("#caption", "Enter")
    expect(tab.locator(".filters button")).to_have_text([f"caption has {letters} ×"])
    expect(tab.locator("#caption")).to_have_value("")


def test_a_slow_search_shows_a_sign_and_the_newest_answer_stays(tab: Any, page: Page) -> None:
    run = tamis.open_run(page.run)
    opened(tab, page)
    shows(tab, 60)

    def late(route: Any) -> None:
        tab.wait_for_timeout(400)
        route.continue_()

    tab.route("**/ask/rows", late)
    tab.fill("#caption", "script")
    tab.wait_for_selector(".busy:visible")
    tab.fill("#caption", "javascript")
    expect(tab.locator(TOLD)).to_have_text(f"{len(passing(run, 'javascript'))} pair")
    expect(tab.locator(".controls .busy")).to_be_hidden()
    tab.unroute("**/ask/rows")


def test_several_filters_narrow_the_pairs_and_the_charts(tab: Any, page: Page) -> None:
    run = tamis.open_run(page.run)
    rows = passing(run, "script", "svg")
    words = run["words"]
    rows = [row for row in rows if 1 <= words[row] <= 4]
    filters = {"captions": ["script | svg"], "ranges": [["words", 1, 4]], "words": [["status", "ok"], ["status", "x"]]}
    opened(tab, page, recipe=CUT, charts=["words"], **filters)
    expect(tab.locator(TOLD)).to_have_text(f"{len(rows)} pairs")
    chart = tab.locator(".chart svg")
    kept = sum(words[row] >= 3 for row in rows)
    expect(chart).to_have_attribute(
        "aria-label", re.compile(f"{len(rows)} pairs pass the filters, {kept} kept pairs have it")
    )
    chips = tab.locator(".filters button")
    assert chips.all_inner_texts() == [
        "caption has script or svg ×", "words 1 to 4 ×", "status ok ×", "or status x ×",
    ]  # fmt: skip
    assert NO_AXE or barriers(tab) == []
    chips.nth(1).click()
    expect(tab.locator(TOLD)).to_have_text(f"{len(passing(run, 'script', 'svg'))} pairs")
    tab.click("#words")
    expect(tab.locator(".words button[aria-pressed=true]")).to_have_text("ok")
    tab.click("#no-filters")
    expect(tab.locator(TOLD)).to_have_text("60 pairs")
    expect(chart).not_to_have_class("narrowed")


def test_views_are_saved_by_name_in_the_run(tab: Any, page: Page) -> None:
    opened(tab, page, captions=["script"], view="map")
    tab.click(".saved summary")
    tab.fill("#view-name", "scripts <b>")
    tab.click("#save-view")
    saved = tab.locator(".saved li button").first
    expect(saved).to_have_text("scripts <b>")
    tab.fill("#view-name", "scripts <b>")
    tab.click("#save-view")
    expect(tab.locator("#said")).to_contain_text("already")
    expect(tab.locator("#save-view")).to_have_text("Replace it")
    tab.click("#save-view")
    expect(tab.locator("#save-view")).to_have_text("Save")
    assert NO_AXE or barriers(tab) == []
    opened(tab, page)
    tab.click(".saved summary")
    saved.click()
    expect(tab.locator("#view-map")).to_have_attribute("aria-current", "page")
    expect(tab.locator(".filters button")).to_have_text(["caption has script ×"])
    tab.click(".saved summary")
    tab.get_by_label("Delete the view scripts <b>").click()
    expect(saved).to_have_count(0)


def test_a_pair_shows_the_recipes_scores_first_and_each_recipe_once(
    tab: Any, page: Page, run_folder: Path, tmp_path: Path
) -> None:
    run = tamis.open_run(run_folder)
    tamis.select(run, CUT).save(tmp_path / "cut.parquet")
    tab.set_viewport_size({"width": 1440, "height": 900})
    with served(run_folder, subsets=[tmp_path / "cut.parquet"]) as other:
        opened(tab, other, pair=20)
        rows = tab.locator("table.scores").first.locator("tr")
        expect(rows).to_have_count(2)
        expect(rows.nth(1)).to_contain_text("cut at 3")
        expect(tab.locator(".verdicts li")).to_have_count(1)
        expect(tab.locator(".verdicts li")).to_contain_text("cut")
        assert tab.locator("#other-scores").get_attribute("open") is None
        for image in tab.locator(".strip button").all():
            box = image.bounding_box()
            assert box["y"] + box["height"] <= 900
        below = np.count_nonzero(run["words"] < 3) + np.count_nonzero(run["words"] == 3) / 2
        place = tab.locator("table.scores .place .cut").first.get_attribute("style")
        assert float(place.partition("left: ")[2].partition("%")[0]) == pytest.approx(100 * below / 60, abs=0.01)
        tab.click("#close-pair")
        tab.fill("#number-0-value", "4")
        tab.press("#number-0-value", "Enter")
        tab.locator("[role=option]").first.click()
        expect(tab.locator(".verdicts li")).to_have_count(2)
        expect(tab.locator(".verdicts li").first).to_contain_text("cut, as changed here")


def test_boxes_of_shares_take_per_cent_and_a_wrong_number_changes_nothing(tab: Any, page: Page) -> None:
    opened(tab, page, recipe=SHARE)
    shows(tab, 30)
    box, said = tab.locator("#number-0-fraction"), tab.locator("#said")
    for text, shown, kept in (("20", "20 %", 12), ("10%", "10 %", 6), (".3", "30 %", 18), ("1", "1 %", 1)):
        box.fill(text)
        box.press("Enter")
        expect(box).to_have_value(shown)
        shows(tab, kept)
        if text == ".3":
            expect(said).to_contain_text(".3 was read as 30 %")
    pairs = tab.locator("[role=option]").count()
    for text in ("300", "a third", "-5"):
        box.fill(text)
        box.press("Enter")
        expect(said).to_contain_text("the step is unchanged")
        expect(box).to_have_attribute("aria-invalid", "true")
        shows(tab, 1)
    assert tab.locator("[role=option]").count() == pairs


def test_a_recipe_that_fails_keeps_the_pairs_of_before(tab: Any, page: Page) -> None:
    opened(tab, page, recipe=CUT)
    expect(tab.locator(TOLD)).to_have_text("60 pairs")
    tab.select_option("#add-kind", "tagged")
    tab.fill("#add-value", ",")
    tab.click("#add")
    expect(tab.locator(".problem[role=alert]")).to_be_visible()
    expect(tab.locator(TOLD)).to_contain_text("The pairs of before are shown.")
    assert tab.locator("[role=option]").count() > 10
