"""Fingerprints: a short hash of whatever would change a result.

The folder of a score part has its fingerprint in its name, so parts made with other settings, other weights or
another precision can never be mixed up, and a changed setting never reuses an old part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

#: Hex digits of a fingerprint: 64 bits, far past any chance of two settings meeting by accident.
LENGTH = 16


def canonical_json(value: Any) -> str:
    """Returns one spelling per value: JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: Mapping[str, Any]) -> str:
    """Returns the first 16 hex digits of the xxh3-128 of the canonical JSON of `value`."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value).encode())[:LENGTH]


def json_digest(value: Any) -> str:
    """Returns the xxh3-64 of a value as canonical JSON: 16 hex digits, the same for what JSON writes alike.

    Raises:
        ValueError: it holds NaN, or half of a surrogate pair: JSON has no spelling for these.
    """
    return xxhash.xxh3_64_hexdigest(canonical_json(json.loads(json.dumps(value))).encode())


def file_digest(path: Path) -> str:
    """Returns the xxh3-128 of a file's bytes in hex; within one process a file is read once until it changes.

    A folder has the digest of the names and digests of the files that lie in it (not of its folders, nor of hidden
    files).

    Raises:
        OSError: it is not there or cannot be read.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        listed = "".join(f"{file.name}\0{file_digest(file)}\n" for file in files)
        return xxhash.xxh3_128_hexdigest(listed.encode())
    facts = path.stat()
    return _digest(path, facts.st_size, facts.st_mtime_ns)


def tree_digest(folder: Path) -> str:
    """Returns the xxh3-128 of all files below a folder: their paths in it, and their contents.

    Hidden files and what Python compiles are left out.

    Raises:
        OSError: something cannot be read.
    """
    files = sorted(
        (file.relative_to(folder).as_posix(), file)
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith((".", "__pycache__")) for part in file.relative_to(folder).parts)
    )
    listed = "".join(f"{name}\0{file_digest(file)}\n" for name, file in files)
    return xxhash.xxh3_128_hexdigest(listed.encode())


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    total = xxhash.xxh3_128()
    with open(path, "rb") as handle:
        while chunk := handle.read(1 << 24):
            total.update(chunk)
    return total.hexdigest()
