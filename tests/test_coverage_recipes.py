"""The recipes of benchmarks/coverage: one for each way of taking ClipCov's objective apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis import recipe
from tamis.math.clipcov import PARTS, TERMS

FILES = sorted((Path(__file__).parent.parent / "benchmarks" / "coverage").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_keeps_its_budget_and_says_by_its_name_which_terms_count(path: Path) -> None:
    found = recipe.load(path)
    assert found.name == path.stem
    (step,) = found.steps
    assert (step.fraction, step.of, step.double_greedy) == (0.1, "pool", False)
    assert step.alpha == (0.5 if "label" in step.terms else None)
    assert (step.diversity == "share") == path.stem.endswith("share")
    apart = {*TERMS, *PARTS} - {"cov"}
    _, way, rest = path.stem.split("-", 2) if path.stem.count("-") > 1 else (*path.stem.split("-"), "")
    named = {rest.replace("-", "_")} if rest != "cov" else set(PARTS)
    found_terms = {part for term in step.terms for part in (PARTS if term == "cov" else (term,))}
    if way == "only":
        assert found_terms == named
    if way == "without":
        assert found_terms == apart - named
    if way == "all":
        assert found_terms == apart


def test_there_is_one_for_each_term() -> None:
    names = {path.stem for path in FILES}
    for term in ("cov", "class", "self", "label", "class-reg", "inter"):
        assert {f"clipcov-only-{term}", f"clipcov-without-{term}"} <= names
