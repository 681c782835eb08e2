"""Commands that are killed and repeated until they are done make the same files as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from factories import parts_of, write_pool
from processes import command, die_after, die_at_file

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
        "export": [{name: {"out": out, "croissant": True}} for name, out in EXPORTS.items()],
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

    for file in range(first, 1000, step):
        clear(folder)
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


#: Commands, and the run that each needs. All can be repeated as they are.
COMMANDS = {
    "score": ("score", "pool", "--run", "run", "--signals", "caption_length,image_hash,image_quality", "-q"),
    "run": ("run", "recipe.yaml", "-q"),
    "derive": ("derive", "run", "--signals", "clip_loss"),
    "export": ("export", "run", "half", "shards", "--to", "webdataset", "--overwrite"),
    "map": ("map", "run"),
}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool, its run with embeddings and a subset, which is kept as `base`."""
    folder = tmp_path_factory.mktemp("scored")
    a_recipe(folder)
    signals = [{"clip": {"model": "lab/clip"}}, "caption_length"]
    run = tamis.score(folder / "pool", run=folder / "run", signals=signals, keep=["embeddings"], quiet=True)
    half = tamis.select(run, {"select": [{"top_fraction": {"score": "clip", "fraction": 0.5}}]})
    half.save(folder / "run" / "subsets" / "half.parquet")
    (folder / "run").rename(folder / "base")
    return folder


@pytest.fixture(scope="module")
def undisturbed(scored: Path) -> dict[str, tuple[dict[str, object], float]]:
    """What each command makes, and the seconds that it takes."""
    found = {}
    for name in COMMANDS:
        clear(scored, name)
        start = time.monotonic()
        repeat(name, scored)
        found[name] = results(scored), time.monotonic() - start
    return found


def clear(folder: Path, name: str = "run") -> None:
    """Removes what commands have made; those that need a run get one."""
    for path in folder.iterdir():
        if path.name.startswith(("run", "kept", "shards", "page", ".")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if name not in ("score", "run"):
        shutil.copytree(folder / "base", folder / "run")


def repeat(name: str, folder: Path, before: Callable[[], None] | None = None) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = command(*COMMANDS[name], before=before)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(number, marks=[pytest.mark.attack, pytest.mark.timeout(3600)] if number else ())
        for number in range(int(os.environ.get("TAMIS_KILLS", "40")))
    ],
)
def test_a_command_killed_at_any_moment_and_repeated_makes_the_same_files(
    name: str, kill: int, scored: Path, undisturbed: dict[str, tuple[dict[str, object], float]]
) -> None:
    """Up to three times."""
    whole, seconds = undisturbed[name]
    draw = random.Random(f"{name} {kill}")
    clear(scored, name)
    for _ in range(1 + kill % 3):
        repeat(name, scored, partial(die_after, draw.uniform(0, seconds)))
    assert repeat(name, scored) == 0
    assert results(scored) == whole
    assert tamis.check(scored / "run").exit_code == 0
