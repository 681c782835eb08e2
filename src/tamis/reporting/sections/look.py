"""Which recipes are worth trying: what `tamis look` makes of the pairs it looked at. Other runs have no section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.context import Context
from tamis.reporting.formats import NONE, count
from tamis.reporting.html import Markup, tag
from tamis.reporting.tables import table
from tamis.store.records import LookFile, read_left

#: The file in the run folder that `tamis look` leaves, and the version of its layout that is read.
FILE, FORMAT = "look.json", 1


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A recipe that is worth trying.

    Attributes:
        recipe: its name.
        why: what speaks for it.
        share: of the pairs looked at that it keeps, with the ends of its 95 % interval; None where it was not tried.
        commands: for the whole pool.
    """

    recipe: str
    why: str
    share: tuple[float, float, float] | None
    commands: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LookFacts:
    """What was looked at, and what it speaks for.

    Attributes:
        pairs: how many pairs.
        shards, of: the first rows of how many shards, of how many in the pool.
        seconds: what measuring took.
        proposals: the cheapest first.
    """

    pairs: int
    shards: int
    of: int
    seconds: float
    proposals: Sequence[Proposal]


def gather(context: Context) -> LookFacts | None:
    """Reads what a look left in the run folder; None where there was none.

    Raises:
        RunError: the file is damaged, or was written by a newer version.
    """
    facts = read_left(context.run.path / FILE, "tamis look", FORMAT, LookFile)
    if facts is None:
        return None
    return LookFacts(
        **{name: facts[name] for name in ("pairs", "shards", "of", "seconds")},
        proposals=[
            Proposal(**{**each, "share": tuple(each["share"]) if each["share"] else None})
            for each in facts["proposals"]
        ],
    )


def draw(facts: LookFacts) -> Markup:
    """Draws a table of recipes, then the commands of each."""
    intro = tag(
        "p",
        f"{count(facts.pairs)} pairs, the first rows of {count(facts.shards)} of {count(facts.of)} shards, measured in "
        f"{facts.seconds:,.0f} s. Shares are of these, with 95 % intervals as if pairs had been drawn at random; a "
        "pool whose shards are sorted has others. Which recipe trains the better model, no look "
        "tells: tamis bench does.",
        class_="quiet",
    )
    rows = [
        tag(
            "tr",
            tag("th", each.recipe, scope="row"),
            tag("td", _share(each.share), class_="n"),
            tag("td", each.why),
        )
        for each in facts.proposals
    ]
    commands = [
        tag("details", tag("summary", each.recipe), tag("pre", "\n".join(each.commands), tabindex=0))
        for each in facts.proposals
    ]
    return tag(
        "div", intro, tag("div", table(("Recipe", "Kept", "Why"), rows), tag("h3", "For the whole pool"), commands,
        class_="card"), class_="stack",
    )  # fmt: skip


def _share(share: tuple[float, float, float] | None) -> str | Markup:
    if share is None:
        return NONE
    value, low, high = (f"{100 * end:.0f}" for end in share)
    return tag("span", f"{value} %", tag("small", f" {low} to {high}"))
