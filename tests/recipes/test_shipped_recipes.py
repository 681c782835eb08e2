"""What shipped recipes keep of drawn scores, against their rules in plain NumPy."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import write_run

import tamis
from tamis.commands.select import check_reads
from tamis.recipes import recipe
from tamis.recipes.names import shipped_names


def drawn(folder: Path, names: str, rows: int = 4000) -> tuple[tamis.Run, dict[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(4)
    columns = {name: rng.normal(0.3, 0.1, rows).astype(np.float32) for name in names.split()}
    return write_run(folder, {name: list(map(float, values)) for name, values in columns.items()}), columns


@pytest.mark.parametrize(("threshold", "least"), [(0.55, 0.003), (0.7, 0.003), (0.55, 0.01), (9.0, 0.01)])
def test_cits_threshold_keeps_at_least_its_smallest_share(tmp_path: Path, threshold: float, least: float) -> None:
    """As in facebookresearch/CiT: above the threshold, or where that is a smaller share, the nearest."""
    run, columns = drawn(tmp_path / "run", "class_similarity")
    score = columns["class_similarity"]
    changes = [f"select.any_of.0.at_least.value={threshold}", f"select.any_of.1.top_fraction.fraction={least}"]
    kept = tamis.select(run, recipe.load("cit-threshold", changes)).keep
    above = score >= np.float32(threshold)
    expected = above if above.mean() >= least else score >= np.sort(score)[-round(least * len(score))]
    np.testing.assert_array_equal(kept, expected)
    assert 0 < kept.sum() < 100
    above_all, nearest = recipe.load("cit-threshold").text["select"][1]["any_of"]
    assert (above_all[0]["at_least"]["value"], nearest[0]["top_fraction"]["fraction"]) == (0.55, 0.003)  # YFCC15M's


def test_a_number_of_pairs_in_the_name_replaces_the_last_share(tmp_path: Path) -> None:
    """ICC's tables 1 and 2 choose 100k, 200k and 500k pairs by each method."""
    run, columns = drawn(tmp_path / "run", "clip icc tmars")
    better = columns["clip"] >= np.sort(columns["clip"])[-1200]  # 30 % of 4,000
    best = columns["icc"] >= np.sort(columns["icc"][better])[-1000]
    np.testing.assert_array_equal(tamis.select(run, "icc-after-clip-1k").keep, better & best)
    best_of_pool = columns["icc"] >= np.sort(columns["icc"])[-1000]
    np.testing.assert_array_equal(tamis.select(run, "icc-1k").keep, best_of_pool)
    assert tamis.select(run, "random-2k").kept == 2000
    passed = {"select": [{"at_least": {"score": "tmars", "value": 0.281}}]}  # a threshold has no best: a random part
    few = tamis.select(run, "tmars-datacomp-1k", any_model=True)
    assert (few.kept, few.name) == (1000, "tmars-datacomp-1k")
    assert not (few.keep & ~tamis.select(run, passed).keep).any()
    assert tamis.select(run, "tmars-datacomp-9M", any_model=True).kept == tamis.select(run, passed).kept
    assert recipe.load("pac-500k").about == "As pac, but 500,000 pairs."
    assert recipe.load("cluster-epochs-10k").about == "As cluster-epochs, but 10,000 pairs in each epoch."
    assert recipe.load("complexity_action-100k").about.endswith("100,000 pairs, drawn at random from what it keeps.")


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_recipe_takes_a_number_of_pairs(name: str) -> None:
    loaded = recipe.load(f"{name}-100k")
    assert loaded.name == f"{name}-100k"
    assert loaded.steps[-1].n == 100_000  # type: ignore[attr-defined]


@pytest.mark.parametrize(("other", "kept"), [("c_rho", 0.5), ("c_ssft", 0.9)])
def test_t_mars_of_datacomp_goes_with_the_other_two(tmp_path: Path, other: str, kept: float) -> None:
    run, columns = drawn(tmp_path / "run", f"tmars {other}")
    both = (columns["tmars"] >= 0.281) & (columns[other] >= np.sort(columns[other])[-round(kept * 4000)])
    np.testing.assert_array_equal(tamis.select(run, f"tmars-datacomp∩{other}", any_model=True).keep, both)


@pytest.mark.parametrize(("name", "share"), [("clip-30∩text_match", 0.3), ("clip-and-text_match", 0.5)])
def test_text_match_goes_with_thirty_percent_and_with_fifty(tmp_path: Path, name: str, share: float) -> None:
    run, columns = drawn(tmp_path / "run", "clip text_match")
    kept = tamis.select(run, recipe.load(name)).keep
    # Drawn around 0.3, no image spells five letters of its caption.
    np.testing.assert_array_equal(kept, columns["clip"] >= np.sort(columns["clip"])[-round(share * len(kept))])


@pytest.mark.parametrize("name", shipped_names())
def test_what_a_recipe_says_to_set_is_all_that_it_takes(name: str) -> None:
    """Its page is all that a reader has: a setting that needs another one names that too."""
    changes = [each.rstrip(".:,`") for each in re.findall(r"--set (\S+)", recipe.load(name).about)]
    changes = [each.replace("=NAME", "=image_embedding").replace("=DIR", f"={each}") for each in changes]
    check_reads(recipe.load(name, changes))


def test_semantic_balance_keeps_at_most_so_many_of_each_cluster(tmp_path: Path) -> None:
    clusters = np.repeat(np.arange(5), [3, 35, 36, 200, 0 + 80]).astype(str)
    run = write_run(tmp_path / "run", {"concepts": clusters.tolist(), "n_concepts": [1.0] * clusters.size})
    kept = tamis.select(run, "semantic-balance", any_model=True).keep
    assert [int(kept[clusters == str(number)].sum()) for number in range(5)] == [3, 35, 35, 35, 35]
    assert np.flatnonzero(kept[clusters == "3"]).max() > 60  # not the first of them


def test_cluster_epochs_give_a_cluster_of_n_images_a_share_that_grows_as_its_fifth_root(tmp_path: Path) -> None:
    """As `resample_clusters` of MingliangLiang3/DynamiCS (5526482), by exact counts: n^0.2 of each, scaled."""
    counts = np.array([40, 200, 1000, 3000])
    clusters = np.repeat(np.arange(4), counts)
    weights = (1 / counts)[clusters]
    run = write_run(tmp_path / "run", {"concept_weight": (weights / weights.mean()).tolist()}, shards=3)
    chosen = tamis.select(run, recipe.load("cluster-epochs", ["select.sample.limit=60"]), any_model=True)
    shares = counts**0.2 / (counts**0.2).sum()
    for epoch in np.split(chosen.in_order(), 6):
        assert epoch.size == 2120
        np.testing.assert_allclose(np.bincount(clusters[epoch]), 2120 * shares, atol=50)
    once = tamis.select(run, recipe.load("cluster-epochs", ["select.sample.limit=1"]), any_model=True)
    first = np.bincount(clusters[once.in_order()[:2120]])
    assert first[:2].tolist() == [40, 200]  # all of the small clusters, where the released code stops at less than half


def test_any_skill_keeps_the_best_by_any_of_three_scores(tmp_path: Path) -> None:
    run, columns = drawn(tmp_path / "run", "clip tmars icc")
    best = [values >= np.sort(values)[-800] for values in columns.values()]
    np.testing.assert_array_equal(tamis.select(run, "any-skill", any_model=True).keep, np.logical_or.reduce(best))


def test_concept_balance_repeats_images_of_rare_concepts(tmp_path: Path) -> None:
    weights = np.repeat([0.25, 1.0, 4.0], [500, 400, 100])
    run = write_run(tmp_path / "run", {"concept_weight": weights.tolist()})
    times = tamis.select(run, "concept-balance", any_model=True).times
    assert times is not None
    assert int(times.sum()) == 1000
    means = np.array([times[weights == weight].mean() for weight in (0.25, 1.0, 4.0)])
    np.testing.assert_allclose(means / means[1], [0.25, 1.0, 4.0], atol=0.05)
