"""What a command opens: its pool once, and few files of the run again and again."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import write_pool

import tamis
from tamis.commands.explore import explore
from tamis.runs import Run, manifest

RECIPE = {
    "name": "small",
    "signals": ["caption_length", "image_size"],
    "select": [{"at_least": {"score": "words", "value": 1, "missing": "drop"}}, {"random_fraction": {"fraction": 0.5}}],
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often pools were opened, manifests read and runs opened."""
    seen: Counter[str] = Counter()

    def count(plain: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            seen[plain.__name__] += 1
            return plain(*given, **named)

        return counted

    for plain in (tamis.open_pool, manifest.read_manifest, manifest.shards_of):
        for module in [module for name, module in sys.modules.items() if name.startswith("tamis")]:
            if vars(module).get(plain.__name__) is plain:
                monkeypatch.setattr(module, plain.__name__, count(plain))
    monkeypatch.setattr(Run, "__init__", count(Run.__init__))
    return seen


def check(seen: Counter[str], command: str, more: int = 0) -> None:
    most = {"open_pool": 1, "shards_of": 1, "read_manifest": 4, "__init__": 2 + more}
    assert {name: count for name, count in seen.items() if count > most[name]} == {}, command
    seen.clear()


def test_a_command_opens_its_pool_once(tmp_path: Path, counts: Counter[str]) -> None:
    pool, run = str(write_pool(tmp_path / "pool")), str(tmp_path / "run")
    tamis.score(pool, run=run, signals=["caption_length"], quiet=True)
    check(counts, "score")
    tamis.score(pool, run=run, recipe=RECIPE, quiet=True)
    check(counts, "score again")
    subset = tamis.select(run, RECIPE)
    check(counts, "select")
    tamis.export(subset, "webdataset", tmp_path / "shards")
    check(counts, "export")
    tamis.report(run, [subset], out=tmp_path / "page.html")
    check(counts, "report")
    explore(run, [subset]).close()
    check(counts, "explore")
    tamis.look(pool, out=tmp_path / "look.html", quiet=True)
    check(counts, "look", 1)  # a run that keeps its columns
    for lazy in (False, True):
        exports = [{"webdataset": str(tmp_path / f"{lazy}")}]
        folder = str(tmp_path / f"run-{lazy}")
        for _ in range(2):
            tamis.run_recipe({**RECIPE, "pool": pool, "run": folder, "export": exports}, lazy=lazy, quiet=True)
            check(counts, f"run, lazy={lazy}", lazy)
