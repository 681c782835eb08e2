"""What the page is told is what the commands say."""

import io
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from explored_page import served
from PIL import Image
from races import curve_of, write_curves

import tamis
from tamis.reports import page_pairs
from tamis.reports.explore import cached_run
from tamis.reports.explore import image_cache as image_module
from tamis.reports.explore.cached_run import CachedRun, View
from tamis.reports.explore.image_cache import Images, NoImage
from tamis.reports.explore.pages import pair_facts
from tamis.reports.explore.queries import Explorer, as_yaml
from tamis.reports.formats import names_of
from tamis.reports.page_pairs import random_order, scramble_uids
from tamis.runs import Run, parts, reasons
from tamis.runs.subset import Subset
from tamis.runs.table import MemoryTable

RECIPES: list[dict[str, Any]] = [
    {"name": "all", "select": []},
    {"name": "cut", "select": [{"at_least": {"score": "words", "value": 5, "missing": "drop"}}]},
    {
        "name": "steps",
        "select": [
            {"equals": {"score": "status", "value": "ok"}},
            {"top_fraction": {"score": "0.5*minmax(words) - characters", "fraction": 0.37, "of": "pool"}},
            {"random_fraction": {"fraction": 0.5, "seed": 3}},
        ],
    },
    {"name": "distinct", "select": [{"distinct": {"missing": "drop"}}]},
    {
        "name": "sets",
        "select": [{"any_of": [{"at_most": {"score": "words", "value": 4}}, {"top_n": {"score": "words", "n": 9}}]}],
    },
]


@pytest.fixture
def explorer(run_folder: Path) -> Explorer:
    held = CachedRun(run_folder)
    return Explorer(held, (), lambda run, recipe: tamis.select(run, recipe))


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_page_applies_recipes_that_choose_an_order(explorer: Explorer, epochs: int) -> None:
    step = {"cabs": {"concepts": "key", "super_batch": 4, "share": 0.5, "epochs": epochs}}
    recipe = {"name": "ordered", "select": [step]}
    chosen, expected = explorer.choose(recipe), tamis.select(explorer.run.path, recipe)
    assert chosen.in_order().tolist() == expected.in_order().tolist()
    assert explorer.view(View(show="kept", sort="row"), recipe)[1] == expected.kept


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["name"])
def test_the_page_keeps_the_pairs_that_the_command_keeps(
    explorer: Explorer, recipe: dict[str, Any], tmp_path: Path
) -> None:
    """The page's YAML as a file, chosen from the run on disk, against what the page scrolls through."""
    (tmp_path / "page.yaml").write_text(as_yaml(recipe), encoding="utf-8")
    chosen = tamis.select(explorer.run.path, str(tmp_path / "page.yaml"))
    explorer.chosen(recipe, ["words"])  # what is held in memory changes nothing
    rows, total = explorer.view(View(show="kept", sort="row"), recipe)
    assert rows.tolist() == chosen.rows().tolist()
    assert total == explorer.chosen(recipe, [])["kept"] == len(chosen)
    high, low = explorer.run.table().uids(rows)
    assert [high.tolist(), low.tolist()] == [half.tolist() for half in chosen.uids()]
    assert [line["kept"] for line in explorer.chosen(recipe, [])["funnel"]] == [line["kept"] for line in chosen.funnel]


def test_subsets_have_the_colours_of_the_report(explorer: Explorer) -> None:
    run = tamis.open_run(explorer.run.path)
    subsets = [tamis.select(run, recipe) for recipe in RECIPES]
    report = [each["colour"] for each in names_of(subsets)]
    page = Explorer(explorer.run, subsets[::-1], lambda run, recipe: tamis.select(run, recipe)).facts()["recipes"]
    assert [each["colour"] for each in page if each["from"] == "subset"] == report[::-1]
    assert len({*report}) == len(RECIPES)


def test_curves_are_those_of_recipes_that_are_known_here(explorer: Explorer) -> None:
    assert explorer.facts()["curves"] == []
    run = explorer.run
    means = [-2.2, -2.1, -2.0, -1.95, -1.94, -1.97, -2.0, -2.1]
    curves = [curve_of(name, means) for name in ("clip-50", "best", "mine.yaml", "text_match")]
    write_curves(run, *curves)
    best = tamis.select(run, {"name": "best", "select": [{"top_fraction": {"score": "words", "fraction": 0.5}}]})
    facts = Explorer(run, [best], lambda run, recipe: tamis.select(run, recipe)).facts()
    (run.path / "shares.json").unlink()
    clip, known = facts["curves"]  # the third is a file that is not here, the last has no share
    assert clip["select"][-1]["top_fraction"]["score"] == "clip"
    fraction = known["select"][-1]["top_fraction"].pop("fraction")
    assert known["select"] == [{"top_fraction": {"score": "words", "of": "pool"}}]
    assert (fraction, known["verdict"]) == (curves[1].point, curves[1].verdict())
    assert {each["class"].split()[0] for each in known["shapes"]} == {
        "bracket",
        "share",
        "range",
        "dot",
        "limit",
        "cut",
    }


def test_findings_name_a_race_on_the_run(explorer: Explorer) -> None:
    assert explorer.found()["race"].startswith(f"tamis choose {explorer.run.path} --arms clip-50,tmars,text_match,")


def test_a_saved_subset_is_the_one_on_the_page(explorer: Explorer) -> None:
    saved = explorer.save(RECIPES[2])
    assert Path(saved["subset"]).parent == explorer.run.path / "subsets"
    loaded = Subset.load(saved["subset"], tamis.open_run(explorer.run.path))
    assert np.array_equal(loaded.keep, explorer.choose(RECIPES[2]).keep)
    with pytest.raises(tamis.core.errors.RecipeError, match="exists already"):
        explorer.save(RECIPES[2])
    assert explorer.save(RECIPES[2], replace=True)["kept"] == saved["kept"]


def test_filters_and_findings_follow_a_subset_that_is_replaced(run_folder: Path) -> None:
    held = CachedRun(run_folder)
    first = tamis.select(held, {"name": "cut", "select": [{"at_least": {"score": "words", "value": 9}}]})
    explorer = Explorer(held, [first], lambda run, recipe: tamis.select(run, recipe))
    saved, every = {"saved": 0}, RECIPES[0]
    asked = [(View(region=(1, 0)), every, [saved, RECIPES[2]]), (View(reason=1), saved, [])]
    before = [explorer.passing(*each) for each in asked]
    assert explorer.findings.every
    explorer.save(RECIPES[1], replace=True)
    keep, other = explorer.choose(RECIPES[1]).keep, explorer.choose(RECIPES[2]).keep
    after = [explorer.passing(*each) for each in asked]
    assert [mask.tolist() for mask in after if mask is not None] == [(keep & ~other).tolist(), (~keep).tolist()]
    assert not any(np.array_equal(*both) for both in zip(before, after, strict=True))
    assert explorer.findings._context.subsets[0].kept == keep.sum()


def test_subsets_it_was_opened_with_keep_what_their_files_keep(run_folder: Path, tmp_path: Path) -> None:
    """Of a set operation with a subset that was made by hand there is no recipe."""
    run = tamis.open_run(run_folder)
    once = tamis.select(run, RECIPES[1])
    twice = replace(once, times=once.keep.astype(np.uint16) * 2, recipe={"name": "twice"})
    half = tamis.select(run, {"name": "half", "select": [{"random_fraction": {"fraction": 0.5, "seed": 1}}]})
    shared = replace(half, recipe={"name": "shared"})
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    for subset, file in zip((twice & half, shared, once), files, strict=True):
        subset.save(file)
    held = CachedRun(run_folder)
    given = [Subset.load(file, held) for file in files]
    explorer = Explorer(held, given, lambda run, recipe: tamis.select(run, recipe))
    told = explorer.facts()["recipes"][:3]
    for entry, kept in zip(told, (once.keep & half.keep, half.keep, once.keep), strict=True):
        assert np.array_equal(explorer.choose(entry["recipe"]).keep, kept)
        verdict = pair_facts(explorer, int(np.flatnonzero(~kept)[0]), [(entry["name"], entry["recipe"])])["verdicts"][0]
        assert (verdict["kept"], bool(verdict["reason"])) == (False, True)
    assert [entry["start"].get("saved") for entry in told] == [0, 1, None]
    with pytest.raises(tamis.core.errors.RecipeError, match="has 3 subsets"):
        explorer.choose({"saved": 3})
    explorer.save({**RECIPES[0], "name": "shared"}, replace=True)
    assert explorer.choose(told[1]["recipe"]).keep.all()


@pytest.mark.parametrize("name", ["../out", "", ".hidden"])
def test_a_subset_is_saved_nowhere_but_in_the_run(explorer: Explorer, name: str) -> None:
    before = set(explorer.run.path.parent.rglob("*"))
    with pytest.raises(tamis.core.errors.RecipeError, match="file name"):
        explorer.save({**RECIPES[1], "name": name})
    assert set(explorer.run.path.parent.rglob("*")) == before


def test_orders_are_what_they_say(explorer: Explorer) -> None:
    words = explorer.run.to_numpy("words").astype(float)
    recipe = RECIPES[1]

    def order(**asked: Any) -> list[int]:
        return [int(row) for row in explorer.view(View(**asked), recipe)[0]]

    highest = order(sort="score", column="characters")
    characters = explorer.run.to_numpy("characters")
    assert characters[highest].tolist() == sorted(characters.tolist(), reverse=True)
    rows = order(sort="cut")  # kept and dropped in turn, each from the cut on
    few, kept = 2 * min(np.sum(words >= 5), np.sum(words < 5)), words[rows] >= 5
    assert kept[:few].tolist() == [True, False] * (few // 2)
    for side in (kept, ~kept):
        nearest = np.abs(words[rows][side] - 5)
        assert nearest.tolist() == sorted(nearest.tolist())
    assert sorted(rows) == list(range(60))
    ends = order(sort="extremes", column="characters")
    assert (characters[ends[0]], characters[ends[1]]) == (characters.min(), characters.max())
    assert sorted(ends) == sorted(order()) == list(range(60)) != order()


def test_orders_by_blocks_are_those_of_one_sort(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_run, "LISTED", 5)
    for module in (cached_run, page_pairs):
        monkeypatch.setattr(module, "blocks", lambda rows: reasons.blocks(rows, 7))
    words, places = explorer.run["words"], np.argsort(random_order(explorer.run.table())).tolist()
    assert sorted(range(60), key=lambda row: int(explorer.run.order[row])) == places
    some = [row for row in places if 3 <= words[row] <= 9]
    for sort, key in (
        ({"sort": "random"}, lambda row: 0),
        ({"sort": "row"}, lambda row: row),
        ({"sort": "score", "column": "words"}, lambda row: -words[row]),
        ({"sort": "score", "column": "words", "descending": False}, lambda row: words[row]),
    ):
        view: Any = {**sort, "ranges": (("words", 3, 9),)}
        rows, total = explorer.view(View(**view), RECIPES[1])
        assert (rows.tolist(), total) == (sorted(some, key=key)[:5], len(some))


def test_what_another_step_drops_is_not_next_to_the_cut(explorer: Explorer) -> None:
    """It may have any score, and the cut had no say in it."""
    words, characters = explorer.run.to_numpy("words"), explorer.run.to_numpy("characters")
    limit = float(np.nanquantile(characters, 0.9))
    early = {"at_most": {"score": "characters", "value": limit, "missing": "drop"}}
    recipe = {"name": "two", "select": [early, *RECIPES[1]["select"]]}
    rows = explorer.view(View(sort="cut"), recipe)[0]
    dropped = rows[~explorer.choose(recipe).keep[rows]]
    late = (words[dropped] < 5) & (characters[dropped] <= limit)
    assert 0 < late.sum() < late.size
    assert late.tolist() == sorted(late.tolist(), reverse=True)
    sides = explorer.sides(rows, recipe)
    assert sides == {"counts": [rows.size - late.size, late.size], "cut": ["words", 5.0, None]}
    assert explorer.sides(rows, RECIPES[0]) == {"counts": [60, 0], "cut": None}


def test_pairs_of_one_uid_are_not_neighbours_in_the_random_order() -> None:
    low = np.arange(300, dtype=np.uint64)
    low[150:] = low[150]  # half of the rows have one uid
    table = MemoryTable({"x": np.zeros(300)}, uids=(np.zeros(300, np.uint64), low), block=70)
    one, plain = random_order(table), scramble_uids(table)
    assert (one[:150] == plain[:150]).all()  # the others stay where they were
    assert np.unique(one).size == 300
    beside = np.diff(np.argsort(one) >= 150)
    assert 90 < beside.sum() < 210
    again = random_order(MemoryTable({"x": np.zeros(300)}, uids=(np.zeros(300, np.uint64), low)))
    np.testing.assert_array_equal(one, again)


def test_filters_narrow_a_view(explorer: Explorer) -> None:
    words = explorer.run.to_numpy("words")

    def shown(**asked: Any) -> set[int]:
        return {int(row) for row in explorer.view(View(**asked), RECIPES[1])[0]}

    assert shown(show="kept") | shown(show="dropped") == set(range(60))
    assert not shown(show="kept") & shown(show="dropped")
    assert shown(ranges=(("words", 4, 5),)) == set(np.flatnonzero((words >= 4) & (words <= 5)).tolist())
    assert shown(words=(("status", "image_broken"),)) == {13}
    assert shown(captions=("SCRIPT>",)) == {0}
    assert shown(reason=1) == shown(show="dropped")
    compared = [RECIPES[0], RECIPES[1]]
    only = explorer.view(View(region=(1, 0)), RECIPES[1], compared)[0]
    assert set(only.tolist()) == shown(show="dropped")


def test_a_view_follows_tags_whose_number_stays_the_same(explorer: Explorer, tmp_path: Path) -> None:
    shutil.copytree(explorer.run.path, tmp_path / "run")
    tagged = Explorer(CachedRun(tmp_path / "run"), (), lambda run, recipe: tamis.select(run, recipe))
    goods = {"name": "goods", "select": [{"equals": {"score": "label", "value": 1, "missing": "drop"}}]}
    for row in (3, 7):
        tagged.retag(lambda row=row: tagged.tags.change(np.array([row]), add=["good"]))
        assert tagged.view(View(tags=(("good", True),)), RECIPES[0])[0].tolist() == [row]
        assert tagged.view(View(tags=(("", False),)), RECIPES[0])[1] == 59
        for recipe in (goods, {"name": "tagged", "select": [{"tagged": "good"}]}):
            assert np.flatnonzero(tagged.choose(recipe).keep).tolist() == [row]
        assert tagged.retag(tagged.tags.undo)["rows"] == {str(row): []}


def test_all_pairs_of_a_view_are_tagged_listed_or_not(
    explorer: Explorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_run, "LISTED", 5)
    shutil.copytree(explorer.run.path, tmp_path / "run")
    with served(tmp_path / "run") as page:
        cut = {"name": "cut", "select": [{"at_least": {"score": "words", "value": 4, "missing": "drop"}}]}
        words = explorer.run.to_numpy("words")
        dropped = np.flatnonzero(~(words >= 4)).tolist()
        view = {"recipe": cut, "view": {"show": "dropped", "sort": "row"}}
        assert page.ask("rows", **view, numbers=True, count=99) == {"rows": dropped[:5]}
        assert page.ask("tag", **view, add=["few  words"])["changed"] == len(dropped) > 5
        lasso = {"map": "image_embedding", "points": [[-2, -2], [2, -2], [2, 2], [-2, 2]]}
        page.ask("tag", recipe=cut, lasso=lasso, add=["inside"], remove=["few words"])
        found = Run(tmp_path / "run").to_arrow(["tagged"]).column("tagged").to_pylist()
        assert [row for row, tags in enumerate(found) if tags != "inside"] == [13]  # it has no embedding
        assert found[13] == ("few words" if 13 in dropped else None)


def test_bars_cells_and_regions_count_every_pair_once(explorer: Explorer) -> None:
    bins, keep = explorer.bins("words"), explorer.choose(RECIPES[1]).keep
    values = explorer.run.to_numpy("words")
    assert bins.facts.pool.sum() == np.isfinite(values).sum()
    assert np.array_equal(bins.count(keep) + bins.count(~keep), bins.facts.pool)
    heat = explorer.heat("words", "characters", RECIPES[1])
    assert np.sum(heat["kept"]) == np.isfinite(values[keep]).sum() == bins.count(keep).sum()
    assert np.array_equal(np.sum(heat["pool"], axis=0), bins.facts.pool)
    found = explorer.regions(RECIPES[:3])
    assert sum(region["rows"] for region in found["regions"]) == 60
    assert found["sets"] == [len(tamis.select(explorer.run.path, recipe)) for recipe in RECIPES[:3]]
    with pytest.raises(tamis.core.errors.RecipeError, match="between 2 and 5"):
        explorer.regions(RECIPES[:1])


def test_words_of_the_kept_pairs_are_counted(explorer: Explorer) -> None:
    chosen = {"name": "x", "select": [{"top_n": {"score": "characters", "n": 7}}]}
    found = explorer.word_counts("status", "", chosen)
    assert found["words"][0] == {"word": "ok", "whole": True, "pool": 59, "kept": 7}
    assert found["different"] == found["found"] == 2


def test_words_are_counted_as_python_would() -> None:
    """Any case, nulls, ties, blocks of both encodings: the slow, obvious way."""
    several = ["Straße", "STRASSE", "strasse", None, "a", "B", "b", "x", "ﬁn", "FIN", "zz", "", None, "Ωμ", "ω"]
    blocks = [pa.array(several * 2), pa.array([*several[3:], "a"], pa.string()).dictionary_encode()]

    class Blocks(MemoryTable):
        def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
            return {"word": blocks[block]}

    table = Blocks({"word": []})
    table.sizes = [len(block) for block in blocks]
    everything = [word for block in blocks for word in block.to_pylist()]
    keep = np.arange(len(everything)) % 3 != 0
    pool = Counter(word for word in everything if word is not None)
    kept = Counter(word for word, here in zip(everything, keep, strict=True) if here and word is not None)
    counts = cached_run.count_words(table, "word")
    assert dict(zip(counts["word"].to_pylist(), counts["n"].to_pylist(), strict=True)) == pool
    for part in ("", "ss", "ß", "B", "i", "fi", "Ω", "nothing"):
        found = cached_run.words_containing(counts, part)
        words = found["word"].to_pylist()
        assert sorted(words) == sorted(word for word in pool if part.lower() in word.lower())
        among = cached_run.count_words_among(table, "word", found["word"], keep)
        assert among.tolist() == [kept[word] for word in words]


def test_a_pairs_panel_shows_all(explorer: Explorer) -> None:
    found = pair_facts(explorer, 3, [("cut", RECIPES[1])])
    assert found["caption"] == "javascript:window.hurt=1"
    assert found["url"] == "javascript:window.hurt=1"
    (verdict,) = found["verdicts"]
    assert verdict == {"name": "cut", "kept": False, "times": 0, "reason": "Step 1: words below 5", "repeats": None}
    by_name = {score["name"]: score for score in found["scores"]}
    words = explorer.run.to_numpy("words")
    expected = ((words < words[3]).sum() + (words == words[3]).sum() / 2) / 60
    assert by_name["words"]["percentile"] == pytest.approx(expected)
    assert len(found["neighbours"]) == 8
    assert found["neighbours"][0]["cosine"] == max(other["cosine"] for other in found["neighbours"])


def test_images_are_small_and_the_cache_is_bounded(explorer: Explorer) -> None:
    images = Images(explorer.run, most=12)
    assert len(images.read_ahead(range(20))) == 20
    assert list(images._kept) == list(range(8, 20))
    assert Image.open(io.BytesIO(images.small(4))).size == (48, 32)
    assert list(images._kept)[-1] == 4
    with pytest.raises(NoImage, match="not decodable"):
        images.small(13)
    gone = CachedRun(explorer.run.path)
    gone.readable_pool = None
    with pytest.raises(NoImage, match="files are not here"):
        Images(gone).small(1)


def test_an_image_that_could_not_be_read_is_tried_again(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    read = image_module.samples_of

    def refuse(*arguments: Any, **named: Any) -> Any:
        raise OSError("the disk is away")

    images = Images(explorer.run)
    monkeypatch.setattr(image_module, "samples_of", refuse)
    with pytest.raises(NoImage, match="away"):
        images.small(4)
    monkeypatch.setattr(image_module, "samples_of", read)
    assert images.small(4)
    with pytest.raises(NoImage, match="not decodable"):
        images.small(13)


def test_a_held_run_reads_each_column_once_and_forgets_what_was_written_since(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, read, reads = tamis.open_run(run_folder).to_numpy("words"), parts.read_columns, Counter[str]()

    def counting(*arguments: Any, **named: Any) -> Any:
        reads["now"] += 1
        return read(*arguments, **named)

    def times(run: CachedRun) -> int:
        reads.clear()
        assert np.array_equal(run.to_numpy("words"), words)
        assert run.table({"mine": "words"}).read(1, ["mine"])["mine"].size == 30
        return reads["now"]

    monkeypatch.setattr(parts, "read_columns", counting)
    held, none = CachedRun(run_folder), CachedRun(run_folder, most=0)
    assert [times(run) for run in (held, held, none, none)] == [2, 0, 3, 3]  # two shards, and one of them again
    held.forget(held.scores["caption_length"].folder.name)
    assert times(held) == 2


def test_images_are_painted_under_a_lock(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks for the outlined and the painted image at once; an inference engine refuses the second."""
    text_painter = image_module.TextPainter(explorer.run)

    def paint(image: Any) -> tuple[Any, Any]:
        assert text_painter._guard.locked()
        return image, image

    monkeypatch.setattr(image_module, "painter", lambda group: paint)
    monkeypatch.setattr(text_painter, "_group", explorer.run.scores["image_size"])
    assert len(text_painter.paint(np.zeros((4, 4, 3), np.uint8))) == 2
