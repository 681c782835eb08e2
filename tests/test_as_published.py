"""docs/as-published.md: what it says of defaults is what a user gets, and its indexes name every table and figure."""

import importlib
import inspect
import itertools
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_reference import parameters

from tamis.cli import COMMANDS
from tamis.core.errors import RecipeError
from tamis.recipes import recipe
from tamis.recipes.names import shipped_name, shipped_names
from tamis.signals import Sba, TextMatch, Tmars, Vba
from tamis.train.scales import at_scale

PAGE = Path(__file__).parents[1] / "docs" / "as-published.md"
HEADER = ["constant", "published", "where", "default", "set by", "deviates"]
PAPERS = ("SIEVE", "T-MARS", "ICC", "ClipCov")


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
    """Returns what code names: a scale's setting, an option's or parameter's default, or an attribute."""
    if scale := re.fullmatch(r"tamis train clip --scale (\w+): (\w+)", code):
        return getattr(at_scale(scale[1]), scale[2])
    if code.startswith("tamis "):
        typed, _, option = code.removeprefix("tamis ").partition(" --")
        (shown,) = [one.default for one in parameters(typed) if f"--{option}" in one.names]
        return shown
    module, _, path = code.partition(":")
    found: Any = importlib.import_module(module)
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


def same(one: Any, other: Any) -> bool:
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one) == str(other)


def changes(name: str, setting: str) -> bool:
    """Whether `--set` changes what a shipped recipe scores or keeps."""
    asked, shipped = recipe.load(name, [setting]), recipe.load(name)
    return (asked.signals, asked.derived, asked.steps) != (shipped.signals, shipped.derived, shipped.steps)


def test_every_paper_has_its_constants() -> None:
    papers = [row.paper for row in rows()]
    assert {paper for paper in papers if papers.count(paper) >= 12} == set(PAPERS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.paper}: {row.constant}")
def test_the_default_of_the_table_is_what_a_user_gets(row: Row) -> None:
    assert row.deviates.partition(":")[0] in ("no", "yes", "open")
    if row.deviates.startswith("yes"):
        assert row.deviates.removeprefix("yes: "), "what deviates says why"
    if row.code == "-":
        assert row.default == "-"
        return
    (default,) = quoted(row.default)
    (code,) = re.findall(r"^`(.*)`$", row.code)
    if code.startswith("recipe "):
        name, _, path = code.removeprefix("recipe ").partition(": ")
        assert not changes(name, f"{path}={json.dumps(default)}")
    else:
        assert same(default, value_of(code))
    for published in quoted(row.published):
        agrees = same(published, default) or str(published) in str(default)
        assert agrees == (not row.deviates.startswith("yes"))


def test_a_setting_that_shipped_recipes_have_is_read_from_one() -> None:
    loaded = [recipe.load(name) for name in shipped_names()]
    used = {type(one).__name__ for each in loaded for _, one in each.entries}
    used |= {type(step).__name__ for each in loaded for step in each.steps}
    classes = {match[1] for row in rows() if (match := re.match(r"`tamis\.(?:signals|recipes)[\w.]*:(\w+)", row.code))}
    assert classes == {"Vba", "Sba"}
    assert not classes & used


def test_another_value_than_the_recipes_is_noticed() -> None:
    assert changes("sieve", "signals.sieve.sampling.top_p=0.8")
    assert changes("clipcov", "select.clipcov.double_greedy=false")
    assert not changes("sieve", "signals.sieve.sampling.top_p=0.9")


#: Of each paper: how many tables and figures it has.
NUMBERED = {"SIEVE": (9, 7), "T-MARS": (5, 13), "ICC": (6, 9), "ClipCov": (10, 3)}


def index(paper: str) -> list[list[str]]:
    """Returns the rows of a paper's index: where it is there, what it shows, what to type, and our row."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {paper}\n")[2].partition("\n## ")[0]
    lines = section.partition("| there |")[2].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def numbers(cells: list[str], kind: str) -> set[int]:
    """Returns the numbers of the tables, or figures, that cells name: "figures 3a, 5 to 7" are 3, 5, 6 and 7."""
    found: set[int] = set()
    for part in re.findall(rf"\b{kind}s? ((?:\d+[a-d]?(?: to |, )?)+)", " ; ".join(cells)):
        for first, last in re.findall(r"(\d+)[a-d]?(?: to (\d+))?", part):
            found |= {*range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_the_index_of_a_paper_has_each_table_and_figure(paper: str) -> None:
    there = [row[0] for row in index(paper)]
    tables, figures = NUMBERED[paper]
    assert numbers(there, "table") == {*range(1, tables + 1)}
    assert numbers(there, "figure") == {*range(1, figures + 1)}
    assert all(len(row) == 4 and row[3] for row in index(paper))


@pytest.mark.parametrize("paper", PAPERS)
def test_what_the_index_says_to_type_is_taken(paper: str) -> None:
    known_words = {*shipped_names(), *(column.name for cls in (Tmars, TextMatch, Vba, Sba) for column in cls.columns)}
    for code in (code for row in index(paper) for code in re.findall(r"`([^`]+)`", row[2])):
        words = shlex.split(code)
        if len(words) == 1 and "/" not in code and "." not in code:
            assert code in known_words or shipped_name(code), code
        if words[0] == "tamis":
            command = " ".join(words[1:3]) if " ".join(words[1:3]) in COMMANDS else words[1]
            known = {name for one in parameters(command) for name in one.names}
            assert {word for word in words if word.startswith("--")} <= known, code
            given = words[len(command.split()) + 1 :]
            if given and not given[0].startswith("--"):  # a whole command, not only an option of one
                needed = [one.names for one in parameters(command) if one.default == "required"]
                assert all(not names or {*names} & {*given} for names in needed), code
                assert len(list(itertools.takewhile(lambda word: word[0] != "-", given))) >= needed.count(()), code
            for name in words[words.index("--recipes") + 1].split(",") if "--recipes" in words else ():
                assert shipped_name(name), code
        for setting in (after for word, after in itertools.pairwise(words) if word == "--set"):
            in_recipe = setting.startswith(("signals.", "select."))
            assert not in_recipe or any(takes(name, setting) for name in shipped_names()), setting


def takes(name: str, setting: str) -> bool:
    """Whether a setting changes a shipped recipe that takes it."""
    try:
        return changes(name, setting)
    except RecipeError:
        return False


def test_links_of_the_page_lead_to_headings() -> None:
    for page, anchor in re.findall(r"\]\(([\w-]+\.md)#([^)]+)\)", PAGE.read_text(encoding="utf-8")):
        headings = re.findall(r"^#+ (.*)$", (PAGE.parent / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}, f"{page}#{anchor}"
