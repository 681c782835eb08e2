"""The page of a pool that is being measured: its first pairs, its progress, its findings, and how it grows."""

import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsing import NO_AXE, NO_BROWSER, barriers
from explored_page import Page
from explored_tab import PHONE, new_tab, wait_for
from factories import caption, pair, write_pool, write_tar

import tamis
from tamis.commands.select import select
from tamis.pools import open_pool
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.growing import GrowingPages
from tamis.reports.explore.image_cache import Images
from tamis.reports.explore.pages import Pages
from tamis.reports.explore.queries import Explorer
from tamis.reports.explore.server import Server

if NO_BROWSER:
    pytest.skip(NO_BROWSER, allow_module_level=True)

from playwright.sync_api import expect

expect.set_options(timeout=60_000)  # the page asks again after a second, on a machine that may be busy


class Pretended:
    """Measures nothing: its shards are finished when a test says so."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.state, self.asked = "measuring", 0

    def ready(self) -> Collection[str]:
        return self.done

    def progress(self) -> dict[str, Any]:
        return {
            "state": self.state, "error": "", "failures": {"00009": "<b>no tar"}, "ready": len(self.done), "shards": 3,
            "pairs": 4 * len(self.done), "of": 12, "rate": 2.0, "left": 4.0, "command": "tamis score pool --run run",
        }  # fmt: skip

    def more(self) -> None:
        self.asked += 1


@pytest.fixture(scope="module")
def growing_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("growing")
    pool = write_pool(folder / "pool", shards=2, rows=4)
    samples = [(f"{row}", {**pair(2000 + row), **({"txt": b" "} if row == 3 else {})}) for row in range(4)]
    write_tar(pool / "00002.tar", samples)
    signals = ["caption_length", "image_size", "image_hash"]
    return tamis.score(pool, run=folder / "run", signals=signals, quiet=True).path


@contextmanager
def growing(run: Path) -> Iterator[tuple[Pretended, Page, GrowingPages]]:
    measuring = Pretended()

    def open_pages(ready: Collection[str]) -> Pages:
        opened = CachedRun(run, partial=True, shards=ready)
        propose = [{"recipe": "basic", "why": "Why not.", "keeps": "90 %", "command": "tamis run pool --recipe basic"}]
        choose = lambda run, recipe: select(run, recipe, any_model=True, partial=True)  # noqa: E731
        return Pages(Explorer(opened, (), choose, lambda explorer: propose), Images(opened))

    answers = {"progress": lambda asked: measuring.progress(), "more": lambda asked: measuring.more()}
    pages = GrowingPages(measuring.ready, open_pages, answers)
    server = Server(pages).start()
    yield measuring, Page(run, server.address), pages
    server.close()


def test_the_page_grows_without_disturbing_its_user(tab: Any, growing_run: Path) -> None:
    with growing(growing_run) as (measuring, page, pages):
        tab.goto(page.address)
        expect(tab.locator("#measured")).to_contain_text("Measuring: 0 of 3 shards")
        pages.read_first(open_pool(str(growing_run.parent / "pool")), ["00001"])
        expect(tab.locator(".first .card")).to_have_count(4)
        expect(tab.locator(".first .caption").first).to_have_text(caption(1000))
        one, two = (tab.locator(".first .card").nth(place).bounding_box() for place in (0, 1))
        assert one["x"] + one["width"] <= two["x"]
        image = tab.locator(".first img").first
        expect(image).to_be_visible()
        assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        if not NO_AXE:
            assert barriers(tab) == []

        measuring.done = ["00001"]  # nothing was touched: more is shown at once
        tab.wait_for_selector("body.ready")
        expect(tab.locator(".told").last).to_have_text("4 pairs")
        measuring.done = ["00001", "00002"]
        expect(tab.locator(".told").last).to_have_text("8 pairs")
        assert tab.locator("#measured details").inner_text() == "1 shard failed"

        tab.locator("#view-grid").click()
        tab.locator("#sort").select_option("row")
        tab.locator(".card[data-row='5']").click(modifiers=["Control"])
        tab.get_by_role("combobox", name="Tag", exact=True).fill("half a wo")
        shown = tab.locator(".card[data-row='5'] .caption").inner_text()
        measuring.done, measuring.state = ["00000", "00001", "00002"], "done"
        tab.locator("#show-more").wait_for()  # something was: the user says when
        assert tab.locator("#show-more").inner_text() == "1 shard more: show it"
        expect(tab.locator(".told").last).to_have_text("8 pairs")
        if not NO_AXE:
            assert barriers(tab) == []
        tab.locator("#show-more").click()
        expect(tab.locator(".card[data-row='9'] .caption")).to_have_text(shown)  # four rows further down
        expect(tab.locator(".card.chosen")).to_have_attribute("data-row", "9")
        expect(tab.get_by_role("combobox", name="Tag", exact=True)).to_have_value("half a wo")
        expect(tab.locator("#show-more")).to_have_count(0)
        assert tab.locator("#measured").inner_text().startswith("Measured 3 of 3 shards")


def test_a_pool_without_a_readable_shard_says_so(tab: Any, growing_run: Path) -> None:
    with growing(growing_run) as (measuring, page, _):
        measuring.state = "done"
        tab.goto(page.address)
        expect(tab.locator("#main [role=alert]")).to_have_text("No shard could be read.")
        expect(tab.locator("#recipe, #scores")).to_have_text(["", ""])


class Forgotten(OrderedDict[str, Pages]):
    """Versions of which none is open any more when it is asked for."""

    def __contains__(self, name: object) -> bool:
        return False


def test_more_can_be_measured_and_an_old_page_says_so(
    tab: Any, growing_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with growing(growing_run) as (measuring, page, pages):
        measuring.done, measuring.state = ["00001"], "enough"
        tab.goto(page.address)
        tab.wait_for_selector("body.ready")
        tab.locator("#measure-more").click()
        expect(tab.locator("#copy-rest")).to_have_attribute("title", "tamis score pool --run run")
        wait_for(tab, lambda: measuring.asked)  # the click's request may still be on its way
        assert measuring.asked == 1
        monkeypatch.setattr(pages, "_versions", Forgotten())
        assert [page.request(f"/{page.token}/near?v={version}", b"x")[0] for version in ("1", "")] == [409, 409]
        tab.locator("#view-rejects").click()
        expect(tab.locator(".told").last).to_contain_text("this page is older than what the server still has open")


def test_a_finding_shows_its_pairs(browser: Any, growing_run: Path, tmp_path: Path) -> None:
    with growing(growing_run) as (measuring, page, _), new_tab(browser, viewport=PHONE, color_scheme="dark") as tab:
        measuring.done, measuring.state = ["00000", "00001", "00002"], "done"
        tab.goto(page.address)
        expect(tab.locator("#view-findings")).to_have_text("Findings 1")
        tab.locator("#view-findings").click()
        line = tab.locator("#findings button")
        expect(line).to_have_text("The pool has 1 empty caption (8.3 %).")  # its number once
        line.click()
        expect(line).to_have_attribute("aria-pressed", "true")
        expect(tab.locator("#findings .hint")).to_contain_text("only white space")
        expect(tab.locator(".told").last).to_have_text("1 pair")
        expect(tab.locator("#proposals")).to_contain_text("basic keeps 90 %. Why not. tamis run pool --recipe basic")
        if not NO_AXE:
            assert barriers(tab) == []


def test_the_command_shows_images_then_findings_and_opens_at_once_the_second_time(tab: Any, tmp_path: Path) -> None:
    samples = [(f"{n}", {**pair(n), **({"txt": b" "} if n == 3 else {})}) for n in range(30)]
    write_tar(tmp_path / "pool" / "00000.tar", samples)
    words = [sys.executable, "-m", "tamis", "look", str(tmp_path / "pool"), "--no-browser"]
    for _ in range(2):
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        ) as command:
            assert command.stdout
            tab.goto(command.stdout.readline().strip())
            tab.locator(".card img").first.wait_for(timeout=60_000)
            tab.wait_for_selector("body.ready", timeout=60_000)
            expect(tab.locator("#measured")).to_contain_text("Measured 1 of 1 shard", timeout=60_000)
            tab.locator("#view-findings").click()
            expect(tab.locator("#findings")).to_contain_text("The pool has 1 empty caption")
            expect(tab.locator("#proposals")).to_contain_text(f"tamis run {tmp_path / 'pool'} --recipe basic")
            tab.goto("about:blank")
            command.send_signal(signal.SIGINT)
            assert command.wait(30) == 130
    assert (tmp_path / "runs" / "pool" / "run.json").is_file()
    assert os.listdir(tmp_path / "runs") == ["pool"]
