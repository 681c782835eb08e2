"""list and check: tables, JSON, and what a recipe would do."""

from __future__ import annotations

import json
import re

import pytest
from command_line import Tamis


@pytest.mark.parametrize("what", ["signals", "recipes", "steps", "exports"])
def test_lists_are_tables_or_json(tamis: Tamis, what: str) -> None:
    table, data = tamis("list", what), tamis("list", what, "--json")
    assert (table.code, table.err, data.code, data.err) == (0, "", 0, "")
    rows = json.loads(data.out)
    assert len(rows) >= 2
    assert all(isinstance(value, str) and value for row in rows for key, value in row.items() if key != "settings")
    for row in rows:
        assert str(next(iter(row.values()))) in table.out


def test_models_are_listed_by_kind_or_as_json(tamis: Tamis) -> None:
    table, data = tamis("list", "models"), tamis("list", "models", "--json")
    assert (table.code, table.err, data.code, data.err) == (0, "", 0, "")
    for row in json.loads(data.out):
        assert row["model"] in table.out
        assert row["size_mb"] is None or row["size_mb"] > 0
    assert re.search(r"^minilm +sentence encoder +92 +Apache-2.0 +no *$", table.out, re.MULTILINE)
    assert len(re.findall(r"^model +job +MB +licence", table.out, re.MULTILINE)) >= 3  # a table of each kind
