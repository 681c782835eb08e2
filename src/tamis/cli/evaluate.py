"""`tamis evaluate`: how good a model is, and how well scores agree with people's ratings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tamis.cli.options import AsJson, Compute, Fields, Quiet, assigned, split
from tamis.cli.printing import follow_the_work, print_json, print_table, say

if TYPE_CHECKING:
    from tamis.math.statistics import Agreement


def concreteness(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table of words or captions with ratings.")],
    compute: Compute,
    model: Annotated[str | None, typer.Option(help="The signal's model; for icc: norms, a folder, a hub id.")] = None,
    signal: Annotated[str, typer.Option(help="The signal of captions.")] = "icc",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A=VALUE", help="Another setting of the signal.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of texts.")] = None,
    rating: Annotated[str | None, typer.Option(help="The column of ratings.")] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Use only the 10 % of words held out from norms' training.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Correlate a score of texts with people's ratings: Pearson, Spearman, Kendall's tau-b, with 95 % intervals.

    Example: tamis evaluate concreteness ratings.csv --model norms
    """
    from tamis import recipe as recipes
    from tamis.evaluate.concreteness import evaluate_concreteness
    from tamis.models.device import device_for

    chosen_settings = assigned(settings) | ({} if model is None else {"model": model})
    _, chosen = recipes.signal_from({signal: chosen_settings}, "--signal")
    found = evaluate_concreteness(
        file, chosen, device_for(**compute),
        text=text, rating=rating, only_held_out=held_out,
    )  # fmt: skip
    if as_json:
        print_json(found.facts())
        return
    print_table([{"signal": signal, "texts": f"{found.texts:,}", **correlations(found)}])
    if found.left_out:
        say(f"{found.left_out:,} rows have no rating or no score and were left out")


def zero_shot(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A CLIP or SigLIP: hub id, folder, or built-in name.")],
    tasks: Annotated[str, typer.Option(help="A task's folder, a folder of tasks, or lab for small drawn ones.")],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for results; a repeated command resumes.")] = Path(
        "zero-shot"
    ),
    only: Annotated[
        list[str] | None, typer.Option(help="Names of tasks, with commas; repeatable. Default: all.")
    ] = None,
    which: Annotated[str, typer.Option("--split", help="Which split of WebDataset tasks.")] = "test",
    size: Annotated[int, typer.Option(min=1, help="Images of each of the lab's tasks.")] = 480,
    compute: Annotated[dict[str, Any], Fields("tamis.compute:Compute", "device threads batch_size")],
    precision: Annotated[
        str, typer.Option(help="float32, as DataComp evaluates, or bf16; on CPUs also int8.")
    ] = "float32",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on tasks it was not trained for: classification, retrieval, WinoGAViL; DataComp's averages.

    Example: tamis evaluate zero-shot lab/clip --tasks lab
    """
    from tamis.evaluate.zero_shot import evaluate_zero_shot
    from tamis.models.device import device_for

    if not quiet:
        follow_the_work()
    where = device_for(**compute, precision=precision)
    found = evaluate_zero_shot(model, tasks, where, out=out, only=split(only), split=which, size=size)
    for name, reason in found.others.items():
        say(f"skipped {name}: {reason}")
    if as_json:
        print_json(found.facts())
    else:
        print_table(found.rows())
        for group in found.groups()[-1:]:  # the last group is all 38 tasks and covers the others
            if group.absent:
                say(f"DataComp's tasks that are not here: {', '.join(group.absent)}")
    if found.failed:  # each was logged when it happened
        say(f"{len(found.failed)} tasks could not be run: {', '.join(found.failed)}")
        raise typer.Exit(1)


def correlations(found: Agreement) -> dict[str, str]:
    """Returns the cells of a table for an agreement, each with its interval."""
    return {"pearson": str(found.pearson), "spearman": str(found.spearman), "kendall tau-b": str(found.kendall)}
