"""Lists of files by hand name files that are there: one that was renamed would be left out without a word."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_files_that_take_longest_are_there_and_named_once(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert conftest is not None
    named = conftest.LONG
    assert [name for name in named if not (TESTS / name).is_file()] == []
    assert len(set(named)) == len(named)


def test_benchmarks_that_make_bench_runs_are_there() -> None:
    spec = importlib.util.spec_from_file_location("all", TESTS.parent / "benchmarks" / "all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [name for name in module.NAMES if not (TESTS.parent / "benchmarks" / f"{name}.py").is_file()] == []
    assert "feed" in module.NAMES
