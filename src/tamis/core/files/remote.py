"""Opens files at URLs, retries requests, and explains their errors.

Every request is made by `ask` or `retry`. They retry transient errors (5xx, reset, time-out, truncated body) after
increasing pauses. Permanent ones (missing file, no access, expired signature) raise at once. The libraries' own retries
are off: retries of retries take minutes, and botocore does not notice a truncated body.

Secrets in URLs (passwords, and what follows "?") stay in this process's memory. Run folders and messages hold the URL
without them.
"""

from __future__ import annotations

import copy
import errno
import io
import itertools
import logging
import math
import os
import random
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, BinaryIO, TypeVar, cast

from tamis.core.errors import PoolError, brief, first_line

log = logging.getLogger(__name__)

T = TypeVar("T")


#: Settings that TAMIS_REMOTE_TRIES, TAMIS_REMOTE_WAIT and so on can change: the default and the smallest value.
_SETTINGS = {
    "tries": (7, 1),  # attempts at one request
    "wait": (0.5, 0),  # seconds before the second attempt; doubles with each further one
    "stall": (60, 0.01),  # seconds without data after which an attempt fails
    "lease": (120, 2),  # seconds without renewal after which another machine may take over a claim
}
LONGEST_PAUSE = 30.0  # seconds; a server's Retry-After cannot exceed it
_CONNECT = 20.0  # seconds to wait for a connection
_SLOWEST = 20 << 10  # bytes per second: an attempt may take stall + size / _SLOWEST seconds
_BLOCK = 8 << 20  # bytes per request when a file is read from its start


def setting(name: str) -> float:
    """Returns a setting of requests: from the environment, which worker processes inherit, or the default."""
    (default, least), variable = _SETTINGS[name], f"TAMIS_REMOTE_{name.upper()}"
    text = os.environ.get(variable, "")
    try:
        value = float(text or default)
    except ValueError:
        value = math.nan
    if not value >= least:
        raise PoolError(f"{variable} is {brief(text)}, expected a number of {least} or more")
    return value


# ---- errors ----------------------------------------------------------------------------------------------------------


class RemoteError(OSError):
    """A request to a store failed. The message says why, without the URL.

    Attributes:
        transient: the same request may work later.
        after: seconds to wait, if the server sent Retry-After.
    """

    transient = False
    after = 0.0


class RemoteGoneError(RemoteError, FileNotFoundError):
    """The file does not exist."""


class RemoteExistsError(RemoteError, FileExistsError):
    """The file exists already."""


#: Errors of a disk, mount, network or of this process's limits: not evidence that the file is bad.
_NO_BYTES = {
    *(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT),
    *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EPIPE, errno.ENOMEM, errno.ENOBUFS, errno.EMFILE, errno.ENFILE),
}


def is_unreached(error: BaseException) -> bool:
    """Whether an error means that a file could not be read, not that its content is bad."""
    return isinstance(error, RemoteError) or (isinstance(error, OSError) and error.errno in _NO_BYTES)


def is_transient(error: BaseException) -> bool:
    """Whether an error is `is_unreached`, and another attempt may succeed."""
    return error.transient if isinstance(error, RemoteError) else is_unreached(error)


_CREDENTIALS = (
    "check that the credentials in use may read it (AWS_PROFILE, AWS_ACCESS_KEY_ID; ~/.netrc for HTTP); a public "
    "bucket of S3 is read with FSSPEC_S3_ANON=true; a run knows its pool's URLs without their secrets: commands after "
    "`score` find them in TAMIS_POOL"
)
_RENEW = (
    "renew what it was signed with (a new signed URL, also in TAMIS_POOL; AWS_SESSION_TOKEN, `aws sso login`) and "
    "repeat the command; shards that are done stay done"
)

# botocore's errors for missing or unreadable credentials; file systems wrap them.
_NO_CREDENTIALS = re.compile("Credential|SSOToken|ProfileNotFound|TokenRetrieval|LoginRefresh")

#: What an error means, by HTTP status, the store's code and the error's classes. The first match counts; an empty
#: reason, or no match, means a transient error. In a reason, {} is the status or the library's message.
_MEANINGS: tuple[tuple[str, type[RemoteError], str], ...] = (
    (r"Expired|TokenRefreshRequired", RemoteError, f"the signature or token has expired ({{}}): {_RENEW}"),
    ("RequestTimeTooSkewed", RemoteError, "the store's clock and this machine's differ too much ({}): set the clock"),
    (r"^404|NoSuch|FileNotFoundError", RemoteGoneError, "it is not there ({})"),
    (r"^412|FileExistsError", RemoteExistsError, "it exists already ({})"),
    (r"^(408|425|429|50[^15]|5[1-9]\d)|SlowDown|RequestTimeout|InternalError|ServiceUnavailable", RemoteError, ""),
    (r"Throttl|RequestLimitExceeded|SHA256Mismatch|OperationAborted|ConditionalRequestConflict", RemoteError, ""),
    (r"^40[13]|PermissionError", RemoteError, f"access was denied ({{}}): {_CREDENTIALS}"),
    (_NO_CREDENTIALS.pattern, RemoteError, f"there are no credentials ({{}}): {_CREDENTIALS}"),
    # a wrong request, or this machine: a full disk, too many open files
    (
        r"^[1-5]|TypeError|ValueError|NotImplementedError|LookupError|AttributeError|ParamValidation|CertificateError"
        r"|ENOSPC|EDQUOT|EMFILE|ENFILE",
        RemoteError,
        "{}",
    ),
)

# What stores write in the body of a 403 (S3, Google, Azure).
_EXPIRED = re.compile(r"expired|Signature not valid in the specified time frame", re.IGNORECASE)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes: file systems wrap their libraries' errors."""
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__


def _answer(error: BaseException) -> tuple[int, str, str, str]:
    """Returns the HTTP status, the store's error code, its message and Retry-After; 0 or "" for what is absent."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):  # botocore's
            facts = response.get("Error", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return int(status or 0), str(facts.get("Code", "")), str(facts.get("Message", "")), ""
        # aiohttp, Azure, Google. aiohttp's parse errors have a `code` of 400 that no server sent: skip those.
        for name in ("status", "status_code", *(("code",) if type(one).__name__ == "HttpError" else ())):
            status = getattr(one, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                after = (getattr(one, "headers", None) or {}).get("Retry-After", "")
                return status, "", str(getattr(one, "page", "") or one), str(after)
    return 0, "", "", ""


def _as_remote_error(error: Exception) -> RemoteError:
    """Returns a RemoteError for any error of a store."""
    if isinstance(error, RemoteError):
        return error
    status, code, page, after = _answer(error)
    shown = " ".join(filter(None, (f"HTTP {status}" if status else "", code if not code.isdigit() else "")))
    what = redact(first_line(error))
    causes = [type(one).__name__ for one in _chain(error.__cause__)]
    classes = [one.__name__ for one in type(error).__mro__] + list(filter(_NO_CREDENTIALS.search, causes))
    if status in (400, 401, 403) and _EXPIRED.search(page):
        classes.append("Expired")
    words = f"{status or ''} {code} {' '.join(classes)} {errno.errorcode.get(getattr(error, 'errno', None) or 0, '')}"
    kind, reason = next((row[1:] for row in _MEANINGS if re.search(row[0], words)), (RemoteError, ""))
    if reason:
        both = " ".join(filter(None, (shown, what))) if reason == "{}" else shown or what
        return kind(reason.format(both))
    return transient_error(shown or (f"no answer in time ({what})" if isinstance(error, TimeoutError) else what), after)


def transient_error(reason: str, after: str = "", kind: type[RemoteError] = RemoteError) -> RemoteError:
    """Returns an error after which a request is sent again; `after` is the server's Retry-After."""
    failure = kind(reason)
    failure.transient = True
    if after.isascii() and after.isdigit():  # else it is a date
        failure.after = min(float(after), LONGEST_PAUSE)
    return failure


# ---- requests --------------------------------------------------------------------------------------------------------


def ask(url: str, request: Callable[[Any, str], T]) -> T:
    """Calls `request(file system, path in it)` for a URL, and retries transient errors."""
    fs, inner = store_of(url)
    return retry(url, lambda: request(fs, inner))


def retry(url: str, request: Callable[[], T]) -> T:
    """Calls `request()`, which sends a request to a URL, and retries transient errors; raises RemoteError."""
    tries, wait = setting("tries"), setting("wait")
    for tried in itertools.count(1):
        try:
            return request()
        except ImportError:
            raise
        except Exception as error:  # every file system has its own errors
            failure = _as_remote_error(error)
        # Outside the handler, so that no traceback shows the library's error: its text holds complete URLs.
        if not failure.transient:
            raise failure
        if tried >= tries:
            last = type(failure)(f"{tried} tries failed, the last with {failure}")
            last.transient = True
            raise last
        # Random (half to all of it), so that a hundred workers do not retry at once.
        pause = min(LONGEST_PAUSE, wait * 2.0 ** (tried - 1)) * random.uniform(0.5, 1)
        pause = max(failure.after, pause)
        # Stores often fail one request in a hundred; only repeated failures are worth a warning.
        level = logging.WARNING if tried >= 3 else logging.INFO
        log.log(level, "%s: %s; try %d in %.1f s", public_url(url), failure, tried + 1, pause)
        time.sleep(pause)
    raise AssertionError


def store_of(url: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, with our time limits, and the URL's path in it."""
    import fsspec  # 30 ms at start, for a run and a pool on a disk for nothing

    full, stall = with_secrets(url), setting("stall")
    if full.startswith(("http://", "https://")) and "::" not in full:
        return _web(stall), full
    options: dict[str, Any] = {}
    for protocol in ("s3", "s3a"):
        if f"{protocol}://" in full:
            settings = copy.deepcopy({**fsspec.config.conf.get("s3", {}), **fsspec.config.conf.get("s3a", {})})
            once = {"connect_timeout": _CONNECT, "read_timeout": stall, "retries": {"total_max_attempts": 1}}
            options[protocol] = settings | {"config_kwargs": {**once, **settings.get("config_kwargs", {})}}
    try:
        fs, inner = fsspec.core.url_to_fs(full, **options)
    except (ImportError, ValueError) as error:  # a package is missing, or the protocol is unknown
        raise PoolError(f"cannot open {public_url(url)!r}: {error}") from error
    if options and hasattr(fs, "retries"):
        fs.retries = 1  # s3fs itself tries five times
    return fs, inner


def fetch(url: str, start: int, end: int, *, whole: bool = False) -> bytes:
    """Returns bytes `start` to `end` of a file; if the file ends earlier, fewer bytes, or with `whole` an error."""

    def request(fs: Any, inner: str) -> bytes:
        try:
            data: bytes = _within(end - start, fs, "cat_file", inner, start=start, end=end)
        except Exception as error:
            if _answer(error)[0] != 416:  # S3 answers 416 for empty files
                raise
            data = b""
        if whole and len(data) != end - start:
            raise EOFError(f"got {len(data):,} bytes, expected {end - start:,}")
        return data

    return ask(url, request)


def _within(size: int, fs: Any, method: str, *arguments: Any, **settings: Any) -> Any:
    """Calls a method of a file system, with a time limit for `size` bytes: libraries only limit single reads."""
    from fsspec.asyn import AsyncFileSystem, sync

    if not isinstance(fs, AsyncFileSystem):
        return getattr(fs, method)(*arguments, **settings)
    seconds = setting("stall") + size / _SLOWEST
    return sync(fs.loop, getattr(fs, f"_{method}"), *arguments, timeout=seconds, **settings)


def version_of(info: Mapping[str, Any]) -> str:
    """Returns a text that differs between versions of a file: its size, and the ETag or else its time."""
    names = ("ETag", "etag", "LastModified", "Last-Modified", "mtime", "last_modified", "modify", "created")
    return f"{info.get('size', 0)}:{next((info[name] for name in names if info.get(name)), '')}"


def open_remote(url: str) -> BinaryIO:
    """Opens a URL for reading, mostly from start to end."""
    info = ask(url, lambda fs, inner: fs.info(inner))
    if info.get("size") is not None and info.get("partial", True):
        return io.BufferedReader(_Blocks(url, info), _BLOCK)

    def copied(fs: Any, inner: str) -> BinaryIO:  # from a web server without range requests
        file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
        try:
            _within(info.get("size") or 1 << 40, fs, "get_file", inner, file)
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return cast(BinaryIO, file)

    return ask(url, copied)


class _Blocks(io.RawIOBase):
    """A file read in blocks. Reading its last byte checks that its version is still the one that was opened."""

    def __init__(self, url: str, info: Mapping[str, Any]) -> None:
        self._url, self._info = url, info
        self._at, self._size, self._checked = 0, int(info["size"]), False

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = fetch(self._url, self._at, end, whole=True)
        if end == self._size and not self._checked:
            self._check()
        buffer[: len(data)] = data
        self._at = end
        return len(data)

    def _check(self) -> None:
        def request(fs: Any, inner: str) -> Mapping[str, Any]:
            fs.invalidate_cache()
            return cast(Mapping[str, Any], fs.info(inner))

        now = ask(self._url, request)
        web = self._url.startswith("http")  # a site's servers may give different ETags
        if now.get("size") != self._info["size"] or (not web and version_of(now) != version_of(self._info)):
            raise RemoteError("the file changed while it was read: score the pool when nobody writes to it")
        self._checked = True


# ---- web servers -----------------------------------------------------------------------------------------------------

_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")

_PAGE = 4096  # bytes to read of an error page


class _WebError(Exception):
    """An unexpected HTTP status, with the start of the response body."""

    def __init__(self, status: int, headers: Mapping[str, str], page: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers, self.page = status, headers, page


def _web(stall: float) -> Any:
    """Returns the HTTP file system; fsspec caches one instance per limit."""
    import aiohttp
    import fsspec

    given: dict[str, Any] = {**fsspec.config.conf.get("http", {}), **fsspec.config.conf.get("https", {})}
    client = {
        "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=stall),
        "trust_env": True,  # ~/.netrc, HTTPS_PROXY
        "auto_decompress": False,  # a .tar.gz stays one
        "headers": {"Accept-Encoding": "identity"},
        **given.pop("client_kwargs", {}),
    }
    return _web_class()(**given, client_kwargs=client)


@cache
def _web_class() -> Any:
    from fsspec.implementations.http import HTTPFileSystem  # imports aiohttp

    return type("Web", (_Web, HTTPFileSystem), {})


class _Web:
    """fsspec's file system of HTTP, with checked responses.

    fsspec 2026.9 reports any HEAD failure as 404 and accepts a full body for a Range request. It also needs HEAD, which
    a URL signed for GET does not allow.
    """

    _warned = frozenset[str]()
    kwargs: dict[str, Any]
    set_session: Any
    encode_url: Any

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
            host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
            if start and host not in self._warned:
                self._warned |= {host}
                log.warning("%s ignores Range and sends full files, which is slow: copy the pool to a disk", host)
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
        return await super()._ls_real(url, detail, **options)  # type: ignore[misc]  # mixed in

    @asynccontextmanager
    async def _answer(self, url: str, headers: Mapping[str, str], options: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Sends a GET, yields a 200, 206 or 416 response; raises FileNotFoundError for 404 and 410, else _WebError."""
        settings = {**self.kwargs, **options}
        settings["headers"] = {**settings.get("headers", {}), **headers}
        session = await self.set_session()
        async with session.get(self.encode_url(url), **settings) as answer:
            if answer.status in (404, 410):
                raise FileNotFoundError
            if answer.status not in (200, 206, 416):
                page = await answer.content.read(_PAGE)
                raise _WebError(answer.status, answer.headers, page.decode("utf-8", "replace"))
            yield answer


# ---- secrets ---------------------------------------------------------------------------------------------------------

#: {URL without secrets: URL with secrets}
_SECRETS: dict[str, str] = {}
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>)]*")
_USER = re.compile(r"(https?://)[^\s/@'\"]*@|(\w[\w+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]*@")


def public_url(url: str) -> str:
    """Returns a URL without user, password and the part from "?"; a local path unchanged."""
    url = _USER.sub(r"\1\2", url)
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def redact(text: str) -> str:
    """Returns a text without the secrets of the URLs in it."""
    return _USER.sub(r"\1\2", _QUERY.sub(r"\1", text))


def keep_secrets(url: str, expand: Callable[[str], Sequence[str]]) -> str:
    """Returns a URL without secrets. This process keeps them, for the URL and those that `expand` makes of it."""
    known = public_url(url)
    if known != url:
        for each in expand(url):
            _SECRETS[public_url(each)] = each
    return known


def with_secrets(url: str) -> str:
    """Returns a URL with the secrets kept for it or for a folder above it."""
    root = url
    while root not in _SECRETS and root.count("/") > 2:
        root = root.rpartition("/")[0]
    secret = _SECRETS.get(root, root)
    return url if "?" in secret and root != url else secret + url[len(root) :]


def known_secrets() -> dict[str, str]:
    """Returns the URLs with secrets, for a worker process."""
    return dict(_SECRETS)


def take_secrets(received: Mapping[str, str]) -> None:
    """Keeps the secrets that `known_secrets` returned in another process."""
    _SECRETS.update(received)
