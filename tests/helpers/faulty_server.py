"""Web servers on this machine that fail as stores do.

`FaultyServer` answers what a function says, or what another server does (`passed_on`: a proxy), and spoils a share of
the answers, chosen by a seed: "500", "503", "reset", "truncated", "stalled" after half of the body, "silent", "trickle"
(a byte now and then), and "lost": the request is carried out and its answer never comes.
"""

import http.client
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import fsspec

FAULTS = ("500", "503", "reset", "truncated", "stalled", "silent", "trickle")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Of the body that is not sent, for HEAD.
    length: int | None = None


Answers = Callable[[Request], Answer]


def files(content: Mapping[str, bytes], *, ranges: bool = True, lists: bool = True) -> Answers:
    """Returns a server of files by path ("/pool/0.tar"), which answers ranges and lists folders if it is to."""

    def answer(request: Request) -> Answer:
        path = request.path.partition("?")[0]
        if path in content:
            data = content[path]
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
            if wanted is None or not ranges:
                return Answer(200, data)
            start, stop = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))
            if start >= len(data):
                return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return Answer(206, data[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})
        below = [one.removeprefix(path.rstrip("/") + "/") for one in content if one.startswith(path.rstrip("/") + "/")]
        names = {name + slash for name, slash, _ in (one.partition("/") for one in below)}
        if names and lists:
            page = "".join(f'<a href="{name}">{name}</a>\n' for name in sorted(names))
            return Answer(200, f"<html>{page}</html>".encode(), {"Content-Type": "text/html"})
        return Answer(404, b"there is nothing")

    return answer


def passed_on(url: str) -> Answers:
    """Returns a server that asks another one."""
    parts = urlsplit(url)

    def answer(request: Request) -> Answer:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() != "connection"}
            connection.request(request.method, request.path, request.body or None, headers)
            reply = connection.getresponse()
            length = reply.headers.get("Content-Length")
            hop = ("content-length", "transfer-encoding", "connection", "date", "server")
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in hop}
            body = reply.read()
            return Answer(reply.status, body, kept, int(length) if length and request.method == "HEAD" else None)
        finally:
            connection.close()

    return answer


class FaultyServer:
    """Spoils one answer, chosen by chance, of each `round(1 / rate)` requests, after those that `first` names.

    `requests` has what was asked, in order; `faults` how many answers were spoiled, and how. "" in `first` is a good
    answer.
    """

    def __init__(
        self,
        answer: Answers,
        *,
        rate: float = 0.0,
        seed: int = 0,
        faults: Sequence[str] = ("500", "503", "reset", "truncated"),
        first: Sequence[str] = (),
    ) -> None:
        self.answer, self._kinds = answer, tuple(faults)
        self.first = list(first)
        self._every = round(1 / rate) if rate else 0
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._spoiled = -1
        self._over = threading.Event()
        self.requests: list[Request] = []
        self.faults: Counter[str] = Counter()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.faulty = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def fault(self, request: Request) -> str:
        """Notes a request; returns what shall go wrong with its answer, or ""."""
        with self._lock:
            self.requests.append(request)
            number = len(self.requests) - 1
            kind = ""
            if self.first:
                kind = self.first.pop(0)
            elif self._every:
                if number % self._every == 0 or self._spoiled < 0:
                    self._spoiled = self._random.randrange(self._every)
                if number % self._every == self._spoiled:
                    kind = self._random.choice(self._kinds)
            if kind:
                self.faults[kind] += 1
            return kind

    def hang(self, seconds: float = 30.0) -> bool:
        """Waits until the server is closed, or for so long; returns whether it is."""
        return self._over.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    faulty: FaultyServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _do(self) -> None:
        faulty = self.server.faulty
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, dict(self.headers.items()), body)
        kind = faulty.fault(request)
        if kind in ("500", "503"):
            again = {"Retry-After": "0"} if kind == "503" else {}
            self._send(Answer(int(kind), b"<Error><Code>InternalError</Code></Error>", again))
        elif kind == "reset":
            self._reset()
        elif kind == "lost":
            faulty.answer(request)
            self._reset()
        elif kind == "silent":
            faulty.hang()
            self.close_connection = True
        else:
            self._send(faulty.answer(request), kind)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

    def _send(self, answer: Answer, kind: str = "") -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
        self.end_headers()
        body = b"" if self.command == "HEAD" else answer.body
        if kind == "trickle":
            for start in range(len(body)):
                self.wfile.write(body[start : start + 1])
                self.wfile.flush()
                if self.server.faulty.hang(0.05):
                    break
            self.close_connection = True
        elif kind in ("truncated", "stalled"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if kind == "stalled":
                self.server.faulty.hang()
            self.close_connection = True
        else:
            self.wfile.write(body)

    def _reset(self) -> None:
        """Ends the connection as a machine that has lost it does: with RST in place of FIN."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def forget_clients() -> None:
    """Forgets clients of S3 that were made for another server: they read the environment once."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


#: What a client of `moto_server` needs beside its URL, which goes into AWS_ENDPOINT_URL.
S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def moto_server() -> Iterator[str]:
    """The URL of a server that speaks S3."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open: beginning one costs as much as an answer

        def log(self, *_: Any) -> None:
            """Nothing."""

    # Moto's own server works out for every request which of two hundred services it is for.
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join()
    server.server_close()
