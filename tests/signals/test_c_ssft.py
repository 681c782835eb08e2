"""C-SSFT and C-RHO: by the cosines of their models, and what tells two of them apart."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from factories import caption, image_bytes, score_batch
from tiny_models import clip_folder, epochs_folder

import tamis
from tamis.core.errors import ModelError, RecipeError
from tamis.core.types import Device, Sample
from tamis.pools.images import decode
from tamis.signals import ClipScore, CRho, CSsft
from tamis.signals.graph import Identities

COUNT = 6


def samples() -> list[Sample]:
    images = [decode(image_bytes(seed, (40 + 9 * seed, 70 - 5 * seed)), max_pixels=10**6) for seed in range(COUNT)]
    return [
        Sample(uid=(0, seed), key=str(seed), caption=caption(seed), pixels=image) for seed, image in enumerate(images)
    ]


def cosines(model: Path) -> np.ndarray:
    """By the signal that is compared with transformers' own numbers."""
    return np.asarray(score_batch(ClipScore(model=str(model)), samples())["clip"])


def test_c_ssft_is_the_mean_of_every_epochs_cosine(tmp_path: Path) -> None:
    folder = epochs_folder(tmp_path / "epochs", 3)
    each = np.stack([cosines(folder / f"epoch-{number}") for number in (1, 2, 3)])
    found = score_batch(CSsft(folder=str(folder), epochs=3), samples())["c_ssft"]
    np.testing.assert_allclose(found, each.mean(0), atol=1e-3)
    assert np.argsort(found).tolist() == np.argsort(each.sum(0)).tolist()  # the equation's sum ranks the same
    assert np.abs(found - each[-1]).max() > 0.01  # the last epoch alone is another score
    fewer = score_batch(CSsft(folder=str(folder), epochs=2), samples())["c_ssft"]
    np.testing.assert_allclose(fewer, each[:2].mean(0), atol=1e-3)


def test_c_rho_is_the_cosine_of_clean_less_that_of_the_pool(tmp_path: Path) -> None:
    # Models of other widths: the cosines are compared, never the embeddings.
    clean, pool = clip_folder(tmp_path / "one", 1), clip_folder(tmp_path / "other", 2, size=16)
    found = score_batch(CRho(clean=str(clean), pool=str(pool)), samples())["c_rho"]
    np.testing.assert_allclose(found, cosines(clean) - cosines(pool), atol=2e-3)
    assert np.abs(found).max() > 0.01
    turned = score_batch(CRho(clean=str(pool), pool=str(clean)), samples())["c_rho"]
    np.testing.assert_allclose(turned, -found, atol=1e-6)


def test_epochs_that_resize_images_differently_are_an_error(tmp_path: Path) -> None:
    folder = epochs_folder(tmp_path / "epochs")
    settings = folder / "epoch-2" / "preprocessor_config.json"
    settings.write_text(settings.read_text().replace("32", "24"))
    with pytest.raises(ModelError, match=r"epoch-2 and .*epoch-1 are not epochs of one run"):
        score_batch(CSsft(folder=str(folder), epochs=2), samples())


def fingerprint(folder: Path, epochs: int = 2) -> str:
    return Identities(Device()).fingerprint(CSsft(folder=str(folder), epochs=epochs))


def test_the_fingerprint_changes_with_the_weights_of_every_used_epoch_and_not_with_the_place(tmp_path: Path) -> None:
    folder = epochs_folder(tmp_path / "one", 3)
    before, of_two = fingerprint(folder, 3), fingerprint(folder, 2)
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "two")
    assert fingerprint(moved, 3) == before
    seen = {before, of_two}
    for number in (3, 2, 1):
        clip_folder(moved / f"epoch-{number}", seed=50 + number)
        seen.add(fingerprint(moved, 3))
        assert (fingerprint(moved, 2) == of_two) == (number == 3)
    assert len(seen) == 5
    one, two, three = (str(clip_folder(tmp_path / name, seed)) for seed, name in enumerate(("a", "b", "c")))
    pairs = [(one, two), (two, one), (one, three)]
    assert len({Identities(Device()).fingerprint(CRho(clean=clean, pool=pool)) for clean, pool in pairs}) == 3


def test_missing_models_are_errors_before_scoring(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    two, damaged = epochs_folder(tmp_path / "two"), epochs_folder(tmp_path / "damaged")
    (damaged / "epoch-1" / "config.json").unlink()
    for signal, error, message in (
        (CSsft(folder=str(tmp_path / "lost")), RecipeError, "c_ssft: folder: .*lost"),
        (CSsft(folder=str(tmp_path / "empty")), ModelError, "no complete epoch-1"),
        (CSsft(folder=str(two)), ModelError, r"no complete epoch-3, .* or set epochs: 2"),
        (CSsft(folder=str(damaged), epochs=2), ModelError, "no complete epoch-1"),
        (CRho(clean="./lost", pool="./gone"), ModelError, r"'\./lost'"),
    ):
        with pytest.raises(error, match=message):
            tamis.score(pool, run=tmp_path / "run", signals=[signal], quiet=True)
    assert not (tmp_path / "run").exists()
