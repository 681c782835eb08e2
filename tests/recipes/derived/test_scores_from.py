"""`scores_from`: files of scores made elsewhere, joined by uid or key."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from command_line import Tamis
from factories import write_run

import tamis
from tamis.core.errors import RecipeError
from tamis.core.ids import SUBSET_DTYPE, format_uid
from tamis.recipes.derived.scores_from import ScoresFrom
from tamis.runs import Run
from tamis.runs.subset import Subset

INDEX = ("width", "status", "caption", "image_xxh3")
UIDS = [(7, 0), (7, 1), (2**64 - 1, 3), (0, 0), (5, 5), (6, 6), (8, 8)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Seven rows in three shards."""
    return write_run(tmp_path / "run", {"clip": np.arange(7) / 10}, uids=UIDS)


def written(path: Path, columns: Mapping[str, Sequence[Any]]) -> str:
    table = pa.table(dict(columns))
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        pa_csv.write_csv(table, path, pa_csv.WriteOptions(delimiter=delimiter))
    return str(path)


def hexes(rows: Sequence[int]) -> list[str]:
    return [format_uid(*UIDS[row]) for row in rows]


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv"])
def test_rows_are_found_by_uid_in_any_order(ending: str, run: Run, tmp_path: Path) -> None:
    """Also where a column of CSV begins with whole numbers, or uids look like numbers."""
    uids = [*hexes([4, 3, 1, 0]), "f" * 32, hexes([2])[0].upper()]
    path = written(
        tmp_path / f"scores.{ending}", {"": range(6), "uid": uids, "new": [1, 2, 3, 4, 5, 0.5], "text": ["a"] * 6}
    )
    done = tamis.derive(run, [{"scores_from": {"path": path}}])
    np.testing.assert_array_equal(done["new"], np.float32([4, 3, 0.5, 2, 1, np.nan, np.nan]))
    assert done.scores["scores_from"].columns[0].about == f"from scores.{ending}"
    assert "text" not in done.columns


def test_a_thousand_rows_are_joined_as_a_dictionary_joins_them(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    uids = [(int(high), int(low)) for high, low in draw.integers(0, 40, (1000, 2))]  # many uids are of several rows
    run = write_run(tmp_path / "run", {"clip": np.zeros(1000)}, uids=uids)
    scores = {format_uid(high, low): float(high + low / 64) for high, low in draw.permutation([*np.ndindex(45, 30)])}
    path = written(tmp_path / "scores.parquet", {"uid": list(scores), "new": list(scores.values())})
    found = tamis.derive(run, [{"scores_from": {"path": path}}])["new"]
    np.testing.assert_array_equal(found, np.float32([scores.get(format_uid(*uid), np.nan) for uid in uids]))


def test_keys_words_and_names_that_recipes_cannot_read(run: Run, tmp_path: Path) -> None:
    keys = [f"{row:09d}" for row in (6, 0, 2)]
    columns = {"key": keys, "CLIP B/32": [6.0, None, 2.0], "kind": ["dog", "cat", None], "2nd": [True, False, True]}
    path = written(tmp_path / "scores.csv", columns)
    names = ["CLIP B/32", "kind", "2nd"]
    done = tamis.derive(run, [{"scores_from": {"path": path, "by": "key", "scores": names, "label": "elsewhere"}}])
    np.testing.assert_array_equal(done["CLIP_B_32"], np.float32([np.nan, np.nan, 2, *[np.nan] * 3, 6]))
    assert done["elsewhere.kind"].tolist() == ["cat", *[None] * 5, "dog"]
    np.testing.assert_array_equal(done["_2nd"], np.float32([0, np.nan, 1, *[np.nan] * 3, 1]))


def test_columns_of_the_index_keep_their_names(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "scores.csv", {"uid": hexes(range(7)), **dict.fromkeys(INDEX, [5] * 7)})
    done = tamis.derive(run, [{"scores_from": {"path": path}}])
    assert {done.locate(name)[1] for name in INDEX} == {None}
    assert [done[f"scores_from.{name}"].tolist() for name in INDEX] == [[5.0] * 7] * len(INDEX)
    assert done.to_arrow()["uid"].to_pylist() == run.to_arrow()["uid"].to_pylist()


def test_records_of_numpy_hold_uids_as_datacomps_subsets_do(run: Run, tmp_path: Path) -> None:
    records = np.zeros(3, [*SUBSET_DTYPE.descr, ("flyt", ">f4"), ("hype", "<f8")])
    for row, uid in enumerate((UIDS[2], UIDS[0], (9, 9))):
        records[row] = (*uid, row, -row / 2)
    np.save(tmp_path / "scores.npy", records)
    done = tamis.derive(run, [{"scores_from": {"path": str(tmp_path / "scores.npy")}}])
    np.testing.assert_array_equal(done["flyt"], np.float32([1, np.nan, 0, *[np.nan] * 4]))
    np.testing.assert_array_equal(done["hype"], np.float32([-0.5, np.nan, 0, *[np.nan] * 4]))


def test_a_folder_of_parts_is_one_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for part in (0, 1):
        rows = [part, part + 4]
        written(tmp_path / "parts" / f"{part}.parquet", {"uid": hexes(rows), "new": np.float32(rows)})
    done = tamis.derive(run, [{"scores_from": {"path": str(tmp_path / "parts")}}])
    np.testing.assert_array_equal(done["new"], np.float32([0, 1, np.nan, np.nan, 4, 5, np.nan]))


def test_unknown_records_and_rows_without_one_are_counted(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "scores.csv", {"uid": [*hexes([0, 1]), "a" * 32], "new": [1, 2, 3]})
    tamis.derive(run, [{"scores_from": {"path": path}}])
    said = f"scores_from: {path}: 1 of 3 records match no row of the run; 5 of 7 rows have no record"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_changed_file_is_read_again(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "scores.csv", {"uid": hexes(range(7)), "new": range(7)})
    signal = ScoresFrom(path=path)
    first = tamis.derive(run, [signal])
    (folder,) = (first.path / "scores").glob("scores_from-*")
    tamis.derive(run, [signal])
    written(tmp_path / "scores.csv", {"uid": hexes(range(7)), "newer": range(1, 8)})
    again = tamis.derive(run, [signal])
    np.testing.assert_array_equal(again["newer"], np.arange(1, 8))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("file", "columns", "settings", "said"),
    [
        ("a.csv", {"uid": ["0" * 32] * 2, "new": [1, 2]}, {}, "1 of 2 records repeat a uid, such as 0{32}"),
        ("a.csv", {"key": ["x"], "new": [1]}, {}, "no column 'uid'; it has 'key': set by: key"),
        ("a.csv", {"id": ["x"], "new": [1]}, {}, r"no column 'uid' among a list \('id', 'new'\)"),
        ("a.csv", {"uid": ["x"], "new": [1]}, {}, "its uids are like x, those of the run like 0{15}70{16}"),
        ("a.csv", {"uid": ["x"], "flyt": [1]}, {"scores": ["flit"]}, r"'flit' \(did you mean 'flyt'\?\)"),
        ("a.csv", {"uid": ["x"], "kind": ["a"]}, {}, "it has no column of numbers; list columns of words"),
        ("a.csv", {"uid": ["x"], "a b": [1], "a_b": [1]}, {}, "would be called a_b, a_b: rename equal"),
        ("a.csv", {"uid": ["x"], "reason": [1]}, {}, "would be called reason: rename"),
        ("a.txt", {"uid": ["x"], "new": [1]}, {}, "it must be Parquet, CSV or TSV"),
        ("a.csv", {"uid": ["x"], "new": [1]}, {"by": "url"}, "by"),
        ("a.csv", {"uid": ["x"], "new": [1]}, {"scorse": ["new"]}, r"did you mean 'scores'"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_joined(
    file: str, columns: Any, settings: Any, said: str, run: Run, tmp_path: Path
) -> None:
    path = written(tmp_path / file, columns)
    with pytest.raises(RecipeError, match=said):
        tamis.derive(run, [{"scores_from": {"path": path, **settings}}])
    assert len(Run(run.path).scores) == 1


def test_damaged_files(run: Run, tmp_path: Path) -> None:
    for name, content, said in (
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.npy", b"no array", r"a\.npy: "),
        ("b.csv", b"uid,new\n" + b"0" * 32 + b",1\n" + b"1" * 32 + b",x\n", "it has no column of numbers"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RecipeError, match=said):
            tamis.derive(run, [{"scores_from": {"path": str(tmp_path / name)}}])
    for array, held in ((np.arange(3), "int64 of"), (np.zeros(3, [("uid", "u8")]), r"\[\('uid', '<u8'\)\] of")):
        np.save(tmp_path / "flat.npy", array)
        with pytest.raises(RecipeError, match=rf"flat\.npy: it holds {held} shape \(\d,\); it must be"):
            tamis.derive(run, [{"scores_from": {"path": str(tmp_path / "flat.npy")}}])
    (tmp_path / "latin.csv").write_bytes(f"uid,name\n{'0' * 32},caf\xe9\n".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"latin\.csv: the column 'name' is not UTF-8 text: save the file as UTF-8"):
        tamis.derive(run, [{"scores_from": {"path": str(tmp_path / "latin.csv"), "scores": ["name"]}}])
    with pytest.raises(RecipeError, match=r"nowhere\.csv does not exist"):
        tamis.derive(run, [{"scores_from": {"path": "nowhere.csv"}}])


def test_equal_keys_in_several_shards_need_uids(tmp_path: Path) -> None:
    from tamis.runs.table import MemoryTable

    path = written(tmp_path / "scores.csv", {"key": ["a"], "new": [1]})
    signal = ScoresFrom(path=path, by="key")
    within = MemoryTable({"key": ["b", "a", "a"]})  # captions of one image
    np.testing.assert_array_equal(signal.compute(within, None)["new"], [np.nan, 1, 1])  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="the same keys: join by uid"):
        signal.compute(MemoryTable({"key": ["a", "b", "a"]}, block=2), None)  # type: ignore[arg-type]


def test_a_recipe_reads_and_votes_on_what_was_made_elsewhere(run: Run, tmp_path: Path, tamis: Tamis) -> None:
    columns = {"uid": hexes(range(7)), "flyt": np.arange(7) % 3, "hype": -np.arange(7)}
    path = written(tmp_path / "m-flyt.parquet", columns)
    recipe = tmp_path / "votes.yaml"
    votes = {"vote": {"scores": ["flyt", "-hype", "clip"], "quantile": 0.7}}
    chosen = [{"at_least": {"score": "votes", "value": 2}}]
    recipe.write_text(json.dumps({"signals": [{"scores_from": {"path": path}}, votes], "select": chosen}))
    lacks = tamis("select", str(run.path), "--recipe", str(recipe), "--out", str(tmp_path / "out.parquet"))
    assert f"tamis derive {run.path} --signals" in lacks.err, lacks.err
    assert "scores_from.flyt" in tamis("derive", str(run.path), "--recipe", str(recipe)).err
    tamis("select", str(run.path), "--recipe", str(recipe), "--out", str(tmp_path / "out.parquet"))
    assert Subset.load(tmp_path / "out.parquet", run=Run(run.path)).rows().tolist() == [5, 6]


def test_the_tables_that_img2dataset_writes_next_to_tars(run: Run, tmp_path: Path) -> None:
    """A column may be null in the first file."""
    folder, own = tmp_path / "pool", run["key"].tolist()
    folder.mkdir()
    for shard, some in enumerate((own[:3], own[3:])):
        value: list[Any] = [None] * 3 if shard == 0 else [0.25, 0.5, 0.75, 1]
        errors: list[Any] = [None] * 3 if shard == 0 else ["gone"] * 4
        pq.write_table(
            pa.table({"key": some, "similarity": value, "error_message": errors}), folder / f"{shard:05}.parquet"
        )
        (folder / f"{shard:05}_stats.json").write_text("{}")
        (folder / f"{shard:05}.tar").write_bytes(b"")
    done = tamis.derive(run, [{"scores_from": {"path": str(folder), "by": "key", "scores": ["similarity"]}}])
    np.testing.assert_array_equal(done["similarity"], np.float32([np.nan] * 3 + [0.25, 0.5, 0.75, 1]))


def test_numbers_written_as_text_are_numbers_but_ids_are_not(run: Run, tmp_path: Path) -> None:
    answers = ["85", "90\nbecause it fits", "no idea", None, " 7 ", "1", "2"]
    columns = {"answer": answers, "id": [f"{2**40 + row}" for row in range(7)], "text": list("abcdefg")}
    path = written(tmp_path / "scores.parquet", {"uid": hexes(range(7)), **columns})
    done = tamis.derive(run, [{"scores_from": {"path": path}}])
    assert [column.name for column in done.scores["scores_from"].columns] == ["answer"]
    np.testing.assert_array_equal(done["answer"], np.float32([85, 90, np.nan, np.nan, 7, 1, 2]))
    done = tamis.derive(run, [{"scores_from": {"path": path, "scores": ["id"], "label": "ids"}}])
    assert done["id"].tolist() == columns["id"]
