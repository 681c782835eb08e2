"""Files at URLs: how they are opened, when requests are repeated, and the errors when they fail.

Every request is made by `ask`. It retries transient errors (5xx, a reset, a time-out, a body that is cut off) after
longer and longer pauses; lasting ones (a missing file, no access, an expired signature) raise at once.
The libraries' own retries are switched off: retries of retries take minutes, and botocore sees no body that breaks off.

Secrets in URLs (passwords, and what follows "?") stay in this process's memory. Run folders and messages have the URL
without them.
"""

from __future__ import annotations

import copy
import errno
import io
import itertools
import logging
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from tamis.errors import PoolError, brief

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often and how long a store is asked. Each limit can be set in the environment, for worker processes too.

    Attributes:
        tries: requests for the same bytes, the first one included (TAMIS_REMOTE_TRIES).
        wait: seconds before the second try, doubled for each further one, at most 30, and randomly up to half less, so
            that a hundred workers do not come back at once (TAMIS_REMOTE_WAIT).
        stall: seconds without a byte after which a request is given up (TAMIS_REMOTE_STALL). Over HTTP and on S3 it is
            also given up after a total of stall + size / 20 KiB/s.
        lease: seconds after which a machine loses its lock on a shard of a run at a URL, unless renewed
            (TAMIS_REMOTE_LEASE).
    """

    tries: int = 7
    wait: float = 0.5
    stall: float = 60.0
    lease: float = 120.0

    def pause(self, tried: int) -> float:
        """Returns how many seconds to wait after this many tries."""
        return min(_LONGEST_PAUSE, self.wait * 2.0 ** (tried - 1)) * random.uniform(0.5, 1)


_LONGEST_PAUSE = 30.0  # seconds, whatever a server asks for
_CONNECT = 20.0  # seconds that a connection may take
_SLOWEST = 20 << 10  # bytes a second
_BLOCK = 8 << 20  # bytes of a request for a file that is read from its front
_AT_ONCE = 16  # ranges of a file


def patience() -> Patience:
    """Returns the limits after environment overrides."""
    limits: dict[str, Any] = {}
    for name, kind, least in (("tries", int, 1), ("wait", float, 0.0), ("stall", float, 0.01), ("lease", float, 2.0)):
        variable = f"TAMIS_REMOTE_{name.upper()}"
        text = os.environ.get(variable, "")
        if not text:
            continue
        try:
            limits[name] = kind(text)
        except ValueError as error:
            raise PoolError(f"{variable} is {brief(text)}, expected a number") from error
        if not limits[name] >= least:
            raise PoolError(f"{variable} is {text}, expected {least} or more")
    return Patience(**limits)


# ---- what went wrong -------------------------------------------------------------------------------------------------


class RemoteError(OSError):
    """A request to a store failed. The message says why, without the URL.

    Attributes:
        passing: the same request may work later.
        after: seconds after which the server wants to be asked again.
    """

    passing = False
    after = 0.0


class RemoteGoneError(RemoteError, FileNotFoundError):
    """There is no such file."""


class RemoteDeniedError(RemoteError, PermissionError):
    """The store does not let us read it."""


#: Errors of a disk, a mount, a network or this process's own limits: they say nothing of what the file holds.
_NO_BYTES = {
    *(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT),
    *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EPIPE, errno.ENOMEM, errno.ENOBUFS, errno.EMFILE, errno.ENFILE),
}


def unreached(error: BaseException) -> bool:
    """Whether the store, disk or mount did not give the bytes of a file, which may be whole."""
    return isinstance(error, RemoteError) or (isinstance(error, OSError) and error.errno in _NO_BYTES)


def passing(error: BaseException) -> bool:
    """Whether an error is one of `unreached`, and may be gone when the file is asked for again."""
    return error.passing if isinstance(error, RemoteError) else unreached(error)


# What S3 calls conditions that pass, statuses that do, and statuses of 500 and more that do not.
_PASSING = {
    *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException"),
    *("RequestLimitExceeded", "RequestThrottled", "XAmzContentSHA256Mismatch", "OperationAborted"),
    "ConditionalRequestConflict",  # two create one object at once: S3 wants both to ask again
}
_PASSING_STATUS, _LASTING_STATUS = {408, 425, 429}, {501, 505}

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}

# What stores write in the body of a 403 (S3, Google, Azure).
_EXPIRED_WORDS = re.compile(r"expired|Signature not valid in the specified time frame", re.IGNORECASE)

# botocore's errors for credentials that are missing or cannot be loaded.
_NO_CREDENTIALS = re.compile(r"Credential|SSOToken|ProfileNotFound|TokenRetrieval|LoginRefresh")

# Errors of a wrong request, or of this machine: retrying does not help.
_LASTING = (TypeError, ValueError, NotImplementedError, LookupError, AttributeError)
_LASTING_NAMES = {"ParamValidationError", "ClientConnectorCertificateError"}
_LASTING_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}

_CREDENTIALS = (
    "check that the credentials in use may read it (AWS_PROFILE, AWS_ACCESS_KEY_ID; ~/.netrc for HTTP); a public "
    "bucket of S3 is read with FSSPEC_S3_ANON=true; a run knows its pool's URLs without their secrets: commands after "
    "`score` find them in TAMIS_POOL"
)
_RENEW = (
    "renew what it was signed with (a new signed URL, also in TAMIS_POOL; AWS_SESSION_TOKEN, `aws sso login`) and "
    "repeat the command; shards that are done stay done"
)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes: file systems wrap their libraries' errors."""
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _answer(error: BaseException) -> tuple[int, str, str]:
    """Returns the HTTP status, the store's code for it, and its own text; 0 and "" if there are none."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):  # botocore's
            facts = response.get("Error", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return int(status or 0), str(facts.get("Code", "")), str(facts.get("Message", ""))
        # aiohttp's answers, Azure's, Google's; what aiohttp cannot parse has a `code` of 400 that no server sent.
        for name in ("status", "status_code", *(("code",) if type(one).__name__ == "HttpError" else ())):
            status = getattr(one, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status, "", str(getattr(one, "page", "") or one)
    return 0, "", ""


def _explained(error: Exception) -> RemoteError:
    """Returns the error of a store as one of ours."""
    if isinstance(error, RemoteError):
        return error
    status, code, page = _answer(error)
    shown = " ".join(filter(None, (f"HTTP {status}" if status else "", code if not code.isdigit() else "")))
    what = f"{type(error).__name__}: {redacted(str(error))[:300]}" if str(error) else type(error).__name__
    if code in _EXPIRED or (status in (400, 401, 403) and _EXPIRED_WORDS.search(page)):
        return RemoteDeniedError(f"the signature or token has expired ({shown}): {_RENEW}")
    if code == "RequestTimeTooSkewed":
        return RemoteDeniedError(f"the store's clock and this machine's differ too much ({shown}): set the clock")
    if status == 404 or code.startswith("NoSuch") or isinstance(error, FileNotFoundError):
        return RemoteGoneError("it is not there" + (f" ({shown})" if shown else ""))
    if code in _PASSING or status in _PASSING_STATUS or (status >= 500 and status not in _LASTING_STATUS):
        return _passing(shown, _retry_after(error))
    if status in (401, 403) or isinstance(error, PermissionError):
        return RemoteDeniedError(f"access was denied ({shown or what}): {_CREDENTIALS}")
    if any(_NO_CREDENTIALS.search(type(one).__name__) for one in _chain(error)):
        return RemoteDeniedError(f"there are no credentials ({what}): {_CREDENTIALS}")
    if status or isinstance(error, _LASTING) or type(error).__name__ in _LASTING_NAMES:
        return RemoteError(" ".join(filter(None, (shown, what))))
    if isinstance(error, OSError) and error.errno in _LASTING_NUMBERS:
        return RemoteError(what)
    return _passing(f"no answer in time ({what})" if isinstance(error, TimeoutError) else what)


def _passing(reason: str, after: float = 0.0) -> RemoteError:
    error = RemoteError(reason)
    error.passing, error.after = True, after
    return error


def _retry_after(error: BaseException) -> float:
    """Returns the seconds that a server asks us to wait; 0 if it does not, or names a date."""
    for one in _chain(error):
        headers = getattr(one, "headers", None)
        if headers is not None:
            text = str(headers.get("Retry-After", ""))
            return min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdigit() else 0.0
    return 0.0


def exists_already(error: BaseException) -> bool:
    """Whether a store refused to create an object because there is one."""
    return isinstance(error, FileExistsError) or _answer(error)[0] == 412


# ---- requests --------------------------------------------------------------------------------------------------------


def ask(url: str, question: Callable[[], T]) -> T:
    """Makes a request, and retries transient errors."""
    limits = patience()
    for tried in itertools.count(1):
        try:
            return question()
        except ImportError:
            raise
        except Exception as error:  # every file system has errors of its own
            failure = _explained(error)
        # Outside of the handler: the library's error, whose text holds whole URLs, is not part of any traceback.
        if not failure.passing:
            raise failure
        if tried >= limits.tries:
            raise _passing(f"{tried} tries failed, the last with {failure}")
        pause = max(failure.after, limits.pause(tried))
        # Stores fail one request in a hundred every day; more failures of the same one are worth a line.
        log.log(
            logging.WARNING if tried >= 3 else logging.INFO,
            "%s: %s; try %d of %d in %.1f s",
            *(public(url), failure, tried + 1, limits.tries, pause),
        )
        time.sleep(pause)
    raise AssertionError


def store_of(url: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, with our limits, and the URL's path in it."""
    url = _SECRETS.get(url, url)
    stall = patience().stall
    if url.startswith(("http://", "https://")) and "::" not in url:
        from tamis.web import web

        return web(stall, _CONNECT), url
    options: dict[str, Any] = {}
    if "s3://" in url or "s3a://" in url:
        given = copy.deepcopy({**fsspec.config.conf.get("s3", {}), **fsspec.config.conf.get("s3a", {})})
        once = {"connect_timeout": _CONNECT, "read_timeout": stall, "retries": {"total_max_attempts": 1}}
        given["config_kwargs"] = {**once, **given.get("config_kwargs", {})}
        options["s3a" if "s3a://" in url else "s3"] = given
    fs, inner = fsspec.core.url_to_fs(url, **options)
    if options and hasattr(fs, "retries"):
        fs.retries = 1  # s3fs asks five times by itself
    return fs, inner


def fetch(url: str, start: int, end: int, *, whole: bool = False) -> bytes:
    """Returns the bytes from `start` to `end` of a file, fewer if it ends before."""
    fs, inner = store_of(url)

    def question() -> bytes:
        try:
            data = cast(bytes, _within(end - start, fs, "cat_file", inner, start=start, end=end))
        except Exception as error:
            if _answer(error)[0] != 416:  # S3 answers 416 for empty files
                raise
            data = b""
        if whole and len(data) != end - start:
            raise EOFError(f"{len(data):,} bytes came, {end - start:,} were asked for")
        return data

    return ask(url, question)


def _within(size: int, fs: Any, method: str, *arguments: Any, **settings: Any) -> Any:
    """Calls a method of a file system, for as long as this many bytes may take: libraries limit single reads only."""
    if not isinstance(fs, AsyncFileSystem):
        return getattr(fs, method)(*arguments, **settings)
    seconds = patience().stall + size / _SLOWEST
    return sync(fs.loop, getattr(fs, f"_{method}"), *arguments, timeout=seconds, **settings)


def ranges(url: str, blocks: Sequence[tuple[int, int]]) -> list[bytes | RemoteError]:
    """Returns byte ranges (start, stop) of a file, several at once, or why one cannot be read."""

    def one(block: tuple[int, int]) -> bytes | RemoteError:
        try:
            return fetch(url, *block)
        except RemoteError as error:
            return error

    if len(blocks) < 2:
        return [one(block) for block in blocks]
    with ThreadPoolExecutor(min(_AT_ONCE, len(blocks))) as threads:
        return list(threads.map(one, blocks))


def version_of(info: Mapping[str, Any]) -> str:
    """Returns what a store says about a file's version, the most reliable first."""
    names = ("ETag", "etag", "LastModified", "Last-Modified", "mtime")
    return f"{info.get('size', 0)}:{next((info[name] for name in names if info.get(name)), '')}"


def open_remote(url: str) -> BinaryIO:
    """Opens a URL for reading, mostly from the start to the end."""
    fs, inner = store_of(url)
    info = ask(url, lambda: fs.info(inner))
    if info.get("size") is not None and info.get("partial", True):
        return io.BufferedReader(_Blocks(url, fs, inner, info), _BLOCK)

    def copied() -> BinaryIO:  # from a web server without range requests
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
    """A file that is read block by block; at its end it must be the one that was opened."""

    def __init__(self, url: str, fs: Any, inner: str, info: Mapping[str, Any]) -> None:
        self._url, self._fs, self._inner, self._info = url, fs, inner, info
        self._at, self._size = 0, int(info["size"])
        self._checked = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        self._at = place + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
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
        self._fs.invalidate_cache()
        now = ask(self._url, lambda: self._fs.info(self._inner))
        web = self._url.startswith("http")  # whose servers may each have an ETag of their own
        if now.get("size") != self._info["size"] or (not web and version_of(now) != version_of(self._info)):
            raise RemoteError("the file has changed while it was read: score the pool when nobody writes to it")
        self._checked = True


# ---- secrets ---------------------------------------------------------------------------------------------------------

#: URLs with their secrets, by the URL without.
_SECRETS: dict[str, str] = {}

_USER = re.compile(r"^(https?://)[^/@]*@|^(\w[\w+.-]*://)[^/@:]*:[^/@]*@")
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>)]*")
_USERS = re.compile(r"(https?://)[^\s/@'\"]*@|(\w[\w+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]*@")


def public(url: str) -> str:
    """Returns a URL without user, password and what follows its "?"; a local path as it is."""
    if "://" not in url:
        return url
    url = _USER.sub(r"\1\2", url)
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def redacted(text: str) -> str:
    """Returns a text with its URLs' secrets removed."""
    return _USERS.sub(r"\1\2", _QUERY.sub(r"\1", text))


def hide(url: str, alike: Callable[[str], Sequence[str]]) -> str:
    """Keeps a URL's secrets in memory; returns the URL without them, by which it can be opened from now on."""
    known = public(url)
    if known != url:
        for one in alike(url):
            _SECRETS[public(one)] = one
    return known


def secrets() -> dict[str, str]:
    """Returns the URLs with secrets, for a worker process."""
    return dict(_SECRETS)


def remember(given: Mapping[str, str]) -> None:
    """Takes over what `secrets` returned in another process."""
    _SECRETS.update(given)
