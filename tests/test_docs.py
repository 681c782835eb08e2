"""What the documentation shows is run as it stands, in an empty folder beside a small pool."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from factories import write_pool

from tamis import recipe as recipes
from tamis.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Returns the fenced code blocks of a language; "" for those that name none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", shards=32, rows=2)
    return tmp_path


def test_the_readmes_commands_run_in_order(place: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [line for block in blocks(ROOT / "README.md", "") for line in block.splitlines() if line]
    commands = [line for line in commands if line.startswith("tamis ")]
    assert len(commands) >= 8
    (place / "recipe.yaml").write_text(
        blocks(ROOT / "README.md", "yaml")[0].replace("openai/clip-vit-base-patch32", clip_model)
    )
    monkeypatch.chdir(place)
    for line in commands:  # in this process: each of its own would load the same libraries and models
        monkeypatch.setattr(sys, "argv", shlex.split(line.replace("openai/clip-vit-base-patch32", clip_model)))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0, line
    assert (place / "report.html").stat().st_size > 10_000
    assert (place / "subset.npy").is_file()


def test_the_readmes_python_runs(place: Path) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    run([sys.executable, "-c", code], place)
    assert (place / "subset.npy").is_file()


def test_the_scorer_that_the_docs_write_works(place: Path) -> None:
    scorer, use = blocks(ROOT / "docs" / "writing-a-scorer.md", "python")
    run([sys.executable, "-c", f"{scorer}\n{use}\nassert run.to_numpy('shouting').max() == 0"], place)


def test_the_detector_that_the_docs_write_works(place: Path) -> None:
    pytest.importorskip("cv2")
    (detector,) = blocks(ROOT / "docs" / "signals.md", "python")
    use = """
import tamis
from tamis.signals import TextArea
run = tamis.score("pool", run="run", scores=[TextArea(boxes=LowerThird())], quiet=True)
assert abs(run.to_numpy("text_area") - 1 / 3).max() < 0.02
"""
    run([sys.executable, "-c", detector + use], place)


def test_the_loops_over_samples_that_the_docs_write_run(place: Path) -> None:
    pytest.importorskip("torch")
    code = blocks(ROOT / "docs" / "reading-samples.md", "python")
    assert len(code) == 3
    run([sys.executable, "-c", "\n".join(code)], place)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_recipe_in_the_docs_is_good() -> None:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            recipes.load(yaml.safe_load(block))


def test_every_shipped_recipe_and_scorer_is_described() -> None:
    from tamis.signals import SCORERS

    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [name for name in recipes.shipped() if f"`{name}`" not in text] == []
    text = (ROOT / "docs" / "signals.md").read_text(encoding="utf-8")
    assert [name for name in SCORERS if f"`{name}`" not in text] == []
