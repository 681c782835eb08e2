"""What the pool is like: which pairs could be read, how large captions and images are, what was scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tamis.data import STATUSES, flat
from tamis.reporting.charts import bar
from tamis.reporting.context import CAPTION, Context
from tamis.reporting.duplicates import Duplicates, duplicates
from tamis.reporting.formats import NONE, count, number, plural, share, size
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.picking import scrambled
from tamis.reporting.tables import table
from tamis.store.run import INDEX_NUMBERS, ScoreSet

#: What the numbers of captions and images count.
_ABOUT: Mapping[str, str] = {
    CAPTION: "",
    "characters": "of the caption",
    "words": "of the caption",
    "width": "pixels",
    "height": "pixels",
    "original_width": "pixels, before it was resized",
    "original_height": "pixels, before it was resized",
    "image_bytes": "of the file",
}


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A size of captions or images, over the pool.

    Attributes:
        about: what it counts.
        low, high: the smallest and the largest.
        quantiles: level to value, exact.
    """

    name: str
    about: str
    low: float
    quantiles: Mapping[float, float]
    high: float


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A scorer of the run: what it was and which columns it gave.

    Attributes:
        settings: nested ones as one level, `boxes.side`; without the models.
        fingerprint: what tells it from the same scorer with other settings or weights.
    """

    label: str
    columns: Sequence[str]
    models: Sequence[str]
    settings: Mapping[str, Any]
    precision: str | None
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """What the pool is like.

    Attributes:
        statuses: pairs by status, `ok` first, then the most frequent.
        quantities: those that some pair has.
    """

    rows: int
    statuses: Mapping[str, int]
    duplicates: Duplicates
    quantities: Sequence[Quantity]
    scorers: Sequence[Scorer]


def gather(context: Context) -> PoolFacts:
    """Counts statuses and shared uids, and reads the distributions of sizes."""
    histograms = context.histograms
    return PoolFacts(
        rows=context.rows,
        statuses=dict(sorted(context.statuses.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))),
        # An order of its own, since it is sorted in place: the galleries' would be 8 more bytes per row meanwhile.
        duplicates=duplicates(context.table, scrambled(context.table)),
        quantities=[
            Quantity(name=name, about=_ABOUT[name], low=each.low, quantiles=each.quantiles, high=each.high)
            for name in (*context.lengths, *INDEX_NUMBERS)
            if (each := histograms.get(name)) is not None and each.judged
        ],
        scorers=[_scorer(group) for group in context.run.scores.values()],
    )


def _scorer(group: ScoreSet) -> Scorer:
    models = group.facts.get("models") or {}
    settings = flat(group.facts.get("settings", {}))
    return Scorer(
        label=group.label,
        columns=[column.name for column in group.columns],
        models=[str(model) for model in models],
        settings={
            key: str(value) if isinstance(value, list) else value
            for key, value in settings.items()
            if isinstance(value, list) or value not in models
        },
        precision=group.facts.get("precision"),
        fingerprint=group.folder.name.rpartition("-")[2],
    )


def draw(facts: PoolFacts) -> Markup:
    """Draws the pool as three cards."""
    statuses = tag("div", tag("h3", "Pairs by status"), _statuses(facts), _duplicates(facts.duplicates), class_="card")
    sizes = tag("div", tag("h3", "Captions and images"), _quantities(facts.quantities), class_="card")
    scorers = tag("div", tag("h3", "Scorers"), _scorers(facts.scorers), class_="card wide")
    return tag("div", statuses, sizes, scorers, class_="grid")


def _statuses(facts: PoolFacts) -> Markup:
    if not facts.statuses:
        return tag("p", "The run holds no pairs.", class_="quiet")
    rows = [
        tag(
            "tr",
            tag("th", status, tag("small", STATUSES.get(status, "")), scope="row"),
            tag("td", count(rows), class_="n"),
            tag("td", share(rows, facts.rows), class_="n"),
            tag("td", bar(rows, facts.rows), class_="bars"),
        )
        for status, rows in facts.statuses.items()
    ]
    return table(("Status", "Pairs", "Share", ""), rows)


def _duplicates(found: Duplicates) -> Markup:
    if not found.uids:
        return tag("p", "No two pairs share a uid.", class_="quiet")
    examples = [
        tag("li", tag("code", uid), f" rows {', '.join(count(row) for row in rows)}") for uid, rows in found.examples
    ]
    return join(
        tag(
            "p",
            tag("strong", plural(found.rows, "pair")),
            f" share {plural(found.uids, 'uid')} with another pair. All are kept as rows; a trainer that "
            "picks pairs by uid takes them together.",
        ),
        tag("details", tag("summary", "Examples"), tag("ul", examples)),
    )


def _quantities(quantities: Sequence[Quantity]) -> Markup:
    rows = []
    for each in quantities:
        show: Callable[[float], str] = size if each.name == "image_bytes" else number
        values = [each.low, *(each.quantiles[level] for level in (0.05, 0.5, 0.95)), each.high]
        name = tag("th", each.name.replace("_", " "), tag("small", each.about), scope="row")
        rows.append(tag("tr", name, [tag("td", show(value), class_="n") for value in values]))
    if not rows:
        return tag("p", "Nothing is known of them.", class_="quiet")
    return table(("", "Least", "5 %", "Median", "95 %", "Most"), rows)


def _scorers(scorers: Sequence[Scorer]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", each.label, scope="row"),
            tag("td", ", ".join(each.columns)),
            tag("td", ", ".join(each.models) or NONE),
            tag("td", ", ".join(f"{key}: {value}" for key, value in each.settings.items()) or NONE),
            tag("td", each.precision or NONE),
            tag("td", tag("code", each.fingerprint), class_="whole"),
        )
        for each in scorers
    ]
    if not rows:
        return tag("p", "The run holds no scores.", class_="quiet")
    return table(("Scorer", "Columns", "Model", "Settings", "Precision", "Fingerprint"), rows)
