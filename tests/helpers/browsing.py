"""A real browser for tests: a Chromium that is installed, driven by Playwright, and what axe-core finds in a page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: Why there is no browser, or no axe-core; "" where there is one.
NO_BROWSER = (
    "Playwright is not installed: pip install playwright" if find_spec("playwright") is None
    else "there is no Chromium: apt-get install chromium" if CHROMIUM is None
    else ""
)  # fmt: skip
NO_AXE = "" if find_spec("axe_playwright_python") else "axe-core is not installed: pip install axe-playwright-python"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=arguments)
        yield running
        running.close()


def barriers(tab: Any, within: str = "html") -> list[str]:
    """Returns what axe-core finds wrong within a place, a line each: how bad it is, the rule, and the first places."""
    if not tab.evaluate("typeof axe === 'object'"):
        tab.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    # Only what is wrong is worked out in full: a report has thousands of elements.
    found = tab.evaluate("(within) => axe.run(within, {resultTypes: ['violations']})", within)["violations"]
    return [
        f"{each['impact']} {each['id']}: {each['help']}: "
        + "; ".join(f"{node['html'][:120]} {node['failureSummary'][:160]}" for node in each["nodes"][:3])
        for each in found
    ]
