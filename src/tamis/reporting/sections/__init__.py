"""The sections of the report, in the order of the page.

A section is a file of this folder with two functions: `gather` reads what the section says (a frozen record, which
`report.json` holds too; None where the section would say nothing, and then the page has none), and `draw` makes the
section's HTML of that record and of nothing else. To add one, write the file and add a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tamis.reporting.context import Context
from tamis.reporting.html import Markup
from tamis.reporting.sections import (
    bench,
    correlation,
    findings,
    found,
    funnels,
    galleries,
    look,
    medium,
    overlap,
    pool,
    rejects,
    repeated,
    run,
    scores,
    values,
    words,
    written_text,
)

F = TypeVar("F")


@dataclass(frozen=True)
class Section(Generic[F]):
    """One section of the page.

    Attributes:
        ident: its anchor on the page and its name in `report.json`; letters only.
        title: its heading.
        gather: reads what it says.
        draw: makes HTML of that.
    """

    ident: str
    title: str
    gather: Callable[[Context], F | None]
    draw: Callable[[F], Markup]


SECTIONS: tuple[Section[Any], ...] = (
    Section("findings", "Findings", findings.gather, findings.draw),
    Section("look", "Recipes to try", look.gather, look.draw),
    Section("funnels", "Funnels", funnels.gather, funnels.draw),
    Section("bench", "Bench", bench.gather, bench.draw),
    Section("galleries", "Galleries", galleries.gather, galleries.draw),
    Section("overlap", "Overlap", overlap.gather, overlap.draw),
    Section("found", "Found in the pool", found.gather, found.draw),
    Section("repeated", "Repeated pictures", repeated.gather, repeated.draw),
    Section("rejects", "Rejects", rejects.gather, rejects.draw),
    Section("text", "Written text", written_text.gather, written_text.draw),
    Section("scores", "Scores", scores.gather, scores.draw),
    Section(correlation.ANCHOR, "Correlation", correlation.gather, correlation.draw),
    Section("words", "Words", words.gather, words.draw),
    Section("medium", "Medium phrases", medium.gather, medium.draw),
    Section("values", "Values", values.gather, values.draw),
    Section("pool", "Pool", pool.gather, pool.draw),
    Section("run", "Run", run.gather, run.draw),
)
