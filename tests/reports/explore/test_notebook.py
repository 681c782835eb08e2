"""The page below a notebook's cell: who may frame it, what it selects, when it ends."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from explored_page import Page
from factories import write_run

import tamis
from tamis.commands.explore import explore
from tamis.core.errors import RunError

IFRAME = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}


@pytest.fixture
def run(run_folder: Path) -> tamis.Run:
    return tamis.open_run(run_folder)


@contextmanager
def cell(html: str) -> Iterator[str]:
    """The address of a page on another port that holds a cell's output, as a notebook's server sends it."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *words: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


def test_only_a_page_that_a_notebook_started_may_be_framed_and_only_by_this_machine(run: tamis.Run) -> None:
    server = explore(run).start()
    page = Page(run.path, server.address)
    status, headers, _ = page.request(f"/?token={page.token}", **IFRAME)
    assert status == 200
    ancestors = headers["content-security-policy"].partition("frame-ancestors ")[2]
    assert ancestors == "localhost:* 127.0.0.1:*"
    for path, sent in [
        ("/?token=wrong", IFRAME),
        (f"/{page.token}/web/main.js", IFRAME),
        (f"/?token={page.token}", {**IFRAME, "Sec_Fetch_Dest": "object"}),
        (f"/?token={page.token}", {**IFRAME, "Host": "evil.example"}),
        (f"/?token={page.token}", {**IFRAME, "Origin": "http://localhost:8888"}),
    ]:
        assert page.request(path, **sent)[0] == 403, path


def test_what_is_tagged_or_inside_the_lasso_is_selected(run: tamis.Run) -> None:
    server = explore(run).start()
    assert server.selected == []
    page = Page(run.path, server.address)
    uids = run.to_pandas()["uid"].tolist()
    recipe = {"select": []}
    for change in ("add", "remove"):
        page.ask("tag", rows=[3], **{change: ["any word"]})
        assert server.selected == ([uids[3]] if change == "add" else [])
    page.ask("tag", rows=[59], add=["bad"])
    corners = [[-2, -2], [2, -2], [2, 2], [-2, 2]]
    lasso = {"map": "image_embedding", "points": corners}
    inside = page.ask("rows", recipe=recipe, view={"sort": "row"}, lasso=lasso)
    assert inside["total"] == 59  # one image does not decode, so it is not on the map
    assert server.selected == [uid for row, uid in enumerate(uids) if row != 13]
    page.ask("rows", recipe=recipe)
    assert server.selected == [uids[59]]
    page.ask("undo_tags")
    server.close()


def test_it_starts_when_a_cell_shows_it_and_ends_when_it_is_closed(run: tamis.Run) -> None:
    chosen = tamis.select(run, {"name": "half", "select": [{"random_fraction": {"fraction": 0.5, "seed": 1}}]})
    first = explore(run, [chosen])
    assert first.address in first._repr_html_()
    assert Page(run.path, first.address).ask("facts")["recipes"][0]["name"] == "half"
    first.close()
    first.close()
    with pytest.raises(ConnectionRefusedError):
        Page(run.path, first.address).request("/")
    explore(run, port=first.port).close()  # it is free again


def test_the_page_works_in_the_frame_of_a_cell(run: tamis.Run, browser: Any) -> None:
    server = explore(run)
    with cell(server._repr_html_()) as address:
        tab = browser.new_page()
        tab.goto(address)
        frame = tab.frame_locator("iframe")
        frame.locator("body.ready").wait_for(timeout=60_000)
        frame.locator(".chip", has_text="distinct").click()
        frame.locator(".sides .dropped").wait_for()
        assert frame.locator(".inside .kept img").first.evaluate(
            "image => image.decode().then(() => image.naturalWidth)"
        )
        frame.locator(".grid").focus()
        row = int(frame.locator("#card-0").get_attribute("data-row") or -1)
        tab.keyboard.press("g")
        frame.locator("#card-0 .label").wait_for()
        assert server.selected == [run.to_pandas()["uid"][row]]
        tab.keyboard.press("u")
        frame.locator("#card-0 .label").wait_for(state="detached")
    server.close()
    plain = explore(run.path)
    with cell(f"<iframe src='{plain.address}'></iframe>") as address:
        serving = threading.Thread(target=plain.serve, daemon=True)
        serving.start()
        tab = browser.new_page()
        answers: list[int] = []
        tab.on(
            "response",
            lambda answer: answers.append(answer.status) if urlsplit(answer.url).port == plain.port else None,
        )
        tab.goto(address)
        tab.wait_for_timeout(200)
        assert answers == [403]
    plain.stop()
    serving.join(10)


def test_a_run_that_was_opened_as_partial_is_explored_as_such(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"words": [1.0, 2.0, 3.0]})
    run.index_path(run.shards[-1]).unlink()
    with pytest.raises(RunError, match="lacks 1 of its 3 shards"):
        tamis.explore(tamis.Run(run.path))
    tamis.explore(tamis.Run(run.path, partial=True)).close()
