"""Commands that score and report progress: score, run, status."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial as bound
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tamis.cli import options
from tamis.cli.printing import exit_if, join_counts, offer, print_funnel, print_json, print_statuses, say, stopping_at
from tamis.core.errors import StopError, check_fraction, escape_controls, plural

if TYPE_CHECKING:
    from tamis.commands.run_recipe import Exported
    from tamis.runs import Run
    from tamis.runs.subset import Subset

_SIGNALS = Option(
    help="Signals, separated by commas: caption_length,language; may be repeated.",
    autocompletion=options.completion("signals"),
)
_POOL = Argument(metavar="POOL...", help="Folder, glob, brace range, file or fsspec URL; several if you like.")
_ENGINE = Option(help="How shards are distributed: local or ray.")
_MAX_ERROR_RATE = Option(
    help="Stop if more than this share of shards fails; fewer failures do not change the exit code."
)


def score(
    pool: Annotated[list[str], _POOL],
    run: Annotated[str | None, options.RUN] = None,
    *,
    recipe: Annotated[str | None, options.ONE_RECIPE] = None,
    signals: Annotated[list[str] | None, _SIGNALS] = None,
    settings: options.RecipeSettings = None,
    within: Annotated[
        str | None,
        Option(metavar="SUBSET", help="Score only the rows of a subset of the run: its file, its name, or a recipe."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        Option(help="Features to store: embeddings (default: one CLIP's), captions, texts; or none. May be repeated."),
    ] = None,
    field: Annotated[
        list[str] | None,
        Option(help="Extra json field, or table column (*: all), to store; also later; may be repeated."),
    ] = None,
    reading: options.PoolSettings,
    compute: options.Compute,
    workers: options.Workers = None,
    engine: Annotated[str, Option(help="How shards are distributed: local, ray or static.")] = "local",
    address: options.Address = None,
    rank: Annotated[
        int | None, Option(min=0, help="With --engine static: this rank. Default: from torchrun or Slurm.")
    ] = None,
    world: Annotated[int | None, Option(min=1, help="With --engine static: number of ranks.")] = None,
    max_error_rate: Annotated[float | None, _MAX_ERROR_RATE] = None,
    grow: options.Grow = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """Score a pool. The same command continues where it stopped; new signals are added to the run.

    Example: tamis score "pool/{00000..00031}.tar" --run runs/mine --signals caption_length,language
    """
    import tamis
    from tamis.core.arrays import skip_pandas
    from tamis.core.files.find import run_name
    from tamis.core.records import build
    from tamis.engines.named import engine_named
    from tamis.pools import PoolSpec
    from tamis.recipes.recipe import load, signal_class

    names = options.split(signals)
    if recipe is None and not names and not field:
        raise StopError("say what to score: --signals caption_length,language or --recipe NAME (`tamis list signals`)")
    for name in names:  # here, so that the message says nothing of a recipe
        signal_class(name)
    if max_error_rate is not None:
        with stopping_at(ValueError):
            check_fraction(max_error_rate, "--max-error-rate")
    # Signals become scores of the recipe, also where there is none: --set reaches them all by the same path.
    chosen = load({} if recipe is None else recipe, settings or [], signals=names)
    path = tuple(pool) if len(pool) > 1 else pool[0]
    spec = build(PoolSpec, {**reading, "path": path, "fields": tuple(field or ())}, "score")
    kept, folder = options.split(keep), run or f"runs/{run_name(pool[0])}"
    if dry_run:
        print(tamis.plan(spec, run=folder, recipe=chosen, within=within, keep=kept, grow=grow, **compute))
        return
    who = engine_named(engine, workers=workers, address=address, rank=rank, world=world)
    if all(type(signal).__module__.startswith("tamis.") for _, signal in chosen.entries):  # others may use pandas
        skip_pandas()
    done = tamis.score(
        spec, run=folder, recipe=chosen, within=within, keep=kept, engine=who, max_error_rate=max_error_rate, grow=grow,
        quiet=quiet, **compute,
    )  # fmt: skip
    _say_scored(done, compute, quiet)
    exit_if(done.failures and max_error_rate is None)


def run_recipe(
    what: Annotated[str, Argument(metavar="POOL|RECIPE", help="A pool, with --recipe; or a recipe file.")],
    *,
    recipe: Annotated[str | None, options.ONE_RECIPE] = None,
    run: Annotated[str | None, options.RUN] = None,
    settings: options.RecipeSettings = None,
    reading: options.PoolSettings,
    compute: options.Compute,
    workers: options.Workers = None,
    engine: Annotated[str, _ENGINE] = "local",
    address: options.Address = None,
    partial: options.Partial = False,
    grow: options.Grow = False,
    overwrite: options.Overwrite = False,
    lazy: Annotated[
        bool, Option("--lazy", help="Score expensive signals only where they can matter; the same pairs are kept.")
    ] = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """Score, select, export and report, as one recipe says. Of a pool, all results are in the run folder.

    Example: tamis run pool --recipe basic
    """
    import tamis
    from tamis.core.files.find import run_name
    from tamis.engines.named import engine_named
    from tamis.recipes.names import shipped_name

    changed = {name: value for name, value in reading.items() if value != getattr(options.Reading, name)}
    if recipe is None and changed:
        raise StopError(f"--{next(iter(changed))} goes with a pool and --recipe; in a recipe, write it under 'pool'")
    if recipe is None and not what.endswith((".yaml", ".yml")) and shipped_name(what) is None:
        raise StopError(f"{what!r} is not a recipe. To run one on a pool: tamis run {shlex.quote(what)} --recipe basic")
    above = [f"run={json.dumps(run)}"] if run else []
    if recipe is not None:
        above = [f"pool={json.dumps({'path': what, **changed})}", f"run={json.dumps(run or 'runs/' + run_name(what))}"]
    recipe, settings = recipe or what, [*above, *(settings or [])]

    if engine == "static":
        raise StopError("ranks cannot share a recipe: `tamis score ... --engine static`, then `tamis run` once")
    if dry_run:
        print(tamis.plan(recipe=recipe, settings=settings, grow=grow, overwrite=overwrite, lazy=lazy, **compute))
        return
    done = tamis.run_recipe(
        recipe, settings=settings, engine=engine_named(engine, workers=workers, address=address),
        partial=partial, grow=grow, overwrite=overwrite, lazy=lazy, quiet=quiet,
        on_result=bound(_say_result, compute, quiet), **compute,
    )  # fmt: skip
    if done.subset and not done.exports:
        offer(done.subset)
    exit_if(done.run.failures)


def status(
    run: options.RunPath,
    watch: Annotated[bool, Option("--watch", help="Show again every 2 seconds, until the run ends.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a run's progress. Reads only files, so it works from any shell, during or after the run.

    Example: tamis status runs/mine --watch
    """
    from tamis.engines.progress import follow, read_status, render_status

    if watch:
        print_statuses(follow(run))
        return
    found = read_status(run)
    if as_json:
        print_json(found)
    else:
        print(escape_controls(render_status(found)))
    exit_if(found["failed"])


def _say_result(compute: dict[str, Any], quiet: bool, result: Run | Subset | Exported | Path | str) -> None:
    """Prints one result of a recipe, as soon as it is there: an export may take hours after the funnel."""
    from tamis.runs import Run
    from tamis.runs.subset import Subset

    if isinstance(result, Run):
        _say_scored(result, compute, quiet)
    elif isinstance(result, Subset):
        print_funnel(result)
    elif isinstance(result, str):
        say(result)
    elif isinstance(result, Path):
        say(f"wrote {result}")
    else:
        say(f"wrote {result.pairs:,} pairs to {result.out}")


def _say_scored(run: Run, compute: dict[str, Any], quiet: bool) -> None:
    from tamis.commands.score import hidden_contents
    from tamis.models.device import device_for

    # Availability was checked before scoring, here or on the cluster.
    # Choosing a device for networks imports torch, which takes a second: whatever needed one has done so.
    device = device_for(**compute, away=True, networks="torch" in sys.modules)
    scored = f"{plural(len(run), 'pair')} in {plural(len(run.shards), 'shard')}"
    say(f"{scored}, {device.precision} on {device.kind}: {join_counts(run.statuses)}")
    if hidden := hidden_contents(run):
        say(hidden)
    for name, error in run.failures.items() if quiet else ():  # else the progress has said it
        say(f"shard {name} failed: {error}")
    if run.failures:
        complete = set(run.shards).intersection(*(found.shards for found in run.scores.values())) - set(run.failures)
        say(f"{len(complete):,} of {len(run.urls):,} shards are complete: mend the others and repeat the command")
