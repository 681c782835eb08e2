"""The explorer's map in headless Chromium without a GPU: first paint, frames a second while it is dragged, memory.

A run with three scores and a stored map of a thousand islands. "First paint" is from the click on Map to the frame that
shows the points, positions read from disk; the second one is from memory, as after a change of the view. A frame is a
picture put into the canvas while the mouse drags the map; "drawn" is the median number of points in a frame while it
moves (all are drawn when it rests). Memory is that of all of Chromium's processes (PSS), and of the server (peak).

There is no baseline: of the ready components, deepscatter may not be sold (CC BY-NC-SA), regl-scatterplot builds code
with `Function`, which the page's policy forbids, and embedding-atlas draws nothing without WebGPU.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.measure import Case, child, finish, options
from benchmarks.select import write_run
from tamis.data import Column
from tamis.derived.columns import add_columns
from tamis.store import open_run

BROWSER = """
import json, os, resource, statistics, sys, threading, time
from pathlib import Path
from playwright.sync_api import sync_playwright
from tamis import api
from benchmarks.map import OPEN, memory
server = api.explore(sys.argv[1])
thread = threading.Thread(target=server.serve, daemon=True)
thread.start()
with sync_playwright() as driver:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    browser = driver.chromium.launch(executable_path=sys.argv[2], headless=True, args=arguments)
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.set_default_timeout(120_000)
    tab.goto(server.address)
    tab.wait_for_selector("body.ready")
    first = tab.evaluate(OPEN) / 1000
    tab.click("#view-grid")
    again = tab.evaluate(OPEN) / 1000
    time.sleep(3)
    tab.evaluate('''() => {
      const put = CanvasRenderingContext2D.prototype.putImageData;
      window.frames_ = [];
      CanvasRenderingContext2D.prototype.putImageData = function (...given) {
        put.apply(this, given);
        window.frames_.push([performance.now(), Number(this.canvas.dataset.drawn)]);
      };
    }''')
    box = tab.locator("#map").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    begun, number = time.perf_counter(), 0
    while time.perf_counter() - begun < 5:
        number += 1
        tab.mouse.move(x + 150 * (number % 40 - 20) / 20, y + 80 * (number % 30 - 15) / 15)
    frames = [frame for frame in tab.evaluate("window.frames_") if frame[1]]
    tab.mouse.up()
    used = memory(os.getpid())
    browser.close()
server.stop()
thread.join(20)
later = frames[len(frames) // 3 :]  # it finds out how many points fit into a frame
gaps = sorted(b[0] - a[0] for a, b in zip(later, later[1:]))
print(json.dumps({
    "first": first, "again": again, "frames": 1000 * len(gaps) / sum(gaps), "slowest": gaps[-1],
    "drawn": statistics.median(frame[1] for frame in later), "browser": used,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""

#: Opens the map; returns after how many milliseconds its points are drawn.
OPEN = """() => new Promise((done, failed) => {
  const begun = performance.now();
  const look = () => {
    const canvas = document.querySelector("canvas.map");
    if (canvas?.isConnected && canvas.dataset.drawn && document.querySelector(".legend button")) requestAnimationFrame(() => done(performance.now() - begun));
    else if (performance.now() - begun > 60000) failed(new Error("no map in a minute"));
    else requestAnimationFrame(look);
  };
  document.querySelector("#view-map").click();
  look();
})"""  # noqa: E501

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def memory(parent: int) -> int:
    """Returns the bytes of Chromium's processes among the descendants of a process; shared pages count once."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    ours, total = {parent}, 0
    while new := {process for process, above in parents.items() if above in ours} - ours:
        ours |= new
    for process in ours - {parent}:
        place = Path(f"/proc/{process}")
        try:
            if "chrom" in (place / "cmdline").read_text():
                rollup = (place / "smaps_rollup").read_text()
                total += 1024 * int(rollup.partition("Pss:")[2].split()[0])
        except OSError:
            continue
    return total


def add_map(place: Path) -> None:
    """Adds a map to a run: a thousand islands."""
    run = open_run(place)
    random = np.random.default_rng(0)
    centres = random.uniform(-0.9, 0.9, (1000, 2))
    points = centres[random.integers(0, 1000, len(run))] + 0.02 * random.normal(size=(len(run), 2))
    values = {f"map_{axis}": points[:, number].astype(np.float32) for number, axis in enumerate("xy")}
    columns = [Column(name=name, unit="", better="neither") for name in values]
    add_columns(run, "map", "map_image", {"of": "the benchmark"}, columns, lambda saved: (values, {}))


def main() -> None:
    asked = options(__doc__ or "")
    cases = []
    if not CHROMIUM or not find_spec("playwright"):
        sys.exit("this needs Chromium and Playwright")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for rows in (1_000_000, *(() if asked.quick else (5_000_000,))):
            place = Path(folder) / str(rows)
            print(f"writing {rows:,} rows under {place}", file=sys.stderr)
            write_run(place, rows)
            add_map(place)
            found = json.loads(child(BROWSER, str(place), CHROMIUM).output.strip().splitlines()[-1])
            settings = {"rows": rows, "slowest frame, ms": round(found["slowest"]), "drawn": round(found["drawn"])}
            settings |= {
                "again, s": round(found["again"], 2),
                "server's peak GiB": round(found["peak_bytes"] / 2**30, 2),
            }
            gib = found["browser"] / 2**30
            cases += [
                Case("the map is dragged", "frames/s", found["frames"], None, None, ">= 30", settings),
                Case("first paint", "seconds", found["first"], None, None, "<= 2 s", {"rows": rows}),
                Case("memory of the browser", "GiB", gib, None, None, "<= 1 GiB", {"rows": rows}),
            ]
    finish("map", cases, asked.json)


if __name__ == "__main__":
    main()
