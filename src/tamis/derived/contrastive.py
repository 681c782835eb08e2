"""How alike a pair is to everything else of its batch: the normalisers of CLIP's contrastive loss."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

from tamis.arrays import Float32s, Float64s

#: Rows and columns of a tile of cosines: in float32 it stays in a core's cache.
TILE = 512

#: A sum of exponentials below this has lost digits: the row is far below its tile's largest cosine.
_LOST = 1e-25


def contrastive_norms(images: Float32s, texts: Float32s, temperature: float) -> tuple[Float64s, Float64s]:
    """Returns what CLIP's loss subtracts from the cosine of each pair of a batch, on either side.

    The first is temperature * log sum_j exp(image_i . text_j / temperature), over the texts j of the batch; the
    second is the same over the images j with text_i. A pair's loss is the mean of both less its cosine, divided by the
    temperature.

    Args:
        images, texts: (n, d) float32 unit rows.
        temperature: above 0; 0.01 for OpenAI's CLIP.

    Returns:
        Two arrays (n,) float64, each at least the cosine of its pair.

    Cost: 2 n^2 d operations and n^2 exponentials, on all cores.

    Source: Wang et al. 2024, CLIPLoss and norm-based data selection (arXiv 2405.19547), equation 1: its R is the mean
        of both. Each tile of cosines is shifted by its largest one, so that nothing overflows: without a shift float32
        does from a cosine of 0.887 at temperature 0.01.
    """
    count = len(images)
    starts = range(0, count, TILE)

    def strip(start: int) -> tuple[Float64s, Float64s]:
        """Logarithms of the sums of some images over all texts, and of each text over these images."""
        some = images[start : start + TILE]
        rows, columns = np.full(len(some), -np.inf), np.empty(count)
        for left in starts:
            tile = some @ texts[left : left + TILE].T
            by_row, by_column = _log_sums(tile, temperature)
            rows = np.logaddexp(rows, by_row)
            columns[left : left + TILE] = by_column
        return rows, columns

    rows, columns = np.empty(count), np.full(count, -np.inf)
    with (
        threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):  # the exponentials need all cores, too
        for start, (of_rows, of_columns) in zip(starts, threads.map(strip, starts), strict=True):
            rows[start : start + TILE] = of_rows
            columns = np.logaddexp(columns, of_columns)
    return temperature * rows, temperature * columns


def _log_sums(tile: Float32s, temperature: float) -> tuple[Float64s, Float64s]:
    """Returns log sum exp(cosine / temperature) of each row and of each column of a tile."""
    peak = tile.max()
    sums = np.exp((tile - peak) * np.float32(1 / temperature))
    found = []
    for axis in (1, 0):
        total = sums.sum(axis, dtype=np.float32).astype(np.float64)
        few = np.flatnonzero(total < _LOST)
        logs = np.log(total, where=total > 0, out=np.zeros_like(total)) + peak / temperature
        if few.size:
            own = tile.take(few, 1 - axis).astype(np.float64) / temperature
            top = own.max(axis, keepdims=True)
            logs[few] = np.log(np.exp(own - top).sum(axis)) + top.reshape(-1)
        found.append(logs)
    return found[0], found[1]
