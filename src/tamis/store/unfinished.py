"""What is done of a shard that takes long, kept while it is worked on: a kill costs seconds of work, not the shard.

Every now and then the rows since the last time go to a file of their own, `unfinished/<shard>/<what>-<number>.parquet`;
`<what>.json` says which parts they are for, and of which version of the shard's file. Whoever does the shard next takes
them up if it would make the same: the same parts, batches and file. They go when those parts are written or the file
has changed, and outlive commands that make other parts of the shard.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.data import Sample
from tamis.errors import DamageError, RunError
from tamis.fingerprint import LENGTH, fingerprint
from tamis.store.atomic import remove_file, write_json
from tamis.store.checked import CheckedParquet, damaged, write_parquet
from tamis.store.mirror import exists
from tamis.store.records import UnfinishedFacts, read_checked
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

    def __init__(
        self, run: Path, shard: str, stamp: str, what: Mapping[str, Any], writers: Mapping[Path, PartWriter]
    ) -> None:
        """Args:
        run: the run folder.
        shard: its name.
        stamp: the version of its file.
        what: whatever else decides what is made; JSON.
        writers: by the part that each makes; they get the rows that are done already.
        """
        self.folder, self.writers = run / UNFINISHED / shard, tuple(writers.values())
        self.what = fingerprint({**what, "stamp": stamp})
        self.note = {"stamp": stamp, "parts": [str(path.relative_to(run)) for path in writers]}
        self.uids: list[tuple[int, int]] = []
        self.statuses: Counter[str] = Counter()
        self._files = 0
        self._samples: list[tuple[int, int, str]] = []  # of the rows since the last file
        self._last = time.monotonic()
        drop_unneeded(run, shard, stamp)
        if self.folder.is_dir():
            self._restore()

    def _restore(self) -> None:
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
        if not self._files:
            write_json(self.folder / f"{self.what}.json", self.note, durable=False)
        path = self._path(self._files)
        write_parquet(path, pa.table(columns), uids=None, row_group_size=_ROW_GROUP, compression="ZSTD")
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
        _remove(self.folder, self.what)


def drop_unfinished(run: Path, shard: str) -> None:
    """Deletes all that is kept of a shard."""
    folder = run / UNFINISHED / shard
    if folder.is_dir():
        for path in list(folder.iterdir()):
            remove_file(path)
        shutil.rmtree(folder, ignore_errors=True)


def drop_unneeded(run: Path, shard: str, stamp: str | None = None) -> None:
    """Deletes what is kept of a shard for parts that are there, or of another version of its file than `stamp`."""
    folder = run / UNFINISHED / shard
    for what in {path.name[:LENGTH] for path in folder.iterdir()} if folder.is_dir() else ():
        try:
            note = read_checked(folder / f"{what}.json", UnfinishedFacts)
        except RunError:  # it has none, or a damaged one
            _remove(folder, what)
            continue
        if (stamp is not None and note["stamp"] != stamp) or all(exists(run / part) for part in note["parts"]):
            _remove(folder, what)


def _remove(folder: Path, what: str) -> None:
    """Deletes the files of one work on a shard, and the folder with the last of them."""
    for path in list(folder.glob(f"{what}*")):
        remove_file(path)
    with suppress(OSError):  # others lie there; or it was never made
        folder.rmdir()


def _read(path: Path, row: int) -> pa.Table:
    table = CheckedParquet(path).read(None)
    if "row" not in table.column_names or (table.num_rows and table.column("row")[0].as_py() != row):
        raise damaged(path, f"it does not go on at row {row}")
    return table


def _columns(table: pa.Table, place: int) -> dict[str, pa.ChunkedArray]:
    start = f"{place}."
    return {name.removeprefix(start): table.column(name) for name in table.column_names if name.startswith(start)}
