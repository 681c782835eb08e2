"""Each extra, installed alone, brings what its models import."""

import ast
import functools
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_captioners
import tiny_encoders
import tiny_towers
from packages import HIDING
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tamis

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


@functools.cache
def brought(extra: str) -> frozenset[str]:
    """The distributions that an extra alone installs, by what the installed ones say they need."""
    found: set[str] = set()
    todo = [Requirement(line) for line in (*PROJECT["dependencies"], *EXTRAS[extra])]
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if name == "tamis":
            todo += [Requirement(line) for inner in one.extras for line in EXTRAS[inner]]
            continue
        seen = {name, *(f"{name}[{part}]" for part in one.extras)}
        if seen <= found:
            continue
        found |= seen
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        needed = map(Requirement, lines)
        parts = [{"extra": part} for part in ("", *one.extras)]
        todo += [req for req in needed if req.marker is None or any(req.marker.evaluate(part) for part in parts)]
    return frozenset(found)


def asked() -> Iterator[tuple[str, str, str]]:
    """Where, package and extra of each `require` and `needs_extra` in the sources whose arguments are plain words."""
    for path in Path(tamis.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "require"):
                continue
            extra = next(one.value.value for one in call.keywords if isinstance(one.value, ast.Constant))
            for one in call.args:
                if isinstance(one, ast.Constant):
                    yield path.name, one.value, str(extra)


def test_what_a_message_says_to_install_brings_the_package() -> None:
    distributions = importlib.metadata.packages_distributions()
    missing = []
    for where, package, extra in asked():
        names = {canonicalize_name(name) for name in distributions.get(package.partition(".")[0], [])}
        if names and not names & brought(extra):
            missing.append(f"{where}: {package} is not in tamis[{extra}]")
    assert not missing
    assert {"ftfy", "sentencepiece", "protobuf", "torch"} <= brought("clip")
    assert "diffusers" not in brought("clip")


#: Hides every distribution that an extra does not bring, then loads folders: argv has the extra's, "THEN", and folders.
ALONE = """
import importlib.metadata, sys

split = sys.argv.index("THEN")
kept = set(sys.argv[1:split])
homes = importlib.metadata.packages_distributions()
own = {"tamis", "model_kinds", "_virtualenv"}


def hidden(top):
    names = {one.lower().replace("_", "-").replace(".", "-") for one in homes.get(top, [])}
    return bool(names) and not names & kept and top not in own


HIDING
import model_kinds

for line in sys.argv[split + 1 :]:
    load, folder = line.split("=", 1)
    try:
        getattr(model_kinds, load)(folder)
        print("loaded", folder)
    except Exception as error:
        print("FAILED", folder, type(error).__name__, error)
""".replace("HIDING", HIDING)


def alone(extra: str, folders: list[str]) -> list[str]:
    """Loads folders, each "function of model_kinds=folder", as if only an extra were installed."""
    words = [sys.executable, "-W", "ignore", "-c", ALONE, *sorted(brought(extra)), "THEN", *folders]
    found = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent / "helpers", check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_siglips_own_tokenizer_loads_with_the_extra_clip_alone(tmp_path: Path) -> None:
    folder = tiny_towers.siglip(tmp_path / "siglip")
    assert alone("clip", [f"load_clip={folder}"]) == [f"loaded {folder}"]
    (failed,) = alone("sentence", [f"load_clip={folder}"])
    assert failed.startswith(
        f"FAILED {folder} DependencyError the tokenizer in {folder} needs a package that is missing"
    )
    assert "run: pip install" in failed


@pytest.mark.attack
def test_every_type_in_the_docs_loads_with_the_extra_clip_alone(tmp_path: Path) -> None:
    lines = []
    for number, (name, make) in enumerate({**tiny_towers.TOWERS, **tiny_towers.MATCHERS}.items()):
        load = "load_matcher" if name in tiny_towers.MATCHERS else "load_clip"
        lines.append(f"{load}={make(tmp_path / f'tower-{number}' / 'tiny')}")
    for kind in tiny_captioners.CAPTIONERS:
        load = "load_captioner" if kind == "blip-2" else "load_chat"
        lines.append(f"{load}={tiny_captioners.chat_folder(tmp_path / f'chat-{kind}', kind)}")
    for number, (name, (_, by_library)) in enumerate(tiny_encoders.ENCODERS.items()):
        if not by_library and name != "intfloat/e5-base-v2":  # that one needs a prompt
            lines.append(f"load_sentences={tiny_encoders.encoder_folder(tmp_path / f'encoder-{number}', name)}")
    found = alone("clip", lines)
    assert [line for line in found if not line.startswith("loaded")] == []
    assert len(found) == len(lines)
