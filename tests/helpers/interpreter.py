"""A slow interpreter of recipes that goes through rows one by one; the real selectors are compared with it."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import floor
from operator import xor
from pathlib import Path
from typing import Any

import numpy as np

from tamis.core.ids import scramble, uniforms
from tamis.core.math.similarity import cosines, unit_rows
from tamis.recipes import steps as sel
from tamis.runs.table import MemoryTable, Table

NAN = float("nan")
Row = dict[str, Any]
Why = dict[int, str]  # the reason of every row that is dropped


#: The tags of a row, by its word.
TAGS = {None: None, "en": "bad,blurry", "de": "good"}


class LackingError(Exception):
    """Rows have no value, and the step says `missing: error`."""


def rows_of(seed: int, count: int, *, scored: bool = True) -> list[Row]:
    """Rows with ties, NaN, missing words, missing embeddings, repeated hashes and repeated uids; or without scores."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for _ in range(count):
        vector = np.round(rng.normal(size=3), 1).astype(np.float16) + np.float16(0.01)
        lost = rng.random() < 0.2
        uid = tuple(int(half) for half in rng.integers(0, 2**64, 2, dtype=np.uint64))
        rows.append(
            {
                "a": float(rng.choice([0.25, 0.5, 0.5, 0.75, NAN])) if scored else NAN,
                "b": float(rng.choice([0.0, 1.0, 2.0, NAN])) if scored else NAN,
                "w": [None, "en", "en", "de"][int(rng.integers(4))] if scored else None,
                "h": None if lost else f"{1 << int(rng.integers(0, 6)):016x}",
                "i": np.full(3, np.nan, np.float16) if lost else vector,
                "t": np.full(3, np.nan, np.float16) if lost else vector[::-1].copy(),
                "on_list": NAN if lost else float(vector[0] > 1),
                "uid": rows[-1]["uid"] if rows and rng.random() < 0.1 else uid,
            }
        )
    return rows


def table_of(rows: Sequence[Row], block: int = 4) -> Table:
    columns: dict[str, Any] = {
        name: np.array([row[name] for row in rows], np.float32) for name in ("a", "b", "on_list")
    }
    columns |= {name: [row[name] for row in rows] for name in "wh"}
    columns["tagged"] = [TAGS[row["w"]] for row in rows]
    columns |= {name: np.array([row[name] for row in rows], np.float16).reshape(-1, 3) for name in "it"}
    high, low = np.array([row["uid"] for row in rows], np.uint64).reshape(-1, 2).T
    return MemoryTable(columns, uids=(high, low), block=block)


def _minmax(values: Sequence[float]) -> list[float]:
    known = [value for value in values if value == value]
    spread = max(known) - min(known) if known else 0
    return [NAN if v != v else (v - min(known)) / spread if spread else 0.0 for v in values]


def _ranks(values: Sequence[float]) -> list[float]:
    known = [value for value in values if value == value]
    middle = {v: sum(k < v for k in known) + (known.count(v) - 1) / 2 for v in known}
    return [NAN if v != v else middle[v] / (len(known) - 1) if len(known) > 1 else 0.0 for v in values]


#: What each expression that tests use gives for the rows of a pool.
SCORES: dict[str, Callable[[Sequence[Row]], list[float]]] = {
    "a": lambda rows: [row["a"] for row in rows],
    "b": lambda rows: [row["b"] for row in rows],
    "2*a - b": lambda rows: [2 * row["a"] - row["b"] for row in rows],
    "1/b": lambda rows: [1 / row["b"] if row["b"] else NAN for row in rows],  # infinite is missing
    "0.5*minmax(a) + b": lambda rows: [
        0.5 * a + row["b"] for a, row in zip(_minmax(SCORES["a"](rows)), rows, strict=True)
    ],
    "rank(minmax(b))": lambda rows: _ranks(_minmax(SCORES["b"](rows))),
}


def tie(row: Row, seed: int = 0) -> int:
    return int(scramble(*(np.array([half], np.uint64) for half in row["uid"]), seed)[0])


def half_up(share: float, rows: int) -> int:
    return int(np.floor(round(share * rows, 9) + 0.5))


def lacking(step: Any, rows: Sequence[Row], among: set[int], names: Sequence[str]) -> Why:
    """Rows without a value of an expression, a word or a vector."""
    why: Why = {}
    for name in names:
        values = SCORES[name](rows) if name in SCORES else [row[name] for row in rows]
        for n in among:
            value = values[n]
            if value is None or (not isinstance(value, str) and bool(np.any(np.isnan(value)))):
                why[n] = f"no value for {' and '.join(names)}"
    if why and step.missing == "error":
        raise LackingError
    return why


def threshold(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    why = lacking(step, rows, among, [step.score])
    values = SCORES[step.score](rows) if step.score in SCORES else [row[step.score] for row in rows]
    for n in among - set(why):
        if isinstance(step, sel.AtLeast) and values[n] < step.value:
            why[n] = f"{step.score} below {step.value:g}"
        if isinstance(step, sel.AtMost) and values[n] > step.value:
            why[n] = f"{step.score} above {step.value:g}"
        if isinstance(step, sel.Between) and not step.low <= values[n] <= step.high:
            why[n] = f"{step.score} outside {step.low:g} to {step.high:g}"
        if isinstance(step, sel.Equals):
            wanted = step.value if isinstance(step.value, tuple) else (step.value,)
            if values[n] not in wanted:
                why[n] = f"{step.score} is not {' or '.join(map(str, wanted))}"
    return why


def tagged(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    wanted = [step.tags] if isinstance(step.tags, str) else list(step.tags)
    has = {n: [tag for tag in (TAGS[rows[n]["w"]] or "").split(",") if tag in wanted] for n in among}
    return {n: f"not tagged {' or '.join(wanted)}" for n, tags in has.items() if not tags}


def top(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    why = lacking(step, rows, among, [step.score, *([step.per] if step.per else [])])
    values = SCORES[step.score](rows)
    best = sorted(among - set(why), key=lambda n: (-values[n], tie(rows[n]), n))
    of_pool = getattr(step, "of", "survivors") == "pool"

    def budget(size: int) -> int:
        return half_up(step.fraction, size) if isinstance(step, sel.TopFraction) else step.n

    if step.per and step.cap is None:
        kept: set[int] = set()
        for group in {rows[n][step.per] for n in best}:
            members = [n for n in best if rows[n][step.per] == group]
            size = sum(row[step.per] == group for row in rows) if of_pool else len(members)
            kept |= set(members[: budget(size)])
        return why | dict.fromkeys(among - set(why) - kept, f"below the cut of its {step.per}")
    if step.per:
        place: Counter[Any] = Counter()
        for n in best[:]:
            if place[rows[n][step.per]] >= step.cap:
                best.remove(n)
            place[rows[n][step.per]] += 1
    kept = set(best[: budget(len(rows) if of_pool else len(among))])
    return why | dict.fromkeys(among - set(why) - kept, f"{step.score} below the cut")


def random_fraction(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    order = sorted(among, key=lambda n: (tie(rows[n], step.seed), n))
    return dict.fromkeys(order[half_up(step.fraction, len(rows) if step.of == "pool" else len(among)) :], "not drawn")


def sample(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """Rows with a positive count, rounded in the order of the uids, stay; the level is found by bisection."""
    why = lacking(step, rows, among, [step.score])
    copies = step.n if step.fraction is None else half_up(step.fraction, len(rows) if step.of == "pool" else len(among))
    values = SCORES[step.score](rows)
    judged = sorted(among - set(why), key=lambda n: values[n])
    if not judged or not copies:
        return why | dict.fromkeys(judged, "not drawn")
    spread = float(np.std([values[n] for n in judged])) or 1.0
    logits = {n: values[n] / spread * step.std for n in judged}

    def counts(level: float) -> dict[int, float]:
        if step.cap == "soft":
            return {n: float(np.log1p(np.exp(logits[n] - level))) / step.alpha for n in judged}
        if step.cap == "level":
            return {n: max(0.0, (logits[n] - level) / step.alpha) for n in judged}
        return {n: min(float(step.limit), float(np.exp(logits[n] - level))) for n in judged}

    low, high = min(logits.values()) - 400, max(logits.values()) + 400
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(counts(middle).values()) > copies else (low, middle)
    often = counts(high)
    drawn = sorted((n for n in judged if often[n] > 0), key=lambda n: (tie(rows[n], step.seed), values[n], n))
    total, start = 0.0, reduce(xor, (tie(rows[n], step.seed) for n in drawn)) / 2**64
    for n in drawn:
        before, total = floor(round(total, 6) + start), total + often[n]
        if floor(round(total, 6) + start) == before:
            why[n] = "not drawn"
    why |= {n: "not drawn" for n in judged if not often[n]}
    assert abs(total - copies) < 1e-6
    return why


def one_of_each(
    step: Any, rows: Sequence[Row], among: set[int], column: str, near: Callable[[Any, Any], bool], among_kept: bool
) -> Why:
    """A row is dropped that is near one before it, by scrambled uid: near one that is kept, or near any."""
    why = lacking(step, rows, among, [column])
    before: list[int] = []
    for n in sorted(among - set(why), key=lambda n: (tie(rows[n], getattr(step, "seed", 0)), n)):
        if any(near(rows[n][column], rows[other][column]) for other in before):
            why[n] = "repeats another"
        if n not in why or not among_kept:
            before.append(n)
    return why


def semdedup(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    def near(one: Any, other: Any) -> bool:
        one, other = one.astype(float), other.astype(float)
        return bool(one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 1 - step.epsilon)

    return one_of_each(step, rows, among, step.embedding, near, among_kept=False)


def distinct(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    def near(one: str, other: str) -> bool:
        return (int(one, 16) ^ int(other, 16)).bit_count() <= step.distance

    return one_of_each(step, rows, among, step.hash, near, among_kept=True)


def density(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """Of one cluster the first n by scrambled uid stay."""
    why = lacking(step, rows, among, [step.embedding])
    ranked = sorted(among - set(why), key=lambda n: (tie(rows[n], step.seed), n))
    return why | dict.fromkeys(ranked[step.n :], "above the quota of its cluster")


def d2(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """D2 by a loop: every pick is the largest score of all rows. The cosines alone are the step's own, rounded."""
    why = lacking(step, rows, among, [step.score, step.embedding])
    left = sorted(among - set(why), key=lambda n: (tie(rows[n], step.seed), n))
    budget = half_up(step.fraction, len(rows) if step.of == "pool" else len(among))
    unit = unit_rows(np.array([rows[n][step.embedding] for n in left]).reshape(-1, 3))
    distance = np.maximum(2 - 2 * cosines(unit, unit), 0)
    near, own = np.exp(-distance), [max(SCORES[step.score](rows)[n], 1e-7) for n in left]
    others = [sorted({*range(len(left))} - {i}, key=lambda j: (distance[i, j], j))[: step.k] for i in range(len(left))]
    scores = [own[i] + sum(float(near[i, j]) * own[j] for j in others[i]) for i in range(len(left))]
    picks: list[int] = []
    while len(picks) < min(budget, len(left)):
        best = max({*range(len(left))} - {*picks}, key=lambda i: (scores[i], -i))
        picks.append(best)
        for j in others[best]:
            scores[j] -= scores[best] * (1 if step.mode == "absolute" else float(near[best, j]))
    return why | dict.fromkeys({*left} - {left[i] for i in picks}, "near a better pair, or a low score")


def image_based(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    return lacking(step, rows, among, [step.embedding])  # the one cluster there is holds a reference


def norm_sim_d(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """Which rows it takes is the matter of tests/recipes/derived/test_clip_loss.py; here it is how many."""
    why = lacking(step, rows, among, [step.embedding])
    found = step.select(table_of(rows).with_candidates(np.array([n in among for n in range(len(rows))], bool)))
    stay = set(np.flatnonzero(found.keep).tolist())
    assert len(stay) == min(
        half_up(step.fraction, len(rows) if step.of == "pool" else len(among)), len(among - set(why))
    )
    return why | dict.fromkeys(among - set(why) - stay, "least like the rows that stay")


def cabs(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """Which rows it takes is the matter of tests/recipes/steps/test_cabs.py; here it is how many."""
    why = lacking(step, rows, among, [step.concepts])
    found = step.select(table_of(rows).with_candidates(np.array([n in among for n in range(len(rows))], bool)))
    stay = set(np.flatnonzero(found.keep).tolist())
    pairs = len(among - set(why))
    size = max(1, min(step.super_batch, pairs))
    whole, rest = divmod(step.epochs * pairs, size)
    picks = whole * half_up(step.share, size) + half_up(step.share, rest)
    assert (len(stay) if found.times is None else found.times.sum()) == picks
    return why | dict.fromkeys(among - set(why) - stay, "others fit their batch better")


def balance(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """The column holds one entry, so a caption stays if its entry draws it."""
    why = lacking(step, rows, among, [step.entries])
    counted = range(len(rows)) if step.of == "pool" else among
    counts = Counter(rows[n][step.entries] for n in counted if rows[n][step.entries] is not None)
    ordered, t = sorted(counts.values()), step.t
    if t is None:
        shares = [sum(ordered[: n + 1]) / sum(ordered) for n in range(len(ordered))]
        t = min(zip(ordered, shares, strict=True), key=lambda one: abs(one[1] - step.tail))[0] if ordered else 1
    for n in among - set(why):
        halves = (np.array([half], np.uint64) for half in rows[n]["uid"])
        draw = float(uniforms(*halves, seed=step.seed, counters=[np.ones(1, np.int64)])[0])
        if draw >= min(1, t / counts[rows[n][step.entries]]):
            why[n] = "its entries are frequent"
    return why


def choose_caption(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    score = SCORES[step.score](rows)
    other = [v if row[step.text] else NAN for v, row in zip(SCORES[step.other](rows), rows, strict=True)]
    known = sorted(score[n] for n in among if score[n] == score[n])
    n = min(half_up(1 - step.quantile, len(rows) if step.of == "pool" else len(among)), len(known))
    cut = step.threshold if step.threshold is not None else known[-n] if n else float("inf")
    why = {
        n: f"no value for {step.score} and {step.other}" for n in among if score[n] != score[n] and other[n] != other[n]
    }
    poor = {n for n in among - set(why) if not (score[n] >= cut or other[n] >= cut)}
    return why | dict.fromkeys(poor, "neither text reaches the threshold")


def not_in(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """The reference is (1, 1, 1)."""
    why = lacking(step, rows, among, [step.embedding])
    for n in among - set(why):
        vector = rows[n][step.embedding].astype(float)
        if round(float(vector.sum() / np.linalg.norm(vector) / np.sqrt(3)), 6) >= step.cosine:
            why[n] = f"copy of {Path(step.reference).name}"
    return why


def hash_match(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    why = lacking(step, rows, among, ["on_list"])
    return why | {n: "on a list of hashes" for n in among if rows[n]["on_list"] == 1}


def clipcov(step: Any, rows: Sequence[Row], among: set[int]) -> Why:
    """Which rows it takes is the matter of tests/core/math/test_clipcov.py; here it is which rows lack what."""
    why = lacking(step, rows, among, [step.image, step.text, step.per])
    found = step.rank(table_of(rows).with_candidates(np.array([n in among for n in range(len(rows))], bool)))
    return why | dict.fromkeys(among - set(why) - set(found.rows[found.stays].tolist()), "adds less")


def group(step: Any, rows: Sequence[Row], among: set[int], kind: str) -> Why:
    everything = set(range(len(rows)))
    kept = {name: everything - set(interpret(part, rows)) for name, part in zip(step.labels, step.parts, strict=True)}
    why: Why = {}
    for n in among:
        inside = [name for name in kept if n in kept[name]]
        outside = [name for name in kept if n not in kept[name]]
        if kind == "all_of" and outside:
            why[n] = f"not in {outside[0]}"
        if kind == "none_of" and inside:
            why[n] = f"in {inside[0]}"
        if kind == "any_of" and not inside:
            why[n] = f"in none of {', '.join(kept)}"
    return why


INTERPRETERS: dict[str, Callable[[Any, Sequence[Row], set[int]], Why]] = {
    **dict.fromkeys(("at_least", "at_most", "between", "equals"), threshold),
    **dict.fromkeys(("top_fraction", "top_n"), top),
    **{kind: partial(group, kind=kind) for kind in ("all_of", "any_of", "none_of")},
    "random_fraction": random_fraction,
    "sample": sample,
    "tagged": tagged,
    "semdedup": semdedup,
    "density": density,
    "d2": d2,
    "image_based": image_based,
    "distinct": distinct,
    "clipcov": clipcov,
    "balance": balance,
    "choose_caption": choose_caption,
    "not_in": not_in,
    "hash_match": hash_match,
    "norm_sim_d": norm_sim_d,
    "cabs": cabs,
}


def interpret(steps: Sequence[Any], rows: Sequence[Row]) -> Why:
    """Returns the step and the reason of every row that a recipe drops.

    Raises:
        LackingError: a step that says `missing: error` meets rows without a value.
    """
    among, why = set(range(len(rows))), {}
    for number, step in enumerate(steps, start=1):
        dropped = INTERPRETERS[step.name](step, rows, among)
        why |= {n: f"Step {number}: {text}" for n, text in dropped.items()}
        among -= set(dropped)
    return why
