"""Fits the weights of the derived signal `mix`: a logistic head that tells a target set from the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tamis.core.arrays import U64, Float64s, Mask
from tamis.core.errors import RecipeError, require
from tamis.core.files.storage import writing
from tamis.core.files.targets import check_target
from tamis.core.ids import scramble
from tamis.core.math.statistics import Estimate, auc, mean_interval
from tamis.core.types import flat
from tamis.recipes.derived.mix import Mix
from tamis.recipes.steps.outcome import check_kind
from tamis.runs import Run
from tamis.runs.subset import Subset
from tamis.runs.table import Table

FOLDS = 10

#: Factor of the squared coefficients; the mean loss, each side with half of the weight, has factor 4.
_PENALTY = 1e-3


@dataclass(frozen=True, kw_only=True)
class FittedMix:
    """A fitted head.

    Attributes:
        auc: area under the ROC curve on pairs that the head was not fitted on, mean over folds, Student's interval.
        coefficients: the weight of each standardised column of numbers, with its jackknife interval over the folds.
        target, pool: pairs of each side; `left_out`: others that were drawn and lack a value.
    """

    auc: Estimate
    coefficients: dict[str, Estimate]
    target: int
    pool: int
    left_out: int


def train_mix(
    target: Run | Subset,
    pool: Run | Subset,
    columns: Sequence[str],
    *,
    out: Path,
    rows: int = 50_000,
    seed: int = 0,
    overwrite: bool = False,
) -> FittedMix:
    """Fits a logistic regression that tells the target's pairs from the pool's, and writes a weights file.

    Both sides count the same, however many pairs they have; a pair of the target is not used as one of the pool's. The
    weights depend on uids, values and settings only.

    Args:
        target: pairs of the kind to look for: a clean run, or a subset of any run.
        pool: the pairs to choose from.
        columns: numbers or embeddings that both sides have from the same models, settings and files.
        rows: maximum number of pairs per side, drawn by uid.
        seed: another seed draws other pairs and folds.

    Raises:
        RecipeError: a column cannot be used, or a side has fewer than ten pairs per fold.
        RunError: a run lacks a column, or the file cannot be written.
        DependencyError: scikit-learn or SciPy is not installed.

    Cost: 11 fits of a few Newton steps, each n d² multiplications.

    Source: the CC2M and IN1K classifiers of M-FLYT (arXiv 2503.08805) are such heads on embeddings. Tukey 1958, "Bias
        and confidence in not-quite large samples" (the jackknife).
    """
    require("sklearn", "scipy", extra="evaluate")
    check_target(out, what="weights file", ours=_is_weights, overwrite=overwrite)
    tables = [(one.run if isinstance(one, Subset) else one).table() for one in (target, pool)]
    for table in tables:
        table.check_requested(columns, "mix")
    models = [_models(name, *tables) for name in columns]
    # Rows by side, those without a value left out.
    of_target, uids = _draw(target, tables[0], columns, rows, seed)
    of_pool, _ = _draw(pool, tables[1], columns, rows, seed, without=uids)
    x = np.vstack([np.hstack(of_target), np.hstack(of_pool)])
    y = np.arange(len(x)) < len(of_target[0])
    there = np.isfinite(x).all(1)
    x, y = x[there], y[there]
    sizes = int(np.count_nonzero(y)), int(np.count_nonzero(~y))
    if min(sizes) < 10 * FOLDS:
        raise RecipeError(f"train mix: {sizes[0]:,} and {sizes[1]:,} pairs are too few: {10 * FOLDS} of each")
    # Both sides are put on the pool's scale; a column that is constant there says nothing.
    constant = np.ptp(x[~y], axis=0) == 0  # rounding can give equal values a deviation
    mean, deviation = x[~y].mean(0), np.where(constant, 0.0, x[~y].std(0))
    x = np.divide(x - mean, deviation, out=np.zeros_like(x), where=~constant)
    fold = np.concatenate([np.arange(size) % FOLDS for size in sizes])  # each side's rows are in random order
    areas, others = [], []
    for number in range(FOLDS):
        here = fold == number
        others.append(_fit(x[~here], y[~here]))
        scores = x[here] @ others[-1][:-1]
        areas.append(auc(scores[y[here]], scores[~y[here]]))
    whole = _fit(x, y)
    pseudo = FOLDS * whole - (FOLDS - 1) * np.array(others)
    terms: dict[str, Any] = {}
    coefficients, stop = {}, 0
    for name, model, values in zip(columns, models, of_pool, strict=True):
        place = slice(stop, stop := stop + values.shape[1])
        named = {"weight": whole[place], "mean": mean[place], "deviation": deviation[place]}
        terms[name] = {key: [float(f"{one:.7g}") for one in each] for key, each in named.items()}
        if tables[1].kind(name) != "vector":
            terms[name] = {key: each[0] for key, each in terms[name].items()}
            coefficients[name] = replace(mean_interval(pseudo[:, place.start].tolist()), value=terms[name]["weight"])
        elif model:
            terms[name]["models"] = model
    found = FittedMix(
        auc=mean_interval(areas), coefficients=coefficients, target=sizes[0], pool=sizes[1],
        left_out=int(np.count_nonzero(~there)),
    )  # fmt: skip
    fitted = {"auc": round(found.auc.value, 4), "target": sizes[0], "pool": sizes[1], "seed": seed}
    with writing(out) as temporary:
        content = {"bias": float(f"{whole[-1]:.7g}"), "terms": terms, "fitted": fitted}
        temporary.write_text(yaml.safe_dump(content, sort_keys=False, default_flow_style=None), encoding="utf-8")
    return found


def _draw(
    side: Run | Subset, table: Table, columns: Sequence[str], most: int, seed: int, without: U64 | None = None
) -> tuple[list[Float64s], U64]:
    """Returns (n, d) values of each column for rows in random order, and all of the side's uids, scrambled."""
    rows = np.flatnonzero(side.keep) if isinstance(side, Subset) else np.arange(len(table))
    uids = scramble(*table.uids(rows), seed)
    if without is not None:
        new = ~np.isin(uids, without)
        rows, uids = rows[new], uids[new]
    rows = rows[np.argsort(uids)[:most]]
    found = [table.vectors(name, rows).astype(np.float64) for name in columns]
    return [one if one.ndim == 2 else one[:, None] for one in found], uids


def _models(name: str, one: Table, other: Table) -> list[str]:
    """Returns the digests of the models that made a column; RecipeError if the two tables have different ones."""
    check_kind("train mix", one, name, *({"vector"} if other.kind(name) == "vector" else {"number"}))
    makers = []
    for table in (one, other):
        about = table.about(name)
        models = about.get("models") or {}
        settings = {key: value for key, value in flat(about.get("settings") or {}).items() if value not in [*models]}
        settings.pop("stamps", None)  # of the run's files
        makers.append((about.get("name"), about.get("version"), sorted(models.values()), settings))
    if makers[0] != makers[1]:
        raise RecipeError(f"train mix: {name!r} of target and pool was not scored alike (models, settings, files)")
    return list(makers[0][2])


def _fit(x: Float64s, y: Mask) -> Float64s:
    """Returns the coefficients (d,) of a logistic regression and its bias, each class with half of the weight."""
    from sklearn.linear_model import LogisticRegression

    share = np.where(y, 1 / np.count_nonzero(y), 1 / np.count_nonzero(~y))
    head = LogisticRegression(C=1 / _PENALTY, solver="newton-cholesky", tol=1e-8).fit(x, y, sample_weight=share)
    return np.concatenate([head.coef_[0], head.intercept_])


def _is_weights(path: Path) -> bool:
    try:
        return bool(Mix(weights=str(path)).given.fitted)
    except RecipeError:
        return False
