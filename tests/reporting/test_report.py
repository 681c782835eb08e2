"""The whole page: what it shows, what it survives, and that captions stay text."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_view import parsed
from browsing import NO_AXE, NO_BROWSER, barriers, chromium
from factories import image_bytes, pair, write_pool, write_run, write_tar

import tamis
from tamis.errors import RunError
from tamis.pool import open_pool
from tamis.pool.images import decode
from tamis.reporting import write_report
from tamis.reporting.cards import TEXT_MOST, card, clamped, texts
from tamis.reporting.context import BUDGET, TEXTS, Context
from tamis.reporting.page import gather, render
from tamis.reporting.pairs import THUMBNAIL, Pair, thumbnail
from tamis.reporting.sections import galleries, rejects, scores
from tamis.reporting.sections.galleries import STRIP, Gallery
from tamis.store import Run
from tamis.store.subset import Subset

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>alert(2)</script>",
    "</title></head>",
    "' onmouseover='alert(3)",
    "שלום \u202e evil \U0001f468\u200d\U0001f469\u200d\U0001f467 😀",
    "x" * 5000,
    "a\x00b",
    "--><svg onload=alert(4)>",
]


def page_of(run: Run, subsets: list[Subset], out: Path, pool: Any = None) -> str:
    assert write_report(run, subsets, out, pool, overwrite=True) == out
    return out.read_text(encoding="utf-8")


def checked(page: str) -> str:
    """Returns the page's text, having made sure that nothing in it can run or be fetched, and that links have ends."""
    tags, attributes, text = parsed(page)
    places = [value for name, value in attributes if name == "id"]
    assert len(places) == len(set(places))
    assert {value for name, value in attributes if name == "href"} <= {f"#{place}" for place in places}
    assert not {"script", "iframe", "object", "embed", "link", "form", "base"} & set(tags)
    for name, value in attributes:
        assert not name.startswith("on")
        if name in ("src", "href"):
            assert re.match(r"#[a-z][a-z0-9_-]*$|data:image/(webp|jpeg);base64,[A-Za-z0-9+/=]+$", value or "")
        if name == "style":
            assert re.match(r"(width|--v):[0-9.]+%$", value or "")
    assert "default-src 'none'" in dict(attributes)["content"] or "default-src &#x27;none&#x27;" in page
    return text


def gallery_of(run: Run, subset: Subset) -> Gallery:
    found = galleries.gather(Context(run, [subset], None))
    assert found is not None
    (gallery,) = found.galleries
    return gallery


def cut_at(words: int) -> dict[str, Any]:
    return {"at_least": {"score": "words", "value": words, "missing": "drop"}}


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Run, Path]:
    samples = []
    for number, text in enumerate(HOSTILE):
        samples.append((f"k{number}<b>", pair(number, truth=text) | {"txt": text.encode()}))
    samples.append(("bad", pair(90) | {"jpg": image_bytes(3)[:200]}))
    samples.append(("empty", pair(91) | {"txt": b"  "}))
    samples.append(("latin", pair(92) | {"txt": b"caf\xe9"}))
    pool = write_tar(tmp_path / "pool <i>" / "00000.tar", samples).parent
    spec = tamis.pool.PoolSpec(path=str(pool), fields=("truth",))
    return tamis.score(spec, run=tmp_path / "run", scores=["caption_length", "image_size"], quiet=True), pool


def test_captions_keys_fields_and_recipes_stay_text(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, pool = hostile
    subset = tamis.select(run, {
        "name": "<img src=x onerror=alert(5)>",
        "about": "</script><script>alert(6)</script>",
        "select": [{"at_least": {"score": "characters", "value": 10, "missing": "drop"}}],
    })  # fmt: skip
    page = page_of(run, [subset, subset], tmp_path / "report.html", open_pool(pool))
    text = checked(page)
    for dirty in HOSTILE[:5]:
        assert dirty in text
    assert "x" * 5000 in text
    assert "<img src=x onerror=alert(5)> (2)" in text
    assert "\u202e evil" in text
    assert page.count("<svg") > 0
    assert "<script" not in page


def test_a_text_of_5000_characters_is_folded_and_a_longer_one_cut() -> None:
    folded = clamped("x" * 5000, "caption")
    assert folded.startswith("<details")
    assert "x" * 5000 in folded
    assert "and 1,000 more characters" in clamped("x" * (TEXT_MOST + 1000), "caption")
    assert clamped("short", "caption").startswith("<p")
    assert clamped("four\nlines\nof\ntext", "caption").startswith("<details")


def test_a_card_shows_every_text_of_a_pair_and_no_hash(small_run: Run) -> None:
    known: dict[str, Any] = {"shard": "s", "key": "k", "uid": "f" * 32, "status": "ok", "reason": None}
    words = {"sieve.sieve_caption": "a <dog>", "image_text": " ", "top_language": "en"}
    shown = Pair(row=0, caption=None, width=1, height=1, words=words, texts=[*words][:2], **known)
    assert parsed(texts(shown))[2] == "no captionsieve captiona <dog>"
    assert "empty caption" in texts(Pair(row=0, caption="  ", width=1, height=1, **known))
    _, _, said = parsed(card(shown, first=["sieve.sieve_caption", "top_language"]))
    assert said.count("a <dog>") == 1  # no second time among the values
    assert said.count("top_language") == 2  # at once, and among all values
    assert "f" * 32 not in said


def test_thumbnails_are_small_and_new_images() -> None:
    url, size = thumbnail(decode(image_bytes(1, size=(640, 320)), max_pixels=10**7))
    assert url.startswith("data:image/")
    assert size == (THUMBNAIL, THUMBNAIL // 2)
    import base64

    assert decode(base64.b64decode(url.partition(",")[2]), max_pixels=10**7).shape == (80, 160, 3)


def test_pictures_beyond_the_budget_are_left_out(hostile: tuple[Run, Path]) -> None:
    run, pool = hostile
    unlimited = Context(run, [], open_pool(pool))
    unlimited.read([0])
    assert unlimited.pair(0).thumbnail
    context = Context(run, [], open_pool(pool), budget=len(unlimited.pair(0).thumbnail))
    context.read([0])
    assert "<img" in card(context.pair(0))
    assert "left out to keep the page small" in card(context.pair(0))


def test_the_pictures_of_a_page_weigh_no_more_than_its_budget_however_many_there_are(tmp_path: Path) -> None:
    """Noise weighs most: each picture still becomes a small one, and all together keep within the budget."""
    noise = [image_bytes(number, size=(400, 400)) for number in range(60)]
    samples = [(f"{number:03d}", pair(number) | {"jpg": image}) for number, image in enumerate(noise)]
    pool = write_tar(tmp_path / "pool" / "00000.tar", samples).parent
    run = tamis.score(pool, run=tmp_path / "run", scores=["caption_length", "image_size"], quiet=True)
    chosen = [tamis.select(run, {"select": [{"random_fraction": {"fraction": 0.5, "seed": n}}]}) for n in range(3)]
    weight, budget = {}, 150_000
    for most in (budget, 10**9):
        page = render(gather(Context(run, chosen, open_pool(pool), budget=most)))
        pictures = re.findall(r'src="(data:image/[^"]+)"', page)
        weight[most] = sum(map(len, pictures))
        assert len(page) - weight[most] < 1_000_000
        assert ("left out to keep the page small" in page) == (most == budget)
    assert 0.8 * budget < weight[budget] <= budget < weight[10**9]
    assert BUDGET + TEXTS < 15_000_000


@pytest.mark.attack
@pytest.mark.skipif(bool(NO_BROWSER or NO_AXE), reason=NO_BROWSER or NO_AXE)
def test_axe_finds_nothing_wrong(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, pool = hostile
    recipes = ["no-filter", *({"name": f"at least {n}", "select": [cut_at(n)]} for n in (4, 6))]
    write_report(run, [tamis.select(run, recipe) for recipe in recipes], tmp_path / "page.html", open_pool(pool))
    with chromium() as browser:
        for scheme, width in (("light", 1440), ("dark", 390)):
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            tab.goto((tmp_path / "page.html").as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            assert barriers(tab) == [], scheme
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            tab.close()


def test_texts_beyond_the_budget_are_cut(hostile: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = hostile
    long = HOSTILE.index("x" * 5000)
    monkeypatch.setattr("tamis.reporting.context.TEXTS", 7_000)
    context = Context(run, [], None)
    context.read(range(len(HOSTILE)))
    assert [len(context.pair(long).caption or "") for _ in range(2)] == [5000, 200]
    assert context.pair(0).caption == HOSTILE[0]  # short ones stay whole


def test_headings_descend_one_by_one_and_what_is_seen_can_be_heard(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, pool = hostile
    recipes = [
        "no-filter",
        {"name": "long", "select": [{"at_least": {"score": "words", "value": 2, "missing": "drop"}}]},
    ]
    chosen = [tamis.select(run, recipe) for recipe in recipes]
    page = page_of(run, chosen, tmp_path / "report.html", open_pool(pool))
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert "<img" in page
    assert all(re.search(r' alt="[^"]+"', image) for image in re.findall(r"<img[^>]*>", page))
    assert all('role="img" aria-label="' in drawing for drawing in re.findall(r"<svg[^>]*>", page))
    assert all('role="region" aria-label="' in region for region in re.findall(r'<div class="scroll"[^>]*>', page))
    assert all("scope=" in head for head in re.findall(r"<th(?: [^>]*)?>", page))


def test_painted_pictures_weigh_as_much_as_both(hostile: tuple[Run, Path]) -> None:
    run, pool = hostile
    context = Context(run, [], open_pool(pool), budget=2_000)
    painter = lambda image: (image, 255 - image)  # noqa: E731
    context.read([0], painted=[0], painter=painter)
    both = sum(map(len, context.pair(0, painted=True).painted))
    assert 0 < both < 2_000
    tight = Context(run, [], open_pool(pool), budget=both - 1)
    tight.read([0])
    tight.read([0], painted=[0], painter=painter)  # what was read without is read again, to be painted
    assert tight.pair(0, painted=True).painted == ("", "")
    assert tight.pair(0).thumbnail  # alone it fits


def test_what_each_strip_shows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = write_run(tmp_path / "run", {"x": rng.permutation(100).astype(float).tolist()})
    subset = tamis.select(run, {"name": "s", "select": [{"top_fraction": {"score": "x", "fraction": 0.4}}]})
    gallery = gallery_of(run, subset)
    (step,) = gallery.steps
    ((line,),) = [fallen.lines for fallen in step.fallen]
    assert (step.number, step.before, step.kept, step.fallen[0].rows) == (1, 100, 40, 60)
    assert [shown.score for shown in line.just_kept] == list(range(60, 60 + STRIP))
    assert [shown.score for shown in line.just_dropped] == list(range(59, 59 - STRIP, -1))
    assert all(subset.keep[shown.pair.row] for shown in gallery.kept)
    assert not any(subset.keep[shown.pair.row] for shown in gallery.dropped)
    assert len(gallery.kept) == len(gallery.dropped) == STRIP
    assert {shown.why for shown in gallery.dropped} == {"Step 1: x below the cut"}
    assert {shown.why for shown in gallery.kept} == {None}


def test_every_step_has_its_line_and_its_pairs(tmp_path: Path) -> None:
    words = ["en"] * 30 + ["fr"] * 10
    run = write_run(tmp_path / "run", {"x": list(range(40)), "top_language": words, "y": [*range(5, 44), np.nan]})
    steps = [
        {"equals": {"score": "top_language", "value": "en"}},
        {"between": {"score": "x", "low": 4, "high": 24}},
        {"at_least": {"score": "y", "value": 2, "missing": "drop"}},
    ]
    gallery = gallery_of(run, tamis.select(run, {"name": "s", "select": steps}))
    assert [(step.number, step.before, step.kept) for step in gallery.steps] == [(1, 40, 30), (2, 30, 21), (3, 21, 21)]
    (language,), (between,), (last,) = (step.fallen for step in gallery.steps)
    assert (language.reason, language.rows, language.lines) == ("top_language is not en", 10, [])
    assert len(language.dropped) == STRIP
    assert all(shown.pair.words["top_language"] == "fr" for shown in language.dropped)
    (line,) = between.lines
    assert line.marks == (4, 24)
    assert {shown.score for shown in line.just_dropped} == {3, 2, 1, 0, 25, 26, 27, 28}
    assert (last.rows, [shown.score for shown in last.lines[0].just_kept][:2]) == (0, [9, 10])  # nothing fell there
    page = page_of(run, [tamis.select(run, {"name": "s", "select": steps})], tmp_path / "report.html")
    said = checked(page)
    for number, words_ in enumerate(("drops 10 of 40", "drops 9 of 30", "drops nothing"), start=1):
        assert f"Step {number} " in said
        assert words_ in said


def test_pairs_kept_at_random_are_random_among_all_kept(tmp_path: Path) -> None:
    # 90 rows tie at the cut, and 10 of them are kept, of lowest uids in the selectors' order: 10 of 20 that are kept.
    shares = []
    for seed in range(16):
        uids = [(seed, number) for number in range(100)]
        run = write_run(tmp_path / f"run{seed}", {"x": [1.0] * 10 + [0.0] * 90}, uids=uids, shards=1)
        subset = tamis.select(run, {"name": "s", "select": [{"top_n": {"score": "x", "n": 20}}]})
        shares += [shown.pair.numbers["x"] for shown in gallery_of(run, subset).kept]
    assert 0.4 < np.mean(shares) < 0.6


def test_cuts_are_marked_on_columns_and_on_computed_scores(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": list(range(10)), "y": list(range(10))})
    subset = tamis.select(run, {
        "name": "s",
        "columns": {"mine": "given.x"},
        "select": [{"at_least": {"score": "mine", "value": 3}}, {"top_n": {"score": "minmax(mine) + y", "n": 2}}],
    })  # fmt: skip
    drawn = scores.gather(Context(run, [subset], None)).distributions
    marks = {each.column.name: each.marks for each in drawn}
    assert marks["x"] == [[3.0]]
    assert marks["y"] == [()]
    assert marks["minmax(mine) + y"][0] == [pytest.approx(8 + 8 / 9)]


@pytest.mark.parametrize(
    "columns",
    [
        {"x": []},
        {"x": [1.0]},
        {"x": [float("nan")] * 4},
        {"x": [2.5] * 4},
        {"x": [float("inf"), 1, 2, 3]},
        {"w": ["a", None, "b", "a"]},
        {"w": [f"v{number}" for number in range(300)]},
    ],
)
def test_odd_runs_have_a_page(tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    run = write_run(tmp_path / "run", columns)
    rows = len(run)
    every = Subset(run=run, keep=np.ones(rows, bool), recipe={"name": "all", "select": []})
    none = Subset(run=run, keep=np.zeros(rows, bool), recipe={"name": "none"})
    for subsets in ([], [every], [every, none]):
        checked(page_of(run, subsets, tmp_path / "report.html"))


def test_a_run_without_scores_and_a_pool_without_rows(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "00000.tar", [])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", scores=["caption_length"], quiet=True)
    text = checked(
        page_of(run, [tamis.select(run, "no-filter")], tmp_path / "report.html", open_pool(tmp_path / "pool"))
    )
    assert "There are no pairs." in text
    shutil.rmtree(run.path / "scores")
    assert "holds no scores" in checked(page_of(Run(run.path), [], tmp_path / "report.html"))


def test_counts_of_status_and_rejects_are_on_the_page(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, pool = hostile
    found = rejects.gather(Context(run, [], open_pool(pool))).rejects
    assert {reject.status: reject.rows for reject in found} == {
        "image_broken": 1, "caption_empty": 1, "caption_not_utf8": 1,
    }  # fmt: skip
    text = checked(page_of(run, [], tmp_path / "report.html", open_pool(pool)))
    assert "the caption is not valid UTF-8 at byte 3" in text


def test_pairs_with_one_uid_are_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1, 2, 3, 4]}, uids=[(7, 7), (1, 1), (7, 7), (7, 8)])
    assert "2 pairs share 1 uid with another pair" in checked(page_of(run, [], tmp_path / "report.html"))


@pytest.mark.parametrize("how", ["gone", "changed", "cut", "metadata"])
def test_pictures_that_cannot_be_read_are_placeholders(tmp_path: Path, how: str) -> None:
    folder = write_pool(tmp_path / "pool")
    run = tamis.score(folder, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    pool: Any = open_pool(folder)
    if how == "gone":
        shutil.rmtree(folder)
    elif how == "metadata":
        pool = None
    else:
        for tar in folder.glob("*.tar"):
            data = tar.read_bytes()
            tar.write_bytes(data[:100] if how == "cut" else data[::-1])
    page = page_of(run, [tamis.select(run, "no-filter")], tmp_path / "report.html", pool)
    checked(page)
    assert "<img" not in page
    said = {"gone": "file cannot be read", "metadata": "pool&#x27;s files are not here"}
    assert said.get(how, "changed since it was scored") in page


def test_one_unreadable_picture_does_not_take_the_others_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_pool(tmp_path / "pool", shards=1)
    run = tamis.score(folder, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    tar = folder / "00000.tar"
    last = run.members("00000", [6])[0][0]
    stamp = open_pool(folder).shards[0].stamp()
    tar.write_bytes(tar.read_bytes()[: last.offset + 5])
    monkeypatch.setattr("tamis.pool.tar.TarShard.stamp", lambda self: stamp)
    context = Context(run, [], open_pool(folder))
    context.read(range(7))
    pairs: list[Pair] = [context.pair(row) for row in range(7)]
    assert [bool(pairs[row].thumbnail) for row in range(7)] == [True] * 6 + [False]
    assert pairs[6].no_picture == "the file could not be read"


def test_incomplete_scores_are_left_out_and_said_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": list(range(9))})
    next(iter(run.path.glob("scores/*/00001.parquet"))).unlink()
    text = checked(page_of(Run(run.path), [], tmp_path / "report.html"))
    assert "The score given is not complete: 2 of 3 shards have it" in text


def test_failed_shards_are_a_warning(tmp_path: Path) -> None:
    folder = write_pool(tmp_path / "pool", shards=2)
    (folder / "00009.tar").write_bytes(b"no tar <b> at all" * 100)
    run = tamis.score(folder, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    assert list(run.failures) == ["00009"]
    partly = tamis.open_run(run.path, partial=True)
    text = checked(page_of(partly, [], tmp_path / "report.html", open_pool(folder)))
    assert "Partial: 1 of the run's 3 shards are missing" in text
    assert "1 shard could not be (wholly) read" in text


def test_row_order_does_not_matter_for_what_is_shown(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 5, 60).astype(float)
    uids = [(number * 7919, number) for number in range(60)]
    seen = []
    for name, order in (("a", np.arange(60)), ("b", np.random.default_rng(2).permutation(60))):
        run = write_run(tmp_path / name, {"x": values[order].tolist()}, uids=[uids[row] for row in order])
        subset = tamis.select(run, {"name": "s", "select": [{"top_fraction": {"score": "x", "fraction": 0.5}}]})
        gallery = gallery_of(run, subset)
        (line,) = gallery.steps[0].fallen[0].lines
        strips = (line.just_kept, line.just_dropped, gallery.kept, gallery.dropped)
        seen.append([[int(order[shown.pair.row]) for shown in strip] for strip in strips])
    assert seen[0] == seen[1]


def test_a_subset_of_another_run_is_refused_even_at_equal_size(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / name, {"x": [1.0, 2.0, 3.0]}) for name in ("one", "two"))
    subset = tamis.select(one, {"name": "mine", "select": []})
    with pytest.raises(RunError, match=r"the subset 'mine' was chosen from .*one, and the report is of .*two"):
        write_report(two, [subset], tmp_path / "report.html", None)
    again = Run(tmp_path / "two" / ".." / "one")
    assert write_report(again, [subset], tmp_path / "report.html", None).is_file()
