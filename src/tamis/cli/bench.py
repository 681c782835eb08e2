"""`tamis bench`: which recipe suits a pool, by models trained on what each keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.options import AsJson, Partial, Quiet, TrainingCompute, completing, split
from tamis.cli.printing import follow_the_work, print_json, print_table, say, stopping_at

_USUAL_RECIPES = "no-filter,random,clip-50,tmars"


def bench(
    source: Annotated[str, typer.Argument(metavar="RUN|POOL|lab", help="A run, a pool, or lab for a drawn pool.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results; a repeated command resumes.")
    ],
    compute: TrainingCompute,
    recipes: Annotated[
        list[str] | None,
        typer.Option(
            help="Names or .yaml files with commas; repeatable. Default: no-filter,random,clip-50,tmars.",
            autocompletion=completing("recipes"),
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="A task's folder, a folder of tasks, or lab for small drawn ones.")
    ] = "lab",
    only: Annotated[
        list[str] | None, typer.Option(help="Comma-separated tasks to use; repeatable. Default: all.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Run folder or URL for a pool. Default: DIR/run.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="signals.A.B=VALUE", help="Setting of a signal, for every recipe that has it."),
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="If the source is a pool: json field to store; lab pools have truth.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, help="Models trained on each subset; at least 3 for a fair answer.")] = 3,
    scale: Annotated[str, typer.Option(help="lab, or DataComp's debug, small, medium, large, xlarge.")] = "lab",
    samples: Annotated[int | None, typer.Option(min=1, help="Pairs that each model sees, repeats counted.")] = None,
    model: Annotated[str | None, typer.Option(help="Another architecture, or a checkpoint to start from.")] = None,
    batch: Annotated[int | None, typer.Option("--train-batch", min=2, help="Pairs compared with each other.")] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="Pairs of the lab's pool.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Images of each of the lab's tasks.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The smallest useful size: 10 minutes on 2 idle cores.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Models to train at once.")] = 2,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep the trained models.")] = False,
    partial: Partial = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rank recipes by models trained on what each keeps: equal samples seen, several seeds, 95 % intervals.

    Missing scores are computed first. The same command again resumes.

    Example: tamis bench runs/mine --recipes no-filter,clip-50,tmars --tasks evalsets --out bench
    """
    import tamis
    from tamis.evaluate.bench import FULL, QUICK
    from tamis.train.scales import at_scale

    if not quiet:
        follow_the_work()
    usual = QUICK if quick else FULL
    with stopping_at(ValueError):
        training = at_scale(scale, samples=samples or usual.samples, model=model, batch=batch)
        names = split(recipes or _USUAL_RECIPES)
        found = tamis.bench(
            source, names, tasks=tasks, out=out, run=run, settings=settings or [], fields=field or [],
            pairs=pairs or usual.pairs, training=training, seeds=seeds, only=split(only), size=size or usual.images,
            workers=workers, keep_models=keep_models, partial=partial, quiet=quiet, **compute,
        )  # fmt: skip
    if as_json:
        print_json(found.facts())
    else:
        print_table(found.rows_of_table())
        for sentence in found.verdict():
            print(sentence)
        for rows in (found.rows_of_kinds(), found.rows_of_overlap()):
            if rows:
                print()
                print_table(rows)
    for name, why in found.failed.items():
        say(f"{name} has no result: {why}")
    if found.failed:
        raise typer.Exit(1)
