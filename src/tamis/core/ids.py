"""Ids of pairs, pseudo-random numbers that depend on them, and fingerprints of settings and files.

The id of a pair (uid) has 128 bits, held as two unsigned 64-bit halves and shown as 32 hex digits. A pair keeps the
`uid` that its json gives (DataComp's convention); without one it gets the xxh3-128 of its image bytes, a NUL byte and
its caption bytes. Ids are never renumbered, so scores, subsets and files made on different days and machines join.

A fingerprint is a short hash of everything that changes a result. It is in the name of a score part's folder, so parts
made with other settings, other weights or another precision never mix.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tamis.core.arrays import U64
from tamis.core.errors import RecipeError, check_file, first_line

#: DataComp's subset files: one record per pair, the high and the low half of its uid.
SUBSET_DTYPE = np.dtype([("f0", "<u8"), ("f1", "<u8")])

_HEX = re.compile(r"[0-9a-fA-F]{32}")
_LOW = (1 << 64) - 1


def parse_uid(text: object) -> tuple[int, int] | None:
    """Returns the halves of a uid written as 32 hex digits, or None if `text` is anything else."""
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        return None
    value = int(text, 16)
    return value >> 64, value & _LOW


def format_uid(high: int, low: int) -> str:
    """Returns the 32 hex digits of a uid."""
    return f"{int(high):016x}{int(low):016x}"


def format_uids(high: U64, low: U64) -> NDArray[np.bytes_]:
    """Returns the 32 hex digits of each uid: (n,) of 32 bytes."""
    halves = np.stack([high, low], axis=1).astype(">u8")
    return np.frombuffer(halves.tobytes().hex().encode(), "S32")


def content_uid(image: bytes | None, caption: bytes | None) -> tuple[int, int]:
    """Returns the uid of a pair whose json gives none: xxh3-128 of image, NUL, caption."""
    digest = xxhash.xxh3_128()
    digest.update(image or b"")
    digest.update(b"\0")
    digest.update(caption or b"")
    value = digest.intdigest()
    return value >> 64, value & _LOW


def image_xxh3(image: bytes) -> int:
    """Returns the xxh3-64 of an image file's bytes, which identifies images whose uids come from the pool."""
    return xxhash.xxh3_64_intdigest(image)


def _mix(x: U64) -> U64:
    # The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters nearby inputs.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def copy_numbers(high: U64, low: U64) -> U64:
    """Returns for each row how many rows before it have its uid."""
    order, place = uid_order(high, low), np.arange(high.size)
    first = np.append(True, (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0))[: high.size]
    numbers = np.empty(high.size, np.uint64)
    numbers[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return numbers


def uid_order(high: U64, low: U64) -> NDArray[np.int64]:
    """Returns the row numbers in the order of the uids, high halves first; of equal uids the lower row first."""
    bits = np.uint64(max(high.size - 1, 1).bit_length())
    keys = high >> bits << bits | np.arange(high.size, dtype=np.uint64)  # sorted four times as fast as both halves
    keys.sort()
    order = (keys & np.uint64((1 << int(bits)) - 1)).view(np.int64)
    keys >>= bits
    same = np.append(False, keys[1:] == keys[:-1])
    some = np.flatnonzero(same | np.append(same[1:], False))  # their leading bits are another's
    rows = order[some]
    order[some] = rows[np.lexsort((low[rows], high[rows]))]
    return order


def scramble(high: U64, low: U64, seed: int = 0) -> U64:
    """Returns a pseudo-random uint64 for each uid, uniform: it breaks ties and draws random subsets.

    It depends only on uid and seed, so row order and worker count change nothing.
    """
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64
        salt = _mix(np.asarray([seed % (1 << 64)], dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15))[0]
        return _mix(_mix(np.asarray(high, np.uint64) ^ salt) + np.asarray(low, np.uint64))


def seed_of_epoch(seed: int, epoch: int) -> int:
    """Returns a seed for each epoch: that of epoch 0 is `seed`; below 2^32 no two seeds share that of an epoch."""
    return seed + (epoch << 32)


def uniforms(high: U64, low: U64, *, seed: int, counters: Sequence[NDArray[np.integer[Any]]]) -> NDArray[np.float64]:
    """Returns pseudo-random numbers that depend only on (uid, seed, counters).

    A draw for a sample, such as a token of a caption, is the same in every batch, order, worker and repetition: the
    `counters` (n,) say which caption, which step. (n,) float64 in [0, 1), uniform, 53 bits.
    """
    state = scramble(high, low, seed)
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _mix(state * np.uint64(0x9E3779B97F4A7C15) + np.asarray(counter).astype(np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


# ---- fingerprints ----------------------------------------------------------------------------------------------------

#: Hex digits of a fingerprint: 64 bits, so collisions are negligible.
LENGTH = 16


def canonical_json(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces, so that equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def as_json_value(value: Any, infinity: str = "inf") -> Any:
    """Returns a value that JSON can hold: infinity becomes a word, with its sign, and NaN becomes None."""
    if isinstance(value, Mapping):
        return {name: as_json_value(inner, infinity) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(inner, infinity) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else infinity if value > 0 else f"-{infinity}"
    return value


def fingerprint(value: Mapping[str, Any]) -> str:
    """Returns the first 16 hex digits of the xxh3-128 of the canonical JSON of `value`."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value).encode())[:LENGTH]


def json_digest(value: Any) -> str:
    """Returns the xxh3-64 of a value as canonical JSON: 16 hex digits. ValueError for NaN or a lone surrogate."""
    return xxhash.xxh3_64_hexdigest(canonical_json(json.loads(json.dumps(value))).encode())


def file_digest(path: Path) -> str:
    """Returns the xxh3-128 of a file's bytes in hex; a process reads a file again only if it changed.

    For a folder: the digest of the names and digests of its files, without subfolders and hidden files.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        listed = "".join(f"{file.name}\0{file_digest(file)}\n" for file in files)
        return xxhash.xxh3_128_hexdigest(listed.encode())
    check_file(path)
    facts = path.stat()
    return _digest(path, facts.st_size, facts.st_mtime_ns)


def setting_digest(path: str, setting: str) -> str:
    """Returns the digest of a file or folder that a setting names; raises RecipeError if it cannot be read."""
    try:
        return file_digest(Path(path).expanduser())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise RecipeError(f"{setting}: {path} does not exist or cannot be read ({reason})") from error


def tree_digest(folder: Path) -> str:
    """Returns the xxh3-128 of the paths and contents of all files below a folder but hidden and compiled ones."""
    files = sorted(
        (file.relative_to(folder).as_posix(), file)
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith((".", "__pycache__")) for part in file.relative_to(folder).parts)
    )
    listed = "".join(f"{name}\0{file_digest(file)}\n" for name, file in files)
    return xxhash.xxh3_128_hexdigest(listed.encode())


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, xxhash.xxh3_128).hexdigest()
