"""What a choice was made by: the models and settings of the columns that it read, in everything that leaves Tamis."""

import json
import re
import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from factories import write_pool, write_run
from tiny_models import clip_folder

import tamis
from tamis import Run, Subset
from tamis.core.errors import RecipeError, RunError
from tamis.recipes import recipe
from tamis.recipes.names import shipped_names
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.queries import Explorer
from tamis.runs.makers import drawn_world
from tamis.signals import ClipScore

SIGNALS: list[Any] = [{"clip": {"model": "lab/clip"}}, "clip_loss", "language"]
NOTHING = "scores of photographs mean nothing"
DRAWN = f"clip is lab/clip: it knows only the drawn world, so {NOTHING}"


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 12 pairs with scores by lab/clip."""
    folder = tmp_path_factory.mktemp("scored")
    pool = write_pool(folder / "pool", shards=1, rows=12)
    return tamis.score(pool, run=folder / "run", signals=SIGNALS, keep=["embeddings"], device="cpu", quiet=True)


def named(model: str, step: dict[str, Any] | None = None) -> dict[str, Any]:
    step = step or {"top_fraction": {"score": "clip", "fraction": 0.5, "missing": "drop"}}
    return {"name": "mine", "signals": [{"clip": {"model": model}}, "clip_loss"], "select": [step]}


def facts_of(subset: Subset, folder: Path) -> list[Any]:
    """Everything that is written of a subset: its file, its exports, the report, the explorer's answer."""
    tamis.export(subset, "webdataset", folder / "shards")
    tamis.export(subset, "npy", folder / "rows.npy", croissant=True)
    page = tamis.report(subset.run, [subset], out=folder / "report.html")
    subset.save(folder / "mine.parquet")
    loaded = Subset.load(folder / "mine.parquet", subset.run)
    explorer = Explorer(CachedRun(subset.run.path), [loaded], partial(tamis.select, any_model=True))
    first = explorer.facts()
    assert first["drawn"] == ["clip and clip_loss are lab/clip: it knows only the drawn world, so " + NOTHING]
    chosen = explorer.chosen(first["recipes"][0]["start"], [])["models"]
    assert NOTHING not in " ".join(chosen)  # the head of the page says it
    return [
        [*loaded.used, loaded.recipe],
        json.loads((folder / "shards" / "export.json").read_text()),
        json.loads((folder / "rows.npy.croissant.json").read_text()),
        json.loads(page.with_suffix(".json").read_text()),
        page.read_text(),
        chosen,
    ]


def test_what_leaves_a_choice_names_the_model_that_made_the_scores(scored: Run, tmp_path: Path) -> None:
    (group,) = (scored.scores[name] for name in ["clip"])
    subset = tamis.select(scored, "clip-30")
    assert subset.recipe["signals"] == [{"clip": {"model": "lab/clip"}}]
    (used,) = subset.used
    assert used["models"] == group.facts["models"]
    assert len(used["models"]["lab/clip"]) == 32
    assert f"clip-{used['fingerprint']}" == group.folder.name
    for facts in facts_of(subset, tmp_path):
        text = json.dumps(facts)
        assert "lab/clip" in text
        assert "openai/" not in text
    assert DRAWN in json.loads((tmp_path / "shards" / "export.json").read_text())["models"]


def test_a_recipe_that_names_another_model_stops_and_says_how_to_go_on(scored: Run) -> None:
    for chosen in ("laion", named("some/other"), {"name": "both", "select": [{"all_of": ["laion", "clip-30"]}]}):
        with pytest.raises(RunError) as error:
            tamis.select(scored, chosen)
        _, score, select = str(error.value).splitlines()
        assert shlex.split(score)[:2] == ["tamis", "score"]
        assert re.search(r"signals\.clip\.model=(openai/clip-vit-base-patch32|some/other)", score)
        assert "`tamis select` with --any-model" in select


def test_embeddings_and_columns_worked_out_from_them_have_a_model_too(scored: Run) -> None:
    assert tamis.select(scored, "clip-loss").used[0]["models"] == scored.scores["clip"].facts["models"]
    for step in ({"at_least": {"score": "clip_loss", "value": 0.1}}, {"semdedup": {"epsilon": 0.1, "clusters": 1}}):
        with pytest.raises(RunError, match=r"names some/other, and (clip_loss|image_embedding) of") as error:
            tamis.select(scored, named("some/other", step))
        assert "signals.clip.model=some/other" in str(error.value)


def test_a_derived_signal_that_reads_a_column_of_its_own_name_has_the_models_of_entries_before_it(
    scored: Run, tmp_path: Path
) -> None:
    mixes: list[Any] = [{"mix": {"terms": {"clip": 1}}}, {"mix": {"terms": {"mix": 1, "clip": 1}, "label": "twice"}}]
    run = tamis.derive(shutil.copytree(scored.path, tmp_path / "run"), mixes)
    steps = [{"at_least": {"score": "twice.mix", "value": -99, "missing": "drop"}}]
    for model, length in (("lab/clip", 12), ("some/other", None)):
        chosen = {"name": "mine", "signals": [{"clip": {"model": model}}, *mixes], "select": steps}
        if length is None:
            with pytest.raises(RunError, match="names some/other, and"):
                tamis.select(run, chosen)
        else:
            assert len(tamis.select(run, chosen)) == length


def test_any_model_is_said_wherever_the_choice_is_read(scored: Run, tmp_path: Path) -> None:
    subset = tamis.select(scored, "laion", any_model=True)
    sentence = "clip of lab/clip (the recipe names openai/clip-vit-base-patch32)"
    for facts in facts_of(subset, tmp_path)[1:]:
        assert sentence in json.dumps(facts)
    both = subset & tamis.select(
        scored, {"name": "language", "select": [{"at_least": {"score": "english", "value": 0}}]}
    )
    assert {one["label"] for one in both.used} == {"clip", "language"}


def test_a_recipe_takes_any_model_that_it_does_not_name(scored: Run) -> None:
    threshold = [{"at_least": {"score": "clip", "value": -1, "missing": "drop"}}]
    assert len(tamis.select(scored, {"name": "bare", "select": threshold})) == 12
    assert len(tamis.select(scored, {**named("some/other"), "any_model": True})) == 6
    assert len(tamis.select(scored, named("lab/clip"))) == 6
    aliased = {**named("some/other"), "columns": {"clip": "clip.clip"}}
    assert tamis.select(scored, aliased).used[0]["named"] == ["some/other"]
    with pytest.raises(RecipeError, match="any_model: expected true or false, got 'lab'"):
        recipe.load({**named("some/other"), "any_model": "lab"})


def test_a_model_that_is_typed_is_meant(scored: Run) -> None:
    typed = "signals.clip.model=openai/clip-vit-base-patch32"
    with pytest.raises(RunError, match="names openai/clip-vit-base-patch32"):
        tamis.select(scored, "clip-30", settings=[typed])
    assert len(tamis.select(scored, "clip-30", settings=[typed, "any_model=true"])) == 4
    assert len(tamis.select(scored, "clip-30", settings=["signals.clip.model=lab/clip"])) == 4


def test_shipped_thresholds_on_a_models_scores_need_that_model() -> None:
    """A best share is one by any model; a threshold of one model means nothing to another."""
    thresholds = {"at_least", "at_most", "between", "semdedup"}
    for name in shipped_names():
        loaded = recipe.load(name)
        words = set().union(*loaded.named.values())
        steps = {next(iter(step)): step for step in loaded.text["select"]}
        parts = [step for part in steps.get("any_of", {}).get("any_of", []) for step in part]
        reads = json.dumps([step for step in [*steps.values(), *parts] if next(iter(step)) in thresholds])
        on_model = re.search(r'"score": "(clip|tmars|class_similarity|judge_)|epsilon', reads)
        cosines = [entry["concepts"]["at_least"] for entry in loaded.text.get("signals", ()) if "concepts" in entry]
        assert bool(words) == (bool(on_model) or max(cosines, default=-1) > -1), name


def test_settings_that_were_used_are_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool, prompts = write_pool(tmp_path / "pool", shards=1, rows=2), ["a [*]", "the [*]"]
    signals = [{"clip_stroop": {"model": "lab/clip", "prompts": prompts}}]
    own = tamis.score(pool, run=tmp_path / "own", signals=signals, quiet=True, device="cpu")
    steps = [{"at_least": {"score": "clip_stroop", "value": -9}}]
    chosen = {"name": "stroop", "signals": [{"clip_stroop": {"model": "lab/clip"}}], "select": steps}
    assert tamis.select(own, chosen).recipe["signals"] == signals
    assert "asks for clip_stroop with prompts=" in caplog.text
    run = write_run(tmp_path / "run", {"sieve": [0.1, 0.2, 0.3]}, shards=1)
    assert tamis.select(run, {"select": [{"at_least": {"score": "sieve", "value": 0}}]}).used[0]["models"] == {}


def test_a_recipe_selects_by_the_settings_it_scores_with(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2)
    one, two = (str(clip_folder(tmp_path / name, seed)) for name, seed in (("one", 1), ("two", 2)))
    run = tamis.score(pool, run=tmp_path / "run", signals=[ClipScore(model=one), ClipScore(model=two)], quiet=True)
    best = {"select": [{"top_n": {"score": "clip", "n": 3}}]}
    labels = {group.facts["settings"]["model"]: label for label, group in run.scores.items()}
    for model in (one, two):
        chosen = tamis.select(run, {**best, "signals": [{"clip": {"model": model}}]})
        assert chosen.reads == [f"{labels[model]}.clip"]
        scores = run.to_numpy(f"{labels[model]}.clip")
        assert sorted(scores[chosen.keep]) == sorted(scores)[-3:]
    with pytest.raises(RecipeError, match=r"others: choose one with --set columns\.clip="):
        tamis.select(run, {**best, "signals": [{"clip": {"model": "owner/other"}}]})


def test_many_columns_of_one_model_are_a_list() -> None:
    models = {"clip": ["lab/clip"], "tmars": ["lab/clip"], "rarity": ["lab/clip"], "sieve": ["lab/captioner"]}
    assert drawn_world(models) == [
        f"clip, tmars and rarity are lab/clip, sieve is lab/captioner: they know only the drawn world, so {NOTHING}"
    ]
