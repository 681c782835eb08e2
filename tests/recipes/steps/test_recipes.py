"""Recipes compared with a slow interpreter: which rows every step drops, for which reason, and counts that add up."""

import pickle
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import INTERPRETERS, SCORES, LackingError, Row, interpret, rows_of, table_of

from tamis.core.errors import RecipeError
from tamis.core.files import scratch
from tamis.core.math import order, sampling
from tamis.recipes import steps as sel
from tamis.recipes.steps import SELECTORS, Step, best, run_steps
from tamis.recipes.steps.outcome import Outcome
from tamis.runs import table

REFERENCE = Path(tempfile.mkdtemp()) / "reference.npy"
np.save(REFERENCE, np.ones((2, 3), np.float16))

score = st.sampled_from(sorted(SCORES))
missing = st.sampled_from(["drop", "drop", "drop", "error"])
value = st.sampled_from([-1.0, 0.0, 0.25, 0.3, 0.5, 1.0, 1.5, 1e300, float("inf")])
fraction = st.one_of(st.sampled_from([0.0, 0.29, 0.5, 1.0]), st.integers(0, 100).map(lambda n: n / 100))
of = st.sampled_from(["pool", "survivors"])
#: per and cap: none, a group's own budget, or one budget with a cap.
groups = st.one_of(
    st.just({}),
    st.builds(dict, per=st.sampled_from("wb")),
    st.builds(dict, per=st.sampled_from("wb"), cap=st.integers(0, 4)),
)

LABELS = ("the high ones", "the english ones")
parts = st.tuples(
    st.builds(lambda value: (sel.AtLeast(score="a", value=value, missing="drop"),), value),
    st.builds(
        lambda n: (sel.Equals(score="w", value="en", missing="drop"), sel.TopN(score="b", n=n, missing="drop")),
        st.integers(0, 9),
    ),
)

STEPS: dict[str, st.SearchStrategy[Step]] = {
    "at_least": st.builds(sel.AtLeast, score=score, value=value, missing=missing),
    "at_most": st.builds(sel.AtMost, score=score, value=value, missing=missing),
    "between": st.builds(
        lambda ends, **more: sel.Between(low=min(ends), high=max(ends), **more),
        st.tuples(value, value),
        score=score,
        missing=missing,
    ),
    "top_fraction": st.builds(
        lambda groups, **more: sel.TopFraction(**groups, **more),
        groups,
        score=score,
        fraction=fraction,
        of=of,
        missing=missing,
    ),
    "top_n": st.builds(
        lambda groups, **more: sel.TopN(**groups, **more), groups, score=score, n=st.integers(0, 9), missing=missing
    ),
    "equals": st.one_of(
        st.builds(sel.Equals, score=st.just("w"), value=st.sampled_from(["en", ("en", "de"), "x"]), missing=missing),
        st.builds(sel.Equals, score=st.just("a"), value=st.sampled_from([0.25, (0.5, 0.75)]), missing=missing),
    ),
    "tagged": st.builds(sel.Tagged, tags=st.sampled_from(["good", "bad", ("bad", "good")])),
    "random_fraction": st.builds(sel.RandomFraction, fraction=fraction, seed=st.integers(0, 3), of=of),
    "sample": st.builds(
        lambda rule, many, **more: sel.Sample(**rule, **many, **more),
        st.sampled_from([{}, {"alpha": 0.4}, {"cap": "level", "alpha": 0.4}, {"cap": "hard", "limit": 200}]),
        st.one_of(st.builds(dict, n=st.integers(1, 40)), st.builds(dict, fraction=fraction.filter(bool), of=of)),
        score=st.sampled_from("ab"),
        seed=st.integers(0, 3),
        missing=missing,
    ),
    "clipcov": st.builds(
        partial(sel.ClipCov, image="i", text="t", per="w", terms=("cov", "class_reg", "inter")),
        n=st.integers(0, 9),
        missing=missing,
    ),
    "norm_sim_d": st.builds(partial(sel.NormSimD, embedding="i", rounds=1), fraction=fraction, of=of, missing=missing),
    "balance": st.builds(
        lambda limit, **more: sel.Balance(entries="w", **limit, **more),
        st.one_of(st.builds(dict, t=st.integers(1, 6)), st.builds(dict, tail=fraction)),
        of=of,
        seed=st.integers(0, 3),
        missing=missing,
    ),
    "cabs": st.builds(
        partial(sel.Cabs, concepts="w"),
        super_batch=st.integers(1, 20),
        share=fraction,
        epochs=st.integers(1, 2),
        missing=missing,
    ),
    "choose_caption": st.builds(
        lambda limit, **more: sel.ChooseCaption(score="a", text="w", **limit, **more),
        st.one_of(st.builds(dict, quantile=fraction, of=of), st.builds(dict, threshold=value)),
        other=st.sampled_from("ab"),
        mix=fraction,
    ),
    "not_in": st.builds(
        partial(sel.NotIn, reference=str(REFERENCE), hashes=False, embedding="i"),
        cosine=st.sampled_from([0.5, 0.95]),
        missing=missing,
    ),
    "hash_match": st.builds(sel.HashMatch, missing=missing),
    "semdedup": st.builds(
        partial(sel.SemDeDup, embedding="i", clusters=1, keep="random"),
        epsilon=st.sampled_from([0.01, 0.3]),
        seed=st.integers(0, 3),
        missing=missing,
    ),
    "density": st.builds(
        partial(sel.Density, embedding="i", clusters=1, keep="random"), n=st.integers(0, 9), missing=missing
    ),
    "d2": st.builds(
        partial(sel.D2, embedding="i", clusters=1),
        score=score,
        fraction=fraction,
        of=of,
        k=st.integers(1, 3),
        mode=st.sampled_from(["weighted", "absolute"]),
        missing=missing,
    ),
    "distinct": st.builds(
        partial(sel.Distinct, hash="h", colours=None, lightness=None), distance=st.integers(0, 2), missing=missing
    ),
    "image_based": st.builds(
        partial(sel.ImageBased, reference=str(REFERENCE), embedding="i", clusters=1), missing=missing
    ),
    **{cls.name: st.builds(partial(cls, labels=LABELS), parts=parts) for cls in (sel.AllOf, sel.AnyOf, sel.NoneOf)},
}


def assert_same(steps: Sequence[Step], rows: Sequence[Row], block: int = 4) -> None:
    """Rows and reasons are the interpreter's, and funnel, counts, cuts and codes agree with one another."""
    try:
        why = interpret(steps, rows)
    except LackingError:
        with pytest.raises(RecipeError, match=r"rows have no value for .*missing: drop"):
            run_steps(table_of(rows, block), steps)
        return
    found = run_steps(table_of(rows, block), steps)
    sentences = ["", *(reason.sentence for reason in found.reasons)]
    codes = found.dropped_by
    assert [sentences[code] for code in codes.tolist()] == [why.get(n, "") for n in range(len(rows))]
    assert (codes == 0).tolist() == found.keep.tolist()
    assert codes.dtype == np.uint8
    before = len(rows)
    for number, line in enumerate(found.funnel, start=1):
        own = [code for code, reason in enumerate(found.reasons, start=1) if reason.step == number]
        assert (line["before"], sum(line["dropped"].values())) == (before, int(np.isin(codes, own).sum()))
        before = line["kept"]
        assert line["before"] == line["kept"] + sum(line["dropped"].values())
        assert line["dropped"].get("missing", 0) == sum(
            text.startswith(f"Step {number}: no value") for text in why.values()
        )
    assert before == int(found.keep.sum())
    assert all(sentences[cut.code].startswith("Step ") for cut in found.cuts)


def test_every_selector_has_a_slow_one() -> None:
    assert set(STEPS) == set(INTERPRETERS) == set(SELECTORS)


@pytest.mark.parametrize("name", STEPS)
@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 10**6), count=st.integers(0, 24), block=st.integers(1, 25))
def test_a_step_drops_what_a_loop_over_rows_drops(name: str, data: Any, seed: int, count: int, block: int) -> None:
    before = data.draw(st.sampled_from([[], [sel.RandomFraction(fraction=0.4, seed=9)]]))  # some rows are out already
    assert_same([*before, data.draw(STEPS[name])], rows_of(seed, count), block)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(*STEPS.values()), max_size=5), st.integers(0, 10**6), st.integers(1, 31))
def test_so_does_a_recipe_of_several_steps(steps: list[Step], seed: int, block: int) -> None:
    assert_same(steps, rows_of(seed, 30), block)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.one_of(*STEPS.values()), max_size=4),
    st.integers(0, 10**6),
    st.integers(1, 31),
    st.sampled_from([1, 4, 12]),
)
def test_pools_that_do_not_fit_into_memory_are_judged_alike(
    steps: list[Step], seed: int, block: int, held: int
) -> None:
    rows = rows_of(seed, 30)
    try:
        expected = run_steps(table_of(rows, block), steps)
    except RecipeError:
        return
    with pytest.MonkeyPatch.context() as patch:
        for module, limit, small in ((order, "_COUNTERS", 8), (table, "_CHUNK", 3), (best, "_EVERY", 2)):
            patch.setattr(module, limit, small)
        for module in (order, best, sampling):
            patch.setattr(module, "HELD", held)
        patch.setattr(sampling, "_DEALT", 5)
        patch.setattr(scratch, "IN_MEMORY", 0)
        found = run_steps(table_of(rows, block), steps)
    assert found.keep[:].tolist() == expected.keep.tolist()
    assert found.dropped_by[:].tolist() == expected.dropped_by.tolist()
    assert_same_copies(found, expected)
    assert (found.funnel, found.reasons, found.cuts) == (expected.funnel, expected.reasons, expected.cuts)


def assert_same_copies(found: Outcome, expected: Outcome) -> None:
    for one, other in (found.times, expected.times), (found.caption, expected.caption):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one[:].tolist() == other.tolist()


class Reopened(table.MemoryTable):
    """Becomes a table without candidates in another process, as a run's does."""

    def __reduce__(self) -> Any:
        return partial(table.MemoryTable, uids=self._uids, block=max(self.sizes, default=1)), (self._columns,)


class OtherProcesses:
    """Does what a cluster does with the work: it arrives as a copy whose table has no candidates."""

    def __call__(self, work: Any, arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        for some in arguments:
            yield pickle.loads(cloudpickle.dumps(work))(*some)

    def deal(self, work: Any, arguments: Iterable[tuple[Any, ...]], join: Any, parts: int) -> list[Any]:
        dealt = [found for (found,) in self(work, arguments)]
        assert all(len(found) == parts for found in dealt)
        return [partial(pickle.loads, pickle.dumps(join([found[part] for found in dealt]))) for part in range(parts)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(*STEPS.values()), max_size=4), st.integers(0, 10**6), st.integers(1, 31))
def test_a_cluster_judges_alike(steps: list[Step], seed: int, block: int) -> None:
    rows = rows_of(seed, 30)
    whole = table_of(rows, block)
    pool = Reopened(whole._columns, uids=whole._uids, block=block)
    pool.run_on_cluster = OtherProcesses()
    try:
        expected = run_steps(table_of(rows, block), steps)
    except RecipeError as error:
        with pytest.raises(RecipeError, match=re.escape(str(error))):
            run_steps(pool, steps)
        return
    found = run_steps(pool, steps)
    assert found.dropped_by.tolist() == expected.dropped_by.tolist()
    assert_same_copies(found, expected)
    assert (found.funnel, found.reasons, found.cuts) == (expected.funnel, expected.reasons, expected.cuts)


@pytest.mark.parametrize("name", STEPS)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_degenerate_pools_are_judged(name: str, data: Any) -> None:
    step = data.draw(STEPS[name])
    one = rows_of(1, 1)[0]
    tied = [{**one, "a": 0.5, "b": 1.0, "w": "en", "uid": (0, n)} for n in range(12)]
    for rows in ([], [one], tied, rows_of(5, 9, scored=False)):
        assert_same([step], rows)


def test_a_random_fraction_of_a_pool_whose_last_shard_is_empty() -> None:
    pool = table.MemoryTable({"a": np.zeros(4, np.float32)})
    pool.sizes = [4, 0]
    assert run_steps(pool, [sel.RandomFraction(fraction=0.5)]).keep.sum() == 2
