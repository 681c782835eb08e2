"""What the reader must know before the numbers: shards that failed, scores left out, pictures that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tamis.reporting.context import Context
from tamis.reporting.formats import count, plural
from tamis.reporting.html import Markup, join, tag

#: Failed shards that are listed.
_FAILURES = 20


@dataclass(frozen=True, kw_only=True)
class Unexplained:
    """A subset of which the page cannot say why pairs were dropped, and why it cannot."""

    subset: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class NotesFacts:
    """What is wrong, or lacking.

    Attributes:
        failures: shard to error.
        incomplete: labels of scores that not every shard has, with how many have them.
        shards: of the run.
        missing: how many of the run's shards are not indexed, and are not on this page.
        listed: how many the run has.
        no_pictures: why the page has none; "" where it may have some.
    """

    failures: Mapping[str, str]
    incomplete: Mapping[str, int]
    shards: int
    missing: int
    listed: int
    unexplained: Sequence[Unexplained]
    no_pictures: str


def gather(context: Context) -> NotesFacts:
    """Collects what is wrong."""
    no_pictures = ""
    if context.pool is None:
        no_pictures = "The pool's files are not where the run read them, so there are no pictures."
    elif not context.pool.has_images:
        no_pictures = "The pool is metadata only, so there are no pictures."
    return NotesFacts(
        failures=context.run.failures,
        incomplete=context.incomplete,
        shards=len(context.run.shards),
        missing=len(context.run.missing),
        listed=len(context.run.urls),
        unexplained=[
            Unexplained(subset=name.label, problem=explained.problem)
            for name, explained, keep in zip(context.names, context.explanations, context.keeps, strict=True)
            if explained.problem and not keep.all()
        ],
        no_pictures=no_pictures,
    )


def draw(facts: NotesFacts) -> Markup:
    """Draws warnings and notes; nothing where all is well."""
    return join(
        tag(
            "p",
            f"Partial: {count(facts.missing)} of the run's {plural(facts.listed, 'shard')} are missing, and nothing on "
            "this page counts their pairs.",
            class_="warning",
        )
        if facts.missing
        else None,
        _failures(facts.failures) if facts.failures else None,
        [
            tag(
                "p",
                f"The score {label} is not complete: {done} of {facts.shards} shards have it. It is left out.",
                class_="warning",
            )
            for label, done in facts.incomplete.items()
        ],
        [
            tag("p", f"{each.subset}: the page cannot say why pairs were dropped. {each.problem}", class_="warning")
            for each in facts.unexplained
        ],
        tag("p", facts.no_pictures, class_="note") if facts.no_pictures else None,
    )


def _failures(failures: Mapping[str, str]) -> Markup:
    listed = [tag("li", tag("code", shard), " ", error) for shard, error in list(failures.items())[:_FAILURES]]
    more = f"and {count(len(failures) - _FAILURES)} more" if len(failures) > _FAILURES else None
    return tag(
        "div",
        tag("h2", f"{plural(len(failures), 'shard')} could not be (wholly) read"),
        tag("p", "Their pairs are not, or not all, in this report."),
        tag("ul", listed, tag("li", more) if more else None),
        class_="warning",
    )
