"""How many of their pairs the subsets share, and what each keeps that another drops, with images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Mask
from tamis.reporting.context import GALLERIES, Context, Facts
from tamis.reporting.picking import first_by
from tamis.selectors.expression import parse

#: Pairs of all cells together; minimum and maximum per cell.
_PAIRS, _LEAST, _MOST = 160, 3, 8


def gather(context: Context) -> Facts | None:
    """Counts the pairs that each two subsets share; None where there are not two subsets.

    Returns:
        `subsets`; `shared`: (k, k) pairs that both keep, the subsets' own sizes on the diagonal; `jaccard`: (k, k)
        intersection over union in [0, 1], NaN of two empty subsets; `only`: of each two of the first subsets, both
        ways, what one `keeps` and the other `drops`, how many `rows`, some `pairs` of them and `why` the other drops
        each, and the `columns` that both recipes rank by.
    """
    if len(context.subsets) < 2:
        return None
    shared = intersections(context.keeps)
    names = context.names[:GALLERIES]
    cells = [(one, two) for one in names for two in names if one is not two]
    shown = min(_MOST, max(_LEAST, _PAIRS // len(cells)))
    only = [each for one, two in cells if (each := _only(context, one, two, shown))["rows"]]
    return {"subsets": context.names, "shared": shared, "jaccard": jaccard(shared), "only": only}


def _only(context: Context, keeps: Facts, drops: Facts, shown: int) -> Facts:
    one, two = keeps["place"], drops["place"]
    among = context.keeps[one] & ~context.keeps[two]
    rows = first_by(context.order, shown, among).tolist()
    verdict = context.verdicts[two]
    codes = verdict.dropped_by
    return {
        "keeps": keeps,
        "drops": drops,
        "rows": int(np.count_nonzero(among)),
        "pairs": [context.pair(row) for row in rows],
        "why": [verdict.reasons[codes[row]] if codes is not None else None for row in rows],
        "columns": list(dict.fromkeys([*_ranked_by(context, one), *_ranked_by(context, two)])),
    }


def _ranked_by(context: Context, place: int) -> list[str]:
    """Returns the columns of the score that a recipe cuts last, as the page names them."""
    verdict = context.verdicts[place]
    columns = sorted(parse(verdict.ranking.score).columns) if verdict.ranking is not None else []
    return [short for name in columns if (short := context.short(verdict.names.get(name, name))) in context.numbers]


def intersections(keeps: Sequence[Mask]) -> NDArray[np.int64]:
    """Returns how many rows each two of the masks share: (k, k), the masks' own sizes on the diagonal."""
    shared = np.zeros((len(keeps), len(keeps)), np.int64)
    for first, one in enumerate(keeps):
        for second in range(first, len(keeps)):
            shared[first, second] = shared[second, first] = np.count_nonzero(one & keeps[second])
    return shared


def jaccard(shared: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns intersection over union: (k, k) in [0, 1]; NaN for two empty sets."""
    sizes = np.diagonal(shared)
    union = sizes[:, None] + sizes[None, :] - shared
    out = np.full(shared.shape, np.nan)
    np.divide(shared, union, out=out, where=union > 0)
    return out


def disagreements(facts: Facts) -> list[list[Facts]]:
    """Returns `only` by two subsets, those first that keep many pairs each that the other drops."""
    by_two: dict[tuple[int, ...], list[Facts]] = {}
    for each in facts["only"]:
        by_two.setdefault(tuple(sorted((each["keeps"]["place"], each["drops"]["place"]))), []).append(each)

    def order(both: list[Facts]) -> tuple[int, int]:
        rows = [each["rows"] for each in both]
        return -min(rows) if len(rows) == 2 else 0, -sum(rows)

    return sorted(by_two.values(), key=order)
