"""The tags of a run as the explorer changes them: see `tamis.runs.tags` for what is on disk."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RecipeError, RunError
from tamis.core.files.checked import LABEL
from tamis.core.math.statistics import share_interval
from tamis.core.version import __version__
from tamis.recipes.steps.steps import clean_tag
from tamis.reports.explore.cached_run import CachedRun
from tamis.runs import manifest, parts, tags
from tamis.runs.claims import claim_to_write, lock_run
from tamis.runs.reasons import blocks
from tamis.runs.tags import BAD, GOOD, SEPARATOR, TAGS, tags_in

#: Maximum number of rows in all changes that can be undone: 16 bytes each.
_UNDONE = 1 << 24

Codes = NDArray[np.int32]


class Tags:
    """The tags of a run: read once, written to the shards' files on each change; `version` counts changes.

    A row's code is the place of its tags, sorted and joined, in `_sets`, so changes of many rows are array operations.
    Several explorers may tag one run: a shard's tags are read again before they change. Tags belong to row numbers, so
    a change fails if the shard's rows have changed.
    """

    def __init__(self, run: CachedRun) -> None:
        self._run = run
        group = run.scores.get(LABEL)
        if group is not None and group.folder.name != tags.FOLDER:
            raise RunError(f"{run.path} has another score that is called {LABEL!r}, so pairs cannot be tagged")
        self._sets, self._codes_of = [""], {"": 0}
        self._codes: Codes = np.zeros(len(run), np.int32)
        self.version = 0
        self._lock = threading.Lock()
        self.changes: list[tuple[Rows, Codes, Codes]] = []  # made here, for `undo`: rows, codes before and after
        for shard, span in run.row_ranges.items():
            if group is not None and shard in group.shards:
                self._codes[span] = self._read(shard)

    def _path(self, shard: str) -> Path:
        return self._run.path / "scores" / tags.FOLDER / f"{shard}.parquet"

    def _code(self, tags: Iterable[str]) -> int:
        joined = SEPARATOR.join(sorted(set(tags)))
        if joined not in self._codes_of:
            self._codes_of[joined] = len(self._sets)
            self._sets.append(joined)
        return self._codes_of[joined]

    def _read(self, shard: str) -> Codes:
        part = parts.read_columns(self._path(shard), None, self._run.owner(shard))
        words = part.column(TAGS).cast(pa.string()).fill_null("").combine_chunks().dictionary_encode()
        codes = [self._code(tags_in(text)) for text in words.dictionary.to_pylist()]
        return np.asarray(np.array([*codes, 0], np.int32)[words.indices.to_numpy()])

    def of(self, row: int) -> list[str]:
        return tags_in(self._sets[self._codes[row]])

    def having(self, tag: str = "") -> Mask:
        """Returns the rows that have a tag ("": any tag)."""
        codes = self._codes.copy()  # first: another thread may add sets
        return np.asarray(np.array([tag in tags_in(text) if tag else bool(text) for text in self._sets])[codes])

    def counts(self, among: Mask | None = None) -> dict[str, int]:
        """Returns the number of rows with each tag, in a mask or in all; the most frequent tag first."""
        found: Counter[str] = Counter()
        sets = self._sets.copy()  # first: another thread may add some
        rows = np.zeros(len(sets), np.int64)
        for span in blocks(self._codes.size) if len(sets) > 1 else ():
            codes = self._codes[span] if among is None else self._codes[span][among[span]]
            rows += np.bincount(codes, minlength=rows.size)[: rows.size]
        for text, number in zip(sets, rows.tolist(), strict=True):
            found.update(dict.fromkeys(tags_in(text), number) if number else {})
        return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))

    def change(self, rows: Rows, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Rows:
        """Adds tags to rows and removes others; returns the rows that changed. `good` replaces `bad`, and vice versa.

        RunError: another command is writing, the run is gone or has other rows, or the disk is full. Shards that were
        written before it keep the change, which `undo` takes back.
        """
        more = {clean_tag(tag) for tag in add}
        if {GOOD, BAD} <= more:
            raise RecipeError("a pair is good or bad, not both")
        less = {clean_tag(tag) for tag in remove} | ({GOOD, BAD} if more & {GOOD, BAD} else set())

        def changed(span: slice, before: Codes) -> Codes:
            sets, inverse = np.unique(before, return_inverse=True)
            after = [self._code({*tags_in(self._sets[code])} - less | more) for code in sets]
            return np.array(after, np.int32)[inverse]

        with self._lock:
            written = self._write(np.unique(rows), changed, self.changes)
            while len(self.changes) > 1 and sum(change[0].size for change in self.changes) > _UNDONE:
                del self.changes[0]
        return written

    def undo(self) -> Rows:
        """Undoes the last change made here, and returns its rows. Pairs that others tagged since then stay."""
        with self._lock:
            if not self.changes:
                raise RecipeError("there is nothing to undo: no tag was changed since the page was opened")
            rows, old, new = self.changes[-1]

            self._write(rows, lambda span, now: np.where(now == new[span], old[span], now), [])
            self.changes.pop()
        return rows

    def _write(
        self, rows: Rows, change: Callable[[slice, Codes], Codes], undo: list[tuple[Rows, Codes, Codes]]
    ) -> Rows:
        """Changes the codes of ascending rows, shard by shard; `undo` gets those that changed, before and after."""
        run, done = self._run, [(np.zeros(0, np.int64), *np.zeros((2, 0), np.int32))]
        if not (run.path / "run.json").is_file():  # else we would create a folder where the run was
            raise RunError(f"{run.path} is gone: open the run again where it is now")
        try:
            with lock_run(run.path, doing="writes tags"):
                facts = {**tags.FACTS, "label": LABEL, "tamis": __version__, "columns": list(map(asdict, tags.COLUMNS))}
                if LABEL not in run.scores:  # first: after a crash, the tags so far are found
                    manifest.describe(run.path, {f"scores/{tags.FOLDER}": facts})
                for shard, span in run.row_ranges.items():
                    here, path = slice(*np.searchsorted(rows, [span.start, span.stop])), self._path(shard)
                    if here.start == here.stop and path.is_file():
                        continue  # a column needs a part for every shard
                    with claim_to_write(run, shard):
                        codes = self._read(shard) if path.is_file() else self._codes[span].copy()
                        inside = rows[here] - span.start
                        before = codes[inside]
                        codes[inside] = change(here, before)
                        halves = parts.uids_of(run.index(shard, ["uid_hi", "uid_lo"]))
                        tags.write(path, self._sets, codes, halves, tags.absent_of(path))
                    changed = codes[inside] != before
                    done.append((rows[here][changed], before[changed], codes[inside][changed]))
                    self._codes[span] = codes
        finally:
            self.version += 1
            run.forget(tags.FOLDER)
            written, old, new = (np.concatenate(each) for each in zip(*done, strict=True))
            if written.size:
                undo.append((written, old, new))
        return written


def kept_shares(tags: Tags, keep: Mask) -> dict[str, Any]:
    """Returns how many of the good and of the bad pairs a subset keeps, their share, and its 95 % interval."""
    kept, pool = tags.counts(keep), tags.counts()
    hits = {kind: kept.get(kind, 0) for kind in (GOOD, BAD) if kind in pool}
    return {kind: {"kept": hits[kind], **asdict(share_interval(hits[kind], pool[kind]))} for kind in hits}
