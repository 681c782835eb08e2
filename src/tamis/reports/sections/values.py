"""The share that each subset keeps of each value of a word column, and of captions with each word.

Also the medium phrases ("a photo of") that SIEVE removed before it compared texts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tamis.reports.context import Context, Facts
from tamis.reports.distributions import FEW, Tally, frequencies
from tamis.signals.sieve import MEDIUM_PHRASES, count_removed

#: Number of values of a column shown without a click, and in all.
FIRST, _LISTED = FEW, 200

#: Number of words listed per side, and their minimum distance from chance in standard deviations.
_SHOWN, _SURPRISING = 12, 2.0


def gather(context: Context) -> Facts | None:
    """Counts values and words; None if there are none. `texts` and `ids`: columns that are not categories."""
    # The status says nothing if every pair is ok, or without subsets to compare.
    status = ["status"] if context.subsets and any(status != "ok" for status in context.run.statuses) else []
    found = context.tallies
    names = [name for name in context.words if found[name].many or found[name].distinct or not context.rows]
    captions, medium = _captions(context), _medium(context)
    if not names and not status and not captions and not medium:
        return None
    abouts = {name: column.about or "a field that came with the pairs" for name, column in context.words.items()}
    abouts["status"] = "what could be read of each pair"
    shown = [*status, *(name for name in names if found[name].kind == "category")]
    return {
        "rows": context.rows,
        "subsets": context.names,
        "columns": [_column(name, abouts[name], found[name]) for name in shown],
        "texts": [name for name in names if found[name].kind == "text"],
        "ids": [name for name in names if found[name].kind == "id"],
        "captions": captions,
        "medium": medium,
    }


def _column(name: str, about: str, tally: Tally) -> Facts:
    """Returns a word column: its most frequent `values`, how many `others`, and the rows with a value (`judged`)."""
    values = [{"word": word, "rows": rows, "kept": kept} for word, rows, kept in tally.values[:_LISTED]]
    others = len(tally.values) - len(values)
    about_it = {"name": name, "about": about, "judged": tally.judged, "distinct": tally.distinct}
    return {**about_it, "values": values, "others": others}


def _captions(context: Context) -> Facts | None:
    """Returns the over- and under-represented words of each subset, the most surprising first.

    `looked_at`: sampled pairs; `captions`: how many of them have one; `kept`: how many of these a subset keeps.
    """
    if not context.subsets:
        return None
    run, sample, captions, rows = context.run, context.sample, [], []
    for block, span in context.table.blocks_of(sample):
        texts = context.table.read(block, ["caption"])["caption"].take(sample[span] - context.table.starts[block])
        judged = texts.is_valid().to_numpy(zero_copy_only=False) & ~run.hidden[sample[span]]
        captions += texts.filter(pa.array(judged)).to_pylist()
        rows += sample[span][judged].tolist()
    keeps = [keep[np.array(rows, np.int64)] for keep in context.keeps]
    subsets = [
        {
            "subset": name,
            "kept": int(np.count_nonzero(keep)),
            "more": [each for each in found if each["surprise"] >= _SURPRISING][:_SHOWN],
            "less": [each for each in reversed(found) if each["surprise"] <= -_SURPRISING][:_SHOWN],
        }
        for name, keep, found in zip(context.names, keeps, frequencies(captions, keeps), strict=True)
        if found
    ]
    counts = {"looked_at": sample.size, "captions": len(captions), "rows": context.rows}
    return {**counts, "subsets": subsets} if subsets else None


def _medium(context: Context) -> list[Facts] | None:
    """Returns what each SIEVE's `phrases` removed from `captions` and from the nearest `generated` captions."""
    found = []
    for label, group in context.run.scores.items():
        medium = group.facts["settings"].get("medium") if group.facts["name"] == "sieve" else None
        if not medium or label in context.incomplete:
            continue
        phrases = MEDIUM_PHRASES.get(medium, ()) if isinstance(medium, str) else tuple(medium)
        found.append(
            {
                "label": label,
                "phrases": medium if isinstance(medium, str) else ", ".join(medium),
                "captions": count_removed(phrases, _texts_of(context, "caption")),
                "generated": count_removed(phrases, _texts_of(context, f"{label}.sieve_caption")),
            }
        )
    return found or None


def removed_phrases(medium: Facts) -> list[str]:
    """Returns the removed phrases, the most frequent in captions first, then in generated captions."""
    captions, generated = dict(medium["captions"]["phrases"]), dict(medium["generated"]["phrases"])
    return sorted(
        {*captions, *generated}, key=lambda phrase: (-captions.get(phrase, 0), -generated.get(phrase, 0), phrase)
    )


def _texts_of(context: Context, name: str) -> Iterator[str]:
    for block in context.table.map([name], lambda _, columns: columns[name].cast(pa.string()).drop_null().to_pylist()):
        yield from block
