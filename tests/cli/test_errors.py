"""A user's errors that no transcript shows: in words of libraries or of this machine, or of runs in use."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from command_line import Tamis, everything

from tamis.store.claims import locked


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("select run", "--recipe missing"),
        ("score pool --run new --signals caption_length --workers 0", "workers"),
        ("score pool --run new --signals caption_length --device cuda:7", "cuda:7"),
        ("score pool --run text.txt/new --signals caption_length", "text.txt/new"),
        ("score pool --run new --signals clip --set signals.clip.model=owner/absent", "owner/absent download"),
        ("select run -r latin.yaml -o x", "'latin.yaml' UTF-8"),
        ("select run -r random -o x --set select.random_fraction.fraction=[", "--set YAML"),
        ("export run text.txt x --to npy", "text.txt subset"),
        ("status nowhere --watch", "nowhere"),
    ],
)
def test_a_users_error_names_what_is_wrong_and_changes_nothing(
    tamis: Tamis, scored: Path, tmp_path: Path, command: str, names: str
) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "latin.yaml").write_bytes(b"about: caf\xe9\nselect: []\n")
    before = everything(tmp_path)
    done = tamis(*command.split())  # an exception that gets out is the traceback that a user would see
    message = re.sub(r"[│\s]+", " ", done.err)
    assert (done.code, [word for word in names.split() if word not in message]) == (2, []), message
    assert everything(tmp_path) == before


def test_a_run_in_use_is_refused(tamis: Tamis, scored: Path) -> None:
    with locked(scored):
        done = tamis("score", "pool", "--run", "run", "--signals", "caption_length")
    assert done.code == 2
    assert f"in use by process {os.getpid()}" in done.err


def test_control_characters_in_file_names_reach_no_terminal(tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "a\x1b[31mred.tar").write_bytes(b"no tar")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    assert done.code == 1
    assert "\x1b" not in done.err
    assert "\\x1b[31mred" in done.err
