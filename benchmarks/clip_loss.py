"""`clip_loss`: the norms of one batch of 32,768 pairs x 512, beside bare products of the same matrices.

A product gives the same cosines and nothing else. Five rounds in turn; each figure is the best. A bf16 product is fast
only on a processor that has it (avx512_bf16 or amx_bf16). "reused" writes all its products to the same memory, so the
system hands out no pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.measure import Case, finish, options, processor
from tamis.derived.contrastive import contrastive_norms
from tamis.math.similarity import unit_rows

WIDTH = 512
BLOCK = 4096


def main() -> None:
    given = options(__doc__ or "")
    rows = 8192 if given.quick else 32_768
    rng = np.random.default_rng(0)
    images = unit_rows(rng.standard_normal((rows, WIDTH)))
    texts = unit_rows(images + 2 * rng.standard_normal((rows, WIDTH)))
    few = slice(0, BLOCK)

    def float32() -> None:
        for start in range(0, rows, BLOCK):
            images[start : start + BLOCK] @ texts.T

    work: dict[str, tuple[Callable[[], object], int]] = {
        "ours": (lambda: contrastive_norms(images, texts, 0.01, "bf16"), rows),
        "ours in float32": (lambda: contrastive_norms(images, texts, 0.01), rows),
        "float32": (float32, rows),
    }
    try:
        import torch
    except ImportError:
        print("torch is not installed: no bf16 product")
    else:
        left, right = torch.from_numpy(images[few]).bfloat16(), torch.from_numpy(texts).bfloat16()
        memory = torch.empty(BLOCK, rows, dtype=torch.bfloat16)
        work["bf16"] = (lambda: left @ right.T, BLOCK)
        work["bf16, reused"] = (lambda: torch.mm(left, right.T, out=memory), BLOCK)
    speeds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(5):
        for name, (call, count) in work.items():
            start = time.perf_counter()
            call()
            speeds[name].append(2 * count * rows * WIDTH / (time.perf_counter() - start) / 1e9)
    ours = max(speeds["ours"])
    settings = {
        "rows": rows,
        "processor": processor(),
        "rounds": {key: [round(one) for one in its] for key, its in speeds.items()},
    }
    cases = [
        Case(f"beside a {name} product", "GFLOP/s", ours, max(its), ours / max(its), "0.6 of bf16", settings)
        for name, its in speeds.items()
        if name != "ours"
    ]
    finish("clip_loss", cases, given.json)


if __name__ == "__main__":
    main()
