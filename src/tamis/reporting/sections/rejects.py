"""What could not be read: each status but `ok`, with some of its pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.data import STATUSES
from tamis.reporting.cards import card, cards
from tamis.reporting.context import Context
from tamis.reporting.formats import count, share
from tamis.reporting.html import Markup, tag
from tamis.reporting.pairs import Pair
from tamis.reporting.picking import first_by

#: Pairs of each status.
_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Reject:
    """One status but `ok`.

    Attributes:
        rows: how many pairs have it.
        pairs: some of them; their uids decide which.
    """

    status: str
    rows: int
    pairs: Sequence[Pair]


@dataclass(frozen=True, kw_only=True)
class RejectsFacts:
    """The statuses but `ok`, the most frequent first."""

    rows: int
    rejects: Sequence[Reject]


def gather(context: Context) -> RejectsFacts:
    """Picks some pairs of each status in one pass."""
    statuses = context.statuses
    bad = sorted((status for status in statuses if status != "ok"), key=lambda status: (-statuses[status], status))
    picked = _pick(context, bad) if bad else {}
    context.read([int(row) for rows in picked.values() for row in rows])
    return RejectsFacts(
        rows=context.rows,
        rejects=[
            Reject(status=status, rows=statuses[status], pairs=[context.pair(int(row)) for row in rows])
            for status, rows in picked.items()
        ],
    )


def _pick(context: Context, bad: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Returns some rows of each status, those of the lowest order."""
    order = context.order

    def look(place: slice, columns: dict[str, Any]) -> dict[str, NDArray[np.int64]]:
        words = columns["status"].cast(pa.string())
        found = {}
        for status in bad:
            among = pc.equal(words, status).to_numpy(zero_copy_only=False)
            found[status] = first_by(order[place], _SHOWN, among) + place.start
        return found

    chosen = {status: np.empty(0, np.int64) for status in bad}
    for found in context.table.map(["status"], look):
        for status, rows in found.items():
            both = np.concatenate([chosen[status], rows])
            chosen[status] = both[np.argsort(order[both], kind="stable")[:_SHOWN]]
    return chosen


def draw(facts: RejectsFacts) -> Markup:
    """Draws a card per status."""
    if not facts.rejects:
        return tag("p", "Every pair could be read." if facts.rows else "There are no pairs.", class_="quiet")
    return tag("div", [_reject(each, facts.rows) for each in facts.rejects], class_="stack")


def _reject(reject: Reject, rows: int) -> Markup:
    total = f"{count(reject.rows)} · {share(reject.rows, rows)}"
    return tag(
        "article",
        tag("h3", reject.status, tag("span", total, class_="total")),
        tag("p", STATUSES.get(reject.status, ""), class_="quiet"),
        cards([card(pair, why=pair.reason) for pair in reject.pairs]),
        class_="card",
        id=anchor(reject.status),
    )


def anchor(status: str) -> str:
    """Returns where the pairs of a status stand on the page."""
    return f"reject-{status}"
