"""Commands that only look: list, check."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.cli.options import AsJson, OptionalRunOption, RecipeName, SetOption
from tamis.cli.printing import print_json, print_table, say, stop


def list_things(
    what: Annotated[str, typer.Argument(metavar="signals|recipes|models|steps|exports", help="What to list.")],
    as_json: AsJson = False,
) -> None:
    """List signals, recipes, models, selection steps or export formats, with their settings.

    Example: tamis list signals
    """
    from tamis.catalogue import CATALOGUES, model_tables
    from tamis.errors import unknown

    if what not in CATALOGUES:
        stop(unknown("list", what, CATALOGUES))
    rows = CATALOGUES[what]()
    if as_json:
        print_json(rows)
        return
    if what != "models":
        print_table(rows)
        return
    for heading, part in model_tables(rows):
        print(heading)
        if part:
            print_table(part)
            print()


def check(
    recipe: RecipeName,
    settings: SetOption = None,
    run: OptionalRunOption = None,
) -> None:
    """Check a recipe without doing anything; with --run also whether the run has the columns it reads.

    Example: tamis check recipe.yaml
    """
    from tamis import api
    from tamis import recipe as recipes
    from tamis.errors import RecipeError
    from tamis.selectors.steps import describe

    chosen = recipes.load(recipe, settings or [])
    if chosen.scores:
        api.check_columns(chosen, run)
    if run is not None:
        api.check_run(chosen, run)
    print(f"{chosen.name}: {chosen.about or 'no description'}")
    for label, scorer in chosen.scores:
        print(f"  score   {label or scorer.name}")
    for step in chosen.steps:
        print(f"  select  {describe(step)}")
    for name, options in chosen.exports:
        print(f"  export  {name} to {options['out']}")
    try:
        api.check_files(chosen)
    except RecipeError as error:  # it may be made, or named with --set, before the recipe runs
        print(f"  not there yet: {error}")
    say("the recipe is good")
