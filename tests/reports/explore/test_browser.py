"""The page in a real browser: Debian's Chromium, driven by Playwright."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import NO_AXE, NO_BROWSER, barriers
from explored_page import HOSTILE, Page, served
from explored_tab import CUT, PHONE, new_tab, opened, shows, wait_for
from factories import caption, pair

import tamis
from tamis.runs.subset import Subset

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
from playwright.sync_api import expect


def test_a_walk_through_the_page(tab: Any, page: Page) -> None:
    run = tamis.open_run(page.run)

    def cut(value: float) -> int:
        return len(tamis.select(run, {"select": [{"at_least": {"score": "words", "value": value, "missing": "drop"}}]}))

    # A drag over a histogram cuts, and back takes the cut away.
    opened(tab, page, charts=["words"])
    shows(tab, 60)
    box = tab.locator(".chart svg").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"], box["y"] + 20, steps=3)
    tab.mouse.up()
    tab.wait_for_selector(".step")
    shows(tab, cut(float(tab.input_value("#number-0-value"))))
    tab.go_back()
    shows(tab, 60)
    tab.go_forward()
    expect(tab.locator("#kept")).not_to_have_text("60", timeout=60_000)

    # A slider moves the count that the command gives, and undo takes that back.
    opened(tab, page, recipe={**CUT, "name": "walked"})
    shows(tab, cut(3))
    tab.evaluate("() => { const at = Date.now(); Date.now = () => at; }")  # keys 1.5 s apart are steps of their own
    for _ in range(3):
        tab.locator("#slider-0-value").press("ArrowRight")
    shows(tab, cut(6))
    expect(tab.locator("#recipe pre")).to_contain_text("value: 6", timeout=60_000)
    tab.click("#undo")
    shows(tab, cut(3))

    # Every view, also after a reload; two scores and words.
    for name, sign in [("map", "canvas.map"), ("copies", "section.copies"), ("rejects", "button.reason")]:
        tab.click(f"#view-{name}")
        tab.wait_for_selector(sign)
        assert f"view=%22{name}%22" in tab.url
    tab.reload()
    tab.wait_for_selector("button.reason")
    tab.click("#two")
    tab.wait_for_selector(".heat canvas")
    tab.click("#words")
    tab.wait_for_selector(".words li")

    # What is saved is what is exported and compared, and a bar of the comparison opens its images.
    opened(tab, page, recipe={**CUT, "name": "walked"}, view="disagree", compared=["@", "no-filter"])
    tab.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    tab.wait_for_selector(f".column:last-child > .told:has-text('{60 - cut(3)} pairs')")
    tab.click("#copy-export")
    tab.wait_for_selector("#said.wrong:has-text('Save the subset first')")
    tab.click("#save")
    tab.wait_for_selector("#said:has-text('pairs saved in')")
    assert len(Subset.load(page.run / "subsets" / "walked.parquet", run)) == cut(3)
    tab.check("#pick-walked")
    tab.wait_for_selector(f".sets:has-text('walked {cut(3)}')")
    tab.click(".region[aria-label*='no-filter keep, on the left and walked drop']")
    tab.wait_for_selector(f"main > .told:has-text('{60 - cut(3)} pairs')")
    tab.click("#copy-export")
    tab.wait_for_selector("#said:has-text('Export command copied')")
    assert f"{page.run}/subsets/walked.parquet" in tab.evaluate("copied")
    tab.fill("#number-0-value", "9")
    tab.press("#number-0-value", "Enter")
    shows(tab, cut(9))
    tab.click("#save")
    tab.click("#replace")
    tab.wait_for_selector(f".sets:has-text('walked {cut(9)}')")


def test_strangers_words_hurt_nobody(tab: Any, page: Page) -> None:
    opened(tab, page, sort="row", pair=3)
    tab.wait_for_selector("dialog[open] :is(blockquote, .problem)")
    assert tab.inner_text("dialog :is(blockquote, .problem)") == HOSTILE[3]
    assert tab.locator("dialog a").count() == 0
    tab.keyboard.press("Escape")
    expect(tab.locator("dialog")).to_be_hidden()
    shown = [tab.inner_text(f"[data-row='{row}'] .caption") for row in range(3)]
    assert shown == HOSTILE[:3]
    assert "\u202e" not in tab.inner_text("[data-row='4'] .caption")
    assert tab.evaluate("window.hurt") is None
    assert tab.locator("main script, main svg, #said img").count() == 0


def test_an_address_that_is_not_whole_is_left_out_and_the_page_works(tab: Any, page: Page) -> None:
    """Links are cut short and edited by hand: what no control of the page writes is told, and the rest counts."""
    opened(
        tab, page, recipe={"select": [None]}, off=["x"], view="__proto__", show="<b>", reason="x", ranges=[5],
        words=[["status", 3]], caption={}, sort=5, column=[], descending="no", region=["x"], compared=[{}], charts="x",
        heat=[], lasso=5, near={"row": -1}, pair="x", __proto__={"view": "map"}, constructor=1,
    )  # fmt: skip
    shows(tab, 60)
    said = tab.inner_text("#said")
    assert all(part in said for part in ("recipe", "view", "near", "pair"))
    assert "constructor" not in said
    tab.wait_for_selector("main > .told:has-text('60 pairs')")
    assert tab.locator("dialog[open]").count() == 0


def focused(tab: Any) -> str:
    return str(tab.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0]"))  # no svg


def test_every_path_works_by_keyboard_alone(tab: Any, page: Page) -> None:
    opened(tab, page, recipe=CUT, sort="row", charts=["words"])
    # The skip link leads to the pairs, Enter opens one, and closing it leads back to its card.
    tab.keyboard.press("Tab")
    assert focused(tab) == "skip"
    tab.keyboard.press("Enter")
    assert focused(tab) == "grid"
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open] blockquote")
    assert focused(tab) == "close-pair"
    tab.keyboard.press("ArrowRight")
    expect(tab.locator("dialog h2")).to_have_text("Pair 2")
    tab.keyboard.press("ArrowLeft")
    expect(tab.locator("dialog h2")).to_have_text("Pair 1")
    tab.keyboard.press("Enter")
    expect(tab.locator("dialog")).to_be_hidden()
    assert (focused(tab), tab.get_attribute(".grid", "aria-activedescendant")) == ("grid", "card-1")
    # On a card of another view too.
    tab.focus("#view-copies")
    tab.keyboard.press("Enter")
    tab.locator(".copies .card").last.focus()
    row = tab.evaluate("[...document.querySelectorAll('.copies .card')].indexOf(document.activeElement)")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open] blockquote")
    tab.keyboard.press("Escape")
    expect(tab.locator("dialog")).to_be_hidden()
    assert tab.evaluate("[...document.querySelectorAll('.copies .card')].indexOf(document.activeElement)") == row
    # A bar of a histogram is reached by arrows; Enter shows its pairs, and a second Enter all again.
    tab.focus(".chart svg")
    tab.keyboard.press("End")
    assert "pairs" in tab.get_attribute(".chart svg", "aria-valuetext")
    tab.keyboard.press("Enter")
    filters = tab.locator(".filters button")
    expect(filters).to_have_count(1)
    expect(tab.locator(".chart svg")).to_be_focused()
    tab.keyboard.press("Enter")
    expect(filters).to_have_count(0)
    tab.click("#two")
    tab.focus("canvas#heat")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    expect(filters).to_have_count(2)
    # What a redraw takes away leaves the focus where it was.
    tab.locator(".filters button").first.focus()
    tab.keyboard.press("Enter")
    expect(filters).to_have_count(1)
    assert tab.evaluate("document.activeElement.closest('.filters') !== null")
    tab.keyboard.press("Enter")
    expect(filters).to_have_count(0)
    assert focused(tab) == "main"
    tab.focus("#drop-0")
    tab.keyboard.press("Enter")
    expect(tab.locator(".step")).to_have_count(0)
    tab.focus("#undo")
    tab.keyboard.press("Enter")
    expect(tab.locator(".step")).to_have_count(1)
    assert focused(tab) == "undo"


def test_a_pair_that_a_link_opened_leaves_the_focus_on_its_card(tab: Any, page: Page) -> None:
    opened(tab, page, sort="row", pair=4)
    tab.wait_for_selector("dialog[open] blockquote")
    tab.keyboard.press("Escape")
    expect(tab.locator("dialog")).to_be_hidden()
    expect(tab.locator(".grid")).to_be_focused()
    assert tab.get_attribute(".grid", "aria-activedescendant") == "card-4"


def test_what_is_typed_holds_when_the_next_control_is_used(tab: Any, page: Page) -> None:
    """The change of a field reaches the page as the focus leaves it; a redraw then took the next control away."""
    opened(tab, page, recipe=CUT, sort="row")
    tab.fill("#number-0-value", "5")
    tab.keyboard.press("Tab")
    expect(tab.locator("#recipe pre")).to_contain_text("value: 5")
    assert (focused(tab), tab.input_value("#slider-0-value")) == ("add-kind", "5")
    tab.focus("#caption")
    tab.keyboard.type("boat")
    tab.keyboard.press("Shift+Tab")
    expect(tab.locator("main > .told")).not_to_have_text("60 pairs")
    assert focused(tab) == "size"
    tab.focus("#recipe-name")
    tab.keyboard.press("Control+a")
    tab.keyboard.type("typed")
    tab.click("#save")
    tab.wait_for_selector("#said:has-text('typed.parquet')")


def test_images_are_named_by_their_captions(tab: Any, page: Page) -> None:
    opened(tab, page, recipe=CUT, sort="row", pair=6)
    assert tab.get_attribute("[data-row='0'] img", "alt") == HOSTILE[0]
    assert tab.get_attribute("[data-row='0']", "aria-label").startswith(HOSTILE[0])
    assert "\u202e" not in tab.get_attribute("[data-row='4'] img", "alt")
    tab.wait_for_selector("dialog[open] .frame img")
    for alt in (tab.get_attribute("[data-row='6'] img", "alt"), tab.get_attribute("dialog .frame img", "alt")):
        assert alt == "x" * 160 + " …"


def test_a_search_says_that_it_is_busy_and_keeps_the_old_pairs(tab: Any, clip_page: Page) -> None:
    opened(tab, clip_page, sort="row")
    held: list[Any] = []
    tab.route("**/ask/rows", lambda route: held.append(route))
    tab.fill("#near", caption(3))
    tab.press("#near", "Enter")
    expect(tab.locator("main > .told")).to_contain_text(f"Looking for images like {caption(3)}")
    expect(tab.locator(".grid")).to_have_attribute("aria-busy", "true")
    assert tab.locator("#card-0").get_attribute("data-row") == "0"
    held.pop().continue_()
    expect(tab.locator("main > .told")).to_have_text("12 pairs")
    assert tab.get_attribute(".grid", "aria-busy") is None


def test_images_have_three_sizes_and_the_address_keeps_them(tab: Any, page: Page) -> None:
    widths = []
    opened(tab, page, recipe=CUT)
    for size in ("small", "medium", "large"):
        tab.select_option("#size", size)
        tab.wait_for_selector(f".grid.{size}")
        widths.append(tab.locator("#card-0").bounding_box()["width"])
        assert focused(tab) != "body"
    assert widths == sorted(set(widths))
    tab.reload()
    tab.wait_for_selector(".grid.large")


@pytest.mark.parametrize("box", ["#caption", "#word-part", "#tag", "#pair-tag"])
def test_a_redraw_takes_neither_the_focus_nor_the_text_of_a_box(tab: Any, page: Page, box: str) -> None:
    """Else the rest of what is typed are keys: "big band" tagged a pair bad."""
    opened(tab, page, recipe=CUT, **({"pair": 3} if box == "#pair-tag" else {}))
    if box == "#word-part":
        tab.click("#words")
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.click(box)
    tab.keyboard.type("ig band")
    tab.keyboard.press("Home")
    tab.evaluate(
        "(patch) => { const words = new URLSearchParams(location.hash.slice(1));"
        "for (const [key, value] of Object.entries(patch)) words.set(key, JSON.stringify(value));"
        "history.replaceState(null, '', '#' + words); dispatchEvent(new PopStateEvent('popstate')); }",
        {"charts": ["characters"], "recipe": {"select": []}},
    )
    shows(tab, 60)
    tab.keyboard.type("b")
    assert tab.evaluate("document.activeElement.id") == box[1:]
    assert tab.input_value(box) == "big band"
    assert not [url for url in asked if url.endswith(("/tag", "/undo_tags"))]


def test_it_opens_with_the_subset_that_it_was_given(tab: Any, run_folder: Path, tmp_path: Path) -> None:
    run = tamis.open_run(run_folder)
    half = tamis.select(run, {"name": "half", "select": [{"random_fraction": {"fraction": 0.5, "seed": 1}}]})
    half.save(tmp_path / "half.parquet")
    both = dataclasses.replace(half, times=half.keep.astype(np.uint16) * 2, recipe={"name": "twice"}) & tamis.select(
        run, CUT
    )
    both.save(tmp_path / "both.parquet")
    with served(run_folder, subsets=[tmp_path / "half.parquet"]) as page:
        opened(tab, page)
        shows(tab, 30)
        assert tab.input_value("#number-0-fraction") == "50 %"
        opened(tab, page, recipe=CUT, sort="row")  # a link shows what it says
        shows(tab, int(tamis.select(run, CUT).keep.sum()))
        assert tab.locator(".sides:visible").count() == 0
    with served(run_folder, subsets=[tmp_path / "both.parquet"]) as page:
        opened(tab, page)
        shows(tab, int(both.keep.sum()))
        tab.wait_for_selector("#recipe:has-text('This is the saved subset')")


def test_it_opens_on_the_pairs_next_to_the_cut_of_its_subset(tab: Any, run_folder: Path, tmp_path: Path) -> None:
    run = tamis.open_run(run_folder)
    chosen = tamis.select(run, {**CUT, "select": [{"at_least": {"score": "words", "value": 6, "missing": "drop"}}]})
    chosen.save(tmp_path / "cut.parquet")
    words = run.to_numpy("words")
    with served(run_folder, subsets=[tmp_path / "cut.parquet"]) as page:
        opened(tab, page)
        for kind, text, keeps in [("kept", "just above 6", True), ("dropped", "just below 6", False)]:
            expect(tab.locator(f".sides .{kind}")).to_contain_text(f"words {text}")
            cards = tab.locator(f".inside .{kind}")
            head, boxes = tab.locator(f".sides .{kind}").bounding_box(), [each.bounding_box() for each in cards.all()]
            assert len(boxes) > 3
            assert all(head["x"] - 8 < box["x"] < head["x"] + head["width"] for box in boxes)
            rows = [int(card.get_attribute("data-row") or -1) for card in cards.all()]
            nearest = words[chosen.keep].min() if keeps else words[~chosen.keep].max()
            assert words[rows[0]] == nearest
        # The arrows follow the page: to the right of the last kept card of a row is the first dropped one.
        tab.focus(".grid")
        for _ in range(4):
            tab.keyboard.press("ArrowRight")
        assert "dropped" in tab.get_attribute("#" + tab.get_attribute(".grid", "aria-activedescendant"), "class")
        tab.keyboard.press("End")
        assert tab.locator("#" + tab.get_attribute(".grid", "aria-activedescendant")).count() == 1


def test_a_line_of_chips_has_the_recipes_that_fit_with_what_each_keeps(tab: Any, page: Page) -> None:
    opened(tab, page)
    run = tamis.open_run(page.run)
    distinct = tab.locator(".chip", has_text="distinct")
    expect(distinct).to_contain_text(f"{round(100 * len(tamis.select(run, 'distinct')) / 60)} %")
    assert "One of each image." in distinct.get_attribute("title")
    text = tab.inner_text(".kept-head") + tab.inner_text("#recipe")
    assert text.count("60") == 1
    distinct.press("Enter")
    shows(tab, len(tamis.select(run, "distinct")))
    expect(tab.locator(".sides .dropped")).to_be_visible()
    expect(distinct).to_have_attribute("aria-pressed", "true")
    expect(distinct).to_be_focused()


def test_it_opens_with_the_cut_that_drops_most_of_the_recipes_that_fit(tab: Any, clip_page: Page) -> None:
    """Of 12 pairs clip-30 keeps 4, and clip-50 keeps 6."""
    opened(tab, clip_page)
    shows(tab, 4)
    expect(tab.locator(".chip[aria-pressed=true]")).to_have_text("clip-3033 %")
    expect(tab.locator(".sides .dropped")).to_contain_text("clip just below")
    expect(tab.locator(".grid.small .card")).to_have_count(12)
    tab.click("#start-none")
    shows(tab, 12)
    tab.reload()  # a link to every pair says so
    shows(tab, 12)
    assert tab.locator(".sides:visible").count() == 0


def test_the_page_is_there_before_the_first_answer_and_an_error_can_be_read(tab: Any, page: Page) -> None:
    held: list[Any] = []
    tab.route("**/ask/facts", lambda route: held.append(route))
    tab.goto(page.address)
    for part in ("#recipe", "#scores", "main"):
        expect(tab.locator(part)).to_contain_text("Reading …")
    wait_for(tab, lambda: held)
    held.pop().fulfill(status=409, json={"error": "the disk is away"})
    expect(tab.locator("main [role=alert]")).to_have_text("the disk is away")
    expect(tab.locator("#recipe")).not_to_contain_text("Reading")
    tab.unroute("**/ask/facts")
    tab.click("#again")
    shows(tab, 60)


def test_shares_in_the_page_never_say_none_of_some_nor_all_of_most(tab: Any, page: Page) -> None:
    opened(tab, page)
    ask = """async (shares) => {
        const { percent } = await import(document.querySelector("script").src.replace("main", "dom"));
        return shares.map((one) => percent(...one));
    }"""
    shares = [(0, 5), (4, 10_000), (1, 2_000), (1, 200), (1, 3), (199, 200), (9_996, 10_000), (1_999, 2_000), (1, 1)]
    said = ["0 %", "<0.1 %", "0.1 %", "0.5 %", "33 %", "99.5 %", ">99.9 %", ">99.9 %", "100 %"]
    assert tab.evaluate(ask, shares) == said


def test_a_narrow_page_fits(browser: Any, page: Page) -> None:
    for scheme in ("light", "dark"):
        with new_tab(browser, viewport=PHONE, color_scheme=scheme) as tab:
            opened(tab, page, recipe=CUT)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            tab.click("summary >> nth=0")
            tab.wait_for_selector("#slider-0-value:visible")
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_charts_begin_with_one_score_of_each_signal_and_found_words_are_marked(tab: Any, page: Page) -> None:
    opened(tab, page, sort="row")
    shown = tab.locator(".chart h3").all_inner_texts()
    assert (shown[0], shown[1]) == ("shorter_side", "words")
    others = tab.locator("#add-column optgroup[label='other columns'] option").all_inner_texts()
    assert {"content_hidden", "width"} <= set(others)
    assert not set(shown) & set(others)
    for list_ in ("#more-charts", "#sort"):
        assert tab.locator(f"{list_} [label^='other column']").count() >= 1
    tab.fill("#caption", "IMG SRC")
    tab.press("#caption", "Enter")
    expect(tab.locator("#card-0 mark")).to_have_text("img src")
    expect(tab.locator("#card-0 .caption")).to_have_text(HOSTILE[1])


def test_images_are_found_by_words_and_by_one_that_is_chosen(tab: Any, clip_page: Page, tmp_path: Path) -> None:
    (tmp_path / "<b>mine.jpg").write_bytes(pair(7)["jpg"])
    opened(tab, clip_page)
    tab.set_input_files("#near-file", tmp_path / "<b>mine.jpg")
    tab.wait_for_selector(".filters button:has-text('like <b>mine.jpg')")
    expect(tab.locator("#card-0")).to_have_attribute("data-row", "7")
    tab.fill("#near", caption(3))
    tab.press("#near", "Enter")
    tab.wait_for_selector(f".filters button:has-text('like {caption(3)}')")
    (tmp_path / "none.jpg").write_bytes(b"no image")
    tab.set_input_files("#near-file", tmp_path / "none.jpg")
    tab.wait_for_selector("#said.wrong:has-text('cannot be used')")


@pytest.mark.skipif(bool(NO_AXE), reason=NO_AXE)
@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1440),
        # A quarter of a minute each.
        *(pytest.param(*other, marks=pytest.mark.attack) for other in [("light", 390), ("dark", 390), ("dark", 1440)]),
    ],
)
def test_axe_finds_nothing_wrong_in_any_view(browser: Any, page: Page, scheme: Any, width: int) -> None:
    cut = {"recipe": {**CUT, "select": [*CUT["select"], {"random_fraction": {"fraction": 0.5, "seed": 0}}]}}
    views = {
        ".chip .number i": {},
        ".sides": {"recipe": CUT, "sort": "cut", "size": "small"},
        ".card": {**cut, "off": [0], "ranges": [["words", 1, 9]], "words": [["status", "ok"]]},
        ".column .card": {**cut, "view": "disagree", "compared": ["@", "no-filter"]},
        ".region": {**cut, "view": "disagree", "compared": ["@", "no-filter", "distinct"], "region": [1, 1, 1]},
        "canvas.map": {**cut, "view": "map"},
        "section.copies": {"recipe": {"name": "one", "select": [{"distinct": {"missing": "drop"}}]}, "view": "copies"},
        "button.reason": {**cut, "view": "rejects"},
        "dialog[open] .right": {**cut, "pair": 3},
        ".heat canvas": {**cut, "heat": ["words", "characters"]},
    }
    with new_tab(browser, viewport={"width": width, "height": 1000}, color_scheme=scheme) as tab:
        for sign, state in views.items():
            opened(tab, page, **state)
            tab.evaluate("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })")
            tab.wait_for_selector(sign)
            assert barriers(tab) == [], (sign, scheme, width)
        tab.click("#words")
        tab.wait_for_selector(".words li")
        assert barriers(tab) == []
