"""The page around the sections: its head, its navigation, its policy. Nothing here reads the run's files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tamis.reporting.context import Context
from tamis.reporting.html import Markup, tag
from tamis.reporting.sections import SECTIONS, heading, notes
from tamis.version import VERSION

#: Nothing is loaded from anywhere; no script runs, whatever a caption says.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that the page says.

    Attributes:
        sections: what each section says, in the order of the page; those that say nothing are left out.
    """

    heading: heading.HeadingFacts
    notes: notes.NotesFacts
    sections: Mapping[str, Any]


def gather(context: Context) -> Facts:
    """Reads what every section says of a run and of subsets of it."""
    return Facts(
        heading=heading.gather(context),
        notes=notes.gather(context),
        sections={section.ident: said for section in SECTIONS if (said := section.gather(context)) is not None},
    )


def render(facts: Facts, *, now: float | None = None) -> str:
    """Returns the whole page.

    Args:
        facts: what it says.
        now: when the page is made, in seconds since 1970; None: now.
    """
    sections = [section for section in SECTIONS if section.ident in facts.sections]
    style = (files("tamis.reporting") / "style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=f"tamis {VERSION}"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{facts.heading.name} · Tamis report"),
        tag("style", Markup(style)),
    )
    links = [tag("li", tag("a", section.title, href=f"#{section.ident}")) for section in sections]
    drawn = [
        tag(
            "section",
            tag("h2", section.title, id=f"{section.ident}-title"),
            section.draw(facts.sections[section.ident]),
            id=section.ident,
            aria_labelledby=f"{section.ident}-title",
        )
        for section in sections
    ]
    body = tag(
        "body",
        tag("a", "Skip to the report", class_="skip", href="#main"),
        heading.draw(facts.heading, time.time() if now is None else now),
        tag("nav", tag("ul", links), aria_label="Sections"),
        tag("main", notes.draw(facts.notes), drawn, id="main"),
        tag("footer", f"Written by tamis {VERSION}. Everything on this page is in this one file; it loads nothing."),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en")
