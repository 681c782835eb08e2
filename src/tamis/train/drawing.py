"""The random choices of a training as pure functions of seed, epoch and uid: held-out pairs, order, crops.

So a training that resumes, or runs on another number of machines, sees the same pairs in the same order, cropped the
same way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64
from tamis.ids import uniforms

Places = NDArray[np.int64]

# Each use has its own counter, so that no two share random numbers.
_ORDER, _CROP, _HELD_OUT = 1, 2, 3

_TRIES = 10
_NARROWEST, _WIDEST = 3 / 4, 4 / 3  # aspect ratios of a crop


def epoch_order(high: U64, low: U64, times: Places, *, seed: int, epoch: int) -> tuple[Places, Places]:
    """The places of an epoch's pairs in order, each repeated `times`, and the number of each repetition.

    Cost: 0.3 s and 50 MB for a million.
    """
    places = np.repeat(np.arange(times.size, dtype=np.int64), times)
    showing = np.arange(places.size, dtype=np.int64) - np.repeat(np.cumsum(times) - times, times)
    counters = [np.full(places.size, _ORDER), np.full(places.size, epoch), showing]
    order = np.argsort(uniforms(high[places], low[places], seed=seed, counters=counters), kind="stable")
    return places[order], showing[order]


def held_out(high: U64, low: U64, share: float) -> NDArray[np.bool_]:
    """Which pairs are held out, (n,) bool: about this share, chosen by their uids alone."""
    return uniforms(high, low, seed=0, counters=[np.full(high.size, _HELD_OUT)]) < share


def positions(epoch_size: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Cuts the positions start to stop of an endless training into epochs: epoch, first, last + 1 in it."""
    while start < stop:
        epoch, first = divmod(start, epoch_size)
        last = min(epoch_size, first + stop - start)
        yield epoch, first, last
        start += last - first


def crop_windows(
    high: U64, low: U64, sizes: Places, *, seed: int, epoch: int, showing: Places, smallest: float
) -> Places:
    """The windows of random resized crops, (n, 4): left, top, right, bottom in pixels.

    A window has between `smallest` and all of the image's area, and an aspect ratio between 3:4 and 4:3 (uniform in its
    logarithm). If none of ten draws fits, it is the largest centred window with a ratio within these bounds.

    Args:
        high, low: (n,) halves of the uids.
        sizes: (n, 2) widths and heights in pixels.
        seed, epoch: of the random numbers.
        showing: (n,) number of the repetition of its pair in this epoch.
        smallest: share of the area, in (0, 1].

    Source: Szegedy et al. 2015, "Going deeper with convolutions", section 6, as torchvision's RandomResizedCrop does
    it; open_clip's `scale=(0.9, 1.0)`.
    """
    n = high.size

    def draw(what: int) -> NDArray[np.float64]:
        """(n, tries)."""
        tries = np.tile(np.arange(_TRIES), n)
        counters = [
            np.full(tries.size, _CROP),
            np.full(tries.size, epoch),
            np.repeat(showing, _TRIES),
            tries * 4 + what,
        ]
        pairs = np.repeat(high, _TRIES), np.repeat(low, _TRIES)
        return uniforms(*pairs, seed=seed, counters=counters).reshape(n, _TRIES)

    size = sizes.astype(np.float64)
    width, height = size[:, :1], size[:, 1:]  # (n, 1)
    area = width * height * (smallest + (1 - smallest) * draw(0))
    ratio = np.exp(np.log(_NARROWEST) + (np.log(_WIDEST) - np.log(_NARROWEST)) * draw(1))
    across, down = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))  # (n, tries)
    fits = (across >= 1) & (across <= width) & (down >= 1) & (down <= height)
    rows, chosen = np.arange(n), fits.argmax(1)
    across, down = across[rows, chosen], down[rows, chosen]
    left = np.floor(draw(2)[rows, chosen] * (size[:, 0] - across + 1))
    top = np.floor(draw(3)[rows, chosen] * (size[:, 1] - down + 1))
    # None fitted: the centre, as large as the bounds of the ratio allow.
    none = ~fits.any(1)
    inside = np.clip(size[:, 0] / size[:, 1], _NARROWEST, _WIDEST)
    centre_across = np.minimum(size[:, 0], np.maximum(1, np.rint(size[:, 1] * inside)))
    centre_down = np.minimum(size[:, 1], np.maximum(1, np.rint(size[:, 0] / inside)))
    across, down = np.where(none, centre_across, across), np.where(none, centre_down, down)
    left = np.where(none, (size[:, 0] - across) // 2, left)
    top = np.where(none, (size[:, 1] - down) // 2, top)
    return np.stack([left, top, left + across, top + down], axis=1).astype(np.int64)
