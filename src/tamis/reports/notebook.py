"""Shows runs, subsets and their pairs in a notebook, as images with captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import Environment

from tamis.core.errors import RunError, TamisError, escape_controls
from tamis.core.files.find import is_remote
from tamis.reports.formats import number as in_digits
from tamis.reports.page_pairs import thumbnail
from tamis.runs import Run
from tamis.runs.stream import samples_of
from tamis.runs.subset import Subset

_CAPTION = 300  # characters shown of a caption
_FIRST = 1_000  # rows of a shard among which pairs are taken that nobody asked for: later ones may take long to read


@dataclass(frozen=True)
class Shown:
    """Pairs to display: a grid of images with captions in a notebook, elsewhere a line of text each."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


_TEMPLATES = Environment(autoescape=True)
_TEMPLATES.filters["shown"] = lambda text: escape_controls(str(text))

_PAIRS = _TEMPLATES.from_string("""
<p>{{ head }}</p><div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">
{% for pair in pairs %}<figure style="margin:0;width:{{ size }}px">
  {% if pair.problem %}<p>{{ pair.problem }}</p>{% else %}
  <img alt="" style="max-width:{{ size }}px;max-height:{{ size }}px" src="{{ pair.address }}">
  {% endif %}<figcaption style="font-size:12px;overflow-wrap:anywhere">
  <span dir="auto">{{ pair.caption }}</span><br><small>{{ pair.facts }}</small></figcaption></figure>
{% endfor %}</div>""")


def show(
    subset: Subset | Run,
    pairs: int = 12,
    *,
    dropped: bool = False,
    rows: Sequence[int] | None = None,
    seed: int = 0,
    size: int = 160,
) -> Shown:
    """Shows pairs in a notebook: images, captions, the scores that the recipe reads, and reasons for dropping.

    Args:
        subset: of which pairs are shown; a run: of all its pairs.
        pairs: number of random pairs.
        dropped: whether to show dropped pairs instead of kept ones.
        rows: show these rows of the run instead, in this order.
        seed: of the random choice.
        size: width of the images in pixels.

    Returns:
        An object that notebooks display, and that prints as a line per pair. All text is escaped.

    Raises:
        RunError: the pool has no image files.
        PoolError: the pool does not exist.
    """
    if isinstance(subset, Run):
        subset = Subset(run=subset, keep=np.ones(len(subset), bool), recipe={"name": "the run"})
    among = np.flatnonzero(~subset.keep) if dropped else np.flatnonzero(subset.keep)
    if rows is None:
        chosen = np.sort(np.random.default_rng(seed).choice(among, min(pairs, among.size), replace=False))
    else:
        chosen = np.asarray(rows, np.int64)
    run = subset.run
    reads = [name for name in subset.reads if name in run.columns and run.columns[name][2].kind == "number"]
    samples = samples_of(run, order=chosen, fields={"key", "caption", "pixels"}, errors="mark", threads=2)
    scores = {name: run.table().vectors(name, chosen) for name in reads}
    figures, lines = [], []
    for number, sample in enumerate(samples):
        caption = escape_controls(sample.caption or "")[:_CAPTION] or "(no caption)"
        values = [f"{name.rpartition('.')[2]} {in_digits(values[number], 3)}" for name, values in scores.items()]
        if reason := subset.verdict.reason_of(sample.row):
            values.insert(0, reason)
        if (times := subset.times_of(sample.row)) > 1:
            values.insert(0, f"kept {times:,} times")
        facts = " · ".join(values)
        image = {"problem": str(sample.problem)}
        if sample.pixels is not None:
            image = {"address": thumbnail(sample.pixels, 2 * size)[0]}
        figures.append({"caption": caption, "facts": facts, **image})
        lines.append(f"{sample.shard}/{sample.key}  {caption}  {facts}")
    what = "dropped from" if dropped else "of"
    head = f"{len(figures):,} pairs {what} {subset.name}" + (f", {among.size:,} in all" if rows is None else "")
    html = _PAIRS.render(head=head, pairs=figures, size=size)
    return Shown(html, "\n".join([head, *map(escape_controls, lines)]))


def glimpse(source: Run | Subset, pairs: int = 8, *, dropped: bool = False) -> str:
    """Returns HTML with pairs from the first rows of shards, or with why there is none; never waits for a store."""
    run = source.run if isinstance(source, Subset) else source
    found: list[int] = []
    spans = [*run.row_ranges.values()]
    for span in spans[:: max(1, len(spans) // pairs)]:
        first = slice(span.start, min(span.stop, span.start + _FIRST))
        keep = source.keep[first] if isinstance(source, Subset) else np.ones(first.stop - first.start, bool)
        found += (first.start + np.flatnonzero(keep != dropped)).tolist()
    rows = sorted({found[place] for place in np.linspace(0, len(found) - 1, pairs).astype(int)}) if found else []
    try:
        if any(map(is_remote, run.pool_files)):
            raise RunError("they are on a store: tamis.show(...) reads some")
        return show(source, rows=rows, dropped=dropped).html if rows else ""
    except (TamisError, OSError) as error:
        return _TEMPLATES.from_string("<p>No pairs here: {{ error | shown }}</p>").render(error=error)
