"""Views that are saved by name in the run, and filters of several texts and words."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import tamis
from tamis.core.errors import DamageError, RecipeError, RunError
from tamis.reports.explore.cached_run import CachedRun, View
from tamis.reports.explore.queries import Explorer
from tamis.reports.explore.saved_views import read_views, save_view
from tamis.runs.check import check


@pytest.fixture
def run(run_folder: Path) -> Any:
    yield tamis.open_run(run_folder)
    (run_folder / "views.json").unlink(missing_ok=True)


def test_a_view_is_saved_replaced_and_deleted(run: tamis.Run) -> None:
    assert read_views(run) == {}
    save_view(run, " b ", "sort=1")
    assert save_view(run, "ä <i>", "sort=2") == {"b": "sort=1", "ä <i>": "sort=2"}
    with pytest.raises(RecipeError, match="there is a view 'b' already: replace it, or choose another name"):
        save_view(run, "b", "sort=3")
    assert save_view(run, "b", "sort=3", replace=True)["b"] == "sort=3"
    assert save_view(run, "b", None) == {"ä <i>": "sort=2"}
    assert save_view(run, "b", None) == {"ä <i>": "sort=2"}  # another page may have deleted it


@pytest.mark.parametrize("name", ["", "  ", "x" * 61, "a\nb", "a\u202eb"])
def test_a_name_can_be_read(run: tamis.Run, name: str) -> None:
    with pytest.raises(RecipeError, match="1 to 60 visible characters"):
        save_view(run, name, "")
    assert not (run.path / "views.json").exists()


def test_pages_that_save_at_once_lose_nothing(run: tamis.Run) -> None:
    pages = [threading.Thread(target=save_view, args=(run, f"view {n}", str(n))) for n in range(6)]
    for page in pages:
        page.start()
    for page in pages:
        page.join()
    assert read_views(run) == {f"view {n}": str(n) for n in range(6)}


def test_the_file_is_ours_and_damage_is_found(run: tamis.Run) -> None:
    save_view(run, "one", "sort=1")
    found = check(run.path)
    assert [finding.path for finding in found.findings if "views" in finding.path] == []
    path = run.path / "views.json"
    path.write_text(path.read_text().replace("sort=1", "sort=2"))
    with pytest.raises(DamageError, match="views that people made: restore it"):
        read_views(run)
    (finding,) = [finding for finding in check(run.path).findings if "views" in finding.path]
    assert finding.kind == "yours"  # never among what `check` lists to delete
    assert path not in check(run.path).to_delete


def test_too_much_is_refused(run: tamis.Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="200,001 characters"):
        save_view(run, "long", "x" * 200_001)
    gone = tamis.open_run(run.path)
    gone.path = tmp_path / "gone"
    with pytest.raises(RunError, match="is gone"):
        save_view(gone, "one", "")


def test_filters_are_anded_and_alternatives_are_ored(run_folder: Path) -> None:
    explorer = Explorer(CachedRun(run_folder), (), lambda run, recipe: tamis.select(run, recipe))
    run = explorer.run
    captions, words, status = (run[name] for name in ("caption", "words", "status"))
    recipe: Any = {"name": "cut", "select": [{"at_least": {"score": "words", "value": 5, "missing": "drop"}}]}

    def passes(row: int) -> bool:
        text = (captions[row] or "").lower()
        some = ("dog" in text or "cat" in text) and "the" in text
        return some and 3 <= words[row] <= 8 and status[row] in ("ok", "bad_image")

    view = View(
        captions=("dog | CAT |", "the"), ranges=(("words", 3, 8),),
        words=(("status", "ok"), ("status", "bad_image")), sort="row",
    )  # fmt: skip
    expected = [row for row in range(60) if passes(row)]
    assert 3 < len(expected) < 60
    assert explorer.view(view, recipe)[0].tolist() == expected
    mask = explorer.passing(view, recipe)
    facts = explorer.chosen(recipe, ["words"], mask)
    bins = explorer.bins("words").bars
    for name, rows in (("shown", expected), ("bars", [row for row in expected if words[row] >= 5])):
        counts = [sum(bins[row] == bar for row in rows) for bar in range(len(facts[name]["words"]))]
        assert facts[name]["words"] == counts
    (ok,) = [word for word in explorer.word_counts("status", "ok", recipe, mask)["words"] if word["word"] == "ok"]
    assert ok["kept"] == sum(words[row] >= 5 and status[row] == "ok" for row in expected)
    assert sum(map(sum, explorer.heat("words", "characters", recipe, mask)["kept"])) == sum(facts["bars"]["words"])
    assert explorer.passing(View(show="kept", sort="row"), recipe) is None  # the charts of kept pairs are there anyway
    assert json.dumps(facts["shown"])
