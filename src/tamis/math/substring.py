"""What two texts have in common."""

from __future__ import annotations

from collections.abc import Collection


def longest_shared_run(one: str, other: str) -> int:
    """Returns the length of the longest run of consecutive characters that stands in both texts.

    A run of k characters that both have contains one of k - 1, so the length is found by halving. Cost: O(n log n)
    for n characters in both together, times the length of the run for hashing.
    """
    least, most = 0, min(len(one), len(other))
    while least < most:
        length = (least + most + 1) // 2
        runs = {one[start : start + length] for start in range(len(one) - length + 1)}
        if any(other[start : start + length] in runs for start in range(len(other) - length + 1)):
            least = length
        else:
            most = length - 1
    return least


def longest_run_across(one: str, gaps: Collection[int], other: str, breaks: Collection[int]) -> int:
    """Returns the length of the longest run that stands in both texts and crosses a break of the other at a gap.

    A run may cross a break only where the first text has a gap at the same place. 0 where no run crosses one.

    Args:
        one: the first text.
        gaps: places in it, as the number of characters before: 0 < gap < len(one).
        other: the second text.
        breaks: places in it, likewise.

    Cost: gaps times breaks, times the length of the runs.
    """
    gaps, breaks = frozenset(gaps), frozenset(breaks)
    best = 0
    for at in breaks:
        for start in gaps:
            before = after = 0
            while (
                before < min(start, at)
                and one[start - before - 1] == other[at - before - 1]
                and (before == 0 or at - before not in breaks or start - before in gaps)
            ):
                before += 1
            while (
                after < min(len(one) - start, len(other) - at)
                and one[start + after] == other[at + after]
                and (after == 0 or at + after not in breaks or start + after in gaps)
            ):
                after += 1
            if before and after:
                best = max(best, before + after)
    return best
