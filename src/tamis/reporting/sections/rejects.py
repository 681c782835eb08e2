"""What could not be read: each status but `ok`, with some of its pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tamis.arrays import Mask
from tamis.reporting.context import Context, Facts
from tamis.reporting.picking import first_of_each

#: Pairs of each status.
_SHOWN = 6


def gather(context: Context) -> Facts:
    """Picks some pairs of each status in one pass: `rejects` with `status`, `rows` and `pairs`, most rows first."""
    bad = sorted(set(context.statuses) - {"ok"}, key=lambda status: (-context.statuses[status], status))

    def masks(columns: Mapping[str, Any]) -> dict[str, Mask]:
        words = columns["status"].cast(pa.string())
        return {status: pc.equal(words, status).to_numpy(zero_copy_only=False) for status in bad}

    picked = first_of_each(context.table, ["status"], masks, context.order, _SHOWN) if bad else {}
    rejects = [
        {"status": status, "rows": rows, "pairs": [context.pair(row) for row in first]}
        for status, (rows, first) in picked.items()
    ]
    return {"rows": context.rows, "rejects": rejects}
