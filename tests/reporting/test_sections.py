"""Single sections: what they gather of small runs, and what they draw of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_view import parsed
from factories import pair, write_pool, write_run, write_tar

import tamis
from tamis.reporting.context import Context
from tamis.reporting.sections import funnels, galleries, medium, notes, overlap, repeated, scores, values
from tamis.reporting.sections.values import Value
from tamis.store import Run
from tamis.store.subset import Subset


def every(run: Run, name: str = "all") -> Subset:
    return Subset(run=run, keep=np.ones(len(run), bool), recipe={"name": name, "select": []})


def test_values_are_counted_for_the_pool_and_each_subset(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"w": ["a", "b", "a", None, "a", "b"]})
    some = Subset(run=run, keep=np.array([1, 1, 0, 1, 0, 0], bool), recipe={"name": "some"})
    found = values.gather(Context(run, [every(run), some], None))
    assert found is not None
    (column,) = found.columns
    assert (column.judged, column.distinct, column.others) == (5, 2, 0)
    assert list(column.values) == [
        Value(word="a", rows=3, kept=(3, 1)),
        Value(word="b", rows=2, kept=(2, 1)),
        Value(word=None, rows=1, kept=(1, 1)),
    ]
    text = parsed(values.draw(found))[2]
    assert (found.texts, found.ids) == ([], [])
    assert "33.3 %" in text
    assert "no value" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"v{number}" for number in range(40)], "Not listed: w (nearly every pair has a value of its own)."),
        ([f"v{number // 2}" for number in range(39)], "Not listed: w (nearly every pair has a value of its own)."),
        ([""] * 60 + [f"sale {number}" for number in range(40)], "Not listed: w (free text, which"),
        (["a red dog sits", "a blue car on a road"] * 9, "Not listed: w (free text, which"),  # however few they are
        ([f"v{number // 2}" for number in range(40)], "5 more values"),  # half as many values as pairs: comparable
        ([f"v{number}" for number in range(15)], "v14"),  # few enough to be shown whatever they are
    ],
)
def test_columns_in_which_pairs_have_their_own_values_are_not_listed(
    tmp_path: Path, words: list[str], said: str
) -> None:
    found = values.gather(Context(write_run(tmp_path / "run", {"w": words}), [], None))
    assert found is not None
    text = parsed(values.draw(found))[2]
    assert said in text
    assert ("Not listed" in said) == (not found.columns)


def test_of_very_many_values_the_most_frequent_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    words = [f"v{number % 250:03d}" for number in range(1000)]
    found = values.gather(Context(write_run(tmp_path / "run", {"w": words}), [], None))
    assert found is not None
    (column,) = found.columns
    assert (len(column.values), column.others, column.distinct) == (200, 50, 250)
    text = parsed(values.draw(found))[2]
    assert "235 more values" in text
    assert "and 50 rarer ones" in text


def test_sections_with_nothing_to_say_are_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0]})
    alone, with_one = Context(run, [], None), Context(run, [every(run)], None)
    assert [part.gather(alone) for part in (funnels, values, galleries, repeated, overlap)] == [None] * 5
    assert [part.gather(with_one) is None for part in (funnels, values, galleries, repeated, overlap)] == [
        False, True, False, True, True,
    ]  # fmt: skip


def test_a_computed_score_of_two_recipes_is_drawn_once_with_the_cuts_of_both(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [float(number) for number in range(10)]})
    subsets = [tamis.select(run, {"select": [{"at_least": {"score": "x*x", "value": cut}}]}) for cut in (4.0, 36.0)]
    drawn = scores.gather(Context(run, subsets, None)).distributions
    assert [each.column.name for each in drawn] == ["x", "x*x"]
    assert [list(marks) for marks in drawn[1].marks] == [[4.0], [36.0]]
    assert [int(kept.sum()) for kept in drawn[1].histogram.kept] == [8, 4]


def test_a_score_that_is_a_line_of_a_column_is_drawn_as_that_column(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [float(number) for number in range(10)]})
    cuts = [("-x", -4), ("1 - 2*x", -11)]
    subsets = [tamis.select(run, {"select": [{"at_least": {"score": score, "value": cut}}]}) for score, cut in cuts]
    (drawn,) = scores.gather(Context(run, subsets, None)).distributions
    assert [list(marks) for marks in drawn.marks] == [[4.0], [6.0]]


@pytest.mark.parametrize(("step", "cut", "added"), [("words >= 3", 3.0, False), ("top 30 % by clip", 0.727, True)])
def test_a_cut_is_added_to_the_step_where_the_step_does_not_say_it(step: str, cut: float, added: bool) -> None:
    assert funnels.says(step, cut) != added


def test_a_gallery_survives_a_score_that_is_gone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    subset = tamis.select(run, {"select": [{"at_least": {"score": "x + y", "value": 3}}]})
    context = Context(run, [subset], None)
    assert context.explanations[0].cuts  # read while the score is there
    for name in ("x", "given.x"):
        del context.run.columns[name]
    found = galleries.gather(context)
    assert found is not None
    (fallen,) = found.galleries[0].steps[0].fallen
    assert fallen.lines == []
    assert [shown.pair.row for shown in fallen.dropped] == [0]
    assert [each.column.name for each in scores.gather(context).distributions] == ["y"]


def test_each_group_of_repeats_shows_the_pair_that_stays_first(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0] * 6}, uids=[(0, number) for number in range(6)])
    uids = [f"{number:032x}" for number in range(6)]
    told: dict[str, Any] = {"largest_groups": [{"size": 3, "rows": [4, 1, 2], "uids": [uids[4], uids[1], uids[2]]}]}
    line = {"step": "one of each", "before": 6, "kept": 4, "dropped": {}, "facts": told}
    subset = Subset(run=run, keep=np.array([1, 0, 0, 1, 1, 1], bool), recipe={"name": "once"}, funnel=[line])
    found = repeated.gather(Context(run, [subset], None))
    assert found is not None
    (group,) = found.subsets[0].groups
    assert (group.size, [pair.row for pair in group.pairs]) == (3, [4, 1, 2])
    text = parsed(repeated.draw(found))[2]
    assert text.index("stays") < text.index("repeats it")
    assert text.count("repeats it") == 2


def test_repeats_of_the_pool_are_shown_where_no_recipe_looks_for_them(tmp_path: Path) -> None:
    picture = {number: pair(number)["jpg"] for number in range(3)}
    samples = [(f"{n}", pair(n) | {"jpg": picture[n % 3]}) for n in range(5)]
    write_tar(tmp_path / "pool" / "00000.tar", samples)
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", scores=["image_hash"], quiet=True)
    found = repeated.gather(Context(run, [every(run)], None))
    assert found is not None
    (of,) = found.subsets
    assert of.subset is None
    assert sorted(sorted(pair.row for pair in group.pairs) for group in of.groups) == [[0, 3], [1, 4]]
    once = tamis.select(run, "distinct")
    found = repeated.gather(Context(run, [every(run), once], None))
    assert found is not None
    assert [each.subset.place for each in found.subsets if each.subset] == [1]
    gallery = galleries.gather(Context(run, [once], None))
    assert gallery is not None
    (fallen,) = gallery.galleries[0].steps[-1].fallen
    assert (fallen.repeats, fallen.rows, fallen.dropped) == (True, 2, [])
    assert 'href="#repeated-0"' in galleries.draw(gallery)


def test_a_column_that_two_scorers_give_is_drawn_once(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1)  # of 48 x 32 pixels, once 480 x 320
    asked = [{"image_size": {"of": of}} for of in ("original", "stored")]
    run = tamis.score(pool, run=tmp_path / "run", scores=asked, quiet=True)
    subset = tamis.select(
        run, {"select": [{"at_most": {"score": f"{sorted(run.scores)[1]}.aspect_ratio", "value": 3}}]}
    )
    drawn = scores.gather(Context(run, [subset], None)).distributions
    assert [each.column.name for each in drawn] == ["shorter_side", "aspect_ratio", "shorter_side"]
    assert [drawn[1].scorer, *drawn[1].also] == sorted(run.scores)
    assert [list(marks) for marks in drawn[1].marks] == [[3.0]]
    assert [drawn[0].also, drawn[2].also] == [(), ()]


def test_a_score_has_a_pair_at_each_quantile_and_equal_values_one_for_all(tmp_path: Path) -> None:
    values_ = [0.0] * 60 + [float(number) for number in range(1, 41)]
    run = write_run(tmp_path / "run", {"x": values_})
    (drawn,) = scores.gather(Context(run, [], None)).distributions
    assert [(list(each.levels), each.value) for each in drawn.strip] == [
        ([0.01, 0.1, 0.25, 0.5], 0), ([0.75], 15), ([0.9], 30), ([0.99], 39),
    ]  # fmt: skip
    assert [each.pair.numbers["x"] for each in drawn.strip] == [0, 15, 30, 39]
    assert "1 to 50 % · 0" in parsed(scores.draw(scores.gather(Context(run, [], None))))[2]


def test_overlap_of_two_subsets_by_hand(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0, 3.0, 4.0]})
    keeps = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], bool)
    subsets = [Subset(run=run, keep=keep, recipe={"name": name}) for keep, name in zip(keeps, "ab", strict=True)]
    found = overlap.gather(Context(run, subsets, None))
    assert found is not None
    assert found.shared.tolist() == [[3, 2], [2, 3]]
    assert found.jaccard.tolist() == [[1.0, 0.5], [0.5, 1.0]]
    _, attributes, text = parsed(overlap.draw(found))
    assert ("title", "a and b share 2 pairs") in attributes
    assert ("title", "b keeps 1 pair that a drops") in attributes
    assert "33.3 % of its own" in text
    assert [(each.keeps.label, each.drops.label, each.rows) for each in found.only] == [("a", "b", 1), ("b", "a", 1)]
    assert [[pair.row for pair in each.pairs] for each in found.only] == [[0], [3]]
    assert ("href", "#only-1-0") in attributes
    assert "a keeps, b drops: 1" in text


def test_notes_say_which_subset_cannot_be_explained(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0]})
    odd = Subset(run=run, keep=np.array([True, False]), recipe={"name": "odd"})
    found = notes.gather(Context(run, [every(run), odd], None))
    assert [each.subset for each in found.unexplained] == ["odd"]
    assert "odd: the page cannot say why pairs were dropped." in parsed(notes.draw(found))[2]


def test_medium_phrases_are_counted_for_captions_and_the_nearest_generated_ones(
    tmp_path: Path, clip_model: str
) -> None:
    pytest.importorskip("torch")
    captions = ["Stock photo of a red dog", "photos of a cat", "a red dog", "A photo of a dog, photo of a cat", "???"]
    write_tar(
        tmp_path / "pool" / "00000.tar",
        [(f"{n:09d}", pair(n) | {"txt": text.encode()}) for n, text in enumerate(captions)],
    )
    said = "".join(f'{{"key": "{n:09d}", "caption": "a picture of a dog"}}\n' for n in range(len(captions)))
    (tmp_path / "said.jsonl").write_text(said)
    entry = {"captions_from": str(tmp_path / "said.jsonl"), "encoder": clip_model, "medium": "tamis"}
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", scores=[{"sieve": entry}], quiet=True)
    found = medium.gather(Context(run, [], None))
    assert found is not None
    (of,) = found.scores
    assert (of.label, of.phrases) == ("sieve", "tamis")
    assert of.captions.phrases == (("a photo of", 1), ("photo of", 1), ("photos of", 1), ("stock photo of", 1))
    assert (of.captions.texts, of.captions.touched, of.captions.emptied) == (5, 3, 0)
    assert of.captions.characters == 15 + 10 + len("A photo of ") + len("photo of ")
    assert of.generated.phrases == (("a picture of", 4),)  # the caption of "???" has no nearest one
    text = parsed(medium.draw(found))[2]
    assert "Of 5 captions 3 (60.0 %) lost 45 characters; of 0 nothing is left." in text
    assert "stock photo of" in text
    assert medium.gather(Context(write_run(tmp_path / "other", {"w": [1.0]}), [], None)) is None
