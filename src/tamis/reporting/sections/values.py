"""Of each value of a word column (language, status, a carried field), the share that each subset keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.context import Context
from tamis.reporting.formats import count, share
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.reporting.tables import scrolling
from tamis.reporting.tally import FEW, Tally

#: Values of a column that are shown at once, and at all.
_FIRST, _LISTED = FEW, 200

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
        distinct: how many different values they have.
        values: the most frequent ones, null among them.
        others: how many more there are.
    """

    name: str
    about: str
    judged: int
    distinct: int
    values: Sequence[Value]
    others: int


@dataclass(frozen=True, kw_only=True)
class ValuesFacts:
    """The word columns of a run that sort pairs, with the status where it tells something.

    Attributes:
        texts: columns of free text, which are no values to compare.
        ids: columns in which most pairs have a value of their own.
    """

    rows: int
    subsets: Sequence[SubsetName]
    columns: Sequence[Words]
    texts: Sequence[str]
    ids: Sequence[str]


def gather(context: Context) -> ValuesFacts | None:
    """Counts words in one pass; None where there is not a column of words that some pair has."""
    # The status alone says nothing here while every pair is ok, or while there is no subset to compare.
    telling = bool(context.subsets) and any(status != "ok" for status in context.statuses)
    found = context.tallies
    names = [name for name in context.words if found[name].many or found[name].distinct or not context.rows]
    if not names and not telling:
        return None
    abouts = {name: column.about or "a field that came with the pairs" for name, column in context.words.items()}
    abouts["status"] = "what could be read of each pair"
    shown = [*(["status"] if telling else []), *(name for name in names if found[name].kind == "category")]
    return ValuesFacts(
        rows=context.rows,
        subsets=context.names,
        columns=[_words(name, abouts[name], found[name]) for name in shown],
        texts=[name for name in names if found[name].kind == "text"],
        ids=[name for name in names if found[name].kind == "id"],
    )


def _words(name: str, about: str, tally: Tally) -> Words:
    values = [Value(word=word, rows=rows, kept=kept) for word, rows, kept in tally.values[:_LISTED]]
    others = len(tally.values) - len(values)
    return Words(name=name, about=about, judged=tally.judged, distinct=tally.distinct, values=values, others=others)


def draw(facts: ValuesFacts) -> Markup:
    """Draws a table per column."""
    text = "Of each value, the share that each subset keeps. A subset blind to a value keeps its usual share of it."
    return join(
        tag("p", text, class_="quiet") if facts.subsets and facts.columns else None,
        tag("div", [_column(facts, words) for words in facts.columns], class_="stack") if facts.columns else None,
        _uncompared("free text, which the cards of the galleries show", facts.texts),
        _uncompared("nearly every pair has a value of its own", facts.ids),
    )


def _uncompared(why: str, names: Sequence[str]) -> Markup | None:
    if not names:
        return None
    listed = [join(", " if place else None, tag("code", name)) for place, name in enumerate(names)]
    return tag("p", "Not listed: ", listed, f" ({why}).", class_="quiet rest")


def _column(facts: ValuesFacts, words: Words) -> Markup:
    head = [tag("h3", tag("code", words.name)), tag("p", words.about, class_="quiet")]
    if not facts.rows:
        return tag("article", head, tag("p", "There are no pairs."), class_="card")
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
