"""Options and arguments that several commands take, each written once, and what their text stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.printing import stop


def completing(what: str) -> Callable[[str], list[str]]:
    """Returns what a shell asks how a word may go on: a list of names, separated by commas, or a recipe's file.

    Args:
        what: of `tamis.catalogue.NAMES`.
    """

    def complete(incomplete: str) -> list[str]:
        from tamis.catalogue import NAMES

        before, comma, word = incomplete.rpartition(",")
        found = [name for name in NAMES[what]() if name.startswith(word)]
        if what == "recipes":
            found += [str(path) for path in sorted(Path().glob(f"{word}*.yaml"))] if "*" not in word else []
        return [f"{before}{comma}{name}" for name in found]

    return complete


#: Texts: a `Path` would take a slash out of a URL.
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="The run folder, or its fsspec URL.")]
PoolPath = Annotated[
    list[str],
    typer.Argument(metavar="POOL...", help="Folder, glob, brace range, file or fsspec URL; several if you like."),
]
Caption = Annotated[str | None, typer.Option(help="Where the caption is: txt, json:FIELD, or a table's column.")]
Image = Annotated[str | None, typer.Option(help="Tables: the column of image paths or bytes; none: captions alone.")]
Format = Annotated[str, typer.Option(help="auto, webdataset, table or datacomp.")]
MaxPixels = Annotated[int, typer.Option(help="Images of more pixels are reported, not decoded.")]
Transparency = Annotated[
    str, typer.Option(help="drop: as trainers' loaders do; white: transparent images lie on white.")
]
Subsets = Annotated[list[Path] | None, typer.Argument(metavar="[SUBSET]...", help="Subset files.")]

RunOption = Annotated[str, typer.Option("--run", metavar="RUN", help="The run folder, or an fsspec URL; new or not.")]
OptionalRunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="The run folder, or an fsspec URL; new or not."),
]
_ONE_RECIPE = typer.Option(
    "--recipe", "-r", help="A shipped recipe's name, or a .yaml file.", autocompletion=completing("recipes")
)
RecipeOption = Annotated[str, _ONE_RECIPE]
OptionalRecipeOption = Annotated[str | None, _ONE_RECIPE]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override one setting of the recipe; may be repeated."),
]
OutFolder = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")]

Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; by default a GPU where there is one.")]
Precision = Annotated[
    str | None,
    typer.Option(
        help="float32 or bf16; by default bf16 where the hardware multiplies it. Scoring on a CPU also takes int8."
    ),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples per batch; by default 64 on a CPU, 256 on a GPU.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes or actors, a shard each; by default as many as the machine feeds."),
]
Engine = Annotated[str, typer.Option(help="Who does which shard: local, ray or static.")]
Address = Annotated[
    str | None, typer.Option(help="Of a running Ray cluster (auto); by default Ray is started on this machine.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads for the models of each worker.")]

Epochs = Annotated[int, typer.Option(min=1, help="Times through the captions.")]
TrainBatch = Annotated[int, typer.Option("--train-batch", min=1, help="Captions in a batch of training.")]

CleanRun = Annotated[
    str,
    typer.Argument(metavar="CLEAN_RUN", help="The clean set: its run folder, or a pool that has none yet."),
]
CleanSubset = Annotated[
    Path | None, typer.Option("--subset", metavar="FILE", help="A subset of the clean set; else all its pairs.")
]
CleanEpochs = Annotated[int, typer.Option("--epochs", min=1, help="Times through the clean pairs.")]
PairsPerBatch = Annotated[int | None, typer.Option("--train-batch", min=2, help="Pairs compared with each other.")]
Pieces = Annotated[
    int | None,
    typer.Option(min=1, show_default="as free memory allows", help="Pieces that each process's batch is cut into."),
]
Checkpointing = Annotated[bool, typer.Option(help="Recompute layers on the way back: less memory.")]
DecodeThreads = Annotated[int, typer.Option(min=1, help="Threads that decode, per process.")]
FirstSeed = Annotated[int, typer.Option("--seed", min=0, help="Of first weights, order and crops.")]

Partial = Annotated[bool, typer.Option("--partial", help="Go on though shards of the run are missing, and say so.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier file of the same kind that Tamis wrote.")
]
Grow = Annotated[bool, typer.Option("--grow", help="Add the shards of another pool to a run that is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and stop.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def split(texts: str | Sequence[str] | None) -> list[str]:
    """Returns the words of a list that is separated by commas, or of all the lists that one option was given."""
    given = [texts] if isinstance(texts, str) else texts or []
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def in_a_folder(path: Path) -> Path:
    """Returns the path of a file or folder to write, or ends the command where the folder for it is not there.

    A slip of the pen in a path would make folders that nobody looks into.
    """
    if path.expanduser().parent.exists():
        return path
    stop(f"there is no folder {str(path.parent)!r} for {path.name!r}: make it first (mkdir -p), or mend the path")


def assigned(settings: Sequence[str] | None) -> dict[str, Any]:
    """Returns the settings of `--set name=value`, by name.

    Raises:
        RecipeError: one is not an assignment, or its value is not YAML.
    """
    from tamis import recipe as recipes

    return dict(recipes.assignment(setting) for setting in settings or [])
