"""The explorer's server: on loopback only, behind a token, for one person.

What could go wrong, and what stands against it:

- Another user or program of the machine: every address holds a token of 256 bits; without it nothing is told. No
  command names the token, since everybody may list commands: the browser is sent there by a private file (`doorway`).
- A web page in the same browser: it does not know the token; requests whose Host is not loopback (DNS rebinding) or
  whose Origin is another are refused; nothing may be framed, and answers may not be read across origins. A link with
  the right token opens the page from anywhere, as a page of its own.
- Captions, keys and words of strangers: they reach the page as JSON and become text nodes. The page's policy forbids
  scripts, styles, pictures and connections from anywhere but here, and scripts that are not files of `web/`.
- A picture to search by: at most so many bytes, decoded as the pool's images are (a limit of pixels, no format that
  runs anything), never stored, never sent back.
- Paths: files of `web/` are looked up in a list that was made at the start; rows are numbers; a saved subset's name
  must do as a file name, and lies in the run folder.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tamis.errors import DiskFullError, RunError, TamisError, needs_extra
from tamis.explore.doorway import Doorway
from tamis.explore.images import KIND, NoPicture
from tamis.explore.near import LARGEST
from tamis.explore.pages import Pages

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)

HOST = "127.0.0.1"

#: The largest question that the page asks, in bytes: a lasso names its rows.
_MOST_BYTES = 4 << 20

#: Digits of the longest row number: Python refuses to read some thousands of them.
_DIGITS = 18

#: What a question may raise that is not what the page asks, by the work that it is put to.
_UNREADABLE = (
    KeyError, TypeError, ValueError, IndexError, AttributeError,
    ArithmeticError,  # JSON as Python reads it has infinities, and integers past all floats
    NotImplementedError,  # Arrow's, of values that are of no kind of the column's
    RecursionError,
)  # fmt: skip

#: Where a picture to search by is sent.
_SEARCH = "/near"

_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Guard:
    """Lets through what comes from this page: see the module.

    Args:
        app: what answers.
        token: that every address must hold: `/?token=TOKEN`, and `/TOKEN/...` for all else.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        problem = self._refused(scope, headers)
        if problem:
            await refuse(send, *problem)
            return

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in given)]
            await send(message)

        await self.app(scope, receive, answer)

    def _refused(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if host.partition(":")[0] not in (HOST, "localhost"):
            return 403, f"this page is served to {HOST} and localhost only"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "this page answers its own requests only"
        known = hmac.compare_digest(_token_in(scope).encode(), self.token.encode())
        opened = known and scope["method"] == "GET" and scope["path"] == "/" and _by_a_person(headers)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened:
            return 403, "this page answers its own requests only"
        length = headers.get("content-length", "0")
        most = LARGEST if scope["path"].endswith(_SEARCH) else _MOST_BYTES
        if not length.isdecimal() or int(length) > most or "transfer-encoding" in headers:
            return 413, f"a request may have at most {most:,} bytes"
        if not known:
            return 401, "the token is missing or wrong: open the address that `tamis explore` printed"
        return None


def _by_a_person(headers: Mapping[str, str]) -> bool:
    """Tells whether a browser opens a whole page: a click on the printed address in a terminal in a browser, say."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _token_in(scope: Scope) -> str:
    """Returns the token of an address, "" where it holds none."""
    path: str = scope["path"]
    if path != "/":
        return path.lstrip("/").partition("/")[0]
    for pair in scope["query_string"].decode("latin-1").split("&"):
        name, _, value = pair.partition("=")
        if name == "token":
            return str(value)
    return ""


async def refuse(send: Send, status: int, message: str) -> None:
    """Answers with a sentence."""
    headers = {**_HEADERS, "content-type": "text/plain; charset=utf-8"}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": message.encode()})


def application(pages: Pages, token: str, opened: Callable[[], None]) -> Guard:
    """Returns the application that serves a run's page.

    Args:
        pages: what it answers.
        token: that every address must hold.
        opened: is called whenever somebody opens the page.

    Raises:
        DependencyError: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise needs_extra("starlette", "explore") from error

    web = {entry.name: entry.read_bytes() for entry in files("tamis.explore.web").iterdir() if entry.is_file()}

    def index(request: Request) -> Response:
        opened()
        page = web["index.html"].decode().replace("{{token}}", token)
        return Response(page, media_type="text/html")

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        kind = _KINDS.get(name.rpartition(".")[2])
        if name not in web or kind is None or name == "index.html":
            return PlainTextResponse("there is no such file", 404)
        return Response(web[name], media_type=kind)

    async def ask(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in pages.answers:
            return PlainTextResponse(f"the page has no {name!r}", 404)
        try:
            asked = json.loads(await _body(request) or b"{}")
            if not isinstance(asked, dict):
                raise ValueError("expected an object")
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f"the request is no JSON: {error}"}, 400)
        return await _answered(pages.answers[name], asked)

    async def search(request: Request) -> Response:
        return await _answered(pages.add_picture, await _body(request))

    def picture(request: Request) -> Response:
        digits = request.path_params["row"]
        row = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS else pages.rows
        if row >= pages.rows:
            return PlainTextResponse(f"the run has the rows 0 to {pages.rows - 1:,}", 404)
        try:
            data = pages.picture(request.path_params["kind"], row)
        except (NoPicture, TamisError, OSError) as error:
            return PlainTextResponse(str(error), 404)
        return Response(data, media_type=f"image/{KIND}", headers={"cache-control": "private, max-age=3600"})

    app: Starlette = Starlette(
        routes=[
            Route("/", index),
            Route(f"/{token}/web/{{name}}", file),
            Route(f"/{token}/ask/{{name}}", ask, methods=["POST"]),
            Route(f"/{token}{_SEARCH}", search, methods=["POST"]),
            Route(f"/{token}/picture/{{kind}}/{{row}}", picture),
        ]
    )
    return Guard(app, token)


async def _body(request: Request) -> bytes:
    """Returns what was sent; nothing where the page went away before it had sent all, since nobody waits."""
    from starlette.requests import ClientDisconnect

    try:
        return await request.body()
    except ClientDisconnect:
        return b""


async def _answered(work: Callable[[Any], Any], asked: Any) -> Response:
    """Returns what a thread makes of a question: JSON, a page to save, or a sentence where it cannot be answered."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response

    try:
        found = await run_in_threadpool(work, asked)
        text = found if isinstance(found, str) else _json(found)
    except (RunError, DiskFullError) as error:
        return JSONResponse({"error": str(error)}, 409)
    except TamisError as error:
        return JSONResponse({"error": str(error)}, 422)
    except _UNREADABLE as error:
        log.info("a request could not be answered", exc_info=True)
        return JSONResponse({"error": f"the request cannot be read: {type(error).__name__}: {error}"}, 400)
    except OSError as error:
        log.warning("a request could not be answered", exc_info=True)
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        return JSONResponse(
            {"error": f"the run or its pool cannot be read or written ({what}): mend that, repeat"}, 409
        )
    if isinstance(found, str):
        return Response(text, media_type="text/html", headers={"content-disposition": "attachment"})
    return Response(text, media_type="application/json")


def _json(found: Any) -> str:
    """Returns an answer as JSON. It has no infinity: that becomes ".inf" or "-.inf", as in YAML; NaN becomes null."""
    try:
        return json.dumps(found, ensure_ascii=True, allow_nan=False)
    except ValueError:  # rare: of a recipe's own numbers
        return json.dumps(_finite(found), ensure_ascii=True, allow_nan=False)


def _finite(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_finite(value) for value in found]
    if isinstance(found, float) and not math.isfinite(found):
        return None if math.isnan(found) else ".inf" if found > 0 else "-.inf"
    return found


class Server:
    """A page that is being served.

    Args:
        pages: what it answers.
        port: of loopback; 0 takes a free one.

    Attributes:
        address: what one opens, the token in it.

    Raises:
        RunError: the port is taken.
        DependencyError: Starlette or uvicorn is not installed.
    """

    def __init__(self, pages: Pages, *, port: int = 0) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise needs_extra("uvicorn", "explore") from error
        token = secrets.token_urlsafe(32)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
            self._socket.listen()  # whoever is quicker than the server waits
        except OSError as error:
            self._socket.close()
            raise RunError(f"port {port} of {HOST} cannot be had: {error.strerror}; choose another, or 0") from error
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{HOST}:{self.port}/?token={token}"
        self._doorway, self._pictures = Doorway(self.address), pages.pictures
        app = application(pages, token, self._doorway.close)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, ws="none", lifespan="off", server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    def serve(self) -> None:
        """Serves until it is interrupted or told to stop."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._doorway.close()
            self._pictures.close()

    def stop(self) -> None:
        """Ends `serve`, which another thread runs."""
        self._server.should_exit = True

    def open_browser(self) -> None:
        """Opens the page in the browser of whoever runs this, if there is one; `serve` takes away what that leaves."""
        try:
            if not self._doorway.open():
                log.info("there is no browser")
        except OSError as error:
            log.warning("no browser can be opened (%s): open the address by hand", error)
