"""The server answers its own page and nobody else, and what strangers wrote stays what it is."""

import errno
import json
import os
import re
import webbrowser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from explored_page import HOSTILE, Page, served
from factories import pair

from tamis.commands.explore import explore
from tamis.core.errors import RunError
from tamis.reports.explore.near import LARGEST, Near
from tamis.runs.subset import Subset

RECIPE: dict[str, Any] = {"name": "mine", "select": []}


def test_the_page_and_its_files_come_with_a_strict_policy(page: Page) -> None:
    status, headers, body = page.request(f"/?token={page.token}")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert headers["cross-origin-resource-policy"] == "same-origin"
    named = re.findall(rb'(?:src|href)="(/[^"]+)"', body)
    assert len(named) == 4
    for path in named:
        status, headers, _ = page.request(path.decode())
        assert status == 200
        assert "content-security-policy" in headers


#: A click on the printed address in a terminal that is itself a web page.
CLICK = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
PAGE, FACTS, SCRIPT = "/?token=TOKEN", "/TOKEN/ask/facts", "/TOKEN/web/main.js"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        *((path, {}, 401) for path in ("/", "/?token=wrong", "/wrong/web/main.js", "/wrong/near", "//")),
        ("/web/main.js?token=TOKEN", {}, 401),
        # DNS rebinding: a name of theirs that leads here.
        *((PAGE, {"Host": host}, 403) for host in ("evil.example:80", "127.0.0.1.evil.example", "")),
        *((FACTS, {"Origin": origin}, 403) for origin in ("http://evil.example", "null")),
        (FACTS, {"Sec_Fetch_Site": "cross-site"}, 403),
        (FACTS, {"Origin": "http://HERE", "Sec_Fetch_Site": "same-origin"}, 200),
        # A link from elsewhere opens the page with the right token only, and as a page of its own.
        (PAGE, CLICK, 200),
        *((path, CLICK, 403) for path in ("/?token=wrong", SCRIPT, FACTS)),
        (PAGE, {"Sec_Fetch_Site": "cross-site"}, 403),
        (PAGE, {**CLICK, "Sec_Fetch_Dest": "iframe"}, 403),
        (PAGE, {**CLICK, "Sec_Fetch_Mode": "no-cors"}, 403),
        (PAGE, {**CLICK, "Origin": "http://evil.example"}, 403),
    ],
)
def test_only_the_page_itself_is_answered(page: Page, path: str, headers: dict[str, str], status: int) -> None:
    sent = {name: value.replace("HERE", urlsplit(page.address).netloc) for name, value in headers.items()}
    body = b"{}" if path == FACTS else None
    found, answered, answer = page.request(path.replace("TOKEN", page.token), body, **sent)
    assert found == status, answer
    assert "content-security-policy" in answered
    if status != 200:
        assert {401: b"token is missing or wrong", 403: b"only"}[status] in answer
        assert page.token.encode() not in answer


@pytest.mark.parametrize(
    "path",
    [
        "web/%2e%2e/server.py", "web/..%2f..%2fapi.py", "web/index.html", "web//etc/passwd", "image/small/-1",
        "image/small/60", "image/other/1", "image/small/" + "9" * 5_000, "image/small/%C2%B2", "ask/__class__",
    ],
)  # fmt: skip
def test_path_tricks_lead_nowhere(page: Page, path: str) -> None:
    for body in (None, b"{}"):
        status, _, answer = page.request(f"/{page.token}/{path}", body)
        assert status in (404, 405), answer
        assert b"import" not in answer
        assert b"root:" not in answer


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("facts", b"no json", 400),
        ("facts", b"[" * 100_000, 400),
        ("rows", b"{}", 400),
        ("rows", b'{"recipe": 3}', 422),
        ("rows", b'{"recipe": {"select": []}, "view": {"__class__": 1}}', 400),
        ("rows", b'{"recipe": {"select": []}, "view": {"sort": "near"}}', 400),
        ("rows", b'{"recipe": {"select": []}, "start": 1e999}', 400),
        ("rows", b'{"recipe": {"select": []}, "view": {"words": [["status", {"a": [1]}]]}}', 400),
        ("rows", b'{"recipe": {"select": []}, "view": {"captions": ["%s"]}}' % (b"k" * 20_000), 422),
        ("rows", b'{"recipe": {"select": []}, "view": {"ranges": [["words", 1%s, null]]}}' % (b"0" * 400), 400),
        ("pair", b'{"row": 60}', 400),
        ("pair", b'{"row": Infinity}', 400),
        ("tag", b'{"rows": [1], "add": ["a, b"]}', 422),
        ("tag", b'{"rows": [1], "add": ["good", "bad"]}', 422),
        ("tag", b'{"rows": [60], "add": ["a"]}', 400),
        ("tag", b'{"add": ["a"]}', 400),
        ("rows", b'{"recipe": {"select": []}, "view": {"tags": [[1, true]]}}', 400),
        ("choose", b'{"recipe": {"select": [{"at_least": {"score": "clop", "value": 1}}]}}', 409),
        ("choose", b'{"recipe": {"select": [{"at_lest": {"score": "words", "value": 1}}]}}', 422),
        ("histograms", b'{"columns": ["status"]}', 422),
        ("words", b'{"column": "words", "recipe": {"select": []}}', 422),
    ],
)
def test_a_wrong_question_gets_a_sentence(page: Page, name: str, body: bytes, status: int) -> None:
    found, headers, answer = page.request(f"/{page.token}/ask/{name}", body)
    assert found == status, answer
    assert headers["content-type"].startswith("application/json")
    assert json.loads(answer)["error"]
    assert b"Traceback" not in answer


def test_a_question_has_a_limit(page: Page) -> None:
    path = f"/{page.token}/ask/facts"
    assert page.request(path, b" " * ((4 << 20) + 1))[0] == 413
    assert page.request(path, b"{}", Transfer_Encoding="chunked")[0] == 413


def test_infinite_limits_are_written_in_words(page: Page) -> None:
    for value in (1e39, -np.inf):
        recipe = {"name": "far", "select": [{"at_least": {"score": "words", "value": value}}]}
        found = page.ask("choose", recipe=recipe)
        assert found["kept"] == (0 if value > 0 else 60)
        assert found["cuts"][0]["low"] == (".inf" if value > 0 else "-.inf")


def test_a_subset_that_cannot_be_written_gets_a_sentence(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str) -> tuple[int, str]:
        body = json.dumps({"recipe": {"name": name, "select": []}}).encode()
        status, _, answer = page.request(f"/{page.token}/ask/save", body)
        return status, json.loads(answer)["error"]

    status, error = asked("x" * 300)
    assert status == 422
    assert "too many for a file" in error
    for number, expected in [(errno.EROFS, "folder you can write to"), (errno.ENOSPC, "space"), (errno.EIO, "repeat")]:

        def fail(*arguments: Any, number: int = number, **settings: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Subset, "save", fail)
        status, error = asked("fails")
        assert status == 409
        assert expected in error


def test_a_search_is_made_once_for_all_its_pages(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"recipe": RECIPE, "view": {"sort": "row"}, "near": {"row": 9}}
    every = page.ask("rows", **order)["cards"]
    monkeypatch.setattr(Near, "neighbours", None)
    assert page.ask("rows", **order, start=20)["cards"] == every[20:]


def test_pairs_are_found_by_words_and_by_a_true_image_that_is_small_enough(clip_page: Page) -> None:
    assert clip_page.ask("facts")["searchable"]
    status, headers, body = clip_page.request(f"/{clip_page.token}/near", pair(7)["jpg"])
    assert (status, headers["content-type"]) == (200, "application/json")
    near = {**json.loads(body), "name": "<b>.jpg"}
    order = {"recipe": RECIPE, "view": {"sort": "row"}}
    found = clip_page.ask("rows", **order, near=near)
    assert found["cards"][0]["row"] == 7
    by_words = clip_page.ask("rows", **order, near={"text": "a red square"})
    assert sorted(card["row"] for card in by_words["cards"]) == list(range(12))
    path = f"/{clip_page.token}/near"
    for data in (b"", b"<svg onload='hurt()'/>", pair(7)["jpg"][:300], b"%!PS-Adobe-3.0 EPSF-3.0"):
        status, headers, body = clip_page.request(path, data)
        assert (status, headers["content-type"]) == (422, "application/json")
        assert "cannot be used" in json.loads(body)["error"]
    assert clip_page.request(path, Content_Length=str(LARGEST + 1), method="POST")[0] == 413
    assert clip_page.request(path, pair(7)["jpg"], Origin="http://evil.example")[0] == 403


def test_captions_stay_as_they_are_and_are_never_markup(page: Page) -> None:
    found = page.ask("rows", recipe=RECIPE, view={"sort": "row"}, columns=["words"])
    assert [card["caption"] for card in found["cards"][:6]] == HOSTILE[:6]
    assert len(found["cards"][6]["caption"]) == 400
    assert page.ask("rows", recipe=RECIPE, start=-5, count=-5)["cards"] == []
    assert len(page.ask("rows", recipe=RECIPE, start=-5, count=7)["cards"]) == 7


def test_the_pages_own_files_make_no_markup_of_strings_and_name_no_other_place() -> None:
    for entry in (files("tamis.reports.explore") / "web").iterdir():
        if not entry.name.endswith((".js", ".html", ".css")):
            continue
        text = entry.read_text(encoding="utf-8")
        for word in ("nerHTML", "outerHTML", "AdjacentHTML", "document.write", "eval(", "Function(", "DOMParser"):
            assert word not in text, f"{entry.name}: {word}"
        places = set(re.findall(r"https?://[^\s\"\'`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert places == set(), entry.name


def test_the_server_listens_on_loopback_and_names_a_port_that_is_taken(page: Page) -> None:
    assert urlsplit(page.address).hostname == "127.0.0.1"
    assert len(page.token) >= 43  # 256 bits
    port = urlsplit(page.address).port
    with pytest.raises(RunError, match=f"port {port} "):
        explore(page.run, port=port or 0)


def test_the_browser_is_opened_at_the_address_if_there_is_one(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    with served(run_folder, browser=True) as page:
        assert opened == [page.address]

    def fail(address: str) -> bool:
        raise webbrowser.Error("no display")

    monkeypatch.setattr(webbrowser, "open", fail)
    with served(run_folder, browser=True) as page:
        assert page.ask("facts")["rows"] == 60
    assert "open the address by hand" in caplog.text
