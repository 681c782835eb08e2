"""Copies in the page: the pair that a copy repeats, groups, their distance, and the pair that stays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import NO_AXE, NO_BROWSER, barriers
from explored_page import Page, served
from explored_tab import opened, shows

import tamis

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)

from playwright.sync_api import expect

DISTINCT = {"name": "one", "select": [{"distinct": {"missing": "drop"}}]}


def copy_and_original(page: Page) -> tuple[int, int]:
    """Returns the rows of the pool's one copy: the one that is dropped, and the one that stays."""
    cards = page.ask("rows", recipe=DISTINCT, view={"sort": "row"})["cards"]
    (found,) = [(card["row"], card["repeats"]) for card in cards if card["repeats"] is not None]
    assert set(found) == {11, 12}
    return int(found[0]), int(found[1])


def test_a_dropped_copy_leads_to_the_pair_that_it_repeats(tab: Any, page: Page) -> None:
    copy, original = copy_and_original(page)
    opened(tab, page, recipe=DISTINCT, show="dropped", sort="row")
    tab.locator(f".card[data-row='{copy}'] .original").click()
    expect(tab.locator("#pair h2")).to_have_text(f"Pair {original}")
    opened(tab, page, recipe=DISTINCT, pair=copy)
    link = tab.locator("#pair .original")
    expect(link).to_have_text(f" Pair {original}")
    tab.locator("#close-pair").focus()
    tab.keyboard.press("o")
    expect(tab.locator("#pair h2")).to_have_text(f"Pair {original}")
    expect(link).to_have_count(0)


@pytest.fixture(scope="module")
def copied(copied_run: Path) -> Iterator[Page]:
    with served(copied_run) as page:
        yield page


def first_row(tab: Any) -> int:
    """Returns the row of the pair that stays of the largest group."""
    return int(tab.locator(".copies .card").first.get_attribute("id").removeprefix("copy-"))


def test_the_slider_shows_what_select_drops_and_goes_into_the_recipe(tab: Any, copied: Page) -> None:
    def dropped(distance: int) -> int:
        step = {"distinct": {"missing": "drop", "distance": distance}}
        return 24 - len(tamis.select(copied.run, {"select": [step]}))

    opened(tab, copied, recipe=DISTINCT, view="copies")
    told = tab.locator(".above [role=status]")
    expect(told).to_have_text("2 groups, 7 of 24 pairs repeat another (29 %)")
    expect(tab.locator("#use-distance")).to_be_disabled()
    tab.focus("#copies-distance")
    for distance in range(7, -1, -1):
        tab.keyboard.press("ArrowLeft")
        expect(tab.locator(".near-copies output")).to_have_text(f"{distance} of 64 bits")
        expect(told).to_contain_text(f"{dropped(distance)} of 24" if dropped(distance) else "No image repeats another.")
    tab.keyboard.press("End")
    expect(told).to_contain_text(f"{dropped(10)} of 24")
    shows(tab, 17)  # so far only a look
    tab.click("#use-distance")
    expect(tab.locator("#recipe pre")).to_contain_text("distance: 10")
    shows(tab, 24 - dropped(10))
    expect(tab.locator("#use-distance")).to_be_disabled()


def test_another_pair_of_a_group_stays_and_a_group_is_tagged_by_keys(tab: Any, copied: Page) -> None:
    opened(tab, copied, view="copies", recipe={"name": "mine", "select": []})
    expect(tab.locator("section.copies")).to_have_count(2)
    expect(tab.locator(".above .told").first).to_contain_text("no step that looks for copies")
    stays = first_row(tab)
    tab.locator(".copies .card").first.focus()
    tab.keyboard.press("ArrowRight")
    other = int(tab.evaluate("document.activeElement.id").removeprefix("copy-"))
    assert other != stays
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")  # Keep this one
    expect(tab.locator("#recipe pre")).to_contain_text("prefer: original")
    expect(tab.locator(f"#copy-{other} .verdict")).to_have_text("stays")
    expect(tab.locator(f"#copy-{stays} .verdict")).to_have_text("repeats it")
    expect(tab.locator(f"#copy-{other} .label")).to_have_text("original")
    kept = tamis.select(copied.run, {"select": [{"distinct": {"missing": "drop", "prefer": "original"}}]}).keep
    assert (kept[other], kept[stays]) == (True, False)
    # And back: the tag leaves the other pair, the recipe is as before.
    tab.click(f"#keep-{stays}")
    expect(tab.locator(f"#copy-{stays} .verdict")).to_have_text("stays")
    expect(tab.locator(f"#copy-{other} .label")).to_have_count(0)
    tab.locator("section.copies").last.locator("button:has-text('Tag all')").press("Enter")
    expect(tab.locator("#group-tag")).to_be_focused()
    tab.keyboard.type("twins")
    tab.keyboard.press("Enter")
    expect(tab.locator("section.copies").last.locator(".label")).to_have_text(["twins"] * 3)
    assert dict(copied.ask("facts")["tags"]["counts"]) == {"twins": 3, "original": 1}
    assert NO_AXE or barriers(tab) == []
