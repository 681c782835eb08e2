"""Draws the batches of a training: orders the pairs, crops the images, decodes them ahead of the network.

Order, crops and held-out pairs are functions of seed, epoch and uid; a subset may bring its own order. So a training
that resumes, or runs on another number of machines, sees the same pairs in the same order, cropped the same way.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image

from tamis.core.arrays import U64, Pixels
from tamis.core.errors import RunError, SampleError
from tamis.core.ids import uniforms
from tamis.core.math.sampling import shuffled_copies
from tamis.core.processes import in_order, prefetch_items
from tamis.pools.images import decode
from tamis.runs.run import Run
from tamis.runs.stream import KeptSample, samples_of
from tamis.runs.subset import OtherCaptions
from tamis.train.loop import ALONE, ProcessGroup

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Indices = NDArray[np.int64]

_GROUP = 16  # pairs that one thread decodes at once

# Each use has its own counter, so that no two share random numbers.
_CROP, _HELD_OUT = 2, 3  # 1 is the order's

_TRIES = 10
_NARROWEST, _WIDEST = 3 / 4, 4 / 3  # aspect ratios of a crop


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """The pairs of a run to train on, and how often each is in an epoch."""

    rows: NDArray[np.int64]  # (n,) row numbers in the run, ascending
    times: NDArray[np.int64]  # (n,) at least 1
    high: U64  # (n,) upper halves of the uids
    low: U64  # (n,) lower halves
    others: OtherCaptions = OtherCaptions()  # texts that some pairs carry instead of their alt-texts
    order: NDArray[np.int64] | None = None  # (sum of times,) indices of the pairs in every epoch; None: shuffled

    @property
    def epoch_size(self) -> int:
        """Pairs in an epoch, copies counted."""
        return int(self.times.sum())

    @property
    def digest(self) -> str:
        """A hash of the pairs, how often and in which order each is seen, and of the texts that they carry."""
        found = xxhash.xxh3_128()
        for part in (self.high, self.low, self.times, *([] if self.order is None else [self.order])):
            found.update(np.ascontiguousarray(part).tobytes())
        found.update(self.others.digest)
        return found.hexdigest()

    def only(self, some: NDArray[np.bool_]) -> TrainingRows:
        """Returns the pairs for which `some` is true."""
        here = {name: getattr(self, name)[some] for name in ("rows", "times", "high", "low")}
        order = self.order
        return replace(self, **here, order=None if order is None else (np.cumsum(some) - 1)[order[some[order]]])

    def epoch(self, seed: int, epoch: int) -> tuple[Indices, Indices]:
        """Returns the indices of an epoch's pairs in their order, and the number of each copy, from 0."""
        if self.order is None:
            return shuffled_copies(self.high, self.low, self.times, seed=seed, epoch=epoch)
        copies, firsts = np.empty_like(self.order), np.cumsum(self.times) - self.times
        copies[np.argsort(self.order, kind="stable")] = np.arange(self.order.size) - np.repeat(firsts, self.times)
        return self.order, copies


@dataclass(frozen=True, kw_only=True)
class Batch:
    """This process's share of a batch."""

    indices: Indices  # (b,) into the `TrainingRows`
    pixels: torch.Tensor  # (b, side, side, 3) uint8; black without an image
    captions: Sequence[str]  # b texts, "" without a caption
    usable: torch.Tensor  # (b,) bool: has an image and a caption

    def readable(self) -> Batch:
        """The usable pairs of this batch."""
        return Batch(
            indices=self.indices[self.usable.numpy()],
            pixels=self.pixels[self.usable],
            captions=list(itertools.compress(self.captions, self.usable)),
            usable=self.usable[self.usable],
        )


class _Cache:
    """Decoded images in memory, as many as fit, with their captions: these are read and decoded once, not every epoch.

    At full size, since each epoch crops them differently.
    """

    def __init__(self, room: int) -> None:
        self.pairs: dict[int, tuple[Pixels, str]] = {}
        self._room = room  # bytes
        self._lock = threading.Lock()

    def add(self, index: int, pixels: Pixels, caption: str) -> None:
        with self._lock:
            if pixels.nbytes <= self._room and index not in self.pairs:
                self._room -= pixels.nbytes
                self.pairs[index] = pixels, caption


class _Group(NamedTuple):
    """A few pairs of one batch, not yet decoded."""

    epoch: int
    indices: Indices
    copies: Indices  # 0 for the first copy of a pair in the epoch, 1 for the second, ...
    pairs: Sequence[KeptSample | None]  # None: it is in the cache


@dataclass(frozen=True, kw_only=True)
class Batches:
    """All batches of a training, starting at any step; they depend on these settings only.

    Epochs follow each other without a gap, and a batch may span two of them. So every epoch shows every pair exactly as
    often as its multiplicity says.
    """

    run: Run
    rows: TrainingRows
    batch: int  # pairs in a batch, over all processes
    side: int  # image side in pixels
    smallest: float  # smallest share of an image that a random crop keeps
    resample: Image.Resampling = Image.Resampling.BICUBIC
    seed: int = 0  # decides order and crops
    processes: ProcessGroup = ALONE  # each process takes a contiguous share of every batch
    threads: int = 2  # for decoding
    cache: int = 1 << 30  # bytes of decoded images to keep: images of small pools are decoded once

    def __call__(self, first: int, stop: int, prepare: Callable[[Batch], T]) -> Generator[T, None, None]:
        """Yields this process's share of the batches first to stop - 1, prepared. Reads two batches ahead."""
        with ThreadPoolExecutor(self.threads) as threads:
            yield from prefetch_items(lambda: map(prepare, self._assembled(first, stop, threads)), depth=2)

    def shown(self, first: int, stop: int) -> Iterator[tuple[int, Indices, Indices]]:
        """Yields (epoch, indices into the rows, copies) for this process, once per step, twice if an epoch ends."""
        size = self.batch // self.processes.count
        rows, ordered = self.rows, -1
        for step in range(first, stop):
            start = step * self.batch + self.processes.rank * size
            for epoch, low, high in positions(rows.epoch_size, start, start + size):
                if epoch != ordered:
                    order = rows.epoch(self.seed, epoch)
                    ordered = epoch
                yield epoch, order[0][low:high], order[1][low:high]

    def _assembled(self, first: int, stop: int, threads: ThreadPoolExecutor) -> Iterator[Batch]:
        import torch

        size = self.batch // self.processes.count
        cache = _Cache(self.cache)
        most = max(2 * size // _GROUP, 2 * self.threads)  # two batches, or enough for all threads
        groups = self._groups(first, stop, cache)
        decoded = in_order(lambda group: threads.submit(self._decoded, cache, group), groups, most)
        for _ in range(first, stop):
            parts: list[Batch] = []
            while sum(len(part.captions) for part in parts) < size:
                parts.append(next(decoded))
            yield Batch(
                indices=np.concatenate([part.indices for part in parts]),
                pixels=torch.cat([part.pixels for part in parts]),
                captions=[text for part in parts for text in part.captions],
                usable=torch.cat([part.usable for part in parts]),
            )

    def _groups(self, first: int, stop: int, cache: _Cache) -> Iterator[_Group]:
        """Yields pairs as read, a few at a time. No group spans two steps."""
        for epoch, shown in itertools.groupby(self.shown(first, stop), key=lambda part: part[0]):
            parts = list(shown)
            # One reader for the whole epoch: it can read ahead across steps.
            every = np.concatenate([indices for _, indices, _ in parts])
            cached = np.isin(every, list(cache.pairs))
            read = self._samples(self.rows.rows[every[~cached]])
            pairs = (None if known else next(read) for known in cached.tolist())
            for _, indices, copies in parts:
                for start in range(0, indices.size, _GROUP):
                    some = slice(start, start + _GROUP)
                    here = indices[some]
                    yield _Group(epoch, here, copies[some], list(itertools.islice(pairs, here.size)))

    def _samples(self, rows: Indices) -> Iterator[KeptSample]:
        """Yields the pairs of the run's rows in their order, copies included; without an image where there is none."""
        for sample in samples_of(self.run, order=rows, fields=("key", "caption", "image"), errors="mark"):
            if sample.problem is not None and sample.problem.kind in ("absent", "unread", "changed"):
                raise RunError(f"{sample.key!r} of the shard {sample.shard!r} cannot be read: {sample.problem.reason}")
            text = self.rows.others.of(sample.row)
            yield sample if text is None else replace(sample, caption=text)

    def _decoded(self, cache: _Cache, part: _Group) -> Batch:
        import torch

        out = np.zeros((part.indices.size, self.side, self.side, 3), np.uint8)
        found = [self._pair(cache, *one) for one in zip(part.indices.tolist(), part.pairs, strict=True)]
        images = [image for image, _ in found]
        sizes = np.array([(1, 1) if one is None else (one.shape[1], one.shape[0]) for one in images], np.int64)
        windows = crop_windows(
            self.rows.high[part.indices], self.rows.low[part.indices], sizes.reshape(-1, 2),
            seed=self.seed, epoch=part.epoch, copies=part.copies, smallest=self.smallest,
        )  # fmt: skip
        for number, (image, (left, top, right, bottom)) in enumerate(zip(images, windows.tolist(), strict=True)):
            if image is not None:
                crop = Image.fromarray(np.ascontiguousarray(image[top:bottom, left:right]))
                out[number] = np.asarray(crop.resize((self.side, self.side), self.resample))
        return Batch(
            indices=part.indices,
            pixels=torch.from_numpy(out),
            captions=[caption for _, caption in found],
            usable=torch.tensor([one is not None for one in images]),
        )

    def _pair(self, cache: _Cache, index: int, pair: KeptSample | None) -> tuple[Pixels | None, str]:
        if pair is None or index in cache.pairs:  # or another copy of it was decoded meanwhile
            return cache.pairs[index]
        if pair.image is None or pair.caption is None:
            return None, pair.caption or ""
        spec = self.run.pool.spec
        how = partial(decode, max_pixels=spec.max_pixels, transparency=spec.transparency)
        try:
            pixels = how(pair.image, orientation=pair.orientation)
        except SampleError:
            return None, pair.caption
        cache.add(index, pixels, pair.caption)
        return pixels, pair.caption


def split(rows: TrainingRows, share: float) -> tuple[TrainingRows, TrainingRows | None]:
    """Splits off about this share of the pairs, chosen by uid alone; None instead of them if the share is 0."""
    if not share:
        return rows, None
    aside = uniforms(rows.high, rows.low, seed=0, counters=[np.full(rows.high.size, _HELD_OUT)]) < share
    if min(aside.sum(), (~aside).sum()) < 2:
        raise RunError(f"--hold-out {share:g} leaves {int((~aside).sum())} to train on, {int(aside.sum())} to measure")
    held = rows.only(aside)
    return rows.only(~aside), replace(held, times=np.ones_like(held.times), order=None)


def positions(epoch_size: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Splits the positions start to stop of an endless training by epoch: yields (epoch, first, end) within it."""
    while start < stop:
        epoch, first = divmod(start, epoch_size)
        last = min(epoch_size, first + stop - start)
        yield epoch, first, last
        start += last - first


def crop_windows(
    high: U64, low: U64, sizes: Indices, *, seed: int, epoch: int, copies: Indices, smallest: float
) -> Indices:
    """Draws random resized crops, (n, 4): left, top, right, bottom in pixels.

    A window has between `smallest` and all of the image's area, and an aspect ratio between 3:4 and 4:3 (uniform in its
    logarithm). If none of ten draws fits, it is the largest centred window with a ratio within these bounds.

    Args:
        high, low: (n,) halves of the uids.
        sizes: (n, 2) widths and heights in pixels.
        seed, epoch: decide the random numbers, together with uid and copy.
        copies: (n,) number of the copy of the pair in this epoch, from 0.
        smallest: smallest share of the area, in (0, 1].

    Source: Szegedy et al. 2015, "Going deeper with convolutions", section 6; torchvision's RandomResizedCrop;
    open_clip's `scale=(0.9, 1.0)`.
    """
    n = high.size
    tries = np.tile(np.arange(_TRIES), n)
    uids = np.repeat(high, _TRIES), np.repeat(low, _TRIES)
    same = [np.full(tries.size, _CROP), np.full(tries.size, epoch), np.repeat(copies, _TRIES)]

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
    # If none fits: the centre, as large as the bounds of the ratio allow.
    none = ~fits.any(1)
    inside = np.clip(size[:, 0] / size[:, 1], _NARROWEST, _WIDEST)
    centre_across = np.minimum(size[:, 0], np.maximum(1, np.rint(size[:, 1] * inside)))
    centre_down = np.minimum(size[:, 1], np.maximum(1, np.rint(size[:, 0] / inside)))
    across, down = np.where(none, centre_across, across), np.where(none, centre_down, down)
    left = np.where(none, (size[:, 0] - across) // 2, left)
    top = np.where(none, (size[:, 1] - down) // 2, top)
    return np.stack([left, top, left + across, top + down], axis=1).astype(np.int64)
