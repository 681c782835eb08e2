"""Checks that a signal keeps its promises."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from tamis.data import Column, Device, Node, Sample, Samples, Signal
from tamis.graph import Executor, Identities, execute, topological
from tamis.testing import pairs
from tamis.testing.records import check_record, check_word


def check_signal(
    signal: Signal,
    *,
    tolerance: float = 0.0,
    looks_at: Collection[str] | Mapping[str, Collection[str]] | None = None,
    good: Sequence[Sample] | None = None,
    device: Device | None = None,
) -> None:
    """Checks a signal on drawn pairs: a score depends only on its pair, and what cannot be judged has none.

    Args:
        signal: the signal.
        tolerance: how far two results for one pair may differ; 0 unless a network computes them.
        looks_at: "image", "caption" or both: what a score needs, for all columns or for each by name; (): neither.
            None: unknown; then only a pair without both must have no score.
        good: pairs that it can judge; None: drawn ones.
        device: where networks run.

    Raises:
        AssertionError: a promise is broken; the message says which.
        ModelError, DependencyError: a model or package that it needs is missing.
    """
    title, device = check_record(signal), device or Device(batch_size=4)
    _check_declared(signal, title)
    copied = deepcopy(signal)
    one, two = (Identities(device).fingerprint(each) for each in (signal, copied))
    assert one == two, f"{title} has the fingerprint {one}, and its copy {two}"
    for argument, node in signal.needs().items():
        assert isinstance(node, Node), f"{title}: needs() gives {node!r} for {argument}, which is not a node"
        assert node == copied.needs()[argument], f"{title}: needs() of its copy gives another node for {argument}"
    executor = Executor(device)

    def run(samples: Sequence[Sample]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = executor.run([signal], {Samples(): list(samples)})[signal]
        return found

    good = list(good) if good is not None else pairs.good_pairs()
    samples = pairs.batch_of(good)
    before = [pickle.dumps(sample) for sample in samples]
    whole = run(samples)
    changed = [one.key for one, old in zip(samples, before, strict=True) if pickle.dumps(one) != old]
    assert not changed, f"{title} changes the pairs {changed}, which other signals read too"
    _check_values(signal, title, whole, len(good))

    def compare(found: Mapping[str, Any], rows: Sequence[int], how: str) -> None:
        for column in signal.columns:
            for row, value in zip(rows, found[column.name], strict=True):
                old = whole[column.name][row]
                assert _same(old, value, tolerance), (
                    f"{title}: {column.name} of the pair {samples[row].key!r} is {_shown(old)}, and {how} "
                    f"{_shown(value)} (tolerance {tolerance:g})"
                )

    rows = list(range(len(samples)))
    compare(run(pairs.batch_of(good)), rows, "in a second run")
    first = {column.name: whole[column.name][:1] for column in signal.columns}
    compare(first, [len(good)], "where it occurs again")
    for size in (1, 4, len(samples) - 2):
        for start in range(0, len(samples), size):
            some = rows[start : start + size]
            compare(run([samples[row] for row in some]), some, f"in batches of {size}")
    order = np.random.default_rng(1).permutation(len(samples)).tolist()
    compare(run([samples[row] for row in order]), order, "in another place")
    empty = run([])
    assert not any(len(empty[column.name]) for column in signal.columns), f"{title} has values for an empty batch"
    pickled = pickle.loads(pickle.dumps(signal))
    compare(execute([pickled], samples[:2], device)[pickled], rows[:2], "after pickling")
    if all(node.in_index for node in topological([signal]) if Samples() in node.needs().values()):
        bare = pairs.batch_of(good)
        for sample in bare:
            sample.image = sample.pixels = None
        compare(run(bare), rows, "from the index, which has no images (in_index),")
    _check_missing(signal, title, run, good, looks_at, whole)


def _check_declared(signal: Signal, title: str) -> None:
    assert isinstance(signal, Signal), f"{title} does not derive from tamis.data.Signal"
    assert signal.version >= 1, f"the version of {title} must be 1 or more, got {signal.version!r}"
    names = [column.name for column in signal.columns]
    assert names, f"{title} declares no column"
    assert len(set(names)) == len(names), f"two columns of {title} have one name: {', '.join(names)}"
    for column in signal.columns:
        check_word(column.name, f"a column's name of {title}")
        assert column.name != "reason", f"{title}: a column cannot be called reason, which holds its reasons"
        assert column.kind in ("number", "word"), f"{title}: columns hold numbers or words, not {column.kind}s"
        assert column.beside in ("", *names), f"{title}: beside={column.beside!r} is not one of its columns"
    labelled = any(setting.name == "label" for setting in dataclasses.fields(signal))  # type: ignore[arg-type]
    assert not labelled, f"{title}: a setting cannot be called label, which recipes use for its columns"


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
        sentence = reason is None or (isinstance(reason, str) and reason.strip())
        assert sentence, f"{title}: a reason must be None or a sentence, got {reason!r}"


def _check_missing(
    signal: Signal, title: str, run: Any, good: Sequence[Sample], looks_at: Any, whole: Mapping[str, Any]
) -> None:
    def needed(column: Column) -> set[str] | None:
        if isinstance(looks_at, Mapping):
            return set(looks_at[column.name])
        return None if looks_at is None else set(looks_at)

    without = {"caption": pairs.without_caption, "image": pairs.without_image}
    nothing = pairs.without_image(pairs.without_caption(good[-1]))
    for some in ([nothing], [nothing, nothing], [good[0], nothing]):
        found = run(some)
        for column in signal.columns:
            value = found[column.name][-1]
            missing = needed(column) == set() or _missing(value)
            assert missing, f"{title}: {column.name} is {_shown(value)} for a pair without image and caption"
    for part, remove in without.items():
        found = run([remove(good[0]), remove(good[-1])])
        for column in signal.columns:
            wanted = needed(column)
            for row, value in zip((0, len(good) - 1), found[column.name], strict=True) if wanted is not None else ():
                if wanted and part in wanted:
                    assert _missing(value), f"{title}: {column.name} is {_shown(value)} for a pair without its {part}"
                else:
                    needless = not _missing(value) or _missing(whole[column.name][row])
                    assert needless, f"{title}: {column.name} is missing without the {part}, which it does not look at"


def _missing(value: Any) -> bool:
    return value is None or value != value


def _same(one: Any, two: Any, tolerance: float) -> bool:
    if _missing(one) or _missing(two):
        return _missing(one) and _missing(two)
    return bool(one == two) or (not isinstance(one, str) and abs(float(one) - float(two)) <= tolerance)


def _shown(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)
