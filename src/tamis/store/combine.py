"""Subsets of one run, put together row by row: both, either, the one without the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tamis.store.reasons import Codes, Reason, Verdict, widened

if TYPE_CHECKING:
    from tamis.store.subset import Subset

Sign = Literal["&", "|", "-"]

_WORDS: Mapping[Sign, str] = {"&": "in {0} and in {1}", "|": "in {0} or in {1}", "-": "in {0} and not in {1}"}


def combined(left: Subset, right: Subset, sign: Sign) -> Subset:
    """Returns the rows that are in both (&), in one of two (|), or in the left and not the right (-).

    Repeats: & takes the minimum, | the maximum. The reason of a row is what dropped it from the left, or else from the
    right.
    """
    if left.run.path.resolve() != right.run.path.resolve() or left.keep.size != right.keep.size:
        raise ValueError(
            f"{left.name!r} is of {left.run.path} ({left.keep.size:,} rows) and {right.name!r} of {right.run.path} "
            f"({right.keep.size:,}): only subsets of one run can be put together"
        )
    mine, theirs = _times(left), _times(right)
    if sign == "-":
        times = np.where(theirs > 0, mine.dtype.type(0), mine)
    else:
        times = np.minimum(mine, theirs) if sign == "&" else np.maximum(mine, theirs)
    keep = times > 0
    name = f"{_name(left)} {sign} {_name(right)}"
    verdict = _verdict(left, right, sign, keep)
    step = _WORDS[sign].format(left.name, right.name)
    dropped = {} if verdict.dropped_by is None else _counts(verdict.dropped_by, verdict.why)
    line = {"step": step, "before": int(keep.size), "kept": int(keep.sum()), "dropped": dropped, "cut": None}
    return replace(
        left,
        keep=keep,
        times=times.astype(np.uint16) if left.times is not None or right.times is not None else None,
        recipe={**_recipe(left, right, sign), "name": name},
        funnel=[line],
        reads=sorted({*left.reads, *right.reads}),
        verdict=verdict,
        partial=left.partial or right.partial,
    )


def _times(subset: Subset) -> Any:
    return subset.times if subset.times is not None else subset.keep.astype(np.uint16)


def _name(subset: Subset) -> str:
    return f"({subset.name})" if " " in subset.name else subset.name


def _verdict(left: Subset, right: Subset, sign: Sign, keep: Any) -> Verdict:
    """Returns why rows are dropped: the left's reasons, then the right's."""
    for subset in (left, right):
        if subset.verdict.dropped_by is None:
            return Verdict(problem=f"the reasons of {subset.name!r} are not known. {subset.verdict.problem}")
    one, two = left.verdict, right.verdict
    assert one.dropped_by is not None
    assert two.dropped_by is not None
    clash = any(one.names.get(name, name) != two.names.get(name, name) for name in {*one.names, *two.names})
    why = [_named(reason, left.name, clash) for reason in one.why]
    codes = widened(one.dropped_by.copy(), len(one.why) + len(two.why) + 1)
    if sign == "-":
        why.append(Reason(text=f"in {right.name}", step=1))
        codes = np.where((codes == 0) & right.keep, codes.dtype.type(len(why)), codes)
        cuts = one.cuts
    else:
        why += [_named(reason, right.name, clash) for reason in two.why]
        fallen = (codes == 0) & (two.dropped_by > 0)
        codes = np.where(fallen, two.dropped_by.astype(codes.dtype) + len(one.why), codes).astype(codes.dtype)
        cuts = (*one.cuts, *(replace(cut, code=cut.code + len(one.why)) for cut in two.cuts))
    codes = np.where(keep, codes.dtype.type(0), codes)
    return Verdict(
        names={**two.names, **one.names}, why=tuple(why), dropped_by=codes, cuts=() if clash else tuple(cuts)
    )


def _named(reason: Reason, subset: str, clash: bool) -> Reason:
    """Returns a reason that names its subset; without its score if the two call columns differently."""
    return replace(reason, text=f"not in {subset}: {reason.text}", step=1, score=None if clash else reason.score)


def _counts(codes: Codes, why: tuple[Reason, ...]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        if code:
            counted[why[code - 1].text] += int(count)
    return dict(counted)


def _recipe(left: Subset, right: Subset, sign: Sign) -> dict[str, Any]:
    """Returns a recipe that chooses the same rows; without steps if one recipe cannot say both."""
    about = _WORDS[sign].format(left.name, right.name)
    mine, theirs = left.recipe.get("select"), right.recipe.get("select")
    columns = [dict(subset.recipe.get("columns") or {}) for subset in (left, right)]
    clash = any(columns[0].get(name, name) != columns[1].get(name, name) for name in {*columns[0], *columns[1]})
    if not mine or not theirs or clash or left.times is not None or right.times is not None:
        return {"about": about}
    steps = {
        "&": [{"all_of": [mine, theirs]}],
        "|": [{"any_of": [mine, theirs]}],
        "-": [{"all_of": [mine]}, {"none_of": [theirs]}],
    }[sign]
    named = {**columns[0], **columns[1]}
    return {"about": about, "select": steps, **({"columns": named} if named else {})}
