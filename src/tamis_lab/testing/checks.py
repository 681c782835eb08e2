"""Checks that signals, selectors and exporters keep their promises."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.commands.score import score
from tamis.commands.select import select
from tamis.core.arrays import Rows
from tamis.core.errors import RecipeError, TamisError
from tamis.core.records import build
from tamis.core.types import Device, Node, Sample, Samples, Signal, settings
from tamis.exports.exporter import Exporter
from tamis.recipes.steps.outcome import Selection, Step, describe
from tamis.recipes.steps.steps import AllOf, AnyOf, NoneOf
from tamis.runs.subset import PER_ROW, Subset
from tamis.runs.table import MemoryTable, Table
from tamis.signals.graph import Executor, execute, topological
from tamis_lab.pool import make_pool
from tamis_lab.testing import pairs

Kind = Literal["number", "word", "vector"]
Columns = Mapping[str, Any]

_ROWS = 23  # rows of the drawn table


def _check_word(name: Any, what: str) -> None:
    """Asserts that a name works in recipes, folders and expressions."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", str(name)), f"{what} must consist of small letters, digits and _: {name!r}"


def _check_record(record: Any, *, in_recipes: bool = True) -> str:
    """Asserts that a record is a frozen dataclass that its settings rebuild; returns its name for messages."""
    if inspect.isclass(record):
        raise TypeError(f"expected an object, got its class: {record.__name__}()")
    cls = type(record)
    title = f"{getattr(record, 'name', '?')} ({cls.__module__}.{cls.__qualname__})"
    _check_word(getattr(record, "name", None), f"the name of {title}")
    frozen = dataclasses.is_dataclass(record) and cls.__dataclass_params__.frozen
    assert frozen, f"{title}: write @dataclass(frozen=True, kw_only=True) above the class"
    for other in (dataclasses.replace(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        same = other == record and hash(other) == hash(record)
        assert same, f"{title} is not equal to a copy of itself, by its settings, by copy or by pickle: {other!r}"
    if in_recipes:
        try:
            plain = json.loads(json.dumps(settings(record), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"the settings of {title} cannot be written as JSON: {error}") from error
        again = build(cls, plain, "a recipe")
        assert again == record, f"a recipe with {plain} makes {again!r}, not {record!r}"
    return title


# ---- signals


def check_signal(
    signal: Signal,
    *,
    tolerance: float = 0.0,
    looks_at: Collection[str] | Mapping[str, Collection[str]] | None = None,
    good: Sequence[Sample] | None = None,
    device: Device | None = None,
) -> None:
    """Checks a signal on drawn pairs: a score depends only on its pair, and unreadable pairs have none.

    Args:
        tolerance: how far two results for one pair may differ; 0 unless a network computes them.
        looks_at: what a score needs, "image", "caption", both or neither (()), for all columns or for each by name.
            None: unknown; then only a pair without image and caption must have no score.
        good: pairs that it can score; None: draw some.
        device: where networks run.

    Raises:
        AssertionError: a promise is broken; the message says which.
        ModelError, DependencyError: a model or package that it needs is missing.
    """
    title, device = _check_record(signal), device or Device(batch_size=4)
    _check_declared(signal, title)
    executor = Executor(device)
    names = [column.name for column in signal.columns]

    def run(samples: Sequence[Sample]) -> Columns:
        found: Columns = executor.run([signal], {Samples(): list(samples)})[signal]
        return found

    good = pairs.good_pairs() if good is None else list(good)
    samples = pairs.batch_of(good)
    before = [pickle.dumps(sample) for sample in samples]
    whole = run(samples)
    changed = [one.key for one, old in zip(samples, before, strict=True) if pickle.dumps(one) != old]
    assert not changed, f"{title} changes the pairs {changed}, which other signals read too"
    _check_values(signal, title, whole, len(good))

    def compare(found: Columns, rows: Sequence[int], how: str) -> None:
        for name in names:
            for row, value in zip(rows, found[name], strict=True):
                old, key = whole[name][row], samples[row].key
                same = _same(old, value, tolerance)
                assert same, f"{title}: {name} of the pair {key!r} is {old!s}, and {how} {value!s} ({tolerance=:g})"

    # The same pairs again, in another order, in other batches, in none, and after pickling: the same values.
    rows = list(range(len(samples)))
    compare(run(pairs.batch_of(good)), rows, "in a second run")
    compare({name: whole[name][:1] for name in names}, [len(good)], "where it occurs again")
    order = np.random.default_rng(1).permutation(len(samples)).tolist()
    compare(run([samples[row] for row in order]), order, "in another place")
    for size in (1, 4, len(samples) - 2):
        for some in (rows[start : start + size] for start in range(0, len(samples), size)):
            compare(run([samples[row] for row in some]), some, f"in batches of {size}")
    compare(run([]), [], "in an empty batch")
    pickled = pickle.loads(pickle.dumps(signal))
    compare(execute([pickled], samples[:2], device)[pickled], rows[:2], "after pickling")
    if all(node.in_index for node in topological([signal]) if Samples() in node.needs().values()):
        bare = pairs.batch_of(good)
        for sample in bare:
            sample.image = sample.pixels = None
        compare(run(bare), rows, "from the index, which has no images (in_index),")

    for parts in (("caption",), ("image",), ("caption", "image")):
        lacking = " and ".join(parts)
        found = run([pairs.without(good[0], *parts), pairs.without(good[-1], *parts)])
        for name in names:
            looks = looks_at[name] if isinstance(looks_at, Mapping) else looks_at
            needed = len(parts) == 2 if looks is None else bool(set(parts) & set(looks))
            for old, value in zip((whole[name][0], whole[name][len(good) - 1]), found[name], strict=True):
                assert _is_missing(value) or not needed, f"{title}: {name} is {value!s} for a pair without {lacking}"
                lost = looks is not None and not needed and _is_missing(value) and not _is_missing(old)
                assert not lost, f"{title}: {name} is missing without {lacking}, which it does not look at"


def _check_declared(signal: Signal, title: str) -> None:
    assert isinstance(signal, Signal), f"{title} does not derive from tamis.core.types.Signal"
    assert signal.version >= 1, f"the version of {title} must be 1 or more, got {signal.version!r}"
    names = [column.name for column in signal.columns]
    assert names, f"{title} declares no column"
    assert len({*names, "reason"}) == len(names) + 1, f"{title}: columns need names of their own, not {names}"
    for column in signal.columns:
        _check_word(column.name, f"a column's name of {title}")
        assert column.kind in ("number", "word"), f"{title}: columns hold numbers or words, not {column.kind}s"
        assert column.beside in ("", *names), f"{title}: beside={column.beside!r} is not one of its columns"
    assert not hasattr(signal, "label"), f"{title}: a setting cannot be called label, which names columns in recipes"
    assert all(isinstance(node, Node) for node in signal.needs().values()), f"{title}: needs() must give nodes"


def _check_values(signal: Signal, title: str, found: Columns, good: int) -> None:
    for column in signal.columns:
        values = found[column.name]
        if column.kind == "number":
            dtype = np.asarray(values).dtype
            assert dtype == np.float32, f"{title}: {column.name} must be (n,) float32, got {dtype}"
            infinite = np.flatnonzero(np.isinf(values)).tolist()
            assert not infinite, f"{title}: {column.name} is infinite in the rows {infinite}"
        scored = any(not _is_missing(value) for value in values[:good])
        assert scored, f"{title}: {column.name} has no value for any of {good} good pairs: pass good=[...] that have"
    for reason in found.get("reason") or []:
        assert reason is None or str(reason).strip(), f"{title}: a reason must be None or a sentence, got {reason!r}"


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def _same(one: Any, two: Any, tolerance: float) -> bool:
    if _is_missing(one) or _is_missing(two):
        return _is_missing(one) and _is_missing(two)
    return bool(one == two) or (not isinstance(one, str) and abs(float(one) - float(two)) <= tolerance)


# ---- selectors


def check_selector(step: Step, *, columns: Mapping[str, Kind | Sequence[Any] | NDArray[Any]] | None = None) -> None:
    """Checks a selector on a drawn table: its choice depends on values and uids only, and all rows are counted.

    Args:
        step: the selector. One with the setting `missing` is checked with `missing="drop"`.
        columns: name -> the values to use, equally many for each column, or which values to draw: "number" (with ties
            and NaN), "word" (with None) or "vector" ((rows, 3) float16 with a row of NaN and two equal rows). Columns
            not named here get drawn numbers.

    Raises:
        AssertionError: a promise is broken; the message says which.
        DependencyError: a package that it needs is not installed.
    """
    in_recipes = not isinstance(step, AllOf | AnyOf | NoneOf)  # recipes write these as lists
    title = _check_record(step, in_recipes=in_recipes)
    if getattr(step, "missing", None) == "error":
        step = dataclasses.replace(step, missing="drop")  # type: ignore[type-var]  # the drawn table has such rows
    assert isinstance(step, Step), f"{title} lacks name, reads or select(table)"
    assert isinstance(step.reads, frozenset), f"{title}: reads must be a frozenset of column names, got {step.reads!r}"
    line = describe(step)
    assert line.strip() and "\n" not in line, f"{title}: `described` must be one line, got {line!r}"  # noqa: PT018

    values = _values(step, columns or {})
    rows = len(next(iter(values.values())))
    seen: set[str] = set()
    table = _table(values, seen=seen)
    before = table.candidates.copy()
    found = step.select(table)
    _check_selection(found, table, title)
    assert np.array_equal(table.candidates, before), f"{title} changes which rows of the table are candidates"
    assert seen == step.reads, f"{title} reads {sorted(seen)}, and its `reads` names {sorted(step.reads)}"
    try:
        json.dumps([dict(found.counts), dict(found.facts), found.cut and float(found.cut)])
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{title}: counts, cut and facts cannot be written as JSON ({error})") from error

    order, straight = np.random.default_rng(3).permutation(rows), np.arange(rows)
    for how, other, places, block in (
        ("a second time", step, straight, 5),
        ("after pickling", pickle.loads(pickle.dumps(step)), straight, 5),
        *(("in another order or in other blocks", step, order, block) for block in (1, 4, 100)),
    ):
        again = other.select(_table(values, places, block))
        differing = sorted(places[again.keep != found.keep[places]].tolist())
        assert not differing, f"{title} decides differently about the rows {differing} {how}"
        assert (again.counts, again.cut) == (found.counts, found.cut), f"{title}: counts or cut change {how}"
        for name in PER_ROW:
            one, other = getattr(found, name), getattr(again, name)
            assert one is None or np.array_equal(one[places], other), f"{title}: {name} changes {how}"
        same = found.order is None or np.array_equal(found.order, places[again.order])
        assert same, f"{title}: order changes {how}"
    for empty in (_table(values, straight[:0]), _table(values).with_candidates(np.zeros(rows, bool))):
        _check_selection(step.select(empty), empty, title)
    if hasattr(step, "missing"):
        _check_missing(step, values, found, title)


def _values(step: Step, columns: Columns) -> dict[str, NDArray[Any]]:
    """Returns values for each column that the step reads and for one that it does not; words as objects."""
    kinds = dict.fromkeys(sorted({*step.reads, "unread"}), "number") | dict(columns)
    values = {
        name: value if isinstance(value, np.ndarray) else np.array(value, object)
        for name, value in kinds.items()
        if not isinstance(value, str)
    }
    rows = len(next(iter(values.values()), range(_ROWS)))
    rng = np.random.default_rng(2)
    for name in [name for name in kinds if name not in values]:
        if kinds[name] == "word":
            values[name] = np.array([None, "en", "en", "de", "fr"], object)[rng.integers(0, 5, rows)]
        elif kinds[name] == "vector":
            values[name] = np.round(rng.normal(size=(rows, 3)), 1).astype(np.float16)
            values[name][5], values[name][4] = values[name][6], np.nan
        else:
            values[name] = np.round(rng.normal(size=rows), 1).astype(np.float32)
            values[name][rng.choice(rows, max(rows // 5, 1), replace=False)] = np.nan
            values[name][rows // 2 : rows // 2 + 4] = 0.5  # ties
    return values


class _NotedTable(MemoryTable):
    seen: set[str]

    def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
        self.seen.update(names)
        return super().read(block, names)


def _table(
    values: Mapping[str, NDArray[Any]], rows: Rows | None = None, block: int = 5, seen: set[str] | None = None
) -> Table:
    """Returns a table of some rows, about four in five of them candidates; `seen` gets the columns that are read."""
    count = len(next(iter(values.values())))
    rows = np.arange(count) if rows is None else rows
    rng = np.random.default_rng(3)
    high, low = rng.integers(0, 2**64, (2, count), dtype=np.uint64)[:, rows]
    taken = {name: value[rows].tolist() if value.dtype == object else value[rows] for name, value in values.items()}
    table = _NotedTable(taken, uids=(high, low), block=block)
    table.seen = set() if seen is None else seen
    return table.with_candidates((rng.random(count) < 0.8)[rows])


def _check_selection(found: Selection, table: Table, title: str) -> None:
    assert isinstance(found, Selection), f"{title}: select() must return a Selection, not a {type(found).__name__}"
    keep, candidates, counts = found.keep, table.candidates, dict(found.counts)
    right = keep.dtype == bool and keep.shape == (len(table),)
    assert right, f"{title}: keep must be ({len(table)},) bool, got {keep.shape} {keep.dtype}"
    stray = np.flatnonzero(keep & ~candidates).tolist()
    assert not stray, f"{title} keeps the rows {stray}, which are not candidates"
    kept, total = int(keep.sum()), int(candidates.sum())
    right = counts.get("kept") == kept and "missing" in counts and sum(counts.values()) == total
    assert right, f"{title}: it keeps {kept} of {total} candidates, and its counts do not add up to that: {counts}"
    for name, kind in PER_ROW.items():
        values = getattr(found, name)
        right = values is None or (values.dtype == kind and values.shape == keep.shape and not values[~keep].any())
        right = right and (name != "times" or values is None or values[keep].all())
        assert right, f"{title}: {name} must be (rows,) {kind.__name__}, 0 for dropped rows; times above 0 for others"
    if found.order is not None:
        rows = np.repeat(np.arange(keep.size), keep if found.times is None else found.times)
        right = found.order.dtype == np.int64 and np.array_equal(np.sort(found.order), rows)
        assert right, f"{title}: order must be int64, and have every kept row as often as it is kept"
    codes = found.dropped_by
    fell = np.array_equal(codes > 0, candidates & ~keep) and codes.max(initial=0) <= len(found.reasons)
    assert fell, f"{title}: dropped_by must have the code of a reason for exactly the rows that are dropped"


def _check_missing(step: Any, values: Mapping[str, NDArray[Any]], found: Selection, title: str) -> None:
    """A step with the setting `missing` raises for rows that lack a value, or counts them as missing."""
    lacking = np.zeros(found.keep.size, bool)
    for name in step.reads:
        lacking |= [value is None or bool(np.any(value != value)) for value in values[name]]
    lacking &= _table(values).candidates
    if not lacking.any():
        return
    kept = np.flatnonzero(found.keep & lacking).tolist()
    right = not kept and found.counts["missing"] > 0
    assert right, f"{title}: with `missing: drop` it keeps or does not count rows that lack a value: keeps {kept}"
    try:
        dataclasses.replace(step, missing="error").select(_table(values))
    except RecipeError:
        return
    raise AssertionError(f"{title}: with `missing: error` it must raise a RecipeError, as `verdict` does")


# ---- exporters


def check_exporter(exporter: Exporter) -> None:
    """Checks an exporter on subsets of a drawn pool: equal subsets give equal bytes, and no other file is touched.

    Raises:
        AssertionError: a promise is broken; the message says which.
        DependencyError: a package that it needs is not installed.
    """
    title = _check_record(exporter)
    assert isinstance(exporter, Exporter), f"{title} does not derive from tamis.exports.Exporter"

    def write(subset: Subset, out: Path) -> int:
        return exporter.write(subset, out)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pool(folder / "pool", pairs=8, shard_size=4, shares={"visual": 1.0}, defects=False)
        run = score(folder / "pool", run=folder / "run", signals=["caption_length"], quiet=True)
        before = _bytes(folder)
        for share in (0, 1, 0.5):
            what = f"a subset of {8 * share:g} of 8 pairs"
            subset = select(run, {"name": "chosen", "select": [{"random_fraction": {"fraction": share}}]})
            one, two = folder / f"one {share}" / "out", folder / f"two {share}" / "out"
            for out in (one, two, two):  # the second time over what is there
                out.parent.mkdir(exist_ok=True)
                written = write(subset, out)
                assert type(written) is int, f"{title}: write() returns {written!r} for {what}, not a number of pairs"
                names = sorted(path.name for path in out.parent.iterdir())
                assert names == ["out"], f"{title} must write `out` for {what} and nothing next to it, wrote {names}"
                assert _bytes(out) == _bytes(one), f"{title} writes {what} differently at another path or a second time"
        after = {path: data for path, data in _bytes(folder).items() if path.startswith(("pool/", "run/"))}
        changed = {path for path in after.keys() | before.keys() if after.get(path) != before.get(path)}
        assert not changed, f"{title} changes {', '.join(sorted(changed))}, which is not its output"
        (folder / "file").write_text("not a folder")
        try:
            write(subset, folder / "file" / "out")
        except TamisError:
            return
        except OSError as error:
            what = (
                f"{type(error).__name__}, which users see as a traceback: write with tamis.core.files.storage.writing"
            )
            raise AssertionError(f"{title} raises {what}") from error
        raise AssertionError(f"{title} raises nothing for a path below a file")


def _bytes(place: Path) -> dict[str, bytes]:
    """Returns the bytes of a file, or of all files of a folder, by their path in it."""
    if place.is_file():
        return {"": place.read_bytes()}
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
