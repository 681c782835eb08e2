"""How often each kept row counts, and which caption it carries."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tamis.arrays import Mask

#: The arrays of a subset, and columns of its file, that are there only if a row needs them.
PER_ROW = {"times": np.uint16, "caption": np.uint8}


def rows_kept(line: Mapping[str, Any]) -> str:
    """Returns what a line of a funnel keeps: "1,200", or "1,200 rows 3,000 times" if rows repeat."""
    return f"{line['kept']:,}" + (f" rows {line['times']:,} times" if "times" in line else "")


def joined(parts: Sequence[Any], keep: Mask, *, every: bool) -> dict[str, Any]:
    """Returns `times` and `caption` of the rows that selections, outcomes or subsets keep together; None as in them.

    `every`: rows need all parts, count as in the part with the fewest copies, and carry the caption of the first part
    that chooses captions. Else they count as in the part with the most, and carry that of the first that keeps them.
    """
    times = caption = None
    if any(part.times is not None for part in parts):
        each = [part.keep.astype(np.uint16) if part.times is None else part.times for part in parts]
        times = functools.reduce(np.minimum if every else np.maximum, each) * keep
    if any(part.caption is not None for part in parts):
        caption, undecided = np.zeros(keep.size, np.uint8), keep.copy()
        for part in parts:
            if part.caption is not None:
                caption += part.caption * undecided
            if part.caption is not None or not every:
                undecided &= ~part.keep
    return {"times": times, "caption": caption}
