"""Batches of a training: which pairs in which order, how they are cropped; decoded ahead of the network.

Order, crops and held-out pairs are functions of seed, epoch and uid. So a training that resumes, or runs on another
number of machines, sees the same pairs in the same order, cropped the same way.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.arrays import U64, Pixels
from tamis.errors import RunError, SampleError
from tamis.ids import uniforms
from tamis.pool import Pool
from tamis.pool.images import decode
from tamis.processes import prefetched
from tamis.store.run import Run
from tamis.store.stream import KeptSample, samples_of
from tamis.train.loop import ALONE, Processes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Places = NDArray[np.int64]

_GROUP = 16  # pairs that one thread decodes at once

# Each use has its own counter, so that no two share random numbers.
_ORDER, _CROP, _HELD_OUT = 1, 2, 3

_TRIES = 10
_NARROWEST, _WIDEST = 3 / 4, 4 / 3  # aspect ratios of a crop


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


class _Cache:
    """Decoded images in memory, as many as fit: images of small pools are decoded once, not in every epoch."""

    def __init__(self, room: int) -> None:
        self.images: dict[int, Pixels] = {}
        self._room = room  # bytes
        self._lock = threading.Lock()

    def add(self, place: int, pixels: Pixels) -> None:
        with self._lock:
            if pixels.nbytes <= self._room and place not in self.images:
                self._room -= pixels.nbytes
                self.images[place] = pixels


class _Part(NamedTuple):
    """Some pairs of one batch, before they are decoded."""

    epoch: int
    places: Places
    repeats: Places  # the number of each pair's repetition in the epoch
    pairs: Sequence[KeptSample]


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
    cache: int = 1 << 30  # bytes of decoded images to keep: images of small pools are decoded once

    def __call__(self, first: int, stop: int, prepare: Callable[[Batch], T]) -> Generator[T, None, None]:
        """Yields this process's part of the batches number first to stop - 1, prepared, some ahead."""
        with ThreadPoolExecutor(self.threads) as threads:
            yield from prefetched(lambda: map(prepare, self._assembled(first, stop, threads)), depth=2)

    def shown(self, first: int, stop: int) -> Iterator[tuple[int, Places, Places]]:
        """Yields this process's pairs of some steps in order: epoch, row indices, repeat number in the epoch.

        A step's pairs come in one part, or in several where an epoch ends within the step.
        """
        size = self.batch // self.processes.count
        rows, ordered = self.rows, -1
        for step in range(first, stop):
            start = step * self.batch + self.processes.rank * size
            for epoch, low, high in positions(rows.epoch_size, start, start + size):
                if epoch != ordered:
                    order = epoch_order(rows.high, rows.low, rows.times, seed=self.seed, epoch=epoch)
                    ordered = epoch
                yield epoch, order[0][low:high], order[1][low:high]

    def _assembled(self, first: int, stop: int, threads: ThreadPoolExecutor) -> Iterator[Batch]:
        import torch

        size = self.batch // self.processes.count
        cache = _Cache(self.cache)
        pending: deque[Future[Batch]] = deque()
        groups = self._groups(first, stop)
        for _ in range(first, stop):
            parts: list[Batch] = []
            while sum(len(part.captions) for part in parts) < size:
                # Keep two batches, or enough for all threads, in progress.
                for group in itertools.islice(groups, max(2 * size // _GROUP, 2 * self.threads) - len(pending)):
                    pending.append(threads.submit(self._decoded, cache, group))
                parts.append(pending.popleft().result())
            yield Batch(
                places=np.concatenate([part.places for part in parts]),
                pixels=torch.cat([part.pixels for part in parts]),
                captions=[text for part in parts for text in part.captions],
                usable=torch.cat([part.usable for part in parts]),
            )

    def _groups(self, first: int, stop: int) -> Iterator[_Part]:
        """Yields pairs as read, a few at a time. No group spans two steps."""
        for epoch, shown in itertools.groupby(self.shown(first, stop), key=lambda part: part[0]):
            parts = list(shown)
            # One reader for the whole epoch: it can read ahead across steps.
            pairs = self._samples(self.rows.rows[np.concatenate([places for _, places, _ in parts])])
            for _, places, repeats in parts:
                for start in range(0, places.size, _GROUP):
                    some = slice(start, start + _GROUP)
                    here = places[some]
                    yield _Part(epoch, here, repeats[some], list(itertools.islice(pairs, here.size)))

    def _samples(self, rows: Places) -> Iterator[KeptSample]:
        """Yields the pairs of the run's rows in their order, repeats included; without an image where there is none."""
        for sample in samples_of(self.run, self.pool, order=rows, fields=("key", "caption", "image"), errors="mark"):
            if sample.problem is not None and sample.problem.kind in ("absent", "unread", "changed"):
                raise RunError(
                    f"the sample {sample.key!r} of the shard {sample.shard!r} cannot be read again: "
                    f"{sample.problem.reason}; restore it and repeat the command"
                )
            yield sample

    def _decoded(self, cache: _Cache, part: _Part) -> Batch:
        import torch

        out = np.zeros((part.places.size, self.side, self.side, 3), np.uint8)
        images = [self._pixels(cache, *one) for one in zip(part.places.tolist(), part.pairs, strict=True)]
        sizes = np.array([(1, 1) if one is None else (one.shape[1], one.shape[0]) for one in images], np.int64)
        windows = crop_windows(
            self.rows.high[part.places], self.rows.low[part.places], sizes.reshape(-1, 2),
            seed=self.seed, epoch=part.epoch, repeats=part.repeats, smallest=self.smallest,
        )  # fmt: skip
        for number, (image, (left, top, right, bottom)) in enumerate(zip(images, windows.tolist(), strict=True)):
            if image is not None:
                crop = Image.fromarray(np.ascontiguousarray(image[top:bottom, left:right]))
                out[number] = np.asarray(crop.resize((self.side, self.side), self.resample))
        return Batch(
            places=part.places,
            pixels=torch.from_numpy(out),
            captions=[pair.caption or "" for pair in part.pairs],
            usable=torch.tensor([one is not None for one in images]),
        )

    def _pixels(self, cache: _Cache, place: int, pair: KeptSample) -> Pixels | None:
        if pair.image is None or pair.caption is None:
            return None
        pixels = cache.images.get(place)
        if pixels is None:
            spec = self.pool.spec
            try:
                pixels = decode(pair.image, max_pixels=spec.max_pixels, transparency=spec.transparency)
            except SampleError:
                return None
            cache.add(place, pixels)
        return pixels


def epoch_order(high: U64, low: U64, times: Places, *, seed: int, epoch: int) -> tuple[Places, Places]:
    """The places of an epoch's pairs in order, each repeated `times`, and the number of each repetition.

    Cost: 0.3 s and 50 MB for a million.
    """
    places = np.repeat(np.arange(times.size, dtype=np.int64), times)
    repeats = np.arange(places.size, dtype=np.int64) - np.repeat(np.cumsum(times) - times, times)
    counters = [np.full(places.size, _ORDER), np.full(places.size, epoch), repeats]
    order = np.argsort(uniforms(high[places], low[places], seed=seed, counters=counters), kind="stable")
    return places[order], repeats[order]


def split(rows: TrainingRows, share: float) -> tuple[TrainingRows, TrainingRows | None]:
    """The pairs to train on, and about this share held out, chosen by their uids alone; None for a share of 0."""
    if not share:
        return rows, None
    aside = uniforms(rows.high, rows.low, seed=0, counters=[np.full(rows.high.size, _HELD_OUT)]) < share
    if min(aside.sum(), (~aside).sum()) < 2:
        raise RunError(
            f"holding out {share:g} of {aside.size} pairs leaves {int((~aside).sum())} to train on and "
            f"{int(aside.sum())} to measure: both need two or more; take another share (--hold-out)"
        )
    held = rows.only(aside)
    return rows.only(~aside), replace(held, times=np.ones_like(held.times))


def positions(epoch_size: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Cuts the positions start to stop of an endless training into epochs: epoch, first, last + 1 in it."""
    while start < stop:
        epoch, first = divmod(start, epoch_size)
        last = min(epoch_size, first + stop - start)
        yield epoch, first, last
        start += last - first


def crop_windows(
    high: U64, low: U64, sizes: Places, *, seed: int, epoch: int, repeats: Places, smallest: float
) -> Places:
    """The windows of random resized crops, (n, 4): left, top, right, bottom in pixels.

    A window has between `smallest` and all of the image's area, and an aspect ratio between 3:4 and 4:3 (uniform in its
    logarithm). If none of ten draws fits, it is the largest centred window with a ratio within these bounds.

    Args:
        high, low: (n,) halves of the uids.
        sizes: (n, 2) widths and heights in pixels.
        seed, epoch: of the random numbers.
        repeats: (n,) number of each pair's repetition in this epoch.
        smallest: share of the area, in (0, 1].

    Source: Szegedy et al. 2015, "Going deeper with convolutions", section 6, as torchvision's RandomResizedCrop does
    it; open_clip's `scale=(0.9, 1.0)`.
    """
    n = high.size
    tries = np.tile(np.arange(_TRIES), n)
    uids = np.repeat(high, _TRIES), np.repeat(low, _TRIES)
    same = [np.full(tries.size, _CROP), np.full(tries.size, epoch), np.repeat(repeats, _TRIES)]

    def draw(what: int) -> NDArray[np.float64]:
        """(n, tries)."""
        return uniforms(*uids, seed=seed, counters=[*same, tries * 4 + what]).reshape(n, _TRIES)

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
