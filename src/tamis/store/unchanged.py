"""Whether a shard still is what it was when it was scored: byte ranges of the index may only be read if it is."""

from __future__ import annotations

import pyarrow as pa

from tamis.arrays import Rows
from tamis.errors import RunError, TamisError
from tamis.pool import Shard
from tamis.pool.files import is_remote
from tamis.pool.source import Problem
from tamis.store import parts
from tamis.store.run import Run


def check_unchanged(run: Run, shard: Shard, rows: Rows) -> None:
    """Makes sure that the byte ranges of the index still hold the samples they held when the shard was read.

    A file of another size has changed. One of the same size and another time may only have been copied: then the
    headers before the members of some rows tell, where it is a plain tar.

    Args:
        run: the run.
        shard: of its pool.
        rows: row numbers in the shard whose headers are looked at.

    Raises:
        RunError: the shard is gone, or holds something else.
    """
    if problem := changed(run, shard, rows):
        raise RunError(problem.reason)


def changed(run: Run, shard: Shard, rows: Rows) -> Problem | None:
    """Returns what `check_unchanged` raises, or None."""
    then = parts.index_facts(run.index_path(shard.name)).stamp
    try:
        now = shard.stamp()
        if not then or now == then:
            return None
        moved = now.partition(":")[0] != then.partition(":")[0]
        if not moved:
            keys = run.index(shard.name, ["key"]).column("key").take(pa.array(rows)).to_pylist()
            moved = not shard.holds(keys, run.members(shard.name, rows.tolist()))
    except Exception as error:
        if not of_a_file(error, shard.url):
            raise
        return Problem("unread", f"{shard.url} cannot be read: {error}")
    if not moved:
        return None
    return Problem(
        "changed",
        f"{shard.url} has changed since it was scored (size:time was {then}, is {now}), and its samples no longer "
        "lie where the index says: put the old file back, or score the pool into another run folder",
    )


def of_a_file(error: Exception, url: str) -> bool:
    """Tells whether an error is of a file that cannot be read; remote stores raise errors of their own making."""
    return isinstance(error, (OSError, TamisError, pa.ArrowException)) or is_remote(url)
