"""What was chosen from the pool: each subset with its size and its recipe's purpose and source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.charts import bar
from tamis.reporting.context import Context
from tamis.reporting.formats import count, share
from tamis.reporting.html import Markup, tag
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.reporting.tables import table


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One subset.

    Attributes:
        about, source: as its recipe says, or "".
    """

    subset: SubsetName
    about: str
    source: str


@dataclass(frozen=True, kw_only=True)
class SubsetsFacts:
    """The subsets, in the order they were given."""

    rows: int
    subsets: Sequence[Chosen]


def gather(context: Context) -> SubsetsFacts:
    """Reads what the recipes of the subsets say of themselves."""
    return SubsetsFacts(
        rows=context.rows,
        subsets=[
            Chosen(
                subset=name,
                about=str(subset.recipe.get("about", "")).strip(),
                source=str(subset.recipe.get("source", "")).strip(),
            )
            for name, subset in zip(context.names, context.subsets, strict=True)
        ],
    )


def draw(facts: SubsetsFacts) -> Markup:
    """Draws a line per subset."""
    if not facts.subsets:
        return tag(
            "p",
            "No subset was given: this page describes the pool. Add some with ",
            tag("code", "tamis report RUN A.parquet B.parquet"),
            ".",
            class_="quiet",
        )
    rows = [
        tag(
            "tr",
            tag("th", swatched(each.subset), scope="row"),
            tag("td", count(each.subset.kept), class_="n"),
            tag("td", share(each.subset.kept, facts.rows), class_="n"),
            tag("td", bar(each.subset.kept, facts.rows), class_="bars"),
            tag("td", each.about or None, tag("small", each.source) if each.source else None, class_="text"),
            class_=colour(each.subset),
        )
        for each in facts.subsets
    ]
    return tag("div", table(("Subset", "Kept", "Share", "", "What it is"), rows, "overview"), class_="card")
