"""Several runs are chosen from as if they were one: pairs that stand in two count once, each run gets its subset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import write_pool, write_run
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis.errors import RecipeError, RunError
from tamis.selectors.together import repeated
from tamis.store import Run
from tamis.store.subset import Subset
from tamis.store.table import Table

RECIPE: dict[str, Any] = {
    "name": "mine",
    "select": [
        {"at_least": {"score": "x", "value": 0.1}},
        {"top_fraction": {"score": "minmax(x) + 0.1*y", "fraction": 0.4, "of": "pool"}},
    ],
}


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Three runs of 20, 30 and 10 rows, the first two with 5 pairs in common."""
    rng = np.random.default_rng(1)
    found = []
    for number, (rows, first) in enumerate(((20, 0), (30, 15), (10, 100))):
        uids = [(7, row) for row in range(first, first + rows)]
        columns = {"x": rng.random(rows).tolist(), "y": rng.random(rows).tolist()}
        found.append(write_run(tmp_path / f"run{number}", columns, shards=number + 1, uids=uids))
    return found


def as_one(runs: list[Run], tmp_path: Path) -> tuple[Run, list[np.ndarray[Any, Any]]]:
    """One run of the same distinct rows, and which rows of each run these are."""
    fresh = [np.ones(len(run), bool) for run in runs]
    fresh[1][:5] = False
    uids = [uid for run, mask in zip(runs, fresh, strict=True) for uid in uids_of(run, mask)]
    columns = {
        name: [v for run, mask in zip(runs, fresh, strict=True) for v in run.to_numpy(name)[mask].tolist()]
        for name in ("x", "y")
    }
    return write_run(tmp_path / "one", columns, shards=1, uids=uids), fresh


def uids_of(run: Run, mask: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    high, low = run.table().uids(np.flatnonzero(mask))
    return list(zip(high.tolist(), low.tolist(), strict=True))


def test_recipes_decide_over_all_rows_as_over_one_run_of_them(runs: list[Run], tmp_path: Path) -> None:
    one, fresh = as_one(runs, tmp_path)
    whole = tamis.select(one, RECIPE)
    subsets = tamis.select(runs, RECIPE)
    assert [subset.run for subset in subsets] == runs
    kept = np.concatenate([subset.keep[mask] for subset, mask in zip(subsets, fresh, strict=True)])
    np.testing.assert_array_equal(kept, whole.keep)
    assert sum(map(len, subsets)) == round(0.4 * 55)
    assert subsets[1].keep[:5].tolist() == [False] * 5
    assert subsets[0].together["funnel"] == list(whole.funnel)
    assert [one["repeated"] for one in subsets[0].together["runs"]] == [0, 5, 0]


def test_every_row_has_its_reason_and_funnels_add_up(runs: list[Run]) -> None:
    for subset in tamis.select(runs, RECIPE):
        codes = subset.verdict.dropped_by
        assert codes is not None
        rows = len(subset.run) - sum("named before" in subset.verdict.reasons[code] for code in codes)
        for line in subset.funnel:
            assert line["before"] == rows
            rows -= sum(line["dropped"].values())
            assert line["kept"] == rows
        assert rows == len(subset)


def test_a_subset_is_written_read_and_exported_like_any_other(runs: list[Run], tmp_path: Path) -> None:
    for number, subset in enumerate(tamis.select(runs, RECIPE)):
        subset.save(tmp_path / f"{number}.parquet")
        loaded = Subset.load(tmp_path / f"{number}.parquet", runs[number])
        assert loaded.together == subset.together
        np.testing.assert_array_equal(loaded.keep, subset.keep)
        np.testing.assert_array_equal(loaded.verdict.dropped_by, subset.verdict.dropped_by)
        assert tamis.export(loaded, "npy", tmp_path / "s.npy", overwrite=True) == len(subset)
        assert tamis.export(loaded, "dropped", tmp_path / "d.parquet", overwrite=True) == len(runs[number]) - len(
            subset
        )


def test_the_order_of_runs_decides_only_where_a_repeated_pair_is_kept(runs: list[Run]) -> None:
    def kept(order: list[Run]) -> set[tuple[int, int]]:
        return {tuple(uid) for subset in tamis.select(order, RECIPE) for uid in subset.to_numpy().tolist()}

    recipe = {"name": "all", "select": []}
    assert len(kept(runs)) == len(kept(runs[::-1])) == 22
    forth, back = (tamis.select(order, recipe) for order in (runs, runs[::-1]))
    assert [len(subset) for subset in forth] == [20, 25, 10]
    assert [len(subset) for subset in back] == [10, 30, 15]


def test_scores_of_other_settings_are_not_compared(tmp_path: Path) -> None:
    folders = [
        tamis.score(
            write_pool(tmp_path / f"pool{number}", shards=1, first=number),
            run=tmp_path / f"run{number}",
            scores=["caption_length"],
            quiet=True,
        ).path
        for number in range(2)
    ]
    recipe = {"name": "r", "select": [{"top_n": {"score": "words", "n": 5}}]}
    assert sum(map(len, tamis.select(folders, recipe))) == 5
    write_run(tmp_path / "c", {"words": [1.0, 2.0, 3.0]})
    with pytest.raises(RecipeError, match=r"'words' is not the same in all runs.*given-0000000000000000"):
        tamis.select([folders[0], tmp_path / "c"], recipe)


def test_wrong_lists_of_runs_are_told(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is named twice"):
        tamis.select([runs[0], runs[1], runs[0].path], RECIPE)
    with pytest.raises(RunError, match="there is no run"):
        tamis.select([], RECIPE)
    (runs[2].path / "index" / "00001.parquet").unlink()
    with pytest.raises(RunError, match="lacks 1 of its 3 shards"):
        tamis.select([run.path for run in runs], RECIPE)
    assert tamis.select([run.path for run in runs], RECIPE, partial=True)[2].partial["missing"] == 1
    (alone,) = tamis.select([runs[0].path], RECIPE)
    assert alone.together == {}


def test_the_command_writes_a_file_of_each_run(runs: list[Run], tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    folders = [run.path for run in runs]
    done = tamis("select", *folders, "--recipe", "recipe.yaml", "--out", "chosen")
    assert done.code == 0, done.err
    assert "5 rows are pairs that stand in a run named before: each pair counts once, there" in done.out
    assert sorted(path.name for path in (tmp_path / "chosen").iterdir()) == [f"run{n}.parquet" for n in range(3)]
    again = ("select", *folders, "-r", "recipe.yaml", "-o", "chosen", "--json")
    (tmp_path / "chosen" / "run0.parquet").unlink()
    assert tamis(*again).code == 2  # before the first of them is written
    assert not (tmp_path / "chosen" / "run0.parquet").exists()
    told = json.loads(tamis(*again, "--overwrite").out)
    assert (told["pool"], told["kept"], told["repeated"]) == (60, 22, 5)
    assert [Path(one["subset"]).name for one in told["runs"]] == [f"run{n}.parquet" for n in range(3)]
    assert tamis("report", folders[1], "chosen/run1.parquet", "--out", "r.html").code == 0


@given(st.lists(st.lists(st.integers(0, 12), max_size=20), min_size=1, max_size=4))
def test_repeated_rows_are_those_whose_uid_an_earlier_table_has(uids: list[list[int]]) -> None:
    tables = [Table.of({}, uids=(np.array(some, np.uint64) % 3, np.array(some, np.uint64)), block=7) for some in uids]
    seen: set[int] = set()
    for some, mask in zip(uids, repeated(tables), strict=True):
        assert mask.tolist() == [uid in seen for uid in some]
        seen |= set(some)
