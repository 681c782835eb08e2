"""docs/as-published.md: the defaults that it names are those of the code and of the shipped recipes."""

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tamis.recipes import recipe

PAGE = Path(__file__).parents[1] / "docs" / "as-published.md"
HEADER = ["constant", "published", "where", "default", "code", "deviates"]


@dataclass(frozen=True)
class Row:
    """One constant of a paper, as the page has it."""

    paper: str
    constant: str
    published: str
    where: str
    default: str
    code: str
    deviates: str


def rows() -> list[Row]:
    found, paper, inside = [], "", False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            paper = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells == HEADER:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            found.append(Row(paper, *cells))
    return found


def value_of(code: str) -> Any:
    """Returns what a name of the page stands for: an attribute, a parameter's default, or a line of a recipe."""
    if code.startswith("recipe "):
        name, _, path = code.removeprefix("recipe ").partition(": ")
        found: Any = recipe.load(name).text
        for step in path.split("."):
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found
    module, _, path = code.partition(":")
    found = importlib.import_module(module)
    called = re.fullmatch(r"(\w+)\((\w+)\)", path)
    if called:
        return inspect.signature(getattr(found, called[1])).parameters[called[2]].default
    for name in path.split("."):
        found = getattr(found, name)
    return list(found) if isinstance(found, tuple) else found


def quoted(cell: str) -> list[Any]:
    """Returns the value of a cell that is nothing but one in backquotes; none for any other cell."""
    match = re.fullmatch(r"`(.*)`", cell)
    return [yaml.safe_load(match[1])] if match else []


def test_every_paper_has_its_constants() -> None:
    papers = [row.paper for row in rows()]
    assert {paper for paper in papers if papers.count(paper) >= 8} == {"SIEVE", "T-MARS", "ICC", "ClipCov"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.paper}: {row.constant}")
def test_the_default_of_the_table_is_the_codes(row: Row) -> None:
    assert row.deviates.partition(":")[0] in ("no", "yes", "open")
    if row.deviates.startswith("yes"):
        assert row.deviates.removeprefix("yes: "), "what deviates says why"
    if row.code == "-":
        assert row.default == "-"
        return
    (default,) = quoted(row.default)
    (code,) = re.findall(r"^`(.*)`$", row.code)
    assert default == value_of(code)
    for published in quoted(row.published):
        try:
            same = float(published) == float(default)
        except (TypeError, ValueError):
            same = str(published) in str(default)
        assert same == (not row.deviates.startswith("yes"))
