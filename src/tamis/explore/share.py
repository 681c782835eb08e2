"""A view as one HTML file that one can mail: no script, no request, every picture held in it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tamis.explore.images import KIND, NoPicture, Pictures
from tamis.reporting.html import Markup, join, tag

if TYPE_CHECKING:
    from tamis.explore.queries import Explorer

#: Pairs that a file shows, and how much its pictures may weigh, in bytes.
MOST, BUDGET = 120, 8 << 20

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def shared_page(
    explorer: Explorer,
    pictures: Pictures,
    recipe: Mapping[str, Any],
    rows: Sequence[int],
    total: int,
    columns: Sequence[str],
) -> str:
    """Returns a view as one HTML file: what the recipe keeps, its YAML, and the first pairs of the view.

    Args:
        explorer: of the run.
        pictures: of its pairs.
        recipe: what is kept.
        rows: of the view, in its order; the first `MOST` are shown.
        total: how many the view has.
        columns: scores to show of each pair.
    """
    chosen = explorer.chosen(recipe, [])
    shown = list(rows[:MOST])
    pictures.read_ahead(shown)
    room, cards = BUDGET, []
    for card in explorer.cards(shown, recipe, columns):
        face, weight = _face(pictures, card, room)
        room -= weight
        cards.append(_card(card, face))
    name = str(recipe.get("name", "a recipe"))
    body = tag(
        "main",
        tag("h1", name),
        tag("p", tag("strong", f"{chosen['kept']:,}"), f" of {chosen['rows']:,} pairs kept"),
        _funnel(chosen["funnel"]),
        tag("pre", chosen["yaml"]),
        tag("p", f"{total:,} pairs in this view" + (f", the first {len(shown):,} are shown" if total > MOST else "")),
        tag("div", *cards, class_="still"),
    )
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"{name} · Tamis"),
        join(Markup("<style>"), Markup(_style()), Markup("</style>")),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body, class_="shared"), lang="en")


def _style() -> str:
    return (files("tamis.explore.web") / "style.css").read_text(encoding="utf-8")


def _face(pictures: Pictures, card: Mapping[str, Any], room: int) -> tuple[Markup, int]:
    try:
        data = pictures.small(card["row"])
    except NoPicture as problem:
        return tag("i", str(problem)), 0
    if len(data) > room:
        return tag("i", "left out to keep the file small"), 0
    address = f"data:image/{KIND};base64,{base64.b64encode(data).decode('ascii')}"
    return tag("img", src=address, alt=""), len(data)


def _card(card: Mapping[str, Any], face: Markup) -> Markup:
    shown = {name: "–" if value is None else f"{value:.3g}" for name, value in card["scores"].items()}
    scores = [tag("span", f"{name} {value}") for name, value in shown.items()]
    verdict = "kept" if card["kept"] else f"dropped: {card['reason']}"
    return tag(
        "figure",
        tag("span", face, class_="face"),
        tag("figcaption", tag("bdi", card["caption"] or "no caption", dir="auto"), class_="caption"),
        tag("p", tag("span", verdict, class_="verdict"), *scores, class_="foot"),
        class_=f"card {'kept' if card['kept'] else 'dropped'}",
    )


def _funnel(lines: Sequence[Mapping[str, Any]]) -> Markup | None:
    if not lines:
        return None
    rows = [
        tag(
            "tr",
            *(tag("td", text) for text in (line["step"], f"−{line['before'] - line['kept']:,}", f"{line['kept']:,}")),
        )
        for line in lines
    ]
    return tag("table", tag("tr", tag("th", "step"), tag("th", "drops"), tag("th", "left")), *rows)
