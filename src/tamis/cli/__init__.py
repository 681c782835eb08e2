"""The command line: it only translates. Results go to standard output, everything else to standard error.

A command is a function whose arguments are its options; `COMMANDS` says what one types for it. Each imports what it
needs when it runs, so that help costs nothing.

Exit codes: 0 done; 1 done, but shards failed; 2 the command could not be carried out; 130 interrupted.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tamis.cli import bench, choosing, convert, evaluate, exploring, lab, looking, scoring, train
from tamis.cli.printing import say
from tamis.errors import StopError, TamisError
from tamis.version import VERSION

#: Every command: what one types, and the function that does it. The help has this order.
COMMANDS: Mapping[str, Callable[..., None]] = {
    "score": scoring.score,
    "select": choosing.select,
    "cluster": choosing.cluster,
    "export": choosing.export,
    "report": choosing.report,
    "look": exploring.look,
    "explore": exploring.explore,
    "run": scoring.run_recipe,
    "status": scoring.status,
    "bench": bench.bench,
    "list": looking.list_things,
    "check": looking.check,
    "convert": convert.convert,
    "lab make-pool": lab.make_pool,
    "lab make-tasks": lab.make_tasks,
    "train clip": train.clip,
    "train c-ssft": train.c_ssft,
    "train c-rho": train.c_rho,
    "train sba": train.sba,
    "train icc": train.icc,
    "train icc-labels": train.icc_labels,
    "evaluate zero-shot": evaluate.zero_shot,
    "evaluate concreteness": evaluate.concreteness,
}

#: What the commands of two words have in common, by the first of them.
GROUPS: Mapping[str, str] = {
    "lab": "The lab: a small drawn world whose truth is known.",
    "train": "Train a CLIP, or the small parts that some scorers need.",
    "evaluate": "How good a model is; how far scores agree with what people say.",
}

#: Old names, which work for one more version, say the new one and are in no help.
RENAMED: Mapping[str, str] = {"icc distill": "train icc"}  # to be dropped in 0.2.0


def _version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


def _start(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what is done.")] = False,
    version: Annotated[
        # Eager: it needs no command after it.
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s", stream=sys.stderr)


class _Group(TyperGroup):
    """A group of commands that prints its help where none of them is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            print(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)


def _under_an_old_name(old: str, new: str) -> Callable[..., None]:
    @functools.wraps(COMMANDS[new])
    def command(**options: Any) -> None:
        say(f"`tamis {old}` is now `tamis {new}`")
        COMMANDS[new](**options)

    return command


def _guarded(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that stops at a URL where it takes a path, and where a plug-in asks the process to exit."""

    @functools.wraps(function)
    def command(**options: Any) -> None:
        from tamis.storage import check_path

        for given in options.values():
            for one in given if isinstance(given, list) else [given]:
                if isinstance(one, Path):
                    check_path(one)
        try:
            function(**options)
        except SystemExit as error:  # no command of ours raises it; its code may be 0, as if all were done
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise StopError(f"{place.filename}, line {place.lineno}, ended the command: {error!r}") from error

    return command


def _app(commands: Iterable[str]) -> typer.Typer:
    # Plain help, without colours and boxes: rich alone takes longer to import than everything else together.
    plain: dict[str, Any] = {"cls": _Group, "rich_markup_mode": None}
    app = typer.Typer(
        name="tamis",
        help="Score every image-text pair of a pool once; choose training subsets as often as you like.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **plain,
    )
    app.callback()(_start)
    groups = {"": app}

    def add(typed: str, function: Callable[..., None], hidden: bool = False) -> None:
        group, _, name = typed.rpartition(" ")
        if group not in groups:
            groups[group] = typer.Typer(help=GROUPS.get(group), hidden=hidden, **plain)
            app.add_typer(groups[group], name=group)
        short = (inspect.getdoc(function) or "").partition("\n\n")[0]  # else it would be cut to one line of the help
        groups[group].command(name=name, short_help=short, hidden=hidden)(_guarded(function))

    for typed in commands:
        if typed in RENAMED:
            add(typed, _under_an_old_name(typed, RENAMED[typed]), hidden=True)
        else:
            add(typed, COMMANDS[typed])
    return app


#: The whole command line.
app = _app([*COMMANDS, *RENAMED])


def _app_for(words: Sequence[str]) -> typer.Typer:
    """Returns the command line with the one command that some words name, or all of it where they name none.

    Typer makes the options of every command that it has: a quarter of what the program needs to start.
    """
    first = list(itertools.dropwhile(("-v", "--verbose").__contains__, words))[:2]
    named = [typed for typed in (*COMMANDS, *RENAMED) if first[: typed.count(" ") + 1] == typed.split()]
    return _app(named) if named else app


def main() -> None:
    """Runs the command line and turns our errors into one line and an exit code."""
    try:
        _app_for(sys.argv[1:])(prog_name="tamis", standalone_mode=True)
    except StopError as error:
        say(f"tamis: {error}")
        sys.exit(2)
    except TamisError as error:
        say(f"tamis: {error}")
        sys.exit(1)
    except SystemExit as error:
        if error.code == 130:  # what typer makes of an interrupt
            say("tamis: interrupted; what is complete stays, the same command goes on")
        raise
    except OSError as error:  # the disk, a permission, a folder where a file should be: not ours to trace
        logging.info("where it happened:", exc_info=error)  # with --verbose
        path = error.filename2 or error.filename
        say(f"tamis: {error.strerror or error}{f': {path}' if path else ''}")
        sys.exit(2)
