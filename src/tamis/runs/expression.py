"""Score expressions: `0.5*minmax(sieve) + 0.5*minmax(clip)`.

Python's own grammar parses them into a tree of a few allowed kinds, which is never run as Python. Arithmetic is in
float64. `minmax`, `zscore` and `rank` look at every scored row of the pool, not only at the candidates, so a
score means the same wherever a recipe uses it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any, TypeVar

import numpy as np

from tamis.core.arrays import Float64s, Mask, Rows
from tamis.core.errors import RecipeError, brief, nearest
from tamis.core.math import normalise, order
from tamis.runs.table import Table, as_numbers

T = TypeVar("T")

_BINARY: Mapping[type[ast.operator], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_UNARY: Mapping[type[ast.unaryop], Callable[..., Any]] = {ast.USub: np.negative, ast.UAdd: np.positive}

#: Functions of one row, with the number of their arguments.
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

_ARGUMENTS = {**dict.fromkeys(POOLWIDE, 1), **{name: count for name, (count, _) in POINTWISE.items()}}

_LONGEST = 2_000  # characters; far more than anyone writes, and less than what exhausts the parser
_DEEPEST = 100  # nested operations: a sum of this many terms
_POOLWIDE_DEEPEST = 6  # nested functions of the pool: each scans the whole table again
_NOT_DECIMAL = re.compile(r"\b0[xob]\w*", re.IGNORECASE)

#: The values of a block in a function of the pool, from the block's values of its argument.
Fitted = Callable[[Float64s], Float64s]


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
        """The column's name if the expression is only that column."""
        return _name(self.tree)

    @property
    def line(self) -> tuple[str, float, float] | None:
        """Column, factor and offset of a straight line of one column, such as `1 - clip`; None for anything else."""
        found = _line(self.tree) if len(self.columns) == 1 else None
        if found is None or not found[0] or not np.isfinite(found).all():
            return None
        (column,) = self.columns
        return column, *found

    @property
    def poolwide(self) -> frozenset[str]:
        """The columns of which a row's value depends on the other rows of the pool."""
        return frozenset().union(*(_columns(node) for node in _walk(self.tree) if _is_poolwide(node)))

    def values(self, table: Table) -> Float64s:
        """Returns the value of every row: (rows,) float64, NaN where a part is missing or infinite."""
        values_of = self.fit(table)

        def work(span: slice, columns: dict[str, Any], candidates: Mask) -> tuple[slice, Float64s]:
            return span, values_of(columns, candidates.size)

        out = np.empty(len(table))
        for span, values in table.scan(sorted(self.columns), work):
            out[span] = values
        return out

    def fit(self, table: Table) -> Callable[[Mapping[str, Any], int], Float64s]:
        """Returns a function that gives the values of some rows from their columns and their number.

        Functions of the pool read the table once, before this returns.
        """
        functions = self._fit_functions(table)
        return lambda columns, rows: self._evaluate(columns, functions, rows)

    def scan(self, table: Table, there: Callable[[Float64s], Mask] = np.isfinite) -> Callable[..., Iterator[Any]]:
        """Returns a function that reads the values of the candidates that have one, block by block, in their order.

        It calls `work(span, rows, values)`: the slice of a block, the rows in it, (n,), and their values, (n,).
        """
        values_of = self.fit(table)

        def scan(work: Callable[[slice, Rows, Float64s], T]) -> Iterator[T]:
            def block(span: slice, columns: dict[str, Any], candidates: Mask) -> T:
                values = values_of(columns, candidates.size)
                rows = np.flatnonzero(candidates & there(values))
                return work(span, rows, values[rows])

            return table.scan(sorted(self.columns), block)

        return scan

    def keys(self, table: Table) -> order.Scan[Any]:
        """Returns what `nth_largest` reads: keys in the order of the values of candidates that have one."""
        scan = self.scan(table, lambda values: ~np.isnan(values))
        return lambda work: scan(lambda _, rows, values: work(order.ordered_bits(values), np.zeros(rows.size, int)))

    def _evaluate(self, columns: Mapping[str, Any], fitted: Mapping[str, Fitted], rows: int) -> Float64s:
        with np.errstate(all="ignore"):  # log(-1) and x/0 become NaN: missing, which the step that meets them reports
            return np.asarray(np.broadcast_to(_checked(self.tree, columns, fitted, rows), rows), np.float64)

    def _fit_functions(self, table: Table) -> dict[str, Fitted]:
        """Returns every function of the pool by its text. Each is one scan of the table, inner ones first."""
        fitted: dict[str, Fitted] = {}
        for node in reversed(list(_walk(self.tree))):
            if _is_poolwide(node) and (text := ast.unparse(node)) not in fitted:
                (argument,) = _operands(node)
                inner = Expression(ast.unparse(argument), argument, _columns(argument))
                fitted[text] = inner._fit_function(_function(node), table, fitted)
        return fitted

    def _fit_function(self, name: str, table: Table, fitted: Mapping[str, Fitted]) -> Fitted:
        def scan(measure: Callable[[Float64s], T]) -> Iterator[T]:
            values = lambda _, columns, candidates: measure(self._evaluate(columns, fitted, candidates.size))  # noqa: E731
            return table.scan(sorted(self.columns), values)

        if name == "rank":
            dtype = np.float32 if self.column else np.float64
            ranks = normalise.Ranks(scan(lambda values: values.astype(dtype)))
            return lambda values: ranks.of(values.astype(dtype))
        if name == "minmax":
            lows, highs = np.array([*scan(normalise.extremes), (np.inf, -np.inf)]).T
            return lambda values: normalise.minmax(values, lows.min(), highs.max())
        # in block order, so the sums do not depend on which thread read a block
        total = reduce(normalise.Moments.merge, scan(normalise.Moments.of), normalise.Moments())
        return lambda values: normalise.zscore(values, total)


def _value(node: ast.expr, columns: Mapping[str, Any], fitted: Mapping[str, Fitted], rows: int) -> Any:
    name = _name(node)
    if name is not None:
        return as_numbers(columns[name]).astype(np.float64)
    if isinstance(node, ast.Constant):
        return np.float64(node.value)  # type: ignore[arg-type]  # checked in `parse`
    linear = not _is_poolwide(node) and _is_checked_later(node)
    parts = [(_value if linear else _checked)(part, columns, fitted, rows) for part in _operands(node)]
    # In the memory of an operand: new memory takes longer than the arithmetic.
    out = next((part for part in parts if part.ndim and part.flags.owndata), None)
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](*parts, out=out)
    if isinstance(node, ast.BinOp):
        value = _BINARY[type(node.op)](*parts, out=out)
    elif _is_poolwide(node):
        value = fitted[ast.unparse(node)](np.broadcast_to(parts[0], rows))
    else:
        value = POINTWISE[_function(node)][1](*parts)
    return value if _is_checked_later(node) else _finite(value)


def _checked(node: ast.expr, columns: Mapping[str, Any], fitted: Mapping[str, Fitted], rows: int) -> Any:
    value = _value(node, columns, fitted, rows)
    return _finite(value) if _is_checked_later(node) else value


def _is_checked_later(node: ast.expr) -> bool:
    """Whether infinity in a node's value stays infinite, or becomes NaN, in sums and products: they check it once."""
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    return _is_poolwide(node) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult))


def _finite(values: Any) -> Any:
    """Returns values with NaN for infinity: x/0 and log(0) would head any ranking."""
    return values if np.isfinite(values.sum()) else np.where(np.isinf(values), np.nan, values)


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _function(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _is_poolwide(node: ast.expr) -> bool:
    return _function(node) in POOLWIDE


def _operands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    return node.args if isinstance(node, ast.Call) else []


def _walk(node: ast.expr) -> Iterator[ast.expr]:
    """Yields a node and everything in it, outer ones first."""
    yield node
    for part in _operands(node):
        yield from _walk(part)


def _columns(tree: ast.expr) -> frozenset[str]:
    return frozenset(name for node in _walk(tree) if (name := _name(node)) is not None)


def _line(node: ast.expr) -> tuple[float, float] | None:
    """Returns factor and offset of an expression of one column; None if it is not a straight line."""
    if _name(node) is not None:
        return 1.0, 0.0
    if isinstance(node, ast.Constant):
        return 0.0, float(node.value)  # type: ignore[arg-type]  # checked in `parse`
    parts = [line for part in _operands(node) if (line := _line(part)) is not None]
    if isinstance(node, ast.UnaryOp) and parts:
        sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
        return sign * parts[0][0], sign * parts[0][1]
    if not isinstance(node, ast.BinOp) or len(parts) < 2:
        return None
    (a, b), (c, d) = parts
    match node.op:
        case ast.Add():
            return a + c, b + d
        case ast.Sub():
            return a - c, b - d
        case ast.Mult() if not (a and c):
            return a * d + c * b, b * d
        case ast.Div() if d and not c:
            return a / d, b / d
    return None


def _poolwide_depth(node: ast.expr) -> int:
    return _is_poolwide(node) + max(map(_poolwide_depth, _operands(node)), default=0)


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Parses a score expression.

    Args:
        text: decimal numbers, column names (`clip`, `clip_l14.clip`), + - * / **, parentheses, and the functions
            minmax, zscore, rank (over the pool) and logit, log, exp, sqrt, abs, min, max (of each row).

    Returns:
        The checked expression.

    Raises:
        RecipeError: the text is something else; the message names the part.
    """
    where = f"the score expression {brief(text)}"
    if len(text) > _LONGEST:
        raise RecipeError(f"the score expression has {len(text)} characters, at most {_LONGEST} are allowed")
    if number := _NOT_DECIMAL.search(text):
        raise RecipeError(f"{number[0]!r} in {where} is not a decimal number")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, where, _DEEPEST)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)
        why = "it is nested too deeply" if deep else getattr(error, "msg", None) or str(error)
        raise RecipeError(f"cannot read {where}: {why}") from error
    if _poolwide_depth(tree) > _POOLWIDE_DEEPEST:
        raise RecipeError(f"{where} has more than {_POOLWIDE_DEEPEST} nested functions of the pool")
    columns = _columns(tree)
    if not columns:
        raise RecipeError(f"{where} names no score column")
    return Expression(text=text, tree=tree, columns=columns)


def _check(node: ast.expr, where: str, depth: int) -> None:
    """Raises RecipeError for a node that expressions do not have, and below `depth` levels."""
    if not depth:
        raise RecipeError(f"{where} is nested more than {_DEEPEST} deep")
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise RecipeError(f"{brief(node.value)} in {where} is not a number")
        if abs(node.value) >= 1e300:
            raise RecipeError(f"the number in {where} is too large")
    elif name := _function(node):
        assert isinstance(node, ast.Call)
        if name not in _ARGUMENTS:
            raise RecipeError(
                f"unknown function {brief(name)} in {where}{nearest(name, _ARGUMENTS)}; "
                f"known: {', '.join(sorted(_ARGUMENTS))}"
            )
        if len(node.args) != _ARGUMENTS[name] or node.keywords:
            raise RecipeError(f"{name} takes {_ARGUMENTS[name]} value(s), got {brief(ast.unparse(node))} in {where}")
    elif _name(node) is None and not (
        (isinstance(node, ast.BinOp) and type(node.op) in _BINARY)
        or (isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY)
    ):
        raise RecipeError(
            f"{brief(ast.unparse(node))} is not allowed in {where}: write numbers, column names, "
            f"+ - * / ** and the functions {', '.join(sorted(_ARGUMENTS))}"
        )
    for part in _operands(node):
        _check(part, where, depth - 1)
