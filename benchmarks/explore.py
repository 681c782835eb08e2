"""A slider of the explorer moves: how soon are count, funnel and histograms there?

The rule of `benchmarks.select`, its first line moved by a little each time, on a run of three scores; the answer holds
the kept of each bar of all three. Ours is the explorer, which holds columns in memory and has each row's bar worked
out; the baseline is what one had before: the same choice from disk, and the report's histograms of it. Both choose the
same rows. "first" is what opening the page costs once: columns read, bars worked out.

Where Playwright and a Chromium are installed the page itself is measured too: from the slider's event to the frame that
shows the new count, funnel and histograms. "opened" is from the address to a page that can be used.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Case, child, finish, options
from benchmarks.select import write_run

MOVES = 8

OURS = """
import json, resource, sys, time
from tamis import api
from tamis.explore.columns import CachedRun
from tamis.explore.queries import Explorer
from benchmarks.explore import MOVES, moved
explorer = Explorer(CachedRun(sys.argv[1]), (), lambda run, recipe: api.select(run, recipe))
names = ["first", "second", "third"]
begun = time.perf_counter()
explorer.histograms(names)
explorer.chosen(moved(0), names)
first = time.perf_counter() - begun
begun = time.perf_counter()
kept = [explorer.chosen(moved(move), names)["kept"] for move in range(1, MOVES + 1)]
move = (time.perf_counter() - begun) / MOVES
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"first": first, "move": move, "kept": kept, "peak_bytes": peak}))
"""

BEFORE = """
import json, resource, sys, time
from tamis import api
from tamis.reporting.distributions import histograms
from benchmarks.explore import moved
begun = time.perf_counter()
subset = api.select(sys.argv[1], moved(1))
histograms(subset.run.table(), ["first", "second", "third"], [subset.keep])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"move": time.perf_counter() - begun, "kept": [len(subset)], "peak_bytes": peak}))
"""


#: The address of the page holds its state: the recipe and the histograms.
BROWSER = """
import json, resource, shutil, statistics, sys, threading, time
from urllib.parse import urlencode
from playwright.sync_api import sync_playwright
from tamis import api
from benchmarks.explore import MOVES, SLIDE, moved
server = api.explore(sys.argv[1])
thread = threading.Thread(target=server.serve, daemon=True)
thread.start()
rule = moved(0)
rule["select"][1]["top_fraction"]["of"] = "survivors"  # else as many are kept wherever the line is
state = urlencode({"recipe": json.dumps(rule), "charts": json.dumps(["first", "second", "third"])})
with sync_playwright() as driver:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    browser = driver.chromium.launch(executable_path=sys.argv[2], headless=True, args=arguments)
    tab = browser.new_page(viewport={"width": 1440, "height": 1000})
    tab.set_default_timeout(120_000)
    begun = time.perf_counter()
    tab.goto(f"{server.address}#{state}")
    tab.wait_for_selector("body.ready")
    opened = time.perf_counter() - begun
    tab.wait_for_selector("#slider-0-value")
    tab.evaluate(SLIDE)  # works out the rows' bars
    dragged = [tab.evaluate(SLIDE) / 1000 for _ in range(MOVES)]
    rested = []
    for _ in range(MOVES):
        time.sleep(1)  # the pairs below are there too
        rested.append(tab.evaluate(SLIDE) / 1000)
    browser.close()
server.stop()
thread.join(20)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
facts = {"opened": opened, "move": statistics.median(rested), "dragged": statistics.median(dragged)}
print(json.dumps(facts | {"longest": max(rested + dragged), "peak_bytes": peak}))
"""

#: Moves the slider by a step, and tells after how many milliseconds another count is drawn.
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

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def moved(by: int) -> dict[str, object]:
    """Returns the rule with its line moved by some steps."""
    return {
        "name": "fusion",
        "select": [
            {"at_least": {"score": "third", "value": 0.1 + 0.01 * by}},
            {"top_fraction": {"score": "0.5*minmax(first) + 0.5*minmax(second)", "fraction": 0.2, "of": "pool"}},
        ],
    }


def main() -> None:
    asked = options(__doc__ or "")
    cases = []
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for rows, target in ((1_000_000, 0.2), *(() if asked.quick else ((10_000_000, 1.0),))):
            place = Path(folder) / str(rows)
            print(f"writing {rows:,} rows under {place}", file=sys.stderr)
            write_run(place, rows)
            mine, before = child(OURS, str(place)), child(BEFORE, str(place))
            ours, theirs = (json.loads(run.output.strip().splitlines()[-1]) for run in (mine, before))
            cases.append(
                Case(
                    "a slider moves",
                    "seconds",
                    ours["move"],
                    theirs["move"],
                    theirs["move"] / ours["move"],
                    f"<= {target} s",
                    {
                        "rows": rows,
                        "same count": ours["kept"][0] == theirs["kept"][0],
                        "first": round(ours["first"], 2),
                        "our peak GiB": round(mine.peak_bytes / 2**30, 2),
                        "peak target": "<= 1.5 GiB",
                    },
                )
            )
            if CHROMIUM and find_spec("playwright"):
                page = child(BROWSER, str(place), CHROMIUM)
                found = json.loads(page.output.strip().splitlines()[-1])
                settings = {"rows": rows, "opened": round(found["opened"], 2), "longest": round(found["longest"], 3)}
                settings["each move at once after the one before"] = round(found["dragged"], 3)
                settings |= {"our peak GiB": round(found["peak_bytes"] / 2**30, 2), "peak target": "<= 1.5 GiB"}
                cases.append(
                    Case("the same in a browser", "seconds", found["move"], None, None, f"<= {target} s", settings)
                )
    finish("explore", cases, asked.json)


if __name__ == "__main__":
    main()
