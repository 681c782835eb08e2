"""The explorer's server: on loopback only, behind a token, for one person.

- Every request needs a token of 256 bits, which other users of the machine do not know.
- Other pages in the same browser do not know it either. Requests for another host name (DNS rebinding) or from another
  origin are refused, and other origins cannot read answers. A link with the right token opens the page from anywhere,
  as a top-level page. Nothing can be framed, except by a notebook that started the server and is on this machine.
- Captions, keys and words are sent as JSON and become text nodes. The page's policy forbids scripts, styles, images
  and connections from elsewhere.
- An uploaded image has a size limit, is decoded like the pool's images, and is neither stored nor sent back.
- File names are looked up in a list of the files of `web/`, rows are numbers, and a saved subset's name must be a valid
  file name.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tamis.core.errors import DiskFullError, RunError, TamisError, needs_extra
from tamis.core.ids import as_json_value
from tamis.reports.explore.growing import GrowingPages
from tamis.reports.explore.image_cache import NoImage
from tamis.reports.explore.near import LARGEST
from tamis.reports.explore.pages import Pages
from tamis.reports.explore.queries import Explorer
from tamis.reports.page_pairs import KIND

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)

HOST = "127.0.0.1"

#: Maximum bytes of a request; the largest are lassos, which list their points.
_MOST_BYTES = 4 << 20

#: Exceptions that a malformed request may cause in the code that answers it.
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, NotImplementedError, RecursionError)

#: Path to which images are uploaded.
_SEARCH = "/near"

_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors "
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def refusal(request: Request, token: str, framed: bool) -> tuple[int, str] | None:
    """Returns status and reason if a request is refused (see the module), else None."""
    headers, path = request.headers, request.url.path
    sent = request.query_params.get("token", "") if path == "/" else path.lstrip("/").partition("/")[0]
    host = headers.get("host", "")
    if host.partition(":")[0] not in (HOST, "localhost"):
        return 403, f"this page is served to {HOST} and localhost only"
    known = hmac.compare_digest(sent.encode(), token.encode())
    # Allow top-level navigation from another site: web terminals link to the printed address.
    places = ("document", "iframe") if framed else ("document",)
    page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in places
    opened = known and page and request.method == "GET" and path == "/"
    ours = headers.get("origin") in (None, f"http://{host}")
    if not ours or (headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened):
        return 403, "this page answers its own requests only"
    length = headers.get("content-length", "0")
    most = LARGEST if path.endswith(_SEARCH) else _MOST_BYTES
    if not length.isdecimal() or int(length) > most or "transfer-encoding" in headers:
        return 413, f"a request may have at most {most:,} bytes"
    return None if known else (401, "the token is missing or wrong: open the address that `tamis explore` printed")


def application(pages: Pages | GrowingPages, token: str, framed: Callable[[], bool]) -> Starlette:
    """Returns the ASGI application: `/?token=TOKEN` is the page, `/TOKEN/...` everything else.

    A page of a growing run says in `v` which version of it it shows.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.base import BaseHTTPMiddleware
        from starlette.responses import JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise needs_extra("starlette", "explore") from error

    reports = files("tamis.reports")
    places = [*(reports / "explore" / "web").iterdir(), reports / "templates" / "colours.css"]
    web = {entry.name: entry.read_bytes() for entry in places if entry.is_file()}

    # Every request passes here: wrong hosts, origins and tokens are refused, and every answer gets the headers.
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = refusal(request, token, framed())
        response = await answer(request) if refused is None else PlainTextResponse(refused[1], refused[0])
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers["content-security-policy"] += f"localhost:* {HOST}:*" if framed() else "'none'"
        return response

    def index(request: Request) -> Response:
        return Response(web["index.html"].decode().replace("{{token}}", token), media_type="text/html")

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        kind = _KINDS.get(name.rpartition(".")[2])
        if name not in web or kind is None or name == "index.html":
            return PlainTextResponse("there is no such file", 404)
        return Response(web[name], media_type=kind)

    # The page asks with POST, and the answer is JSON.
    async def ask(request: Request) -> Response:
        name = request.path_params["name"]
        try:
            answers = pages.at(request.query_params.get("v", "")).answers
        except LookupError as error:
            return JSONResponse({"error": str(error.args[0])}, 409)
        if name not in answers:
            return PlainTextResponse(f"the page has no {name!r}", 404)
        try:
            asked = json.loads(await _body(request) or b"{}")
            if not isinstance(asked, dict):
                raise ValueError("expected an object")
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f"the request is not JSON: {error}"}, 400)
        return await _answer(answers[name], asked)

    async def search(request: Request) -> Response:
        data, version = await _body(request), request.query_params.get("v", "")
        try:
            return await _answer(pages.at(version).add_image, data)
        except LookupError as error:
            return JSONResponse({"error": str(error.args[0])}, 409)

    def image(request: Request) -> Response:
        digits = request.path_params["row"]
        try:
            shown = pages.at(request.query_params.get("v", ""))
            row = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else shown.rows
            if row >= shown.rows:
                raise NoImage(f"the run has the rows 0 to {shown.rows - 1:,}")
            data = shown.image(request.path_params["kind"], row)
        except (NoImage, TamisError, OSError, LookupError) as error:
            return PlainTextResponse(str(error), 404)
        return Response(data, media_type=f"image/{KIND}", headers={"cache-control": "private, max-age=3600"})

    routes = [
        Route("/", index),
        Route(f"/{token}/web/{{name}}", file),
        Route(f"/{token}/ask/{{name}}", ask, methods=["POST"]),
        Route(f"/{token}{_SEARCH}", search, methods=["POST"]),
        Route(f"/{token}/image/{{kind}}/{{row}}", image),
    ]
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])


async def _body(request: Request) -> bytes:
    """Returns the body; empty if the client disconnected."""
    from starlette.requests import ClientDisconnect

    try:
        return await request.body()
    except ClientDisconnect:
        return b""


async def _answer(work: Callable[[Any], Any], asked: Any) -> Response:
    """Runs `work` in a thread and returns its result as JSON or bytes, or an error message."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response

    try:
        found = await run_in_threadpool(work, asked)
        content = found if isinstance(found, bytes) else _json(found)
    except TamisError as error:
        return JSONResponse({"error": str(error)}, 409 if isinstance(error, RunError | DiskFullError) else 422)
    except _UNREADABLE as error:
        log.info("a request could not be answered", exc_info=True)
        return JSONResponse({"error": f"the request cannot be read: {type(error).__name__}: {error}"}, 400)
    except OSError as error:
        log.warning("a request could not be answered", exc_info=True)
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        return JSONResponse({"error": f"the run or its pool cannot be read or written ({what}): repeat"}, 409)
    kind = "application/octet-stream" if isinstance(found, bytes) else "application/json"
    return Response(content, media_type=kind)


def _json(found: Any) -> str:
    """Encodes an answer as JSON. Infinity becomes ".inf" or "-.inf", as in YAML, and NaN null."""
    try:
        return json.dumps(found, ensure_ascii=True, allow_nan=False)
    except ValueError:  # a recipe may contain infinite numbers
        return json.dumps(as_json_value(found, ".inf"), ensure_ascii=True, allow_nan=False)


class Server:
    """Serves the page on a `port` of the loopback interface (0: a free one). `address`: the URL with the token."""

    def __init__(self, pages: Pages | GrowingPages, *, port: int = 0) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise needs_extra("uvicorn", "explore") from error
        token = secrets.token_urlsafe(32)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
            self._socket.listen()  # a browser that connects before `serve` waits
        except OSError as error:
            self._socket.close()
            message = f"port {port} of {HOST} is not available: {error.strerror}; choose another, or 0"
            raise RunError(message) from error
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{HOST}:{self.port}/?token={token}"
        self._pages = pages
        self._thread: threading.Thread | None = None
        app = application(pages, token, lambda: self._thread is not None)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, ws="none", lifespan="off",
            server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    def serve(self) -> None:
        """Serves until interrupted or stopped."""
        # uvicorn runs in a thread: an interrupt while it starts in the main one is now and then lost.
        serving = self._in_thread()
        try:
            serving.join()
        finally:
            self.stop()
            serving.join(10)

    def _in_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="tamis explore", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._pages.close()

    def stop(self) -> None:
        """Makes `serve` return; call it from another thread."""
        self._server.should_exit = True

    def start(self) -> Server:
        """Serves in a thread, until `close` or the end of Python, a page that notebooks of this machine may frame.

        A notebook calls it when the server is the last line of a cell.
        """
        if self._thread is None:
            self._thread = self._in_thread()
        return self

    @property
    def selected(self) -> list[str]:
        """The uids of the pairs that are tagged, or inside the lasso, in the page."""
        return self.explorer.selected()

    @property
    def explorer(self) -> Explorer:
        """What answers the page; of a growing run, the newest version."""
        return self._pages.explorer

    def close(self) -> None:
        """Stops what `start` started, if it did, and frees the port. A second call does nothing."""
        self.stop()
        if self._thread is not None:
            self._thread.join(10)
        self._socket.close()

    def _repr_html_(self) -> str:
        self.start()
        style = "width:100%;height:760px;border:1px solid #8884"
        frame = f'<iframe src="{self.address}" title="The explorer" allow="clipboard-write" style="{style}"></iframe>'
        return f'{frame}<p><a href="{self.address}" target="_blank" rel="noreferrer">Open it in a tab</a></p>'

    def open_browser(self) -> None:
        """Opens the page in a browser, if there is one."""
        try:
            if not webbrowser.open(self.address):
                log.info("there is no browser")
        except (webbrowser.Error, OSError) as error:
            log.warning("no browser can be opened (%s): open the address by hand", error)
