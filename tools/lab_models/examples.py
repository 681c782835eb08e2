"""What the built-in models learn from: images of the lab's world with everything that is true about them.

Nothing here is read from disk, and every example is a function of (seed, number): another machine trains on the same.
"""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.core.processes import die_with_parent
from tamis_lab.samples import Kind, LabSample, make_sample

#: Side of every training image.
SIDE = 128

#: Unlikely seeds for a pool; training and held-out examples never share one.
TRAINING_SEED = 20_260_001
HELD_OUT_SEED = 20_260_002

_CHUNK = 64  # examples per message between processes


@dataclass(frozen=True)
class Examples:
    """Examples in memory."""

    images: NDArray[np.uint8]  # (n, 128, 128, 3) uint8, decoded from the JPEG a pool would hold
    samples: Sequence[LabSample]  # n samples without their image bytes: caption, kind, scene, boxes, painted lines

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def captions(self) -> list[str]:
        """The n captions."""
        return [sample.caption for sample in self.samples]


def draw(count: int, *, seed: int, kinds: Mapping[Kind, float], workers: int = 1) -> Examples:
    """Draws examples of which each kind has its share, all object classes equally often.

    Cost: 5 ms per example on one CPU core, 49 kB each in memory.
    """
    names = list(kinds)
    shares = np.array([kinds[name] for name in names], float)
    chosen = np.random.default_rng(seed).choice(len(names), size=count, p=shares / shares.sum())
    jobs = [
        [(number, names[chosen[number]]) for number in range(start, min(start + _CHUNK, count))]
        for start in range(0, count, _CHUNK)
    ]
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    samples: list[LabSample] = []
    make = partial(_drawn, seed)
    if workers == 1:
        _collect(map(make, jobs), images, samples)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=die_with_parent) as pool:
            _collect(pool.map(make, jobs), images, samples)
    return Examples(images, samples)


def _collect(
    parts: Iterable[tuple[NDArray[np.uint8], list[LabSample]]], images: NDArray[np.uint8], samples: list[LabSample]
) -> None:
    for pixels, drawn in parts:
        images[len(samples) : len(samples) + len(drawn)] = pixels
        samples.extend(drawn)


def _drawn(seed: int, jobs: Sequence[tuple[int, Kind]]) -> tuple[NDArray[np.uint8], list[LabSample]]:
    made = [make_sample(number, seed=seed, mix="uniform", kind=kind, image_size=SIDE) for number, kind in jobs]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(sample.image)).convert("RGB")) for sample in made])
    return pixels, [replace(sample, image=b"") for sample in made]
