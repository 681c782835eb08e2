"""The first screen in a real browser, and what a view shows that lacks something."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import NO_AXE, NO_BROWSER, barriers
from explored_page import Page, served
from explored_tab import CUT, PHONE, new_tab, opened, shows, wait_for
from factories import write_pool
from races import curve_of, write_curves

import tamis

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
from playwright.sync_api import expect

SEEN = """selector => [...document.querySelectorAll(selector)].filter(each => {
    const box = each.getBoundingClientRect();
    return box.top >= 0 && box.top + box.height / 2 < document.querySelector('.tag-bar').getBoundingClientRect().top;
}).length"""


FITS = """async () => {
    const image = document.querySelector('.card .face img'), tall = new OffscreenCanvas(10, 90);
    tall.getContext('2d');
    image.src = URL.createObjectURL(await tall.convertToBlob());
    await image.decode();
    return Math.abs(image.clientHeight - image.parentElement.clientHeight) <= 1;
}"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without hashes, embeddings, tags, and recipes that fit."""
    folder = tmp_path_factory.mktemp("bare run")  # the space has to be quoted
    pool = write_pool(folder / "pool", shards=1, rows=12)
    return tamis.score(pool, run=folder / "run", signals=["caption_length"], quiet=True).path


@pytest.fixture(scope="module")
def bare_page(bare: Path) -> Iterator[Page]:
    with served(bare) as page:
        yield page


def test_the_first_screen_has_about_thirty_pairs_below_a_line_of_recipes_and_one_of_scores(
    tab: Any, page: Page
) -> None:
    tab.set_viewport_size({"width": 1440, "height": 900})
    opened(tab, page, recipe=CUT)
    tab.wait_for_selector(".grid.small .card")
    assert 24 <= tab.evaluate(SEEN, ".grid .card") <= 40
    assert tab.locator(".grid .card .caption").first.is_visible()
    tab.wait_for_selector(".grid .card .face img")
    assert tab.evaluate(FITS)  # a taller box would be cut off below, where text is often written
    assert tab.locator("#recipes").bounding_box()["height"] < 60
    assert len({round(each.bounding_box()["y"]) for each in tab.locator(".chart").all()}) == 1
    assert tab.locator("#scores").bounding_box()["height"] < 130
    assert not tab.locator("#recipe pre").is_visible()
    tab.click("#recipe summary")
    assert tab.locator("#recipe pre").is_visible()
    tab.locator("#slider-0-value").press("ArrowRight")  # a redraw leaves it open
    expect(tab.locator("#recipe pre")).to_contain_text("value: 4")
    assert tab.locator("#recipe pre").is_visible()


def test_on_a_phone_recipes_and_scores_scroll_sideways_in_one_line(browser: Any, page: Page) -> None:
    with new_tab(browser, viewport=PHONE) as tab:
        opened(tab, page, recipe=CUT)
        assert tab.locator("#recipes").bounding_box()["height"] < 60
        tab.click("summary:has-text('Scores')")
        assert len({round(each.bounding_box()["y"]) for each in tab.locator(".chart").all()}) == 1
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        opened(tab, page, recipe=CUT, view="rejects")
        box = wait_for(tab, tab.locator("#view-rejects").bounding_box)
        assert 0 <= box["x"] < box["x"] + box["width"] <= PHONE["width"]


def test_a_view_that_lacks_something_shows_the_command_that_adds_it(tab: Any, bare: Path, bare_page: Page) -> None:
    run = tamis.open_run(bare)
    lacking = {"map": run.embed_command(), "copies": f"{run.score_command()} --signals image_hash"}
    for view, line in lacking.items():
        opened(tab, bare_page, view=view)
        tab.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
        assert str(bare) in line
        expect(tab.locator(".above .need .command code")).to_have_text(line)
        tab.click(".above .need .command button")
        expect(tab.locator("#said")).to_have_text("Command copied")
        assert tab.evaluate("copied") == line
    opened(tab, bare_page)
    expect(tab.locator("#recipes")).to_contain_text("No recipe fits this run yet")
    tab.click(".near-needs summary")
    expect(tab.locator(".near-needs code").last).to_have_text(lacking["map"])
    opened(tab, bare_page, view="disagree")
    expect(tab.locator(".above .need code").last).to_have_text(f"{run.score_command()} --recipe basic")
    # What the command adds is there when the page is opened again.
    tamis.score(bare.parent / "pool", run=bare, signals=["image_hash"], quiet=True)
    with served(bare) as again:
        opened(tab, again, view="copies")
        expect(tab.locator(".above")).to_contain_text("No image repeats another")


def test_one_button_compares_two_recipes_and_others_tag_for_a_suggestion(tab: Any, page: Page) -> None:
    opened(tab, page, recipe=CUT, view="disagree")
    tab.click("#compare-two:has-text('Compare the recipe on the left with')")
    tab.wait_for_selector(":is(.columns, .upset, .sides)")
    assert "compared=%5B%22%40%22" in tab.url
    opened(tab, page, recipe=CUT, sort="row")
    tab.click("#tag-good")
    tab.wait_for_selector("[data-row='0'] .label.good")
    tab.wait_for_selector("text=it needs 10 good and 10 bad pairs")
    tab.click("#undo-tags")
    tab.wait_for_selector("[data-row='0'] .label", state="detached")


def test_a_recipe_has_the_same_colour_everywhere(tab: Any, page: Page) -> None:
    known = {each["name"]: each["colour"] for each in page.ask("facts")["recipes"]}
    opened(tab, page, recipe=CUT, view="disagree", compared=["distinct", "random", "no-filter"])
    assert set(known["distinct"].split()) <= set(tab.get_attribute(".chip:has-text('distinct') .who", "class").split())
    for name in ("distinct", "random"):
        for part in (".picks", ".sets"):
            assert known[name] in tab.get_attribute(f"{part} .who:has-text('{name}')", "class")
    paint = "spot => getComputedStyle(spot).backgroundColor"
    own = tab.locator(".picks .who:has-text('distinct') .swatch").evaluate(paint)
    opened(tab, page, view="map", compared=["distinct", "random"], map=["image_embedding", "disagreement"])
    tab.wait_for_selector(".legend button")
    spots = {each.inner_text(): each.locator("i").evaluate(paint)
             for each in tab.locator(".legend button").all()}  # fmt: skip
    assert own in [colour for text, colour in spots.items() if text.startswith("distinct keeps, random drops")]
    shows(tab, 60)


def test_images_come_before_recipes_that_are_counted_slowly(tab: Any, page: Page) -> None:
    held: list[Any] = []
    released: list[bool] = []
    tab.route("**/ask/choose", lambda route: route.continue_() if released else held.append(route))
    tab.goto("about:blank")
    tab.goto(page.address)
    tab.wait_for_selector(".grid .card")
    assert held
    assert not tab.locator("body.ready").count()
    released.append(True)
    for each in held:
        each.continue_()
    tab.wait_for_selector("body.ready")
    expect(tab.locator(".chip[aria-pressed=true]")).to_have_count(1)
    tab.unroute("**/ask/choose")


def test_steps_that_combine_others_are_in_words(tab: Any, page: Page) -> None:
    cut, share = (
        {"at_least": {"score": "words", "value": 3, "missing": "drop"}},
        {"top_fraction": {"score": "words", "fraction": 0.3}},
    )
    word = {"equals": {"score": "status", "value": ["ok", "json_broken"]}}
    steps = [{"any_of": [[cut], share]}, {"all_of": ["distinct", [cut, word]]}, {"none_of": [{"any_of": [cut, word]}]}]
    opened(tab, page, recipe={"name": "combined", "select": steps})
    assert tab.locator(".step p.quiet").all_inner_texts() == [
        "words at least 3, or best 30 % by words",
        "distinct, and words at least 3, then status is ok or json_broken",
        "(any of: words at least 3, or status is ok or json_broken)",
    ]


@pytest.mark.skipif(bool(NO_AXE), reason=NO_AXE)
def test_axe_finds_nothing_wrong_where_something_is_lacking(tab: Any, bare_page: Page) -> None:
    for view in ("map", "disagree"):
        opened(tab, bare_page, view=view)
        tab.wait_for_selector(".above .need")
        tab.click(".near-needs summary")
        assert barriers(tab) == []


def test_a_recipe_shows_the_shares_that_fit_while_its_steps_are_those_of_the_curve(
    browser: Any, bare: Path, tmp_path: Path
) -> None:
    run = tamis.open_run(shutil.copytree(bare, tmp_path / "run"))
    step = {"top_fraction": {"score": "words", "fraction": 0.5, "of": "pool", "missing": "drop"}}
    tamis.select(run, {"name": "best", "select": [step]}).save()
    curve = curve_of("best", [-2.2, -2.1, -2.0, -1.95, -1.94, -1.97, -2.0, -2.1])
    write_curves(run, curve)
    with (
        served(run.path, subsets=[Path("best")]) as page,
        new_tab(browser, viewport={"width": 1440, "height": 900}) as tab,
    ):
        opened(tab, page)
        expect(tab.locator(".curve .hint")).to_have_text(f"{curve.verdict()[0]}.")
        assert tab.locator(".curve .dot.gone").count() == sum(curve.left)
        assert tab.locator(".curve svg").bounding_box()["height"] > 40
        tab.locator("#slider-0-fraction").press("ArrowRight")
        expect(tab.locator("#number-0-fraction")).to_have_value("50.5 %")
        expect(tab.locator(".curve")).to_have_count(1)
        tab.click("#add")  # another last step
        expect(tab.locator(".curve")).to_have_count(0)
        tab.locator("#view-findings").click()
        expect(tab.locator("#race code")).to_contain_text(f"tamis choose {run.path} --arms clip-50")
        if not NO_AXE:
            assert barriers(tab) == []
