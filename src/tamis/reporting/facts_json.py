"""The report's facts as JSON: what every section says, without its pictures, for programs and for the explorer.

The same run and the same subsets give the same bytes: the time of writing is not among the facts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from tamis.reporting.pairs import Pair

#: Version of the file's layout; docs/report.md describes it.
FORMAT = 2

#: What the file begins with, so that no other file of this name is written over.
_KIND = "tamis report"
BEGINS = f'{{"kind": "{_KIND}"'

#: A lone surrogate cannot be encoded; strict readers refuse its escape too.
_SURROGATE = re.compile("[\ud800-\udfff]")

#: What a card shows and a program reads for itself, by shard and key: pictures, and why there is none.
_PICTURES = frozenset({"thumbnail", "thumbnail_size", "no_picture", "painted"})


def as_json(facts: Mapping[str, Any]) -> str:
    """Returns facts as one JSON object on one line.

    Args:
        facts: records, mappings, sequences, arrays, numbers and texts by name. Pairs in them become their row
            numbers; what is known of each pair stands once, under `pairs`, by row.

    Returns:
        Text that any JSON reader takes: NaN and infinities are null. It may stand inside a page: `<` is escaped.
    """
    pairs: dict[int, Pair] = {}
    said = {name: _plain(value, pairs) for name, value in facts.items()}
    known = {
        str(row): {
            entry.name: _plain(getattr(pairs[row], entry.name), {})
            for entry in fields(Pair)
            if entry.name not in _PICTURES
        }
        for row in sorted(pairs)
    }
    text = json.dumps({"kind": _KIND, "format": FORMAT, **said, "pairs": known}, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c") + "\n"


def _plain(value: Any, pairs: dict[int, Pair]) -> Any:
    """Returns a value as JSON holds it, and notes the pairs in it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), pairs)
    if isinstance(value, Pair):
        pairs[value.row] = value
        return value.row
    if is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name), pairs) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {_plain(str(key), pairs): _plain(inner, pairs) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, pairs) for inner in value]
    raise TypeError(f"facts hold records, arrays, numbers and texts; this is a {type(value).__name__}: {value!r}")
