"""Where the run lies, what else it stores, and the recipe it was scored by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.context import Context
from tamis.reporting.formats import NONE
from tamis.reporting.html import Markup, tag


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The run folder.

    Attributes:
        format: version of its layout.
        embeddings, texts: names of what is stored beside the scores.
        recipe: its recipe.yaml; "" where there is none.
    """

    folder: str
    pool_fingerprint: str | None
    format: int | None
    embeddings: Sequence[str]
    texts: Sequence[str]
    recipe: str


def gather(context: Context) -> RunFacts:
    """Reads the recipe."""
    run = context.run
    try:
        recipe = (run.path / "recipe.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        recipe = ""
    return RunFacts(
        folder=str(run.path.resolve()),
        pool_fingerprint=run.facts.get("pool_fingerprint"),
        format=run.facts.get("format"),
        embeddings=list(run.embeddings),
        texts=list(run.texts),
        recipe=recipe,
    )


def draw(facts: RunFacts) -> Markup:
    """Draws one card."""
    listed = [
        ("Run folder", facts.folder),
        ("Pool fingerprint", facts.pool_fingerprint or NONE),
        ("Format", str(facts.format) if facts.format is not None else NONE),
        ("Embeddings", ", ".join(facts.embeddings) or NONE),
        ("Texts", ", ".join(facts.texts) or NONE),
    ]
    entries = [tag("div", tag("dt", name), tag("dd", tag("code", value))) for name, value in listed]
    return tag(
        "div",
        tag("dl", entries, class_="facts"),
        tag("h3", "recipe.yaml"),
        tag("pre", facts.recipe or "(none)", tabindex=0),
        class_="card",
    )
