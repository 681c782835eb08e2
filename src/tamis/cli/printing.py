"""What the commands print. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shlex
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from tamis.core.errors import StopError, escape_controls, nearest

if TYPE_CHECKING:
    from tamis.core.math.statistics import Agreement
    from tamis.runs.subset import Subset


_NARROWEST = 10  # characters of a table's column that is wrapped
_FILLER = "\0"  # no text has it: controls are escaped


#: What to write in place of commands of other tools, and of options that are settings of a recipe.
_MEANT = {
    "tamis select RUN --recipe NAME": "filter choose subset curate",
    "tamis select RUN --recipe distinct": "dedup dedupe deduplicate duplicates",
    "tamis explore RUN": "view show open browse ui app serve",
    "tamis look POOL": "inspect scan stats info describe preview init",
    "tamis list {}": "signals recipes models steps exports",
    "tamis --{}": "help version",
    "--set signals.clip.model=NAME": "--model",
    "--set select.top_fraction.fraction=0.2": "--fraction --share --top",
    "--set select.at_least.value=0.3": "--threshold --min",
    "--set name=NAME": "--name",
    "--device cuda": "--gpu --cuda",
    "--overwrite": "--force",
    "tamis look POOL --pairs 100, or name fewer shards": "--limit --max-samples --num-samples",
    "nothing; the same command continues": "--resume --continue --restart",
}


def _meant(typed: str) -> str:
    return next((f": write {right.format(typed)}" for right, wrong in _MEANT.items() if typed in wrong.split()), "")


def say(text: str) -> None:
    """Prints a message to standard error; results go to standard output."""
    print(escape_controls(text), file=sys.stderr)


def usage(error: Any) -> str:
    """Returns what is wrong with the words of a command, from Typer's error, and which command shows the help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "tamis"
    param = getattr(error, "param", None)
    name = (getattr(param, "metavar", None) if param.param_type_name == "argument" else param.opts[0]) if param else ""
    message = error.format_message().rstrip(".")
    takes = context.command.params if context else []
    if message.startswith("Missing"):
        needed = [one.metavar for one in takes if one.param_type_name == "argument" and one.required]
        message = f"{name} is missing" + f" ({' '.join(needed)}, in this order)" * (len(needed) > 1)
    elif message.startswith("No such command") and (meant := _meant(message.split("'")[1])):
        message = message.split(". Did")[0] + meant
    elif message.startswith("Got unexpected extra") and "recipe" in {one.name for one in takes}:
        message = f"one word too many: {message.rpartition('(')[2].rstrip(')')}; a recipe is named with --recipe"
    elif error.__cause__ is not None:  # pydantic's
        first = error.__cause__.errors()[0]
        limits = first.get("ctx", {})
        wanted = "a whole number" if "int" in first["type"] or limits else "a number"
        if limits:
            wanted += f" of {limits['ge']} or more" if "ge" in limits else f" of at most {limits.get('le')}"
        message = f"{name}: expected {wanted}, got {first['input']}"
    elif option := getattr(error, "option_name", None):
        known = [word for one in takes for word in one.opts if word.startswith("--")]
        near = nearest(option[2:], (word[2:] for word in known))
        near = near.replace("'", "--", 1).replace("'", "")  # shown as it is typed
        begins = any(word.startswith(option) for word in known)
        message = f"there is no option {option}{near if begins else _meant(option) or near}"
    return f"{command}: {message}\nHelp: {command} --help"


@contextmanager
def stopping_at(*kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these types, which are about the user's input, into a StopError."""
    try:
        yield
    except kinds as error:
        raise StopError(str(error)) from error


def exit_if(failed: object) -> None:
    """Ends the command with exit code 1 if something failed; the caller has printed what."""
    if failed:
        raise typer.Exit(1)


def follow_the_work(*, quiet: bool = False) -> None:
    """Shows the library's log, for long commands without a progress bar, unless `quiet`."""
    if not quiet:
        logging.getLogger("tamis").setLevel(logging.INFO)


def join_counts(counts: Mapping[Any, int]) -> str:
    """Returns counts in words, the largest first: "20 ok, 1 image_broken"."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {name}" for name, count in ordered) or "none"


def print_json(result: Any) -> None:
    print(json.dumps(result, indent=2, ensure_ascii=False))


def _fill(text: str) -> str:
    """Returns a text with a filler behind each character that takes two columns, so that its length is its width."""
    return "".join(char + _FILLER if unicodedata.east_asian_width(char) in "FW" else char for char in text)


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints rows with the same keys as a table. What is wider than the terminal is wrapped in its widest columns."""
    if not rows:
        print("nothing")
        return
    cells = [[*rows[0]], *([_fill(escape_controls(str(value))) for value in row.values()] for row in rows)]
    columns = [*zip(*cells, strict=True)]
    widths = [max(1, *map(len, column)) for column in columns]
    words = [max(map(len, " ".join(column).split()), default=1) for column in columns]
    # A file or pipe has no width to wrap at.
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
    # A name stays on one line. A step of a funnel may be a sentence.
    wrapped = [number for number, name in enumerate(rows[0]) if number or name == "step"]
    while sum(widths) + 2 * len(widths) - 2 > room and wrapped:
        widest = max(wrapped, key=lambda number: (widths[number] > words[number], widths[number]))
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    for number, row in enumerate(cells):
        lines = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*lines, fillvalue=""):
            sides = [">" if name in ("kept", "share", "MB") else "<" for name in rows[0]]
            parts = [f"{part:{side}{width}}" for part, side, width in zip(line, sides, widths, strict=True)]
            typer.echo(typer.style("  ".join(parts).rstrip().replace(_FILLER, ""), bold=number == 0))


def correlations(found: Agreement) -> dict[str, str]:
    """Returns the cells of a table for an agreement, each with its interval."""
    return {"pearson": str(found.pearson), "spearman": str(found.spearman), "kendall tau-b": str(found.kendall)}


def partly(subset: Subset) -> str:
    """Says how many shards the subset's run lacks; "" for none."""
    lacks = subset.partial
    return f"partial: {lacks['missing']:,} of the run's {lacks['of']:,} shards are missing" if lacks else ""


def print_funnel(subset: Subset) -> None:
    """Prints what each step of a recipe kept and why it dropped the rest."""
    from tamis.reports.formats import in_words, share
    from tamis.runs.makers import models_in_words
    from tamis.runs.reasons import rows_kept

    if sentence := partly(subset):
        print(sentence)
    total = int(subset.keep.size)
    rows = [{"step": f"{subset.name}: every pair", "kept": f"{total:,}", "share": share(total, total), "dropped": ""}]
    for line in subset.funnel:
        dropped = ", ".join(f"{count:,} {in_words(reason)}" for reason, count in line["dropped"].items())
        rows.append(
            {"step": line["step"], "kept": rows_kept(line), "share": share(line["kept"], total), "dropped": dropped}
        )
    print_table(rows)
    for sentence in models_in_words(subset.used):
        print(sentence)


def offer(subset: Subset) -> None:
    """Prints the commands that show and export a subset that is in its run's folder."""
    ready = f"{shlex.quote(str(subset.run.path))} {shlex.quote(subset.name)}"
    say(f"see its pairs: tamis explore {ready}\nexport them:   tamis export {ready} {shlex.quote(subset.name)}.npy")


def print_statuses(statuses: Iterator[dict[str, Any]]) -> None:
    """Prints each status of a run as it comes: on a cleared terminal, else one below the other."""
    from rich.console import Console

    from tamis.engines.progress import render_status

    console = Console()
    for status in statuses:
        console.clear()  # does nothing in a file or pipe
        print(escape_controls(render_status(status)), flush=True)
