"""Files on web servers: fsspec's HTTP file system, with checked responses.

fsspec 2026.9 reports any HEAD failure as 404 and accepts a full body for a Range request. It also needs HEAD, which a
URL signed for GET does not allow.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import fsspec
from fsspec.implementations.http import HTTPFileSystem

log = logging.getLogger(__name__)

_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")

_PAGE = 4096  # bytes to read of an error page


class WebError(Exception):
    """An unexpected HTTP status, with the start of the response body."""

    def __init__(self, status: int, headers: Mapping[str, str], page: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers, self.page = status, headers, page


def web(stall: float, connect: float) -> Web:
    """Returns the HTTP file system; fsspec caches one instance per limits."""
    given: dict[str, Any] = {}
    for protocol in Web.protocol:
        given |= fsspec.config.conf.get(protocol, {})
    client = {
        "timeout": aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=stall),
        "trust_env": True,  # ~/.netrc, HTTPS_PROXY
        "auto_decompress": False,  # a .tar.gz stays one
        "headers": {"Accept-Encoding": "identity"},
        **given.pop("client_kwargs", {}),
    }
    return Web(**given, client_kwargs=client)


class Web(HTTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """HTTP and HTTPS."""

    _warned = frozenset[str]()

    async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Returns bytes `start` to `end` of a file, fewer if it ends earlier."""
        start = start or 0
        if end is not None and end <= start:
            return b""
        part = {} if not start and end is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        async with self._answer(url, part, options) as answer:
            if answer.status == 416:  # the file ends before `start`
                return b""
            if answer.status == 206:
                found = _RANGE.match(answer.headers.get("Content-Range", ""))
                if found is None or found[1] is None or int(found[1]) != start:
                    raise EOFError(f"the server sent another range than the bytes from {start} on")
                data: bytes = await answer.read()
                return data
            if start:
                self._warn(url)
            parts, at = [], 0  # the server sends the full file: keep only the range
            async for chunk in answer.content.iter_any():
                parts.append(chunk[max(start - at, 0) : None if end is None else max(end - at, 0)])
                at += len(chunk)
                if end is not None and at >= end:
                    break
            return b"".join(parts)

    async def _info(self, url: str, **options: Any) -> dict[str, Any]:
        """Returns size and version of a file by a GET of its first byte: signed URLs may not allow HEAD."""
        async with self._answer(url, {"Range": "bytes=0-0"}, options) as answer:
            found = _RANGE.match(answer.headers.get("Content-Range", ""))
            size = answer.headers.get("Content-Length", "") if answer.status == 200 else found[2] if found else ""
            if answer.status == 206:
                await answer.read()  # so that the connection can be reused
            facts = {"name": url, "size": int(size) if size.isdigit() else None, "type": "file"}
            names = ("ETag", "Last-Modified", "Content-Type")
            versions = {name: answer.headers[name] for name in names if name in answer.headers}
            return {**facts, **versions, "partial": answer.status in (206, 416)}

    async def _ls_real(self, url: str, detail: bool = True, **options: Any) -> Any:
        async with self._answer(url, {}, options) as answer:  # fsspec would parse gigabytes as a page of links
            if answer.headers.get("Content-Type", "").partition(";")[0].strip() != "text/html":
                return []
        return await super()._ls_real(url, detail, **options)

    @asynccontextmanager
    async def _answer(self, url: str, headers: Mapping[str, str], options: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Sends a GET, yields a 200, 206 or 416 response; raises FileNotFoundError for 404 and 410, else WebError."""
        settings = {**self.kwargs, **options}
        settings["headers"] = {**settings.get("headers", {}), **headers}
        session = await self.set_session()
        async with session.get(self.encode_url(url), **settings) as answer:
            if answer.status in (404, 410):
                raise FileNotFoundError
            if answer.status not in (200, 206, 416):
                page = await answer.content.read(_PAGE)
                raise WebError(answer.status, answer.headers, page.decode("utf-8", "replace"))
            yield answer

    def _warn(self, url: str) -> None:
        host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        if host not in self._warned:
            self._warned |= {host}
            log.warning("%s ignores Range and sends full files, which is slow: copy the pool to a disk", host)
