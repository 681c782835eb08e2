"""A run of good, repeated, broken and hostile pairs, and the page that shows it."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored_page import HOSTILE, Page, served
from explored_tab import new_tab
from factories import image_bytes, pair, uids_in, write_pool, write_tar
from PIL import Image

import tamis
from tamis.runs import manifest, parts


def write_mixed_pool(folder: Path) -> Path:
    """Writes two shards of 30 pairs: the first of the hostile captions, one copy and one broken image in it."""
    for shard in range(2):
        samples = []
        for row in range(30):
            number = shard * 30 + row
            files = pair(number)
            if shard == 0 and row < len(HOSTILE):
                meta = json.loads(files["json"]) | {"url": HOSTILE[row][:200]}
                files |= {"txt": HOSTILE[row].encode(), "json": json.dumps(meta).encode()}
            if number == 12:
                files["jpg"] = pair(11)["jpg"]
            if number == 13:
                files["jpg"] = b"no image"
            samples.append((f"{number:05d}", files))
        write_tar(folder / f"{shard:05d}.tar", samples)
    return folder


@pytest.fixture(scope="session")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with number and word columns, hashes, and stored embeddings that were made up."""
    folder = tmp_path_factory.mktemp("explore")
    pool = write_mixed_pool(folder / "pool")
    run = tamis.score(pool, run=folder / "run", signals=["caption_length", "image_size", "image_hash"], quiet=True)
    random = np.random.default_rng(0)
    place = run.path / "embeddings" / "image_embedding-1111111111111111"
    facts = {"name": "image_embedding", "label": "", "version": 1, "settings": {"model": "none"}}
    manifest.describe(run.path, {f"embeddings/{place.name}": facts})
    for shard in run.shards:
        vectors = random.normal(size=(30, 8))
        if shard == "00000":
            vectors[13] = np.nan
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
        parts.write_rows(place / f"{shard}.npy", [vectors], uids=uids_in(run.index_path(shard)))
    return run.path


@pytest.fixture(scope="module")
def run_folder(mixed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it, which the tests of a file may add subsets to."""
    return Path(shutil.copytree(mixed_run, tmp_path_factory.mktemp("explored") / "run"))


@pytest.fixture(scope="module")
def page(run_folder: Path) -> Iterator[Page]:
    with served(run_folder) as page:
        yield page


@pytest.fixture(scope="module")
def copied_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 pairs: of image 0 there are six versions (rows 0 to 5), of image 1 three (rows 6 to 8)."""
    folder = tmp_path_factory.mktemp("copied")
    samples = []
    for row in range(24):
        image = 0 if row < 6 else 1 if row < 9 else row
        pixels = Image.open(io.BytesIO(image_bytes(image, (240, 160)))).resize((240 + 16 * (row % 6), 160))
        out = io.BytesIO()
        pixels.save(out, "JPEG", quality=95 - 15 * (row % 6))
        samples.append((f"{row:05d}", {**pair(row), "jpg": out.getvalue()}))
    write_tar(folder / "pool" / "00000.tar", samples[:10])
    write_tar(folder / "pool" / "00001.tar", samples[10:])
    return tamis.score(folder / "pool", run=folder / "run", signals=["caption_length", "image_hash"], quiet=True).path


@pytest.fixture(scope="session")
def clip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 pairs whose embeddings lab/clip made; the row is the seed of the pair."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("searched")
    pool = write_pool(folder / "pool", shards=1, rows=12)
    scores = [{"clip": {"model": "lab/clip"}}]
    return tamis.score(pool, run=folder / "run", signals=scores, keep=["embeddings"], device="cpu", quiet=True).path


@pytest.fixture(scope="module")
def clip_page(clip_run: Path) -> Iterator[Page]:
    with served(clip_run) as page:
        yield page


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    with new_tab(browser) as tab:
        yield tab
