"""How far the scores agree in their ranking of the pairs."""

from __future__ import annotations

import numpy as np

from tamis.math.statistics import rank_correlations
from tamis.reporting.context import Context, Facts
from tamis.reporting.histogram import whole_column

#: Scores whose ranks are compared.
_COMPARED = 24


def gather(context: Context) -> Facts | None:
    """Correlates the scores that have a finite value in some row; None with fewer than two scores.

    Of columns of one name that hold the same values, only the first is taken.

    Returns:
        `names` of the columns and `matrix`: (k, k) Spearman's rank correlations in [-1, 1] over the pairs that have
        both, NaN where a score is the same for all of them; `looked_at` pairs, drawn by uid, of `rows`.
    """
    rows = context.sample
    columns = {name: whole_column(context.table, name)[rows] for name in context.numbers}
    names: dict[tuple[str, bytes], str] = {}
    for name, column in columns.items():
        if np.isfinite(column).any():
            names.setdefault((context.run.columns[name][0], column.tobytes()), name)
    kept = list(names.values())[:_COMPARED]
    if len(kept) < 2:
        return None
    matrix = rank_correlations(np.stack([columns[name] for name in kept], axis=1))
    return {"names": kept, "matrix": matrix, "looked_at": rows.size, "rows": context.rows}
