"""Commands that score and report progress: score, run, status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tamis.cli.options import (
    Address,
    AsJson,
    Compute,
    DryRun,
    Engine,
    Grow,
    OptionalRecipeOption,
    Overwrite,
    Partial,
    PoolPath,
    PoolSettings,
    Quiet,
    RunOption,
    RunPath,
    SetOption,
    Workers,
    completing,
    split,
)
from tamis.cli.printing import counted, print_funnel, print_json, print_statuses, say, stop

if TYPE_CHECKING:
    from tamis.api import Exported
    from tamis.store import Run
    from tamis.store.subset import Subset


def score(
    pool: PoolPath,
    run: RunOption,
    *,
    recipe: OptionalRecipeOption = None,
    signals: Annotated[
        list[str] | None,
        typer.Option(
            help="Signals, separated by commas: caption_length,language; may be repeated.",
            autocompletion=completing("signals"),
        ),
    ] = None,
    settings: SetOption = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Features to store: embeddings, captions, texts; may be repeated.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help="Extra json field to store; also works for an existing run; may be repeated."),
    ] = None,
    reading: PoolSettings,
    compute: Compute,
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="With --engine static: this rank. Default: from torchrun or Slurm.")
    ] = None,
    world: Annotated[int | None, typer.Option(min=1, help="With --engine static: number of ranks.")] = None,
    max_error_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Stop if more than this share of shards fails; fewer failures do not change the exit code.",
        ),
    ] = None,
    grow: Grow = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Score a pool. The same command continues where it stopped; new signals are added to the run.

    Example: tamis score "pool/{00000..00031}.tar" --run runs/mine --signals caption_length,language
    """
    import tamis
    from tamis import recipe as recipes
    from tamis.pool import PoolSpec
    from tamis.run.fill import engine_named

    if recipe is None and signals is None and not field:
        stop("say what to score: --signals caption_length,language or --recipe NAME; see `tamis list signals`")
    # Signals become scores of the recipe, also where there is none: --set reaches them all by the same path.
    chosen = recipes.load({} if recipe is None else recipe, settings or [], signals=split(signals))
    path = tuple(pool) if len(pool) > 1 else pool[0]
    spec = recipes.build(PoolSpec, {**reading, "path": path, "fields": tuple(field or ())}, "score")
    if dry_run:
        print(tamis.plan(spec, run=run, recipe=chosen, keep=split(keep), grow=grow, **compute))
        return
    who = engine_named(engine, workers=workers, address=address, rank=rank, world=world)
    done = tamis.score(
        spec, run=run, recipe=chosen, keep=split(keep), engine=who, max_error_rate=max_error_rate,
        grow=grow, quiet=quiet, **compute,
    )  # fmt: skip
    _say_scored(done, compute)
    if done.failures and max_error_rate is None:
        raise typer.Exit(1)


def run_recipe(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file with pool and run.")],
    *,
    settings: SetOption = None,
    compute: Compute,
    workers: Workers = None,
    engine: Annotated[str, typer.Option(help="How shards are distributed: local or ray.")] = "local",
    address: Address = None,
    partial: Partial = False,
    grow: Grow = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Score, select, export and report, as one recipe says.

    Example: tamis run recipe.yaml --set select.top_fraction.fraction=0.3
    """
    import tamis
    from tamis.run.fill import engine_named

    if engine == "static":
        stop("ranks cannot share a whole recipe: score with `tamis score ... --engine static`, then `tamis run` once")
    if dry_run:
        print(tamis.plan(recipe=recipe, settings=settings or [], grow=grow, overwrite=overwrite, **compute))
        return
    who = engine_named(engine, workers=workers, address=address)
    done = tamis.run_recipe(
        recipe, settings=settings or [], engine=who, partial=partial, grow=grow, overwrite=overwrite, quiet=quiet,
        on_result=_telling(compute), **compute,
    )  # fmt: skip
    if done.run.failures:
        raise typer.Exit(1)


def status(
    run: RunPath,
    watch: Annotated[bool, typer.Option("--watch", help="Show again every 2 seconds, until the run ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's progress. Reads only files, so it works from any shell, during or after the run.

    Example: tamis status runs/mine --watch
    """
    from tamis.run.progress import follow, read_status, render_status

    if watch:
        print_statuses(follow(run))
        return
    found = read_status(run)
    if as_json:
        print_json(found)
    else:
        print(render_status(found))
    if found["failed"]:
        raise typer.Exit(1)


def _telling(compute: dict[str, Any]) -> Callable[[Run | Subset | Exported | Path], None]:
    """Returns a function that prints each result of a recipe at once: an export may take hours after the funnel."""
    from tamis.store import Run
    from tamis.store.subset import Subset

    def tell(result: Run | Subset | Exported | Path) -> None:
        if isinstance(result, Run):
            _say_scored(result, compute)
        elif isinstance(result, Subset):
            print_funnel(result)
        elif isinstance(result, Path):
            say(f"wrote {result}")
        else:
            say(f"wrote {result.pairs:,} pairs to {result.out}")

    return tell


def _say_scored(run: Run, compute: dict[str, Any]) -> None:
    from tamis.advice import hidden_contents
    from tamis.models.device import device_for

    # Availability was checked before scoring, here or on the cluster.
    device = device_for(**compute, away=True)
    say(f"{len(run):,} pairs in {len(run.shards)} shards, {device.precision} on {device.kind}: {counted(run.statuses)}")
    if hidden := hidden_contents(run):
        say(hidden)
    for name, error in run.failures.items():
        say(f"shard {name} failed: {error}")
    if run.failures:
        complete = set(run.shards).intersection(*(found.shards for found in run.scores.values())) - set(run.failures)
        say(
            f"{len(complete):,} of {len(run.urls):,} shards are complete. "
            "Fix or replace what failed and run the command again"
        )
