"""Batches of a training: which pairs, cut how, decoded ahead of the network."""

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
from tamis.prefetch import prefetched
from tamis.store.run import Run
from tamis.store.stream import KeptSample, samples_of
from tamis.train.drawing import Places, crop_windows, epoch_order, positions
from tamis.train.processes import ALONE, Processes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_GROUP = 16  # pairs that one thread decodes in one go


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """The pairs of a run that are trained on, and how often each is in an epoch.

    Attributes:
        rows: (n,) numbers of rows of the run, ascending.
        times: (n,) at least 1.
        high, low: (n,) halves of their uids.
    """

    rows: NDArray[np.int64]
    times: NDArray[np.int64]
    high: U64
    low: U64

    @property
    def epoch_size(self) -> int:
        """Pairs in an epoch, repeats counted."""
        return int(self.times.sum())


@dataclass(frozen=True, kw_only=True)
class Batch:
    """This process's part of a batch.

    Attributes:
        places: (b,) which of the `TrainingRows`.
        pixels: (b, side, side, 3) uint8; black where there is no picture.
        captions: b texts, "" where there is none.
        usable: (b,) bool: image and caption are there.
    """

    places: Places
    pixels: torch.Tensor
    captions: Sequence[str]
    usable: torch.Tensor

    def readable(self) -> Batch:
        """Returns the usable pairs of this batch alone."""
        return Batch(
            places=self.places[self.usable.numpy()],
            pixels=self.pixels[self.usable],
            captions=list(itertools.compress(self.captions, self.usable)),
            usable=self.usable[self.usable],
        )


@dataclass
class _Decoded:
    """Pictures kept in memory, as many as there is room for: small pools are decoded once, not in every epoch."""

    room: int
    pictures: dict[int, Pixels] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, place: int, data: bytes, spec: PoolSpec) -> Pixels:
        found = self.pictures.get(place)
        if found is not None:
            return found
        found = decode(data, max_pixels=spec.max_pixels, transparency=spec.transparency)
        with self.lock:
            if found.nbytes <= self.room and place not in self.pictures:
                self.room -= found.nbytes
                self.pictures[place] = found
        return found


@dataclass(frozen=True, kw_only=True)
class Batches:
    """All batches of a training, from any step on: a function of the settings alone.

    The training is one endless row of epochs, cut into batches without regard to where an epoch ends; so every pair
    is shown exactly as often as its multiplicity says in every epoch, and none is left out at an end.

    Attributes:
        run, pool, rows: what is trained on.
        batch: pairs in a batch, of all processes together.
        side: of the pictures, in pixels.
        smallest: share of a picture that a random crop keeps at least.
        resample: how pictures are resized.
        seed: of order and crops.
        processes: who shares a batch: each takes a run of neighbours of it.
        threads: that decode.
        cache: bytes of decoded pictures that are kept.
    """

    run: Run
    pool: Pool
    rows: TrainingRows
    batch: int
    side: int
    smallest: float
    resample: Image.Resampling = Image.Resampling.BICUBIC
    seed: int = 0
    processes: Processes = ALONE
    threads: int = 2
    cache: int = 1 << 30

    def __call__(self, first: int, stop: int, prepare: Callable[[Batch], T]) -> Generator[T, None, None]:
        """Yields this process's part of the batches number first to stop - 1, prepared, some ahead."""
        with ThreadPoolExecutor(self.threads) as threads:
            yield from prefetched(lambda: map(prepare, self._assembled(first, stop, threads)), depth=2)

    def shown(self, first: int, stop: int) -> Iterator[tuple[int, Places, Places]]:
        """Yields this process's pairs of some steps in order: epoch, places in the rows, and showings in the epoch.

        A step's pairs come in one piece, or in several where an epoch ends in its middle.
        """
        mine = self.batch // self.processes.count
        known: dict[int, tuple[Places, Places]] = {}
        for step in range(first, stop):
            start = step * self.batch + self.processes.rank * mine
            for epoch, low, high in positions(self.rows.epoch_size, start, start + mine):
                if epoch not in known:
                    rows = self.rows
                    known = {epoch: epoch_order(rows.high, rows.low, rows.times, seed=self.seed, epoch=epoch)}
                places, showing = known[epoch]
                yield epoch, places[low:high], showing[low:high]

    def _assembled(self, first: int, stop: int, threads: ThreadPoolExecutor) -> Iterator[Batch]:
        import torch

        mine = self.batch // self.processes.count
        decoded = _Decoded(self.cache)
        pending: deque[Future[tuple[Pixels, list[str], list[bool], Places]]] = deque()
        groups = self._groups(first, stop)
        for _ in range(first, stop):
            parts = []
            count = 0
            while count < mine:
                # Two batches, or what the threads can hold, are under way.
                while len(pending) < max(2 * mine // _GROUP, 2 * self.threads):
                    group = next(groups, None)
                    if group is None:
                        break
                    pending.append(threads.submit(self._decoded, decoded, *group))
                parts.append(pending.popleft().result())
                count += len(parts[-1][1])
            yield Batch(
                places=np.concatenate([part[3] for part in parts]),
                pixels=torch.from_numpy(np.concatenate([part[0] for part in parts])),
                captions=[text for part in parts for text in part[1]],
                usable=torch.tensor([good for part in parts for good in part[2]]),
            )

    def _groups(self, first: int, stop: int) -> Iterator[tuple[int, Places, Places, list[KeptSample]]]:
        """Yields pairs as they were read, a few at a time: epoch, places, showings, pairs. No group spans two steps."""
        plan, rows = itertools.tee(self.shown(first, stop))
        # One reader for the whole of an epoch: it can read ahead across steps.
        for epoch, pieces in itertools.groupby(rows, key=lambda piece: piece[0]):
            order = np.concatenate([places for _, places, _ in pieces])
            pairs = _samples(self.run, self.pool, self.rows.rows[order])
            left = order.size
            while left:
                _, places, showing = next(plan)
                left -= places.size
                for start in range(0, places.size, _GROUP):
                    some = places[start : start + _GROUP]
                    yield epoch, some, showing[start : start + _GROUP], list(itertools.islice(pairs, some.size))

    def _decoded(
        self, decoded: _Decoded, epoch: int, places: Places, showing: Places, pairs: Sequence[KeptSample]
    ) -> tuple[Pixels, list[str], list[bool], Places]:
        out = np.zeros((places.size, self.side, self.side, 3), np.uint8)
        pictures: list[Pixels | None] = []
        for place, pair in zip(places.tolist(), pairs, strict=True):
            try:
                data = pair.image if pair.caption is not None else None
                pictures.append(decoded.get(place, data, self.pool.spec) if data is not None else None)
            except SampleError:
                pictures.append(None)
        sizes = np.array([(1, 1) if one is None else (one.shape[1], one.shape[0]) for one in pictures], np.int64)
        windows = crop_windows(
            self.rows.high[places], self.rows.low[places], sizes.reshape(-1, 2),
            seed=self.seed, epoch=epoch, showing=showing, smallest=self.smallest,
        )  # fmt: skip
        for number, (picture, window) in enumerate(zip(pictures, windows.tolist(), strict=True)):
            if picture is not None:
                out[number] = cropped(picture, window, self.side, self.resample)
        return out, [pair.caption or "" for pair in pairs], [one is not None for one in pictures], places


def _samples(run: Run, pool: Pool, rows: NDArray[np.int64]) -> Iterator[KeptSample]:
    """Yields the pairs of a run's rows, in their order, repeats included; without an image where there is none.

    Raises:
        RunError: a shard is gone, has changed, or cannot be read.
    """
    for sample in samples_of(run, pool, order=rows, fields=("key", "caption", "image"), errors="mark"):
        if sample.problem is not None and sample.problem.kind in ("absent", "unread", "changed"):  # else its own fault
            raise RunError(
                f"the sample {sample.key!r} of the shard {sample.shard!r} cannot be read again: "
                f"{sample.problem.reason}; mend it and repeat the command"
            )
        yield sample


def cropped(picture: Pixels, window: Sequence[int], side: int, resample: Image.Resampling) -> Pixels:
    """Returns (side, side, 3): the window (left, top, right, bottom) of a picture, resized."""
    left, top, right, bottom = window
    inside = Image.fromarray(np.ascontiguousarray(picture[top:bottom, left:right]))
    return np.asarray(inside.resize((side, side), resample))
