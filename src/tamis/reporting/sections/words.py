"""Which words of captions are more, and which less, frequent among what each subset keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tamis.reporting.context import Context
from tamis.reporting.formats import NONE, count, share
from tamis.reporting.frequency import RARE, Frequency, frequencies
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.reporting.tables import scrolling

#: Words of each side that are shown; others than chance would give.
_SHOWN, _SURPRISING = 12, 2.0


@dataclass(frozen=True, kw_only=True)
class WordsOfSubset:
    """The words of which a subset keeps the most, and the least, beside what it keeps of all captions.

    Attributes:
        kept: captions that it keeps, of those looked at.
        more, less: the most surprising first.
    """

    subset: SubsetName
    kept: int
    more: Sequence[Frequency]
    less: Sequence[Frequency]


@dataclass(frozen=True, kw_only=True)
class WordsFacts:
    """Words of captions.

    Attributes:
        looked_at: pairs whose captions were read, drawn by uid.
        captions: how many of them have one.
        rows: of the run.
    """

    looked_at: int
    captions: int
    rows: int
    subsets: Sequence[WordsOfSubset]


def gather(context: Context) -> WordsFacts | None:
    """Counts words; None where there is no subset that keeps some captions and drops others."""
    if not context.subsets:
        return None
    captions = list(_captions(context))
    rows = context.sample
    keeps = [keep[rows] for keep in context.keeps]
    there = np.array([caption is not None for caption in captions], bool)
    subsets = [
        WordsOfSubset(
            subset=name,
            kept=int(np.count_nonzero(keep & there)),
            more=[each for each in found if each.surprise >= _SURPRISING][:_SHOWN],
            less=[each for each in reversed(found) if each.surprise <= -_SURPRISING][:_SHOWN],
        )
        for name, keep, found in zip(context.names, keeps, frequencies(captions, keeps), strict=True)
        if found
    ]
    if not subsets:
        return None
    return WordsFacts(looked_at=rows.size, captions=int(np.count_nonzero(there)), rows=context.rows, subsets=subsets)


def _captions(context: Context) -> Iterator[str | None]:
    starts = context.table.starts
    for block, shard in enumerate(context.run.shards):
        first, last = np.searchsorted(context.sample, [starts[block], starts[block + 1]])
        if first < last:
            index = context.run.index(shard, ["caption", "caption_judged"]).take(
                context.sample[first:last] - starts[block]
            )
            judged = index.column("caption_judged").to_pylist()
            for caption, good in zip(index.column("caption").to_pylist(), judged, strict=True):
                yield caption if good else None


def draw(facts: WordsFacts) -> Markup:
    """Draws a card per subset."""
    about = (
        f"Words that at least {RARE} captions hold, by how much more or less of their captions a subset keeps than of "
        "all captions; those first that chance explains least."
    )
    if facts.looked_at < facts.rows:
        about += f" Of {count(facts.looked_at)} pairs drawn by uid."
    return join(
        tag("p", about, class_="quiet"),
        tag("div", [_subset(each, facts.captions) for each in facts.subsets], class_="columns"),
    )


def _subset(each: WordsOfSubset, captions: int) -> Markup:
    total = tag("span", f"{share(each.kept, captions)} of all captions kept", class_="total")
    sides = [_side(each, title, words) for title, words in (("More", each.more), ("Less", each.less)) if words]
    none = tag("p", "No word is much more frequent among the kept than among the dropped.", class_="quiet")
    return tag(
        "article",
        tag("h3", swatched(each.subset), total),
        tag("div", sides, class_="sides narrow") if sides else none,
        class_=f"card {colour(each.subset)}",
    )


def _side(each: WordsOfSubset, title: str, words: Sequence[Frequency]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", tag("bdi", word.word), scope="row"),
            tag(
                "td",
                share(word.kept, word.pool) if word.pool else NONE,
                tag("small", f"{count(word.kept)} of {count(word.pool)}"),
                class_="n heat",
                style=f"--v:{100 * word.kept / word.pool:.2f}%",
            ),
        )
        for word in words
    ]
    head = tag("tr", tag("th", f"{title} often kept", scope="col"), tag("th", "Kept", scope="col", class_="n"))
    label = f"Words {title.lower()} often kept by {each.subset.label}"
    return scrolling(tag("table", tag("thead", head), tag("tbody", rows)), label)
