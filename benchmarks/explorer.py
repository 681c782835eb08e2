"""The explorer in Chromium without a GPU: a slider moves, and the map is dragged. Needs Playwright and Chromium.

`slider`: from the slider's event to the frame that shows the new count. The rule of `benchmarks.select` on a run of
three scores, its first line moved a little each time, with the histograms of all three. Next to it the same choice
from disk with the report's histograms.

`map`: a stored map of a thousand islands. From the click on Map to the frame that shows the points, and frames a
second while the mouse drags it; "drawn" is the median number of points in a frame. There is nothing to compare with:
deepscatter may not be sold, regl-scatterplot needs what the page's policy forbids, embedding-atlas WebGPU.

`static`: the page of `tamis report --interactive`: its size, from opening the file to the pairs on the screen, and a
move of its slider. `--pool`: of these images; drawn ones are smaller than photographs.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

import tamis
from benchmarks.measure import GIB, Case, Spent, benchmark, child, in_turn, spend, versus
from benchmarks.runs import written
from benchmarks.score import pool_of
from benchmarks.select import COLUMNS, write_run
from tamis.commands.explore import explore
from tamis.core.types import Column
from tamis.recipes.derived.columns import add_columns
from tamis.runs import open_run

MOVES = 8
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def moved(by: int, of: str = "pool") -> dict[str, Any]:
    """Returns the rule with its line moved by some steps."""
    fusion = {"score": "0.5*minmax(first) + 0.5*minmax(second)", "fraction": 0.2, "of": of}
    line = {"score": "third", "value": 0.1 + 0.01 * by}
    return {"name": "fusion", "select": [{"at_least": line}, {"top_fraction": fusion}]}


def from_disk(run: str) -> Spent:
    from tamis.reports.distributions import histograms

    def choose() -> None:
        subset = tamis.select(run, moved(1))
        histograms(subset.run.table(), COLUMNS, [subset.keep])

    return spend(choose)


#: Moves the slider by a step; returns after how many milliseconds another count is drawn.
SLIDE = """() => new Promise((done, failed) => {
  const slider = document.querySelector("#slider-0-value");
  const shown = () => document.querySelector("#kept").textContent;
  const before = shown(), begun = performance.now();
  const watcher = new MutationObserver(() => {
    if (shown() === before) return;
    watcher.disconnect();
    requestAnimationFrame(() => done(performance.now() - begun));
  });
  watcher.observe(document.body, { subtree: true, childList: true, characterData: true });
  setTimeout(() => failed(new Error("no other count in a minute")), 60000);
  slider.focus();
  slider.stepUp();
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})"""

#: Opens the map; returns after how many milliseconds its points are drawn.
OPEN = """() => new Promise((done, failed) => {
  const begun = performance.now();
  const look = () => {
    const canvas = document.querySelector("canvas.map");
    const drawn = canvas?.isConnected && canvas.dataset.drawn && document.querySelector(".legend button");
    if (drawn) requestAnimationFrame(() => done(performance.now() - begun));
    else if (performance.now() - begun > 60000) failed(new Error("no map in a minute"));
    else requestAnimationFrame(look);
  };
  document.querySelector("#view-map").click();
  look();
})"""

#: Notes the time and the points of every frame of the map.
WATCH = """() => {
  const put = CanvasRenderingContext2D.prototype.putImageData;
  window.frames_ = [];
  CanvasRenderingContext2D.prototype.putImageData = function (...given) {
    put.apply(this, given);
    window.frames_.push([performance.now(), Number(this.canvas.dataset.drawn)]);
  };
}"""


def serve(run: str) -> None:
    """Serves the explorer until its input ends; prints its address, then its peak memory in bytes."""
    with closing(explore(run).start()) as server:
        print(server.address, flush=True)
        sys.stdin.read()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


@contextmanager
def page_of(run: str, state: str = "", peaks: list[int] | None = None) -> Iterator[Any]:
    """Opens the explorer of a run in Chromium. It has its own process, whose peak memory goes to `peaks`."""
    from playwright.sync_api import sync_playwright

    code = f"from benchmarks.explorer import serve; serve({run!r})"
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    with sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=arguments)
        tab = browser.new_page(viewport={"width": 1440, "height": 1000})
        tab.set_default_timeout(120_000)
        tab.goto(f"{server.stdout.readline().strip()}#{state}")
        tab.wait_for_selector("body.ready")
        yield tab
        browser.close()
    peak = server.communicate()[0]
    if peaks is not None:
        peaks.append(int(peak.strip().splitlines()[-1]))


def slide(run: str) -> Spent:
    # The address holds the recipe. Of the survivors: else as many are kept wherever the line is.
    recipe, charts = json.dumps(moved(0, of="survivors")), json.dumps(COLUMNS)
    peaks: list[int] = []
    with page_of(run, urlencode({"recipe": recipe, "charts": charts}), peaks) as tab:
        tab.wait_for_selector("#slider-0-value")
        tab.evaluate(SLIDE)  # the first move computes the rows' limits
        moves = []
        for _ in range(MOVES):
            time.sleep(1)  # the pairs below are there too
            moves.append(tab.evaluate(SLIDE) / 1000)
    return Spent(statistics.median(moves), 0, 0, [max(moves), peaks[0]])


def drag(run: str) -> dict[str, float]:
    with page_of(run) as tab:
        paint = tab.evaluate(OPEN) / 1000
        time.sleep(3)
        tab.evaluate(WATCH)
        box = tab.locator("#map").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        tab.mouse.move(x, y)
        tab.mouse.down()
        begun, number = time.perf_counter(), 0
        while time.perf_counter() - begun < 5:
            number += 1
            tab.mouse.move(x + 150 * (number % 40 - 20) / 20, y + 80 * (number % 30 - 15) / 15)
        frames = [frame for frame in tab.evaluate("window.frames_") if frame[1]]
    later = frames[len(frames) // 3 :]  # it learns how many points fit into a frame
    gaps = [after[0] - before[0] for before, after in pairwise(later)]
    drawn = statistics.median(frame[1] for frame in later)
    return {"paint": paint, "frames": 1000 * len(gaps) / sum(gaps), "slowest, ms": max(gaps), "drawn": drawn}


def slider(root: Path, given: Any) -> list[Case]:
    cases = []
    for rows, target in ((1_000_000, "<= 0.2 s"), *(() if given.quick else ((10_000_000, "<= 0.8 s, 0.8 GiB"),))):
        run = root / str(rows)
        write_run(run, rows)
        spent = in_turn(2, ours=partial(child, slide, run), disk=partial(child, from_disk, run))
        longest, peak = (max(each.result[place] for each in spent["ours"]) for place in (0, 1))
        facts = {"longest": round(longest, 3), "peak GiB of the server": round(peak / GIB, 2)}
        name = f"a slider moves over {rows:,} rows, next to select"
        cases.append(versus(name, spent["ours"], spent["disk"], target=target, **facts))
    return cases


def map_(root: Path, given: Any) -> list[Case]:
    rows = 1_000_000 if given.quick else 5_000_000
    place = root / str(rows)
    if not written(place):
        write_run(place, rows)
        rng = np.random.default_rng(0)
        centres = rng.uniform(-0.9, 0.9, (1000, 2))
        points = (centres[rng.integers(0, 1000, rows)] + 0.02 * rng.normal(size=(rows, 2))).astype(np.float32)
        values = {"map_x": points[:, 0], "map_y": points[:, 1]}
        columns = [Column(name=name, unit="", better="neither") for name in values]
        add_columns(open_run(place), "map", "map_image", {"of": "points"}, columns, lambda saved: (values, {}))
    facts = child(drag, place).result
    return [
        Case(f"first paint of a map of {rows:,} points", "seconds", facts.pop("paint"), target="<= 2 s"),
        Case("the map is dragged", "frames/s", facts.pop("frames"), target=">= 30", settings=facts),
    ]


def static(root: Path, given: Any) -> list[Case]:
    from playwright.sync_api import sync_playwright

    pairs = 1_000 if given.quick else 5_000
    pool = given.pool or pool_of(root, pairs // 5, 6)
    run = tamis.score(pool, run=root / "run", signals=["caption_length", "image_quality"], quiet=True, device="cpu")
    recipe = {"name": "sharp", "select": [{"at_least": {"score": "sharpness", "value": 0.01, "missing": "drop"}}]}
    made = spend(lambda: tamis.report(run, [tamis.select(run, recipe)], out=root / "page.html", interactive=True,
                                      pairs=pairs, overwrite=True))  # fmt: skip
    opened, moves = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(3):
            tab = browser.new_page(viewport={"width": 1440, "height": 1000})
            begun = time.perf_counter()
            tab.goto((root / "page.html").as_uri())
            tab.wait_for_selector("body.ready")
            opened.append(time.perf_counter() - begun)
            moves += [tab.evaluate(SLIDE) / 1000 for _ in range(MOVES)]
            tab.close()
        browser.close()
    facts = {"seconds to write": round(made.seconds, 1), "processor seconds": round(made.cpu_seconds, 1)}
    size = (root / "page.html").stat().st_size / 1e6
    return [
        Case(f"a page of {pairs:,} pairs", "MB", size, target="<= 60 MB", settings=facts),
        Case("it opens from disk", "seconds", statistics.median(opened), target="<= 2 s"),
        Case(
            "its slider moves", "seconds", statistics.median(moves), target="<= 0.1 s", settings={"longest": max(moves)}
        ),
    ]


if __name__ == "__main__":
    if not CHROMIUM or not find_spec("playwright"):
        raise SystemExit("this needs Chromium and Playwright")
    benchmark(__doc__, {"slider": slider, "map": map_, "static": static}, pool=None)
