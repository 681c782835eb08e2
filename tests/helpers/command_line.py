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


@dataclass(frozen=True)
class Tamis:
    """Runs the command line in this process."""

    run: Callable[..., Done]

    def __call__(self, *arguments: str | Path) -> Done:
        return self.run(*arguments)

    def refused(self, *arguments: str | Path) -> str:
        """Runs a command that must end with exit code 2, and returns what it says."""
        done = self.run(*arguments)
        assert done.code == 2, done
        return done.err

    def ok(self, *arguments: str | Path) -> Done:
        """Runs a command that must succeed."""
        done = self.run(*arguments)
        assert done.code == 0, done.err
        return done


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
