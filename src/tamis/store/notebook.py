"""Shows runs and subsets in a notebook: as tables, and as images with captions."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment

from tamis.arrays import Pixels
from tamis.errors import escape_controls
from tamis.store.reasons import rows_kept

if TYPE_CHECKING:
    from tamis.store.run import Run
    from tamis.store.subset import Subset

_CAPTION = 300  # characters shown of a caption


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
  <img alt="" style="max-width:{{ size }}px;max-height:{{ size }}px" src="data:image/jpeg;base64,{{ pair.jpeg }}">
  {% endif %}<figcaption style="font-size:12px;overflow-wrap:anywhere">
  <span dir="auto">{{ pair.caption }}</span><br><small>{{ pair.facts }}</small></figcaption></figure>
{% endfor %}</div>""")

_TABLE = _TEMPLATES.from_string("""
<p><b>{{ title | shown }}</b>: {{ counts }}</p><table>
<thead><tr>{% for name in rows[0] %}<th style="text-align:left">{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}
<tr>{% for cell in row.values() %}<td style="text-align:left">{{ cell | shown }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table>""")


def pairs_of(subset: Subset, pairs: int, *, dropped: bool, rows: Sequence[int] | None, seed: int, size: int) -> Shown:
    """Returns some pairs that a subset keeps or drops, as images: see `Subset.show`."""
    from tamis.store.stream import samples_of

    among = np.flatnonzero(~subset.keep) if dropped else np.flatnonzero(subset.keep)
    if rows is None:
        chosen = np.sort(np.random.default_rng(seed).choice(among, min(pairs, among.size), replace=False))
    else:
        chosen = np.asarray(rows, np.int64)
    run, verdict = subset.run, subset.verdict
    reads = [name for name in subset.reads if name in run.columns and run.columns[name][2].kind == "number"]
    samples = samples_of(run, order=chosen, fields={"key", "caption", "pixels"}, errors="mark", threads=2)
    scores = {name: run.table().vectors(name, chosen) for name in reads}
    figures, lines = [], []
    for number, sample in enumerate(samples):
        caption = escape_controls(sample.caption or "")[:_CAPTION] or "(no caption)"
        values = [f"{name.rpartition('.')[2]} {values[number]:.3g}" for name, values in scores.items()]
        if verdict.dropped_by is not None and (code := int(verdict.dropped_by[sample.row])):
            values.insert(0, verdict.reasons[code])
        if (times := subset.times_of(sample.row)) > 1:
            values.insert(0, f"kept {times:,} times")
        facts = " · ".join(values)
        image = {"problem": str(sample.problem)} if sample.pixels is None else {"jpeg": _jpeg(sample.pixels, size)}
        figures.append({"caption": caption, "facts": facts, **image})
        lines.append(f"{sample.shard}/{sample.key}  {caption}  {facts}")
    what = "dropped from" if dropped else "of"
    head = f"{len(figures):,} pairs {what} {subset.name}" + (f", {among.size:,} in all" if rows is None else "")
    html = _PAIRS.render(head=head, pairs=figures, size=size)
    return Shown(html, "\n".join([head, *map(escape_controls, lines)]))


def _jpeg(pixels: Pixels, size: int) -> str:
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((2 * size, 2 * size))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return base64.b64encode(out.getvalue()).decode()


def html_table(title: object, counts: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of rows with the same keys."""
    return _TABLE.render(title=title, counts=counts, rows=rows)


def html_of_run(run: Run) -> str:
    """Returns a run's counts and columns, reading only footers."""
    shards = len(run.shards)
    rows = []
    for name in run.score_names():
        _, group, column = run.columns[name]
        assert group is not None  # it is a score
        done = len(group.shards & set(run.shards))
        there = "" if done == shards else f"{done:,} of {shards:,} shards"
        rows.append({"column": name, "unit": column.unit or column.kind, "about": column.about, "so far": there})
    counts = f"{len(run):,} pairs in {shards:,} shards"
    counts += f" ({', '.join(f'{count:,} {status}' for status, count in run.statuses.most_common())})"
    counts += f"; {len(run.missing_shards):,} shards are missing" if run.missing_shards else ""
    return html_table(f"Run {run.path}", counts, rows)


def html_of_funnel(title: str, funnel: Sequence[Mapping[str, Any]], kept: int, total: int) -> str:
    """Returns the steps of a recipe with what each keeps and drops."""
    rows = [{"step": "every pair", "kept": f"{total:,}", "share": "", "dropped": ""}]
    for line in funnel:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in line["dropped"].items())
        share = f"{line['kept'] / max(total, 1):.1%}"
        rows.append({"step": line["step"], "kept": rows_kept(line), "share": share, "dropped": dropped})
    return html_table(title, f"{kept:,} of {total:,} pairs ({kept / max(total, 1):.1%})", rows)
