"""The map in a real browser: pairs under the pointer, lassos, colours, and the same by keyboard."""

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from browsing import NO_BROWSER
from explored_page import Page
from explored_tab import CUT, opened

import tamis

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)
from playwright.sync_api import expect


def on_map(tab: Any, page: Page) -> tuple[Any, Any, Any]:
    """The rows of the map that is seen whole, and the places of their points on the screen."""
    _, _, body = page.request(f"/{page.token}/ask/map", json.dumps({"map": "image_embedding"}).encode())
    start = 4 + int.from_bytes(body[:4], "little")
    x, y = np.frombuffer(body, np.float32, 2 * 59, start).reshape(2, 59).astype(float)
    box = tab.locator("#map").bounding_box()
    scale = min(box["width"] / np.ptp(x), box["height"] / np.ptp(y)) / 1.06
    left = box["x"] + box["width"] / 2 + (x - (x.min() + x.max()) / 2) * scale
    top = box["y"] + box["height"] / 2 - (y - (y.min() + y.max()) / 2) * scale
    return np.frombuffer(body, np.uint32, 59, start + 59 * 8), left, top


def lassoed(tab: Any, page: Page) -> tuple[list[int], Any]:
    """The rows in the grid, and the lasso in the address."""
    lasso = json.loads(parse_qs(urlsplit(tab.url).fragment)["lasso"][0])
    found = page.ask("rows", recipe={"select": []}, view={"sort": "row"}, lasso=lasso, count=60)
    expect(tab.locator("main > .told")).to_have_text(re.compile(f"^{found['total']} pairs?"), timeout=60_000)
    return [card["row"] for card in found["cards"]], lasso["points"]


def test_the_map_shows_the_pair_under_the_pointer_and_a_lasso_fills_the_grid(tab: Any, page: Page) -> None:
    opened(tab, page, view="map")
    expect(tab.locator(".legend")).to_contain_text("kept 59", timeout=60_000)
    expect(tab.locator(".map-box > .told")).to_contain_text(f"tamis map {page.run} --of image")
    rows, left, top = on_map(tab, page)
    tab.mouse.move(float(left[0]), float(top[0]))
    tip = tab.locator(".tip")
    expect(tip).to_be_visible()
    expect(tip.locator("img")).to_have_attribute("src", re.compile(f"/image/small/{rows[0]}$"))
    run = tamis.open_run(page.run)
    assert tip.locator(".caption").inner_text().strip() in run.to_pandas(["caption"])["caption"][int(rows[0])]
    tab.mouse.click(float(left[0]), float(top[0]))
    tab.wait_for_selector("dialog[open]")
    assert f"pair={rows[0]}" in tab.url
    tab.keyboard.press("Escape")
    tab.locator("dialog").wait_for(state="hidden")

    # A loop round the lower left quarter, then the same after a zoom: exactly the rows whose points are inside.
    box = tab.locator("#map").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def loop(corners: list[tuple[float, float]]) -> None:
        tab.click("#map-loop")
        tab.mouse.move(*corners[0])
        tab.mouse.down()
        for corner in [*corners[1:], corners[0]]:
            tab.mouse.move(*corner, steps=3)
        tab.mouse.up()
        tab.click("#map-loop")

    low = box["y"] + box["height"] - 2
    loop([(box["x"] + 2, middle[1]), middle, (middle[0], low), (box["x"] + 2, low)])
    tab.wait_for_url("**lasso=**")
    assert lassoed(tab, page)[0] == sorted(rows[(left < middle[0]) & (top > middle[1])].tolist())
    assert tab.locator("#map").bounding_box() == box  # the filter's chip does not move the map
    tab.mouse.move(*middle)
    tab.mouse.wheel(0, -350)  # zooms by e^0.7
    zoom = np.exp(0.7)
    left, top = middle[0] + (left - middle[0]) * zoom, middle[1] + (top - middle[1]) * zoom
    seen = (abs(left - middle[0]) < box["width"] / 2) & (abs(top - middle[1]) < box["height"] / 2)
    loop([(middle[0] - 240, middle[1] - 160), (middle[0] + 240, middle[1] - 160), (middle[0], middle[1] + 160)])
    inside = (abs(top - middle[1]) < 160) & (abs(left - middle[0]) < (middle[1] + 160 - top) * 240 / 320)
    expect(tab.locator("main > .told")).to_have_text(re.compile(f"^{sum(inside)} pairs?$"), timeout=60_000)
    found, points = lassoed(tab, page)
    assert found == sorted(rows[inside].tolist())
    assert 0 < len(found) < seen.sum() < 59
    assert np.ptp(np.array(points)[:, 0]) < 2 / zoom

    # The pairs in view, then the whole map again.
    tab.click("#map-seen")
    expect(tab.locator("main > .told")).to_have_text(f"{seen.sum()} pairs", timeout=60_000)
    tab.click("#map-all")
    tab.click("#map-seen")
    expect(tab.locator("main > .told")).to_have_text("59 pairs", timeout=60_000)


def test_the_map_works_by_keyboard_and_says_what_its_colours_mean(tab: Any, page: Page) -> None:
    opened(tab, page, view="map", map=["image_embedding", "words"])
    expect(tab.locator(".ramp i")).to_have_count(16, timeout=60_000)
    tab.locator("#map-seen").focus()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "map"
    for key in "++++":
        tab.keyboard.press(key)
    tab.keyboard.press("0")
    tip = tab.locator(".tip")
    for _ in range(40):  # on the way to the left there is a pair
        if tip.is_visible() and tip.locator("img").count():
            break
        tab.keyboard.press("ArrowLeft")
        tab.wait_for_timeout(50)
    row = int(tip.locator("img").get_attribute("src").rpartition("/")[2])
    expect(tip.locator(".caption")).not_to_be_empty()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open]")
    assert f"pair={row}" in tab.url
    tab.keyboard.press("Escape")
    tab.locator("dialog").wait_for(state="hidden")
    assert tab.evaluate("document.activeElement.id") == "map"

    # A colour of the legend leaves only its points: the others are no longer drawn.
    tab.select_option("#map-by", "kept")
    shown = """() => {
      const context = document.querySelector("canvas.map").getContext("2d");
      return new Uint32Array(context.getImageData(0, 0, 2000, 2000).data.buffer).filter(Boolean).length;
    }"""
    expect(tab.locator("#legend-1")).to_contain_text("kept 59", timeout=60_000)
    tab.keyboard.press("Escape")
    tab.click("#map-all")
    assert tab.evaluate(shown) > 59
    opened(tab, page, view="map", recipe=CUT, compared=["@", "no-filter"])
    kept = int((tamis.open_run(page.run).to_numpy("words") >= 3).sum())
    expect(tab.locator("#legend-0")).to_have_text(re.compile("^dropped"), timeout=60_000)
    before = tab.evaluate(shown)
    tab.click("#legend-0")
    expect(tab.locator("#legend-0")).to_have_attribute("aria-pressed", "true")
    assert tab.evaluate(shown) < before
    assert kept < 60
    tab.select_option("#map-by", "disagreement")
    expect(tab.locator(".legend")).to_contain_text("no-filter keep", timeout=60_000)
