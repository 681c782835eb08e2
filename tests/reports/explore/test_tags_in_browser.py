"""Tags in a real browser: given by keys and in bulk, undone, and read by recipes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import NO_AXE, NO_BROWSER, barriers
from explored_page import Page, served
from explored_tab import CUT, PHONE, opened, shows

import tamis

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
from playwright.sync_api import expect


@pytest.fixture
def tagged(run_folder: Path, tmp_path: Path) -> Iterator[Page]:
    """A page whose tags are no other test's."""
    shutil.copytree(run_folder, tmp_path / "tagged")
    with served(tmp_path / "tagged") as page:
        yield page


def tags_of(page: Page) -> dict[int, str]:
    """The tags on the disk, by row."""
    found = tamis.open_run(page.run).to_arrow(["tagged"]).column("tagged").to_pylist()
    return {row: tags for row, tags in enumerate(found) if tags}


def test_keys_act_only_while_the_pairs_have_the_focus_and_can_be_undone(tab: Any, tagged: Page) -> None:
    opened(tab, tagged, sort="row")
    tab.wait_for_selector("[data-row='7']")
    tab.click("#copy-link")
    tab.keyboard.press("g")  # a button has the focus: nothing is tagged
    tab.focus(".grid")
    tab.keyboard.press("j")
    tab.keyboard.press("ArrowRight")
    assert tab.get_attribute(".grid", "aria-activedescendant") == "card-2"
    assert tab.get_attribute("#card-2", "aria-selected") == "true"
    assert tab.get_attribute("#card-2", "aria-posinset") == "3"
    tab.keyboard.press("g")
    tab.wait_for_selector("[data-row='2'] .label.good")
    tab.keyboard.press("j")
    tab.keyboard.press("b")
    tab.wait_for_selector("[data-row='3'] .label.bad")
    tab.wait_for_selector("text=keeps 1 of 1 good and 1 of 1 bad")
    tab.wait_for_selector("text=Too few for a cut: it needs 10 good and 10 bad")
    assert tags_of(tagged) == {2: "good", 3: "bad"}
    tab.keyboard.press("Control+z")
    tab.wait_for_selector("[data-row='3'] .label", state="detached")
    assert tags_of(tagged) == {2: "good"}
    tab.click("#undo-tags:has-text('Undo: pair 2')")
    tab.wait_for_selector("[data-row='2'] .label", state="detached")
    expect(tab.locator("#undo-tags")).to_be_hidden()
    tab.focus(".grid")
    tab.keyboard.press("ArrowDown")
    assert tab.get_attribute(".grid", "aria-activedescendant") == "card-11"
    tab.keyboard.press("Home")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open] blockquote")
    tab.keyboard.press("g")
    tab.wait_for_selector("dialog #mark-good[aria-pressed=true]")
    tab.keyboard.press("t")
    tab.keyboard.type("big band, <b>")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog .mark:has-text('<b>')")
    assert tags_of(tagged) == {0: "<b>,big band,good"}
    assert tab.evaluate("document.activeElement.id") == "pair-tag"
    tab.click("dialog .mark:has-text('big band')")
    expect(tab.locator("dialog .mark:has-text('big band')")).to_have_count(0)
    tab.click("dialog h2")  # the focus was in the box, where "u" is a letter
    tab.keyboard.press("u")
    tab.wait_for_selector("dialog .mark:has-text('big band')")
    assert tags_of(tagged) == {0: "<b>,big band,good"}


def held(tab: Any, name: str) -> Any:
    """Holds back requests of one name; the function that is returned sends them on."""
    waiting: list[Any] = []
    tab.route(f"**/ask/{name}", lambda route: waiting.append(route))

    def send() -> None:
        for route in waiting:
            route.continue_()
        tab.unroute(f"**/ask/{name}")

    return send


def test_what_is_typed_before_an_answer_comes_is_text(tab: Any, tagged: Page) -> None:
    opened(tab, tagged, sort="row")
    tab.wait_for_selector("[data-row='7']")
    send = held(tab, "pair")
    tab.focus(".grid")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open]")
    expect(tab.locator("#close-pair")).to_be_focused()
    tab.keyboard.press("t")
    tab.keyboard.type("big bug")
    send()
    tab.wait_for_selector("dialog blockquote")
    assert tab.input_value("#pair-tag") == "big bug"
    assert tagged.ask("facts")["tags"]["counts"] == []
    send = held(tab, "tag")
    tab.keyboard.press("Enter")
    tab.keyboard.type("next")
    send()
    tab.wait_for_selector("dialog .mark:has-text('big bug')")
    assert tab.input_value("#pair-tag") == "next"
    assert tags_of(tagged) == {0: "big bug"}


def test_all_pairs_are_those_that_were_shown_when_they_were_selected(tab: Any, tagged: Page) -> None:
    opened(tab, tagged, sort="row", show="kept", recipe=CUT)
    number = int(tab.inner_text("#kept"))
    assert 0 < number < 60
    expect(tab.locator("main > .told")).to_have_text(f"{number} pairs")
    tab.focus(".grid")
    tab.keyboard.press("Control+a")
    send = held(tab, "choose")
    tab.fill("#number-0-value", "0")
    tab.press("#number-0-value", "Enter")
    tab.fill("#tag", "x")
    tab.press("#tag", "Enter")
    tab.wait_for_selector(f"#said:has-text('{number} pairs are tagged x')")
    send()
    assert len(tags_of(tagged)) == number


def test_views_of_a_recipe_that_reads_tags_change_with_them(tab: Any, tagged: Page) -> None:
    tagged.ask("tag", rows=[1, 2], add=["x"])
    opened(tab, tagged, view="map", sort="row", recipe={"name": "x", "select": [{"tagged": "x"}]})
    expect(tab.locator(".legend")).to_contain_text("kept 2")
    tab.focus(".grid")
    tab.keyboard.press("t")
    tab.keyboard.type("x")
    tab.keyboard.press("Enter")
    expect(tab.locator(".legend")).to_contain_text("kept 3")
    tab.wait_for_selector("[data-row='0'].kept")


def test_many_pairs_are_selected_tagged_shown_and_chosen_at_once(tab: Any, tagged: Page) -> None:
    def selected(text: str) -> None:
        expect(tab.locator(".target")).to_have_text(text)

    opened(tab, tagged, sort="row")
    tab.wait_for_selector("[data-row='9']")
    tab.click("#card-1", modifiers=["Control"])
    tab.click("#card-4", modifiers=["Shift"])
    tab.click("#card-2", modifiers=["Control"])
    selected("3 pairs selected")
    rows = tab.locator("[aria-selected=true]").evaluate_all("all => all.map((one) => one.dataset.row)")
    assert rows == ["1", "3", "4"]
    tab.keyboard.press("t")
    tab.keyboard.type("blurry")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#card-4 .label:has-text('blurry')")
    assert tags_of(tagged) == {1: "blurry", 3: "blurry", 4: "blurry"}
    assert NO_AXE or barriers(tab) == []
    assert tab.locator("#tag-list option").evaluate_all("all => all.map((one) => [one.value, one.label])") == [
        ["blurry", "3 pairs"]
    ]
    # By keys: Space, Shift with arrows, Escape, all.
    tab.keyboard.press("Escape")
    expect(tab.locator(".grid")).to_be_focused()
    tab.keyboard.press("Escape")
    selected("The framed pair")
    tab.keyboard.press("Home")
    tab.keyboard.press("Space")
    tab.keyboard.press("Shift+End")
    selected("60 pairs selected")
    tab.keyboard.press("Shift+Home")
    selected("1 pair selected")
    tab.keyboard.press("b")
    tab.wait_for_selector("#card-0 .label.bad")
    # The filter by a tag and without it; the selection is dropped, all of the view are tagged and untagged at once.
    tab.click(".tags button:has-text('blurry')")
    tab.wait_for_selector("main > .told:has-text('3 pairs')")
    selected("The framed pair")
    tab.click(".tags button:has-text('blurry')")
    tab.wait_for_selector("main > .told:has-text('57 pairs')")
    tab.click("#select-all")
    expect(tab.locator(".grid")).to_be_focused()
    selected("57 pairs selected")
    tab.keyboard.press("Escape")
    tab.keyboard.press("Control+a")
    selected("57 pairs selected")
    tab.fill("#tag", "sharp")
    tab.press("#tag", "Enter")
    tab.wait_for_selector("#said:has-text('57 pairs are tagged sharp')")
    assert len(tags_of(tagged)) == 60
    assert tags_of(tagged)[0] == "bad,sharp"
    # A recipe reads it.
    tab.select_option("#add-kind", "tagged")
    tab.fill("#add-value", "sharp")
    tab.click("#add")
    shows(tab, 57)
    expect(tab.locator("#recipe pre")).to_contain_text("tagged:")
    tab.click("#undo-tags:has-text('Undo: 57 pairs')")
    tab.wait_for_selector("text=unknown tag 'sharp'")
    assert len(tags_of(tagged)) == 4


def test_a_cut_from_tags_goes_into_the_recipe_with_one_click(tab: Any, tagged: Page) -> None:
    run = tamis.open_run(tagged.run)
    characters = run.to_numpy("characters")
    order = np.argsort(characters)
    tagged.ask("tag", rows=order[:20].tolist(), add=["bad"])
    tagged.ask("tag", rows=order[-20:].tolist(), add=["good"])
    opened(tab, tagged)
    offer = tab.locator(".suggestions li:has-text('characters ≥')")
    expect(offer).to_contain_text("precision 100 % (84 to 100 %), recall 100 % (84 to 100 %); the cut is between")
    offer.locator("button").click()
    tab.wait_for_selector(".step")
    value = float(tab.input_value("#number-0-value"))
    assert characters[order[19]] < value <= characters[order[-20]]
    shows(tab, int((characters >= value).sum()))
    offer.locator("button").click()
    expect(tab.locator(".step")).to_have_count(1)  # it replaces the cut


def test_a_phone_shows_pairs_at_once_and_the_bar_covers_no_more_than_two_rows(tab: Any, tagged: Page) -> None:
    tab.set_viewport_size(PHONE)
    opened(tab, tagged)
    tab.wait_for_selector(".chip .number i")
    bar = tab.locator(".tag-bar")
    assert tab.locator("#card-0 .face").bounding_box()["y"] + 60 < bar.bounding_box()["y"]
    tab.click("#select-all")
    tab.fill("#tag", "many")
    tab.press("#tag", "Enter")
    tab.wait_for_selector("#undo-tags:visible")
    assert bar.bounding_box()["height"] < 90
    opened(tab, tagged, view="map")
    tab.wait_for_selector(".legend button")
    legend = tab.locator(".legend").bounding_box()
    assert legend["y"] + legend["height"] < bar.bounding_box()["y"]


def test_a_question_mark_lists_the_keys_which_do_nothing_meanwhile(tab: Any, tagged: Page) -> None:
    opened(tab, tagged, sort="row", pair=3)
    tab.wait_for_selector("dialog[open] :is(blockquote, .problem)")
    tab.keyboard.press("?")
    expect(tab.locator("#keys")).to_be_visible()
    expect(tab.locator("#keys tr:has-text('g, b')")).to_contain_text("tag good, bad")
    assert NO_AXE or barriers(tab) == []
    tab.keyboard.press("g")
    tab.keyboard.press("Escape")
    expect(tab.locator("#keys")).to_be_hidden()
    expect(tab.locator("#pair")).to_be_visible()
    assert tab.locator("[data-row='3'] .label").count() == 0
    tab.click("#next-pair")
    expect(tab.locator("#pair h2")).to_have_text("Pair 4")
    tab.keyboard.press("Escape")
    tab.focus("#caption")
    tab.keyboard.type("?")
    expect(tab.locator("#keys")).to_be_hidden()
