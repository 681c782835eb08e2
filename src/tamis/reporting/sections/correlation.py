"""How far the scores agree in their ranking of the pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.math.ranks import rank_correlations
from tamis.reporting.context import Context, Facts

#: Scores whose ranks are compared.
_COMPARED = 24


def gather(context: Context) -> Facts | None:
    """Correlates the scores of which some row has a finite value; None where there are not two.

    Of columns of one name that hold the same values, only the first is taken.

    Returns:
        `names` of the columns and `matrix`: (k, k) Spearman's rank correlations in [-1, 1] over the pairs that have
        both, NaN where a score is the same for all of them; `looked_at` pairs, drawn by uid, of `rows`.
    """
    rows, starts = context.sample, context.table.starts
    columns: dict[str, NDArray[np.float32]] = {name: np.empty(rows.size, np.float32) for name in context.numbers}

    def look(place: slice, values: dict[str, Any]) -> None:
        first, last = np.searchsorted(rows, [place.start, place.stop])
        for name, column in columns.items():
            column[first:last] = values[name][rows[first:last] - place.start]

    for _ in context.table.map(list(columns), look) if columns and len(starts) > 1 else ():
        pass
    names: dict[tuple[str, bytes], str] = {}
    for name, column in columns.items():
        if np.isfinite(column).any():
            names.setdefault((context.run.columns[name][0], column.tobytes()), name)
    kept = list(names.values())[:_COMPARED]
    if len(kept) < 2:
        return None
    matrix = rank_correlations(np.stack([columns[name] for name in kept], axis=1))
    return {"names": kept, "matrix": matrix, "looked_at": rows.size, "rows": context.rows}
