"""Commands that are killed and repeated until they are done make the same files as if nothing had happened."""

from __future__ import annotations

import json
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import yaml
from factories import parts_of, write_pool
from processes import command, die_at_file

import tamis

EXPORTS = {"npy": "kept.npy", "keys": "kept.keys", "parquet": "kept.parquet", "webdataset": "shards"}


def a_recipe(folder: Path) -> Path:
    """A pool of two shards, and a recipe that scores, derives, chooses, exports and reports."""
    write_pool(folder / "pool", shards=2, rows=5)
    recipe = {
        "pool": "pool",
        "run": "run",
        "signals": ["caption_length", "image_hash"],
        "select": [{"top_fraction": {"score": "words", "fraction": 0.5}}],
        "export": [{name: out} for name, out in EXPORTS.items()],
        "report": "page.html",
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


def results(folder: Path) -> dict[str, object]:
    """What a command has made, but for times."""
    found: dict[str, object] = {f"run/{name}": data for name, data in parts_of(folder / "run").items()}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("kept", "shards")):
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            found |= {str(file.relative_to(folder)): file.read_bytes() for file in files if file.is_file()}
    for name in [name for name in found if name.endswith("croissant.json")]:
        facts = json.loads(found[name])  # type: ignore[arg-type]
        found[name] = {key: value for key, value in facts.items() if not key.startswith("date")}
    return found


def killed_at_each_file(first: int, step: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Kills `tamis run` before some of its files, each time from the start or from what the kill before left."""
    monkeypatch.chdir(folder)
    recipe = a_recipe(folder)
    assert command("run", recipe, "-q").returncode == 0
    whole = results(folder)

    def clear() -> None:
        for path in folder.iterdir():
            if path.name.startswith(("run", "kept", "shards", "page")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    for file in range(first, 1000, step):
        clear()
        killed = command("run", recipe, "-q", before=partial(die_at_file, file))
        if killed.returncode == 0:
            return file
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        twice = command("run", recipe, "-q", before=partial(die_at_file, 1))  # and soon after it has begun again
        assert twice.returncode in (-signal.SIGKILL, 0), twice.stderr
        done = command("run", recipe, "-q")
        assert done.returncode == 0, (file, done.stderr)
        assert results(folder) == whole, file
        assert tamis.check(folder / "run").exit_code == 0
        assert [path.name for path in folder.iterdir() if path.name.endswith(".tmp")] == []
    raise AssertionError("it has no end")


def test_a_recipe_killed_before_some_of_its_files_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at_each_file(16, 8, tmp_path, monkeypatch) > 20


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_a_recipe_killed_before_any_of_its_files_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at_each_file(0, 1, tmp_path, monkeypatch) > 20
