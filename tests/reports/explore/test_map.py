"""The map: where PaCMAP puts rows, the colours of points, names of regions, and which rows a lasso holds."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from explored_page import Page
from factories import uids_in

import tamis
from tamis.commands.select import select
from tamis.core.errors import RecipeError
from tamis.reports.explore.cached_run import NONE, CachedRun, word_codes
from tamis.reports.explore.layout import positions, top_words
from tamis.reports.explore.near import Near, inside_polygon
from tamis.reports.explore.queries import LEVELS, Explorer
from tamis.runs import parts
from tamis.runs.table import MemoryTable, Table

ALL = {"select": []}
CUT = {"select": [{"at_least": {"score": "words", "value": 6, "missing": "drop"}}]}


def explored(run: Path) -> Explorer:
    return Explorer(CachedRun(run), (), lambda run, recipe: select(run, recipe))


def islands(rows: int, count: int = 3) -> tuple[Table, Any]:
    """A table of unit vectors round some centres, its last row without one, and the centre of each row."""
    random = np.random.default_rng(0)
    which = np.arange(rows) % count
    vectors = random.normal(size=(count, 16))[which] + 0.1 * random.normal(size=(rows, 16))
    vectors[-1] = np.nan
    return MemoryTable({"v": vectors.astype(np.float16)}), which


def run_with(vectors: Any, run: Path, to: Path) -> Path:
    """A copy of a run with other embeddings: a row each."""
    shutil.copytree(run, to)
    (place,) = (to / "embeddings").glob("image_embedding-*")
    for shard, rows in tamis.open_run(to).row_ranges.items():
        (place / f"{shard}.npy").unlink()
        part = np.asarray(vectors[rows], np.float16)
        parts.write_rows(place / f"{shard}.npy", [part], uids=uids_in(to / "index" / f"{shard}.parquet"))
    return to


@pytest.fixture(scope="module")
def laid(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a stored map."""
    pytest.importorskip("pacmap")
    place = tmp_path_factory.mktemp("laid") / "run"
    shutil.copytree(run_folder, place)
    tamis.map_embeddings(place)
    return place


def test_the_same_seed_lays_rows_out_in_the_same_islands() -> None:
    pytest.importorskip("pacmap")
    table, which = islands(300)
    there = np.arange(300) < 299
    points = positions(table, ["v"], there, sample=1000, seed=0)
    assert np.array_equal(points, positions(table, ["v"], there, sample=1000, seed=0), equal_nan=True)
    assert not np.array_equal(points, positions(table, ["v"], there, sample=1000, seed=1), equal_nan=True)
    assert np.isnan(points[299]).all()
    assert np.abs(points[:299]).max() == pytest.approx(1)
    distances = np.linalg.norm(points[:299, None] - points[None, :299], axis=2)
    nearest = np.argsort(distances, axis=1)[:, 1:6]
    assert (which[nearest] == which[:299, None]).mean() > 0.99


def test_rows_that_were_not_laid_out_go_to_the_middle_of_their_five_nearest() -> None:
    pytest.importorskip("pacmap")
    table, which = islands(300)
    there = np.arange(300) < 299
    points = positions(table, ["v"], there, sample=90, seed=0)
    assert np.isfinite(points[:299]).all()
    centres = np.stack([np.median(points[:299][which[:299] == island], axis=0) for island in range(3)])
    closest = np.linalg.norm(points[:299, None] - centres, axis=2).argmin(axis=1)
    assert (closest == which[:299]).all()
    # The slow way: a row is laid out, or has the median of the five whose vectors are nearest among those.
    vectors = table.read(0, ["v"])["v"][:299].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    laid = np.array([np.flatnonzero((points[:299] == point).all(axis=1)).size == 1 for point in points[:299]])
    unlike = 0
    for row in range(299):
        others = np.flatnonzero(laid)
        five = others[np.argsort(((vectors[others] - vectors[row]) ** 2).sum(axis=1))[:5]]
        unlike += not laid[row] and np.linalg.norm(points[row] - np.median(points[five], axis=0)) > 0.3
    assert unlike == 0


def test_a_stored_map_is_columns_that_recipes_read_and_is_made_once(laid: Path, run_folder: Path) -> None:
    run = tamis.open_run(laid)
    x = run.to_numpy("map_x")
    assert np.flatnonzero(np.isnan(x)).tolist() == [13]  # its image does not decode
    stamp = (run.scores["map_image"].folder / "00000.parquet").stat().st_mtime_ns
    again = tamis.map_embeddings(laid)
    assert (again.scores["map_image"].folder / "00000.parquet").stat().st_mtime_ns == stamp
    recipe = {"select": [{"at_least": {"score": "map_x", "value": 0.0, "missing": "drop"}}]}
    assert len(tamis.select(run, recipe)) == int((x >= 0).sum())
    assert list(Near(CachedRun(laid)).maps()) == ["map_image", "image_embedding"]
    assert list(Near(CachedRun(run_folder)).maps()) == ["image_embedding"]
    facts, (points_x, _, rows) = explored(laid).map_facts("map_image")
    assert facts["method"] == "PaCMAP"
    assert points_x.tolist() == x[rows].tolist()
    facts, _ = explored(laid).map_facts("image_embedding")
    assert facts["method"] == "PCA"
    assert facts["command"] == f"tamis map {laid} --of image"
    with pytest.raises(RecipeError, match="the column 'words' holds numbers"):
        tamis.map_embeddings(laid, of="words")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_embeddings_are_a_map_too(count: int, run_folder: Path, tmp_path: Path) -> None:
    vectors = np.full((60, 8), np.nan)
    vectors[:count] = np.eye(8)[:count]
    run = run_with(vectors, run_folder, tmp_path / "run")
    if not count:
        with pytest.raises(RecipeError, match="there is nothing to show on a map"):
            Near(CachedRun(run)).layout("image_embedding")
        with pytest.raises(RecipeError, match="there is nothing to lay out"):
            tamis.map_embeddings(run)
        return
    assert sorted(Near(CachedRun(run)).layout("image_embedding").rows) == list(range(count))
    assert np.isfinite(tamis.map_embeddings(run).to_numpy("map_x")).sum() == count
    stored = Near(CachedRun(run)).layout("map_image")
    assert np.isfinite(stored.points).all()
    assert len(explored(run).map_names("map_image")) <= 2


def test_points_have_the_colour_of_their_row(run_folder: Path) -> None:
    explorer, name = explored(run_folder), "image_embedding"
    run = tamis.open_run(run_folder)
    rows = explorer.near.layout(name).rows
    keep, words = select(run, CUT).keep[rows], run.to_numpy("words")[rows]
    facts, (codes,) = explorer.map_colours(name, "kept", CUT, [])
    assert codes.tolist() == keep.astype(int).tolist()
    assert [(entry["text"], entry["rows"]) for entry in facts["legend"]] == [
        ("dropped", int((~keep).sum())),
        ("kept", int(keep.sum())),
    ]
    facts, (codes,) = explorer.map_colours(name, "words", ALL, [])
    assert facts["ends"] == [words.min(), np.median(words), words.max()]
    assert (np.diff(codes[np.argsort(words, kind="stable")].astype(int)) >= 0).all()
    assert len({*zip(words.tolist(), codes.tolist(), strict=True)}) == len({*words.tolist()})  # equal values are equal
    assert max(codes) < LEVELS
    assert facts["none"] == 0
    facts, (codes,) = explorer.map_colours(name, "status", ALL, [])
    assert facts["legend"][0]["text"] == "ok"
    assert set(codes.tolist()) == {0}
    facts, (codes,) = explorer.map_colours(name, "disagreement", ALL, [CUT, ALL])
    patterns = [facts["legend"][code]["pattern"] for code in codes]
    assert patterns == [[int(one), 1] for one in keep]
    with pytest.raises(RecipeError, match="between 2 and 5 recipes"):
        explorer.map_colours(name, "disagreement", ALL, [CUT])


def test_a_row_without_a_value_has_no_colour(laid: Path) -> None:
    explorer = explored(laid)
    explorer.tags.change(np.array([5]), add=["good"])
    facts, (codes,) = explored(laid).map_colours("map_image", "label", ALL, [])
    rows = explorer.near.layout("map_image").rows
    assert codes[rows != 5].tolist() == [NONE] * 58
    assert facts["none"] == 58
    table = MemoryTable({"w": ["a", None, "b", "c"]})
    assert word_codes(table, "w", pa.chunked_array([["c", "a"]]), other=9).tolist() == [1, NONE, 9, 0]


def test_the_page_gets_positions_as_bytes(page: Page) -> None:
    status, headers, body = page.request(f"/{page.token}/ask/map", json.dumps({"map": "image_embedding"}).encode())
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    start = 4 + int.from_bytes(body[:4], "little")
    facts = json.loads(body[4:start])
    assert (facts["points"], len(body) - start) == (59, 59 * 12)
    layout = Near(CachedRun(page.run)).layout("image_embedding")
    assert np.frombuffer(body, np.float32, 59, start).tolist() == layout.points[:, 0].tolist()
    assert np.frombuffer(body, np.uint32, 59, start + 59 * 8).tolist() == layout.rows.tolist()
    status, _, body = page.request(f"/{page.token}/ask/map", json.dumps({"map": "no map"}).encode())
    assert (status, b"unknown map" in body) == (422, True)


def test_regions_are_named_by_the_words_of_their_captions(laid: Path) -> None:
    texts = ["a red dog runs", "dogs and a red dog", "dog", "a blue cat", "the cat and the hat", "cat sat", "", "x"]
    found = top_words(texts, [0, 0, 0, 1, 1, 1, 1, 1], 2, stop={"and", "the"})
    assert found == [["dog", "red"], ["cat"]]
    assert top_words([], [], 0) == []
    rare = [" ".join(f"{'abcd'[row]}{letter}{row * 'o'}rare" for letter in "efghijklm") + " tree" for row in range(4)]
    assert top_words([*rare, *["tree"] * 96], [0] * 4 + [1] * 96, 2) == [
        ["tree"],
        ["tree"],
    ]  # rarer words are in one caption
    regions = explored(laid).map_names("map_image")
    assert {region["level"] for region in regions} == {0, 1}
    assert all(region["words"] for region in regions)
    assert sum(region["points"] for region in regions if region["level"] == 0) <= 59


def crossings(point: Any, polygon: Any) -> bool:
    """Whether a ray to the right of a point crosses a polygon an odd number of times: the slow way."""
    odd = False
    for (x1, y1), (x2, y2) in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
        if (y1 > point[1]) != (y2 > point[1]) and point[0] < (x2 - x1) * (point[1] - y1) / (y2 - y1) + x1:
            odd = not odd
    return odd


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_a_lasso_holds_exactly_the_rows_inside_also_of_a_tiny_part(scale: float) -> None:
    random = np.random.default_rng(3)
    points = (0.3 + scale * random.uniform(-1, 1, (40_000, 2))).astype(np.float32)
    polygon = [tuple(0.3 + scale * corner) for corner in random.uniform(-1, 1, (25, 2))]
    some = random.choice(40_000, 500, replace=False)
    expected = [crossings(points[row].astype(np.float64), polygon) for row in some]
    assert inside_polygon(points, polygon)[some].tolist() == expected
    assert 50 < sum(expected) < 450
    grid = random.integers(-4, 5, (300, 2)).astype(np.float32)  # corners share heights with points and each other
    for _ in range(20):
        polygon = [tuple(corner) for corner in random.integers(-4, 5, (9, 2)).tolist()]
        assert inside_polygon(grid, polygon).tolist() == [crossings(point, polygon) for point in grid.tolist()]
