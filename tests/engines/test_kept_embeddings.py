"""A CLIP that scores a run stores its embeddings, unless somebody says that it should not."""

from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from factories import write_pool
from safetensors.torch import load_file, save_file

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.signals import ClipScore


def stored(run: Path) -> list[str]:
    return sorted(name.rpartition("-")[0] for name in tamis.open_run(run).embeddings)


def planned(*arguments: object, **more: object) -> tuple[list[str], str]:
    """The embeddings that a plan would store, and what it says of them."""
    plan = tamis.plan(*arguments, **more)  # type: ignore[arg-type]
    outputs = [output.folder.rpartition("-")[0] for output in plan.missing if output.kind == "embeddings"]
    return sorted(outputs), plan.kept


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "pool", shards=2, rows=3)


@pytest.fixture
def other_model(clip_model: str, tmp_path: Path) -> str:
    """The tiny CLIP with other weights."""
    weights = Path(copytree(clip_model, tmp_path / "other")) / "model.safetensors"
    save_file({name: values * 1.5 for name, values in load_file(weights).items()}, weights, {"format": "pt"})
    return str(weights.parent)


BOTH = ["embeddings/image_embedding", "embeddings/text_embedding"]


def test_they_are_stored_and_said_once(
    pool: Path, clip_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        run = tamis.score(pool, run=tmp_path / "run", signals=[ClipScore(model=clip_model)])
    assert stored(run.path) == ["image_embedding", "text_embedding"]
    assert capsys.readouterr().err.count("CLIP's embeddings are stored too, 2 to 3 KB a pair") == 1
    images = [run.embedding("image_embedding", shard).astype(np.float32) for shard in run.shards]
    texts = [run.embedding("text_embedding", shard).astype(np.float32) for shard in run.shards]
    np.testing.assert_allclose((np.concatenate(images) * np.concatenate(texts)).sum(1), run["clip"], atol=1e-6)


@pytest.mark.parametrize("keep", ["none", ["none"]])
def test_none_stores_none(pool: Path, clip_model: str, tmp_path: Path, keep: object) -> None:
    recipe = {"signals": [{"clip": {"model": clip_model}}], "keep": keep}
    assert stored(tamis.score(pool, run=tmp_path / "run", recipe=recipe, quiet=True).path) == []
    kept = {**recipe, "keep": ["embeddings"]}
    assert planned(pool, run=tmp_path / "new", recipe=kept, keep=["none"]) == ([], "")
    with pytest.raises(RecipeError, match=r"unknown thing to keep 'non'.*known: captions, embeddings, none, texts"):
        tamis.plan(pool, run=tmp_path / "new", recipe={**recipe, "keep": ["non"]})


def test_scores_that_exist_without_them_are_not_computed_again(pool: Path, clip_model: str, tmp_path: Path) -> None:
    run, clip = tmp_path / "run", ClipScore(model=clip_model)
    tamis.score(pool, run=run, signals=[clip], keep=["none"], quiet=True)
    write_pool(pool, shards=3, rows=3)  # the pool grows
    assert planned(pool, run=run, signals=[clip, "image_size"]) == (
        [], "the run has CLIP's scores without its embeddings: --keep embeddings computes them",
    )  # fmt: skip
    assert stored(tamis.score(pool, run=run, signals=[clip, "image_size"], quiet=True).path) == []
    assert planned(pool, run=run, signals=[{"tmars": {"model": clip_model}}])[0] == BOTH  # computed anyway
    tamis.score(pool, run=run, signals=[clip], keep=["embeddings"], quiet=True)
    write_pool(pool, shards=4, rows=3)
    tamis.score(pool, run=run, signals=[clip], quiet=True)  # they are there now, so new shards get them too
    assert tamis.open_run(run).embedding("image_embedding", "00003").shape[0] == 3


def test_only_those_of_clip_itself_are_stored(pool: Path, clip_model: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    sieve = {"sieve": {"captioner": "lab/captioner"}}
    assert planned(pool, run=new, signals=[sieve, "text_match"]) == ([], "")
    assert planned(pool, run=new, signals=[sieve, {"tmars": {"model": clip_model}}])[0] == BOTH
    assert (
        planned(pool, run=new, signals=[{"zero_shot_class": {"model": clip_model, "classes": "imagenet"}}])[0]
        == (BOTH[:1])
    )
    assert planned(pool, run=new, signals=[{"c_rho": {"clean": clip_model, "pool": "lab/clip"}}]) == ([], "")


def test_rows_of_a_subset_store_none(pool: Path, clip_model: str, tmp_path: Path) -> None:
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    half = tamis.select(run, {"select": [{"top_n": {"score": "words", "n": 3}}]})
    tamis.score(pool, run=run.path, signals=[ClipScore(model=clip_model)], within=half, quiet=True)
    assert stored(run.path) == []


def test_of_two_clips_the_first_is_stored_and_a_recipe_reads_those_that_it_names(
    pool: Path, clip_model: str, other_model: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    tamis.score(pool, run=run, signals=[ClipScore(model=clip_model)], quiet=True)
    assert planned(pool, run=run, signals=[ClipScore(model=other_model)]) == ([], "")
    tamis.score(pool, run=run, signals=[ClipScore(model=other_model)], keep=["embeddings"], quiet=True)
    assert stored(run) == ["image_embedding"] * 2 + ["text_embedding"] * 2
    with pytest.raises(RunError, match="has several 'image_embedding'"):
        tamis.select(run, {"select": [{"semdedup": {"fraction": 0.5, "clusters": 1}}]})
    for model in (clip_model, other_model):
        recipe = {"signals": [{"clip": {"model": model}}], "select": [{"semdedup": {"fraction": 0.5, "clusters": 1}}]}
        assert [list(used["models"]) for used in tamis.select(run, recipe).used] == [[model]]
        loss = tamis.score(pool, run=run, recipe={"signals": [{"clip": {"model": model}}, "clip_loss"]}, quiet=True)
        assert "clip_loss" in {group.facts["name"] for group in loss.scores.values()}
