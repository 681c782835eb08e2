"""Imports point downwards (import-linter, set up in pyproject.toml), and heavy packages load where they are used."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tamis

ROOT = Path(tamis.__file__).parents[1]
#: What is imported inside functions only, so that `import tamis` stays cheap.
HEAVY = {
    *("cv2", "diffusers", "faiss", "fasttext_pybind", "huggingface_hub", "onnx", "onnxruntime", "openvino", "pandas"),
    *("rapidfuzz", "rapidocr", "ray", "scipy", "sklearn", "spacy", "starlette", "tokenizers", "torch", "transformers"),
    *("uvicorn", "webdataset"),
}

#: Modules that define classes of torch, so that they import it at once: they count as heavy themselves.
NETWORKS = ("tamis.models.clip_resnet", "tamis.models.onnx_torch")

#: What reads files of data. The lab draws tars, evaluation tasks and checks of exporters have layouts of their own.
READERS = ("csv", "tarfile", "fsspec", "pyarrow.parquet", "pyarrow.csv", "pyarrow.json")
MAY_READ = {
    *("tamis.pools", "tamis.runs", "tamis.core.files", "tamis.exports", "tamis.train.evaluate.tasks"),
    *("tamis_lab.pool", "tamis_lab.tasks"),
}


Trees = dict[str, ast.AST]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Every module by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text("utf-8")
        )
        for path in sorted(ROOT.rglob("*.py"))
    }


def package(module: str) -> str:
    return module.partition(".")[0]


def within(module: str, *rooms: str) -> bool:
    return any(f"{module}.".startswith(f"{room}.") for room in rooms)


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide where a name comes from"
            yield node.module or ""


def at_module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported; `if TYPE_CHECKING:` does not."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from at_module_level(child)


def test_imports_point_downwards_and_never_in_a_circle() -> None:
    """import-linter configures logging, so it runs in a process of its own."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_heavy_packages_are_imported_inside_the_functions_that_need_them(trees: Trees) -> None:
    assert [
        f"{module} imports {name}"
        for module, tree in trees.items()
        if module not in NETWORKS
        for node in at_module_level(tree)
        for name in (imports(node) if isinstance(node, ast.Import | ast.ImportFrom) else ())
        if package(name) in HEAVY or within(name, *NETWORKS)
    ] == []


def test_packages_stay_in_their_rooms(trees: Trees) -> None:
    """Choosing runs no model, mathematics is pure NumPy, and few modules read files or know a terminal."""
    standard = {
        *(
            "__future__",
            "bisect",
            "collections",
            "concurrent",
            "dataclasses",
            "functools",
            "heapq",
            "itertools",
            "math",
            "typing",
        )
    }
    for module, tree in trees.items():
        found = set(imports(tree))
        packages = {package(name) for name in found}
        if within(module, "tamis.recipes.steps"):
            assert packages & HEAVY <= {"faiss"}, module
        if within(module, "tamis.core.math"):  # inpainting and Student's t import the last two inside their functions
            assert packages <= standard | {"tamis", "numpy", "cv2", "scipy"}, module
        if not within(module, *MAY_READ):
            assert not found & {*READERS}, module
        if "typer" in packages:
            assert within(module, "tamis.cli"), module
        if "rich" in packages:
            assert within(module, "tamis.cli", "tamis.engines"), module


def test_the_library_neither_prints_nor_evaluates_and_private_names_stay_private(trees: Trees) -> None:
    """Results are the command line's to print; the library logs."""
    for module, tree in trees.items():
        called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        calls = {func.id for func in called if isinstance(func, ast.Name)}
        assert within(module, "tamis.cli", "tamis.__main__") or not calls & {"print", "eval", "exec"}, module
        names = [
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and package(node.module or "") in ("tamis", "tamis_lab")
            for alias in node.names
        ]
        assert [name for name in names if name.startswith("_") and name != "__version__"] == [], module


def test_few_lines_stand_in_long_functions(trees: Trees) -> None:
    lines = sum(bool(line.strip()) for path in ROOT.rglob("*.py") for line in path.read_text("utf-8").splitlines())
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert sum(length for length in lengths if length > 50) / lines <= 0.10
