"""Recipes next to each other: two as columns, more as bars."""

from pathlib import Path
from typing import Any

import pytest
from browsing import NO_BROWSER
from explored_page import Page, served
from explored_tab import CUT, PHONE, new_tab, opened

import tamis

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
from playwright.sync_api import expect

SHORT = {"name": "short", "select": [{"at_most": {"score": "characters", "value": 30, "missing": "drop"}}]}


def rows(tab: Any, number: int) -> list[int]:
    """Returns the rows of the cards of a column."""
    cards = tab.locator(f".column:nth-child({number}) .card")
    return sorted(int(each) for each in cards.evaluate_all("(cards) => cards.map((card) => card.dataset.row)"))


@pytest.fixture(scope="module")
def two(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[set[int]]]:
    """Returns the file of SHORT as a subset, and the rows of each column next to the recipe CUT."""
    file = tmp_path_factory.mktemp("two") / "short.parquet"
    short = tamis.select(run_folder, SHORT)
    short.save(file)
    one, other = (set(each.rows().tolist()) for each in (tamis.select(run_folder, CUT), short))
    return file, [one - other, one & other, other - one]


def test_two_subsets_of_the_command_line_open_as_columns_with_reasons(
    browser: Any, run_folder: Path, two: tuple[Path, list[set[int]]], tmp_path: Path
) -> None:
    tamis.select(run_folder, CUT).save(tmp_path / "cut.parquet")
    with served(run_folder, subsets=[tmp_path / "cut.parquet", two[0]]) as page, new_tab(browser) as tab:
        opened(tab, page)
        for number, expected in enumerate(two[1], start=1):
            words = f"{len(expected)} {'pair' if len(expected) == 1 else 'pairs'}"
            expect(tab.locator(f".column:nth-child({number}) > .told")).to_have_text(words)
            shown = rows(tab, number)
            assert shown
            assert set(shown) <= expected
        heads = [
            "Only cut, dropped by short",
            "Both",
            "Only short, dropped by cut",
        ]
        expect(tab.locator(".column h3")).to_have_text(heads)
        first, both, last = (tab.locator(f".column:nth-child({number}) .verdict").first for number in (1, 2, 3))
        expect(first).to_have_text("dropped: characters above 30")
        expect(both).to_have_text("kept")
        expect(last).to_have_text("dropped: words below 3")
        neither = 60 - len(set.union(*two[1]))
        expect(tab.locator(".above .told")).to_contain_text(f"{neither} pair")
        tab.click("#neither")
        expect(tab.locator("main > .told")).to_contain_text(f"{neither} pair")
        expect(tab.locator(".columns")).to_be_hidden()


def test_keys_open_and_tag_the_pairs_of_the_column_that_has_the_focus(
    tab: Any, page: Page, two: tuple[Path, list[set[int]]]
) -> None:
    opened(tab, page, recipe=CUT, view="disagree", compared=["@", "no-filter"])
    last = tab.locator(".column:last-child [role=listbox]")
    expect(tab.locator(".column:last-child .card").first).to_be_visible()
    last.focus()
    last.press("j")
    framed = int(tab.locator(".column:last-child .card.here").get_attribute("data-row"))
    last.press("g")
    expect(tab.locator(f".card[data-row='{framed}'] .label.good")).to_have_count(1)
    assert page.ask("pair", row=framed)["tags"] == ["good"]
    last.press("Enter")
    expect(tab.locator("#pair h2")).to_have_text(f"Pair {framed}")
    tab.keyboard.press("Escape")
    last.press("Control+a")
    expect(tab.locator(".target")).to_have_text(
        f"{len(page.ask('rows', recipe=CUT, view={'show': 'dropped', 'sort': 'row'})['cards'])} pairs selected"
    )
    tab.locator(".column:first-child [role=listbox]").focus()
    expect(tab.locator(".target")).to_have_text("The framed pair")  # or pairs of two columns would look selected
    last.press("u")


def test_a_column_scrolls_by_itself(tab: Any, page: Page) -> None:
    opened(tab, page, recipe=CUT, view="disagree", compared=["@", "no-filter"])
    box = tab.locator(".column:nth-child(2) [role=listbox]")
    expect(tab.locator(".column:nth-child(2) .card").first).to_be_visible()
    box.focus()
    box.press("End")
    scrolled = "(column) => column.querySelector('.pairs').scrollTop"
    tab.wait_for_function("document.querySelectorAll('.pairs')[1].scrollTop > 500")
    assert tab.locator(".column").nth(0).evaluate(scrolled) == 0
    framed = tab.locator(".column:nth-child(2) .card.here")
    expect(framed).to_be_in_viewport()
    assert framed.get_attribute("id") != "column-1-0"


def test_recipes_are_compared_by_name(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nselect:\n- top_n: {score: words, n: 7, missing: drop}\n", encoding="utf-8"
    )
    with served(run_folder, subsets=[Path("no-filter"), tmp_path / "mine.yaml"]) as page:
        names = [(entry["name"], entry["kept"]) for entry in page.ask("facts")["recipes"] if entry["from"] == "subset"]
        assert names == [("no-filter", 60), ("mine", 7)]
        assert [entry["name"] for entry in page.ask("facts")["recipes"]].count("no-filter") == 1


def test_bars_are_to_scale_on_a_phone(browser: Any, page: Page) -> None:
    with new_tab(browser, viewport=PHONE) as tab:
        opened(tab, page, recipe=CUT, view="disagree", compared=["@", "no-filter", "random", "distinct"])
        tab.wait_for_selector(".region")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        bars = tab.locator(".region").evaluate_all(
            "(rows) => rows.map((row) => [row.querySelector('i').offsetWidth, parseInt(row.ariaLabel)])"
        )
        (widest, most), *others = bars
        assert widest > 60
        assert [width for width, _ in others] == pytest.approx(
            [max(2, widest * count / most) for _, count in others], abs=1
        )
