"""The first minute with a pool: from the command `tamis look` to the first image, the explorer and all findings.

Seconds on the clock, in Chromium without a GPU, and processor seconds of the command with its workers; and those of the
page that `--out` writes of 2,000 pairs. There is nothing to compare with. Needs Playwright and Chromium. `--pool`: a
pool of your own; without it one is drawn.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.explorer import CHROMIUM
from benchmarks.measure import Case, benchmark


def pool_of(root: Path, given: Any) -> str:
    pool = root / "pool"
    if not given.pool and not pool.exists():
        pairs = "1000" if given.quick else "4000"
        subprocess.run([sys.executable, "-m", "tamis", "lab", "make-pool", pool, "--pairs", pairs], check=True)
    return given.pool or str(pool)


def processor_seconds(done: Any) -> float:
    return float(done.ru_utime + done.ru_stime)


def first_minute(root: Path, given: Any) -> list[Case]:
    from playwright.sync_api import expect, sync_playwright

    words = [sys.executable, "-m", "tamis", "look", pool_of(root, given), "--no-browser", "--run"]
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=arguments)
        tab = browser.new_page(viewport={"width": 1440, "height": 1000})
        tab.set_default_timeout(600_000)
        begun = time.perf_counter()
        with subprocess.Popen([*words, f"{folder}/run"], stdout=subprocess.PIPE, text=True) as command:
            assert command.stdout
            tab.goto(command.stdout.readline().strip())
            while not tab.evaluate("[...document.querySelectorAll('.card img')].some((image) => image.naturalWidth)"):
                time.sleep(0.02)
            took["first image"] = time.perf_counter() - begun
            tab.wait_for_selector("body.ready")
            took["the explorer, with the first shards"] = time.perf_counter() - begun
            expect(tab.locator("#measured")).to_contain_text(re.compile("^Measured"), timeout=600_000)
            tab.click("#view-findings")
            tab.wait_for_selector("#findings button")
            took["all findings"] = time.perf_counter() - begun
            pairs = int(tab.locator(".kept-head").inner_text().split(" of ")[-1].split()[0].replace(",", ""))
            command.send_signal(signal.SIGINT)
            spent = processor_seconds(os.wait4(command.pid, 0)[2])
        browser.close()
    targets = {"first image": "<= 3 s", "all findings": "<= 25 s"}
    facts = {"pairs": pairs, "CPU seconds of the command": round(spent, 1)}
    return [
        Case(name, "seconds", seconds, target=targets.get(name, "-"), settings=facts) for name, seconds in took.items()
    ]


def page(root: Path, given: Any) -> list[Case]:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tamis", "look", pool_of(root, given), "--out", f"{folder}/page.html", "--quiet"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
            spent = processor_seconds(os.wait4(command.pid, 0)[2])
    return [Case("the page of 2,000 pairs", "CPU seconds", spent)]


if __name__ == "__main__":
    if not CHROMIUM or not find_spec("playwright"):
        sys.exit("this benchmark needs Playwright and Chromium")
    benchmark(__doc__, {"first": first_minute, "page": page}, pool=None)
