"""Which recipes are worth trying: what `tamis look` found in the pairs it sampled. Other runs have no such section."""

from __future__ import annotations

from tamis.reporting.context import Context, Facts
from tamis.store.records import read_left

#: The file in the run folder that `tamis look` writes, and the version of its layout.
FILE, FORMAT = "look.json", 1


def gather(context: Context) -> Facts | None:
    """Reads the file; None where there is none.

    Returns:
        `pairs`, the first rows of so many `shards` `of` the pool's; `seconds`; `proposals`, the cheapest first: each
        with `recipe`, `why`, `commands` and the `share` it keeps with its 95 % interval, or None.

    Raises:
        RunError: the file is damaged, or was written by a newer version.
    """
    facts = read_left(context.run.path / FILE, "tamis look", FORMAT)
    if facts is None:
        return None
    return {name: facts[name] for name in ("pairs", "shards", "of", "seconds", "proposals")}
