"""What tests of the command line share: running it in this process, and the commands there are."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from tamis import cli


@dataclass(frozen=True)
class Done:
    """What one command did."""

    code: int
    out: str
    err: str


Tamis = Callable[..., Done]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@functools.cache
def commands() -> dict[str, Any]:
    """Every command that the help shows, by what one types, those of groups included."""
    found: dict[str, Any] = {}

    def visit(prefix: str, group: Any) -> None:
        for name, command in group.commands.items():
            if command.hidden:
                continue
            if hasattr(command, "commands"):
                visit(f"{prefix}{name} ", command)
            else:
                found[f"{prefix}{name}"] = command

    visit("", typer.main.get_command(cli.build_app()))
    return found
