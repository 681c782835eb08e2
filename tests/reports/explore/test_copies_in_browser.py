"""Copies in the page: the pair that a copy repeats."""

from typing import Any

import pytest
from browsing import NO_BROWSER
from explored_page import Page
from explored_tab import opened

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
