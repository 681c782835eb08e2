"""`tamis distil`: what is judged, what is kept and recorded, what goes on, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Tamis
from factories import parts_of
from odd_signals import JUDGED, Judged

import tamis as library
from tamis import distilled
from tamis.arrays import Mask
from tamis.errors import RecipeError, RunError
from tamis.pool import PoolSpec
from tamis.store import Run
from tamis.store.subset import Subset

pytest.importorskip("sklearn")

ROWS = 1200


@dataclass(frozen=True)
class World:
    """A pool of captions that begin with their true score, and embeddings that explain most of it."""

    pool: PoolSpec
    run: Path
    recipe: dict[str, Any]
    truth: np.ndarray[Any, np.dtype[np.float32]]

    def distil(self, **how: Any) -> Subset:
        given = {"run": self.run, "recipe": self.recipe, "at_most_wrong": 0.3, "least": 0, "quiet": True, **how}
        return library.distil(self.pool, "judged", **given)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(distilled, "_SAMPLE", (0.05, 200, 2000))
    JUDGED.clear()
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, ROWS, 4)).astype(np.float32)
    image[7] = 0  # no embedding
    truth = (image[:, 0] + text[:, 1] + 0.2 * rng.normal(size=ROWS)).astype(np.float32).round(3)
    keys = [f"k{row}" for row in range(ROWS)]
    (tmp_path / "pool").mkdir()
    for shard in range(3):
        part = slice(shard * ROWS // 3, (shard + 1) * ROWS // 3)
        captions = [f"{value:.3f} {row}" for row, value in enumerate(truth[part].tolist())]
        pq.write_table(pa.table({"key": keys[part], "caption": captions}), tmp_path / "pool" / f"{shard}.parquet")
    kind = pa.list_(pa.float32(), 4)
    sides = {name: pa.array(list(rows), kind) for name, rows in (("image", image), ("text", text))}
    pq.write_table(pa.table({"key": keys, **sides}), tmp_path / "vectors.parquet")
    recipe = {
        "signals": [{"clip": {"embeddings_from": str(tmp_path / "vectors.parquet")}}, "caption_length", Judged()],
        "keep": ["embeddings"],
        "select": [
            {"at_least": {"score": "words", "value": 1}},
            {"top_fraction": {"score": "judged", "fraction": 0.3, "missing": "drop"}},
        ],
    }
    pool = PoolSpec(path=str(tmp_path / "pool"), format="table", caption="caption", image="none")
    return World(pool, tmp_path / "run", recipe, truth)


def jaccard(one: Mask, other: Mask) -> float:
    return np.count_nonzero(one & other) / np.count_nonzero(one | other)


def test_few_rows_are_judged_and_the_bound_holds(world: World) -> None:
    subset = world.distil()
    facts = subset.funnel[-1]["facts"]
    assert subset.kept == round(0.3 * ROWS)
    assert jaccard(subset.keep, world.truth >= np.sort(world.truth)[-subset.kept]) >= facts["jaccard_at_least"] >= 0.7
