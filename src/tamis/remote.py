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
import math
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from tamis.errors import PoolError, brief

log = logging.getLogger(__name__)

T = TypeVar("T")


#: Limits of requests: the default, and the smallest that TAMIS_REMOTE_TRIES, TAMIS_REMOTE_WAIT and so on may set.
_LIMITS = {
    "tries": (7, 1),  # requests for the same bytes
    "wait": (0.5, 0),  # seconds before the second request, doubled for each further one
    "stall": (60, 0.01),  # seconds without a byte after which a request is given up
    "lease": (120, 2),  # seconds after which a machine that does not renew its lock on a shard loses it
}
_LONGEST_PAUSE = 30.0  # seconds, whatever a server asks for
_CONNECT = 20.0  # seconds that a connection may take
_SLOWEST = 20 << 10  # bytes a second: a request may take stall + size / _SLOWEST
_BLOCK = 8 << 20  # bytes of a request for a file that is read from its front


def setting(name: str) -> float:
    """Returns a limit: the environment's, which worker processes have too, or the default."""
    (default, least), variable = _LIMITS[name], f"TAMIS_REMOTE_{name.upper()}"
    text = os.environ.get(variable, "")
    try:
        value = float(text or default)
    except ValueError:
        value = math.nan
    if not value >= least:
        raise PoolError(f"{variable} is {brief(text)}, expected a number of {least} or more")
    return value


# ---- what went wrong -------------------------------------------------------------------------------------------------


class RemoteError(OSError):
    """A request to a store failed. The message says why, without the URL.

    Attributes:
        transient: the same request may work later.
        after: seconds after which the server wants to be asked again.
    """

    transient = False
    after = 0.0


class RemoteGoneError(RemoteError, FileNotFoundError):
    """There is no such file."""


class RemoteExistsError(RemoteError, FileExistsError):
    """There is such a file already."""


#: Errors of a disk, a mount, a network or this process's own limits: they say nothing of what the file holds.
_NO_BYTES = {
    *(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT),
    *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EPIPE, errno.ENOMEM, errno.ENOBUFS, errno.EMFILE, errno.ENFILE),
}


def unreached(error: BaseException) -> bool:
    """Whether the store, disk or mount did not give the bytes of a file, which may be whole."""
    return isinstance(error, RemoteError) or (isinstance(error, OSError) and error.errno in _NO_BYTES)


def is_transient(error: BaseException) -> bool:
    """Whether an error is one of `unreached`, and may be gone when the file is asked for again."""
    return error.transient if isinstance(error, RemoteError) else unreached(error)


_CREDENTIALS = (
    "check that the credentials in use may read it (AWS_PROFILE, AWS_ACCESS_KEY_ID; ~/.netrc for HTTP); a public "
    "bucket of S3 is read with FSSPEC_S3_ANON=true; a run knows its pool's URLs without their secrets: commands after "
    "`score` find them in TAMIS_POOL"
)
_RENEW = (
    "renew what it was signed with (a new signed URL, also in TAMIS_POOL; AWS_SESSION_TOKEN, `aws sso login`) and "
    "repeat the command; shards that are done stay done"
)

# botocore's errors for credentials that are missing or cannot be loaded, which file systems wrap.
_NO_CREDENTIALS = re.compile("Credential|SSOToken|ProfileNotFound|TokenRetrieval|LoginRefresh")

#: What an error means, by its HTTP status, the store's code and the error's classes: the first match counts. All other
#: errors are transient. In a reason, {} is the status or the library's own words.
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
    """Returns HTTP status, the store's code for it, its own text and its Retry-After; 0 and "" if there are none."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):  # botocore's
            facts = response.get("Error", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return int(status or 0), str(facts.get("Code", "")), str(facts.get("Message", "")), ""
        # aiohttp's answers, Azure's, Google's; what aiohttp cannot parse has a `code` of 400 that no server sent.
        for name in ("status", "status_code", *(("code",) if type(one).__name__ == "HttpError" else ())):
            status = getattr(one, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                after = (getattr(one, "headers", None) or {}).get("Retry-After", "")
                return status, "", str(getattr(one, "page", "") or one), str(after)
    return 0, "", "", ""


def _explained(error: Exception) -> RemoteError:
    """Returns the error of a store as one of ours."""
    if isinstance(error, RemoteError):
        return error
    status, code, page, after = _answer(error)
    shown = " ".join(filter(None, (f"HTTP {status}" if status else "", code if not code.isdigit() else "")))
    what = f"{type(error).__name__}: {redacted(str(error))[:300]}" if str(error) else type(error).__name__
    causes = [type(one).__name__ for one in _chain(error.__cause__)]
    classes = [one.__name__ for one in type(error).__mro__] + list(filter(_NO_CREDENTIALS.search, causes))
    if status in (400, 401, 403) and _EXPIRED.search(page):
        classes.append("Expired")
    words = f"{status or ''} {code} {' '.join(classes)} {errno.errorcode.get(getattr(error, 'errno', None) or 0, '')}"
    kind, reason = next((row[1:] for row in _MEANINGS if re.search(row[0], words)), (RemoteError, ""))
    if reason:
        both = " ".join(filter(None, (shown, what))) if reason == "{}" else shown or what
        return kind(reason.format(both))
    failure = RemoteError(shown or (f"no answer in time ({what})" if isinstance(error, TimeoutError) else what))
    failure.transient = True
    if after.isascii() and after.isdigit():  # else it is a date
        failure.after = min(float(after), _LONGEST_PAUSE)
    return failure


# ---- requests --------------------------------------------------------------------------------------------------------


def ask(url: str, question: Callable[[Any, str], T]) -> T:
    """Makes a request of the file system of a URL, given the URL's path in it, and retries transient errors."""
    fs, inner = store_of(url)
    tries, wait = setting("tries"), setting("wait")
    for tried in itertools.count(1):
        try:
            return question(fs, inner)
        except ImportError:
            raise
        except Exception as error:  # every file system has errors of its own
            failure = _explained(error)
        # Outside of the handler: the library's error, whose text holds whole URLs, is not part of any traceback.
        if not failure.transient:
            raise failure
        if tried >= tries:
            last = RemoteError(f"{tried} tries failed, the last with {failure}")
            last.transient = True
            raise last
        # Randomly up to half less, so that a hundred workers do not come back at once.
        pause = min(_LONGEST_PAUSE, wait * 2.0 ** (tried - 1)) * random.uniform(0.5, 1)
        pause = max(failure.after, pause)
        # Stores fail one request in a hundred every day; more failures of the same one are worth a line.
        level = logging.WARNING if tried >= 3 else logging.INFO
        log.log(level, "%s: %s; try %d in %.1f s", public(url), failure, tried + 1, pause)
        time.sleep(pause)
    raise AssertionError


def store_of(url: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, with our limits, and the URL's path in it."""
    full, stall = _with_secrets(url), setting("stall")
    if full.startswith(("http://", "https://")) and "::" not in full:
        from tamis.web import web

        return web(stall, _CONNECT), full
    options: dict[str, Any] = {}
    for protocol in ("s3", "s3a"):
        if f"{protocol}://" in full:
            settings = copy.deepcopy({**fsspec.config.conf.get("s3", {}), **fsspec.config.conf.get("s3a", {})})
            once = {"connect_timeout": _CONNECT, "read_timeout": stall, "retries": {"total_max_attempts": 1}}
            options[protocol] = settings | {"config_kwargs": {**once, **settings.get("config_kwargs", {})}}
    try:
        fs, inner = fsspec.core.url_to_fs(full, **options)
    except (ImportError, ValueError) as error:  # it needs a package, or nobody knows this kind of URL
        raise PoolError(f"cannot open {public(url)!r}: {error}") from error
    if options and hasattr(fs, "retries"):
        fs.retries = 1  # s3fs asks five times by itself
    return fs, inner


def fetch(url: str, start: int, end: int, *, whole: bool = False) -> bytes:
    """Returns the bytes from `start` to `end` of a file; fewer if it ends before, which `whole` makes an error."""

    def question(fs: Any, inner: str) -> bytes:
        try:
            data: bytes = _within(end - start, fs, "cat_file", inner, start=start, end=end)
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
    seconds = setting("stall") + size / _SLOWEST
    return sync(fs.loop, getattr(fs, f"_{method}"), *arguments, timeout=seconds, **settings)


def version_of(info: Mapping[str, Any]) -> str:
    """Returns what a store says about a file's version, the most reliable first."""
    names = ("ETag", "etag", "LastModified", "Last-Modified", "mtime", "last_modified", "modify", "created")
    return f"{info.get('size', 0)}:{next((info[name] for name in names if info.get(name)), '')}"


def open_remote(url: str) -> BinaryIO:
    """Opens a URL for reading, mostly from the start to the end."""
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
    """A file that is read block by block; at its end it must be the one that was opened."""

    def __init__(self, url: str, info: Mapping[str, Any]) -> None:
        self._url, self._info = url, info
        self._at, self._size, self._checked = 0, int(info["size"]), False

    def readable(self) -> bool:
        return True

    seekable = readable

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
        def question(fs: Any, inner: str) -> Mapping[str, Any]:
            fs.invalidate_cache()
            return cast(Mapping[str, Any], fs.info(inner))

        now = ask(self._url, question)
        web = self._url.startswith("http")  # whose servers may each have an ETag of their own
        if now.get("size") != self._info["size"] or (not web and version_of(now) != version_of(self._info)):
            raise RemoteError("the file has changed while it was read: score the pool when nobody writes to it")
        self._checked = True


# ---- secrets ---------------------------------------------------------------------------------------------------------

#: URLs with their secrets, by the URL without.
_SECRETS: dict[str, str] = {}
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>)]*")
_USER = re.compile(r"(https?://)[^\s/@'\"]*@|(\w[\w+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]*@")


def public(url: str) -> str:
    """Returns a URL without user, password and what follows its "?"; a local path as it is."""
    url = _USER.sub(r"\1\2", url)
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def redacted(text: str) -> str:
    """Returns a text with its URLs' secrets removed."""
    return _USER.sub(r"\1\2", _QUERY.sub(r"\1", text))


def keep_secrets(url: str, alike: Callable[[str], Sequence[str]]) -> str:
    """Keeps a URL's secrets in memory; returns the URL without them, by which it can be opened from now on."""
    known = public(url)
    if known != url:
        for one in alike(url):
            _SECRETS[public(one)] = one
    return known


def _with_secrets(url: str) -> str:
    """Returns a URL with the secrets that are known of it, or of a folder that it is in."""
    root = url
    while root not in _SECRETS and root.count("/") > 2:
        root = root.rpartition("/")[0]
    secret = _SECRETS.get(root, root)
    return url if "?" in secret and root != url else secret + url[len(root) :]


def known_secrets() -> dict[str, str]:
    """Returns the URLs with secrets, for a worker process."""
    return dict(_SECRETS)


def take_secrets(received: Mapping[str, str]) -> None:
    """Takes over what `known_secrets` returned in another process."""
    _SECRETS.update(received)
