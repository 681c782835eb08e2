"""Runs of characters and words that two texts share."""

from __future__ import annotations

from collections.abc import Sequence


def longest_shared_run(one: str, other: str) -> int:
    """Returns the length of the longest run of consecutive characters in both texts.

    A shared run of k characters contains one of k - 1, so a binary search finds the length. Cost: O(n log n) for n
    characters in both together, times the length of the run for hashing.
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


def longest_words_across(words: Sequence[str], lines: Sequence[str]) -> int:
    """Returns the length of the longest run of words that continues over a line break.

    The words follow one another through the lines; each is within one line, with at least one before and one after
    the break. Other text before and after the run does not matter. 0 without such a run.

    Args:
        words, lines: at least one character each.

    Cost: words times lines, times the length of the runs.
    """
    text = "".join(lines)
    ends: set[int] = set()
    length = 0
    for line in lines[:-1]:
        length += len(line)
        ends.add(length)
    best = 0
    for end in ends:
        for first in range(1, len(words)):
            left = right = end
            for word in reversed(words[:first]):
                if not text.endswith(word, 0, left) or any(left - k in ends for k in range(1, len(word))):
                    break
                left -= len(word)
            for word in words[first:] if left < end else ():
                if not text.startswith(word, right) or any(right + k in ends for k in range(1, len(word))):
                    break
                right += len(word)
            if left < end < right:
                best = max(best, right - left)
    return best
