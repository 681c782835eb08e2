"""What is done of a shard that takes long, kept while it is worked on: a kill costs seconds of work, not the shard.

Every now and then the rows since the last time go to a file of their own, `unfinished/<shard>/<what>-<number>.parquet`.
Whoever does the shard next takes them up if it would make the same: the same parts, batches and file. When the parts
are written, the folder goes.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.data import Sample
from tamis.errors import DamageError
from tamis.fingerprint import fingerprint
from tamis.store.atomic import remove_file
from tamis.store.parts import write_sealed
from tamis.store.seals import SealedParquet, damaged
from tamis.store.writers import PartWriter

log = logging.getLogger(__name__)

#: The folder of a run where they lie.
UNFINISHED = "unfinished"

#: So much work a kill may cost, and what is done of a batch.
EVERY_SECONDS = 20.0

_ROW_GROUP = 1 << 16
_UIDS = ("uid_hi", "uid_lo")


class Unfinished:
    """The rows that are done of one shard.

    Attributes:
        uids: of the rows that an earlier process has done.
        statuses: how many of these have which status.
    """

    def __init__(self, run: Path, shard: str, what: Any, writers: Sequence[PartWriter]) -> None:
        """Args:
        run: the run folder.
        shard: its name.
        what: whatever decides what is made; JSON.
        writers: they get the rows that are done already.
        """
        self.folder, self.what, self.writers = run / UNFINISHED / shard, fingerprint(what), tuple(writers)
        self.uids: list[tuple[int, int]] = []
        self.statuses: Counter[str] = Counter()
        self._files = 0
        self._samples: list[tuple[int, int, str]] = []  # of the rows since the last file
        self._last = time.monotonic()
        if self.folder.is_dir():
            self._restore()

    def _restore(self) -> None:
        for path in self.folder.iterdir():
            if not path.name.startswith(self.what):  # of other parts, or of a file that has changed
                remove_file(path)
        for number in count():
            path = self._path(number)
            if not path.is_file():
                break
            try:
                table = _read(path, len(self.uids))
                columns = [_columns(table, place) for place in range(len(self.writers))]
            except DamageError as error:
                log.warning("%s; its rows are made again", error)
                break
            for writer, found in zip(self.writers, columns, strict=True):
                writer.restore(found)
            self.uids += zip(*(table.column(name).to_pylist() for name in _UIDS), strict=True)
            self.statuses += Counter(table.column("status").to_pylist())
            self._files = number + 1

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.what}-{number:05}.parquet"

    def add(self, samples: Sequence[Sample]) -> None:
        """Takes a batch that the writers have; writes a file where it is time."""
        self._samples += [(*sample.uid, sample.status) for sample in samples]
        if time.monotonic() - self._last < EVERY_SECONDS:
            return
        high, low, statuses = zip(*self._samples, strict=True) if self._samples else ((), (), ())
        columns = {
            "uid_hi": pa.array(high, pa.uint64()),
            "uid_lo": pa.array(low, pa.uint64()),
            "status": pa.array(statuses, pa.string()),
            "row": pa.array(range(len(self.uids), len(self.uids) + len(high)), pa.int64()),
        }
        for place, writer in enumerate(self.writers):
            columns |= {f"{place}.{name}": values for name, values in writer.since(len(self.uids)).items()}
        path = self._path(self._files)
        write_sealed(path, pa.table(columns), uids=None, row_group_size=_ROW_GROUP, compression="ZSTD")
        self._files += 1
        self.uids += zip(high, low, strict=True)
        self._samples = []
        self._last = time.monotonic()

    def check(self, number: int, sample: Sample) -> None:
        """Makes sure that a row which an earlier process has done is the one that the shard holds now.

        Raises:
            DamageError: it is another one.
        """
        if sample.uid != self.uids[number]:
            raise damaged(self.folder, f"what was kept of the shard is of other samples than it holds in row {number}")

    def drop(self) -> None:
        """Deletes the files: the parts are there, or what is kept is no good."""
        drop_unfinished(self.folder.parent.parent, self.folder.name)


def drop_unfinished(run: Path, shard: str) -> None:
    """Deletes what is kept of a shard."""
    folder = run / UNFINISHED / shard
    if folder.is_dir():
        for path in list(folder.iterdir()):
            remove_file(path)
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path, row: int) -> pa.Table:
    part = SealedParquet(path)
    if not part.sealed:
        raise damaged(path, "it has no seal")
    table: pa.Table = part.read(None)
    if "row" not in table.column_names or (table.num_rows and table.column("row")[0].as_py() != row):
        raise damaged(path, f"it does not go on at row {row}")
    return table


def _columns(table: pa.Table, place: int) -> dict[str, pa.ChunkedArray]:
    start = f"{place}."
    return {name.removeprefix(start): table.column(name) for name in table.column_names if name.startswith(start)}
