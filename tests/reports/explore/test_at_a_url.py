"""The page of a run at a URL: what it saves, and tags that are given there, are at the store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored_page import served
from s3_fixtures import LIBRARIES_WARN

import tamis
from tamis.runs import Run

pytestmark = LIBRARIES_WARN

RUN = "s3://pool/runs/mine"
HALF = {"name": "half", "select": [{"top_fraction": {"score": "characters", "fraction": 0.5}}]}


def test_two_machines_tag_one_run_and_see_what_is_saved(
    pool: Path, s3: Any, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be(name: str) -> None:
        monkeypatch.setenv("TAMIS_CACHE", str(tmp_path / name))

    be("a")
    tamis.score(pool, run=RUN, signals=["caption_length"], quiet=True)
    be("b")
    with served(RUN) as page:
        assert page.ask("facts")["run"] == RUN
        assert page.ask("save", recipe=HALF)["subset"] == f"{RUN}/subsets/half.parquet"
        page.ask("tag", rows=[2], add=["good"])
        be("c")
        with served(RUN) as other:
            other.ask("tag", rows=[3], add=["bad"])
            with pytest.raises(AssertionError, match=r"mine/subsets/half.parquet exists already"):
                other.ask("save", recipe=HALF)
        be("b")
        page.ask("tag", rows=[4], add=["good"])
    s3.invalidate_cache()
    assert b"top_fraction" in s3.cat_file("pool/runs/mine/subsets/half.parquet")
    be("d")
    labels = Run(RUN).to_numpy("label")
    assert (np.flatnonzero(labels == 1).tolist(), np.flatnonzero(labels == 0).tolist()) == ([2, 4], [3])
