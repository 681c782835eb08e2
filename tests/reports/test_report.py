"""The whole page: what it shows, what it survives, and that captions stay text."""

import base64
import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_view import parsed, sections_of
from browsing import NO_AXE, NO_BROWSER, barriers, chromium
from factories import image_bytes, pair, write_pool, write_run, write_tar
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis.core.errors import RunError
from tamis.core.types import STATUSES
from tamis.pools import open_pool
from tamis.pools.images import decode
from tamis.reports.context import Context
from tamis.reports.page import CARD_MOST, TEXT_MOST, environment, link, write_report
from tamis.reports.page_pairs import Pair
from tamis.runs import Run
from tamis.runs.subset import Subset

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>alert(2)</script>",
    "</title></head>",
    "' onmouseover='alert(3)",
    "{{ 7 * 7 }}{% raw %}",
    "--><svg onload=alert(4)>",
    "שלום \u202e evil \U0001f468\u200d\U0001f469\u200d\U0001f467 😀",
    "x" * 5000,
    "a\x00b",
]


def page_of(run: Run, subsets: list[Subset], out: Path) -> str:
    assert write_report(run, subsets, out, overwrite=True) == out
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
    for address in re.findall(r"url\((.*?)\)", page):
        assert re.match(r'"data:image/(webp|jpeg);base64,[A-Za-z0-9+/=]+"$', address)
    assert "default-src 'none'" in dict(attributes)["content"] or "default-src &#39;none&#39;" in page
    return text


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Run, Path]:
    samples = []
    for number, text in enumerate(HOSTILE):
        samples.append((f"k{number}<b>", pair(number, truth=text) | {"txt": text.encode()}))
    samples.append(("bad", pair(90) | {"jpg": image_bytes(3)[:200]}))
    samples.append(("empty", pair(91) | {"txt": b"  "}))
    samples.append(("latin", pair(92) | {"txt": b"caf\xe9"}))
    pool = write_tar(tmp_path / "pool <i>" / "00000.tar", samples).parent
    spec = tamis.pools.PoolSpec(path=str(pool), fields=("truth",))
    return tamis.score(spec, run=tmp_path / "run", signals=["caption_length", "image_size"], quiet=True), pool


def test_captions_keys_fields_and_recipes_stay_text(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = hostile
    subset = tamis.select(run, {
        "name": "<img src=x onerror=alert(5)>",
        "about": "</script><script>alert(6)</script>",
        "select": [{"at_least": {"score": "characters", "value": 10, "missing": "drop"}}],
    })  # fmt: skip
    page = page_of(run, [subset, subset], tmp_path / "report.html")
    text = checked(page)
    for dirty in HOSTILE[:9]:
        assert dirty in text
    assert "a\ufffdb" in text  # HTML cannot hold a NUL
    assert "<img src=x onerror=alert(5)> (2)" in text
    assert page.count("<svg") > 0
    assert "<script" not in page


@given(st.text(alphabet=st.characters(categories=None)))
def test_any_caption_is_one_text_that_can_be_encoded(text: str) -> None:
    known = {"row": 0, "status": "ok", "shard": text, "key": text, "words": {"w": text}, "texts": ["w"]}
    source = '{% from "macros.html" import card %}<title>{{ card(pair, why=pair.caption) }}'
    drawn = environment().from_string(source.replace("<title>", "")).render(pair=Pair(caption=text, **known))
    drawn.encode("utf-8", "surrogatepass")
    tags, attributes, _ = parsed(drawn)
    assert set(tags) <= {"article", "div", "button", "span", "p", "b", "bdi", "dl", "dt", "dd"}
    assert {name for name, _ in attributes} <= {"class", "dir", "type", "popovertarget", "aria-label"}


def test_every_address_of_a_template_is_fixed_or_goes_through_the_filter() -> None:
    names = [name for name in environment().list_templates() if name.endswith(".html")]
    assert len(names) > 15
    for name in names:
        source = (Path(tamis.__file__).parent / "reports" / "templates" / name).read_text(encoding="utf-8")
        assert "safe" not in re.findall(r"\|\s*(\w+)", source)
        for value in re.findall(r'(?:href=|src=|url\()"((?:\{\{.*?\}\}|[^"])*)"', source):
            assert re.match(r"#[a-z]+$|\{\{.*\|link \}\}$", value), (name, value)
    for address in ("javascript:alert(1)", " javascript:x", "data:text/html,x", "//evil", "file:///x"):
        with pytest.raises(ValueError, match="may be linked"):
            link(address)


def drawn(pair: Pair, **settings: Any) -> str:
    source = '{% from "macros.html" import card %}{{ card(pair, **settings) }}'
    return environment().from_string(source).render(pair=pair, settings=settings)


def test_a_card_shows_every_text_of_a_pair_once_and_cuts_long_ones() -> None:
    words = {"sieve.sieve_caption": "a <dog>", "image_text": " ", "top_language": "en"}
    shown = Pair(row=0, uid="f" * 32, words=words, texts=[*words][:2], numbers={"clip": 0.25})
    _, _, said = parsed(drawn(shown, first=["sieve.sieve_caption", "top_language"], score=0.25, mark="5 %"))
    assert "no caption" in said
    assert "5 % · 0.25" in said
    assert said.count("a <dog>") == 1  # not again among the values
    assert said.count("top_language") == 1
    assert "f" * 32 not in said
    long = Pair(row=0, caption="x" * (TEXT_MOST + 1000))
    opened = environment().from_string('{% from "macros.html" import large %}{{ large(pair) }}').render(pair=long)
    for html, most in ((drawn(long), CARD_MOST), (opened, TEXT_MOST)):
        assert "x" * (most - 1) + "…" in html
        assert "x" * most not in html


def pairs_of(run: Run, rows: Any, *, painter: Any = None, **settings: Any) -> list[Pair]:
    context = Context(run, [], **settings)
    context.painter = painter
    pairs = [context.pair(row, painted=painter is not None) for row in rows]
    context.read_pairs()
    return pairs


def test_images_and_texts_beyond_the_budget_are_left_out(
    hostile: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = hostile[0]
    (first,) = pairs_of(run, [0])
    assert decode(base64.b64decode(first.thumbnail.partition(",")[2]), max_pixels=10**7).shape == (32, 48, 3)
    two = pairs_of(run, [0, 1, 0], budget=len(first.thumbnail))
    assert [bool(each.thumbnail) for each in two] == [True, False, True]  # one image, however often it is shown
    assert "left out to keep the page small" in drawn(two[1])
    painter = lambda image: (image, 255 - image)  # noqa: E731
    (both,) = pairs_of(run, [0], painter=painter)
    weight = len(both.thumbnail) + sum(map(len, both.painted))
    (tight,) = pairs_of(run, [0], painter=painter, budget=weight - 1)
    assert (tight.thumbnail, tight.painted) == ("", ("", ""))
    long = HOSTILE.index("x" * 5000)
    monkeypatch.setattr("tamis.reports.context.TEXTS", 4_000)
    captions = [each.caption or "" for each in pairs_of(run, [long, 0])]
    assert [len(caption) for caption in captions] == [200, len(HOSTILE[0])]  # short ones stay whole


@pytest.mark.attack
@pytest.mark.skipif(bool(NO_BROWSER or NO_AXE), reason=NO_BROWSER or NO_AXE)
def test_axe_finds_nothing_wrong(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = hostile
    steps = [[{"at_least": {"score": "words", "value": n, "missing": "drop"}}] for n in (4, 6)]
    recipes = ["no-filter", *({"name": f"at least {n}", "select": step} for n, step in enumerate(steps))]
    write_report(run, [tamis.select(run, recipe) for recipe in recipes], tmp_path / "page.html")
    with chromium() as browser:
        for scheme, width in (("light", 1440), ("dark", 390)):
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            tab.goto((tmp_path / "page.html").as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            assert barriers(tab) == [], scheme
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            tab.close()


def test_headings_descend_one_by_one_and_what_is_seen_can_be_heard(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = hostile
    long = {"name": "long", "select": [{"at_least": {"score": "words", "value": 2, "missing": "drop"}}]}
    chosen = [tamis.select(run, recipe) for recipe in ("no-filter", long)]
    page = page_of(run, chosen, tmp_path / "report.html")
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    images = re.findall(r'<[^>]* class="shot[^>]*>', page)
    assert images
    assert all(re.search(r' aria-label="[^"]+"', image) for image in images)
    assert all('role="img" aria-label="' in drawing for drawing in re.findall(r"<svg[^>]*>", page))
    assert all('role="region" aria-label="' in region for region in re.findall(r'<div class="scroll"[^>]*>', page))
    assert all("scope=" in head for head in re.findall(r"<th(?: [^>]*)?>", page))


@pytest.mark.parametrize("columns", [{"x": []}, {"x": [float("nan")] * 4}, {"x": [float("inf"), 1, 2, 3]}])
def test_odd_runs_have_a_page(tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    run = write_run(tmp_path / "run", columns)
    rows = len(run)
    every = Subset(run=run, keep=np.ones(rows, bool), recipe={"name": "all", "select": []})
    none = Subset(run=run, keep=np.zeros(rows, bool), recipe={"name": "none"})
    for subsets in ([], [every], [every, none]):
        checked(page_of(run, subsets, tmp_path / "report.html"))


def test_a_pool_without_rows_and_a_run_without_scores(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "00000.tar", [])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    checked(page_of(run, [], tmp_path / "report.html"))
    shutil.rmtree(run.path / "scores")
    assert "The run has no scores." in checked(page_of(Run(run.path), [], tmp_path / "report.html"))


def test_images_that_cannot_be_read_are_placeholders(tmp_path: Path) -> None:
    folder = write_pool(tmp_path / "pool")
    run = tamis.score(folder, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    subsets, pool = [tamis.select(run, "no-filter")], open_pool(folder)

    def said(pool: Any) -> str:
        run.__dict__.update({"readable_pool": None} if pool is None else {"readable_pool": pool, "pool": pool})
        page = page_of(run, subsets, tmp_path / "report.html")
        assert "data:image" not in page
        return checked(page)

    assert "pool's files are not here" in said(None)
    for tar in folder.glob("*.tar"):
        tar.write_bytes(tar.read_bytes()[::-1])
    assert "changed since it was scored" in said(pool)
    shutil.rmtree(folder)
    assert "file cannot be read" in said(pool)


def test_a_subset_of_another_run_is_refused_even_at_equal_size(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / name, {"x": [1.0, 2.0, 3.0]}) for name in ("one", "two"))
    subset = tamis.select(one, {"name": "mine", "select": []})
    with pytest.raises(RunError, match=r"'mine'.*one.*two"):
        tamis.report(two, [subset], out=tmp_path / "report.html")


def test_what_is_wrong_with_a_run_is_on_the_page(hostile: tuple[Run, Path], tmp_path: Path) -> None:
    run, folder = hostile
    found = {each["ident"]: each["rows"] for each in sections_of(run, [])["findings"]["pool"]}
    assert {name: found.get(f"status-{name}", 0) for name in STATUSES} == {
        **dict.fromkeys(STATUSES, 0), "image_broken": 1, "caption_empty": 1, "caption_not_utf8": 1,
    }  # fmt: skip
    assert "valid UTF-8 at byte 3" in checked(page_of(run, [], tmp_path / "report.html"))
    run = write_run(tmp_path / "twice", {"x": [1, 2, 3, 4]}, uids=[(7, 7), (1, 1), (7, 7), (7, 8)])
    assert "2 pairs share 1 uid with another pair" in checked(page_of(run, [], tmp_path / "report.html"))
    run = write_run(tmp_path / "less", {"x": list(range(9))})
    next(iter(run.path.glob("scores/*/00001.parquet"))).unlink()
    text = checked(page_of(Run(run.path), [], tmp_path / "report.html"))
    assert "The score given is not complete: 2 of 3 shards have it" in text
    folder = write_pool(tmp_path / "pool", shards=2)
    (folder / "00009.tar").write_bytes(b"no tar <b> at all" * 100)
    run = tamis.score(folder, run=tmp_path / "partly", signals=["caption_length"], quiet=True)
    partly = tamis.open_run(run.path, partial=True)
    text = checked(page_of(partly, [], tmp_path / "report.html"))
    assert "Partial: 1 of the run's 3 shards are missing" in text
    assert "1 shard could not be read completely" in text
