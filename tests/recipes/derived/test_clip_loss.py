"""`clip_loss`, `norm_sim` and `norm_sim_d` against slow references, and through the command line."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import write_pool, write_run
from scipy.special import logsumexp

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.core.files.checked import write_array
from tamis.core.ids import scramble
from tamis.core.math.similarity import unit_rows
from tamis.models.clip import temperature_of
from tamis.recipes.derived import clip_loss, contrastive
from tamis.recipes.derived.clip_loss import ClipLoss
from tamis.recipes.derived.contrastive import contrastive_norms
from tamis.recipes.derived.norm_sim import NormSim
from tamis.recipes.steps import NormSimD
from tamis.runs import Run
from tamis.runs.manifest import describe
from tamis.runs.table import MemoryTable, Table

Array = np.ndarray[Any, Any]


def unsaved(name: str, make: Any) -> Any:
    return make()


def pairs(rows: int, width: int = 8, seed: int = 0) -> tuple[Array, Array]:
    """Unit rows, the second like the first."""
    draw = np.random.default_rng(seed)
    images = unit_rows(draw.standard_normal((rows, width)))
    return images, unit_rows(images + draw.standard_normal((rows, width)) / 2)


def table_of(images: Array, texts: Array, order: Array | None = None, block: int = 1 << 20) -> Table:
    """A table of embeddings; with `order`, the same rows, with the same uids, in another order."""
    order = np.arange(len(images)) if order is None else order
    uids = np.zeros(len(images), np.uint64), order.astype(np.uint64)
    columns = {"image_embedding": images[order], "text_embedding": texts[order]}
    return MemoryTable(columns, uids=uids, block=block)


def test_two_pairs_by_hand() -> None:
    images, texts = np.eye(2, dtype=np.float32), np.float32([[1, 0], [0.6, 0.8]])
    of_images, of_texts = contrastive_norms(images, texts, 0.5)
    assert of_images == pytest.approx([0.5 * math.log(math.e**2 + math.e**1.2), 0.5 * math.log(1 + math.e**1.6)])
    assert of_texts == pytest.approx([0.5 * math.log(math.e**2 + 1), 0.5 * math.log(math.e**1.2 + math.e**1.6)])
    found = ClipLoss(temperature=0.5, repeats=3, precision="float32").compute(table_of(images, texts), unsaved)
    assert found["clip_loss"] == pytest.approx([1, 0.8] - (of_images + of_texts) / 2)


@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("tile", [7, 512])
def test_norms_are_those_of_the_formula(temperature: float, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for equal pairs, whose cosine of 1 overflows exp() in float32, beside pairs with negative cosines only."""
    monkeypatch.setattr(contrastive, "TILE", tile)
    images, texts = pairs(40, 4)
    images[:3] = texts[:3] = np.float32([1, 0, 0, 0])
    images[3], texts[3] = np.float32([-1, 0, 0, 0]), np.float32([0, -1, 0, 0])
    cosines = images.astype(float) @ texts.astype(float).T
    for found, axis in zip(contrastive_norms(images, texts, temperature), (1, 0), strict=True):
        np.testing.assert_allclose(found, temperature * logsumexp(cosines / temperature, axis), atol=2e-6)


@pytest.mark.parametrize("with_torch", [True, False])
def test_bf16_gives_the_same_norms_up_to_its_rounding(with_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a dimension that is large in every vector, as CLIP's are: the mean is not rounded."""
    monkeypatch.setattr(contrastive, "TILE", 48)
    if not with_torch:
        monkeypatch.setattr(contrastive, "_torch", lambda: None)
    images, texts = pairs(200, 256)
    images, texts = unit_rows(images + 0.7 * np.eye(1, 256, 3)), unit_rows(texts - 0.4 * np.eye(1, 256, 3))
    exact, rounded = (contrastive_norms(images, texts, 0.01, precision) for precision in ("float32", "bf16"))
    for one, other in zip(exact, rounded, strict=True):
        np.testing.assert_allclose(other, one, atol=5e-4)
        assert (other >= np.einsum("nd,nd->n", images, texts, dtype=np.float64)).all()


@pytest.mark.parametrize(("dimensions", "off"), [(512, 1e-3), (3, 1e-2)])
@pytest.mark.parametrize("with_torch", [True, False])
def test_bf16_stays_as_near_to_float32_as_the_signal_says(
    dimensions: int, off: float, with_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of few large numbers are rounded most."""
    if not with_torch:
        monkeypatch.setattr(contrastive, "_torch", lambda: None)
    random = np.random.default_rng(0)
    images = random.standard_normal((300, dimensions))
    vectors = [unit_rows(one.astype(np.float32)) for one in (images, images + random.standard_normal(images.shape))]
    exact, rounded = (contrastive_norms(*vectors, 0.01, precision) for precision in ("float32", "bf16"))
    assert np.abs(np.subtract(exact, rounded)).max() < off


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    step = 2.0**-7  # between bf16 numbers from 1 to 2
    rows = np.float32([[1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -1 - 0.49 * step, 0]])
    np.testing.assert_array_equal(contrastive._round(rows), [[1, 1 + 2 * step, 1 + step, -1, 0]])


def slow_clip_loss(images: Array, texts: Array, signal: ClipLoss) -> Array:
    """Equation 1 of the paper over equal batches, drawn by uid, in float64."""
    total = np.zeros(len(images))
    for repeat in range(signal.repeats):
        uids = np.zeros(len(images), np.uint64), np.arange(len(images), dtype=np.uint64)
        order = np.argsort(scramble(*uids, signal.seed + (repeat << 32)))
        for batch in np.array_split(order, math.ceil(len(order) / signal.batch)):
            logits = images[batch].astype(float) @ texts[batch].astype(float).T / 0.01
            norms = (logsumexp(logits, 1) + logsumexp(logits, 0)) * 0.01 / 2
            total[batch] += np.diag(logits) * 0.01 - norms
    return total / signal.repeats


def test_the_score_is_the_papers_and_depends_on_uids_only() -> None:
    images, texts = pairs(103)
    signal = ClipLoss(batch=25, repeats=4, seed=7, precision="float32")
    found = signal.compute(table_of(images, texts), unsaved)
    sizes = {len(batch) for batch in np.array_split(np.arange(103), 5)}
    assert max(sizes) - min(sizes) <= 1  # a short last batch would get a bonus
    np.testing.assert_allclose(found["clip_loss"], slow_clip_loss(images, texts, signal), atol=3e-5)  # float16
    assert found["clip_loss"].max() <= 0
    order = np.random.default_rng(1).permutation(103)
    again = signal.compute(table_of(images, texts, order, block=10), unsaved)
    for name, values in again.items():
        np.testing.assert_array_equal(values, found[name][order])


def test_rows_of_one_uid_meet_in_a_batch_by_chance_only() -> None:
    """Of orthogonal pairs each loses temperature * log m to the m rows of its uid in its batch."""
    kind = np.arange(128) % 32
    vectors = np.eye(32, dtype=np.float32)[kind]
    uids = np.zeros(128, np.uint64), kind.astype(np.uint64)
    table = MemoryTable({"image_embedding": vectors, "text_embedding": vectors}, uids=uids)
    found = ClipLoss(batch=8, repeats=1, temperature=0.01).compute(table, unsaved)
    met = np.exp(-found["clip_loss"] / 0.01)
    assert met.mean() == pytest.approx(1 + 3 * 7 / 127, abs=0.2)


def test_rows_without_an_embedding_are_in_no_sum() -> None:
    images, texts = pairs(30)
    without = images.copy()
    without[4], without[9] = np.nan, 0
    found = ClipLoss(repeats=2).compute(table_of(without, texts), unsaved)["clip_loss"]
    there = np.setdiff1d(np.arange(30), [4, 9])
    assert np.isnan(found[[4, 9]]).all()
    alone = MemoryTable(
        {"image_embedding": images[there], "text_embedding": texts[there]},
        uids=(np.zeros(28, np.uint64), there.astype(np.uint64)),
    )
    np.testing.assert_array_equal(found[there], ClipLoss(repeats=2).compute(alone, unsaved)["clip_loss"])


def embedded_run(path: Path, images: Array, texts: Array) -> Run:
    """A run folder of three shards that stores embeddings."""
    run = write_run(path, {"clip": np.einsum("nd,nd->n", images, texts).tolist()})
    for name, vectors in (("image_embedding", images), ("text_embedding", texts)):
        folder = f"embeddings/{name}-0123456789abcdef"
        describe(run.path, {folder: {"name": name, "models": {"tiny": "0123"}}})
        for shard, span in run.row_ranges.items():
            write_array(
                run.path / folder / f"{shard}.npy", vectors[span].astype(np.float16), uids=run.owner(shard).uids
            )
    return Run(path)


def test_the_command_adds_columns_that_recipes_read(tmp_path: Path, tamis: Tamis) -> None:
    images, texts = pairs(60)
    run = embedded_run(tmp_path / "run", images, texts)
    targets = tmp_path / "targets.npy"
    np.save(targets, images[:5])
    signals = ["--signals", "clip_loss,norm_sim", "--set", f"signals.norm_sim.targets={targets}"]
    done = tamis.ok("derive", str(run.path), *signals, "--set", "signals.clip_loss.batch=16")
    assert "60 rows have the columns clip_loss.clip_loss, clip_loss.clip_norm_image" in done.err
    opened = Run(run.path)
    assert opened["norm_sim"][:5] == pytest.approx(1, abs=1e-3)
    stored = {path: path.stat().st_mtime_ns for path in run.path.glob("scores/*/*")}
    tamis.ok("derive", str(run.path), *signals, "--set", "signals.clip_loss.batch=16")
    assert stored == {path: path.stat().st_mtime_ns for path in run.path.glob("scores/*/*")}
    np.save(targets, images[5:9])  # other content, same name
    tamis.ok("derive", str(run.path), *signals)
    assert Run(run.path)["norm_sim"][5:9] == pytest.approx(1, abs=1e-3)
    assert not list((run.path / "unfinished").glob("*"))


def test_the_norm_of_similarities_by_hand_and_by_the_formula(tmp_path: Path) -> None:
    images = np.float32([[1, 0], [0.6, 0.8], [np.nan, np.nan]])
    np.save(tmp_path / "targets.npy", np.float32([[0, 2], [-1, 0]]))
    table = table_of(images, images)
    greatest, root = (
        NormSim(targets=str(tmp_path / "targets.npy"), norm=norm).compute(table, unsaved)["norm_sim"]
        for norm in ("inf", 2)
    )
    np.testing.assert_allclose(greatest, [1, 0.8, np.nan], atol=1e-6)  # absolute: the first one's cosine is -1
    np.testing.assert_allclose(root, [1, 1, np.nan], atol=1e-6)
    images, targets = pairs(50)[0], unit_rows(np.random.default_rng(3).standard_normal((9, 8)))
    np.save(tmp_path / "targets.npy", targets)
    cosines = np.abs(images.astype(float) @ targets.T.astype(float))
    for norm, expected in (("inf", cosines.max(1)), (2, np.sqrt((cosines**2).sum(1)))):
        signal = NormSim(targets=str(tmp_path / "targets.npy"), norm=norm)  # type: ignore[arg-type]
        np.testing.assert_allclose(signal.compute(table_of(images, images), unsaved)["norm_sim"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "leaks"),
    [("imagenet-val", True), ("test.npy", True), ("latest.npy", False), ("imagenet-train.npy", False)],
)
def test_targets_that_look_like_a_test_set_are_named(
    name: str, leaks: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name
    with open(path, "wb") as file:
        np.save(file, pairs(3)[0])
    NormSim(targets=str(path)).compute(table_of(*pairs(5)), unsaved)
    assert ("looks like a test set" in caplog.text) == leaks


def slow_most_alike(vectors: Array, n: int, rounds: int, start: Array) -> list[int]:
    """Each round sums over all that is left."""
    left, moments = list(range(len(vectors))), start
    for number in range(rounds):
        target = len(vectors) - int((len(vectors) - n) * (number + 1) / rounds + 1e-9)
        score = {row: float(vectors[row] @ moments @ vectors[row]) for row in left}
        left = sorted(sorted(left, key=lambda row: -score[row])[:target])
        moments = sum(np.outer(vectors[row], vectors[row]) for row in left)
    return left


@pytest.mark.parametrize(("n", "rounds"), [(20, 1), (20, 4), (13, 40), (0, 3), (20, 41)])
def test_the_rows_that_stay_are_those_of_plain_rounds(n: int, rounds: int) -> None:
    stored = pairs(60, 5)[0].astype(np.float16)
    step = NormSimD(fraction=n / 60, rounds=rounds)
    found = step.select(MemoryTable({"image_embedding": stored}))
    vectors = unit_rows(stored).astype(float)
    assert np.flatnonzero(found.keep).tolist() == sorted(slow_by_uid(vectors, n, rounds))
    candidates = np.arange(60) < 40  # the first round's sum is over the pool
    some = step.select(MemoryTable({"image_embedding": stored}).with_candidates(candidates))
    assert np.count_nonzero(some.keep) == round(n / 60 * 40)
    whole = MemoryTable({"image_embedding": stored}, uids=(np.zeros(60, np.uint64), np.arange(60, dtype=np.uint64)))
    assert (
        NormSimD(fraction=0.5, rounds=10**30).select(whole).keep == NormSimD(fraction=0.5, rounds=30).select(whole).keep
    ).all()
    order = np.random.default_rng(2).permutation(60)
    moved = MemoryTable({"image_embedding": stored[order]}, uids=(np.zeros(60, np.uint64), order.astype(np.uint64)))
    assert (step.select(moved).keep == step.select(whole).keep[order]).all()


def slow_by_uid(vectors: Array, n: int, rounds: int) -> list[int]:
    return slow_most_alike(vectors, n, rounds, vectors.T @ vectors)


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ([{"clip_los": {}}], r"unknown signal 'clip_los' \(did you mean 'clip_loss'\?\)"),
        ([{"clip_loss": {"bach": 3}}], "unknown setting 'bach' \\(did you mean 'batch'"),
        ([{"clip_loss": {"temperature": 1e-40}}], r"temperature must be at least 0\.0001"),
        ([{"norm_sim": {"targets": "nowhere.npy"}}], "nowhere.npy is neither a run folder nor a .npy file"),
        ([{"clip_loss": {"image": "image_embeding"}}], "did you mean 'image_embedding'"),
        ([{"clip_loss": {"image": "clip"}}], "holds numbers, expected vectors"),
    ],
)
def test_what_cannot_be_derived_is_said_before_the_work(signals: Any, said: str, tmp_path: Path) -> None:
    run = embedded_run(tmp_path / "run", *pairs(6))
    with pytest.raises((RecipeError, RunError), match=said):
        tamis.derive(run, signals)


def test_a_recipe_that_lacks_it_names_the_command(tmp_path: Path) -> None:
    run = embedded_run(tmp_path / "run", *pairs(6))
    with pytest.raises(RunError, match=r"tamis derive \S+ --signals clip_loss"):
        tamis.select(run, {"select": [{"top_fraction": {"score": "clip_loss", "fraction": 0.5}}]})
    with pytest.raises(RunError, match=r"--signals clip_loss --set signals.clip_loss.batch=8"):
        tamis.select(run, {
            "signals": [{"clip_loss": {"batch": 8}}],
            "select": [{"top_fraction": {"score": "clip_loss", "fraction": 0.5}}],
        })  # fmt: skip


def test_a_killed_computation_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = embedded_run(tmp_path / "run", *pairs(40))
    other = embedded_run(tmp_path / "other", *pairs(40))
    whole = tamis.derive(other, [{"clip_loss": {"batch": 16, "repeats": 2}}])["clip_loss"]
    real, done = clip_loss.contrastive_norms, 0

    def dies(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(clip_loss, "contrastive_norms", dies)
    monkeypatch.setattr(clip_loss, "GATHER", 16)  # one batch is saved at a time
    with pytest.raises(KeyboardInterrupt):
        tamis.derive(run, [{"clip_loss": {"batch": 16, "repeats": 2}}])
    assert "clip_loss" not in Run(run.path).columns
    again = tamis.derive(run, [{"clip_loss": {"batch": 16, "repeats": 2}}])
    np.testing.assert_array_equal(again["clip_loss"], whole)
    assert done == 7  # two partitions of three batches, and the one that died


def test_a_temperature_that_is_noted_later_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = embedded_run(tmp_path / "run", *pairs(20))
    before = tamis.derive(run, ["clip_loss"])["clip_loss"]
    assert "does not record its model's temperature" in caplog.text
    folder = f"embeddings/{run.vectors['image_embedding']}"
    describe(run.path, {folder: {"name": "image_embedding", "temperature": 0.5}})
    after = tamis.derive(run, ["clip_loss"])["clip_loss"]
    assert (np.abs(after - before) > 0.01).all()


def test_the_temperature_is_the_checkpoints(tmp_path: Path, clip_model: str) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=9)
    recipe = {"signals": [{"clip": {"model": clip_model}}, "clip_loss"], "keep": ["embeddings"]}
    run = tamis.score(pool, run=tmp_path / "run", recipe=recipe, quiet=True, device="cpu")
    again = tamis.derive(run, [{"clip_loss": {"temperature": temperature_of(clip_model), "label": "same"}}])
    assert temperature_of(clip_model) == pytest.approx(math.exp(-2.6592), rel=1e-3)
    np.testing.assert_array_equal(again["clip_loss.clip_loss"], again["same.clip_loss"])
    recorded = (run.path / "recipe.yaml").read_text()
    assert "clip_loss" in recorded
    assert tamis.score(pool, run=run.path, recipe=run.path / "recipe.yaml", quiet=True)["clip_loss"].size == 9
