"""Rows of a long shard, kept while it is worked on: a kill costs seconds of work, not the shard.

Now and then the new rows go to a file `unfinished/<shard>/<what>-<number>.parquet`. Another process continues from them
if it would make the same: the same parts and batches, of the same version of the shard's file. The files
are deleted when their parts exist or the shard's file changed; commands that make other parts leave them.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.data import Sample
from tamis.errors import DamageError
from tamis.ids import LENGTH, fingerprint
from tamis.storage import files, remove
from tamis.store.checked import CheckedParquet, damaged, write_parquet
from tamis.store.writers import PartWriter

log = logging.getLogger(__name__)

UNFINISHED = "unfinished"

#: At most this many seconds of work are lost to a kill, and the last batch.
EVERY_SECONDS = 20.0

_ROW_GROUP = 1 << 16
_OWN = pa.schema([("uid_hi", pa.uint64()), ("uid_lo", pa.uint64()), ("status", pa.string())])
_STAMP, _PARTS, _ROW = "tamis.stamp", "tamis.parts", "tamis.first_row"


class Unfinished:
    """The rows of one shard that are done.

    Attributes:
        uids: of the rows that an earlier process has done.
        statuses: how many of these have which status.
    """

    def __init__(
        self, run: Path, shard: str, stamp: str, what: Mapping[str, Any], writers: Mapping[Path, PartWriter]
    ) -> None:
        """Args:
        run: the run folder.
        shard: its name.
        stamp: the version of its file.
        what: all else that decides what is made; JSON.
        writers: by the part that each makes; they get the rows that are done already.
        """
        self.folder, self.writers = run / UNFINISHED / shard, tuple(writers.values())
        self.what = fingerprint({**what, "stamp": stamp})
        parts = [path.relative_to(run).as_posix() for path in writers]
        self._facts = {_STAMP: stamp, _PARTS: json.dumps(parts)}
        self.uids: list[tuple[int, int]] = []
        self.statuses: Counter[str] = Counter()
        self._files = 0
        self._samples: list[dict[str, Any]] = []  # of the rows since the last file
        self._last = time.monotonic()
        drop_unneeded(run, shard, stamp)
        self._restore()

    def _restore(self) -> None:
        there = files(self.folder)
        for number in count():
            path = self._path(number)
            if path.name not in there:
                break
            try:
                part = CheckedParquet(path)
                if part.facts.get(_ROW) != str(len(self.uids)):
                    raise damaged(path, f"it does not continue at row {len(self.uids)}")
                table = part.read(None)
            except DamageError as error:
                log.warning("%s; its rows are made again", error)
                break
            for place, writer in enumerate(self.writers):
                own = [name for name in table.column_names if name.startswith(f"{place}.")]
                writer.restore(table.select(own).rename_columns([name.partition(".")[2] for name in own]))
            self.uids += zip(table["uid_hi"].to_pylist(), table["uid_lo"].to_pylist(), strict=True)
            self.statuses += Counter(table["status"].to_pylist())
            self._files = number + 1

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.what}-{number:05}.parquet"

    def add(self, samples: Sequence[Sample]) -> None:
        """Takes a batch that the writers have; writes a file if it is time."""
        self._samples += [{"uid_hi": one.uid[0], "uid_lo": one.uid[1], "status": one.status} for one in samples]
        if time.monotonic() - self._last < EVERY_SECONDS:
            return
        start = len(self.uids)
        table = pa.Table.from_pylist(self._samples, _OWN)
        for place, writer in enumerate(self.writers):
            rows = writer.table().slice(start)
            for field in rows.schema:
                table = table.append_column(field.with_name(f"{place}.{field.name}"), rows[field.name])
        facts = {**self._facts, _ROW: str(start)}
        path = self._path(self._files)
        write_parquet(path, table, uids=None, facts=facts, row_group_size=_ROW_GROUP, compression="ZSTD")
        self._files += 1
        self.uids += [(one["uid_hi"], one["uid_lo"]) for one in self._samples]
        self._samples = []
        self._last = time.monotonic()

    def check(self, number: int, sample: Sample) -> None:
        """Makes sure that a row which an earlier process has done is the one that the shard has now.

        Raises:
            DamageError: it is another one.
        """
        if sample.uid != self.uids[number]:
            raise damaged(self.folder, f"what was kept of the shard is of other samples than it has in row {number}")

    def drop(self) -> None:
        """Deletes the files: the parts are written, or what was kept is unusable."""
        _remove(self.folder, self.what)


def drop_unneeded(run: Path, shard: str, stamp: str | None = None) -> None:
    """Deletes what is kept of a shard for parts that exist, or of another version of its file than `stamp`."""
    folder = run / UNFINISHED / shard
    for what in {name[:LENGTH] for name in files(folder)}:
        try:
            facts = CheckedParquet(folder / f"{what}-00000.parquet").facts
            needed = stamp in (None, facts[_STAMP]) and not all(
                (run / part).is_file() for part in json.loads(facts[_PARTS])
            )
        except (DamageError, KeyError):
            needed = False
        if not needed:
            _remove(folder, what)


def _remove(folder: Path, what: str) -> None:
    for name in sorted(files(folder), reverse=True):
        if name.startswith(what):
            remove(folder / name)
    with suppress(OSError):  # it never existed, or others are in it
        folder.rmdir()
