"""The audit of a subset: which groups it keeps less often than others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import write_run
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, hypergeom

from tamis.cli.printing import print_table
from tamis.core.errors import RecipeError, RunError
from tamis.core.math.statistics import chance_of_share, false_discovery_rates
from tamis.runs import Run
from tamis.runs.audit import RATE, audit
from tamis.runs.subset import Subset

ROWS = 6000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Languages of three sizes, 200 clusters, hosts of URLs, and an id that every row has for itself."""
    rng = np.random.default_rng(3)
    columns = {
        "top_language": rng.choice(["en", "de", "ja"], ROWS, p=[0.7, 0.2, 0.1]).tolist(),
        "cluster": np.where(rng.random(ROWS) < 0.1, np.nan, rng.integers(0, 200, ROWS)),
        "id_language": [f"{row}" for row in range(ROWS)],
        "url": [f"https://me@host{row % 7}.org:80/{row}.jpg" for row in range(ROWS)],
    }
    return write_run(tmp_path_factory.mktemp("audit") / "run", columns)


def kept(run: Run, shares: Any, seed: int = 0) -> Subset:
    return Subset(run=run, keep=np.random.default_rng(seed).random(ROWS) < shares)


def test_a_chance_worked_by_hand() -> None:
    """Of 10 rows 5 are kept, and none of a group of 4: C(6, 5) / C(10, 5) = 6 / 252, twice that on two sides."""
    assert chance_of_share(0, 4, 5, 10) == pytest.approx(12 / 252)
    assert chance_of_share(2, 4, 5, 10) == 1
    assert chance_of_share(3, 3, 10, 10) == 1
    assert 0 <= chance_of_share(300, 100_000, 128_000, 12_800_000) < 1e-30


@given(st.data())
def test_the_chance_is_that_of_scipy(data: st.DataObject) -> None:
    everything = data.draw(st.integers(1, 5000))
    all_kept, rows = (data.draw(st.integers(1, everything)) for _ in range(2))
    low, high = max(0, rows + all_kept - everything), min(rows, all_kept)
    k = data.draw(st.integers(low, high))
    theirs = hypergeom(everything, all_kept, rows)
    expected = min(1, 2 * min(theirs.cdf(k), theirs.sf(k - 1)))
    assert chance_of_share(k, rows, all_kept, everything) == pytest.approx(expected, rel=1e-6, abs=1e-25)


def test_the_rates_are_those_of_scipy() -> None:
    """And by hand: of .01, .02, .9 the rates are .03, .03, .9."""
    np.testing.assert_allclose(false_discovery_rates([0.02, 0.9, 0.01]), [0.03, 0.9, 0.03])
    chances = np.random.default_rng(0).random(99) ** 3
    np.testing.assert_allclose(false_discovery_rates(chances.tolist()), false_discovery_control(chances))
    assert false_discovery_rates([]).size == 0


def test_a_planted_bias_is_found_and_nothing_else(run: Run) -> None:
    language = np.array(run.to_arrow(["top_language"]).column("top_language").to_pylist())
    groups = kept(run, np.where(language == "ja", 0.1, 0.3)).audit(["top_language", "cluster"])
    assert [(one.column, one.value) for one in groups if one.shrinks] == [("top_language", "ja")]
    first, tested = groups[0], [one for one in groups if one.column == "top_language"]
    rows = np.count_nonzero(language == "ja")
    assert first.rows == rows
    assert first.ratio.low < 0.1 / 0.28 < first.ratio.high
    assert first.ratio.value == pytest.approx(first.kept / rows / (sum(one.kept for one in tested) / ROWS))


def test_random_subsets_have_false_discoveries_at_the_stated_rate(run: Run) -> None:
    """No group is special, so a discovery is false: in at most 5 % of 200 audits, 10 give or take 6."""
    audits = [kept(run, 0.3, seed).audit(["top_language", "cluster"]) for seed in range(200)]
    assert sum(any(one.rate <= RATE for one in groups) for groups in audits) <= 16


def test_groups_are_values_with_enough_rows(run: Run, tmp_path: Path) -> None:
    subset = kept(run, 0.5)
    hosts = subset.audit(["url"])
    assert {one.value for one in hosts} == {f"host{number}.org" for number in range(7)}
    assert sum(one.rows for one in hosts) == ROWS
    clusters = [one for one in subset.audit() if one.column == "cluster"]
    assert {one.column for one in subset.audit()} == {"top_language", "cluster"}, "an id is no group"
    assert all(one.value.isdecimal() and one.rows >= 20 for one in clusters)
    assert Subset(run=run, keep=np.zeros(ROWS, bool)).audit() == []
    assert not any(one.shrinks for one in Subset(run=run, keep=np.ones(ROWS, bool)).audit())
    with pytest.raises(RunError, match="did you mean 'top_language'"):
        subset.audit(["top_langage"])


def test_subsets_are_audited_together_as_alone(run: Run) -> None:
    subsets = [kept(run, share, seed) for seed, share in enumerate((0.1, 0.5, 0))]
    assert audit(run, [one.keep for one in subsets]) == [one.audit() for one in subsets]


def test_embeddings_are_no_groups(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": np.ones(40)})
    for shard, size in zip(run.shards, run.sizes, strict=True):
        path = run.path / "embeddings" / "image_embedding-0" / f"{shard}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.ones((size, 2), np.float16))
    with pytest.raises(RecipeError, match="holds embeddings"):
        Subset(run=Run(run.path), keep=np.ones(40, bool)).audit(["image_embedding"])


def test_the_command_and_the_report_name_groups_that_shrink(run: Run, tamis: Tamis, tmp_path: Path) -> None:
    language = np.array(run.to_arrow(["top_language"]).column("top_language").to_pylist())
    kept(run, np.where(language == "ja", 0.1, 0.3)).save(tmp_path / "s.parquet")
    done = tamis.ok("audit", str(run.path), "s.parquet", "--by", "top_language,url")
    assert "1 of 10 groups of at least 20 pairs shrink" in done.err
    assert "ja" in done.out.splitlines()[1]
    assert "shrinks" in done.out.splitlines()[1]
    facts = json.loads(tamis("audit", str(run.path), "s.parquet", "--json").out)
    assert [one["value"] for one in facts if one["shrinks"]] == ["ja"]
    tamis.ok("report", str(run.path), "s.parquet", "--out", "r.html")
    written = json.loads((tmp_path / "r.json").read_text())["sections"]["funnels"]["funnels"][0]["shrinks"]
    assert [one["value"] for one in written["first"]] == ["ja"]
    assert "groups shrink" in (tmp_path / "r.html").read_text()


def test_the_command_prints_groups_of_which_none_shrinks(run: Run, tamis: Tamis, tmp_path: Path) -> None:
    kept(run, 0.5).save(tmp_path / "half.parquet")
    done = tamis.ok("audit", str(run.path), "half.parquet", "--by", "top_language")
    assert "0 of 3 groups of at least 20 pairs shrink" in done.err
    assert len(done.out.splitlines()) == 4


def test_columns_are_aligned_behind_characters_of_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": "日本語", "pool": 1}, {"name": "a", "pool": 2}])
    assert capsys.readouterr().out.splitlines() == ["name    pool", "日本語  1", "a       2"]


def test_characters_of_two_columns_are_wrapped_by_their_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "18")
    print_table([{"name": "a", "what": "日本語の文章です。"}])
    assert capsys.readouterr().out.splitlines() == ["name  what", "a     日本語の文章", "      です。"]
