"""The step that chooses between alt-text and generated caption."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tamis.core.errors import RecipeError
from tamis.recipes.recipe import load
from tamis.recipes.steps import AllOf, ChooseCaption, Selection, TopFraction
from tamis.recipes.steps.outcome import captions_from
from tamis.runs.table import MemoryTable, Table

NAN = float("nan")


def table(score: Any, other: Any, text: Any = None, **more: Any) -> Table:
    columns = {"clip": np.array(score, np.float32), "generated_clip": np.array(other, np.float32)}
    return MemoryTable({**columns, "generated_caption": text or [f"text {n}" for n in range(len(score))]}, **more)


def outcome(found: Selection) -> tuple[list[bool], list[int]]:
    return found.keep.tolist(), found.caption.tolist()


def test_by_hand_the_alt_text_stays_where_it_reaches_the_threshold_else_the_other_caption_else_nothing() -> None:
    # Nguyen et al. 2023, section 4. Row 0: the alt-text although the other is better. 3: no alt-text. 4: an empty text.
    columns = table([0.3, 0.1, 0.1, NAN, 0.1, NAN], [0.4, 0.3, 0.2, 0.35, 0.9, NAN], ["a", "b", "c", "d", "", None])
    found = ChooseCaption(threshold=0.3).select(columns)
    assert outcome(found) == ([1, 1, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0])
    assert found.counts == {"kept": 3, "neither text reaches the threshold": 2, "missing": 1}
    assert found.facts == {"threshold": 0.3, "alt_texts": 1, "other_captions": 2}


def test_the_quantile_is_of_the_alt_texts_of_the_pool_and_keeps_those_of_top_fraction() -> None:
    rng = np.random.default_rng(0)
    columns = table(rng.normal(size=500), rng.normal(size=500))
    some = columns.with_candidates(rng.random(500) < 0.8)
    found = ChooseCaption(quantile=0.7).select(some)
    top = TopFraction(score="clip", fraction=0.3, of="pool").select(some)
    assert (found.keep & ~found.caption.astype(bool)).tolist() == top.keep.tolist()  # type: ignore[union-attr]
    assert found.facts["threshold"] == top.cut
    others = columns.read(0, ["generated_clip"])["generated_clip"]
    wanted = some.candidates & ~top.keep & (others >= top.cut)
    assert outcome(found)[1] == wanted.tolist()
    own = ChooseCaption(quantile=0.7, of="survivors").select(some)
    assert own.facts["alt_texts"] == round(0.3 * some.candidates.sum())
    none = ChooseCaption(quantile=1).select(columns)
    assert (none.counts["kept"], none.facts["threshold"]) == (0, None)


def test_mixing_is_drawn_by_uid_at_its_probability_and_only_where_both_reach() -> None:
    rng = np.random.default_rng(1)
    uids = tuple(rng.integers(0, 2**63, (2, 20_000)).astype(np.uint64))
    score, other = np.full(20_000, 0.5), np.full(20_000, 0.5)
    other[:5000] = 0.1
    step = ChooseCaption(threshold=0.3, mix=0.4)
    chosen: NDArray[np.uint8] = step.select(table(score, other, uids=uids)).caption  # type: ignore[assignment]
    assert not chosen[:5000].any()
    assert abs(chosen[5000:].mean() - 0.4) < 4 * np.sqrt(0.24 / 15_000)
    order = rng.permutation(20_000)
    high, low = uids
    again = step.select(table(score[order], other[order], uids=(high[order], low[order])))
    assert np.array_equal(again.caption, chosen[order])  # type: ignore[arg-type]
    another = ChooseCaption(threshold=0.3, mix=0.4, seed=1).select(table(score, other, uids=uids))
    assert abs((another.caption[5000:] == chosen[5000:]).mean() - 0.52) < 0.02  # type: ignore[index]  # independent


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantile": 30}, r"quantile must be in \[0, 1\], got 30"),
        ({"threshold": float("nan")}, "threshold needs a number, got nan"),
        ({"mix": -0.1}, r"mix must be in \[0, 1\]"),
        ({"threshold": 0.2, "quantile": 0.5}, "threshold is set: leave out quantile=0.5"),
        ({"seed": 3}, "with mix: 0 nothing is drawn: leave out seed=3"),
        ({"treshold": 0.2}, "did you mean 'threshold'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load({"select": [{"choose_caption": settings}]})


def test_a_subset_has_its_other_captions_from_one_column() -> None:
    first, second = ChooseCaption(threshold=0.1), ChooseCaption(threshold=0.1, text="sieve_caption")
    assert (
        captions_from([TopFraction(score="clip", fraction=1), AllOf(parts=((first,), (first,)))]) == "generated_caption"
    )
    assert captions_from([TopFraction(score="clip", fraction=1)]) == ""
    with pytest.raises(RecipeError, match=r"from one column only, not from \['generated_caption', 'sieve_caption'\]"):
        captions_from([first, AllOf(parts=((second,),))])
