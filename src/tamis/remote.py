"""Stores far away: one way of opening files there, of asking again, and of saying what went wrong.

Every request is made by `ask` or `ranges`. What may go better the next time (5xx, a reset, a time-out, a body that is
cut off) is asked again, later and later; what will not (a file that is not there, no access, a signature that has
expired) is told at once. The libraries' own tries are switched off where we know how: tries of tries take minutes, and
botocore sees nothing of a body that breaks off.

Secrets in URLs (user names with passwords, what stands behind the "?") stay in this process's memory: everybody else,
run folders and messages among them, knows the URL without them.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import io
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeVar, cast

import fsspec

from tamis.errors import ChangedError, PoolError, brief

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often and how long a store is asked. Each limit can be set in the environment, for worker processes too.

    Attributes:
        tries: requests for the same bytes, the first one included (TAMIS_REMOTE_TRIES).
        wait: seconds before the second try; twice as many before each further one, at most 30, and up to half of
            them less by chance, so that a hundred workers do not come back at once (TAMIS_REMOTE_WAIT).
        stall: seconds without a byte after which a request is given up (TAMIS_REMOTE_STALL). It also ends, over HTTP
            and on S3, where its bytes come more slowly than 20 KiB a second on top of that.
        lease: seconds after which a machine's hold on a shard of a run at a URL ends, where it is not renewed
            (TAMIS_REMOTE_LEASE).
    """

    tries: int = 7
    wait: float = 0.5
    stall: float = 60.0
    lease: float = 120.0

    def pause(self, tried: int) -> float:
        """Returns how many seconds to wait after so many tries."""
        return min(LONGEST_PAUSE, self.wait * 2.0 ** (tried - 1)) * random.uniform(0.5, 1)


#: No pause between two tries is longer, whatever a server asks for.
LONGEST_PAUSE = 30.0

#: Seconds that a connection may take to come about.
CONNECT = 20.0

#: Bytes a second below which an answer is given up, over HTTP and on S3.
SLOWEST = 20 << 10

# Bytes of a file that is read from its front: what one request asks for.
_BLOCK = 8 << 20

# What is taken of such a block at once, by readers of a few bytes.
_LITTLE = 64 << 10


def patience() -> Patience:
    """Returns the limits as the environment has them.

    Raises:
        PoolError: a variable holds no number, or one that is too small.
    """
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


class RemoteError(OSError):
    """A store could not give what was asked for. The message says why, and not of which file.

    Attributes:
        passing: it may go better later: no try was left, and none was refused.
    """

    passing = False


class RemoteGoneError(RemoteError, FileNotFoundError):
    """There is no such file."""


class RemoteDeniedError(RemoteError, PermissionError):
    """The store does not let us read it."""


#: What the system says where a disk, a mount, a network or this process's own limits give no bytes.
_NO_BYTES = {
    *(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT),
    *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EPIPE, errno.ENOMEM, errno.ENOBUFS, errno.EMFILE, errno.ENFILE),
}


def unreached(error: BaseException) -> bool:
    """Tells whether an error says nothing of what a file holds: its store, disk or mount did not give the bytes.

    The file may be whole, so nothing may be concluded from where it seems to end.
    """
    return isinstance(error, RemoteError) or (isinstance(error, OSError) and error.errno in _NO_BYTES)


def passing(error: BaseException) -> bool:
    """Tells whether an error is one of `unreached` that may be gone when the file is asked for again."""
    return error.passing if isinstance(error, RemoteError) else unreached(error)


class SlowError(Exception):
    """An answer has begun, and does not end in time."""


# ---- what went wrong -------------------------------------------------------------------------------------------------

# What S3 calls conditions that pass.
_PASSING = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException"}
_PASSING |= {"RequestLimitExceeded", "RequestThrottled", "XAmzContentSHA256Mismatch", "OperationAborted"}
_PASSING |= {"ConditionalRequestConflict"}  # two create one object at once: S3 wants both to ask again

_PASSING_STATUS = {408, 425, 429}

# Statuses of 500 and more that stay as they are: not implemented, another version of HTTP wanted.
_LASTING_STATUS = {501, 505}

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}

# What stores write in the body of a 403 (S3, Google, Azure).
_EXPIRED_WORDS = re.compile(r"expired|Signature not valid in the specified time frame", re.IGNORECASE)

# botocore's errors for credentials that are not there, or cannot be had.
_NO_CREDENTIALS = re.compile(r"Credential|SSOToken|ProfileNotFound|TokenRetrieval|LoginRefresh")

# Errors that say that the question is wrong, or the file another one; they come again however often one asks.
_OURS = (TypeError, ValueError, NotImplementedError, LookupError, AttributeError)
_LASTING_NAMES = {"FileExpired", "ParamValidationError", "ClientConnectorCertificateError"}
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


@dataclass(frozen=True)
class _Told:
    """What an error means.

    Attributes:
        kind: "again" may go better; "gone", "denied" and "lasting" will not.
        reason: without URLs that hold secrets.
        after: seconds after which the server wants to be asked again.
    """

    kind: Literal["again", "gone", "denied", "lasting"]
    reason: str
    after: float = 0.0

    def error(self) -> RemoteError:
        kinds: dict[str, type[RemoteError]] = {"gone": RemoteGoneError, "denied": RemoteDeniedError}
        error = kinds.get(self.kind, RemoteError)(self.reason)
        error.passing = self.kind == "again"
        return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and what caused it: file systems wrap their libraries' errors."""
    seen = 0
    following: BaseException | None = error
    while following is not None and seen < 8:
        yield following
        following, seen = following.__cause__, seen + 1


def _status(error: BaseException) -> tuple[int, str, str]:
    """Returns the status of HTTP, the store's word for it, and its own text; 0 and "" where there are none."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):  # botocore's
            facts = response.get("Error", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return int(status or 0), str(facts.get("Code", "")), str(facts.get("Message", ""))
        # aiohttp's answers, Azure's, Google's; what aiohttp cannot parse has a `code` of 400 that no server said.
        for name in ("status", "status_code", *(("code",) if type(one).__name__ == "HttpError" else ())):
            status = getattr(one, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status, "", str(getattr(one, "said", "") or one)
    return 0, "", ""


def _told(error: BaseException) -> _Told:
    """Returns what an error means."""
    if isinstance(error, RemoteError):
        return _Told("lasting", str(error))
    status, code, words = _status(error)
    shown = " ".join(filter(None, (f"HTTP {status}" if status else "", code if not code.isdigit() else "")))
    if code in _EXPIRED or (status in (400, 401, 403) and _EXPIRED_WORDS.search(words)):
        return _Told("denied", f"the signature or token has expired ({shown}): {_RENEW}")
    if code == "RequestTimeTooSkewed":
        return _Told("denied", f"the store's clock and this machine's differ too much ({shown}): set the clock")
    if status == 404 or code.startswith("NoSuch") or isinstance(error, FileNotFoundError):
        return _Told("gone", "it is not there" + (f" ({shown})" if shown else ""))
    if code in _PASSING or status in _PASSING_STATUS or (status >= 500 and status not in _LASTING_STATUS):
        return _Told("again", shown, _asked_for(error))
    if status in (401, 403) or isinstance(error, PermissionError):
        return _Told("denied", f"access was denied ({shown or redacted(str(error))[:200]}): {_CREDENTIALS}")
    if any(_NO_CREDENTIALS.search(type(one).__name__) for one in _chain(error)):
        return _Told("denied", f"there are no credentials ({redacted(str(error))[:200]}): {_CREDENTIALS}")
    what = f"{type(error).__name__}: {redacted(str(error))[:300]}" if str(error) else type(error).__name__
    if isinstance(error, ChangedError) or type(error).__name__ == "FileExpired":
        return _Told("lasting", "the file has changed while it was read: score the pool when nobody writes to it")
    if status or isinstance(error, _OURS) or type(error).__name__ in _LASTING_NAMES:
        return _Told("lasting", " ".join(filter(None, (shown, what))))
    if isinstance(error, OSError) and error.errno in _LASTING_NUMBERS:
        return _Told("lasting", what)
    if isinstance(error, (TimeoutError, SlowError)):
        return _Told("again", f"no answer in time ({what})")
    return _Told("again", what)


def exists_already(error: BaseException) -> bool:
    """Tells whether an error is a store's answer to who would create an object where there is one."""
    return isinstance(error, FileExistsError) or _status(error)[0] == 412


def _asked_for(error: BaseException) -> float:
    """Returns the seconds that a server asks us to wait (Retry-After); 0 where it does not, or names a date."""
    for one in _chain(error):
        headers = getattr(one, "headers", None)
        if headers is None:
            continue
        text = str(headers.get("Retry-After", ""))
        return min(float(text), LONGEST_PAUSE) if text.isascii() and text.isdigit() else 0.0
    return 0.0


class _Tries:
    """Counts how often a store was asked, and waits between."""

    def __init__(self, url: str) -> None:
        self._url = public(url)
        self._limits = patience()
        self._tried = 0

    def left(self) -> bool:
        """Counts a try; tells whether there is another."""
        self._tried += 1
        return self._tried < self._limits.tries

    def last(self, told: _Told) -> _Told:
        """Returns what is told where no try is left."""
        return _Told(told.kind, f"{self._tried} tries failed, the last with {told.reason}")

    def wait(self, told: _Told) -> None:
        pause = max(told.after, self._limits.pause(self._tried))
        # One fault in a hundred requests is a store's daily life; more of the same one are worth a line.
        log.log(
            logging.WARNING if self._tried >= 3 else logging.INFO,
            "%s: %s; try %d of %d in %.1f s",
            *(self._url, told.reason, self._tried + 1, self._limits.tries, pause),
        )
        time.sleep(pause)


def ask(url: str, question: Callable[[], T]) -> T:
    """Asks a store as often as it takes.

    Args:
        url: of what, for messages.
        question: the request; it may be made several times.

    Raises:
        RemoteError: it cannot be answered. The message holds no secret and no URL.
        ImportError: the package for this kind of store is not installed.
    """
    tries = _Tries(url)
    while True:
        try:
            return question()
        except ImportError:
            raise
        except Exception as error:  # every file system has errors of its own
            told = _told(error)
        # Outside of the handler: the library's error, whose words hold whole URLs, is no part of any traceback.
        if told.kind != "again":
            raise told.error()
        if not tries.left():
            raise tries.last(told).error()
        tries.wait(told)


def ranges(url: str, blocks: Sequence[tuple[int, int]]) -> list[bytes | RemoteError]:
    """Returns byte ranges (start, stop) of a file, or why one cannot be had. Those that failed are asked for again."""
    found: list[bytes | RemoteError] = [b""] * len(blocks)
    left = [number for number, (start, stop) in enumerate(blocks) if stop > start]  # HTTP has no range of no bytes
    if not left:
        return found
    fs, inner = store_of(url)
    tries = _Tries(url)
    while left:
        starts, stops = [blocks[number][0] for number in left], [blocks[number][1] for number in left]
        try:
            answers: Sequence[Any] = fs.cat_ranges([inner] * len(left), starts, stops, on_error="return")
        except Exception as error:
            answers = [error] * len(left)
        failed: dict[int, _Told] = {}
        for number, answer in zip(left, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[number] = bytes(answer)
                continue
            told = _told(answer)
            found[number] = told.error()
            if told.kind == "again":
                failed[number] = told
        left = list(failed)
        if left and not tries.left():
            for number, told in failed.items():
                found[number] = tries.last(told).error()
            break
        if left:
            tries.wait(max(failed.values(), key=lambda told: told.after))
    return found


# ---- stores ----------------------------------------------------------------------------------------------------------


def store_of(url: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, with our limits, and the URL's path in it.

    Raises:
        ImportError: the package for it is not installed.
    """
    url = _SECRETS.get(url, url)
    limits = patience()
    if url.startswith(("http://", "https://")) and "::" not in url:
        from tamis.web import web

        return web(limits.stall, connect=CONNECT, slowest=SLOWEST), url
    options: dict[str, Any] = {}
    if "s3://" in url or "s3a://" in url:
        given = copy.deepcopy({**fsspec.config.conf.get("s3", {}), **fsspec.config.conf.get("s3a", {})})
        given["config_kwargs"] = {
            "connect_timeout": CONNECT,
            "read_timeout": limits.stall,
            "retries": {"total_max_attempts": 1},
            **given.get("config_kwargs", {}),
        }
        options["s3a" if "s3a://" in url else "s3"] = given
    fs, inner = fsspec.core.url_to_fs(url, **options)
    if options and hasattr(fs, "retries"):
        fs.retries = 1  # s3fs asks five times by itself
        if not isinstance(fs._call_s3, _Limited):  # the class's own: fsspec hands out one file system again and again
            fs._call_s3 = _Limited(fs._call_s3, limits.stall)
    return fs, inner


@dataclass(frozen=True)
class _Limited:
    """s3fs's one way of asking S3, with answers that end in time: aiobotocore bounds single reads alone."""

    call: Callable[..., Any]
    stall: float

    async def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        answer = await self.call(method, *arguments, **options)
        if method == "get_object":
            seconds = self.stall + answer["ContentLength"] / SLOWEST
            answer["Body"] = _Body(answer["Body"], asyncio.get_running_loop().time() + seconds)
        return answer


@dataclass(frozen=True)
class _Body:
    """What is in an object, as long as it comes by a time of the loop's clock."""

    stream: Any
    end: float

    async def read(self, *size: int) -> bytes:
        try:
            async with asyncio.timeout_at(self.end):
                return cast(bytes, await self.stream.read(*size))
        except TimeoutError as error:  # s3fs 2026.9 dies of it: fsspec takes its words away, s3fs looks at the first
            raise SlowError("its bytes stopped, or come too slowly") from error

    def close(self) -> None:
        self.stream.close()


def open_remote(url: str) -> BinaryIO:
    """Opens a URL for reading from the start to the end.

    Raises:
        RemoteError: as `ask`.
    """
    fs, inner = store_of(url)
    file: Any = ask(url, lambda: fs.open(inner, "rb", block_size=_BLOCK, cache_type="readahead"))
    cache: Any = getattr(file, "cache", None)
    if hasattr(cache, "fetcher"):
        # The file's own requests stay as they are: that of s3fs notices that the object is another one by now.
        cache.fetcher = _Fetching(url, cache.fetcher, file.size)
        return io.BufferedReader(file, _LITTLE)  # fsspec's files cannot read at most so many bytes of a line
    return cast(BinaryIO, file)


def first_bytes(url: str, size: int) -> bytes:
    """Returns the first bytes of a file by one request, fewer where it has fewer.

    Raises:
        RemoteError: as `ask`.
    """
    fs, inner = store_of(url)

    def question() -> bytes:
        try:
            return cast(bytes, fs.cat_file(inner, start=0, end=size))
        except Exception as error:
            if _status(error)[0] == 416:  # S3 has no first byte of a file without any
                return b""
            raise

    return ask(url, question)


@dataclass(frozen=True)
class _Fetching:
    """Fetches blocks of an open file, as often as it takes to have all of their bytes."""

    url: str
    fetch: Callable[[int, int], bytes]
    size: int | None

    def __call__(self, start: int, end: int) -> bytes:
        def question() -> bytes:
            data = self.fetch(start, end)
            expected = end - start if self.size is None else min(end, self.size) - start
            if len(data) != expected:
                raise EOFError(f"{len(data):,} bytes came, {expected:,} were asked for")
            return data

        return ask(self.url, question)


# ---- secrets ---------------------------------------------------------------------------------------------------------

#: URLs with their secrets, by the URL that everybody else knows.
_SECRETS: dict[str, str] = {}

_USER = re.compile(r"^(https?://)[^/@]*@|^(\w[\w+.-]*://)[^/@:]*:[^/@]*@")
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>)]*")
_USERS = re.compile(r"(https?://)[^\s/@'\"]*@|(\w[\w+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]*@")


def public(url: str) -> str:
    """Returns a URL without user, password and what stands behind its "?"; a local path as it is."""
    if "://" not in url:
        return url
    url = _USER.sub(r"\1\2", url)
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def redacted(text: str) -> str:
    """Returns a text whose URLs are without their secrets."""
    return _USERS.sub(r"\1\2", _QUERY.sub(r"\1", text))


def hide(url: str, alike: Callable[[str], Sequence[str]]) -> str:
    """Keeps a URL's secrets in memory; returns the URL without them, by which it can be opened from now on.

    Args:
        url: as it was given.
        alike: returns the URLs that one with braces means.
    """
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
