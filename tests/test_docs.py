"""What the documentation shows is run as it stands, in an empty folder beside a small pool."""

import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from functools import partial
from pathlib import Path

import pytest
import yaml
from factories import write_pool
from packages import install_package
from processes import command, python

import tamis.signals.features
from tamis.cli import main
from tamis.core.types import Node
from tamis.recipes.names import shipped_names
from tamis.recipes.recipe import load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Returns the fenced code blocks of a language; "" for those that name none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def good(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a pool in it."""
    write_pool(tmp_path / "pool", shards=32, rows=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small(text: str, clip_model: str) -> str:
    """What the docs show, with a CLIP that is here and eight shards in place of 32."""
    return text.replace("openai/clip-vit-base-patch32", clip_model).replace("{00000..00031}", "{00000..00007}")


@pytest.mark.parametrize("page", ["README.md", "docs/first-steps.md"])
def test_the_commands_of_a_page_run_in_order(
    page: str, tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_pool(tmp_path / "pool", shards=8, rows=1).parent)
    lines = [line for block in blocks(ROOT / page, "") for line in block.splitlines() if line.startswith("tamis ")]
    assert len(lines) >= 8
    if page == "README.md":
        Path("recipe.yaml").write_text(small(blocks(ROOT / page, "yaml")[0], clip_model))
    for line in lines:  # in this process: each of its own would load the same libraries and models
        monkeypatch.setattr(sys, "argv", shlex.split(small(line, clip_model)))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0, line
    wrote = ("report.html", "subset.npy") if page == "README.md" else ("shards/00000.tar",)
    assert all(Path(name).is_file() for name in wrote)


@pytest.mark.parametrize(
    ("page", "wrote"), [("README.md", "subset.npy"), ("docs/notebook.md", "runs/mine/subsets/short & large.parquet")]
)
def test_the_python_of_a_page_runs(place: Path, page: str, wrote: str) -> None:
    good(python("\n".join(blocks(ROOT / page, "python"))))
    assert (place / wrote).is_file()


@pytest.mark.parametrize("page", ["writing-a-signal", "writing-a-selector", "writing-an-exporter"])
def test_the_plug_in_that_the_docs_write_keeps_its_promises(place: Path, page: str) -> None:
    code = "\n".join(blocks(ROOT / "docs" / f"{page}.md", "python"))
    assert "\ncheck_" in code
    good(python(code, before=partial(warnings.simplefilter, "error")))


@pytest.mark.parametrize(
    ("page", "proof"),
    [
        ("writing-a-signal", "assert tamis.open_run('run').to_numpy('shouting').max() == 0"),
        ("writing-a-selector", "assert len(tamis.Subset.load('subset.parquet', tamis.open_run('run'))) == 32"),
        (
            "writing-an-exporter",
            "assert [line['key'] for line in map(json.loads, open('subset.jsonl'))][:1] == ['000000000']",
        ),
    ],
)
def test_the_plug_in_that_the_docs_write_can_be_registered(
    place: Path, page: str, proof: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "docs" / f"{page}.md"
    code, (registering,) = blocks(path, "python")[0], blocks(path, "toml")
    entries = tomllib.loads(registering)["project"]["entry-points"]
    ((module, _),) = (where.split(":") for some in entries.values() for where in some.values())
    install_package(place, "my-package", entries, {module: code})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]))
    shown = "".join(block for block in blocks(path, "") if block.startswith(("select:", "export:")))
    recipe = {"pool": "pool", "run": "run", "signals": ["caption_length"], "select": []} | (yaml.safe_load(shown) or {})
    if "tamis.signals" in entries:
        recipe["signals"] = [*entries["tamis.signals"]]
    (place / "mine.yaml").write_text(yaml.safe_dump(recipe))
    good(command("run", "mine.yaml", "--quiet"))
    good(command("select", "run", "--recipe", "mine.yaml", "--out", "subset.parquet"))
    good(python(f"import json, tamis\n{proof}"))


def test_the_docs_know_every_shared_feature_and_what_its_class_says() -> None:
    found = [
        value
        for module in pkgutil.iter_modules(tamis.signals.features.__path__)
        for value in vars(importlib.import_module(f"tamis.signals.features.{module.name}")).values()
        if isinstance(value, type) and issubclass(value, Node) and value.__module__.endswith(f".{module.name}")
        if not value.__name__.startswith("_")
    ]
    facts = {
        (cls.__name__, cls.__module__.rpartition(".")[2], "yes" * cls.host, "yes" * cls.in_index, cls.stored_as or "")
        for cls in found
    }
    page = (ROOT / "docs" / "writing-a-signal.md").read_text(encoding="utf-8").partition("## Built-in features")[2]
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:3] == "| `"
    ]
    told = {(name, module, host, index, stored) for name, module, _, _, host, index, stored in rows}
    assert told == facts


@pytest.mark.parametrize(("package", "numbers"), [("torch", [1, 2]), ("webdataset", [3]), ("datasets", [4])])
def test_the_loops_over_samples_that_the_docs_write_run(
    place: Path, package: str, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(place / "cache"))
    pytest.importorskip(package, reason=f"{package} is not installed: what the docs say of it is not tried")
    code = blocks(ROOT / "docs" / "reading-samples.md", "python")
    assert len(code) == 5
    good(python("\n".join([code[0], *(code[number] for number in numbers)])))


def test_the_readme_needs_seven_concepts_and_starts_with_two_commands_and_their_pictures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("## One pass")[0]
    concepts = re.findall(r"^\| (\w+) \|", table, re.MULTILINE)[1:]
    assert len(concepts) == 9
    prose = re.sub(r"\]\([^)]*\)", "]", text)
    used = {word for word in concepts if re.search(rf"\b{word}s?\b", prose)}
    assert used == {"sample", "shard", "pool", "run", "signal", "recipe", "subset"}
    first = text.partition("## ")[0]
    assert re.findall(r"^make \w+", first, re.MULTILINE) == ["make demo", "make test"]
    assert re.findall(r"\]\(docs/images/(\w+)\.", first) == ["report", "explore"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_recipe_in_the_docs_is_good() -> None:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            load(yaml.safe_load(block))


def test_every_shipped_recipe_and_signal_is_described() -> None:
    from tamis.signals import SIGNALS

    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [name for name in shipped_names() if f"`{name}`" not in text] == []
    text = (ROOT / "docs" / "signals.md").read_text(encoding="utf-8")
    assert [name for name in SIGNALS if f"`{name}`" not in text] == []
