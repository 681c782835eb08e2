"""Commands that show what there is: look at a pool, explore a run, list and check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tamis.cli import options
from tamis.cli.printing import exit_if, print_json, print_table, say
from tamis.core.errors import RecipeError, StopError, escape_controls, plural, unknown_message

if TYPE_CHECKING:
    from tamis.pools import PoolSpec

_WHAT_TO_LIST = Argument(
    metavar="signals|recipes|models|steps|exports", help="What to list.", autocompletion=options.completion("lists")
)
_WHAT_TO_CHECK = Argument(
    metavar="RECIPE|RUN",
    help="A recipe's name or file; or a run folder, or its URL.",
    autocompletion=options.completion("recipes"),
)


def look(
    pool: Annotated[str, Argument(metavar="POOL", help="Folder, glob, brace range, file or fsspec URL.")],
    *,
    out: Annotated[Path | None, Option("--out", "-o", help="Write a page (HTML) in place of serving one.")] = None,
    run: Annotated[str | None, options.RUN] = None,
    pairs: Annotated[int | None, Option(min=1, help="Pairs to measure. Default: 20,000; for --out 2,000.")] = None,
    shards: Annotated[int | None, Option(min=1, help="Most shards to measure. Default: any; for --out 20.")] = None,
    seed: Annotated[int, Option(help="Another seed takes other shards.")] = 0,
    reading: options.PoolSettings,
    no_browser: options.NoBrowser = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Look at a pool: its images in the browser at once, and behind them cheap signals, findings, recipes to try.

    It measures random whole shards into the run that `tamis run` and `tamis score` continue, and downloads no model.
    With --out, in a script, or without a browser it writes a page about the first rows of some shards; it keeps no run.

    Example: tamis look pool
    """
    from tamis.commands.explore_pool import page_instead
    from tamis.core.arrays import skip_pandas
    from tamis.core.records import build
    from tamis.pools import PoolSpec

    spec = build(PoolSpec, {**reading, "path": pool}, "look")
    skip_pandas()
    why = ""
    if out is None and not as_json and not no_browser and sys.stdout.isatty():
        why = page_instead()
    if out is not None or as_json or why or not (no_browser or sys.stdout.isatty()):
        _write_page(spec, out or Path("look.html"), pairs or 2000, shards or 20, seed, overwrite, as_json, quiet)
        if why:
            say(why)
        return
    _serve(spec, run, pairs or 20_000, shards, seed, no_browser=no_browser)


def _serve(spec: PoolSpec, run: str | None, pairs: int, shards: int | None, seed: int, *, no_browser: bool) -> None:
    from tamis.commands.explore_pool import PoolMeasuring, explore_pool

    def report(measuring: PoolMeasuring) -> None:
        found = measuring.progress()
        for name, error in found["failures"].items():
            say(f"shard {name} failed: {error}")
        say(found["error"] or f"measured {plural(found['pairs'], 'pair')} into {measuring.path}; Ctrl-C stops the page")

    server, measuring = explore_pool(spec, run=run, pairs=pairs, shards=shards, seed=seed, on_end=report)
    print(server.address, flush=True)
    say(f"the run is {measuring.path}; Ctrl-C stops, the same command continues")
    if not no_browser:
        server.open_browser()
    try:
        server.serve()
    finally:
        measuring.stop()


def _write_page(
    spec: PoolSpec, out: Path, pairs: int, shards: int, seed: int, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    from dataclasses import asdict

    import tamis

    page = options.in_a_folder(out)
    found = tamis.look(spec, out=page, pairs=pairs, shards=shards, seed=seed, overwrite=overwrite, quiet=quiet)
    if as_json:
        print_json({**asdict(found), "page": str(found.page)})
    elif found.proposals:
        print_table(
            [{"recipe": proposal.recipe, "kept": proposal.keeps, "why": proposal.why} for proposal in found.proposals]
        )
    some = f"{found.shards:,} of {found.of:,} shards"
    say(f"{found.pairs:,} pairs, the first rows of {some}, in {found.seconds:,.0f} s; wrote {found.page}")
    for name, error in found.failures.items() if quiet else ():  # else the progress has said it
        say(f"shard {name} failed: {error}")
    if found.proposals:
        say(f"next: {found.proposals[0].commands[0]}")
    elif found.pairs:
        say("no shipped recipe fits these pairs: `tamis list recipes` shows what each one needs")
    exit_if(found.failures)


def explore(
    run: options.RunPath,
    subsets: options.SubsetsOrRecipes = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
    no_browser: options.NoBrowser = False,
    partial: options.Partial = False,
) -> None:
    """Explore a run in the browser: move a threshold, see which pairs go, tag pairs, compare recipes.

    Only this machine can open the page, with the address that the command prints. Ctrl-C stops it.

    Several subsets or recipes open next to each other: two as columns, with the reasons of the one that drops a pair.

    Example: tamis explore runs/mine clip-30 tmars
    """
    from tamis.commands.explore import explore

    server = explore(run, subsets or [], port=port, partial=partial)
    print(server.address, flush=True)
    say("Ctrl-C stops it")
    if not no_browser:
        server.open_browser()
    server.serve()


def list_things(
    what: Annotated[str, _WHAT_TO_LIST],
    name: Annotated[str | None, Argument(metavar="[NAME]", help="One of them, in full.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List signals with their cost, recipes, models, selection steps or export formats; or one of them in full.

    Example: tamis list signals
    """
    from tamis.cli.catalogue import CATALOGUES, in_full, tables

    if what not in CATALOGUES:
        raise StopError(unknown_message("list", what, CATALOGUES))
    in_words = None if name is None else in_full(what, name)  # raises for an unknown name
    rows = CATALOGUES[what]()
    if as_json:
        print_json([row for row in rows if name is None or name in list(row.values())[:1]])
    elif in_words is not None:
        print(in_words)
    else:
        for heading, part in tables(what, rows):
            if heading:
                print(heading)
            if part:
                print_table(part)
            if heading and part:
                print()


def check(
    what: Annotated[str, _WHAT_TO_CHECK],
    settings: options.RecipeSettings = None,
    run: Annotated[str | None, Option(metavar="RUN", help="An existing run folder, or its fsspec URL.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a recipe without running it, or verify every byte of a run.

    A recipe: with --run also whether the run has the columns that it reads. Its models are loaded if this machine has
    them. A run: what is damaged, left over or missing, the `rm` line of each file to delete, and which command
    completes the run then.

    Exit codes of a run: 0 complete; 1 something is left to do; 2 not a run folder, or its run.json or list of
    shards is damaged, which cannot be recreated.

    Example: tamis check runs/mine
    """
    from dataclasses import asdict

    import tamis
    from tamis.core.files.storage import location
    from tamis.runs.check import lines

    if not location(what).is_dir():
        if as_json:
            raise StopError("--json is for checking a run")
        _check_recipe(what, settings or [], run)
    elif settings or run:
        raise StopError("--set and --run are for checking a recipe")
    else:
        found = tamis.check(what)
        if as_json:
            more = {"delete": [str(path) for path in found.to_delete], "exit_code": found.exit_code}
            print_json({**asdict(found), "run": str(found.run), **more})
        else:
            for line in lines(found):
                print(escape_controls(line))
        exit_if(found.exit_code)


def _check_recipe(recipe: str, settings: list[str], run: str | None) -> None:
    from tamis.commands import select as choosing
    from tamis.commands.run_recipe import check_outputs
    from tamis.commands.score import try_signals
    from tamis.recipes.recipe import load
    from tamis.recipes.steps.outcome import check_files, describe
    from tamis.runs import open_run
    from tamis.runs.run import run_at

    chosen = load(recipe, settings)
    if chosen.entries:
        choosing.check_reads(chosen, run_at(run) if run else None)
    if run is not None:
        choosing.find_columns(chosen, open_run(run))
    check_outputs(chosen, run_at(chosen.run) if chosen.run else None, read=[recipe])
    print(f"{chosen.name}: {chosen.about or 'no description'}")
    for label, signal in chosen.signals:
        print(f"  score   {label or signal.name}")
    for label, derived in chosen.derived:
        print(f"  derive  {label or derived.name}")
    for step in chosen.steps:
        print(f"  select  {describe(step)}")
    for exporter, out in chosen.exports:
        print(f"  export  {exporter.name} to {out}")
    for what in try_signals(signal for _, signal in chosen.signals):
        print(f"  not there yet: {what}")
    try:
        check_files(chosen.steps)
    except RecipeError as error:  # the user may still create the file, or name another with --set
        print(f"  not there yet: {error}")
    say("the recipe is good")
