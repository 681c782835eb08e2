"""Images of pairs, read from the pool by byte range, with a cache of small ones; and with their text painted over."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError, TamisError
from tamis.pools.source import SampleFault
from tamis.reports.page_pairs import NO_IMAGE, Painter, encode, no_images
from tamis.reports.sections.text import painter
from tamis.runs.run import Run
from tamis.runs.stream import KeptSample, samples_of

#: (longer side in pixels, encoding quality) of images in the grid, and in a pair's panel.
SMALL, LARGE = (288, 76), (1400, 88)

#: Number of small images in the cache, about 10 kB each.
KEPT = 8_000

#: Threads that prefetch pages of the grid, and pages that may wait for them.
_READERS, _WAITING = 2, 4

#: Problems that may be temporary (a disk, a network): such an image is tried again.
_PASSING = ("absent", "unread", "cut")


class NoImage(Exception):
    """A pair's image cannot be shown; the message says why. `passing`: a later try may succeed."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class Images:
    """Small and large images of a run's rows, with a cache of the `most` recently used small ones.

    Images are encoded again, so no metadata of the original file is sent.
    """

    def __init__(self, run: Run, *, most: int = KEPT) -> None:
        self._run, self._no_images, self._most = run, no_images(run), most
        self._kept: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._guard = threading.Lock()
        self._pages: deque[Sequence[int]] = deque(maxlen=_WAITING)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read-ahead")
        self._closed = False

    def read_soon(self, rows: Sequence[int]) -> None:
        """Prefetches the images of a page in another thread: the newest page first; the oldest are dropped."""
        with self._guard:
            if not self._closed:
                self._pages.append(rows)
                # If the page was dropped, IndexError ends up in a future that is not looked at.
                self._readers.submit(lambda: self.read_ahead(self._pages.pop()))

    def close(self) -> None:
        """Stops prefetching and drops queued pages."""
        with self._guard:
            self._closed = True
        self._pages.clear()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def small(self, row: int) -> bytes:
        """Returns the encoded small image of a row, or raises `NoImage`; waits if another thread is reading it."""
        return self.read_ahead([row])[row].result()

    def read_ahead(self, rows: Sequence[int]) -> dict[int, Future[bytes]]:
        """Reads small images in one pass over their shards, and returns their futures.

        Does not wait for images that another thread is reading.
        """
        with self._guard:
            wanted: dict[int, Future[bytes]] = {row: Future() for row in rows if row not in self._kept}
            self._kept.update(wanted)
            for row in rows:
                self._kept.move_to_end(row)
            found = {row: self._kept[row] for row in rows}
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        problem = NoImage("the image could not be read", passing=True)
        try:
            for sample in self._samples(wanted, threads=2) if wanted else ():
                if self._closed:
                    break
                if sample.pixels is None:
                    wanted[sample.row].set_exception(_no_image(sample.problem))
                else:
                    wanted[sample.row].set_result(encode(sample.pixels, *SMALL)[0])
        except NoImage as error:
            problem = error
        except (TamisError, OSError) as error:
            problem = NoImage(str(error), passing=True)
        finally:  # every future gets a result, so that no request waits forever
            for row, future in wanted.items():
                if not future.done():
                    future.set_exception(problem)
                failed = future.exception()
                with self._guard:
                    if isinstance(failed, NoImage) and failed.passing and self._kept.get(row) is future:
                        del self._kept[row]
        return found

    def _samples(self, rows: Collection[int], threads: int) -> Iterator[KeptSample]:
        if self._no_images:
            raise NoImage(self._no_images)
        order = sorted(rows)
        return samples_of(self._run, order=order, fields={"pixels"}, errors="mark", threads=threads)

    def pixels(self, row: int) -> Pixels:
        """Returns the image of a row, or raises `NoImage`."""
        (sample,) = self._samples([row], threads=1)
        if sample.pixels is None:
            raise _no_image(sample.problem)
        return sample.pixels


def _no_image(problem: SampleFault | None) -> NoImage:
    kind = problem.kind if problem is not None else "cut"
    return NoImage(NO_IMAGE.get(kind, "no image"), passing=kind in _PASSING)


class TextPainter:
    """Paints over the text of images as the run's T-MARS did. `problem`: why that is not possible, or ""."""

    def __init__(self, run: Run) -> None:
        self._group = next((group for group in run.scores.values() if group.facts["name"] == "tmars"), None)
        self.problem = "" if self._group else "the run has no T-MARS scores"
        self._paint: Painter | None = None
        self._guard = threading.Lock()

    def paint(self, image: Pixels) -> tuple[Pixels, Pixels]:
        """Returns an image with its text outlined, and with its text painted over; ModelError if that fails."""
        if self._group is None:
            raise ModelError(self.problem)
        try:
            with self._guard:  # the page asks for both images at once, and detectors process one at a time
                self._paint = self._paint or painter(self._group)
                return self._paint(image)
        except Exception as error:  # a model may raise anything
            raise ModelError(f"the text could not be painted over: {error}") from error
