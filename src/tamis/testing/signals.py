"""Checks that a signal keeps its promises."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tamis.data import Device, Node, Sample, Samples, Signal
from tamis.graph import Executor, execute, topological
from tamis.testing import pairs
from tamis.testing.records import check_record, check_word

Run = Callable[[Sequence[Sample]], Mapping[str, Any]]


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
        signal: the signal.
        tolerance: how far two results for one pair may differ; 0 unless a network computes them.
        looks_at: "image", "caption" or both: what a score needs, for all columns or for each by name; (): neither.
            None: unknown; then only a pair without both must have no score.
        good: pairs that it can score; None: drawn ones.
        device: where networks run.

    Raises:
        AssertionError: a promise is broken; the message says which.
        ModelError, DependencyError: a model or package that it needs is missing.
    """
    title, device = check_record(signal), device or Device(batch_size=4)
    _check_declared(signal, title)
    executor = Executor(device)

    def run(samples: Sequence[Sample]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = executor.run([signal], {Samples(): list(samples)})[signal]
        return found

    good = list(good) if good is not None else pairs.good_pairs()
    samples, bare = pairs.batch_of(good), pairs.batch_of(good)
    before = [pickle.dumps(sample) for sample in samples]
    whole = run(samples)
    changed = [one.key for one, old in zip(samples, before, strict=True) if pickle.dumps(one) != old]
    assert not changed, f"{title} changes the pairs {changed}, which other signals read too"
    _check_values(signal, title, whole, len(good))

    def compare(found: Mapping[str, Any], rows: Sequence[int], how: str) -> None:
        for name in (column.name for column in signal.columns):
            for row, value in zip(rows, found[name], strict=True):
                old, key = whole[name][row], samples[row].key
                same = _same(old, value, tolerance)
                assert same, f"{title}: {name} of the pair {key!r} is {old!s}, and {how} {value!s} ({tolerance=:g})"

    rows = list(range(len(samples)))
    compare(run(pairs.batch_of(good)), rows, "in a second run")
    compare({column.name: whole[column.name][:1] for column in signal.columns}, [len(good)], "where it occurs again")
    order = np.random.default_rng(1).permutation(len(samples)).tolist()
    compare(run([samples[row] for row in order]), order, "in another place")
    for size in (1, 4, len(samples) - 2):
        for some in (rows[start : start + size] for start in range(0, len(samples), size)):
            compare(run([samples[row] for row in some]), some, f"in batches of {size}")
    compare(run([]), [], "in an empty batch")
    pickled = pickle.loads(pickle.dumps(signal))
    compare(execute([pickled], samples[:2], device)[pickled], rows[:2], "after pickling")
    if all(node.in_index for node in topological([signal]) if Samples() in node.needs().values()):
        for sample in bare:
            sample.image = sample.pixels = None
        compare(run(bare), rows, "from the index, which has no images (in_index),")
    _check_missing(signal, title, run, good, looks_at, whole)


def _check_declared(signal: Signal, title: str) -> None:
    assert isinstance(signal, Signal), f"{title} does not derive from tamis.data.Signal"
    assert signal.version >= 1, f"the version of {title} must be 1 or more, got {signal.version!r}"
    names = [column.name for column in signal.columns]
    assert names, f"{title} declares no column"
    assert len({*names, "reason"}) == len(names) + 1, f"{title}: columns need names of their own, not {names}"
    for column in signal.columns:
        check_word(column.name, f"a column's name of {title}")
        assert column.kind in ("number", "word"), f"{title}: columns hold numbers or words, not {column.kind}s"
        assert column.beside in ("", *names), f"{title}: beside={column.beside!r} is not one of its columns"
    assert not hasattr(signal, "label"), f"{title}: a setting cannot be called label, which names columns in recipes"
    assert all(isinstance(node, Node) for node in signal.needs().values()), f"{title}: needs() must give nodes"


def _check_values(signal: Signal, title: str, found: Mapping[str, Any], good: int) -> None:
    for column in signal.columns:
        values = found[column.name]
        if column.kind == "number":
            dtype = np.asarray(values).dtype
            assert dtype == np.float32, f"{title}: {column.name} must be (n,) float32, got {dtype}"
            infinite = np.flatnonzero(np.isinf(values)).tolist()
            assert not infinite, f"{title}: {column.name} is infinite in the rows {infinite}"
        judged = any(not _missing(value) for value in values[:good])
        assert judged, f"{title}: {column.name} has no value for any of {good} good pairs: pass good=[...] that have"
    for reason in found.get("reason") or []:
        assert reason is None or str(reason).strip(), f"{title}: a reason must be None or a sentence, got {reason!r}"


def _check_missing(
    signal: Signal, title: str, run: Run, good: Sequence[Sample], looks_at: Any, whole: Mapping[str, Any]
) -> None:
    """A column has no value for a pair without what it looks at, and keeps its value without the rest."""
    for parts, remove in (
        ({"image"}, pairs.without_image),
        ({"caption"}, pairs.without_caption),
        ({"image", "caption"}, lambda one: pairs.without_image(pairs.without_caption(one))),
    ):
        found, without = run([remove(good[0]), remove(good[-1])]), " and ".join(sorted(parts))
        for name in (column.name for column in signal.columns):
            looks = looks_at[name] if isinstance(looks_at, Mapping) else looks_at
            lacks = len(parts) == 2 if looks is None else bool(parts & set(looks))
            for old, value in zip((whole[name][0], whole[name][len(good) - 1]), found[name], strict=True):
                assert _missing(value) or not lacks, f"{title}: {name} is {value!s} for a pair without {without}"
                kept = lacks or looks is None or not _missing(value) or _missing(old)
                assert kept, f"{title}: {name} is missing without {without}, which it does not look at"


def _missing(value: Any) -> bool:
    return value is None or value != value


def _same(one: Any, two: Any, tolerance: float) -> bool:
    if _missing(one) or _missing(two):
        return _missing(one) and _missing(two)
    return bool(one == two) or (not isinstance(one, str) and abs(float(one) - float(two)) <= tolerance)
