"""Takes the README's pictures of our own pages, of drawn pairs: `python -m tools.pictures [FOLDER]`.

FOLDER keeps the pool and its run, so that a second call takes only the pictures, in which its path is seen. It needs
Playwright and a Chromium.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = (1360, 850)  # CSS pixels
QUALITY = 82  # of WebP
RECIPES = {
    "clip-30": ("--set", "signals.clip.model=lab/clip"),
    "basic": (),
    "distinct": (),
}


def tamis(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "tamis", *words], check=True)


def make_run() -> None:
    """Makes the run of a drawn pool, with the subsets of `RECIPES`, and a report of them."""
    if not Path("pool").exists():
        tamis("lab", "make-pool", "pool", "--pairs", "600", "--seed", "3", "--shard-size", "100")
    for recipe, settings in RECIPES.items():
        tamis("run", "pool", "--recipe", recipe, *settings, "--quiet")
    tamis("map", "runs/pool", "--sample", "1000")
    tamis("report", "runs/pool", *RECIPES, "--out", "report.html", "--overwrite")


def take(browser: Any, name: str, address: str, wait_for: str, clicks: Sequence[str] = ()) -> None:
    """Writes a picture of a page after some clicks."""
    from PIL import Image

    tab = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
    tab.goto(address)
    for place in (wait_for, *clicks):
        tab.wait_for_selector(place)
        if place in clicks:
            tab.click(place)
        tab.wait_for_load_state("networkidle")
    tab.wait_for_timeout(8000)  # images and charts are drawn
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    picture.save(IMAGES / f"{name}.webp", quality=QUALITY, method=6)
    tab.close()


def main() -> None:
    from browsing import chromium  # type: ignore[import-not-found]  # of the tests

    from tamis.commands.explore import explore

    folder = Path(sys.argv[1] if sys.argv[1:] else "pictures")
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    make_run()
    server = explore("runs/pool", ["clip-30"])
    server.start()
    with chromium() as browser:
        take(browser, "report", Path("report.html").absolute().as_uri(), "main")
        take(browser, "explore", server.address, "main img")
        take(browser, "look", server.address, "main img", ["#view-findings"])
    server.close()


if __name__ == "__main__":
    main()
