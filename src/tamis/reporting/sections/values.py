"""Of each value of a word column (language, status, a carried field), the share that each subset keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.context import Context
from tamis.reporting.formats import count, share
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.reporting.tables import scrolling
from tamis.reporting.tally import MOST, Tally, tallies

#: Values of a column that are shown at once, and at all.
_FIRST, _LISTED = 15, 200

#: Characters of a value that are shown.
_CLIP = 80


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of a column.

    Attributes:
        word: None is null.
        rows: how many pairs have it.
        kept: how many of them each subset keeps.
    """

    word: str | None
    rows: int
    kept: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Words:
    """One word column.

    Attributes:
        about: what it holds.
        judged: pairs that have a value.
        distinct: how many different values they have; None: more than are counted.
        values: the most frequent ones, null among them; none where nearly every pair has a value of its own.
        others: how many more there are.
    """

    name: str
    about: str
    judged: int | None
    distinct: int | None
    values: Sequence[Value]
    others: int


@dataclass(frozen=True, kw_only=True)
class ValuesFacts:
    """The word columns of a run, with the status where it tells something."""

    rows: int
    subsets: Sequence[SubsetName]
    columns: Sequence[Words]


def gather(context: Context) -> ValuesFacts | None:
    """Counts words in one pass; None where there is not a column of words."""
    # The status alone says nothing here while every pair is ok, or while there is no subset to compare.
    telling = bool(context.subsets) and any(status != "ok" for status in context.statuses)
    names = [*(["status"] if telling else []), *context.words]
    if not names:
        return None
    found = tallies(context.table, names, context.keeps)
    abouts = {name: column.about or "a field that came with the pairs" for name, column in context.words.items()}
    abouts["status"] = "what could be read of each pair"
    columns = [_words(name, abouts[name], found[name]) for name in names]
    return ValuesFacts(rows=context.rows, subsets=context.names, columns=columns)


def _words(name: str, about: str, tally: Tally) -> Words:
    if tally.many:
        return Words(name=name, about=about, judged=None, distinct=None, values=(), others=0)
    judged = sum(rows for word, rows, _ in tally.values if word is not None)
    distinct = sum(word is not None for word, _, _ in tally.values)
    # A hash, a URL or a generated caption: each of its values would say something of one pair or two.
    single = distinct > _FIRST and 2 * distinct > judged
    listed = () if single else tally.values[:_LISTED]
    values = [Value(word=word, rows=rows, kept=kept) for word, rows, kept in listed]
    others = len(tally.values) - len(values)
    return Words(name=name, about=about, judged=judged, distinct=distinct, values=values, others=others)


def draw(facts: ValuesFacts) -> Markup:
    """Draws a table per column."""
    text = "Of each value, the share that each subset keeps. A subset blind to a value keeps its usual share of it."
    return join(
        tag("p", text, class_="quiet") if facts.subsets else None,
        tag("div", [_column(facts, words) for words in facts.columns], class_="stack"),
    )


def _column(facts: ValuesFacts, words: Words) -> Markup:
    head = [tag("h3", tag("code", words.name)), tag("p", words.about, class_="quiet")]
    if words.distinct is None or words.judged is None:
        return tag("article", head, tag("p", f"More than {count(MOST)} different values."), class_="card")
    if not facts.rows:
        return tag("article", head, tag("p", "There are no pairs."), class_="card")
    if not words.values:
        said = f"{count(words.distinct)} different values in {count(words.judged)} pairs: too many to compare."
        return tag("article", head, tag("p", said), class_="card")
    rest = words.values[_FIRST:]
    more = tag(
        "details",
        tag("summary", f"{count(len(rest) + words.others)} more values"),
        _table(facts, words.name, rest),
        tag("p", f"and {count(words.others)} rarer ones", class_="quiet") if words.others else None,
    )
    first = _table(facts, words.name, words.values[:_FIRST], total=True)
    return tag("article", head, first, more if rest else None, class_="card")


def _table(facts: ValuesFacts, name: str, values: Sequence[Value], *, total: bool = False) -> Markup:
    header = tag(
        "tr",
        tag("th", "Value", scope="col"),
        tag("th", "Pool", scope="col", class_="n"),
        [tag("th", swatched(subset), scope="col", class_="n subset") for subset in facts.subsets],
    )
    rows = []
    if total:
        every = Value(word=None, rows=facts.rows, kept=[subset.kept for subset in facts.subsets])
        rows.append(_row(facts, tag("em", "all pairs"), every, "total"))
    for value in values:
        label = tag("em", "no value") if value.word is None else tag("bdi", _clipped(value.word))
        rows.append(_row(facts, label, value, None))
    title = f"Kept by value of {name}"
    caption = tag("caption", title, class_="hidden")
    return scrolling(tag("table", caption, tag("thead", header), tag("tbody", rows)), title)


def _row(facts: ValuesFacts, label: Markup, value: Value, class_: str | None) -> Markup:
    cells = [
        tag(
            "td",
            share(part, value.rows),
            tag("small", count(part)),
            class_=f"n heat {colour(subset)}",
            style=f"--v:{100 * part / value.rows if value.rows else 0:.2f}%",
        )
        for subset, part in zip(facts.subsets, value.kept, strict=True)
    ]
    pool = tag("td", count(value.rows), tag("small", share(value.rows, facts.rows)), class_="n")
    return tag("tr", tag("th", label, scope="row"), pool, cells, class_=class_)


def _clipped(text: str) -> str:
    return text if len(text) <= _CLIP else text[: _CLIP - 1] + "…"
