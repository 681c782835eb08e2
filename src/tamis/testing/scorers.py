"""Checks that a scorer keeps its promises."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from tamis.data import Column, Device, Node, Sample, Samples, Scorer
from tamis.graph import Executor, Identities, execute, topological
from tamis.testing import pairs
from tamis.testing.records import check_record, check_word, title_of


def check_scorer(
    scorer: Scorer,
    *,
    tolerance: float = 0.0,
    looks_at: Collection[str] | Mapping[str, Collection[str]] | None = None,
    good: Sequence[Sample] | None = None,
    documented: bool = False,
    device: Device | None = None,
) -> None:
    """Checks a scorer on drawn pairs: a score depends on its pair alone, and what cannot be judged has none.

    Args:
        scorer: the scorer.
        tolerance: how far two results for one pair may lie apart; 0 unless a network computes them.
        looks_at: "image", "caption" or both: what must be there for a score, or for each column by its name; ():
            neither. None: not said, and then only a pair that has neither must be without a score.
        good: pairs that it judges; None: drawn ones.
        documented: whether the docstring must tell of settings, columns, NaN and cost.
        device: where networks run.

    Raises:
        AssertionError: a promise is broken; the sentence says how.
        ModelError, DependencyError: a model or package that it needs is not here.
    """
    check_record(scorer, documented)
    title, device = title_of(scorer), device or Device(batch_size=4)
    _check_declared(scorer, title, documented)
    again = deepcopy(scorer)
    one, two = (Identities(device).fingerprint(each) for each in (scorer, again))
    assert one == two, f"{title} has the fingerprint {one}, and its copy {two}"
    for argument, node in scorer.needs().items():
        assert isinstance(node, Node), f"{title}: needs() gives {node!r} for {argument}, which is no node"
        assert node == again.needs()[argument], f"{title}: needs() of its copy gives another node for {argument}"
    executor = Executor(device)

    def run(samples: Sequence[Sample]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = executor.run([scorer], {Samples(): list(samples)})[scorer]
        return found

    good = list(good) if good is not None else pairs.good_pairs()
    samples = pairs.batch_of(good)
    before = [pickle.dumps(sample) for sample in samples]
    whole = run(samples)
    for sample, was in zip(samples, before, strict=True):
        assert pickle.dumps(sample) == was, f"{title} changes the pair {sample.key!r}, which others read after it"
    _check_values(scorer, title, whole, len(good), tolerance)

    def same(found: Mapping[str, Any], rows: Sequence[int], how: str) -> None:
        for column in scorer.columns:
            allowed = tolerance if column.kind == "number" else 0
            for row, value in zip(rows, found[column.name], strict=True):
                was = whole[column.name][row]
                assert _same(was, value, allowed), (
                    f"{title}: {column.name} of the pair {samples[row].key!r} was {_shown(was)}, "
                    f"and {how} {_shown(value)}" + (f" (they may lie {allowed:g} apart)" if allowed else "")
                )

    rows = list(range(len(samples)))
    same(run(pairs.batch_of(good)), rows, "in a second run")
    for size in (1, 4, len(samples) - 2):
        for start in range(0, len(samples), size):
            some = rows[start : start + size]
            same(run([samples[row] for row in some]), some, f"in batches of {size}")
    order = np.random.default_rng(1).permutation(len(samples)).tolist()
    same(run([samples[row] for row in order]), order, "in another place")
    empty = run([])
    assert not any(len(empty[column.name]) for column in scorer.columns), f"{title} has values for a batch of no pairs"
    copied = pickle.loads(pickle.dumps(scorer))
    same(execute([copied], samples[:2], device)[copied], rows[:2], "after pickling")
    looking = [node for node in topological([scorer]) if Samples() in node.needs().values()]
    if all(node.in_index for node in looking):
        bare = pairs.batch_of(good)
        for sample in bare:
            sample.image = sample.pixels = None
        same(run(bare), rows, "from the index, which has no images (in_index),")
    _check_missing(scorer, title, run, good, looks_at, whole)


def _check_declared(scorer: Scorer, title: str, documented: bool) -> None:
    assert isinstance(scorer, Scorer), f"{title} does not derive from tamis.data.Scorer"
    assert scorer.version >= 1, f"the version of {title} must be 1 or more, got {scorer.version!r}"
    names = [column.name for column in scorer.columns]
    assert names, f"{title} declares no column"
    assert len(set(names)) == len(names), f"two columns of {title} have one name: {', '.join(names)}"
    for column in scorer.columns:
        check_word(column.name, f"a column's name of {title}")
        assert column.name != "reason", f"{title}: a column cannot be called reason, where its reasons go"
        assert column.kind in ("number", "word"), f"{title}: scorers emit numbers and words, not {column.kind}s"
        assert column.beside in ("", *names), f"{title}: beside={column.beside!r} is no column of it"
    labelled = any(setting.name == "label" for setting in dataclasses.fields(scorer))  # type: ignore[arg-type]
    assert not labelled, f"{title}: a setting cannot be called label, under which recipes name its columns"
    text = inspect.getdoc(type(scorer)) or ""
    for word in ("Emits:", "NaN", "Cost:") if documented else ():
        assert word in text, f"the docstring of {title} has no {word!r}"
    for column in scorer.columns if documented else ():
        told = f"{column.name}:" in text.partition("Emits:")[2]
        assert told, f"the docstring of {title} does not tell of {column.name} under 'Emits:'"
        assert column.unit, f"the column {column.name} of {title} needs a unit"
        assert column.about, f"the column {column.name} of {title} needs an about"


def _check_values(scorer: Scorer, title: str, found: Mapping[str, Any], good: int, tolerance: float) -> None:
    for column in scorer.columns:
        values = found[column.name]
        if column.kind == "number":
            dtype = np.asarray(values).dtype
            assert dtype == np.float32, f"{title}: {column.name} must be (n,) float32, got {dtype}"
            infinite = np.flatnonzero(np.isinf(values)).tolist()
            assert not infinite, f"{title}: {column.name} is infinite in the rows {infinite}"
        judged = [value for value in values[:good] if not _missing(value)]
        assert judged, f"{title}: {column.name} has a value for none of {good} good pairs: pass good=[...] that have"
        first, copy = values[0], values[good]
        assert _same(first, copy, tolerance if column.kind == "number" else 0), (
            f"{title}: {column.name} of one pair was {_shown(first)}, and where it stands again {_shown(copy)}"
        )
    for reason in found.get("reason") or []:
        sentence = reason is None or (isinstance(reason, str) and reason.strip())
        assert sentence, f"{title}: a reason must be None or a sentence, got {reason!r}"


def _check_missing(
    scorer: Scorer, title: str, run: Any, good: Sequence[Sample], looks_at: Any, whole: Mapping[str, Any]
) -> None:
    def needed(column: Column) -> set[str] | None:
        if isinstance(looks_at, Mapping):
            return set(looks_at[column.name])
        return None if looks_at is None else set(looks_at)

    nothing = pairs.without_image(pairs.without_caption(good[-1]))
    for some in ([nothing], [nothing, nothing], [good[0], nothing]):
        found = run(some)
        for column in scorer.columns:
            value = found[column.name][-1]
            assert needed(column) == set() or _missing(value), (
                f"{title}: {column.name} is {_shown(value)} for a pair without image and caption"
            )
    for part, without in (("caption", pairs.without_caption), ("image", pairs.without_image)):
        found = run([without(good[0]), without(good[-1])])
        for column in scorer.columns:
            wanted = needed(column)
            for row, value in zip((0, len(good) - 1), found[column.name], strict=True) if wanted is not None else ():
                before = whole[column.name][row]
                if wanted and part in wanted:
                    assert _missing(value), f"{title}: {column.name} is {_shown(value)} for a pair without its {part}"
                else:
                    assert not _missing(value) or _missing(before), (
                        f"{title}: {column.name} was {_shown(before)}, and is missing without the {part}, "
                        "which it does not look at"
                    )


def _missing(value: Any) -> bool:
    return value is None or value != value


def _same(one: Any, two: Any, tolerance: float) -> bool:
    if _missing(one) or _missing(two):
        return _missing(one) and _missing(two)
    return bool(one == two or (tolerance and abs(float(one) - float(two)) <= tolerance))


def _shown(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)
