"""Score expressions: `0.5*minmax(sieve) + 0.5*minmax(clip)`.

Parsed by Python's own grammar into a tree of a few allowed kinds, never evaluated as Python. Arithmetic runs in
float64. `minmax`, `zscore` and `rank` look at the whole pool (every judged row, not only the survivors of earlier
steps), so a score means the same wherever it stands in a recipe.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tamis.arrays import Float64s
from tamis.errors import RecipeError, brief, nearest
from tamis.math import normalise
from tamis.store.table import Table

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: np.negative, ast.UAdd: np.positive}

#: Functions of one row.
POINTWISE: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "abs": (1, np.abs),
    "exp": (1, np.exp),
    "log": (1, np.log),
    "logit": (1, normalise.logit),
    "max": (2, np.maximum),
    "min": (2, np.minimum),
    "sqrt": (1, np.sqrt),
}
#: Functions of the whole pool.
POOLWIDE = ("minmax", "rank", "zscore")

_LONGEST = 2_000  # characters; far past anything a person writes, and short of what exhausts the parser
_DEEPEST = 100  # operations in one another: a sum of so many terms; what evaluates them calls itself for each
_POOLWIDE_DEEPEST = 6  # functions of the pool in one another: each is another scan of the whole table


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    Attributes:
        text: as it was written.
        tree: the checked syntax tree.
        columns: the names it reads.
    """

    text: str
    tree: ast.expr = field(compare=False)
    columns: frozenset[str] = field(compare=False)

    @property
    def column(self) -> str | None:
        """The column's name where the expression is nothing but that column."""
        return _name(self.tree)

    @property
    def line(self) -> tuple[str, float, float] | None:
        """Column, factor and offset of an expression that is a straight line of one column: `1 - clip`, `-text_area`.

        None where it is anything else, or does not depend on the column.
        """
        found = _line(self.tree)
        if found is None or found[0] is None or not found[1] or not np.isfinite(found[1:]).all():
            return None
        return found[0], found[1], found[2]

    def values(self, table: Table) -> Float64s:
        """Returns the expression's value of every row: (rows,) float64, NaN where a part is missing or infinite."""
        normalised = self._poolwide(table)
        out = np.empty(len(table), np.float64)

        def work(place: slice, columns: dict[str, Any]) -> None:
            out[place] = _evaluate(self.tree, columns, normalised, place.stop - place.start)

        for _ in table.map(sorted(self.columns), work):
            pass
        return out

    def by_block(self, table: Table) -> Callable[[int], Float64s]:
        """Returns a function that gives the values of one block of the table: for whoever needs them shard by shard.

        What the expression needs of the whole pool is read once, before this returns.
        """
        normalised = self._poolwide(table)
        return lambda block: _evaluate(
            self.tree, table.read(block, sorted(self.columns)), normalised, table.sizes[block]
        )

    @property
    def poolwide(self) -> bool:
        """Whether a row's value depends on the other rows of the pool."""
        return any(isinstance(node, ast.Call) and _function(node) in POOLWIDE for node in ast.walk(self.tree))

    def _poolwide(self, table: Table) -> dict[str, Callable[[Float64s], Float64s]]:
        """Returns a function for every call of a pool-wide function, innermost first: one scan per depth."""
        ready: dict[str, Callable[[Float64s], Float64s]] = {}
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and _function(node) in POOLWIDE]
        while waiting := [call for call in calls if ast.unparse(call) not in ready]:
            level = {
                ast.unparse(call): call
                for call in waiting
                if all(
                    ast.unparse(inner) in ready
                    for inner in ast.walk(call.args[0])
                    if isinstance(inner, ast.Call) and _function(inner) in POOLWIDE
                )
            }
            ready |= _statistics(level, table, ready)
        return ready


def _statistics(
    calls: Mapping[str, ast.Call], table: Table, ready: Mapping[str, Callable[[Float64s], Float64s]]
) -> dict[str, Callable[[Float64s], Float64s]]:
    arguments = {ast.unparse(call.args[0]): call.args[0] for call in calls.values()}
    ranked = {ast.unparse(call.args[0]) for call in calls.values() if _function(call) == "rank"}
    whole = {text: np.empty(len(table), np.float64) for text in ranked}
    columns = sorted({name for tree in arguments.values() for name in _names(tree)})

    def work(place: slice, values: dict[str, Any]) -> dict[str, normalise.Moments]:
        moments = {}
        for text, tree in arguments.items():
            block = _evaluate(tree, values, ready, place.stop - place.start)
            moments[text] = normalise.Moments.of(block)
            if text in whole:
                whole[text][place] = block
        return moments

    totals = {text: normalise.Moments() for text in arguments}
    for found in table.map(columns, work):  # merged in block order: the same sums whoever read the blocks
        for text, moments in found.items():
            totals[text] = totals[text].merged(moments)
    made: dict[str, Callable[[Float64s], Float64s]] = {}
    for text, call in calls.items():
        argument, name = ast.unparse(call.args[0]), _function(call)
        if name == "rank":
            ordered = whole[argument]
            ordered = np.sort(ordered[~np.isnan(ordered)])
            made[text] = _bind(normalise.rank, ordered)
        else:
            made[text] = _bind(normalise.minmax if name == "minmax" else normalise.zscore, totals[argument])
    return made


def _bind(function: Callable[[Float64s, Any], Float64s], statistics: Any) -> Callable[[Float64s], Float64s]:
    return lambda values: function(values, statistics)


def _evaluate(
    tree: ast.expr, columns: Mapping[str, Any], poolwide: Mapping[str, Callable[[Float64s], Float64s]], rows: int
) -> Float64s:
    with np.errstate(all="ignore"):  # log(-1) and x/0 become NaN: missing, reported where a step meets them
        return np.asarray(np.broadcast_to(_value(tree, columns, poolwide, rows), rows), np.float64)


def _value(
    node: ast.expr, columns: Mapping[str, Any], poolwide: Mapping[str, Callable[[Float64s], Float64s]], rows: int
) -> Any:
    # No closure that calls itself: its reference to itself would keep every block's columns until the next
    # garbage collection.
    name = _name(node)
    if name is not None:
        return np.asarray(columns[name], np.float64)
    if isinstance(node, ast.Constant):
        return np.float64(node.value)  # type: ignore[arg-type]  # checked in `parse`
    if isinstance(node, ast.BinOp):
        left = _value(node.left, columns, poolwide, rows)
        return _finite(_BINARY[type(node.op)](left, _value(node.right, columns, poolwide, rows)))
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_value(node.operand, columns, poolwide, rows))
    assert isinstance(node, ast.Call)
    arguments = [_value(argument, columns, poolwide, rows) for argument in node.args]
    if _function(node) in POOLWIDE:
        return _finite(poolwide[ast.unparse(node)](np.broadcast_to(arguments[0], rows)))
    return _finite(POINTWISE[_function(node)][1](*arguments))


def _finite(found: Any) -> Any:
    """Returns NaN for infinite results (x/0, log(0), minmax of an infinite score): they would head any ranking."""
    return np.where(np.isinf(found), np.nan, found)


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _line(node: ast.expr) -> tuple[str | None, float, float] | None:
    """Returns a tree as factor * column + offset; without a column where it is a number; None where it is neither."""
    name = _name(node)
    if name is not None:
        return name, 1.0, 0.0
    if isinstance(node, ast.Constant):
        return None, 0.0, float(node.value)  # type: ignore[arg-type]  # checked in `parse`
    if isinstance(node, ast.UnaryOp):
        inner = _line(node.operand)
        sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
        return inner and (inner[0], sign * inner[1], sign * inner[2])
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _line(node.left), _line(node.right)
    if left is None or right is None or (left[0] is not None and right[0] is not None):
        return None
    column = left[0] or right[0]
    if isinstance(node.op, ast.Add | ast.Sub):
        sign = 1.0 if isinstance(node.op, ast.Add) else -1.0
        return column, left[1] + sign * right[1], left[2] + sign * right[2]
    if isinstance(node.op, ast.Mult):
        return column, left[1] * right[2] + right[1] * left[2], left[2] * right[2]
    if isinstance(node.op, ast.Div) and right[0] is None and right[2]:
        return column, left[1] / right[2], left[2] / right[2]
    return None


def _function(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Name)  # checked in `parse`
    return call.func.id


def _names(tree: ast.expr) -> set[str]:
    found: set[str] = set()

    def visit(node: ast.expr) -> None:
        name = _name(node)
        if name is not None:
            found.add(name)
        elif isinstance(node, ast.Call):
            for argument in node.args:
                visit(argument)
        elif isinstance(node, ast.BinOp):
            visit(node.left)
            visit(node.right)
        elif isinstance(node, ast.UnaryOp):
            visit(node.operand)

    visit(tree)
    return found


def _is_deep(tree: ast.expr) -> bool:
    """Tells whether a tree has more levels than `_DEEPEST`, without calling itself for each of them."""
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if not level:
            return False
    return True


def _poolwide_depth(tree: ast.AST) -> int:
    own = isinstance(tree, ast.Call) and _function(tree) in POOLWIDE
    return own + max(map(_poolwide_depth, ast.iter_child_nodes(tree)), default=0)


# Python's parser keeps state of its own; one lock is cheaper than finding out.
_PARSING = threading.Lock()


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Parses a score expression.

    Args:
        text: numbers, column names (`clip`, `clip_l14.clip`), + - * / **, parentheses, and the functions
            minmax, zscore, rank (over the pool) and logit, log, exp, sqrt, abs, min, max (of each row).

    Returns:
        The checked expression.

    Raises:
        RecipeError: it is none of that; the message names the part.
    """
    if len(text) > _LONGEST:
        raise RecipeError(f"the score expression has {len(text)} characters, at most {_LONGEST} are allowed")
    try:
        with _PARSING:
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)
        why = "it is nested too deeply" if deep else getattr(error, "msg", None) or str(error)
        raise RecipeError(f"cannot read the score expression {brief(text)}: {why}") from error
    if _is_deep(tree):
        raise RecipeError(f"the score expression {brief(text)} is nested more than {_DEEPEST} deep")

    def check(node: ast.expr) -> None:
        if _name(node) is not None:
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool) or not isinstance(node.value, int | float):
                raise RecipeError(f"{brief(node.value)} in the score expression {brief(text)} is not a number")
            if not np.isfinite(float(node.value) if abs(node.value) < 1e300 else np.inf):
                raise RecipeError(f"the number in the score expression {brief(text)} is too large")
            return
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            check(node.left)
            check(node.right)
            return
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            check(node.operand)
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = {**dict.fromkeys(POOLWIDE, 1), **{name: count for name, (count, _) in POINTWISE.items()}}
            if node.func.id not in known:
                raise RecipeError(
                    f"unknown function {brief(node.func.id)} in the score expression {brief(text)}"
                    f"{nearest(node.func.id, known)}; known: {', '.join(sorted(known))}"
                )
            wanted = known[node.func.id]
            if len(node.args) != wanted or node.keywords:
                raise RecipeError(
                    f"{node.func.id} takes {wanted} value(s), got {brief(ast.unparse(node))} in {brief(text)}"
                )
            for argument in node.args:
                check(argument)
            return
        raise RecipeError(
            f"{brief(ast.unparse(node))} is not allowed in the score expression {brief(text)}: write numbers, column "
            f"names, + - * / ** and the functions {', '.join(sorted([*POOLWIDE, *POINTWISE]))}"
        )

    check(tree)
    if _poolwide_depth(tree) > _POOLWIDE_DEEPEST:
        raise RecipeError(
            f"the score expression {brief(text)} has more than {_POOLWIDE_DEEPEST} functions of the pool in one another"
        )
    columns = frozenset(_names(tree))
    if not columns:
        raise RecipeError(f"the score expression {brief(text)} names no score column")
    return Expression(text=text, tree=tree, columns=columns)
