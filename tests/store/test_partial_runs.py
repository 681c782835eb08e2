"""A run that lacks shards is refused by whatever reads its rows; whoever goes on all the same is told so ever after."""

from __future__ import annotations

import html
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_line import Tamis
from factories import write_pool

import tamis
from tamis.errors import RunError
from tamis.store import Run
from tamis.store.subset import Subset

RECIPE = {"name": "most", "select": [{"top_fraction": {"score": "words", "fraction": 0.3}}]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six shards of seven pairs, one of them without index."""
    pool = write_pool(tmp_path / "pool", shards=6)
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    (tmp_path / "run" / "index" / "00003.parquet").unlink()
    return tmp_path / "run"


def test_every_reader_refuses_and_names_shard_and_command(run: Path, tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    said = "lacks 1 of its 6 shards: 00003 (not read yet). To complete it: tamis score "
    for arguments in (
        ("select", run, "--recipe", "recipe.yaml", "--out", "a.parquet"),
        ("export", run, "a.parquet", "a.npy", "--to", "npy"),
        ("report", run, "--out", "a.html"),
        ("bench", run, "--out", "bench"),
        ("train", "clip", run, "--out", "model"),
    ):
        done = tamis(*arguments)
        assert (done.code, done.out) == (2, ""), done.err
        assert said in done.err
        assert "--partial" in done.err
    assert not (tmp_path / "a.parquet").exists()


def test_the_command_that_the_message_names_completes_the_run(run: Path, tamis: Tamis) -> None:
    with pytest.raises(RunError) as error:
        Run(run).check_whole()
    command = str(error.value).partition("To complete it: tamis ")[2].partition(". To go on")[0]
    assert tamis(*shlex.split(command)).code == 0
    assert len(Run(run).to_numpy("words")) == 42


def test_a_partial_choice_says_so_on_the_first_line_everywhere(run: Path, tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    first = "partial: 1 of the run's 6 shards are missing"
    done = tamis("select", run, "--recipe", "recipe.yaml", "--out", "a.parquet", "--partial")
    assert (done.code, done.out.splitlines()[0]) == (0, first)
    done = tamis("select", run, "--recipe", "recipe.yaml", "--out", "a.parquet", "--overwrite", "--partial", "--json")
    assert next(iter(json.loads(done.out).items())) == ("partial", {"missing": 1, "of": 6, "shards": ["00003"]})
    assert first in tamis("export", run, "a.parquet", "a.npy", "--to", "npy", "--partial").err
    assert np.load(tmp_path / "a.npy").shape == (11,)  # 0.3 of 35
    assert tamis("report", run, "a.parquet", "--out", "a.html", "--partial").code == 0
    assert "Partial: 1 of the run's 6 shards are missing" in html.unescape((tmp_path / "a.html").read_text())
    facts = json.loads((tmp_path / "a.json").read_text())
    assert list(facts)[:3] == ["kind", "format", "partial"]
    assert facts["partial"]["missing"] == 1


def test_a_partial_choice_is_remembered_when_the_run_is_whole_again(run: Path, tmp_path: Path) -> None:
    tamis.select(run, RECIPE, partial=True).save(tmp_path / "a.parquet")
    tamis.score(tmp_path / "pool", run=run, signals=["caption_length"], quiet=True)
    assert Subset.load(tmp_path / "a.parquet", tamis.open_run(run)).partial["shards"] == ["00003"]
    assert tamis.select(run, RECIPE).partial == {}


def test_the_reason_is_told_where_a_shard_cannot_be_read(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=3)
    (pool / "00001.tar").write_bytes(b"no tar at all")
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    with pytest.raises(RunError, match=r"lacks 1 of its 3 shards: 00001 \(.*00001\.tar.*\)\. To complete"):
        tamis.select(run, RECIPE)
    assert len(tamis.select(run, RECIPE, partial=True)) == 4
    recipe = {**RECIPE, "pool": str(pool), "run": str(tmp_path / "run"), "signals": ["caption_length"]}
    with pytest.raises(RunError, match="lacks 1 of its 3 shards"):
        tamis.run_recipe(recipe, quiet=True)
    assert tamis.run_recipe(recipe, partial=True, quiet=True).subset is not None


def test_all_index_parts_gone_is_no_empty_run(run: Path) -> None:
    for path in (run / "index").iterdir():
        path.unlink()
    with pytest.raises(RunError, match=r"lacks 6 of its 6 shards: 00000 \(not read yet\), .* and 3 more"):
        tamis.select(run, RECIPE)
    with pytest.raises(RunError, match="lacks 6 of its 6 shards"):
        next(tamis.samples_of(Run(run), fields=["key"]))


def test_an_index_part_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    tamis.score(tmp_path / "pool", run=run, signals=["caption_length"], quiet=True)
    (run / "index" / "00009.parquet").write_bytes((run / "index" / "00000.parquet").read_bytes())
    with pytest.raises(RunError, match=r"index of 1 shards that it does not list \(00009\)"):
        tamis.select(run, RECIPE)
    assert tamis.check(run, delete=True).exit_code == 0
    assert len(tamis.open_run(run)) == 42


def test_a_shard_never_read_whose_file_was_deleted_is_listed_no_more(run: Path, tmp_path: Path) -> None:
    (tmp_path / "pool" / "00003.tar").unlink()
    done = tamis.score(tmp_path / "pool", run=run, signals=["caption_length"], quiet=True)
    assert (done.missing, len(done.to_numpy("words"))) == ((), 35)


def test_a_list_of_shards_that_is_missing_or_anothers_is_an_error(run: Path, tmp_path: Path) -> None:
    other = tamis.score(tmp_path / "pool" / "00000.tar", run=tmp_path / "other", signals=[], quiet=True)
    (run / "shards.parquet").write_bytes((other.path / "shards.parquet").read_bytes())
    with pytest.raises(RunError, match=r"shards\.parquet is not the list of shards that run\.json was written with"):
        tamis.open_run(run)
    tamis.score(tmp_path / "pool", run=run, signals=["caption_length"], quiet=True)
    assert len(tamis.open_run(run)) == 42
    (run / "shards.parquet").unlink()
    with pytest.raises(RunError, match=r"shards\.parquet, the list of the run's shards, is missing"):
        tamis.open_run(run)
