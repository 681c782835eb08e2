"""How often each kept row counts, and which caption it carries."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tamis.arrays import Captions, Mask, Times

#: The columns of a subset file that are there only if a row needs them.
PER_ROW = ("times", "caption")


class Kept(Protocol):
    """The rows that steps or a subset keep. Without `times` each counts once, without `caption` all carry alt-texts."""

    @property
    def keep(self) -> Mask: ...
    @property
    def times(self) -> Times | None: ...
    @property
    def caption(self) -> Captions | None: ...


def joined(parts: Sequence[Kept], keep: Mask, *, every: bool) -> tuple[Times | None, Captions | None]:
    """Returns how often rows count, and which caption they carry, that several parts keep together.

    Args:
        parts: the choices; None in the result if no part says anything.
        keep: (rows,) bool, the rows that are left.
        every: a row needs all parts: it counts as often as in the part with the fewest copies and carries the caption
            of the first part that chooses captions. Else it counts as often as in the part with the most, and carries
            the caption of the first part that keeps it.
    """
    times: Times | None = None
    caption: Captions | None = None
    if any(part.times is not None for part in parts):
        each = [part.keep.astype(np.uint16) if part.times is None else part.times for part in parts]
        times = functools.reduce(np.minimum if every else np.maximum, each) * keep
    if any(part.caption is not None for part in parts):
        caption, undecided = np.zeros(keep.size, np.uint8), keep.copy()
        for part in parts:
            if part.caption is not None:
                here = undecided & part.keep
                caption[here] = part.caption[here]
                undecided ^= here
            elif not every:
                undecided &= ~part.keep
    return times, caption
