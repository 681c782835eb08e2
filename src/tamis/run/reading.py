"""Batches of a shard's samples, read and decoded in threads beside the model, a few batches ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from tamis.data import Sample
from tamis.errors import ShardError
from tamis.pool import PoolSpec, Shard
from tamis.pool.images import fill_pixels, undisturbed, weighed
from tamis.pool.source import Absence
from tamis.prefetch import prefetched
from tamis.store import parts
from tamis.store.unfinished import Unfinished
from tamis.uid import image_hash

#: A shard of fewer samples may well have no caption at all.
_ENOUGH_TO_JUDGE = 20

_AHEAD = 2  # batches that wait for the model
_TOGETHER = 8  # images decoded at once, or two per thread
_TOGETHER_BYTES = 128 << 20  # and what they take, read and decoded; a larger one is decoded alone
_BATCH_BYTES = 256 << 20  # images of a batch, read and decoded; larger ones make smaller batches
_HELD_BYTES = 384 << 20  # images of the batches that wait for the model, and of the one it is at
_CAPTIONS = 1024  # samples of a batch without images: captions are short, and sorting them by length pays

T = TypeVar("T")


class _Decoders:
    """Threads that decode images; with one, whoever asks does it: handing over to a thread costs more than it gives."""

    def __init__(self, spec: PoolSpec, threads: int, keeps_pixels: bool) -> None:
        self.spec, self.threads, self.keeps_pixels = spec, threads, keeps_pixels
        self._pool = ThreadPoolExecutor(threads, "tamis-decode") if threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def decode(self, samples: list[Sample]) -> None:
        """Decodes the images of samples into them."""
        with undisturbed(self.spec.max_pixels):
            if self._pool is None or len(samples) == 1:
                self._fill(samples)
                return
            shares = [samples[first :: self.threads] for first in range(min(self.threads, len(samples)))]
            list(self._pool.map(self._fill, shares))

    def _fill(self, samples: list[Sample]) -> None:
        spec = self.spec
        for sample in samples:
            fill_pixels(
                sample,
                max_pixels=spec.max_pixels,
                transparency=spec.transparency,
                keeps_pixels=self.keeps_pixels,
            )


@dataclass(kw_only=True)
class ShardReader:
    """Reads one shard, from its file or from its index.

    Attributes:
        shard, spec: what is read, and how.
        index: the shard's index part, there or not.
        batch_size: samples per batch.
        has_images: whether the pool has any.
        decoders: threads that decode.
        needed: what some sample must have, "image" and "caption".
        skip: what an earlier process has done of the rows, which are not decoded nor given; None for nothing.
        ending: why the file could not be read to its end; None where it could, or before.
    """

    shard: Shard
    spec: PoolSpec
    index: Path
    batch_size: int
    has_images: bool
    decoders: int = 4
    needed: Sequence[str] = ()
    skip: Unfinished | None = None
    ending: ShardError | None = field(default=None, init=False)

    def from_file(self, *, decodes: bool, keeps_pixels: bool = True) -> Iterator[list[Sample]]:
        """Yields batches of samples; what ends the file early is left in `ending`.

        Args:
            decodes: whether images are decoded.
            keeps_pixels: False where that is to know only whether they can be, and how large they are.
        """
        decodes = decodes and self.has_images
        size = self.batch_size if decodes else max(_CAPTIONS, self.batch_size)
        with _Decoders(self.spec, self.decoders, keeps_pixels) as decoders:
            batch: list[Sample] = []
            held = 0
            limits = {"size": _TOGETHER_BYTES, "max_pixels": self.spec.max_pixels}
            for some, weight in weighed(self._until_error(), max(_TOGETHER, 2 * self.decoders), **limits):
                if batch and held + weight > _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
                if decodes:
                    decoders.decode(some)
                batch += some
                held += weigh(some)
                while len(batch) >= size:
                    yield batch[:size]
                    batch = batch[size:]
                    held = weigh(batch)
                if held >= _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
            if batch:
                yield batch

    def as_indexed(self, *, decodes: bool) -> Iterator[list[Sample]]:
        """Yields batches as long as they are the samples of the index: else scores would stand in wrong rows.

        Raises:
            ShardError: the file holds other samples now, fewer or more; or it cannot be read as far as it was.
        """
        names = ["uid_hi", "uid_lo", "key", "image_bytes", "image_xxh3", "caption"]
        rows = parts.read_columns(self.index, names).to_pylist()
        start = len(self.skip.uids) if self.skip is not None else 0
        for batch in self.from_file(decodes=decodes):
            for number, sample in enumerate(batch, start):
                if number >= len(rows):
                    raise self._changed(f"more samples than its index, {len(rows):,}")
                self._compare(number, sample, rows[number])
            start += len(batch)
            yield batch
        if start < len(rows) and self.ending is not None:
            raise self.ending
        if start != len(rows):
            raise self._changed(f"{start:,} samples, its index {len(rows):,}")

    def from_index(self) -> Iterator[list[Sample]]:
        """Yields batches of samples as the index knows them: everything but the image."""
        samples = parts.read_samples(self.index, self.spec.fields)
        yield from _chunks(self._left(samples), max(_CAPTIONS, self.batch_size))

    def _compare(self, number: int, sample: Sample, was: dict[str, Any]) -> None:
        now = {
            "key": sample.key,
            "caption": sample.shown_caption,
            "image_bytes": sample.image_bytes,
            "image_xxh3": was["image_xxh3"] if sample.image is None else image_hash(sample.image),
            "uid_hi": sample.uid[0],
            "uid_lo": sample.uid[1],
        }
        if now != was:
            what = next(name for name in now if now[name] != was[name])
            now_shown, was_shown = (repr(str(one[what])[:60]) for one in (now, was))
            raise self._changed(f"another {what} in row {number:,} ({now_shown}, was {was_shown})")

    def _changed(self, how: str) -> ShardError:
        return ShardError(
            f"the shard {self.shard.name} now has {how}: the file has changed. Put the old one back, or "
            f"delete {self.index} to index and score it anew"
        )

    def _until_error(self) -> Iterator[Sample]:
        absence = Absence(self.needed)
        try:
            yield from self._left(absence.through(self.shard.samples()))
            if absence.reasons and absence.rows >= _ENOUGH_TO_JUDGE:
                raise ShardError(f"{self.shard.url}: {absence}")
        except ShardError as error:
            self.ending = error

    def _left(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        done = len(self.skip.uids) if self.skip is not None else 0
        for number, sample in enumerate(samples):
            if number >= done:
                yield sample
            elif self.skip is not None:
                self.skip.check(number, sample)


def ahead(batches: Iterator[list[Sample]], prepare: Callable[[list[Sample]], T]) -> Iterator[tuple[T, list[Sample]]]:
    """Yields prepared batches, made a few ahead in a thread of their own; its errors are raised here."""
    return prefetched(
        lambda: ((prepare(batch), batch) for batch in batches),
        depth=_AHEAD,
        weigh=lambda made: weigh(made[1]),
        most=_HELD_BYTES,
    )


def weigh(samples: list[Sample]) -> int:
    """Returns the bytes that the images of samples take, as they were read and decoded."""
    read = sum(len(sample.image) for sample in samples if sample.image is not None)
    return read + sum(sample.pixels.nbytes for sample in samples if sample.pixels is not None)


def _chunks(samples: Iterator[Sample], size: int) -> Iterator[list[Sample]]:
    chunk: list[Sample] = []
    for sample in samples:
        chunk.append(sample)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
