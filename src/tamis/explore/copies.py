"""Groups of repeated pictures: the pair that stays beside those that it stands for, and how many bits differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tamis.reporting.pairs import read_pairs

if TYPE_CHECKING:
    from tamis.explore.queries import Explorer

#: The recipe whose groups are shown where the recipe on the page has no step that looks for repeats.
USUAL: Mapping[str, Any] = {"name": "copies", "select": [{"distinct": {"missing": "drop"}}]}

_CAPTION = 300


def copies(explorer: Explorer, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the largest groups of which a step of a recipe keeps one, the keeper first.

    Where no step of it does, and the run has hashes of its images, those of `distinct` are told.
    """
    subset = explorer.choose(recipe)
    lines = [line for line in subset.funnel if (line.get("facts") or {}).get("groups") is not None]
    usual = not lines and "image_hash" in explorer.run.columns
    if usual:
        subset = explorer.choose(USUAL)
        lines = [line for line in subset.funnel if (line.get("facts") or {}).get("groups") is not None]
    found = []
    for line in lines:
        for group in line["facts"]["largest_groups"]:
            found.append({"step": line["step"], "size": group["size"], "rows": [int(row) for row in group["rows"]]})
    rows = sorted({row for group in found for row in group["rows"]})
    hashed = ["image_hash"] if "image_hash" in explorer.run.columns else []
    pairs = read_pairs(explorer.run, rows, [], hashed, None)
    for group in found:
        keeper = pairs[group["rows"][0]]
        group["members"] = [
            {
                "row": row,
                "caption": (pairs[row].caption or "")[:_CAPTION],
                "status": pairs[row].status,
                "key": pairs[row].key,
                "bits": bits(keeper.words.get("image_hash"), pairs[row].words.get("image_hash")),
            }
            for row in group.pop("rows")
        ]
    return {
        "usual": usual,
        "groups": sum(int(line["facts"]["groups"]) for line in lines),
        "shown": found,
        "step": lines[0]["step"] if lines else "",
    }


def bits(keeper: str | None, other: str | None) -> int | None:
    """Returns in how many of 64 bits the whole picture of one differs from the nearest hash of the other.

    Args:
        keeper, other: hashes as `image_hash` emits them; None where an image has none.
    """
    if keeper is None or other is None:
        return None

    def distance(one: str, two: str) -> int:
        first, insides = int(one.split()[0], 16), [int(word, 16) for word in two.split()]
        return min((first ^ each).bit_count() for each in insides)

    return min(distance(keeper, other), distance(other, keeper))
