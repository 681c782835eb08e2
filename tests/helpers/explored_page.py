"""A page that is being served, asked without a browser, and what strangers wrote on it."""

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tamis.commands.explore import explore

#: What strangers may write: none of it may be more than its letters.
HOSTILE = [
    "<script>window.hurt = 1</script>",
    '<img src=x onerror="window.hurt = 1">',
    "\"><svg onload='window.hurt = 1'>",
    "javascript:window.hurt=1",
    "right to left \u202e gnp.exe \u2066 and \u0007 a bell",
    "{{token}} ${window.hurt = 1} </title><style>*{display:none}</style>",
    "x" * 100_000,
]


@dataclass(frozen=True)
class Page:
    """A page that is being served at the `address` that `tamis explore` would print."""

    run: str | Path
    address: str

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def request(
        self, path: str, body: bytes | None = None, method: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Asks as a program would that may send what it likes: status, headers and body."""
        place = urlsplit(self.address)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=60)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def ask(self, name: str, **about: Any) -> Any:
        """Asks as the page does; the answer must be a good one."""
        status, _, body = self.request(f"/{self.token}/ask/{name}", json.dumps(about).encode())
        assert status == 200, body
        return json.loads(body)


@contextmanager
def served(run_folder: str | Path, *, browser: bool = False, subsets: Sequence[Path] = ()) -> Iterator[Page]:
    """Serves the page of a run, with a browser that is told to open it where that is wanted."""
    server = explore(run_folder, subsets)
    if browser:
        server.open_browser()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield Page(run_folder, server.address)
    server.stop()
    thread.join(20)
    assert not thread.is_alive()
