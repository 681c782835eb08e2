"""The command line: it only translates. Results go to standard output, everything else to standard error.

A command is a function whose arguments are its options. Each imports what it needs when it runs, so that help is fast.

Exit codes: 0 done; 1 a shard or a task failed, or a store did not answer; 2 the command had to stop;
130 interrupted.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from tamis.cli import evaluate, look, make, score, select, train
from tamis.cli.options import with_fields
from tamis.cli.printing import say, usage
from tamis.core.errors import StopError, TamisError
from tamis.core.version import __version__

#: Every command and its function, in the order of the help.
COMMANDS: Mapping[str, Callable[..., None]] = {
    "score": score.score,
    "select": select.select,
    "derive": select.derive,
    "cluster": select.cluster,
    "map": select.map_embeddings,
    "export": select.export,
    "audit": select.audit,
    "overlap": select.overlap,
    "report": select.report,
    "look": look.look,
    "explore": look.explore,
    "run": score.run_recipe,
    "status": score.status,
    "bench": evaluate.bench,
    "choose": evaluate.choose,
    "list": look.list_things,
    "check": look.check,
    "convert": make.convert,
    "lab make-pool": make.make_pool,
    "lab make-tasks": make.make_tasks,
    "train clip": train.clip,
    "train captioner": train.captioner,
    "train c_ssft": train.c_ssft,
    "train c_rho": train.c_rho,
    "train mix": train.mix,
    "train sba": train.sba,
    "train icc": train.icc,
    "train icc-labels": train.icc_labels,
    "evaluate zero-shot": evaluate.zero_shot,
    "evaluate captions": evaluate.captions,
    "evaluate concreteness": evaluate.concreteness,
}

#: Help of the groups: the first words of commands of two words.
GROUPS: Mapping[str, str] = {
    "lab": "The lab: a small drawn world whose truth is known.",
    "train": "Train a CLIP, or the small parts that some signals need.",
    "evaluate": "Evaluate a model, or compare scores with human ratings.",
}


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
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
    """A group of commands that prints its help if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            print(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)


def _guard(function: Callable[..., None]) -> Callable[..., None]:
    """Rejects URLs where paths are expected; turns a plug-in's sys.exit() into an error."""

    @functools.wraps(function)
    def command(**options: Any) -> None:
        from tamis.core.files.storage import check_path

        gc.freeze()  # collections while the command imports its part need not look at typer and pydantic
        for value in options.values():
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, Path):
                    check_path(entry)
        try:
            function(**options)
        except SystemExit as error:  # our commands never raise it; its code may be 0
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise StopError(f"{frame.filename}, line {frame.lineno}, ended the command: {error!r}") from error

    return command


def build_app(words: Sequence[str] | None = None) -> typer.Typer:
    """Builds the command line; given the words typed, only the named command, or else the list of commands.

    Building all options takes a quarter of the start-up time. To list commands, `Fields` options are not built.
    """
    first = None if words is None else [word for word in words if word not in ("-v", "--verbose")][:2]
    named = [typed for typed in COMMANDS if first is None or first[: typed.count(" ") + 1] == typed.split()]
    # Plain help: importing rich takes longer than everything else together.
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

    for typed in named or COMMANDS:
        function = with_fields(COMMANDS[typed], build=bool(named))
        group, _, name = typed.rpartition(" ")
        if group not in groups:
            groups[group] = typer.Typer(help=GROUPS[group], **plain)
            app.add_typer(groups[group], name=group)
        short = (inspect.getdoc(function) or "").partition("\n\n")[0]  # otherwise Typer cuts it to one line
        groups[group].command(name=name, short_help=short)(_guard(function))
    return app


def main() -> None:
    """Runs the command line; prints our errors, and those of what was typed, as one line and exits with their code."""
    # Else each of NumPy's threads keeps its core busy for 0.06 s when it starts, waiting for work.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
    gc.set_threshold(50_000, 50)  # thousands of modules' objects come, and none goes: collecting finds nothing
    try:
        code = build_app(sys.argv[1:])(prog_name="tamis", standalone_mode=False)
        if code == 130:  # what typer makes of an interrupt
            say("tamis: interrupted; finished parts are kept, and the same command continues")
        sys.exit(code or 0)
    except TamisError as error:
        say(f"tamis: {error}")
        sys.exit(2 if isinstance(error, StopError) else 1)
    except TyperException as error:
        say(usage(error))
        sys.exit(2)
    except OSError as error:  # the disk, a permission: no traceback
        logging.info("where it happened:", exc_info=error)  # with --verbose
        path = error.filename2 or error.filename
        say(f"tamis: {error.strerror or error}{f': {path}' if path else ''}")
        sys.exit(2)
    finally:
        gc.freeze()  # or Python's exit looks for cycles among all objects of all modules, which takes 0.1 s
