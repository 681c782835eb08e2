"""The names that users may rely on: a name that comes or goes is a decision, not an accident."""

import inspect
import pkgutil
import re
from importlib.metadata import version

import pytest

import tamis

CLASSES = ["Pool", "PoolSpec", "Run", "Subset"]
VERBS = [
    "bench",
    "check",
    "choose",
    "cluster",
    "derive",
    "explore",
    "export",
    "map_embeddings",
    "look",
    "overlap",
    "plan",
    "report",
]
VERBS += ["run_recipe", "samples_of", "score", "select", "show"]
OPENERS = ["open_pool", "open_run"]


def test_the_public_names_are_these() -> None:
    assert sorted(tamis.__all__) == dir(tamis) == sorted([*CLASSES, *VERBS, *OPENERS, "__version__"])
    assert version("tamis") == tamis.__version__
    with pytest.raises(AttributeError, match="module 'tamis' has no attribute 'filter'"):
        _ = tamis.filter


@pytest.mark.parametrize("name", [*CLASSES, *VERBS, *OPENERS])
def test_every_public_name_is_described_with_its_arguments(name: str) -> None:
    found = getattr(tamis, name)
    text = inspect.getdoc(found) or ""
    assert found.__module__.startswith("tamis.")
    assert len(text) > 30
    # A module of that name would replace the function once it is imported.
    assert name not in {module.name for module in pkgutil.iter_modules(tamis.__path__)}
    if name in VERBS:
        parameters = inspect.signature(found).parameters
        for argument in parameters:
            assert re.search(rf"^ *(\w+, )*{argument}(, \w+)*:", text, re.MULTILINE), argument
        assert re.search("^(Returns|Yields|Raises):", text, re.MULTILINE)
        kinds = [parameter.kind for parameter in parameters.values()]
        assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) <= 3
