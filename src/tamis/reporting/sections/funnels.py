"""How each recipe comes to its subset: a bar per step, with what the step dropped and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from tamis.reporting.charts import bar
from tamis.reporting.context import Context
from tamis.reporting.formats import count, number, share
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.reporting.tables import scrolling

#: Classes that a step tells of, at most.
_CLASSES = 200


@dataclass(frozen=True, kw_only=True)
class Line:
    """One step of a funnel.

    Attributes:
        before, kept: rows before it and after it.
        dropped: rows by reason.
        codes: of the reasons whose pairs the galleries show, their numbers among those of the recipe.
        cut: the value that it cut at, where it drew it itself.
        facts: what else the step tells of its choice.
    """

    step: str
    before: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    cut: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Funnel:
    """The steps of one subset, with the recipe they stand in.

    Attributes:
        about, source: as the recipe says, or "".
        changed: whether it was overridden, so that these no longer tell all.
    """

    subset: SubsetName
    about: str
    source: str
    changed: bool
    lines: Sequence[Line]
    recipe: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FunnelsFacts:
    """A funnel per subset."""

    rows: int
    funnels: Sequence[Funnel]


def gather(context: Context) -> FunnelsFacts | None:
    """Reads the funnels that the subsets hold; None where there is no subset."""
    if not context.subsets:
        return None
    return FunnelsFacts(
        rows=context.rows,
        funnels=[
            Funnel(
                subset=name,
                about=str(subset.recipe.get("about") or "").strip(),
                source=str(subset.recipe.get("source") or "").strip(),
                changed=name.label.startswith(f"{subset.name}, "),
                lines=[
                    _line(context, name.place, number_, each) for number_, each in enumerate(subset.funnel, start=1)
                ],
                recipe=dict(subset.recipe),
            )
            for name, subset in zip(context.names, context.subsets, strict=True)
        ],
    )


def dropped_anchor(subset: SubsetName, code: int) -> str:
    """Returns where the pairs that fell by a reason of a subset's recipe stand on the page."""
    return f"drop-{subset.place}-{code}"


def _line(context: Context, place: int, step: int, entry: Mapping[str, Any]) -> Line:
    cut, why = entry.get("cut"), context.explanations[place].why
    codes = {}
    for code in context.shown_reasons(place):
        reason = why[code - 1]
        if reason.step == step:
            codes["missing" if reason.text.startswith("no value for ") else reason.text] = code
    return Line(
        step=str(entry.get("step", "")),
        before=int(entry["before"]),
        kept=int(entry["kept"]),
        dropped={str(reason): int(rows) for reason, rows in dict(entry.get("dropped") or {}).items()},
        codes=codes,
        cut=float(cut) if cut is not None else None,
        facts=dict(entry.get("facts") or {}),
    )


def draw(facts: FunnelsFacts) -> Markup:
    """Draws the funnels in two columns."""
    return tag("div", [_funnel(each, facts.rows) for each in facts.funnels], class_="columns")


def _funnel(funnel: Funnel, rows: int) -> Markup:
    kept = funnel.subset.kept
    every = Line(step="every pair", before=rows, kept=rows)
    lines = [_step(funnel.subset, line, rows) for line in (every, *funnel.lines)]
    if not funnel.lines:
        lines.append(tag("li", "The recipe has no step that drops anything.", class_="quiet"))
    recipe = yaml.safe_dump(dict(funnel.recipe), sort_keys=False, allow_unicode=True)
    return tag(
        "article",
        tag("h3", swatched(funnel.subset), tag("span", f"{count(kept)} · {share(kept, rows)}", class_="total")),
        tag(
            "p",
            "As shipped: " if funnel.changed else None,
            funnel.about,
            " " if funnel.source else None,
            tag("small", funnel.source),
            class_="about",
        )
        if funnel.about or funnel.source
        else None,
        tag("ol", lines, class_="funnel"),
        tag("details", tag("summary", "Recipe"), tag("pre", recipe, tabindex=0)),
        class_=f"card {colour(funnel.subset)}",
    )


def _step(subset: SubsetName, line: Line, rows: int) -> Markup:
    reasons = [
        tag("li", _lost(subset, line, reason, lost), " ", "no value" if reason == "missing" else reason)
        for reason, lost in line.dropped.items()
    ]
    cut = f"cut at {number(line.cut, 5)}" if line.cut is not None and not says(line.step, line.cut) else None
    return tag(
        "li",
        tag("span", line.step, tag("em", cut) if cut else None, class_="step"),
        tag("span", count(line.kept), " ", tag("small", share(line.kept, rows)), class_="n"),
        bar(line.kept, rows, before=line.before),
        tag("ul", reasons, class_="reasons") if reasons else None,
        _told(line.facts) if line.facts else None,
    )


def _lost(subset: SubsetName, line: Line, reason: str, lost: int) -> Markup:
    if reason not in line.codes:
        return tag("b", f"−{count(lost)}")
    return tag("a", f"−{count(lost)}", href=f"#{dropped_anchor(subset, line.codes[reason])}")


def says(step: str, cut: float) -> bool:
    """Returns whether the words for a step hold the value it cuts at ("words >= 3"), so that it need not be added."""
    return number(cut) in step.replace("-", "−")


def _told(told: Mapping[str, Any]) -> Markup:
    """What a step tells of its choice: numbers as a list, classes with their sizes as a table behind a click."""
    plain = [
        tag("li", f"{str(name).replace('_', ' ')}: ", tag("b", number(float(value), 4)))
        for name, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    shares = told.get("kept_share_by_epsilon") or {}
    plain += [
        tag("li", f"kept at epsilon {epsilon}: ", tag("b", f"{100 * float(kept):.1f} %"))
        for epsilon, kept in shares.items()
    ]
    classes = told.get("classes")
    return join(
        tag("ul", plain, class_="reasons") if plain else None,
        _classes(classes) if isinstance(classes, list | tuple) and classes else None,
    )


def _classes(classes: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", str(each["class"]), scope="row"),
            tag("td", count(int(each["pairs"])), class_="n"),
            tag("td", count(int(each["kept"])), class_="n"),
        )
        for each in classes[:_CLASSES]
    ]
    head = tag(
        "tr",
        tag("th", "class", scope="col"),
        [tag("th", name, scope="col", class_="n") for name in ("pairs", "kept")],
    )
    summary = f"{count(len(classes))} classes with their pairs and what is kept of each, the largest first"
    hidden = len(classes) - len(rows)
    return tag(
        "details",
        tag("summary", summary),
        scrolling(tag("table", tag("thead", head), tag("tbody", rows)), "Classes"),
        tag("p", f"and {count(hidden)} smaller ones", class_="quiet") if hidden else None,
    )
