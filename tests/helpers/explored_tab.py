"""The explorer's page in a tab of a real browser."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from explored_page import Page

HERE = "://127.0.0.1:"

CUT = {"name": "cut", "select": [{"at_least": {"score": "words", "value": 3, "missing": "drop"}}]}
PHONE = {"width": 390, "height": 844}


@contextmanager
def new_tab(browser: Any, here: str = HERE, **settings: Any) -> Iterator[Any]:
    """An empty tab; whatever the page complains of, and a request that does not contain `here`, fails the test."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **settings})
    context.set_default_timeout(15_000)
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    # An image that is not there, and a name that is taken, are answers that Chromium puts on the console too.
    tab.on(
        "console",
        lambda said: wrong.append(said.text) if said.type == "error" and "Failed to load" not in said.text else None,
    )
    tab.on("request", lambda asked: wrong.append(asked.url) if "://" in asked.url and here not in asked.url else None)
    yield tab
    context.close()
    assert wrong == []


def opened(tab: Any, page: Page, **state: Any) -> None:
    tab.goto("about:blank")
    tab.goto(f"{page.address}#{urlencode({key: json.dumps(value) for key, value in state.items()})}")
    tab.wait_for_selector("body.ready")


def wait_for(tab: Any, condition: Callable[[], Any]) -> Any:
    """Returns what the condition returns as soon as it is true; the tab goes on meanwhile."""
    until = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < until, "waited a minute"
        tab.wait_for_timeout(20)
    return found


def shows(tab: Any, kept: int) -> None:
    from playwright.sync_api import expect

    expect(tab.locator("#kept")).to_have_text(str(kept), timeout=60_000)
