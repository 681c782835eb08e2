"""The pages of `look` and `report` in a real browser: what the first screen shows, what folds, what a click opens."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from browsing import NO_AXE, NO_BROWSER, barriers
from factories import image_bytes, pair, score, write_tar

import tamis
from tamis.reports.page import SHOWN, write_report

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
from playwright.sync_api import expect

DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of a pool of 120 pairs: tiny and elongated images, copies, a broken one, short and empty captions."""
    folder = tmp_path_factory.mktemp("pages")
    sizes = {0: (90, 60), 1: (700, 210), 2: (240, 320)}
    images = [image_bytes(n % 110, sizes.get(n % 8, (320, 240))) for n in range(120)]
    samples = [(f"{n:06d}", {"txt": pair(n)["txt"], "jpg": image}) for n, image in enumerate(images)]
    samples[16][1]["txt"], samples[17][1]["jpg"] = b" ", b"no image"
    for _, files in samples[20:40]:
        files["txt"] = b"dog"
    write_tar(folder / "pool" / "00000.tar", samples)
    with contextlib.chdir(folder):  # the page has the pool's path: its length must not matter
        tamis.look("pool", out="look.html", quiet=True)
    run = score(folder / "pool", folder / "run", "caption_length", "language", "image_size", "image_hash")
    subsets = [tamis.select(run, name) for name in ("basic", "distinct")]
    tamis.report(run, subsets, out=folder / "report.html")
    return {name: folder / f"{name}.html" for name in ("look", "report")}


def opened(browser: Any, page: Path, fragment: str = "", **settings: Any) -> Any:
    tab = browser.new_page(**{"viewport": DESK, **settings})
    tab.set_default_timeout(60_000)
    tab.goto(page.as_uri() + fragment)
    return tab


def box(place: Any) -> Any:
    return place.evaluate("(each) => each.getBoundingClientRect().toJSON()")


@pytest.mark.parametrize("name", ["look", "report"])
def test_the_first_screen_has_the_pool_what_is_wrong_and_what_to_do_next(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    tab = opened(browser, pages[name])
    if name == "report":  # what the chosen subset keeps and drops comes first
        shown = [box(each) for each in tab.locator("#choice .tile").all()]
        shown += [box(each) for each in tab.locator("#choice .points > div").all()]
        assert len(shown) == 8 + 8 + 3
        assert all(each["height"] > 5 and each["bottom"] <= DESK["height"] for each in shown)
        tab.close()
        return
    shown = [box(each) for each in tab.locator(".mosaic .tile").all()]
    assert len(shown) == 28
    findings = tab.locator(".verdict > div > .findings > li")
    assert 5 <= findings.count() <= SHOWN
    for each in findings.all():
        words, images = each.locator("p").first, each.locator(".strip button").all()
        assert re.match(r"(The pool has )?\d+ .*\.", words.inner_text())
        assert 1 <= len(images) <= 8
        shown += [box(words), *(image := [box(one) for one in images])]
        assert all(one["top"] < box(each)["bottom"] and one["left"] > box(words)["right"] for one in image)
    shown.append(box(tab.locator(".command, .bar").first))
    shown.append(box(tab.get_by_text(re.compile("keeps")).first))
    assert all(each["height"] > 5 and each["bottom"] <= DESK["height"] for each in shown)
    tab.close()


@pytest.mark.parametrize("name", ["look", "report"])
def test_a_page_is_at_most_three_screens_high_and_never_wider_than_one(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    for viewport in (DESK, PHONE):
        tab = opened(browser, pages[name], viewport=viewport)
        screens = 4 if (name, viewport) == ("report", PHONE) else 3
        assert tab.evaluate("document.documentElement.scrollHeight") <= screens * viewport["height"]
        assert tab.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        tab.close()


@pytest.mark.parametrize("name", ["look", "report"])
def test_a_click_or_enter_opens_an_image_with_its_caption_values_and_reasons(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    tab = opened(browser, pages[name])
    short = tab.locator(".findings > li", has_text="are short").locator("button").first
    short.click()
    large = tab.locator(":popover-open")
    expect(large).to_have_count(1)
    for words in ("dog", "words", "00000", "basic: dropped, step 3: words below 3", "distinct: kept"):
        expect(large).to_contain_text(words)
    assert box(large.locator(".shot"))["width"] > 4 * box(short)["width"]
    tab.keyboard.press("Escape")
    expect(large).to_have_count(0)
    expect(short).to_be_focused()
    tab.locator(".tile button").first.focus()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    expect(large).to_have_count(1)
    expect(large.get_by_role("button", name="Close")).to_be_focused()
    assert large.get_attribute("id") == tab.locator(".tile button").nth(1).get_attribute("popovertarget")
    tab.keyboard.press("Enter")
    expect(large).to_have_count(0)
    broken = tab.locator(".findings > li", has_text="broken").locator("button").first
    expect(broken).to_have_accessible_name(re.compile("000017.*not decodable"))
    broken.click()
    expect(large).to_contain_text("no format that trainers read is recognised")
    tab.close()


def test_links_addresses_and_the_keyboard_open_what_is_folded(browser: Any, pages: dict[str, Path]) -> None:
    for fragment in ("#scores", "#drop-1-1", "#only-0-1"):
        tab = opened(browser, pages["report"], fragment)
        expect(tab.locator(fragment)).to_be_in_viewport()
        assert tab.locator("details.fold[open]").count() == 1
        tab.close()
    tab = opened(browser, pages["report"], "#:~:text=Pool%20fingerprint")  # opens what the browser's search opens
    expect(tab.get_by_text("Pool fingerprint")).to_be_in_viewport()
    tab.close()
    tab = opened(browser, pages["look"])
    tab.get_by_text("The largest groups of repeated images").click()
    expect(tab.get_by_text("one stays").first).to_be_visible()
    pool = tab.locator("details.fold", has=tab.locator("#pool-title"))
    expect(pool.locator("table").first).to_be_hidden()
    pool.locator("summary").first.focus()
    tab.keyboard.press("Enter")
    expect(pool.locator("table").first).to_be_visible()
    tab.close()


def test_one_click_selects_the_command_of_a_recipe(browser: Any, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["look"])
    command = tab.locator(".command").first
    command.click(position={"x": 40, "y": 12})
    assert tab.evaluate("getSelection().toString()").strip() == "tamis run pool --recipe basic"
    tab.close()


@pytest.mark.parametrize("name", ["look", "report"])
def test_each_image_is_in_the_file_once(pages: dict[str, Path], name: str) -> None:
    found = re.findall(r"data:image/[^\"]+", pages[name].read_text(encoding="utf-8"))
    assert len(found) > 60
    assert (
        len(found) == len(re.findall(r'<div popover id="pair-', pages[name].read_text(encoding="utf-8"))) - 1
    )  # broken


def test_without_images_a_finding_shows_captions(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    run = tamis.open_run(pages["report"].parent / "run")
    run.readable_pool = None
    write_report(run, [], tmp_path / "page.html")
    tab = opened(browser, tmp_path / "page.html")
    captions = tab.locator(".findings > li", has_text="are short").locator("button")
    assert captions.all_inner_texts() == ["dog"] * 8
    captions.first.click()
    expect(tab.locator(":popover-open")).to_contain_text("the pool's files are not here")
    tab.close()


@pytest.mark.skipif(bool(NO_AXE), reason=NO_AXE)
@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESK), ("dark", PHONE)])
def test_axe_finds_nothing_wrong_folded_or_with_an_image_opened(
    browser: Any, pages: dict[str, Path], scheme: str, viewport: Any
) -> None:
    for page in pages.values():
        tab = opened(browser, page, viewport=viewport, color_scheme=scheme)
        assert barriers(tab) == []
        tab.locator(".tile button").first.click()
        assert barriers(tab, ":popover-open") == []
        tab.close()
