"""Fingerprints: a short hash of whatever would change a result.

A score part lies in a folder named for its fingerprint, so parts made under other settings, other weights or
another precision can never be mixed up, and a changed setting never reuses an old part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

#: Hex digits of a fingerprint: 64 bits, far past any chance of two settings meeting by accident.
LENGTH = 16


def canonical(value: Any) -> str:
    """Returns one spelling per value: JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: Mapping[str, Any]) -> str:
    """Returns the first 16 hex digits of the xxh3-128 of the canonical JSON of `value`."""
    return xxhash.xxh3_128_hexdigest(canonical(value).encode())[:LENGTH]
