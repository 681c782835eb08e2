"""Batches of a training: which pairs, how they are cropped, decoded ahead of the network."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.arrays import U64, Pixels
from tamis.errors import RunError, SampleError
from tamis.pool import Pool, PoolSpec
from tamis.pool.images import decode
from tamis.processes import prefetched
from tamis.store.run import Run
from tamis.store.stream import KeptSample, samples_of
from tamis.train.drawing import Places, crop_windows, epoch_order, positions
from tamis.train.processes import ALONE, Processes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_GROUP = 16  # pairs that one thread decodes at once


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """The pairs of a run to train on, and how often each is in an epoch."""

    rows: NDArray[np.int64]  # (n,) numbers of rows of the run, ascending
    times: NDArray[np.int64]  # (n,) at least 1
    high: U64  # (n,) halves of their uids
    low: U64

    @property
    def epoch_size(self) -> int:
        """Pairs in an epoch, repeats counted."""
        return int(self.times.sum())

    def only(self, some: NDArray[np.bool_]) -> TrainingRows:
        """Some of the pairs."""
        return TrainingRows(rows=self.rows[some], times=self.times[some], high=self.high[some], low=self.low[some])


@dataclass(frozen=True, kw_only=True)
class Batch:
    """This process's part of a batch."""

    places: Places  # (b,) positions in the `TrainingRows`
    pixels: torch.Tensor  # (b, side, side, 3) uint8; black where there is no image
    captions: Sequence[str]  # b texts, "" where there is none
    usable: torch.Tensor  # (b,) bool: image and caption are there

    def readable(self) -> Batch:
        """The usable pairs of this batch."""
        return Batch(
            places=self.places[self.usable.numpy()],
            pixels=self.pixels[self.usable],
            captions=list(itertools.compress(self.captions, self.usable)),
            usable=self.usable[self.usable],
        )


@dataclass
class _ImageCache:
    """Decoded images in memory, as many as fit: images of small pools are decoded once, not in every epoch."""

    room: int  # bytes
    images: dict[int, Pixels] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, place: int, data: bytes, spec: PoolSpec) -> Pixels:
        pixels = self.images.get(place)
        if pixels is None:
            pixels = decode(data, max_pixels=spec.max_pixels, transparency=spec.transparency)
            with self.lock:
                if pixels.nbytes <= self.room and place not in self.images:
                    self.room -= pixels.nbytes
                    self.images[place] = pixels
        return pixels


@dataclass(frozen=True, kw_only=True)
class Batches:
    """All batches of a training, from any step on: a function of the settings alone.

    A training is one endless sequence of epochs, cut into batches wherever an epoch ends; so in every epoch every pair
    is shown exactly as often as its multiplicity says, and none is left out at an end.
    """

    run: Run  # what to train on
    pool: Pool
    rows: TrainingRows
    batch: int  # pairs in a batch, of all processes together
    side: int  # of the images, in pixels
    smallest: float  # share of an image that a random crop keeps at least
    resample: Image.Resampling = Image.Resampling.BICUBIC  # how images are resized
    seed: int = 0  # of order and crops
    processes: Processes = ALONE  # each process takes a contiguous part of every batch
    threads: int = 2  # for decoding
    cache: int = 1 << 30  # bytes of decoded images to keep

    def __call__(self, first: int, stop: int, prepare: Callable[[Batch], T]) -> Generator[T, None, None]:
        """Yields this process's part of the batches number first to stop - 1, prepared, some ahead."""
        with ThreadPoolExecutor(self.threads) as threads:
            yield from prefetched(lambda: map(prepare, self._assembled(first, stop, threads)), depth=2)

    def shown(self, first: int, stop: int) -> Iterator[tuple[int, Places, Places]]:
        """Yields this process's pairs of some steps in order: epoch, row indices, repeat number in the epoch.

        A step's pairs come in one part, or in several where an epoch ends within the step.
        """
        size = self.batch // self.processes.count
        rows, known = self.rows, -1
        for step in range(first, stop):
            start = step * self.batch + self.processes.rank * size
            for epoch, low, high in positions(rows.epoch_size, start, start + size):
                if epoch != known:
                    order = epoch_order(rows.high, rows.low, rows.times, seed=self.seed, epoch=epoch)
                    known = epoch
                yield epoch, order[0][low:high], order[1][low:high]

    def _assembled(self, first: int, stop: int, threads: ThreadPoolExecutor) -> Iterator[Batch]:
        import torch

        size = self.batch // self.processes.count
        cache = _ImageCache(self.cache)
        pending: deque[Future[tuple[Pixels, list[str], list[bool], Places]]] = deque()
        groups = self._groups(first, stop)
        for _ in range(first, stop):
            parts = []
            count = 0
            while count < size:
                # Keep two batches, or enough for all threads, in progress.
                for group in itertools.islice(groups, max(2 * size // _GROUP, 2 * self.threads) - len(pending)):
                    pending.append(threads.submit(self._decoded, cache, *group))
                parts.append(pending.popleft().result())
                count += len(parts[-1][1])
            yield Batch(
                places=np.concatenate([part[3] for part in parts]),
                pixels=torch.from_numpy(np.concatenate([part[0] for part in parts])),
                captions=[text for part in parts for text in part[1]],
                usable=torch.tensor([good for part in parts for good in part[2]]),
            )

    def _groups(self, first: int, stop: int) -> Iterator[tuple[int, Places, Places, list[KeptSample]]]:
        """Yields pairs as read, a few at a time: epoch, row indices, repeats, pairs. No group spans two steps."""
        for epoch, shown in itertools.groupby(self.shown(first, stop), key=lambda part: part[0]):
            parts = list(shown)
            # One reader for the whole epoch: it can read ahead across steps.
            pairs = _samples(self.run, self.pool, self.rows.rows[np.concatenate([places for _, places, _ in parts])])
            for _, places, showing in parts:
                for start in range(0, places.size, _GROUP):
                    some = places[start : start + _GROUP]
                    yield epoch, some, showing[start : start + _GROUP], list(itertools.islice(pairs, some.size))

    def _decoded(
        self, cache: _ImageCache, epoch: int, places: Places, showing: Places, pairs: Sequence[KeptSample]
    ) -> tuple[Pixels, list[str], list[bool], Places]:
        out = np.zeros((places.size, self.side, self.side, 3), np.uint8)
        images: list[Pixels | None] = []
        for place, pair in zip(places.tolist(), pairs, strict=True):
            try:
                data = pair.image if pair.caption is not None else None
                images.append(None if data is None else cache.get(place, data, self.pool.spec))
            except SampleError:
                images.append(None)
        sizes = np.array([(1, 1) if one is None else (one.shape[1], one.shape[0]) for one in images], np.int64)
        windows = crop_windows(
            self.rows.high[places], self.rows.low[places], sizes.reshape(-1, 2),
            seed=self.seed, epoch=epoch, showing=showing, smallest=self.smallest,
        )  # fmt: skip
        for number, (image, (left, top, right, bottom)) in enumerate(zip(images, windows.tolist(), strict=True)):
            if image is not None:
                crop = Image.fromarray(np.ascontiguousarray(image[top:bottom, left:right]))
                out[number] = np.asarray(crop.resize((self.side, self.side), self.resample))
        return out, [pair.caption or "" for pair in pairs], [one is not None for one in images], places


def _samples(run: Run, pool: Pool, rows: NDArray[np.int64]) -> Iterator[KeptSample]:
    """Yields the pairs of a run's rows, in their order, repeats included; without an image where there is none."""
    for sample in samples_of(run, pool, order=rows, fields=("key", "caption", "image"), errors="mark"):
        if sample.problem is not None and sample.problem.kind in ("absent", "unread", "changed"):
            raise RunError(
                f"the sample {sample.key!r} of the shard {sample.shard!r} cannot be read again: "
                f"{sample.problem.reason}; restore it and repeat the command"
            )
        yield sample
