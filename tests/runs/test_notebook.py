"""Runs and subsets in a notebook: what they show, columns by name, subsets put together."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from factories import pair, write_pool, write_tar

import tamis
from tamis.core.errors import RunError
from tamis.reports import notebook
from tamis.runs.subset import Subset

WORDS = {"name": "long", "select": [{"at_least": {"score": "words", "value": 6}}]}
LETTERS = {"name": "wide", "select": [{"at_least": {"score": "characters", "value": 28}}]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tamis.Run:
    folder = tmp_path_factory.mktemp("notebook")
    pool = write_pool(folder / "pool", shards=3, rows=7)
    return tamis.score(pool, run=folder / "run", signals=["caption_length", "language"], quiet=True)


def test_columns_have_names(run: tamis.Run) -> None:
    frame, chosen = run.to_pandas(), tamis.select(run, WORDS)
    assert list(frame)[:4] == ["uid", "shard", "key", "caption"]
    for name in ("words", "top_language", "caption"):
        assert run[name].tolist() == frame[name].tolist()
    assert chosen["words"].tolist() == run["words"][chosen.keep].tolist()
    assert list(chosen.to_pandas(columns=["words", "width"])) == ["uid", "shard", "key", "words", "width"]
    with pytest.raises(RunError, match="'words'"):
        run["word"]


def test_embeddings_are_columns_too(tmp_path: Path, clip_model: str) -> None:
    pool = write_pool(tmp_path / "pool", shards=2, rows=3)
    clip = {"clip": {"model": clip_model}}
    scored = tamis.score(pool, run=tmp_path / "run", signals=[clip], keep=["embeddings"], quiet=True)
    assert scored["image_embedding"].shape == (6, scored.embedding("image_embedding", "00000").shape[1])


def test_a_half_finished_score_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = write_pool(tmp_path / "pool", shards=2, rows=3)
    whole = tamis.score(pool, run=tmp_path / "run", signals=["caption_length", "image_size"], quiet=True)
    next((whole.path / "scores").glob("image_size-*/00001.parquet")).unlink()
    half = tamis.open_run(whole.path)
    with caplog.at_level(logging.WARNING):
        assert set(half.to_pandas()) == {"uid", "shard", "key", "caption", "words", "characters"}
    assert "'image_size'" in caplog.text
    assert tamis.export(tamis.select(half, "no-filter"), "parquet", tmp_path / "all.parquet") == 6
    with pytest.raises(RunError, match="'image_size'"):
        half.to_pandas(["shorter_side"])
    assert "1 of 2 shards" in half._repr_html_()
    assert "so far" in half._repr_html_()


@pytest.mark.parametrize("sign", ["&", "|", "-"])
def test_subsets_are_put_together(run: tamis.Run, tmp_path: Path, sign: str) -> None:
    one, two = tamis.select(run, WORDS), tamis.select(run, LETTERS)
    both = {"&": one & two, "|": one | two, "-": one - two}[sign]
    wanted = {"&": one.keep & two.keep, "|": one.keep | two.keep, "-": one.keep & ~two.keep}[sign]
    assert 0 < wanted.sum() < len(run)
    assert (both.keep.tolist(), both.name) == (wanted.tolist(), f"long {sign} wide")
    assert tamis.select(run, both.recipe).keep.tolist() == wanted.tolist()
    (line,) = both.funnel
    assert line["before"] - line["kept"] == sum(line["dropped"].values())
    dropped = int(np.flatnonzero(~wanted & (one.keep | two.keep | (sign == "|")))[0])
    assert ("wide" if one.keep[dropped] else "long") in both.verdict.reason_of(dropped)  # which of them drops it
    both.save(tmp_path / "both.parquet")
    again = Subset.load(tmp_path / "both.parquet", run)
    assert again.verdict.why == both.verdict.why
    assert tamis.export(again, "dropped", tmp_path / "dropped.parquet") == len(run) - wanted.sum()


def test_rows_that_are_kept_several_times_stay_so(run: tamis.Run) -> None:
    times = np.zeros(len(run), np.uint16)
    times[:4] = [1, 2, 3, 1]
    many, none = Subset(run=run, keep=times > 0, times=times), tamis.select(run, "no-filter")
    assert (many & none).times.tolist()[:4] == [1, 1, 1, 1]  # type: ignore[union-attr]
    assert (many | none).times.tolist()[:5] == [1, 2, 3, 1, 1]  # type: ignore[union-attr]
    assert [line.get("times") for both in (many & none, many | none) for line in both.funnel] == [4, len(run) + 3]
    assert f"{len(run)} rows {len(run) + 3} times" in (many | none)._repr_html_()
    assert "4 of 21 pairs, 7 with repeats" in repr(many)
    lines = repr(tamis.show(many, rows=[0, 1, 5])).splitlines()[1:]
    assert ["kept" in line for line in lines] == [False, True, False]
    assert "kept 2 times" in lines[1]
    assert len(many - none) == 0
    assert (many - none).verdict.problem != ""


def test_subsets_of_two_runs_are_not_put_together(run: tamis.Run, tmp_path: Path) -> None:
    other = tamis.score(write_pool(tmp_path / "pool", shards=1), run=tmp_path / "run", signals=["language"], quiet=True)
    with pytest.raises(ValueError, match="one run"):
        tamis.select(run, "no-filter") & tamis.select(other, "no-filter")
    with pytest.raises(TypeError):
        tamis.select(run, "no-filter") & 3  # type: ignore[operator]


def test_a_subset_shows_what_it_keeps_and_drops_and_its_funnel_the_steps(run: tamis.Run) -> None:
    chosen = tamis.select(run, WORDS)
    html, funnel = chosen._repr_html_(), chosen.funnel._repr_html_()
    assert f"{chosen.kept} of 21 pairs" in html
    assert html.count("data:image/webp;base64,") == 8
    assert "4 pairs of long" in html
    assert "4 pairs dropped from long" in html
    assert html.count("words below 6") == 5  # the table's line, and each pair's reason
    assert ("words &gt;= 6" in html, "words &gt;= 6" in funnel, "data:image" in funnel) == (False, True, False)


def test_a_run_shows_eight_pairs_nulls_and_what_comes_next(run: tamis.Run) -> None:
    html = run._repr_html_()
    assert "so far" not in html  # every shard has every score
    assert html.count("data:image/webp;base64,") == 8
    assert html.count("<figcaption") == 8
    assert "Next: tamis.select(run, &#39;basic&#39;)" in html
    assert f"{np.isnan(run['english']).mean():.1%}" in html or not np.isnan(run["english"]).any()
    assert tamis.show(run, 21).text.count("\n") == 21


def test_without_its_pool_a_run_shows_its_columns_and_says_why_there_is_no_image(tmp_path: Path) -> None:
    silent = [(str(number), {**pair(number), "txt": b" "}) for number in range(3)]
    write_tar(tmp_path / "pool" / "00000.tar", [*silent, ("3", pair(3))])
    scored = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert ">75.0%</td>" in scored._repr_html_()
    (tmp_path / "pool").rename(tmp_path / "moved")
    for shown in (scored, tamis.select(scored, "no-filter")):
        html = tamis.open_run(scored.path)._repr_html_() if shown is scored else shown._repr_html_()
        assert ("data:image" in html, "<table>" in html, "pool" in html) == (False, True, True)


def test_a_glimpse_reads_only_the_first_rows_of_some_shards(run: tamis.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    monkeypatch.setattr(notebook, "_FIRST", 2)
    monkeypatch.setattr(notebook, "show", lambda source, *, rows, dropped: read.append(rows) or tamis.show(run, 0))
    notebook.glimpse(run, 8)
    notebook.glimpse(run, 2)
    assert read == [[0, 1, 7, 8, 14, 15], [0, 15]]


def test_a_subset_shows_its_images(run: tamis.Run) -> None:
    chosen = tamis.select(run, WORDS)
    some, others = tamis.show(chosen, 3), tamis.show(chosen, 2, dropped=True)
    assert some._repr_html_().count("data:image/webp;base64,") == 3
    assert len(repr(some).splitlines()) == 4
    assert "words below 6" in repr(others)
    assert repr(tamis.show(chosen, rows=[5, 2])).splitlines()[1].startswith("00000/000000005")
    with pytest.raises(ValueError, match="order names row 21"):
        tamis.show(chosen, rows=[21])
    assert tamis.show(chosen, 3).html == some.html


def test_plans_funnels_and_looks_are_tables(run: tamis.Run, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1)
    looked = tamis.look(pool, out=tmp_path / "<b>look.html", quiet=True)
    planned = tamis.plan(pool, run=tmp_path / "<b>run", signals=["caption_length"])
    both = tamis.select(run, {**WORDS, "select": [*WORDS["select"], *LETTERS["select"]]})
    for shown, cells in [
        (planned, ["index", "scores/caption_length-"]),
        (looked, [f"{one.recipe}</td>" for one in looked.proposals]),
        (both.funnel, ["every pair", "words &gt;= 6", f'<td style="text-align:left">{len(both)}</td>']),
    ]:
        html = shown._repr_html_()
        assert html.count("<table>") == 1
        assert not [cell for cell in cells if cell not in html]
        assert "<b>look" not in html
        assert "<b>run" not in html
    assert list(both.funnel) == both.funnel
    assert tamis.select(run, "no-filter").funnel._repr_html_()


def test_nothing_of_a_pair_is_html(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m"
    write_tar(tmp_path / "pool" / "00000.tar", [("<b>0", {**pair(0), "txt": evil.encode()})])
    scored = tamis.score(tmp_path / "pool", run=tmp_path / "<i>run", signals=["caption_length"], quiet=True)
    subset = tamis.select(scored, {"name": "<u>x", "select": []})
    for html in (tamis.show(subset).html, subset._repr_html_(), scored._repr_html_()):
        assert not re.search(r"<(script|b>0|i>|u>)|<img src=x|\x1b", html)
    assert "\x1b" not in repr(tamis.show(subset))
