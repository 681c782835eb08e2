"""How alike a pair is to everything else of its batch: the normalisers of CLIP's contrastive loss."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from tamis.core.arrays import Float32s, Float64s
from tamis.core.machine import cores

#: Rows and columns of a tile of cosines: in float32 it stays in a core's cache.
TILE = 512

_Arithmetic = tuple[Callable[[Float32s], Any], Callable[[Float32s], Any], Callable[[Any, Any, Float32s], None]]

#: A sum of exponentials below this has lost digits: the row is far below the mean cosine of its batch.
_LOST = 1e-25


def contrastive_norms(
    images: Float32s, texts: Float32s, temperature: float, precision: Literal["float32", "bf16"] = "float32"
) -> tuple[Float64s, Float64s]:
    """Returns what CLIP's loss subtracts from the cosine of each pair of a batch, on either side.

    The first is temperature * log sum_j exp(image_i . text_j / temperature), over the texts j of the batch; the
    second is the same over the images j with text_i. A pair's loss is the mean of both less its cosine, divided by the
    temperature.

    A cosine is split: v_i . t_j = (v_i - v) . (t_j - t) + v_i . t + v . (t_j - t), where v and t are the means of the
    batch. Only the first product needs n^2 of them, and bf16 rounds it less than the cosine.

    Args:
        images, texts: (n, d) float32 unit rows.
        temperature: above 0; 0.01 for OpenAI's CLIP.
        precision: "bf16" rounds the vectors, less their mean, to bf16. torch multiplies these if it is installed and
            the processor has bf16 instructions; otherwise NumPy does, in float32.

    Returns:
        Two arrays (n,) float64, each at least the cosine of its pair.

    Cost: 2 n^2 d operations and n^2 exponentials, on all cores.

    Source: Wang et al. 2024, CLIPLoss and norm-based data selection (arXiv 2405.19547), equation 1: its R is the mean
        of both.
    """
    count, starts = len(images), range(0, len(images), TILE)
    scale = np.float32(1 / temperature)
    centre, others = images.mean(0), texts.mean(0)
    of_images = (images @ (others * scale)).astype(np.float64)
    of_texts = ((texts @ centre - others @ centre) * scale).astype(np.float64)
    shift = of_images.mean()
    weights = [np.exp(each).astype(np.float32) for each in (of_images - shift, of_texts)]
    # About the largest product: a bf16 is most exact near 0, and nothing overflows.
    peak = _round(((images[:TILE] - centre) * scale @ (texts[:TILE] - others).T).max(keepdims=True))[0]
    torch = _torch() if precision == "bf16" else None
    as_left, as_right, exponentials = _on_torch(torch, peak) if torch else _plainly(precision, peak)
    cosine, rows, columns = np.empty(count), np.empty(count), np.zeros(count)

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is computed again below
    def strip(start: int) -> Float32s:
        """Sums up some images over all texts; returns the sums of all texts over these images."""
        if torch:
            torch.set_num_threads(1)  # in this thread
        some = slice(start, start + TILE)
        cosine[some] = np.einsum("nd,nd->n", images[some], texts[some], dtype=np.float64)
        own = np.exp(cosine[some] / temperature - of_images[some] - of_texts[some] - peak)
        left, buffer = as_left((images[some] - centre) * scale), np.empty((TILE, TILE), np.float32)
        total, sums = np.zeros(own.size), np.empty(count, np.float32)
        for column, right in zip(starts, prepared, strict=True):
            tile = buffer[: own.size, : count - column]
            exponentials(left, right, tile)
            if column == start:
                np.fill_diagonal(tile, own)  # often the largest of its row: never rounded
            total += tile @ weights[1][column : column + TILE]
            sums[column : column + TILE] = weights[0][some] @ tile
        rows[some] = total
        return sums

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(cores()) as threads:
        # One thread per product: the exponentials need all cores, too.
        prepared = list(threads.map(lambda start: as_right(texts[start : start + TILE] - others), starts))
        for sums in threads.map(strip, starts):
            columns += sums
    if torch:
        torch.set_num_threads(torch.get_num_threads())  # in threads that start later
    logs = _logs(rows, images, texts, temperature, of_images + peak)
    others_logs = _logs(columns, texts, images, temperature, of_texts + (shift + peak))
    return np.maximum(temperature * logs, cosine), np.maximum(temperature * others_logs, cosine)


def _logs(sums: Float64s, rows: Float32s, others: Float32s, temperature: float, shares: Float64s) -> Float64s:
    """Returns log(sums) + shares; where a sum is lost, log sum exp(row . other / temperature) itself."""
    good = (sums > _LOST) & (sums < np.inf)
    logs = np.log(sums, where=good, out=np.zeros_like(sums)) + shares
    lost = np.flatnonzero(~good)
    for start in range(0, lost.size, TILE):
        few = lost[start : start + TILE]
        products = (rows[few] @ others.T).astype(np.float64) / temperature
        top = products.max(1, keepdims=True)
        logs[few] = np.log(np.exp(products - top).sum(1)) + top[:, 0]
    return logs


def _plainly(precision: str, peak: Float32s) -> _Arithmetic:
    """Returns what prepares the rows of either side, and what fills a tile with exp(left . right - peak)."""

    def fill(left: Float32s, right: Float32s, tile: Float32s) -> None:
        np.matmul(left, right.T, out=tile)
        np.subtract(tile, peak, out=tile)
        np.exp(tile, out=tile)

    side = _round if precision == "bf16" else np.asarray
    return side, side, fill


def _on_torch(torch: Any, peak: Float32s) -> _Arithmetic:
    """Returns the same with oneDNN's bf16 product, which rounds `left . right - peak` to bf16."""
    shift = torch.from_numpy(-peak).bfloat16()

    def left(rows: Float32s) -> Any:
        return torch.from_numpy(rows).bfloat16()

    def right(rows: Float32s) -> Any:
        return torch.ops.mkldnn._reorder_linear_weight(left(rows), TILE), shift.repeat(len(rows))

    def fill(some: Any, packed: Any, tile: Float32s) -> None:
        products = torch.ops.mkldnn._linear_pointwise(some, *packed, "none", [], "")
        torch.from_numpy(tile).copy_(products).exp_()

    return left, right, fill


def _round(rows: Float32s) -> Float32s:
    """Rounds to bf16, the upper half of a float32: to the nearest, ties to even."""
    bits = rows.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def _torch() -> Any:
    """Returns torch if it multiplies bf16 fast on this processor, else None."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    fast = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return torch if fast and hasattr(torch.ops.mkldnn, "_reorder_linear_weight") else None
