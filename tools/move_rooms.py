"""Moves every module into one of twelve rooms: `python -m tools.move_rooms`; `--imports FILE...` rewrites names only.

Renames with `git mv`, so that history follows, and rewrites the dotted names in imports, strings and docs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

#: Old module or package -> new one; what lies below moves along, unless it has a line of its own.
MODULES = {
    "tamis.api": "tamis.commands.api",
    "tamis.scoring": "tamis.commands.score",
    "tamis.choosing": "tamis.commands.select",
    "tamis.lazy": "tamis.commands.lazy",
    "tamis.first_look": "tamis.commands.look",
    "tamis.overlaps": "tamis.commands.overlap",
    "tamis.catalogue": "tamis.cli.catalogue",
    "tamis.data": "tamis.core.types",
    **{f"tamis.{name}": f"tamis.core.{name}" for name in (
        "errors", "ids", "arrays", "compute", "registry", "processes", "html", "hub", "math",
    )},
    "tamis.storage": "tamis.core.files.storage",
    "tamis.remote": "tamis.core.files.remote",
    "tamis.pool.files": "tamis.core.files.find",
    "tamis.store.checked": "tamis.core.files.checked",
    "tamis.store.targets": "tamis.core.files.targets",
    "tamis.recipe": "tamis.recipes.recipe",
    "tamis.recipes": "tamis.recipes.shipped",
    "tamis.selectors.expression": "tamis.runs.expression",
    "tamis.selectors": "tamis.recipes.steps",
    "tamis.derived": "tamis.recipes.derived",
    "tamis.run": "tamis.engines",
    "tamis.exporters": "tamis.exports",
    "tamis.explore": "tamis.reports.explore",
    "tamis.reporting": "tamis.reports",
    "tamis.features": "tamis.signals.features",
    "tamis.graph": "tamis.signals.graph",
    "tamis.store": "tamis.runs",
    "tamis.pool": "tamis.pools",
    "tamis.evaluate": "tamis.train.evaluate",
    "tamis.lab": "tamis_lab",
    "tamis.testing": "tamis_lab.testing",
}  # fmt: skip

#: Names of entry-point groups, which stay.
GROUPS = ("tamis.selectors", "tamis.exporters", "tamis.derived")

TESTS = {
    "tests/reporting": "tests/reports",
    "tests/explore": "tests/reports/explore",
    "tests/exporters": "tests/exports",
    "tests/run": "tests/engines",
    "tests/store": "tests/runs",
    "tests/pool": "tests/pools",
    "tests/selectors": "tests/recipes/steps",
    "tests/derived": "tests/recipes/derived",
    "tests/features": "tests/signals/features",
    "tests/evaluate": "tests/train/evaluate",
    "tests/math": "tests/core/math",
}

_ORDER = sorted(MODULES, key=len, reverse=True)
_NAMES = re.compile(r"(?<![\w.\"/-])(" + "|".join(map(re.escape, _ORDER)) + r")\b(?![(\w])")
_QUOTED = re.compile(r"\"(" + "|".join(map(re.escape, _ORDER)) + r")\b(?![(\w])")


def new_name(module: str) -> str:
    """Returns the new dotted name of a module."""
    for old in _ORDER:
        if module == old or module.startswith(f"{old}."):
            return MODULES[old] + module[len(old) :]
    return module


def with_new_imports(text: str) -> str:
    """Returns a file's text with `from PACKAGE import MODULE` changed where the module leaves its package."""
    lines = text.split("\n")
    for node in sorted(ast.walk(ast.parse(text)), key=lambda node: -getattr(node, "lineno", 0)):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "tamis":
            continue
        parent, stay, leave = node.module or "", [], []
        for alias in node.names:
            target = new_name(f"{parent}.{alias.name}")
            named = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
            if f"{parent}.{alias.name}" in MODULES and target != f"{new_name(parent)}.{alias.name}":
                package, _, leaf = target.replace("tamis", "\0").rpartition(".")
                shown = alias.asname or alias.name
                renamed = "" if leaf == shown else f" as {shown}"
                leave.append((f"from {package} " if package else "") + f"import {leaf}{renamed}")
            else:
                stay.append(named)
        if leave:
            indent = " " * node.col_offset
            kept = [f"from {parent} import {', '.join(stay)}"] if stay else []
            lines[node.lineno - 1 : node.end_lineno] = [indent + line for line in [*leave, *kept]]
    return "\n".join(lines)


def with_new_names(path: Path) -> None:
    """Rewrites a file's dotted names."""
    before = text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = with_new_imports(text)
    text = _NAMES.sub(lambda found: MODULES[found[1]], text)
    text = _QUOTED.sub(
        lambda found: found[0] if found[1] in GROUPS and text[found.end()] == '"' else f'"{MODULES[found[1]]}', text
    )
    text = text.replace("\0", "tamis")
    if text != before:
        path.write_text(text, encoding="utf-8")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def moved(old: Path, new: Path) -> None:
    """Moves a file, or what is in a folder, one by one; a folder that is there already is filled."""
    for path in git("ls-files", str(old)).split("\n")[:-1]:
        target = new if old.is_file() else new / Path(path).relative_to(old)
        target.parent.mkdir(parents=True, exist_ok=True)
        git("mv", path, str(target))


def main() -> None:
    if sys.argv[1:2] == ["--imports"]:
        for name in sys.argv[2:]:
            with_new_names(Path(name))
        return
    files = [Path(name) for name in git("ls-files").split("\n")[:-1]]
    for path in files:
        if (
            path.suffix in (".py", ".md", ".toml", ".yaml", ".html", ".txt", ".sh", "")
            and path.parts[0] != "findings"
            and path.name != "move_rooms.py"
            and path.is_file()
        ):
            try:
                with_new_names(path)
            except UnicodeDecodeError:
                continue
    src = Path("src")
    # To a place of its own first: `recipes` becomes `recipes/shipped`, and `run` and `store` swap words.
    for old in _ORDER:
        a, b = src / old.replace(".", "/"), Path("stage") / MODULES[old].replace(".", "/")
        for one, two in ((a, b), (a.with_suffix(".py"), b.with_suffix(".py"))):
            if one.exists() and git("ls-files", str(one)):
                moved(one, two)
    moved(Path("stage"), src)
    for old in sorted(TESTS, key=len, reverse=True):
        moved(Path(old), Path("stage") / TESTS[old])
    moved(Path("stage"), Path("."))


if __name__ == "__main__":
    main()
