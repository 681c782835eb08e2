"""Finding and opening files: local paths directly, everything else through fsspec."""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tamis.core.errors import PoolError, brief, check_file, nearest
from tamis.core.files.remote import RemoteError, ask, fetch, keep_secrets, open_remote, public_url, store_of, version_of

_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAGIC = "*?["

_HUB_PAGE = re.compile(r"https?://(?:huggingface\.co|hf\.co)/datasets/([\w.-]+/[\w.-]+)(?!.*/resolve/)")
_HUB_NAME = re.compile(r"(\w[\w.-]*/[\w.-]+)(?<!\.tar)(?<!\.parquet)")

_MOST = 3_000_000  # files that a path with braces may expand to
_ASKED_AT_ONCE = 16  # requests to a store

#: The kinds of pools, for `PoolSpec.format` and the command line, which must not import pools to show its help.
Format = Literal["auto", "webdataset", "table", "datacomp", "folder"]

#: How the name of a Lance dataset, a folder, ends; and those of files of Arrow: `save_to_disk` of Hugging Face, polars.
LANCE, ARROW = ".lance", (".arrow", ".feather", ".ipc")


def is_remote(path: str) -> bool:
    """Whether fsspec must open a path ("s3://...", "memory://...")."""
    return "://" in path


def is_lance(path: str) -> bool:
    """Whether a path is a Lance dataset's, by its name."""
    return path.endswith(LANCE)


def absolute(path: str) -> str:
    """Returns a local path as an absolute path, and a URL without its secrets, which are kept in memory."""
    path = path.removeprefix("file://")
    return keep_secrets(path, expand_braces) if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def hub_hint(path: str) -> str:
    """Returns how to get a dataset of the Hub whose page, or whose ORG/NAME, was named as a pool; "" for others."""
    local = "" if is_remote(path) or os.path.isdir(os.path.dirname(path)) else os.path.relpath(path)
    match = _HUB_PAGE.match(path) or _HUB_NAME.fullmatch(local)
    if match is None:
        return ""
    download = f"hf download {match[1]} --repo-type dataset --local-dir {match[1].rpartition('/')[2]}"
    return f"a dataset of the Hub is downloaded first: `{download}`, or read there as hf://datasets/{match[1]}"


def literal_end(pattern: str) -> int:
    """Returns the length of the prefix of a local path that exists: only after it are braces and wildcards special."""
    end = 0
    if not is_remote(pattern):
        for match in re.finditer(r"/+|\Z", pattern):
            if not os.path.lexists(pattern[: match.end()]):
                break
            end = match.end()
    return end


def expand_braces(pattern: str) -> list[str]:
    """Expands "a/{00000..00031}.tar" (with its zeros) and "{a,b}.tar", in order."""
    start = literal_end(pattern)
    # Every second piece was inside braces.
    pieces = _BRACE.split(pattern[start:])
    choices = [_choices(piece, pattern) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > _MOST:
        raise PoolError(f"the braces in {brief(pattern)} name more than {_MOST:,} files")
    return [pattern[:start] + "".join(parts) for parts in itertools.product(*choices)]


def _choices(inside: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = numbers.groups()
    if max(len(first), len(last)) > 18 or int(last) - int(first) >= _MOST:
        raise PoolError(f"the range {brief(inside)} names more than {_MOST:,} files")
    if int(first) > int(last):
        raise PoolError(f"the range {{{inside}}} in {pattern!r} runs backwards")
    width = len(first) if len(first) == len(last) or first.startswith("0") else 0
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1)]


def find(pattern: str, endings: Sequence[str]) -> list[str]:
    """Returns the files of a folder, glob, brace range, file or URL, sorted."""
    paths = expand_braces(pattern)
    if not is_remote(pattern):
        hits = [_local(path, endings) for path in paths]
    else:  # one request for each folder of a range, or for each file if the store cannot list the folder
        store_of(pattern)[0].invalidate_cache()  # earlier listings of this process may be old
        listed = _list_folders({path.rpartition("/")[0] for path in paths}) if len(paths) > 1 else {}
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
            hits = list(threads.map(lambda path: listed.get(path) or _remote(path, endings), paths))
    found = [hit for some in hits for hit in some]
    missing = [path for path, some in zip(paths, hits, strict=True) if not some]
    if not found:
        looked = ", ".join(f"*{ending}" for ending in endings)
        exists = not is_remote(pattern) and any(os.path.isdir(path) for path in missing)
        folder, name = os.path.split(pattern)
        some = os.listdir(folder)[:10_000] if not exists and os.access(f"{folder}/", os.R_OK) else []
        near = nearest(name, [one for one in some if one[:1].lower() == name[:1].lower()])
        what = f"the folder holds no {looked}" if exists else f"nothing is there{near} (files looked for: {looked})"
        hint = hub_hint(pattern)
        raise PoolError(f"no pool at {pattern!r}: {what}{f'; {hint}' if hint else ''}")
    if missing:
        raise PoolError(f"{len(missing)} of the files that {pattern!r} names are not there, the first: {missing[0]!r}")
    return found


# What file managers and file servers add to folders, and so to tars.
_SIDE_FILES = re.compile(r"(?:^|/)(?:(?:\.[^/]*|Thumbs\.db|desktop\.ini)\Z|(?:__MACOSX|@eaDir)(?:/|\Z))")


#: What side files are called where they are counted.
HIDDEN = "hidden file"


def is_side_file(path: str) -> bool:
    """Whether a file is none of a pool's: a hidden one such as macOS's `._a.jpg` and `.DS_Store`, or a file server's.

    webdataset skips hidden files too. It reads those below hidden folders: a tar may be made of "home/me/.cache/pool".
    """
    return _SIDE_FILES.search(path) is not None


def is_pool_file(path: str, endings: Sequence[str]) -> bool:
    """Whether a file in a folder belongs to its pool: no side file, nor what `datasets` keeps as a cache."""
    name = os.path.basename(path)
    if name.endswith(ARROW) and name.startswith("cache-"):
        return False
    return name.endswith(tuple(endings)) and not name.startswith("_") and not is_side_file(name)


def _local(path: str, endings: Sequence[str]) -> list[str]:
    path = os.path.expanduser(path)
    if os.path.isdir(path) and not is_lance(path):
        return sorted(entry.path for entry in os.scandir(path) if is_pool_file(entry.path, endings))
    if os.path.exists(path):
        return [path]
    end = literal_end(path)
    if any(sign in path[end:] for sign in _MAGIC):
        hits = glob.glob(glob.escape(path[:end]) + path[end:], recursive=True)
        return sorted(hit for hit in hits if os.path.isfile(hit) != is_lance(hit))
    return []


def _remote(path: str, endings: Sequence[str]) -> list[str]:
    fs, inner = store_of(path)
    url = public_url(fs.unstrip_protocol(inner))
    try:
        if any(sign in url for sign in _MAGIC):
            return _glob(url)
        # A web server would send a file of gigabytes when asked for its listing.
        if is_lance(url):
            return [url]
        folder = not url.endswith(tuple(endings)) and ask(path, lambda fs, inner: fs.isdir(inner))
        if folder or ask(path, lambda fs, inner: fs.info(inner))["type"] == "directory":
            return sorted(hit for hit in _entries(path) if is_pool_file(hit, endings))
        return [url]
    except FileNotFoundError:
        return []
    except RemoteError as error:
        raise PoolError(f"cannot list {path!r}: {error}") from None


def _entries(folder: str) -> dict[str, bool]:
    """Returns the URLs in a remote folder, and whether each is a folder."""

    def question(fs: Any, inner: str) -> dict[str, bool]:
        entries = fs.ls(inner, detail=True)
        return {
            public_url(fs.unstrip_protocol(entry["name"])).rstrip("/"): entry["type"] == "directory"
            for entry in entries
        }

    return ask(folder, question)


def _list_folders(folders: Iterable[str]) -> dict[str, list[str]]:
    """Returns the URLs of files in remote folders, by the path in the range; skips folders that cannot be listed."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        try:
            urls = [url for url, is_folder in _entries(folder).items() if not is_folder]
        except RemoteError as error:
            if error.transient:
                raise PoolError(f"cannot list {folder!r}: {error}") from None
            continue
        found |= {f"{folder}/{os.path.basename(url)}": [url] for url in urls}
    return found


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression of a glob."""
    from fsspec.utils import glob_translate  # fsspec takes 30 ms to import

    return re.compile(glob_translate(pattern))


def _glob(pattern: str) -> list[str]:
    """Returns the files that match a pattern. Raises if a folder cannot be listed; fsspec's own glob would skip it."""
    first = min(pattern.find(sign) for sign in _MAGIC if sign in pattern)
    root = pattern[:first].rpartition("/")[0]
    depth = math.inf if "**" in pattern else pattern[len(root) :].strip("/").count("/")
    means = glob_pattern(pattern)
    found: list[str] = []
    folders = [(root, 0)]
    while folders:
        folder, level = folders.pop()
        for url, is_folder in _entries(folder).items():
            if not is_folder and means.match(url) and not is_side_file(url):
                found.append(url)
            elif is_folder and level < depth and url != folder:
                folders.append((url, level + 1))
    return sorted(found)


def describe_bytes(data: bytes) -> str:
    """Describes the content of a file and its size, without a quote: it may be a key or a list of passwords."""
    head = data[:4096]
    if not head.strip(b"\0"):
        what = "zeros"
    elif head.lstrip()[:1] == b"<" and (b"<html" in head.lower() or b"<!doctype" in head.lower()):
        what = "a web page"
    elif all(byte >= 32 or byte in b"\t\r\n\f" for byte in head):
        what = "text"
    else:
        what = "something else"
    return f"{what} ({len(data):,} bytes)"


# ---- reading ---------------------------------------------------------------------------------------------------------

_BUFFER = 1 << 20  # bytes per read of a local file: a tar has many small members


def open_file(path: str) -> BinaryIO:
    """Opens a local path or an fsspec URL for reading in order."""
    if is_remote(path):
        return open_remote(path)
    check_file(path)
    return open(path, "rb", buffering=_BUFFER)


def stamp(path: str) -> str:
    """Returns the size of a file and a cheap version tag."""
    if is_remote(path):
        return version_of(ask(path, lambda fs, inner: fs.info(inner)))
    facts = os.stat(path)
    if is_lance(path):  # a folder: each version of a Lance dataset adds a manifest
        entries = (entry for entry in os.scandir(f"{path}/_versions") if entry.name.endswith(".manifest"))
        facts = max((entry.stat() for entry in entries), key=lambda one: one.st_mtime_ns, default=facts)
    return f"{facts.st_size}:{facts.st_mtime_ns}"


def read_head(path: str, size: int) -> bytes:
    """Returns the first `size` bytes of a file, or all if it has fewer; reads nothing else."""
    if is_remote(path):
        return fetch(path, 0, size)
    with open(path, "rb", buffering=0) as file:
        return file.read(size)


# Ranges at most this far apart are read by one request: reading the gap is faster than another request.
_GAP, _REMOTE_GAP = 16 << 10, 256 << 10

_LARGEST = 8 << 20  # most bytes of a request for several ranges; several requests run at once


def read_ranges(path: str, wanted: Sequence[tuple[int, int]], file: RawIOBase | None = None) -> list[bytes | OSError]:
    """Returns the bytes of each range (offset, size), or the error if it cannot be read; raises if none can.

    Threads may share one open local `file`.
    """
    from fsspec.utils import merge_offset_ranges  # fsspec takes 30 ms to import

    if file is None and not is_remote(path):
        with open(path, "rb", buffering=0) as file:
            return read_ranges(path, wanted, file)

    def read(start: int, stop: int) -> bytes | OSError:
        try:
            return fetch(path, start, stop) if file is None else _pread(file.fileno(), start, stop - start)
        except OSError as error:
            return error

    ranges = [(offset, offset + size) for offset, size in wanted if size]
    gap = _REMOTE_GAP if file is None else _GAP
    begins, ends = [start for start, _ in ranges], [stop for _, stop in ranges]
    _, starts, stops = merge_offset_ranges([path] * len(ranges), begins, ends, max_gap=gap, max_block=_LARGEST)
    if file is None:
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
            blocks = list(threads.map(read, starts, stops))
    else:
        blocks = list(map(read, starts, stops))
    if blocks and isinstance(blocks[0], OSError) and not any(isinstance(data, bytes) for data in blocks):
        raise blocks[0]
    found = [(offset, size, bisect_right(starts, offset) - 1) for offset, size in wanted]
    return [_part(path, blocks[n], starts[n], offset, size) if size else b"" for offset, size, n in found]


def _part(path: str, data: bytes | OSError, start: int, offset: int, size: int) -> bytes | OSError:
    if isinstance(data, OSError):
        return OSError(f"{path}: {size} bytes at {offset} cannot be read: {data}")
    part = data if (offset, size) == (start, len(data)) else data[offset - start : offset - start + size]
    if len(part) != size:
        return OSError(f"{path}: wanted {size} bytes at {offset}, the file gave {len(part)}; has it changed?")
    return part


def _pread(file: int, offset: int, size: int) -> bytes:
    data = os.pread(file, size, offset)
    while len(data) < size and (more := os.pread(file, size - len(data), offset + len(data))):
        data += more  # one call reads at most 2 GiB
    return data


def run_name(pool: str) -> str:
    """Returns a name for a pool's run, such as "pool" for `pool/{0..9}.tar`; never a path to another folder."""
    plain = itertools.takewhile(lambda part: not set(part) & set("{}*?["), Path(pool).parts)
    name = Path(*plain).name
    return "pool" if name in ("", ".", "..") else name
