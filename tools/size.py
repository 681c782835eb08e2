"""Counts the project's lines, modules and long functions, room by room: `python -m tools.size [--json]`.

Code lines are those without comments and docstrings. A function's lines include its docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

LONG = 50  # lines of a function


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def code_lines(text: str) -> int:
    """Counts the lines that hold code: no blank lines, comments or docstrings."""
    tree = ast.parse(text)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in blank:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def function_lines(text: str) -> Iterator[int]:
    """Yields how many lines each function has."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def modules_loaded() -> int:
    """Counts the modules of tamis that scoring two trivial signals loads."""
    program = (
        "import sys, tamis;"
        "tamis.score(sys.argv[1], run=sys.argv[2], signals=['caption_length', 'image_size'], quiet=True);"
        "print(sum(name == 'tamis' or name.startswith('tamis.') for name in sys.modules))"
    )
    with tempfile.TemporaryDirectory() as folder:
        pool = f"{folder}/pool"
        draw = [sys.executable, "-m", "tamis", "lab", "make-pool", pool, "--pairs", "8"]
        subprocess.run(draw, check=True, capture_output=True)
        command = [sys.executable, "-c", program, pool, f"{folder}/run"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def measure() -> dict[str, Any]:
    """Returns all numbers: of the rooms by name, and of the whole."""
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: {"lines": 0, "code": 0, "modules": 0})
    in_functions = in_long = 0
    for path in python_files(SOURCE):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(SOURCE).parts
        room = rooms[inside[1] if inside[0] == "tamis" and len(inside) > 2 else inside[0]]
        room["lines"] += len(text.splitlines())
        room["code"] += code_lines(text)
        room["modules"] += 1
        for lines in function_lines(text):
            in_functions += lines
            in_long += lines if lines > LONG else 0
    others = {
        name: sum(len(path.read_text().splitlines()) for path in python_files(ROOT / name))
        for name in ("tests", "tools", "benchmarks")
    }
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").rglob("*.md"))
    return {
        "rooms": dict(sorted(rooms.items())),
        "src": {key: sum(room[key] for room in rooms.values()) for key in ("lines", "code", "modules")},
        "other lines": others,
        "words in docs": words,
        "share of lines in functions over 50 lines": round(in_long / in_functions, 4),
        "modules loaded for two trivial signals": modules_loaded(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts lines, modules and long functions of the project.")
    parser.add_argument("--json", action="store_true")
    found = measure()
    if parser.parse_args().json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'room':12}{'lines':>8}{'code':>8}{'modules':>9}")
    for name, room in found["rooms"].items():
        print(f"{name:12}{room['lines']:8,}{room['code']:8,}{room['modules']:9,}")
    total = found["src"]
    print(f"{'src':12}{total['lines']:8,}{total['code']:8,}{total['modules']:9,}")
    for name in list(found)[2:]:
        print(f"{name}: {found[name]}")


if __name__ == "__main__":
    main()
