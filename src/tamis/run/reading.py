"""Batches of a shard's samples, read and decoded by threads a few batches ahead of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tamis.data import Sample
from tamis.errors import ShardError
from tamis.pool import PoolSpec, Shard
from tamis.pool.images import fill_pixels, undisturbed, weighed
from tamis.pool.source import Absence
from tamis.prefetch import prefetched
from tamis.store import parts
from tamis.store.unfinished import Unfinished
from tamis.uid import image_hash

#: In a shard of fewer samples it is possible that none has a caption.
_ENOUGH_TO_JUDGE = 20

_AHEAD = 2  # batches that wait for the model
_TOGETHER = 8  # images decoded at once, or two per thread
_TOGETHER_BYTES = 128 << 20  # and their size, read and decoded; a larger image is decoded alone
_BATCH_BYTES = 256 << 20  # images of a batch, read and decoded; larger images make smaller batches
_HELD_BYTES = 384 << 20  # images of all batches that wait, and of the one in use
_CAPTIONS = 1024  # samples of a batch without images: captions are short, and sorting them by length pays

T = TypeVar("T")


@dataclass(kw_only=True)
class ShardReader:
    """Reads one shard, from its file or from its index.

    Attributes:
        shard, spec: what is read, and how.
        index: the shard's index part, which need not exist.
        batch_size: samples per batch.
        has_images: whether the pool has any.
        decoders: threads that decode. With one, the reading thread decodes: a handover would cost more than it gives.
        required: what at least one sample must have, "image" and "caption".
        skip: rows that an earlier process has finished: they are neither decoded nor yielded. None for nothing.
        ending: why the file could not be read to its end; None so far.
    """

    shard: Shard
    spec: PoolSpec
    index: Path
    batch_size: int
    has_images: bool
    decoders: int = 4
    required: Sequence[str] = ()
    skip: Unfinished | None = None
    ending: ShardError | None = field(default=None, init=False)

    def from_file(self, *, decodes: bool, keeps_pixels: bool = True) -> Iterator[list[Sample]]:
        """Yields batches of samples; an error that ends the file early goes to `ending`.

        Args:
            decodes: whether images are decoded.
            keeps_pixels: False if only their sizes and errors matter.
        """
        decodes = decodes and self.has_images
        size = self.batch_size if decodes else max(_CAPTIONS, self.batch_size)
        limits = {"size": _TOGETHER_BYTES, "max_pixels": self.spec.max_pixels}
        with ExitStack() as stack:
            threads = None
            if decodes and self.decoders > 1:
                threads = stack.enter_context(ThreadPoolExecutor(self.decoders, "tamis-decode"))
            batch: list[Sample] = []
            held = 0
            for group, weight in weighed(self._until_error(), max(_TOGETHER, 2 * self.decoders), **limits):
                if batch and held + weight > _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
                if decodes:
                    self._decode(group, threads, keeps_pixels)
                batch += group
                held += weigh(group)
                while len(batch) >= size:
                    yield batch[:size]
                    batch = batch[size:]
                    held = weigh(batch)
                if held >= _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
            if batch:
                yield batch

    def _decode(self, samples: list[Sample], threads: ThreadPoolExecutor | None, keeps_pixels: bool) -> None:
        def fill(some: list[Sample]) -> None:
            for sample in some:
                fill_pixels(
                    sample,
                    max_pixels=self.spec.max_pixels,
                    transparency=self.spec.transparency,
                    keeps_pixels=keeps_pixels,
                )

        with undisturbed(self.spec.max_pixels):
            if threads is None or len(samples) == 1:
                fill(samples)
            else:
                count = min(self.decoders, len(samples))
                list(threads.map(fill, [samples[first::count] for first in range(count)]))

    def as_indexed(self, *, decodes: bool) -> Iterator[list[Sample]]:
        """Yields batches from the file, checked against the index so that no score lands in a wrong row.

        Raises:
            ShardError: the file now has other, fewer or more samples, or cannot be read as far as before.
        """
        names = ["uid_hi", "uid_lo", "key", "image_bytes", "image_xxh3", "caption"]
        rows = parts.read_columns(self.index, names).to_pylist()
        start = self._done
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
        """Yields batches of samples with everything but the image."""
        samples = self._skipping(parts.read_samples(self.index, self.spec.fields))
        while batch := list(islice(samples, max(_CAPTIONS, self.batch_size))):
            yield batch

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
            name = next(name for name in now if now[name] != was[name])
            new, old = (repr(str(row[name])[:60]) for row in (now, was))
            raise self._changed(f"another {name} in row {number:,} ({new}, was {old})")

    def _changed(self, how: str) -> ShardError:
        return ShardError(
            f"the shard {self.shard.name} now has {how}: the file has changed. Put the old one back, or "
            f"delete {self.index} to index and score it again"
        )

    def _until_error(self) -> Iterator[Sample]:
        absence = Absence(self.required)
        try:
            yield from self._skipping(absence.through(self.shard.samples()))
            if absence.reasons and absence.rows >= _ENOUGH_TO_JUDGE:
                raise ShardError(f"{self.shard.url}: {absence}")
        except ShardError as error:
            self.ending = error

    @property
    def _done(self) -> int:
        return 0 if self.skip is None else len(self.skip.uids)

    def _skipping(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        done = self._done  # it grows while the shard is read
        for number, sample in enumerate(samples):
            if number >= done:
                yield sample
            elif self.skip is not None:
                self.skip.check(number, sample)


def ahead(batches: Iterator[list[Sample]], prepare: Callable[[list[Sample]], T]) -> Iterator[tuple[T, list[Sample]]]:
    """Yields prepared batches with their samples. A thread makes them a few ahead; its errors are raised here."""
    return prefetched(
        lambda: ((prepare(batch), batch) for batch in batches),
        depth=_AHEAD,
        weigh=lambda made: weigh(made[1]),
        most=_HELD_BYTES,
    )


def weigh(samples: list[Sample]) -> int:
    """Returns the size of the samples' images in bytes, as read and as decoded."""
    read = sum(len(sample.image) for sample in samples if sample.image is not None)
    return read + sum(sample.pixels.nbytes for sample in samples if sample.pixels is not None)
