"""Commands that show what is available and verify recipes and runs: list, check."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.cli.options import AsJson, OptionalRunOption, SetOption, completing
from tamis.cli.printing import print_json, print_table, say, stop
from tamis.errors import shown


def list_things(
    what: Annotated[
        str,
        typer.Argument(
            metavar="signals|recipes|models|steps|exports", help="What to list.", autocompletion=completing("lists")
        ),
    ],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them, in full.")] = None,
    as_json: AsJson = False,
) -> None:
    """List signals with their cost, recipes, models, selection steps or export formats; or one of them in full.

    Example: tamis list signals
    """
    from tamis.catalogue import CATALOGUES, brief_rows, in_full, model_tables
    from tamis.errors import unknown

    if what not in CATALOGUES:
        stop(unknown("list", what, CATALOGUES))
    if name is not None and not as_json:
        print(in_full(what, name))
        return
    rows = CATALOGUES[what]()
    if name is not None:
        in_full(what, name)  # raises if there is none of that name
        rows = [row for row in rows if name in list(row.values())[:1]]
    if as_json:
        print_json(rows)
        return
    if what != "models":
        print_table(brief_rows(what, rows))
        return
    for heading, part in model_tables(rows):
        print(heading)
        if part:
            print_table(part)
            print()


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|RUN",
            help="A recipe's name or file; or a run folder, or its URL.",
            autocompletion=completing("recipes"),
        ),
    ],
    settings: SetOption = None,
    run: OptionalRunOption = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete damaged and left-over files of a run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a recipe without running it, or verify every byte of a run.

    A recipe: with --run also whether the run has the columns that it reads. A run: what is damaged, left over or
    missing, and which command completes it. `tamis score` recreates what --delete removes.

    Exit codes of a run: 0 complete; 1 something is left to do; 2 not a run folder, or its run.json or list of
    shards is damaged, which cannot be recreated.

    Example: tamis check runs/mine --delete
    """
    from tamis.storage import location

    if location(what).is_dir():
        if settings or run:
            stop("--set and --run are for checking a recipe")
        _check_run(what, delete, as_json)
        return
    if delete or as_json:
        stop("--delete and --json are for checking a run")
    _check_recipe(what, settings or [], run)


def _check_run(run: str, delete: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from tamis import api
    from tamis.store.check import lines

    found = api.check(run, delete=delete)
    if as_json:
        print_json({**asdict(found), "run": str(found.run), "exit_code": found.exit_code})
    else:
        for line in lines(found):
            print(shown(line))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _check_recipe(recipe: str, settings: list[str], run: str | None) -> None:
    from tamis import api, choosing
    from tamis import recipe as recipes
    from tamis.errors import RecipeError
    from tamis.selectors.steps import describe

    chosen = recipes.load(recipe, settings)
    if chosen.signals:
        choosing.check_columns(chosen, run)
    if run is not None:
        choosing.check_run(chosen, run)
    api.check_outputs(chosen, read=[recipe])
    print(f"{chosen.name}: {chosen.about or 'no description'}")
    for label, signal in chosen.signals:
        print(f"  score   {label or signal.name}")
    for step in chosen.steps:
        print(f"  select  {describe(step)}")
    for name, options in chosen.exports:
        print(f"  export  {name} to {options['out']}")
    try:
        choosing.check_files(chosen)
    except RecipeError as error:  # it may be made, or named with --set, before the recipe runs
        print(f"  not there yet: {error}")
    say("the recipe is good")
