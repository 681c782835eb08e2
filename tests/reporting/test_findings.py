"""What the page says first: the numbers by hand, and where they lead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser_view import parsed
from factories import write_pool, write_run

import tamis
from tamis import recipe as recipes
from tamis.reporting import traits
from tamis.reporting.context import Context
from tamis.reporting.in_words import in_words
from tamis.reporting.page import gather, render
from tamis.reporting.sections import correlation, findings, found, words
from tamis.store import Run
from tamis.store.subset import Subset


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Forty pairs: six in French, four tiny ones, and scores of which two rank alike."""
    rows = np.arange(40)
    columns = {
        "top_language": ["fr" if row < 6 else "en" for row in rows],
        "english": [0.01 if row < 4 else 0.4 for row in rows],
        "words": [8.0] * 40,
        "shorter_side": [100.0 if row >= 36 else 300.0 for row in rows],
        "clip": (rows / 40).tolist(),
        "tmars": ((rows * 7 % 40) / 40).tolist(),
    }
    return write_run(tmp_path_factory.mktemp("findings") / "run", columns)


def subsets(run: Run) -> list[Subset]:
    clean = [
        {"equals": {"score": "top_language", "value": "en"}},
        {"at_least": {"score": "shorter_side", "value": 200}},
    ]
    half = [{"name": name, "select": [{"top_n": {"score": name, "n": 20}}]} for name in ("clip", "tmars")]
    return [tamis.select(run, each) for each in ({"name": "clean", "select": clean}, *half)]


def test_the_pool_the_subsets_and_where_two_disagree(run: Run) -> None:
    context = Context(run, subsets(run), None)
    said = findings.gather(context)
    assert [(each.rows, each.what, each.anchor) for each in said.pool] == [
        (4, "captions probably not in English", "found-language"),
        (4, "tiny images", "found-tiny"),
    ]
    assert [(each.rows, each.what, each.anchor) for each in said.subsets[0].drops] == [
        (6, "with a top language other than English", "drop-0-1"),
        (4, "with a tiny image", "drop-0-2"),
    ]
    by_clip, by_tmars = (set(np.flatnonzero(each.keep)) for each in subsets(run)[1:])
    first = said.disagreements[0]
    assert (first.one.label, first.two.label, first.both) == ("clip", "tmars", len(by_clip & by_tmars))
    assert (first.only_one.rows, first.only_two.rows) == (len(by_clip - by_tmars), len(by_tmars - by_clip))
    assert (first.only_one.anchor, first.only_two.anchor) == ("only-1-2", "only-2-1")
    text = parsed(findings.draw(said))[2]
    assert text.startswith("Among 40 pairs: 4 captions probably not in English, 4 tiny images.")
    assert f"clip and tmars disagree on {2 * len(by_clip - by_tmars)}: " in text


def test_the_findings_come_first_and_every_number_leads_to_its_pictures(run: Run) -> None:
    page = render(gather(Context(run, subsets(run), None)))
    assert page.index('id="findings"') < page.index('id="funnels"') < page.index('id="pool"') < page.index('id="run"')
    _, attributes, _ = parsed(page)
    places = {value for name, value in attributes if name == "id"}
    links = {(value or "").removeprefix("#") for name, value in attributes if name == "href"}
    assert links <= places
    assert {"found-language", "drop-0-1", "drop-1-1", "only-1-2"} <= links


def test_a_subset_within_another_is_said_to_be(run: Run) -> None:
    chosen = [tamis.select(run, {"name": f"top {n}", "select": [{"top_n": {"score": "clip", "n": n}}]}) for n in (5, 9)]
    (each,) = findings.gather(Context(run, chosen, None)).disagreements
    assert (each.only_one.rows, each.only_two.rows, each.only_one.anchor) == (0, 4, "")
    assert "top 5 lies within top 9, which keeps 4 more." in parsed(
        findings.draw(findings.gather(Context(run, chosen, None)))
    )[2]  # fmt: skip


def test_a_pool_of_which_there_is_nothing_to_say(small_run: Run) -> None:
    said = findings.gather(Context(small_run, [], None))
    assert (said.pool, said.subsets, said.disagreements, said.alike) == ([], [], [], [])
    assert parsed(findings.draw(said))[2].startswith("Of 4 pairs every one can be read, and none is odd")
    assert found.gather(Context(small_run, [], None)) is None
    assert correlation.gather(Context(small_run, [], None)) is None


def test_another_language_is_claimed_only_where_it_is_fairly_sure(tmp_path: Path) -> None:
    rows = [  # top language, probability of English, words; whether the report says so, and the recipe drops it
        ("fr", 0.001, 9, True, True),
        ("fr", 0.019, 5, True, True),
        ("fr", 0.02, 5, False, False),
        ("fr", 0.001, 4, False, False),
        ("en", 0.9, 9, False, False),
        ("zh", 0.0, 1, True, True),  # no spaces: a sentence; the recipe drops it as too short
        (None, np.nan, np.nan, False, True),
    ]
    top, english, words, *_ = zip(*rows, strict=True)
    columns = {"top_language": top, "english": english, "words": words, "characters": [30] * 7}
    run = write_run(tmp_path / "run", {**columns, "shorter_side": [300] * 7, "aspect_ratio": [1] * 7})
    (found,) = [each for each in Context(run, [], None).traits if each.trait.ident == "language"]
    assert sorted(found.rows) == [number for number, row in enumerate(rows) if row[3]]
    kept = np.flatnonzero(tamis.select(run, "basic-multilingual-safe").keep).tolist()
    assert kept == [number for number, row in enumerate(rows) if not row[4]]
    any_of = recipes.load("basic-multilingual-safe").text["select"][1]["any_of"]
    assert any_of[0][0]["at_least"] == {"score": "english", "value": traits.ENGLISH, "missing": "drop"}
    assert any_of[1][0]["at_most"] == {"score": "words", "value": traits.ENOUGH_WORDS - 1, "missing": "drop"}


def test_what_traits_are_told_by_is_what_the_recipes_ask() -> None:
    asked = {
        rule["score"]: rule["value"]
        for name in ("basic", "text-match")
        for step in recipes.load(name).text["select"]
        for kind, rule in step.items()
        if kind in ("at_least", "at_most", "equals")
    }
    assert asked["top_language"] == traits.LANGUAGE
    assert (asked["shorter_side"], asked["aspect_ratio"]) == (traits.SHORTER_SIDE, traits.ASPECT_RATIO)
    assert (asked["words"], asked["text_match"]) == (traits.WORDS, traits.SHARED - 1)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("language.top_language is not en", "with a top language other than English"),
        ("top_language is not de", "with a top language other than de"),
        ("in none of english >= 0.02, words <= 4", "probably not in English"),
        ("status is not ok or json_broken", "with a missing, empty or broken image or caption"),
        ("clip below the cut", "below the cut of clip"),
        ("0.5*minmax(a) + b above 0.3", "with 0.5*minmax(a) + b above 0.3"),
        ("no value for clip", "without a value of clip"),
        ("no value for a and b", "without a value"),
        ("repeats another", "repeated"),
        ("<b>whatever</b>", "<b>whatever</b>"),
    ],
)
def test_reasons_in_a_curators_words(reason: str, said: str) -> None:
    assert in_words(reason) == said


def test_words_of_the_kept_beside_those_of_the_pool(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [float(number) for number in range(60)]})
    captions = [str(row) for shard in run.shards for row in run.index(shard, ["caption"]).column("caption").to_pylist()]
    dogs = np.array(["dog" in caption.split() for caption in captions])
    assert 5 <= dogs.sum() <= 55
    chosen = [
        Subset(run=run, keep=dogs, recipe={"name": "dogs"}),
        Subset(run=run, keep=np.ones(60, bool), recipe={"name": "all"}),
    ]
    said = words.gather(Context(run, chosen, None))
    assert said is not None
    (of,) = said.subsets  # of a subset that keeps all there is nothing to say
    assert of.kept == dogs.sum()
    assert (of.more[0].word, of.more[0].pool, of.more[0].kept) == ("dog", dogs.sum(), dogs.sum())
    part = dogs.mean()
    assert of.more[0].surprise == pytest.approx(dogs.sum() * (1 - part) / (dogs.sum() * part * (1 - part)) ** 0.5)
    assert all(each.kept / each.pool < part for each in of.less)
    assert "dog" in parsed(words.draw(said))[2]


def test_correlations_are_those_of_ranks(run: Run) -> None:
    said = correlation.gather(Context(run, [], None))
    assert said is not None
    assert list(said.names) == ["english", "words", "shorter_side", "clip", "tmars"]
    assert said.matrix[3, 3] == pytest.approx(1)
    assert said.matrix[2, 3] < -0.5


def test_scores_of_two_scorers_that_rank_alike_are_told(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=12)
    run = tamis.score(pool, run=tmp_path / "run", scores=["caption_length", "image_size"], quiet=True)
    context = Context(run, [], None)
    names, matrix = context.correlations
    assert {"words", "characters"} < set(names)
    place = {name: number for number, name in enumerate(names)}
    assert matrix[place["words"], place["characters"]] > 0.9
    assert findings.gather(context).alike == []  # they are one scorer's: nobody computes them apart
    matrix[place["words"], place["shorter_side"]] = matrix[place["shorter_side"], place["words"]] = -0.95
    (alike,) = findings.gather(context).alike
    assert {alike.one, alike.two} == {"words", "shorter_side"}
    assert "rank the pairs much alike: correlation −0.95." in parsed(findings.draw(findings.gather(context)))[2]
