"""A run that lacks shards is refused by whatever reads its rows; a subset chosen with --partial says so ever after."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_line import Tamis
from damage import delete
from factories import write_pool

import tamis
from tamis.core.errors import RunError
from tamis.runs import Run
from tamis.runs.subset import Subset

RECIPE = {"name": "most", "select": [{"top_fraction": {"score": "words", "fraction": 0.3}}]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six shards of seven pairs, one of them without index."""
    pool = write_pool(tmp_path / "pool", shards=6)
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    (tmp_path / "run" / "index" / "00003.parquet").unlink()
    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    return tmp_path / "run"


def test_every_reader_refuses_and_names_shard_and_command(run: Path, tamis: Tamis, tmp_path: Path) -> None:
    for arguments in (
        ("select", run, "--recipe", "recipe.yaml", "--out", "a.parquet"),
        ("export", run, "a.parquet", "a.npy", "--to", "npy"),
        ("report", run, "--out", "a.html"),
        ("bench", run, "--out", "bench"),
        ("train", "clip", run, "--out", "model"),
    ):
        done = tamis(*arguments)
        assert (done.code, done.out) == (2, ""), done.err
        assert all(text in done.err for text in ("1 of its 6 shards", "00003", "tamis score ", "--partial")), done.err
    assert not (tmp_path / "a.parquet").exists()


def test_the_command_that_the_message_names_completes_the_run(run: Path, tamis: Tamis) -> None:
    with pytest.raises(RunError) as error:
        Run(run).check_complete()
    command = Run(run, partial=True).completing_command()
    assert command in str(error.value)
    tamis.ok(*shlex.split(command)[1:])
    assert len(Run(run).to_numpy("words")) == 42


def test_a_partial_choice_says_so_everywhere_and_also_when_the_run_is_whole_again(
    run: Path, tamis: Tamis, tmp_path: Path
) -> None:
    facts, missing = {"missing": 1, "of": 6, "shards": ["00003"]}, "1 of the run's 6 shards"
    select = ("select", run, "--recipe", "recipe.yaml", "--out", "a.parquet", "--partial", "--overwrite")
    done = tamis(*select)
    assert (done.code, missing in done.out.splitlines()[0]) == (0, True)
    assert next(iter(json.loads(tamis(*select, "--json").out).items())) == ("partial", facts)
    assert missing in tamis("export", run, "a.parquet", "a.npy", "--to", "npy", "--partial").err
    assert np.load(tmp_path / "a.npy").shape == (11,)  # 0.3 of 35
    tamis.ok("report", run, "a.parquet", "--out", "a.html", "--partial")
    assert "6 shards are missing" in (tmp_path / "a.html").read_text()
    assert json.loads((tmp_path / "a.json").read_text())["partial"]["missing"] == 1
    tamis.ok("score", tmp_path / "pool", "--run", run, "--signals", "caption_length", "-q")
    whole = Run(run)
    assert Subset.load(tmp_path / "a.parquet", whole).partial == facts


def test_the_reason_is_given_where_a_shard_cannot_be_read(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=3)
    (pool / "00001.tar").write_bytes(b"no tar at all")
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    with pytest.raises(RunError, match=r"1 of its 3 shards.*00001 \(.*00001\.tar"):
        tamis.select(run, RECIPE)
    assert len(tamis.select(run, RECIPE, partial=True)) == 4
    recipe = {**RECIPE, "pool": str(pool), "run": str(tmp_path / "run"), "signals": ["caption_length"]}
    with pytest.raises(RunError, match="1 of its 3 shards"):
        tamis.run_recipe(recipe, quiet=True)
    assert tamis.run_recipe(recipe, partial=True, quiet=True).subset is not None


def test_an_index_part_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    tamis.score(tmp_path / "pool", run=run, signals=["caption_length"], quiet=True)
    (run / "index" / "00009.parquet").write_bytes((run / "index" / "00000.parquet").read_bytes())
    with pytest.raises(RunError, match="00009"):
        tamis.select(run, RECIPE)
    delete(tamis.check(run))
    assert tamis.check(run).exit_code == 0
    assert len(tamis.open_run(run)) == 42


def test_a_shard_never_read_whose_file_was_deleted_is_listed_no_more(run: Path, tmp_path: Path) -> None:
    (tmp_path / "pool" / "00003.tar").unlink()
    done = tamis.score(tmp_path / "pool", run=run, signals=["caption_length"], quiet=True)
    assert (done.missing_shards, len(done.to_numpy("words"))) == ((), 35)


def test_a_list_of_shards_that_is_missing_or_another_run_s_is_an_error(run: Path, tmp_path: Path) -> None:
    other = tamis.score(tmp_path / "pool" / "00000.tar", run=tmp_path / "other", signals=[], quiet=True)
    (run / "shards.parquet").write_bytes((other.path / "shards.parquet").read_bytes())
    with pytest.raises(RunError, match=r"shards\.parquet"):
        tamis.open_run(run)
    tamis.score(tmp_path / "pool", run=run, signals=["caption_length"], quiet=True)
    assert len(tamis.open_run(run)) == 42
    (run / "shards.parquet").unlink()
    with pytest.raises(RunError, match=r"shards\.parquet"):
        tamis.open_run(run)
