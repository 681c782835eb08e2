"""Json fields: in the index of a new run, as scores in a run that has an index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories import pair, parts_of, write_tar

import tamis
from tamis.errors import RecipeError, RunError


def fielded(folder: Path, shards: int = 2, rows: int = 3) -> Path:
    """A pool whose json has a source (none in the first row of each shard) and a number."""
    folder.mkdir(exist_ok=True)
    for shard in range(shards):
        samples = []
        for row in range(rows):
            files = pair(10 * shard + row)
            facts = {**json.loads(files.get("json", b"{}")), "number": row}
            facts |= {"source": f"web{row}"} if row else {}
            samples.append((f"{shard:03d}{row:03d}", {**files, "json": json.dumps(facts).encode()}))
        write_tar(folder / f"{shard:05d}.tar", samples)
    return folder


def score(pool: Path, run: Path, *fields: str, signals: tuple[str, ...] = ("caption_length",)) -> tamis.Run:
    return tamis.score(tamis.PoolSpec(path=str(pool), fields=fields), run=run, signals=signals, quiet=True)


def test_a_field_is_added_to_a_run_later_like_a_score(tmp_path: Path) -> None:
    pool = fielded(tmp_path / "pool")
    score(pool, tmp_path / "run", "number")
    before = parts_of(tmp_path / "run")
    run = score(pool, tmp_path / "run", "source")
    assert run.facts["pool"]["fields"] == ["number"]
    assert run["source"].tolist()[:3] == [None, "web1", "web2"]
    kept = tamis.select(run, {"select": [{"equals": {"score": "source", "value": "web2", "missing": "drop"}}]})
    assert kept.keep.tolist() == [False, False, True] * 2
    after = parts_of(tmp_path / "run")
    assert {name: after[name] for name in before} == before
    assert tamis.check(run.path).exit_code == 0


def test_the_fields_of_a_run_need_not_be_named_again_and_new_shards_get_them(tmp_path: Path) -> None:
    pool = fielded(tmp_path / "pool", shards=1)
    score(pool, tmp_path / "run", "number")
    score(pool, tmp_path / "run", "source")
    fielded(pool, shards=2)
    run = score(pool, tmp_path / "run", signals=("image_size",))
    assert run.to_pandas(["number", "source"])[["number", "source"]].to_numpy()[4].tolist() == ["1", "web1"]
    assert run.missing == ()


def test_a_field_that_would_hide_a_score_is_refused(tmp_path: Path) -> None:
    pool = fielded(tmp_path / "pool", shards=1)
    score(pool, tmp_path / "run")
    for name in ("words", "caption_length"):
        with pytest.raises(RunError, match=f"the field '{name}' cannot be added to .*it has a score of that name"):
            score(pool, tmp_path / "run", name)
    with pytest.raises(RecipeError, match="the field 'shorter_side' cannot be added to the run: a column of"):
        score(pool, tmp_path / "run", "shorter_side", signals=("image_size",))
