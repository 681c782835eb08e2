"""A user's errors: one line on standard error, exit code 2, nothing half-made."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Tamis, everything
from factories import write_pool, write_run

import tamis as package


def prepare(folder: Path) -> None:
    """Files for the errors below, beside a scored run."""
    write_run(folder / "other", {"a": [1.0, 2.0]}, shards=1)
    package.select(folder / "other", "no-filter").save(folder / "others.parquet")
    package.select(folder / "run", "no-filter").save(folder / "all.parquet")
    pq.write_table(pa.table({"a": [1]}), folder / "plain.parquet")
    (folder / "text.txt").write_text("hello")
    (folder / "latin.yaml").write_bytes(b"about: caf\xe9\nselect: []\n")
    (folder / "bad.yaml").write_text("select:\n- top_fractoin: {score: words, fraction: 0.1}\n")
    (folder / "lost.yaml").write_text("signals: [caption_length]\nselect: []\n")
    (folder / "homeless.yaml").write_text("pool: pool\nsignals: [caption_length]\n")
    (folder / "empty").mkdir()
    (folder / "newer").mkdir()
    (folder / "newer" / "run.json").write_text('{"format": 99}')
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")


ERRORS: list[tuple[str, str]] = [
    ("select nowhere -r basic -o x", "nowhere is not a run folder: it does not exist"),
    ("select empty -r basic -o x", "empty is not a run folder: it holds no run.json"),
    ("select newer -r basic -o x", "newer has the format 99, and this version of tamis reads 1"),
    ("select damaged -r basic -o x", "damaged"),
    ("select text.txt -r basic -o x", "text.txt is not a run folder"),
    ("select run -r basik -o x", "unknown recipe 'basik' (did you mean 'basic'?)"),
    ("select run -r missing.yaml -o x", "there is no recipe file 'missing.yaml'"),
    ("select run -r latin.yaml -o x", "the recipe 'latin.yaml' cannot be read"),
    ("select run -r bad.yaml -o x", "unknown step 'top_fractoin' (did you mean 'top_fraction'?)"),
    ("select run -r empty -o x", "unknown recipe 'empty'"),
    ("select run -r all.parquet -o x", "the recipe 'all.parquet'"),
    ("select run -r clip-30 -o x", "unknown score column 'clip'"),
    ("select run -r random -o x --set select.random_fraction.fraction=30", "got 30: for 30 % write 0.3"),
    ("select run -r random -o x --set nonsense", "--set takes name=value, got 'nonsense'"),
    ("select run -r random -o empty", "empty"),
    ("select run -r random -o text.txt/x", "cannot write text.txt/x"),
    ("export run missing.parquet x --to npy", "there is no subset at missing.parquet"),
    ("export run plain.parquet x --to npy", "plain.parquet is not a subset file of tamis"),
    ("export run text.txt x --to npy", "text.txt is not a subset file of tamis"),
    ("export run empty x --to npy", "empty"),
    ("export run others.parquet x --to npy", "others.parquet was chosen from"),
    ("export other all.parquet x --to npy", "all.parquet was chosen from"),
    ("export run all.parquet x --to nyp", "unknown export format 'nyp' (did you mean 'npy'?)"),
    ("export run all.parquet x --to webdataset --set shard_siez=3", "unknown setting 'shard_siez'"),
    ("export run all.parquet x --to webdataset --set shard_size=0", "shard_size must be at least 1, got 0"),
    ("export run all.parquet x --to webdataset --set shard_size=[", "the value is not YAML"),
    ("export run all.parquet x --to webdataset --set shard_size", "--set takes name=value"),
    ("export run all.parquet empty --to npy", "empty"),
    ("export run all.parquet pool --to webdataset", "pool holds no webdataset export but other files (00000.tar, ...)"),
    ("report nowhere", "nowhere is not a run folder"),
    ("report run missing.parquet", "there is no subset at missing.parquet"),
    ("report run others.parquet", "others.parquet was chosen from"),
    ("report run --out empty", "empty"),
    ("status nowhere", "nowhere is not a run folder"),
    ("status nowhere --watch", "nowhere is not a run folder"),
    ("score nowhere --run new --signals caption_length", "nowhere': nothing is there"),
    ("score empty --run new --signals caption_length", "empty': the folder holds no *.tar"),
    ("score text.txt --run new --signals caption_length", "text.txt"),
    ("score pool/{00002..00007}.tar --run new --signals caption_length", "pool/00003.tar'; fetch them"),
    (
        "score pool --run new --signals captoin_length",
        "unknown signal 'captoin_length' (did you mean 'caption_length'?)",
    ),
    ("score pool --run new --signals clip", "the setting 'model' is missing"),
    ("score pool --run new --recipe basik", "unknown recipe 'basik'"),
    ("score pool --run new", "say what to score: --signals caption_length,language or --recipe NAME"),
    ("score pool --run new --signals caption_length --format tar", "format: expected 'auto'"),
    ("score pool --run new --signals caption_length --keep embedings", "unknown thing to keep 'embedings'"),
    (
        "score pool --run new --signals caption_length --precision fp8",
        "unknown precision 'fp8'; known: float32, bf16, int8",
    ),
    ("train clip pool --out new --precision int8", "int8 is for scoring: rounded weights cannot be trained"),
    ("score pool --run new --signals caption_length --batch-size 0", "batch size must be at least 1"),
    ("score pool --run text.txt --signals caption_length", "the run folder text.txt cannot be written to"),
    ("score pool --run text.txt/new --signals caption_length", "cannot write text.txt/new"),
    ("score pool --run run --signals caption_length --caption json:long", "made with the pool setting caption = None"),
    ("score pool --run new --recipe clip-30 --set signals.clip.model=no/such-model", "no/such-model"),
    ("score pool --run new --recipe clip-30 --set signals.clip.model=nosuch", "unknown model 'nosuch'"),
    ("run lost.yaml", "the recipe 'lost' names no pool: add 'pool: PATH'"),
    ("run homeless.yaml", "the recipe 'homeless' names no run folder: add 'run: runs/NAME'"),
    ("run missing.yaml", "there is no recipe file 'missing.yaml'"),
    ("run bad.yaml", "unknown step 'top_fractoin'"),
    ("check bad.yaml", "unknown step 'top_fractoin'"),
    ("check basic --run nowhere", "nowhere is not a run folder"),
    ("list signal", "unknown list 'signal' (did you mean 'signals'?); known: exports, models, recipes, signals, steps"),
    ("lab make-pool new --mix lion", "unknown mix 'lion' (did you mean 'laion'?)"),
    ("slect run", "slect"),
    ("select run", "Missing option"),
    ("select run -r basic -o x --nonsense", "nonsense"),
    ("score pool --run new --signals caption_length --workers 0", "workers"),
]


@pytest.mark.parametrize(("command", "message"), ERRORS, ids=[command for command, _ in ERRORS])
def test_a_users_error_is_one_line_on_stderr_and_exit_code_two(
    tamis: Tamis, scored: Path, tmp_path: Path, command: str, message: str
) -> None:
    prepare(tmp_path)
    before = everything(tmp_path)
    done = tamis(*command.split())  # an exception that gets out is the traceback that a user would see
    assert message in re.sub(r"[│\s]+", " ", done.err)
    assert done.code == 2
    assert done.out == "" or command.startswith("status nowhere --watch")
    after = everything(tmp_path)
    assert {name: after.get(name) for name in before if name != "run/lock"} == {
        name: data for name, data in before.items() if name != "run/lock"
    }
    assert set(after) - set(before) <= {"new/lock"}


def test_errors_leave_no_half_made_run(tamis: Tamis, scored: Path) -> None:
    for signals in ("captoin_length", "clip"):
        tamis("score", "pool", "--run", "new", "--signals", signals)
        assert not Path("new").exists()
    tamis("score", "nowhere", "--run", "new", "--signals", "caption_length")
    assert not Path("new").exists()


def test_a_run_in_use_is_refused(tamis: Tamis, scored: Path) -> None:
    from tamis.store.claims import locked

    with locked(scored):
        done = tamis("score", "pool", "--run", "run", "--signals", "caption_length")
    assert done.code == 2
    assert f"in use by process {os.getpid()}" in done.err


@pytest.mark.parametrize(("device", "says"), [("cup", "did you mean 'cpu'?"), ("cuda:7", "torch sees no such GPU")])
def test_a_device_that_is_not_here_is_one_line(tamis: Tamis, tmp_path: Path, device: str, says: str) -> None:
    write_pool(tmp_path / "pool", shards=1)
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "--device", device)
    assert done.code == 2
    assert says in done.err


def test_a_missing_model_leaves_no_run_folder_behind(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    done = tamis("score", "pool", "--run", "run", "--signals", "clip", "--set", "signals.clip.model=owner/absent")
    assert done.code == 2
    assert "hf download owner/absent" in done.err
    assert not (tmp_path / "run").exists()


def test_control_characters_in_file_names_reach_no_terminal(tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "a\x1b[31mred.tar").write_bytes(b"no tar")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    assert done.code == 1
    assert "\x1b" not in done.err
    assert "\\x1b[31mred" in done.err
