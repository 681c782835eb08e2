"""Medium phrases: what SIEVE removed of captions before it compared them, phrase by phrase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tamis.reporting.context import Context
from tamis.reporting.formats import count, plural, share
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.tables import table
from tamis.signals.medium import MEDIUM_PHRASES, Removed, removed_by
from tamis.store import Run
from tamis.store.run import ScoreSet

#: Phrases of a list that are shown.
MOST = 20


@dataclass(frozen=True, kw_only=True)
class MediumOfScores:
    """What one scorer's list of phrases removed.

    Attributes:
        label: of the scorer.
        phrases: the list, by name, or its own phrases.
        captions: what was removed of the captions that were judged.
        generated: what was removed of the generated captions that came nearest, which alone are stored.
    """

    label: str
    phrases: str
    captions: Removed
    generated: Removed


@dataclass(frozen=True, kw_only=True)
class MediumFacts:
    """The scorers that remove medium phrases."""

    scores: Sequence[MediumOfScores]


def gather(context: Context) -> MediumFacts | None:
    """Counts what was removed; None where no complete scorer removes phrases."""
    found = []
    for label, group in context.run.scores.items():
        medium = group.facts["settings"].get("medium") if group.facts["name"] == "sieve" else None
        if not medium or label in context.incomplete:
            continue
        phrases = MEDIUM_PHRASES.get(medium, ()) if isinstance(medium, str) else tuple(medium)
        found.append(
            MediumOfScores(
                label=label,
                phrases=medium if isinstance(medium, str) else ", ".join(medium),
                captions=removed_by(phrases, _captions(context.run)),
                generated=removed_by(phrases, _nearest(context, group)),
            )
        )
    return MediumFacts(scores=found) if found else None


def _captions(run: Run) -> Iterator[str]:
    for shard in run.shards:
        index = run.index(shard, ["caption", "caption_judged"])
        yield from index.filter(index.column("caption_judged")).column("caption").to_pylist()


def _nearest(context: Context, group: ScoreSet) -> Iterator[str]:
    name = next(
        name
        for name, (_, of, column) in context.run.columns.items()
        if of is not None and of.label == group.label and column.name == "sieve_caption"
    )

    def words(place: slice, columns: dict[str, Any]) -> list[str]:
        values = columns[name]
        texts = values if values.type == pa.string() else values.cast(pa.string())
        return [text for text in texts.to_pylist() if text is not None]

    for block in context.table.map([name], words):
        yield from block


def draw(facts: MediumFacts) -> Markup:
    """Draws a table of phrases for each scorer."""
    about = (
        "Phrases that say what kind of picture it is are removed from both sides before SIEVE compares them. A text in "
        "which a phrase stands twice counts once."
    )
    return join(tag("p", about, class_="quiet"), [_scores(each) for each in facts.scores])


def _scores(each: MediumOfScores) -> Markup:
    captions, generated = dict(each.captions.phrases), dict(each.generated.phrases)
    phrases = sorted({*captions, *generated}, key=lambda one: (-captions.get(one, 0), -generated.get(one, 0), one))
    rows = [
        tag(
            "tr",
            tag("td", phrase),
            tag("td", count(captions.get(phrase, 0)), class_="n"),
            tag("td", share(captions.get(phrase, 0), each.captions.texts), class_="n"),
            tag("td", count(generated.get(phrase, 0)), class_="n"),
            tag("td", share(generated.get(phrase, 0), each.generated.texts), class_="n"),
        )
        for phrase in phrases[:MOST]
    ]
    more = f" {plural(len(phrases) - MOST, 'rarer phrase')} not shown." if len(phrases) > MOST else ""
    return tag(
        "article",
        tag("h3", f"{each.label}: {each.phrases}"),
        tag("p", _line("captions", each.captions), class_="quiet"),
        tag("p", _line("nearest generated captions", each.generated) + more, class_="quiet"),
        table(("Phrase", "Captions", "Share", "Generated", "Share of generated"), rows) if rows else None,
        class_="card",
    )


def _line(what: str, removed: Removed) -> str:
    return (
        f"Of {count(removed.texts)} {what} {count(removed.touched)} ({share(removed.touched, removed.texts)}) lost "
        f"{plural(removed.characters, 'character')}; of {count(removed.emptied)} nothing is left."
    )
