"""Writes the commands' part of docs/cli.md from what the commands declare: `make docs`.

It takes types and defaults from the functions' signatures, not from what typer or click make of them, so that every
version of these gives the same page. tests/cli/test_reference.py compares the page with it, and it with the help.
"""

import inspect
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from command_line import commands

from tamis.cli import COMMANDS, GROUPS
from tamis.cli.options import with_fields

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

#: What stands above this line is written by hand.
MARK = "<!-- `make docs` writes what follows, from the commands themselves. -->\n"

_VALUES: dict[Any, str] = {str: "TEXT", int: "N", float: "X", Path: "PATH", bool: ""}


@dataclass(frozen=True)
class Parameter:
    """One option or argument of a command, as its signature declares it.

    Attributes:
        names: an option's, the long one first; () for an argument.
        value: what stands for its value: RUN, A.B=VALUE, N; "" where it takes none.
        default: as the help shows it; "required"; or "" where there is none.
        about: what it is.
    """

    names: tuple[str, ...]
    value: str
    default: str
    about: str


def parameters(typed: str) -> Iterator[Parameter]:
    """Yields the options and arguments of a command, in its order."""
    function = with_fields(COMMANDS[typed])
    hints, signature = get_type_hints(function), inspect.signature(function).parameters
    for one in commands()[typed].params:
        value = one.metavar or _VALUES[_inner(hints[one.name])]
        names = tuple(sorted(one.opts, key=len, reverse=True)) if one.param_type_name == "option" else ()
        yield Parameter(names, value, _shown(signature[one.name].default), one.help)


def _shown(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    default = ",".join(default) if isinstance(default, list) else default
    return "" if default is None or default is False else str(default)


def _inner(kind: Any) -> Any:
    """The type of one value: of `list[str] | None` it is str."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    return get_args(kind)[0] if get_origin(kind) is list else kind


def key(one: Parameter) -> str:
    """Returns what is typed: an option's long name, or the argument."""
    return one.names[0] if one.names else one.value


def shared() -> dict[str, Parameter]:
    """Returns what three commands or more describe in the same words, or two where no other has it."""
    every = [one for typed in COMMANDS for one in parameters(typed)]
    counts, names = Counter(every), Counter(map(key, every))
    return {key(one): one for one, n in counts.items() if n >= 3 or n == names[key(one)] == 2}


def line(one: Parameter) -> str:
    """Returns an option's line: its names, what it is, its default."""
    names = ", ".join(f"`{name}`" for name in one.names[1:])
    first = " ".join(word for word in (*one.names[:1], one.value) if word)
    default = f" ({one.default})" if one.default and (one.names or one.default != "required") else ""
    return f"- `{first}`" + (f", {names}" if names else "") + f"{default}: {one.about}"


def described(typed: str, common: dict[str, Parameter]) -> str:
    """Returns the section of a command: its help, its example, its arguments and options."""
    about, _, example = (inspect.getdoc(COMMANDS[typed]) or "").partition("\n\nExample: ")
    lines = [f"### tamis {typed}", "", about, "", "```sh", example, "```", ""]
    declared = list(parameters(typed))
    lines += [line(one) for one in declared if common.get(key(one)) != one]
    if also := [f"`{key(one)}`" for one in declared if common.get(key(one)) == one]:
        lines += [f"- [shared](#options-of-several-commands): {', '.join(also)}"]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """Returns the part of the page that describes every command."""
    common = shared()
    options = "\n".join(line(one) for one in sorted(common.values(), key=lambda one: (bool(one.names), key(one))))
    sections = [f"## Options of several commands\n\n{options}\n", "## Commands\n"]
    group = ""
    for typed in COMMANDS:
        if " " in typed and typed.partition(" ")[0] != group:
            group = typed.partition(" ")[0]
            sections.append(f"## tamis {group}\n\n{GROUPS[group]}\n")
        sections.append(described(typed, common))
    return "\n".join(sections)


if __name__ == "__main__":
    above = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{above}{MARK}\n{reference()}", encoding="utf-8")
