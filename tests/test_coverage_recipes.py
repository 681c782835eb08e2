"""The recipes of benchmarks/coverage: one for each way of taking ClipCov's objective apart."""

from __future__ import annotations

from pathlib import Path

from tamis import recipe
from tamis.math.clipcov import PARTS, TERMS

FOLDER = Path(__file__).parent.parent / "benchmarks" / "coverage"

EVERY = {*TERMS, *PARTS} - {"cov"}


def test_each_keeps_its_budget_and_its_name_says_which_terms_count() -> None:
    wanted = {
        "clipcov-all": EVERY,
        "clipcov-share": EVERY,
        "clipcov-cov-share": {*PARTS},
        "clipcov-class-share": {"class"},
    }
    for term in (*TERMS, *PARTS):
        parts = set(PARTS) if term == "cov" else {term}
        wanted |= {f"clipcov-{way}-{term.replace('_', '-')}": parts if way == "only" else EVERY - parts
                   for way in ("only", "without")}  # fmt: skip
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(wanted)
    for name, terms in wanted.items():
        found = recipe.load(FOLDER / f"{name}.yaml")
        (step,) = found.steps
        assert found.name == name
        assert {part for term in step.terms for part in (PARTS if term == "cov" else (term,))} == terms, name
        assert (step.fraction, step.of, step.double_greedy) == (0.1, "pool", False)
        assert step.alpha == (0.5 if "label" in step.terms else None)
        assert (step.diversity == "share") == name.endswith("share")
