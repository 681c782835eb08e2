"""The page of a pool that is being measured: its first pairs, then its run, opened again as shards are finished."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from tamis.core.errors import RunError
from tamis.core.types import Sample
from tamis.pools import Pool
from tamis.pools.images import fill_pixels, hide_warnings
from tamis.reports.explore.image_cache import SMALL, NoImage
from tamis.reports.explore.pages import Pages
from tamis.reports.explore.queries import CAPTION, Explorer
from tamis.reports.page_pairs import encode
from tamis.runs import Run

log = logging.getLogger(__name__)

#: Pairs that are shown before the first shard is finished, and shards that are tried for them.
FIRST, _TRIED = 48, 4

#: Versions of the run that stay open: pages that are used do not change until their user says so.
_OPEN = 4


class GrowingPages:
    """Answers for a page by the version of the run that it shows; "" is a page without one, which has first pairs.

    A version is a `Pages` of the shards that were `ready` when it was opened, and never changes. Rows have other
    numbers in the next one. `answers` are those about the measuring.
    """

    def __init__(
        self,
        ready: Callable[[], Collection[str]],
        open_pages: Callable[[Collection[str]], Pages],
        answers: Mapping[str, Callable[[Mapping[str, Any]], Any]],
    ) -> None:
        self._ready, self._open_pages = ready, open_pages
        self._versions: OrderedDict[str, Pages] = OrderedDict()  # the newest last; named by their number of shards
        self._guard = threading.Lock()
        self._first: list[tuple[dict[str, Any], bytes]] = []
        self.answers = {**answers, "first": lambda asked: [card for card, _ in self._first], "refresh": self._refresh}

    @property
    def rows(self) -> int:
        """How many first pairs there are so far."""
        return len(self._first)

    @property
    def explorer(self) -> Explorer:
        """The newest version's."""
        return self._newest().explorer

    def at(self, version: str) -> GrowingPages | Pages:
        """Returns what answers a page that shows a version; LookupError if it is no longer open."""
        if version and version not in self._versions:
            raise LookupError("this page is older than what the server still has open: reload it")
        return self._versions[version] if version else self

    def close(self) -> None:
        """Stops reading images ahead."""
        for pages in self._versions.values():
            pages.close()

    def image(self, kind: str, row: int) -> bytes:
        """Returns the image of a first pair."""
        if not self._first[row][1]:
            raise NoImage("no image")
        return self._first[row][1]

    def add_image(self, data: bytes) -> dict[str, Any]:
        raise RunError("there are no pairs to search yet")

    def read_first(self, pool: Pool, shards: Iterable[str]) -> None:
        """Reads the first pairs of one of some shards, in the order in which they are measured."""
        by_name = {shard.name: shard for shard in pool.shards}
        for name in islice(shards, _TRIED):
            try:
                with hide_warnings(pool.spec.max_pixels):
                    for sample in islice(by_name[name].samples(), FIRST):
                        self._first.append(_first_pair(self.rows, sample, pool))
            except Exception as error:  # whatever it is, the shard's worker reports it
                log.debug("the first pairs of %s cannot be read: %s", name, error)
            if self._first:
                return

    def _newest(self) -> Pages:
        """Returns the newest version; opens one if more shards are finished."""
        with self._guard:
            ready = self._ready()
            name = str(len(ready))
            if name not in self._versions:
                pages = self._open_pages(ready)
                pages.answers = {**pages.answers, **self.answers}
                self._versions[name] = pages
                while len(self._versions) > _OPEN:
                    self._versions.popitem(last=False)[1].close()
            return self._versions[name]

    def _refresh(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the newest version, and the numbers that some `rows` of the version `since` have in it."""
        before, after = self._versions.get(str(asked.get("since", ""))), self._newest().explorer.run
        rows = [] if before is None else [moved(before.explorer.run, after, int(row)) for row in asked.get("rows", ())]
        return {"version": str(len(after.shards)), "rows": rows}


def moved(before: Run, after: Run, row: int) -> int | None:
    """Returns a row's number in a run that has been opened again with more shards; None if it is not there."""
    for shard, span in before.row_ranges.items():
        if span.start <= row < span.stop and shard in after.row_ranges:
            return int(after.row_ranges[shard].start + row - span.start)
    return None


def _first_pair(number: int, sample: Sample, pool: Pool) -> tuple[dict[str, Any], bytes]:
    """Returns a pair's card, and its image as a file (empty without one)."""
    fill_pixels(sample, max_pixels=pool.spec.max_pixels, transparency=pool.spec.transparency)
    text = sample.shown_caption
    card = {"row": number, "caption": (text or "")[:CAPTION], "no_caption": text is None, "status": sample.status}
    return card, b"" if sample.pixels is None else encode(sample.pixels, *SMALL)[0]
