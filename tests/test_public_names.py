"""The names that users may rely on: a name that comes or goes is a decision, not an accident."""

from __future__ import annotations

import inspect
import pkgutil
import re

import pytest

import tamis

PUBLIC = [
    "Pool",
    "PoolSpec",
    "Run",
    "Subset",
    "__version__",
    "bench",
    "check",
    "cluster",
    "export",
    "look",
    "open_pool",
    "open_run",
    "plan",
    "report",
    "run_recipe",
    "samples_of",
    "score",
    "select",
]


def test_the_public_names_are_these() -> None:
    assert sorted(tamis.__all__) == PUBLIC
    assert dir(tamis) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(tamis, name)
    if name == "__version__":
        assert re.fullmatch(r"\d+\.\d+\.\d+.*", found)
        return
    assert found.__module__.startswith("tamis.")
    assert len(inspect.getdoc(found) or "") > 30


def test_no_module_hides_behind_a_public_function() -> None:
    """`tamis.select` is the function; a module of that name would replace it once it is imported."""
    modules = {module.name for module in pkgutil.iter_modules(tamis.__path__)}
    assert modules & set(PUBLIC) == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tamis' has no attribute 'filter'"):
        _ = tamis.filter


@pytest.mark.parametrize("name", ["plan", "score", "select", "cluster", "bench", "export", "report", "run_recipe"])
def test_the_verbs_document_every_argument(name: str) -> None:
    verb = getattr(tamis, name)
    text = inspect.getdoc(verb) or ""
    for argument in inspect.signature(verb).parameters:
        assert re.search(rf"^ *(\w+, )*{argument}(, \w+)*:", text, re.MULTILINE), argument
    assert "Returns:" in text


@pytest.mark.parametrize("name", ["plan", "score", "report", "select", "cluster", "bench", "run_recipe"])
def test_settings_are_keyword_only(name: str) -> None:
    kinds = [p.kind for p in inspect.signature(getattr(tamis, name)).parameters.values()]
    assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) <= 2


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert version("tamis") == tamis.__version__
