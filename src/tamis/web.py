"""Files on web servers: fsspec's file system for HTTP, with answers that are looked at before they are believed.

fsspec 2026.9 takes every failure of HEAD for a file that is not there, hands out a whole file where a server answers
200 to a request for a part, and asks for HEAD, which a URL that is signed for GET does not allow.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import fsspec
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFileSystem
from fsspec.spec import AbstractBufferedFile

from tamis.errors import ChangedError

log = logging.getLogger(__name__)

_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")

# Bytes of an error's page in which its reason is looked for.
_PAGE = 4096

# A file from a server that gives whole files alone is held in memory up to so many bytes, then on disk.
_IN_MEMORY = 8 << 20


class WebError(Exception):
    """A server's answer that is none of what was asked for.

    Attributes:
        status: of HTTP.
        headers: of the answer.
        said: the beginning of its page.
    """

    def __init__(self, status: int, headers: Mapping[str, str], said: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers, self.said = status, headers, said


def web(stall: float, *, connect: float, slowest: float) -> Web:
    """Returns the file system of web servers; fsspec keeps one for the same limits.

    Args:
        stall: seconds without a byte after which a request is given up.
        connect: seconds that a connection may take to come about.
        slowest: bytes a second below which an answer is given up.
    """
    given: dict[str, Any] = {}
    for protocol in Web.protocol:
        given |= fsspec.config.conf.get(protocol, {})
    client = {
        "timeout": aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=stall),
        "trust_env": True,  # ~/.netrc, HTTPS_PROXY
        "auto_decompress": False,  # the bytes as they lie there; a .tar.gz would be unpacked on its way
        "headers": {"Accept-Encoding": "identity"},
        **given.pop("client_kwargs", {}),
    }
    return Web(**given, client_kwargs=client, stall=stall, slowest=slowest)


class Web(HTTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """HTTP and HTTPS."""

    def __init__(self, *, stall: float, slowest: float, **options: Any) -> None:
        super().__init__(**options)
        self._stall, self._slowest = stall, slowest
        self._warned: set[str] = set()

    async def _cat_file(
        self, url: str, start: int | None = None, end: int | None = None, *, total: int | None = None, **options: Any
    ) -> bytes:
        """Returns the bytes from `start` to `end` of a file, fewer where it ends before.

        Args:
            url: where it is.
            start, end: None: of the whole file.
            total: how long the file was when it was opened; another length is an error.
            options: for aiohttp.
        """
        start = start or 0
        if end is not None and end <= start:
            return b""
        part = {} if not start and end is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        async with self._answer(url, part, options) as answer, asyncio.timeout(None) as limit:
            if answer.status == 416:  # there is nothing from `start` on
                return b""
            first, last, size = _range_of(answer)
            if total is not None and size is not None and size != total:
                raise ChangedError
            if answer.status == 206:
                stop = min((number for number in (end, size) if number is not None), default=None)
                if first != start or last is None or last + 1 != (stop or last + 1):
                    raise EOFError(f"the bytes {first} to {last} came, {start} to {(stop or 0) - 1} were asked for")
                limit.reschedule(self._deadline(last - first))
                data: bytes = await answer.read()
                if len(data) != last + 1 - first:
                    raise EOFError(f"{len(data):,} bytes came, {last + 1 - first:,} were announced")
                return data
            if start:
                self._warn(url)
            limit.reschedule(self._deadline(end or size or 1 << 50))
            return await _cut(answer, start, end)

    async def _info(self, url: str, **options: Any) -> dict[str, Any]:
        """Returns size and version of a file, asking for its first byte: URLs may be signed for GET alone."""
        async with self._answer(url, {"Range": "bytes=0-0"}, options) as answer:
            headers = answer.headers
            size = _range_of(answer)[2]
            if answer.status == 206:
                await answer.read()  # the connection can then be used again
            facts = {"name": url, "size": size, "type": "file", "partial": answer.status in (206, 416)}
            return facts | {
                name: headers[name] for name in ("ETag", "Last-Modified", "Content-Type") if name in headers
            }

    async def _exists(self, path: str, strict: bool = False, **options: Any) -> bool:
        try:
            await self._info(path, **options)
        except FileNotFoundError:
            return False
        return True

    async def _ls_real(self, url: str, detail: bool = True, **options: Any) -> Any:
        async with self._answer(url, {}, options) as answer:  # the page itself is read below: this one tells its kind
            if answer.headers.get("Content-Type", "").partition(";")[0].strip() != "text/html":
                return []
        return await super()._ls_real(url, detail, **options)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        facts = self.info(path)
        if facts["size"] == 0:
            return io.BytesIO()
        if not facts["partial"] or facts["size"] is None:
            return self._whole(path)
        return _WebFile(
            self,
            path,
            mode,
            block_size or self.block_size,
            cache_type=options.get("cache_type") or "readahead",
            size=facts["size"],
        )

    def _whole(self, url: str) -> Any:
        """Returns a copy of a file, from a server that gives no parts of files."""
        file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115  # who opens it closes it
        try:
            sync(self.loop, self._copy, url, file)
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file

    async def _copy(self, url: str, file: Any) -> None:
        async with self._answer(url, {}, {}) as answer, asyncio.timeout(None) as limit:
            size = _range_of(answer)[2]
            if size is not None:
                limit.reschedule(self._deadline(size))
            async for chunk in answer.content.iter_chunked(1 << 20):
                file.write(chunk)

    @asynccontextmanager
    async def _answer(self, url: str, headers: Mapping[str, str], options: Mapping[str, Any]) -> AsyncIterator[Any]:
        """The answer to GET: a file, a part of one, or 416.

        Raises:
            FileNotFoundError: 404.
            WebError: any other status.
        """
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

    def _deadline(self, size: int) -> float:
        return asyncio.get_running_loop().time() + self._stall + size / self._slowest

    def _warn(self, url: str) -> None:
        host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        if host not in self._warned:
            self._warned.add(host)
            log.warning(
                "%s answers with whole files where a part is asked for (it ignores Range): single samples are read "
                "from the front of their file each time, which is slow; from a copy on a disk or on S3 they are not",
                host,
            )


class _WebFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read block by block."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end, total=self.size)
        return data


def _range_of(answer: Any) -> tuple[int | None, int | None, int | None]:
    """Returns first and last byte of an answer, and the size of the whole file; None where it does not say."""
    found = _RANGE.match(answer.headers.get("Content-Range", ""))
    if answer.status == 200:
        length = answer.headers.get("Content-Length", "")
        return None, None, int(length) if length.isdigit() else None
    if found is None:
        return None, None, None
    first, last, size = (None if text in (None, "*") else int(text) for text in found.groups())
    return first, last, size


async def _cut(answer: Any, start: int, end: int | None) -> bytes:
    """Returns the part that was asked for of an answer that is the whole file, holding nothing else."""
    parts = []
    at = 0
    async for chunk in answer.content.iter_any():
        first = max(start - at, 0)
        last = len(chunk) if end is None else min(len(chunk), end - at)
        if first < last:
            parts.append(chunk[first:last])
        at += len(chunk)
        if end is not None and at >= end:
            break
    return b"".join(parts)
