"""The subset file: rows, how often each is kept, and why the others are not; a changed file ends in our own error."""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import write_run

import tamis
from tamis.core.errors import RunError
from tamis.core.files import scratch
from tamis.runs import Run
from tamis.runs.reasons import NO_REASONS, DropReason, Verdict
from tamis.runs.subset import Subset

X = [0.1, 0.5, float("nan"), 0.9, 0.3, 0.7, 0.2]
RECIPE = {
    "name": "mine",
    "columns": {"mine": "x"},
    "select": [
        {"at_least": {"score": "mine", "value": 0.2, "missing": "drop"}},
        {"top_n": {"score": "2*mine", "n": 2}},
    ],
}
WHY = [
    "Step 1: mine below 0.2", "Step 2: 2*mine below the cut", "Step 1: no value for mine", "",
    "Step 2: 2*mine below the cut", "", "Step 2: 2*mine below the cut",
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", {"x": X}, shards=4)


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:
    tamis.select(run, RECIPE).save(tmp_path / "mine.parquet")
    return tmp_path / "mine.parquet"


def why(subset: Subset) -> list[str]:
    return [subset.verdict.reason_of(row) for row in range(subset.keep.size)]


def saved(subset: Subset, path: Path) -> Subset:
    subset.save(path)
    return Subset.load(path, subset.run)


def test_a_subset_knows_why_each_other_row_is_not_in_it_and_its_file_gives_everything_back(
    run: Run, tmp_path: Path
) -> None:
    subset = tamis.select(run, RECIPE)
    assert why(subset) == WHY
    assert (subset.verdict.problem, subset.verdict.names) == ("", {"mine": "x"})
    assert [(cut.score, cut.low) for cut in subset.verdict.cuts] == [
        ("mine", float(np.float32(0.2))), ("2*mine", 2 * float(np.float32(0.7))),
    ]  # fmt: skip
    assert subset.verdict.ranking == subset.verdict.cuts[1]
    steps = [RECIPE["select"][0], {"at_most": {"score": "x", "value": 99}}]  # type: ignore[index]
    ranking = tamis.select(run, {"columns": {"mine": "x"}, "select": steps}).verdict.ranking
    assert ranking == replace(subset.verdict.cuts[0], code=ranking.code)  # no row falls at the second  # type: ignore
    again = saved(subset, tmp_path / "mine.parquet")
    assert (again.keep.tolist(), why(again), again.times) == (subset.keep.tolist(), WHY, None)
    assert (again.recipe, again.funnel, again.reads) == (subset.recipe, subset.funnel, subset.reads)
    assert replace(again.verdict, dropped_by=None) == replace(subset.verdict, dropped_by=None)
    # What other programs read: the kept rows and nothing else.
    assert pq.read_table(tmp_path / "mine.parquet").to_pydict() == {"shard": ["00002", "00003"], "row": [0, 0]}


def test_a_subset_of_a_pool_that_does_not_fit_into_memory_writes_the_same_file(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "IN_MEMORY", 0)
    large = tamis.select(run, RECIPE)
    large.save(tmp_path / "large.parquet")
    one, other = (Subset.load(path, run) for path in (file, tmp_path / "large.parquet"))
    assert (one.keep.tolist(), why(one), one.funnel) == (other.keep.tolist(), why(other), other.funnel)
    assert len(large) == large.kept == one.kept


@pytest.mark.parametrize(("values", "n"), [(X, 0), (X, 7), ([], 7)])
def test_nothing_and_everything_can_be_kept(values: list[float], n: int, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": values}, shards=2)
    subset = tamis.select(run, {"select": [{"top_n": {"score": "min(x, 0)", "n": n, "missing": "drop"}}]})
    again = saved(subset, tmp_path / "mine.parquet")
    assert again.keep.tolist() == [bool(n) and value == value for value in values]
    assert why(again) == why(subset)


@pytest.mark.parametrize(("value", "kept"), [("-inf", 6), ("inf", 0)])
def test_a_limit_may_be_infinite(run: Run, tmp_path: Path, value: str, kept: int) -> None:
    for limit in (value, float(value)):
        step = {"score": "x", "value": limit, "missing": "drop"}
        subset = tamis.select(run, {"select": [{"at_least": step}]})
        again = saved(subset, tmp_path / f"{type(limit).__name__}.parquet")
        assert (len(again), again.keep.tolist()) == (kept, subset.keep.tolist())
        assert tamis.select(run, again.recipe).keep.tolist() == subset.keep.tolist()
        assert again.verdict.cuts == ()  # JSON has no infinite ends
        page = tamis.report(run, [again, subset], out=tmp_path / f"{type(limit).__name__}.html")
        assert json.loads(page.with_suffix(".json").read_text())


def test_a_subset_made_by_hand_has_no_reasons_or_more_than_255(run: Run, tmp_path: Path) -> None:
    mine = Subset(run=run, keep=tamis.select(run, RECIPE).keep, recipe={"name": "by hand"})
    assert saved(mine, tmp_path / "again.parquet").verdict == Verdict(problem=NO_REASONS)
    codes = np.array([300, 0, 256, 1, 0, 255, 2], np.uint16)
    verdict = Verdict(why=tuple(DropReason(text=str(code)) for code in range(1, 301)), dropped_by=codes)
    again = saved(Subset(run=run, keep=codes == 0, verdict=verdict), tmp_path / "many.parquet")
    assert again.verdict.dropped_by.tolist() == codes.tolist()


def test_rows_of_shards_that_were_scored_later_are_not_in_it_and_say_so(run: Run, tmp_path: Path) -> None:
    parts = [run.index_path("00001"), run.path / "scores" / "given-0000000000000000" / "00001.parquet"]
    for part in parts:  # the day before rows 1 and 2 were scored
        part.rename(part.with_suffix(".tomorrow"))
    subset = tamis.select(run.path, RECIPE, partial=True)
    subset.save(tmp_path / "mine.parquet")
    for part in parts:
        part.with_suffix(".tomorrow").rename(part)
    grown = Subset.load(tmp_path / "mine.parquet", Run(run.path))
    later = why(grown)[1]
    assert later not in why(subset)
    assert why(grown) == [why(subset)[0], later, later, *why(subset)[1:]]
    assert len(grown) == len(subset) == 2
    again = saved(grown, tmp_path / "again.parquet")
    assert (why(again), again.verdict.why) == (why(grown), grown.verdict.why)


def test_a_row_may_be_kept_several_times(run: Run, tmp_path: Path) -> None:
    times = np.array([0, 3, 0, 1, 0, 0, 2], np.uint16)
    rows = [1, 1, 1, 3, 6, 6]
    made = Subset(run=run, keep=times > 0, times=times, recipe={"name": "often"})
    every = list(zip(*(half.tolist() for half in run.table().uids(np.arange(7))), strict=True))
    starts = dict(zip(run.shards, np.concatenate([[0], np.cumsum(run.sizes)]).tolist(), strict=False))
    for subset in (made, saved(made, tmp_path / "often.parquet")):
        assert (len(subset), subset.rows().tolist()) == (6, rows)
        assert subset.times.tolist() == times.tolist()
        assert subset.to_numpy().tolist() == [every[row] for row in rows]
        assert subset.to_arrow(["x"])["x"].to_pylist() == pytest.approx([np.float32(X[row]) for row in rows])
        assert [starts[shard] + row for shard, some in subset.rows_by_shard() for row in some.tolist()] == rows
    table = pq.read_table(tmp_path / "often.parquet")
    assert table.column_names == ["shard", "row", "times"]
    assert table["times"].to_pylist() == [3, 1, 2]  # programs that do not know of times read each kept row once


@pytest.mark.parametrize(
    "changed",
    [
        {"times": np.array([1, 1, 1, 1, 1, 1, 0], np.uint16)},
        {"times": np.ones(3, np.uint16)},
        {"caption": np.ones(7, np.uint8)},
        {"keep": np.ones(7, bool)},
        {"keep": np.ones(3, bool)},
    ],
)
def test_what_does_not_go_together_is_refused(run: Run, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changed))):
        replace(tamis.select(run, RECIPE), **changed)


def test_rows_carry_a_caption(run: Run, tmp_path: Path) -> None:
    caption = np.array([0, 1, 0, 0, 0, 0, 1], np.uint8)
    made = Subset(run=run, keep=np.array([0, 1, 0, 1, 0, 1, 1], bool), caption=caption, recipe={"name": "mixed"})
    again = saved(made, tmp_path / "mixed.parquet")
    assert (again.keep.tolist(), again.times) == (made.keep.tolist(), None)
    assert again.caption.tolist() == caption.tolist()
    table = pq.read_table(tmp_path / "mixed.parquet")
    assert (table.column_names, table["caption"].to_pylist()) == (["shard", "row", "caption"], [1, 0, 0, 1])
    alt = Subset(run=run, keep=np.array([1, 1, 0, 1, 0, 0, 0], bool))
    found = [both.caption.tolist() for both in (made & alt, alt & made, made | alt, alt | made, made - alt)]  # type: ignore[union-attr]
    # Row 1 is in both and row 6 only in `made`. An intersection takes the captions of the subset that chose some.
    assert found == [
        [0, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 0, 1],
    ]  # fmt: skip
    assert alt.caption is None is (alt - made).caption


def rewrite(file: Path, facts: Callable[[Any], Any] = lambda facts: facts, **columns: Any) -> None:
    """Writes the file again as another program would: other columns, other facts."""
    table = pq.read_table(file)
    facts = facts(json.loads(table.schema.metadata[b"tamis.subset"]))
    table = pa.table(columns if "row" in columns else {**table.to_pydict(), **columns})
    pq.write_table(table.replace_schema_metadata({"tamis.subset": json.dumps(facts)}), file)


def test_a_file_that_another_program_rewrote_keeps_its_rows_and_loses_its_reasons(run: Run, file: Path) -> None:
    table, footer = pq.read_table(file), pq.read_metadata(file).metadata
    for rows in (table, table.slice(1), table.replace_schema_metadata(footer), table.slice(1, 0)):
        pq.write_table(rows, file)  # with some or all of the footer's texts
        again = Subset.load(file, run)
        assert len(again) == rows.num_rows
        assert again.verdict.dropped_by is None
        assert again.verdict.problem != ""
    rewrite(file, shard=["00001"], row=[1])
    assert Subset.load(file, run).rows().tolist() == [2]


@pytest.mark.parametrize(
    "changes",
    [
        {"shard": ["00001"], "row": [-1]},
        {"shard": ["00001"], "row": [2]},
        {"shard": ["00001"] * 2, "row": [1, 1]},
        {"shard": ["00007"], "row": [1]},
        {"shard": ["00001"] * 2, "row": [None, 1]},
        {"shard": [3], "row": [1]},
        {"shard": ["00001"], "row": [1.5]},
        {"times": [0, 0]},
        {"times": [70_000, 70_000]},
        {"times": pa.array([None, None], pa.uint16())},
        {"facts": lambda facts: []},
        {"facts": lambda facts: {**facts, "reads": ["y"]}},
    ],
)
def test_what_the_run_does_not_have_is_refused(changes: dict[str, Any], file: Path, run: Run) -> None:
    rewrite(file, **changes)
    with pytest.raises(RunError, match=file.name):
        Subset.load(file, run)


def test_the_rows_of_other_samples_are_refused_though_names_and_sizes_agree(file: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", {"x": X}, shards=4, uids=[(1, number) for number in range(7)])
    with pytest.raises(RunError, match=r"mine\.parquet.*shard 00000"):
        Subset.load(file, other)


def test_no_flipped_bit_changes_the_rows_of_a_subset(run: Run, file: Path) -> None:
    whole, right = file.read_bytes(), Subset.load(file, run).keep.tolist()
    rng = random.Random(3)
    for _ in range(200):
        changed = bytearray(whole)
        byte, bit = rng.randrange(len(whole)), rng.randrange(8)
        changed[byte] ^= 1 << bit
        file.write_bytes(bytes(changed))
        with suppress(RunError):
            assert Subset.load(file, run).keep.tolist() == right, (byte, bit)
    file.write_bytes(b"PAR1")
    with pytest.raises(RunError, match=file.name):
        Subset.load(file, run)


def ordered(run: Run, order: list[int]) -> Subset:
    times = np.bincount(order, minlength=len(run)).astype(np.uint16)
    more: Any = {} if times.max(initial=0) < 2 else {"times": times}
    return Subset(run=run, keep=times > 0, order=np.array(order, np.int64), recipe={"name": "mine"}, **more)


@pytest.mark.parametrize("order", [[5, 0, 2, 6, 3], [5, 0, 5, 2, 0, 5, 6, 3], [], [6]], ids=str)
def test_a_subset_with_an_order_lists_its_rows_in_it_and_comes_back(run: Run, tmp_path: Path, order: list[int]) -> None:
    subset = ordered(run, order)
    again = saved(subset, tmp_path / "mine.parquet")
    assert again.in_order().tolist() == subset.in_order().tolist() == order
    assert (again.rows().tolist(), len(again), again.kept) == (sorted(order), len(order), len(set(order)))
    assert (again.times is None) == (subset.times is None)
    listed = pq.read_table(tmp_path / "mine.parquet").to_pydict()
    begins = {name: span.start for name, span in run.row_ranges.items()}
    assert [begins[name] + row for name, row in zip(listed["shard"], listed["row"], strict=True)] == order
    if order:  # another program may take rows out
        pq.write_table(pq.read_table(tmp_path / "mine.parquet").slice(1), tmp_path / "fewer.parquet")
        assert Subset.load(tmp_path / "fewer.parquet", run).in_order().tolist() == order[1:]


def test_an_order_has_every_kept_row_as_often_as_it_is_kept(run: Run) -> None:
    for order in ([0, 1], [0, 1, 1, 2], [0, 1, 2, 3]):
        with pytest.raises(ValueError, match="order must have every kept row as often as it is kept"):
            Subset(run=run, keep=np.arange(7) < 3, order=np.array(order))


def test_an_order_may_be_any_list_of_row_numbers(run: Run, tmp_path: Path) -> None:
    orders: list[Any] = [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1], np.uint8), pa.array([2, 0, 1])]
    for number, order in enumerate(orders):
        subset = Subset(run=run, keep=np.arange(7) < 3, order=order)
        again = saved(subset, tmp_path / f"{number}.parquet")
        assert subset.in_order().dtype == np.int64
        assert again.in_order().tolist() == subset.in_order().tolist() == [2, 0, 1]
    assert Subset(run=run, keep=np.zeros(7, bool), order=[]).in_order().dtype == np.int64  # type: ignore[arg-type]
    for wrong in (np.array([2.0, 0.0, 1.0]), np.array([True, False]), np.array([[2, 0, 1]])):
        with pytest.raises(ValueError, match="order must be a list of row numbers"):
            Subset(run=run, keep=np.arange(7) < wrong.size, order=wrong)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.float64(), pa.string(), pa.int8()], ids=str)
def test_another_program_may_store_an_order_as_other_types(run: Run, tmp_path: Path, kind: pa.DataType) -> None:
    ordered(run, [5, 0, 5, 2]).save(tmp_path / "mine.parquet")
    table = pq.read_table(tmp_path / "mine.parquet")
    columns = {"shard": table["shard"].cast(pa.large_string()), "row": table["row"].cast(kind)}
    columns["times"] = pa.chunked_array([[7] * 4])  # an order has no such column
    pq.write_table(pa.table(columns).replace_schema_metadata(table.schema.metadata), tmp_path / "other.parquet")
    again = Subset.load(tmp_path / "other.parquet", run)
    assert (again.in_order().tolist(), again.rows().tolist()) == ([5, 0, 5, 2], [0, 2, 5, 5])


def test_an_order_that_lists_a_row_more_often_than_can_be_counted_is_an_error(run: Run, tmp_path: Path) -> None:
    ordered(run, [5]).save(tmp_path / "mine.parquet")
    table = pq.read_table(tmp_path / "mine.parquet")
    pq.write_table(pa.concat_tables([table] * (1 << 16)), tmp_path / "many.parquet")
    with pytest.raises(RunError, match=r"lists a row of the shard '\d+' 65,536 times"):
        Subset.load(tmp_path / "many.parquet", run)


def test_a_combination_of_subsets_has_no_order(run: Run) -> None:
    one, other = ordered(run, [5, 0, 5, 2]), ordered(run, [2, 5])
    for both in (one & other, one | other, one - other, tamis.select(run, RECIPE) | one):
        assert both.order is None


def test_later_steps_leave_the_order_of_the_rows_they_keep_unless_they_choose_how_often(run: Run) -> None:
    cabs = {"cabs": {"concepts": "key", "super_batch": 4, "share": 1.0, "epochs": 2, "rule": "fm"}}
    order = tamis.select(run, {"select": [cabs]}).in_order().tolist()
    assert len(order) == 14
    fewer = {"at_least": {"score": "x", "value": 0.3, "missing": "drop"}}
    kept = tamis.select(run, {"select": [cabs, fewer]})
    assert kept.in_order().tolist() == [row for row in order if X[row] >= 0.3]
    drawn = tamis.select(run, {"select": [cabs, {"sample": {"score": "x", "n": 9, "missing": "drop"}}]})
    assert (drawn.order, len(drawn)) == (None, 9)
