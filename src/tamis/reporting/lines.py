"""The lines that a subset's steps drew on scores, as far as the run still has what they lie on."""

from __future__ import annotations

from dataclasses import replace

from tamis.selectors.expression import parse
from tamis.store.reasons import Cut, Verdict
from tamis.store.subset import Subset


def verdict_on(subset: Subset) -> Verdict:
    """Returns a subset's verdict with the lines that can be drawn on the run as it is now.

    A line is left out where its score has left the run since, or depends on the whole pool (`minmax(clip)`) and the
    pool has grown.
    """
    found, run = subset.verdict, subset.run
    grown = any(reason.step is None for reason in found.why)

    def stands(cut: Cut) -> bool:
        expression = parse(cut.score)
        there = all(found.names.get(name, name) in run.columns for name in expression.columns)
        return there and not (grown and expression.poolwide)

    return replace(found, cuts=tuple(cut for cut in found.cuts if stands(cut)))
