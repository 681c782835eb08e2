"""Adding columns to a run that was opened earlier: labels, clusters. They go by row: its rows must be the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tamis.errors import RunError
from tamis.store import mirror, parts
from tamis.store.claims import PATIENCE_SECONDS, claimed
from tamis.store.run import Run

log = logging.getLogger(__name__)


def check_same_rows(run: Run, shards: Iterable[str]) -> None:
    """Makes sure that the index on disk has the rows of some shards that the run had when it was opened.

    A shard may be forgotten and indexed anew meanwhile, with as many rows: values held by row are then other pairs'.

    Raises:
        RunError: it has others.
    """
    for shard in shards:
        then, path = run.owner(shard), run.index_path(shard)
        now = parts.index_facts(path) if mirror.exists(path) else None
        if now is None or (now.rows, now.uids) != (then.rows, then.uids):
            raise RunError(
                f"the run {run.path} has changed since it was opened here: the shard {shard} has other rows now. "
                "Nothing more is written: open the run again, or repeat the command"
            )


@contextmanager
def held(run: Run, shard: str, *, patience: float | None = None) -> Iterator[str]:
    """Holds the claim of a shard while a part of it is written, and gives the hash of its uids, for that part.

    Without the claim, a process that forgets the shard's parts could delete what is being written.

    Args:
        run: as it was opened when the values were read or reckoned.
        shard: one of its shards.
        patience: seconds to wait for another process that is at the shard; None: `PATIENCE_SECONDS`.

    Raises:
        RunError: another process keeps it, or the run has other rows there now.
    """
    longest = PATIENCE_SECONDS if patience is None else patience
    start, told = time.monotonic(), False
    while True:
        with claimed(run.path, shard) as mine:
            if mine:
                check_same_rows(run, [shard])
                yield run.owner(shard).uids
                return
        waited = time.monotonic() - start
        if waited > longest:
            raise RunError(
                f"another process is at the shard {shard} of {run.path}: repeat this when it is done with it"
            )
        if waited > PATIENCE_SECONDS and not told:
            log.warning("another process is at %s of %s: waiting for it, %.0f s at most", shard, run.path, longest)
            told = True
        time.sleep(0.05)
