"""Fixtures that run the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import Done, Tamis
from factories import write_pool

from tamis import cli


@pytest.fixture
def tamis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tamis:
    """Runs the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["tamis", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def scored(tamis: Tamis, tmp_path: Path) -> Path:
    """The folder `run`, scored from `pool`: three shards of seven pairs."""
    write_pool(tmp_path / "pool")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length,image_size", "--quiet")
    assert done.code == 0, done.err
    return tmp_path / "run"
