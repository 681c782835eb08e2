"""Tags that people give to pairs, stored as columns of the run: `tags` (words) and `label` (1 for good, 0 for bad)."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis import __version__
from tamis.arrays import Float64s, Mask, Rows
from tamis.data import Column
from tamis.errors import RecipeError, RunError
from tamis.explore.columns import HeldRun
from tamis.ids import fingerprint
from tamis.math.statistics import share_interval
from tamis.selectors.tagged import BAD, GOOD, SEPARATOR, TAGS, checked_tag, tags_in
from tamis.store import manifest, parts
from tamis.store.claims import check_same_rows, held, locked

#: What recipes call the column of good and bad.
LABEL = "label"

COLUMNS = (
    Column(name=LABEL, unit="1 good, 0 bad", better="high", about="what a person said of the pair"),
    Column(name=TAGS, unit="", better="neither", kind="word", about="the pair's tags, joined by commas"),
)

#: Of the scores' folder: as before there were tags, so that a run that was labelled then is read and extended.
_FACTS: dict[str, Any] = {"name": LABEL, "version": 1, "settings": {}}

#: Maximum number of rows in all changes that can be undone: 12 bytes each.
_UNDONE = 1 << 24

Codes = NDArray[np.int32]


class Tags:
    """The tags of a run: read once, written to the shards' files on each change; `version` counts changes.

    A row's code is the place of its tags, sorted and joined, in `_sets`, so changes of many rows are array operations.
    Several explorers may tag one run: a shard's tags are read again before they change. Tags belong to row numbers, so
    a change fails if the shard's rows have changed.
    """

    def __init__(self, run: HeldRun) -> None:
        self._run = run
        self._folder = f"{LABEL}-{fingerprint(_FACTS)}"
        group = run.scores.get(LABEL)
        if group is not None and group.folder.name != self._folder:
            raise RunError(f"{run.path} has another score that is called {LABEL!r}, so pairs cannot be tagged")
        self._sets, self._codes_of = [""], {"": 0}
        self._codes: Codes = np.zeros(len(run), np.int32)
        self._only_labelled: set[str] = set()  # shards whose files have no column of tags yet
        self.version = 0
        self._lock = threading.Lock()
        self._undo: list[tuple[Rows, Codes]] = []  # rows changed here, with their codes before
        for shard, place in run.row_ranges.items():
            if group is not None and shard in group.shards:
                self._codes[place] = self._read(shard)

    def _path(self, shard: str) -> Path:
        return self._run.path / "scores" / self._folder / f"{shard}.parquet"

    def _code(self, tags: Iterable[str]) -> int:
        joined = SEPARATOR.join(sorted(set(tags)))
        if joined not in self._codes_of:
            self._codes_of[joined] = len(self._sets)
            self._sets.append(joined)
        return self._codes_of[joined]

    def _read(self, shard: str) -> Codes:
        part = parts.read_columns(self._path(shard), None, self._run.owner(shard))
        if TAGS not in part.column_names:
            self._only_labelled.add(shard)
            labels = parts.numbers(part.column(LABEL))
            found = np.select([labels == 1, labels == 0], [self._code([GOOD]), self._code([BAD])], 0)
            return np.asarray(found, np.int32)
        words = part.column(TAGS).cast(pa.string()).fill_null("").combine_chunks().dictionary_encode()
        codes = [self._code(tags_in(text)) for text in words.dictionary.to_pylist()]
        return np.asarray(np.array([*codes, 0], np.int32)[words.indices.to_numpy()])

    def _each(self, codes: Codes, value: Callable[[list[str]], Any]) -> NDArray[Any]:
        """Returns a value of the tags that each code stands for."""
        codes = codes.copy()  # first: another thread may add codes
        return np.asarray(np.array([value(tags_in(text)) for text in self._sets])[codes])

    def of(self, row: int) -> list[str]:
        return tags_in(self._sets[self._codes[row]])

    def having(self, tag: str = "") -> Mask:
        """Returns the rows that have a tag; "": any tag."""
        return self._each(self._codes, (lambda tags: tag in tags) if tag else bool)

    def labels(self) -> Float64s:
        """Returns the column `label`: 1 for good, 0 for bad, else NaN."""
        return self._each(self._codes, _label)

    def counts(self, among: Mask | None = None) -> dict[str, int]:
        """Returns the number of rows with each tag, in a mask or in all; the most frequent tag first."""
        found: Counter[str] = Counter()
        rows = np.bincount(self._codes if among is None else self._codes[among])
        for text, number in zip(self._sets, rows.tolist(), strict=False):
            found.update(dict.fromkeys(tags_in(text), number) if number else {})
        return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))

    def change(self, rows: Rows, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Rows:
        """Adds tags to rows and removes others; returns the rows that changed. `good` replaces `bad`, and vice versa.

        RunError: another command is writing, the run is gone or has other rows, or the disk is full. Shards that were
        written before it keep the change, which `undo` takes back.
        """
        more = {checked_tag(tag) for tag in add}
        if {GOOD, BAD} <= more:
            raise RecipeError("a pair is good or bad, not both")
        less = {*remove, *((GOOD, BAD) if more & {GOOD, BAD} else ())}

        def changed(place: slice, before: Codes) -> Codes:
            sets, inverse = np.unique(before, return_inverse=True)
            after = [self._code({*tags_in(self._sets[code])} - less | more) for code in sets]
            return np.array(after, np.int32)[inverse]

        with self._lock:
            written = self._write(np.unique(rows), changed, self._undo)
            while len(self._undo) > 1 and sum(one.size for one, _ in self._undo) > _UNDONE:
                del self._undo[0]
        return written

    @property
    def last(self) -> Rows | None:
        """The rows that `undo` changes next; None if nothing was changed here."""
        return self._undo[-1][0] if self._undo else None

    def undo(self) -> Rows:
        """Undoes the last change made here, and returns its rows."""
        with self._lock:
            if not self._undo:
                raise RecipeError("there is nothing to undo: no tag was changed since the page was opened")
            rows, before = self._undo[-1]
            self._write(rows, lambda place, _: before[place], [])
            self._undo.pop()
        return rows

    def _write(self, rows: Rows, change: Callable[[slice, Codes], Codes], undo: list[tuple[Rows, Codes]]) -> Rows:
        """Changes the codes of ascending rows, shard by shard; `undo` gets the rows that changed, as they were."""
        run, done = self._run, [(np.zeros(0, np.int64), np.zeros(0, np.int32))]
        if not (run.path / "run.json").is_file():  # else we would create a folder where the run was
            raise RunError(f"{run.path} is gone: open the run again where it is now")
        ends = {shard: np.searchsorted(rows, [place.start, place.stop]) for shard, place in run.row_ranges.items()}
        try:
            with locked(run.path, doing="writes tags"):
                # A column needs a part for every shard.
                missing = {shard for shard in run.shards if not self._path(shard).is_file()} | self._only_labelled
                touched = {shard for shard, (first, last) in ends.items() if first < last}
                check_same_rows(run, missing | touched)
                if not (run.path / "scores" / self._folder / "signal.json").is_file():
                    self._describe()
                for shard in sorted(missing | touched):
                    place, (first, last) = run.row_ranges[shard], ends[shard]
                    with held(run, shard) as uids:
                        there = self._path(shard).is_file()
                        codes = self._read(shard) if there else self._codes[place].copy()
                        inside = rows[first:last] - place.start
                        before = codes[inside]
                        codes[inside] = change(slice(first, last), before) if first < last else before
                        changed = codes[inside] != before
                        if changed.any() or shard in missing:
                            self._save(shard, codes, uids)
                            done.append((rows[first:last][changed], before[changed]))
                    self._codes[place] = codes
                if self._only_labelled:
                    self._describe()
                    self._only_labelled.clear()
        finally:
            self.version += 1
            run.forget(self._folder)
            written, before = (np.concatenate(each) for each in zip(*done, strict=True))
            if written.size:
                undo.append((written, before))
        return written

    def _describe(self) -> None:
        columns = [dataclasses.asdict(column) for column in COLUMNS]
        facts = {**_FACTS, "label": LABEL, "tamis": __version__, "columns": columns}
        manifest.describe(self._run.path, {f"scores/{self._folder}": facts})

    def _save(self, shard: str, codes: Codes, uids: str) -> None:
        label = self._each(codes, _label)
        words = np.array([text or None for text in self._sets], object)[codes]
        reasons = np.array([None, "not labelled"], object)[np.isnan(label).astype(np.int8)]
        parts.write_scores(self._path(shard), COLUMNS, {LABEL: label, TAGS: words}, reasons, uids=uids)


def _label(tags: list[str]) -> float:
    return 1.0 if GOOD in tags else 0.0 if BAD in tags else np.nan


def kept_shares(tags: Tags, keep: Mask) -> dict[str, Any]:
    """Returns the share of the good and of the bad pairs that a subset keeps, with its 95 % interval."""
    kept, pool, found = tags.counts(keep), tags.counts(), {}
    for kind in (GOOD, BAD):
        hits, n = kept.get(kind, 0), pool.get(kind, 0)
        estimate = share_interval(hits, n) if n else None
        interval = estimate and [estimate.value, estimate.low, estimate.high]
        found[kind] = {"kept": hits, "of": n, "share": interval}
    return found
