"""Tags are a part of the run: given by several explorers and machines, in bulk, undone, exported, read by recipes."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from explored_page import served
from factories import pair, write_pool, write_tar

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.image_cache import Images
from tamis.reports.explore.pages import Pages
from tamis.reports.explore.queries import Explorer
from tamis.reports.explore.tagging import Tags
from tamis.runs import Run, claims, manifest, parts
from tamis.runs.claims import claim_shard


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> CachedRun:
    shutil.copytree(run_folder, tmp_path / "run")
    return CachedRun(tmp_path / "run")


def rows(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def stored(run: CachedRun) -> dict[int, list[str]]:
    """The tags on the disk, by row."""
    tags = Tags(CachedRun(run.path))
    return {row: tags.of(row) for row in np.flatnonzero(tags.having()).tolist()}


def test_the_report_has_the_share_of_each_tag_that_each_subset_keeps(run: CachedRun, tmp_path: Path) -> None:
    """The pilot study of docs/explore.md."""
    tags = Tags(run)
    tags.change(rows(1, 2, 3, 4), add=["text only"])
    tags.change(rows(0, 5, 40), add=["visual"])
    few = tamis.select(run.path, {"name": "few", "select": [{"tagged": "visual"}]})
    half = tamis.select(run.path, {"name": "half", "select": [{"random_fraction": {"fraction": 0.5}}]})
    tamis.report(run.path, [few, half], out=tmp_path / "pilot.html")
    columns = json.loads((tmp_path / "pilot.json").read_text())["sections"]["values"]["columns"]
    (tagged,) = (column for column in columns if column["name"] == "tagged")
    halves = [int(half.keep[list(some)].sum()) for some in ((1, 2, 3, 4), (0, 5, 40))]
    found = {value["word"]: (value["rows"], value["kept"]) for value in tagged["values"]}
    assert {word: found[word] for word in ("text only", "visual")} == {
        "text only": (4, [0, halves[0]]),
        "visual": (3, [3, halves[1]]),
    }


def test_recipes_read_tags_and_labels(run: CachedRun, tmp_path: Path) -> None:
    tags = Tags(run)
    tags.change(rows(3, 40), add=["good", "  red   car "])
    tags.change(rows(40, 5), add=["bad", "caf\u00e9"])  # bad replaces good
    tags.change(rows(3), add=["cafe\u0301", "\u200dgood\u200c"])  # the same words in another form of Unicode

    def kept(*select: Any) -> list[int]:
        chosen = {"select": list(select)}
        found = tamis.select(run.path, chosen).rows().tolist()
        assert tamis.select(run, chosen).rows().tolist() == found
        return [int(row) for row in found]

    assert kept({"tagged": "red car"}) == [3, 40]
    assert kept({"tagged": ["good", "caf\u00e9"]}) == [3, 5, 40]
    assert kept({"none_of": [{"tagged": "bad"}]}, {"tagged": {"tags": "red car"}}) == [3]
    assert kept({"equals": {"score": "label", "value": 0, "missing": "drop"}}) == [5, 40]
    with pytest.raises(RecipeError, match=r"unknown tag 'redcar'.*did you mean 'red car'.*good"):
        kept({"tagged": "redcar"})
    assert stored(run) == {
        3: ["caf\u00e9", "good", "red car"],
        5: ["bad", "caf\u00e9"],
        40: ["bad", "caf\u00e9", "red car"],
    }
    assert tags.counts() == {"caf\u00e9": 3, "bad": 2, "red car": 2, "good": 1}
    assert tamis.check(run.path).exit_code == 0
    subset = tamis.select(run.path, {"select": [{"tagged": "red car"}]})
    tamis.export(subset, "parquet", tmp_path / "tagged.parquet")
    exported = pq.read_table(tmp_path / "tagged.parquet").select(["tagged", "label"]).to_pylist()
    assert exported == [
        {"tagged": "caf\u00e9,good,red car", "label": 1.0},
        {"tagged": "bad,caf\u00e9,red car", "label": 0.0},
    ]


def test_a_run_without_tags_says_where_to_give_them(run: CachedRun, pool: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no pair of .* has a tag: give tags with `tamis explore`"):
        tamis.select(run, {"select": [{"tagged": "blurry"}]})
    recipe = {
        "pool": str(pool),
        "run": str(tmp_path / "new"),
        "signals": ["caption_length"],
        "select": [{"tagged": "x"}],
    }
    with pytest.raises(RecipeError, match="selects by tags: score, tag with"):
        tamis.run_recipe(recipe, quiet=True)


@pytest.mark.parametrize("tag", ["", " \n ", "a,b", "bell\x07", "\u202egnp", "\u200b", "\ud800", "x" * 61, 3, None])
def test_what_is_no_word_is_no_tag(run: CachedRun, tag: Any) -> None:
    with pytest.raises(RecipeError, match="a tag has"):
        Tags(run).change(rows(1), add=[tag])
    assert stored(run) == {}


def test_a_change_that_cannot_be_written_is_not_made(run: CachedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a change of many pairs had written before the disk was full can be undone."""
    tags = Tags(run)
    tags.change(rows(3), add=["good"])
    write = parts.write_scores

    def refuse(path: Path, *arguments: Any, **named: Any) -> None:
        if path.stem == "00001":
            raise RunError("the disk is full")
        write(path, *arguments, **named)

    monkeypatch.setattr(parts, "write_scores", refuse)
    with pytest.raises(RunError, match="full"):
        tags.change(rows(40), add=["bad"])
    assert stored(run) == {3: ["good"]}
    with pytest.raises(RunError, match="full"):
        tags.change(rows(1, 3, 40), add=["bad"])
    assert stored(run) == {1: ["bad"], 3: ["bad"]}
    assert tags.undo().tolist() == [1, 3]
    assert stored(run) == {3: ["good"]} == {row: tags.of(row) for row in (3,)}


def test_two_explorers_keep_each_others_tags(run: CachedRun) -> None:
    one, other = Tags(run), Tags(CachedRun(run.path))
    one.change(rows(3), add=["good"])
    other.change(rows(4, 40), add=["bad"])
    one.change(rows(3, 4), add=["blurry"])
    assert stored(run) == {3: ["blurry", "good"], 4: ["bad", "blurry"], 40: ["bad"]}
    other.change(rows(3, 40), add=["bad"])
    other.undo()  # gives back what the run had
    assert stored(run) == {3: ["blurry", "good"], 4: ["bad", "blurry"], 40: ["bad"]}


def test_tags_of_an_interrupted_change_are_there_when_the_run_is_opened_again(
    run: CachedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(path: Path, *arguments: Any, **named: Any) -> None:
        if path.stem == "00001":
            raise KeyboardInterrupt
        write(path, *arguments, **named)

    write = parts.write_scores
    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_scores", die)
        with pytest.raises(KeyboardInterrupt):
            Tags(run).change(np.arange(60), add=["first"])
    tags = Tags(CachedRun(run.path))
    assert tags.counts() == {"first": 30}
    tags.change(rows(0), remove=["first"])  # completes the column
    assert tamis.select(run.path, {"select": [{"tagged": "first"}]}).rows().tolist() == list(range(1, 30))


def test_the_recall_of_a_cut_counts_pairs_without_the_score(tmp_path: Path) -> None:
    files = [(f"{row:02d}", pair(row, original_height=200 + row)) for row in range(30)]
    files[29] = "29", {**pair(29, original_width=None), "jpg": b"no image"}
    write_tar(tmp_path / "pool" / "0.tar", files)
    tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["image_size"], quiet=True)
    explorer = Explorer(CachedRun(tmp_path / "run"), (), lambda run, recipe: tamis.select(run, recipe))
    explorer.tags.change(np.arange(15, 30), add=["good"])
    explorer.tags.change(np.arange(15), add=["bad"])
    (cut,) = (cut for cut in explorer.suggestions()["cuts"] if cut["column"] == "shorter_side")
    assert (cut["keeps"], cut["recall"]["n"]) == ("at_least", 15)
    assert cut["recall"]["value"] <= 14 / 15


def test_undo_keeps_what_others_tagged_since(run: CachedRun) -> None:
    one, other = Tags(run), Tags(CachedRun(run.path))
    one.change(rows(2, 3), add=["good", "old"])
    one.change(np.arange(60), add=["bulk"], remove=["good", "old"])
    other.change(rows(3, 50), add=["bad", "mine"])
    assert one.undo().size == 60
    assert stored(run) == {2: ["good", "old"], 3: ["bad", "bulk", "mine"], 50: ["bad", "bulk", "mine"]}
    assert one.of(3) == ["bad", "bulk", "mine"]


def test_one_undo_takes_back_one_change_of_many_pairs(run: CachedRun) -> None:
    tags = Tags(run)
    tags.change(rows(3, 50), add=["good"])
    tags.change(np.arange(60), add=["bad", "blurry"])
    assert tags.change(rows(3), add=["bad"]).size == 0  # says nothing new
    assert tags.counts() == {"bad": 60, "blurry": 60}
    assert tags.undo().size == 60
    assert stored(run) == {3: ["good"], 50: ["good"]}
    assert tags.undo().tolist() == [3, 50]
    assert stored(run) == {}
    with pytest.raises(RecipeError, match="nothing to undo"):
        tags.undo()


def test_tags_of_a_run_that_has_grown_are_completed_by_the_next_change(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True).path
    Tags(CachedRun(run)).change(rows(2), add=["blurry"])
    write_tar(pool / "00001.tar", [(f"new{number}", pair(500 + number)) for number in range(7)])
    tamis.score(pool, run=run, signals=["caption_length"], quiet=True)
    with pytest.raises(RunError, match=r"1 of 2 shards have it .*; change a tag in `tamis explore` first"):
        tamis.select(run, {"select": [{"tagged": "blurry"}]})
    Tags(CachedRun(run)).change(rows(9), add=["new"])
    assert tamis.select(run, {"select": [{"tagged": "blurry"}]}).rows().tolist() == [2]


def test_the_rows_of_a_change_of_all_pairs_are_not_kept(run: CachedRun) -> None:
    explorer = Explorer(run, (), lambda run, recipe: tamis.select(run, recipe))
    pages = Pages(explorer, Images(run))
    for tag in ("one", "two"):
        assert pages.answers["tag"]({"recipe": {"select": []}, "view": {}, "add": [tag]})["changed"] == 60
    assert explorer._ordered.cache_info().currsize == 0
    pages.images.close()


def test_changes_at_once_wait_for_each_other(run: CachedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the run's lock, which gives up after a while: 11 of 58 labels were refused."""
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.0)
    tags = Tags(run)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda row: tags.change(rows(row), add=["good"]), range(60)))
    assert len(stored(run)) == 60


def test_a_run_that_is_gone_is_not_made_again_by_a_tag(run: CachedRun, tmp_path: Path) -> None:
    tags = Tags(run)
    tags.change(rows(3), add=["good"])
    run.path.rename(tmp_path / "moved")
    with pytest.raises(RunError, match="is gone"):
        tags.change(rows(4), add=["good"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["moved"]


def test_no_tag_is_written_for_rows_that_the_run_no_longer_has(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True).path
    tags, untagged = Tags(CachedRun(run)), Tags(CachedRun(run))
    tags.change(rows(0), add=["good"])
    write_tar(pool / "00000.tar", [(f"new{number}", pair(500 + number)) for number in range(7)])
    manifest.forget(run, ["00000"])
    tamis.score(pool, run=run, signals=["caption_length"], quiet=True)
    for each in (tags, untagged):
        with pytest.raises(RunError, match=r"shard 00000 has other rows: open it again"):
            each.change(rows(0), add=["bad"])
    tags.change(rows(8), add=["good"])  # the other shard has the rows that it had
    assert stored(CachedRun(run)) == {8: ["good"]}
    assert tamis.check(run).exit_code == 0


def test_no_tag_is_written_while_another_process_is_at_the_shard(
    run: CachedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that holds the claim may remove the shard's files, and with them a tag just written."""
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.2)
    tags = Tags(run)
    for row in (3, 40):  # the first tag of a run writes parts of every shard
        with claim_shard(run.path, run.shards[1]) as mine:
            assert mine
            with pytest.raises(RunError, match="shard 00001"):
                tags.change(rows(row), add=["good"])
        tags.change(rows(3), add=["good"])
    assert stored(run) == {3: ["good"]}


RUN = "s3://pool/runs/mine"
HALF = {"name": "half", "select": [{"top_fraction": {"score": "characters", "fraction": 0.5}}]}


def test_two_machines_tag_one_run_and_see_what_is_saved(
    pool: Path, s3: Any, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be(name: str) -> None:
        monkeypatch.setenv("TAMIS_CACHE", str(tmp_path / name))

    be("a")
    tamis.score(pool, run=RUN, signals=["caption_length"], quiet=True)
    be("b")
    with served(RUN) as page:
        assert page.ask("facts")["run"] == RUN
        assert page.ask("save", recipe=HALF)["subset"] == f"{RUN}/subsets/half.parquet"
        page.ask("tag", rows=[2], add=["good"])
        be("c")
        with served(RUN) as other:
            other.ask("tag", rows=[3], add=["bad"])
            with pytest.raises(AssertionError, match=r"mine/subsets/half.parquet exists already"):
                other.ask("save", recipe=HALF)
        be("b")
        page.ask("tag", rows=[4], add=["good"])
    s3.invalidate_cache()
    assert b"top_fraction" in s3.cat_file("pool/runs/mine/subsets/half.parquet")
    be("d")
    labels = Run(RUN).to_numpy("label")
    assert (np.flatnonzero(labels == 1).tolist(), np.flatnonzero(labels == 0).tolist()) == ([2, 4], [3])
