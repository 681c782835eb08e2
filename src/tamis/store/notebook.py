"""Runs and subsets in a notebook: tables, and images with their captions."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.errors import shown

if TYPE_CHECKING:
    from tamis.store.run import Run
    from tamis.store.subset import Subset

_CAPTION = 300  # characters of a caption that are shown


@dataclass(frozen=True)
class Shown:
    """Some pairs: a grid of images with captions in a notebook, a line of text for each elsewhere."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def pairs_of(subset: Subset, pairs: int, *, dropped: bool, rows: Sequence[int] | None, seed: int, size: int) -> Shown:
    """Returns some pairs of a subset, or of what it drops, as images: see `Subset.show`."""
    from tamis.store.stream import samples_of

    among = np.flatnonzero(~subset.keep) if dropped else np.flatnonzero(subset.keep)
    if rows is None:
        chosen = np.sort(np.random.default_rng(seed).choice(among, min(pairs, among.size), replace=False))
    else:
        chosen = np.asarray(rows, np.int64)
    run = subset.run
    reads = [name for name in subset.reads if name in run.columns and run.columns[name][2].kind == "number"]
    scores = _scores(run, reads, chosen)
    figures, lines = [], []
    samples = samples_of(run, order=chosen, fields={"key", "caption", "pixels"}, errors="mark", threads=2)
    for place, sample in enumerate(samples):
        caption = shown(sample.caption or "")[:_CAPTION] or "(no caption)"
        facts = [f"{name.rpartition('.')[2]} {values[place]:.3g}" for name, values in scores.items()]
        if subset.verdict.dropped_by is not None and (code := int(subset.verdict.dropped_by[sample.row])):
            facts.insert(0, subset.verdict.reasons[code])
        image = _image(sample.pixels, size) if sample.pixels is not None else f"<p>{escape(str(sample.problem))}</p>"
        words = f'<span dir="auto">{escape(caption)}</span><br><small>{escape(" · ".join(facts))}</small>'
        figures.append(
            f'<figure style="margin:0;width:{size}px">{image}'
            f'<figcaption style="font-size:12px;overflow-wrap:anywhere">{words}</figcaption></figure>'
        )
        lines.append(f"{sample.shard}/{sample.key}  {caption}  {' · '.join(facts)}")
    what = "dropped from" if dropped else "of"
    head = f"{len(figures):,} pairs {what} {subset.name}" + (f", {among.size:,} in all" if rows is None else "")
    grid = f'<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">{"".join(figures)}</div>'
    return Shown(f"<p>{escape(head)}</p>{grid}", "\n".join([head, *map(shown, lines)]))


def _scores(run: Run, names: Sequence[str], rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    table = run.table()
    blocks = np.searchsorted(table.starts, rows, side="right") - 1
    found = {name: np.full(rows.size, np.nan) for name in names}
    for block in np.unique(blocks).tolist():
        values, here = table.read(block, names), blocks == block
        for name in names:
            found[name][here] = values[name][rows[here] - table.starts[block]]
    return found


def _image(pixels: Pixels, size: int) -> str:
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((2 * size, 2 * size))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    data = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="" style="max-width:{size}px;max-height:{size}px" src="data:image/jpeg;base64,{data}">'


def html_of_run(run: Run) -> str:
    """Returns what a run holds, from its footers alone."""
    counts = ", ".join(f"{count:,} {status}" for status, count in run.statuses.most_common())
    shards = len(run.shards)
    rows = []
    for name in run.score_names():
        _, group, column = run.columns[name]
        assert group is not None  # it is a score
        done = len(group.shards & set(run.shards))
        there = "" if done == shards else f"{done:,} of {shards:,} shards"
        rows.append([name, column.unit or column.kind, column.about, there])
    head = f"<b>Run {escape(str(run.path))}</b>: {len(run):,} pairs in {shards:,} shards ({escape(counts)})"
    lacks = f"<br>{len(run.missing):,} shards are missing" if run.missing else ""
    names = ["column", "unit", "about", *(["so far"] if any(row[3] for row in rows) else [])]
    return f"<p>{head}{lacks}</p>{_table(names, [row[: len(names)] for row in rows])}"


def html_of_subset(subset: Subset) -> str:
    """Returns a subset's funnel."""
    total = int(subset.keep.size)
    rows = [["every pair", f"{total:,}", "", ""]]
    for line in subset.funnel:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in line["dropped"].items())
        share = f"{line['kept'] / total:.1%}" if total else ""
        rows.append([line["step"], f"{line['kept']:,}", share, dropped])
    share = f" ({len(subset) / total:.1%})" if total else ""
    head = f"<b>{escape(subset.name)}</b>: {len(subset):,} of {total:,} pairs{share}"
    return f"<p>{head}</p>{_table(['step', 'kept', 'share', 'dropped'], rows)}"


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any], kind: str) -> str:
        inside = "".join(f'<{kind} style="text-align:left">{escape(shown(str(cell)))}</{kind}>' for cell in cells)
        return f"<tr>{inside}</tr>"

    return f"<table><thead>{line(names, 'th')}</thead><tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"
