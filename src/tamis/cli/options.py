"""Options and arguments that several commands take, each written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from typer import Argument, BadParameter, Option

from tamis.core.errors import StopError
from tamis.core.files.find import Format


def completion(what: str) -> Callable[[str], list[str]]:
    """Returns the shell completion of a list of names, separated by commas; see `tamis.cli.catalogue.names`."""

    def complete(incomplete: str) -> list[str]:
        from tamis.cli.catalogue import names

        before, comma, word = incomplete.rpartition(",")
        matches = [name for name in names(what) if name.startswith(word)]
        if what == "recipes" and "*" not in word:
            matches += [str(path) for path in sorted(Path().glob(f"{word}*.yaml"))]
        return [f"{before}{comma}{name}" for name in matches]

    return complete


#: str, not Path: Path collapses "//" in URLs.
RunPath = Annotated[str, Argument(metavar="RUN", help="The run folder, or its fsspec URL.")]
OneSubset = Annotated[Path, Argument(metavar="SUBSET", help="The name of a subset of the run, or a file.")]
Subsets = Annotated[list[Path] | None, Argument(metavar="[SUBSET]...", help="Names of subsets of the run, or files.")]

SubsetsOrRecipes = Annotated[
    list[Path] | None,
    Argument(metavar="[SUBSET|RECIPE]...", help="Subset files, names of subsets in the run folder, or recipes."),
]

ONE_RECIPE = Option(
    "--recipe", "-r", help="A shipped recipe's name, or a .yaml file.", autocompletion=completion("recipes")
)
RecipeSettings = Annotated[
    list[str] | None, Option("--set", metavar="A.B=VALUE", help="Override one setting of the recipe; may be repeated.")
]
RUN = Option(
    metavar="RUN", help="The run folder, new or existing, or its fsspec URL. Default: runs/ and the pool's name."
)
NoBrowser = Annotated[bool, Option("--no-browser", help="Print the address, but open no browser.")]
OutFolder = Annotated[Path, Option("--out", "-o", metavar="DIR", help="The folder to write.")]
OutPage = Annotated[Path, Option("--out", "-o", help="The page to write.")]

Workers = Annotated[
    int | None, Option(min=1, help="Number of worker processes or Ray actors. Default: chosen for this machine.")
]
Address = Annotated[str | None, Option(help="Address of a running Ray cluster, or auto. Default: start Ray here.")]

SCALES = "lab, or DataComp's debug, small, medium, large, xlarge."
Scale = Annotated[str, Option(help=SCALES)]
Captioner = Annotated[str, Option(help="icc, the paper's Swin and GPT-2, or lab, the lab's small models.")]
Tasks = Annotated[str, Option(help="A task's folder, a folder of tasks, or lab for small drawn ones.")]
OnlyTasks = Annotated[list[str] | None, Option("--only", help="Names of tasks, with commas; repeatable. Default: all.")]

Partial = Annotated[bool, Option("--partial", help="Continue even if shards are missing; the output says so.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace an earlier file of the same kind that Tamis wrote.")]
Grow = Annotated[bool, Option("--grow", help="Add the shards of another pool to an existing run.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print what would be done, and stop.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]


@dataclass(frozen=True)
class Fields:
    """Expands one parameter of a command into an option per field of a settings record, with its types and defaults.

    Attributes:
        record: "module:Class", imported when the command is built.
        names: the fields, separated by spaces; "field:option" where the option has another name. The record has their
            help: `threads: Annotated[int, "The help."] = 2`.
        optional: options default to None, so the scale's value applies.
    """

    record: str
    names: str
    optional: bool = False

    def _names(self) -> Iterator[tuple[str, str]]:
        for name in self.names.split():
            field, _, option = name.partition(":")
            yield field, option or field

    def options(self) -> Iterator[inspect.Parameter]:
        """Yields the options as parameters of a function."""
        module, _, name = self.record.partition(":")
        record = getattr(import_module(module), name)
        hints = get_type_hints(record, include_extras=True)
        for field, option in self._names():
            kind, about = get_args(hints[field])
            if get_origin(kind) in (Union, UnionType):
                kind = next(option for option in get_args(kind) if option is not type(None))
            kind = str if get_origin(kind) is Literal else kind
            default = None if self.optional else getattr(record, field, None)
            hint: Any = Annotated[kind | None if default is None else kind, Option(help=about)]
            yield inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)

    def values(self, options: dict[str, Any]) -> dict[str, Any]:
        """Takes the fields' values out of a command's options; lists may have commas."""
        taken = {field: options.pop(option) for field, option in self._names()}
        return {field: split(value) if isinstance(value, list) else value for field, value in taken.items()}


class Reading:
    """The settings of `PoolSpec` that are options, copied: importing it would slow `--help` down."""

    format: Annotated[str, f"One of {', '.join(get_args(Format))}."] = "auto"
    caption: Annotated[str | None, "Where the caption is: txt, json:FIELD, or a table's column."] = None
    captions: Annotated[str | None, "Of an image's several captions: first, longest, or each as a row."] = None
    image: Annotated[
        str | None, "Tables: the column of image paths or bytes, or none if the table has only captions."
    ] = None
    image_extensions: Annotated[
        list[str], "Tars and folders: endings of images, with commas; the first that a sample has is its image."
    ] = ["jpg", "jpeg", "png", "webp", "gif", "jfif", "jpe", "bmp", "tif", "tiff", "avif"]  # noqa: RUF012
    split: Annotated[str | None, "Only files that names say are of this split: train, validation or test."] = None
    max_pixels: Annotated[int, "Images of more pixels are reported, not decoded."] = 100_000_000
    transparency: Annotated[str, "drop: ignore transparency, as training loaders do; white: put images on white."] = (
        "drop"
    )
    orientation: Annotated[
        str | None, "json: turn images that img2dataset stored without their EXIF; none: not. Default: json if known."
    ] = None


TrainingCompute = Annotated[dict[str, Any], Fields("tamis.core.compute:Compute", "device precision threads")]
Compute = Annotated[dict[str, Any], Fields("tamis.core.compute:Compute", "device precision threads batch_size")]
PoolSettings = Annotated[
    dict[str, Any],
    Fields(
        "tamis.cli.options:Reading",
        "format caption captions image image_extensions split max_pixels transparency orientation",
    ),
]


def with_fields(function: Callable[..., None], *, build: bool = True) -> Callable[..., None]:
    """Returns a command whose `Fields` parameters are expanded; without `build` they are left out, for a list."""
    hints = get_type_hints(function, include_extras=True)
    groups = {
        name: fields
        for name, hint in hints.items()
        for fields in getattr(hint, "__metadata__", ())
        if isinstance(fields, Fields)
    }
    if not groups:
        return function
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
        elif build:
            parameters += groups[name].options()

    @functools.wraps(function)
    def command(**options: Any) -> None:
        for name, group in groups.items():
            options[name] = group.values(options)
        function(**options)

    del command.__wrapped__  # typer would read the wrapped signature
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def split(texts: str | Sequence[str] | None) -> list[str]:
    """Returns the words of one or more lists separated by commas."""
    lists = [texts] if isinstance(texts, str) else texts or []
    return [word.strip() for text in lists for word in text.split(",") if word.strip()]


def numbers(texts: Sequence[str] | None) -> list[float]:
    """Returns the numbers of one or more lists separated by commas."""
    try:
        return [float(word) for word in split(texts)]
    except ValueError as error:
        raise StopError(f"expected numbers with commas, such as .1,.2,.5, got {','.join(texts or [])!r}") from error


def hours(text: str) -> float:
    """Returns the hours of a time such as 4h, 30m or 1.5h."""
    unit = {"m": 1 / 60, "h": 1.0, "d": 24.0}.get(text[-1:], 0.0)
    try:
        found = float(text[:-1]) * unit
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise BadParameter(f"expected a time such as 4h, 30m or 1.5h, got {text!r}")
    return found


def in_a_folder(path: Path) -> Path:
    """Returns the path of a file to write; raises StopError if its folder does not exist, probably a typo."""
    if path.expanduser().parent.exists():
        return path
    raise StopError(f"there is no folder {str(path.parent)!r} for {path.name!r}: make it first (mkdir -p)")


def parse_assignments(settings: Sequence[str] | None) -> dict[str, Any]:
    """Returns the settings of `--set name=value`, by name; raises RecipeError for anything else."""
    from tamis.recipes.recipe import assignment

    return dict(assignment(setting) for setting in settings or [])
