"""Pictures of pairs, read from the pool by byte range, small ones kept for a while."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from PIL import Image, features

from tamis.arrays import Pixels
from tamis.errors import TamisError
from tamis.pool import Pool
from tamis.pool.source import Problem
from tamis.reporting.pairs import NO_IMAGE as NO_PICTURE
from tamis.store.run import Run
from tamis.store.stream import samples_of

#: Longer sides of a picture in the grid and in a pair's panel, in pixels.
SMALL, LARGE = 288, 1400

#: Bytes of small pictures that are kept.
CACHE = 96 << 20

_QUALITY = {SMALL: 76, LARGE: 88}

#: What a browser is told the pictures are.
KIND = "webp" if features.check("webp") else "jpeg"


#: Pages of a grid that are read at once, and that wait for it.
_READERS, _WAITING = 2, 4

#: Kinds of problems that may pass: a disk or a network that comes back. They are tried again when next asked for.
_PASSING = ("absent", "unread", "cut")


class NoPicture(Exception):
    """There is no picture of a pair; the message says why.

    Args:
        message: why.
        passing: whether that may pass, since it says nothing of the picture itself.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class Pictures:
    """Makes pictures of rows. Each is encoded anew: nothing of the file itself, its metadata included, is sent.

    Args:
        run: whose rows.
        pool: where their images are; None where they cannot be had.
        cache: bytes of small pictures that are kept, those that were asked for last.
    """

    def __init__(self, run: Run, pool: Pool | None, *, cache: int = CACHE) -> None:
        self._run, self._pool, self._room = run, pool, cache
        self._kept: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._weight = 0
        self._guard = threading.Lock()
        self._ahead: deque[Sequence[int]] = deque(maxlen=_WAITING)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read-ahead")
        self._closed = False

    def read_soon(self, rows: Sequence[int]) -> None:
        """Has the small pictures of a page's rows read by another thread, those of the newest page first.

        Whoever drags through a long list asks for hundreds of pages: where too many wait, the oldest are dropped, since
        nobody looks at them any more. A picture of theirs that is asked for all the same is read then.
        """
        with self._guard:
            if not self._closed:
                self._ahead.append(rows)
                self._readers.submit(self._read_newest)

    def _read_newest(self) -> None:
        try:
            rows = self._ahead.pop()
        except IndexError:  # it was dropped
            return
        self.read_ahead(rows)

    def close(self) -> None:
        """Reads nothing ahead any more: what waits is dropped, and what is being read ends with the next picture."""
        with self._guard:
            self._closed = True
        self._ahead.clear()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def small(self, row: int) -> bytes:
        """Returns the encoded small picture of a row; one that another thread is reading is waited for.

        Raises:
            NoPicture: there is none.
        """
        return self.read_ahead([row])[row].result()

    def read_ahead(self, rows: Sequence[int]) -> dict[int, Future[bytes]]:
        """Reads the small pictures of rows, all in one pass over their shards; returns what will hold them.

        Those that another thread is reading are not waited for. What could not be read and may be read later, since
        nothing is wrong with the picture, is forgotten.
        """
        with self._guard:
            wanted = [row for row in dict.fromkeys(rows) if row not in self._kept]
            waiting: dict[int, Future[bytes]] = {row: Future() for row in wanted}
            self._kept.update(waiting)
            for row in rows:
                self._kept.move_to_end(row)
            found = {row: self._kept[row] for row in rows}
        if not wanted:
            return found
        try:
            if self._pool is None or not self._pool.has_images:
                raise NoPicture(NO_PICTURE["absent"] if self._pool is None else "the pool is metadata only")
            for sample in samples_of(
                self._run, self._pool, order=sorted(wanted), fields={"pixels"}, errors="mark", threads=2
            ):
                if self._closed:
                    break
                future = waiting[sample.row]
                if sample.pixels is None:
                    future.set_exception(_absence(sample.problem))
                else:
                    self._weigh(future, encoded(sample.pixels, SMALL))
        except (NoPicture, TamisError, OSError) as error:
            problem = error if isinstance(error, NoPicture) else NoPicture(str(error), passing=True)
            for future in waiting.values():
                if not future.done():
                    future.set_exception(problem)
        finally:
            for future in waiting.values():  # whatever happened, nobody waits for ever
                if not future.done():
                    future.set_exception(NoPicture("the picture could not be read", passing=True))
            self._forget(waiting)
        return found

    def _forget(self, read: Mapping[int, Future[bytes]]) -> None:
        with self._guard:
            for row, future in read.items():
                problem = future.exception()
                if isinstance(problem, NoPicture) and problem.passing and self._kept.get(row) is future:
                    del self._kept[row]

    def _weigh(self, future: Future[bytes], data: bytes) -> None:
        future.set_result(data)
        with self._guard:
            self._weight += len(data)
            while self._weight > self._room and self._kept:
                row, oldest = next(iter(self._kept.items()))
                if not oldest.done():
                    self._kept.move_to_end(row)
                    break
                del self._kept[row]
                if oldest.exception() is None:
                    self._weight -= len(oldest.result())

    def pixels(self, row: int) -> Pixels:
        """Returns the image of a row.

        Raises:
            NoPicture: there is none.
        """
        if self._pool is None or not self._pool.has_images:
            raise NoPicture(NO_PICTURE["absent"] if self._pool is None else "the pool is metadata only")
        for sample in samples_of(self._run, self._pool, order=[row], fields={"pixels"}, errors="mark", threads=1):
            if sample.pixels is not None:
                return sample.pixels
            raise _absence(sample.problem)
        raise NoPicture("no picture")

    def large(self, row: int) -> bytes:
        """Returns the encoded picture of a row, at most `LARGE` pixels on its longer side."""
        return encoded(self.pixels(row), LARGE)


def _absence(problem: Problem | None) -> NoPicture:
    kind = problem.kind if problem is not None else "cut"
    return NoPicture(NO_PICTURE.get(kind, "no picture"), passing=kind in _PASSING)


def encoded(pixels: Pixels, side: int) -> bytes:
    """Returns an image as a file of `KIND`, at most so many pixels on its longer side."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, KIND.upper(), quality=_QUALITY.get(side, 80))
    return out.getvalue()
