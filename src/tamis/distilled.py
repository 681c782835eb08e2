"""`tamis distil`: a choice by an expensive score that most rows do not need, and a limit of how wrong it is.

Ridge regression on stored embeddings predicts the score. It is computed for a sample, for the rows whose prediction is
near the recipe's cut, and for a random audit, which bounds how far the choice is from the one by all scores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tamis.adaptive import DISTILLED, Entry, add_made_for, distilled_cut, distilled_for, sampled_rows, scores_of
from tamis.arrays import Float32s, Float64s, Floats, Mask, Rows
from tamis.choosing import check_reads, columns_read, select
from tamis.errors import RecipeError, RunError, require, unknown_message
from tamis.graph import topological
from tamis.ids import copy_numbers, scramble
from tamis.math.distil import Certificate, Choice, certify
from tamis.math.order import round_half_up
from tamis.pool import PoolSpec
from tamis.recipe import PathLike, Recipe, RecipeLike, load
from tamis.run.plan import Within
from tamis.scoring import Scoring
from tamis.selectors.outcome import check_lacking, run_steps
from tamis.selectors.steps import TopN, rows_of
from tamis.store import Run, open_run
from tamis.store.subset import Subset
from tamis.store.table import Table

log = logging.getLogger(__name__)

#: With fewer candidates an audit costs more than predictions save.
WORTH = 200_000

_SAMPLE = 0.05, 2000, 20_000  # the share of the candidates that the sample has, and the fewest and the most
_LEAST = 50  # rows of the sample that need a score
_CONFIDENCE = 0.95
_PENALTIES = 10.0 ** np.arange(0, 6.5, 0.5)  # of ridge regression
_CHUNK = 4096  # rows whose features are in memory


def distil(
    pool: PathLike | PoolSpec,
    signal: str,
    *,
    run: PathLike,
    recipe: RecipeLike,
    source: str = "clip",
    at_most_wrong: float = 0.05,
    settings: Sequence[str] = (),
    least: int = WORTH,
    **how: Any,
) -> Subset:
    """Chooses by an expensive signal that judges only some rows; an audit bounds how wrong the choice is.

    The recipe's other signals are scored in full first. The same call continues an interrupted one. Later,
    `tamis.select` with this recipe gives the same subset, as long as the signal has not judged all rows.

    Args:
        pool, run: as `tamis.score` takes them.
        signal: the name or label of a signal of the recipe. Exactly one step reads it: `top_fraction` or `top_n` by one
            of its scores.
        recipe: a shipped recipe's name, a file, or a mapping.
        source: the signal whose stored embeddings predict the score.
        at_most_wrong: 1 - J, in (0, 1). J is the Jaccard index of the choice and the one by all scores.
        settings: overrides, as `--set` takes them.
        least: with fewer candidates (rows that earlier steps leave) the signal judges all of them.
        how: workers, engine, quiet and compute, as `tamis.score` takes them.

    Returns:
        The subset. The cut's line in its funnel has the facts `jaccard_at_least`, `confidence`, `scored`, `audited`,
        `candidates` and `predicted_from`. It has none if all candidates were scored: there are few, or no audit proved
        the bound.

    Raises:
        RecipeError: the recipe has no such signal or not one such step, or candidates have no score and the step does
            not say `missing: drop`.
        RunError: shards are missing, or the run stores no embeddings of `source`.
        ValueError: `at_most_wrong` is not in (0, 1).
    """
    if not 0 < at_most_wrong < 1:
        raise ValueError(f"at_most_wrong must be above 0 and below 1, got {at_most_wrong:g}")
    chosen = load(recipe, settings)
    entry = _entry(chosen, signal)
    place, step = distilled_cut(chosen, entry)
    scoring = Scoring(pool, run, chosen, **how)
    check_reads(chosen, run, scoring.pool)
    others = replace(chosen, signals=tuple(one for one in chosen.signals if one != entry))
    _embeddings(scoring.path, source, others)  # before any work
    opened = open_run(scoring.complete(others.signals))
    embeddings = _embeddings(opened.path, source, others)
    earlier, upto = (replace(chosen, steps=chosen.steps[:number]) for number in (place, place + 1))
    table = opened.table(columns_read(earlier, opened))
    candidates = run_steps(table, earlier.steps).keep
    rows = np.flatnonzero(candidates)
    high, low = table.uids(rows)
    order, number = scramble(high, low), copy_numbers(high, low)  # copies of a pair are drawn one by one
    sample = sampled_rows(scramble(high, low + number), *_SAMPLE)
    kept = step.n if isinstance(step, TopN) else round_half_up(step.fraction, rows_of(table.among(candidates), step.of))
    truth = np.full(rows.size, np.nan)

    def ask(wanted: Mask) -> Float64s:
        nonlocal opened, truth
        asked = np.zeros(len(opened), bool)
        asked[rows[wanted]] = True
        within = Within(chosen.name, {shard: asked[span] for shard, span in opened.row_ranges.items()})
        opened = open_run(scoring.score([entry], within))
        truth = scores_of(opened, columns_read(upto, opened).get(step.score, step.score), rows, wanted)
        check_lacking(step, int(np.isnan(truth[wanted]).sum()), int(wanted.sum()), step.score)
        return truth

    if rows.size < max(least, sample.size + 1) or not 0 < kept < rows.size:
        text = "%s judges all %s candidates: an audit would cost more than predictions save"
        log.warning(text, signal, f"{rows.size:,}")
        ask(np.ones(rows.size, bool))
        return select(opened, chosen)
    known = np.zeros(rows.size, bool)
    known[sample] = True
    cheap = _predicted(table, embeddings, candidates, sample, ask(known)[sample], step.score)
    found = certify(
        Choice(cheap=cheap, kept=kept, order=order, sample=sample), ask,
        lambda seed: scramble(high, low + number, seed), at_most_wrong=at_most_wrong, alpha=1 - _CONFIDENCE,
    )  # fmt: skip
    if found.jaccard < 1 - at_most_wrong:
        text = "the audits prove a Jaccard index of %.3f only: %s judges the other %s candidates too"
        log.warning(text, found.jaccard, signal, f"{np.count_nonzero(~found.asked):,}")
        ask(~found.asked)
        return select(opened, chosen)
    if found.asked.all():
        return select(opened, chosen)
    values = np.full(len(opened), np.nan, np.float32)
    values[rows] = _stored(found, truth)
    bound = {
        "jaccard_at_least": np.floor(1e4 * found.jaccard) / 1e4, "confidence": _CONFIDENCE,
        "scored": int(found.asked.sum()), "audited": found.audited, "predicted_from": source,
    }  # fmt: skip
    columns = columns_read(upto, opened)
    inner, group, column = opened.locate(columns.get(step.score, step.score))
    assert group is not None
    about = f"{inner}, of most rows predicted from {source}: for the choice of recipe {chosen.name} alone"
    column = replace(column, name=f"{inner}_distilled", about=about, beside="")
    opened = add_made_for(
        opened, DISTILLED, f"{group.label}_distilled", distilled_for(opened, chosen, entry, columns), (column,),
        {column.name: values}, rows, lacking="the row was dropped before the cut, or it was judged and has no score",
        reads=[f"{group.label}.{inner}", *embeddings], bound=bound,
    )  # fmt: skip
    return select(opened, chosen)


def _entry(recipe: Recipe, signal: str) -> Entry:
    """Returns the entry of a recipe with this label or name; RecipeError if there is none, or it limits its rows."""
    entries = {label or one.name: (label, one) for label, one in recipe.signals}
    if signal not in entries:
        raise RecipeError(f"recipe {recipe.name!r}: {unknown_message('signal', signal, entries)}")
    if entries[signal] in recipe.within:
        raise RecipeError(f"{signal}: leave out 'within' and 'adaptive': `tamis distil` decides which rows it judges")
    return entries[signal]


def _embeddings(path: Path, source: str, recipe: Recipe) -> list[str]:
    """Returns the embeddings of a signal that a run stores, [] if the recipe will store them; RunError if neither."""
    run = Run(path) if (path / "run.json").is_file() else None
    scores = {group.facts["name"]: group for group in run.scores.values()} | dict(run.scores) if run else {}
    signals = {label or signal.name: signal for label, signal in recipe.signals}
    if source not in (known := {**scores, **signals}):
        raise RunError(f"embeddings to predict from: {unknown_message('signal', source, known)}")
    needs = (scores[source].facts.get("identity") or {}).get("needs", {}).values() if source in scores else ()
    found = sorted(name for name in (run.embeddings if run else ()) if name.rpartition("-")[2] in needs)
    nodes = topological([signals[source]]) if source in signals and "embeddings" in recipe.keep else []
    if not found and not any(node.stored_as == "embeddings" for node in nodes):
        lacks = f"{path} stores no embeddings of {source}"
        raise RunError(f"{lacks}: add 'keep: [embeddings]' to the recipe, or run `tamis score ... --keep embeddings`")
    return found


def _features(sides: Sequence[Floats]) -> Float64s:
    """Returns embeddings side by side, and the cosine of two of one width: (n, d)."""
    both = [side.astype(np.float64) for side in sides]
    if len(both) == 2 and both[0].shape == both[1].shape:
        both.append(np.einsum("nd,nd->n", *both)[:, None])
    return np.concatenate(both, axis=1)


def ridge(features: Float64s, targets: Float64s) -> tuple[Callable[[Float64s], Float64s], Float64s]:
    """Returns a prediction of scores from features, and what models that have not seen a row predict of it.

    Ridge regression on standardised features, its penalty chosen by leave-one-out.

    Args:
        features: (n, d) of a random sample in random order, at least 10 rows.
        targets: (n,) their scores.

    Returns:
        A function from (m, d) features to (m,) predictions, NaN for rows with a NaN; and (n,) predictions of the
        sample, each fifth of it by a model of the others.

    Source: Hoerl and Kennard 1970, "Ridge regression".
    """
    require("sklearn", extra="evaluate")
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), RidgeCV(_PENALTIES))

    def predict(some: Float64s) -> Float64s:
        found, there = np.full(len(some), np.nan), np.isfinite(some).all(1)
        if there.any():
            found[there] = model.predict(some[there])
        return found

    crossed: Float64s = cross_val_predict(model, features, targets, cv=5)
    model.fit(features, targets)
    return predict, crossed


def _predicted(
    table: Table, embeddings: Sequence[str], candidates: Mask, sample: Rows, targets: Float64s, name: str
) -> Float64s:
    """Returns the predicted score of each candidate, NaN without embeddings; sampled ones by models without them."""
    rows = np.flatnonzero(candidates)
    features = _features([table.vectors(one, rows[sample]) for one in embeddings])
    good = np.isfinite(targets) & np.isfinite(features).all(1)
    if np.count_nonzero(good) < _LEAST:
        lacks = f"only {np.count_nonzero(good):,} of {good.size:,} rows of the sample have embeddings and {name!r}"
        raise RunError(f"{lacks}: too few to predict it. Drop the others in an earlier step, or score it in full")
    predict, crossed = ridge(features[good], targets[good])

    def block(place: slice, columns: dict[str, Any]) -> Float64s:
        wanted = np.flatnonzero(candidates[place])
        parts = [wanted[start : start + _CHUNK] for start in range(0, wanted.size, _CHUNK)]
        found = [predict(_features([columns[one][part] for one in embeddings])) for part in parts]
        return np.concatenate([np.empty(0), *found])

    cheap = np.concatenate(list(table.map(embeddings, block)))
    cheap = cheap.astype(np.float32).astype(np.float64)  # sums in another order give the same
    cheap[sample[good]] = crossed
    return cheap


def _stored(found: Certificate, truth: Float64s) -> Float32s:
    """Returns the true scores where known, else predictions: in float32, the kept rows are still the highest."""
    known, keep, values = found.asked, found.decisions.keep, found.decisions.values
    judged = np.where(np.isnan(truth), -np.inf, truth)
    lowest, highest = judged[known & keep].min(initial=np.inf), judged[known & ~keep].max(initial=-np.inf)
    cut = np.float32(np.clip(values[keep].min(), highest, lowest))
    above, below = np.nextafter(cut, np.float32(np.inf)), np.nextafter(cut, np.float32(-np.inf))
    stored = values.astype(np.float32)
    stored = np.where(keep, np.maximum(stored, above), np.minimum(stored, below))
    stored[known] = truth[known]
    return stored
