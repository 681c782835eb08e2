"""The JSON files of a run: objects with a hash of their other keys, so that any change is found.

docs/data-format.md lists their keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tamis.errors import DamageError, RunError
from tamis.ids import json_digest
from tamis.storage import read_json, write_json

_HASH = "hash"

#: The file that describes a folder of scores, and of stored features.
SIGNAL, FEATURE = "signal.json", "feature.json"

_USUAL = "restore it, or delete it: `tamis check RUN --delete` does, and `tamis score` writes what it needs again"
_REMEDIES = {
    "run.json": "restore it, or start another run folder",
    "training.json": "restore it, or delete the model's folder and repeat the command",
    "bench.json": "delete it, and repeat `tamis bench`",
}


def with_hash(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns facts with a hash of all of them."""
    plain = {key: value for key, value in facts.items() if key != _HASH}
    return {**plain, _HASH: json_digest(plain)}


def write_record(path: Path, facts: Mapping[str, Any], *, durable: bool = True) -> None:
    """Writes facts with their hash; `durable` as for `tamis.storage.writing`."""
    write_json(path, with_hash(facts), durable=durable)


def read_record(path: Path, remedy: str = "") -> dict[str, Any]:
    """Returns what `write_record` wrote.

    Args:
        path: the file.
        remedy: what to do if it is damaged: "delete it and repeat `tamis bench`".

    Raises:
        DamageError: it is not what was written.
        RunError: it cannot be read.
    """
    try:
        facts = read_json(path)
    except DamageError as error:
        raise damaged(path, error.what, remedy) from error
    try:
        if not isinstance(facts, dict) or with_hash(facts)[_HASH] != facts.get(_HASH):
            raise damaged(path, "its content is not what was written", remedy)
    except ValueError as error:  # NaN, or half of a surrogate pair: we write neither
        raise damaged(path, "its content is not what was written", remedy) from error
    return facts


def damaged(path: Path, what: str, remedy: str = "") -> DamageError:
    """Returns the error of a JSON file that is not what was written."""
    return DamageError(f"{path} is damaged: {what}; {remedy or _REMEDIES.get(path.name, _USUAL)}", what)


def description_of(folder: Path) -> Path:
    """Returns the file that describes a folder of parts."""
    return folder / (SIGNAL if folder.parent.name == "scores" else FEATURE)


def described(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a description as its file holds it: with its folder and its hash."""
    return with_hash({**facts, "maker": folder.name})


def read_description(path: Path) -> dict[str, Any]:
    """Returns the description of the folder that a file is in.

    Raises:
        DamageError: it is damaged, or was written for another folder.
        RunError: it cannot be read.
    """
    facts = read_record(path)
    if facts.get("maker") != path.parent.name:
        raise damaged(path, f"it was written for {facts.get('maker')}, not for {path.parent.name}")
    return facts


def read_left(path: Path, command: str, version: int) -> dict[str, Any] | None:
    """Reads a command's result file in a run folder; None if absent. The file names the command and a format.

    Raises:
        RunError: the file is damaged, or of another version.
    """
    if not path.is_file():
        return None
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("kind") != command or facts.get("format") != version:
        what = command.removeprefix("tamis ")
        raise RunError(f"{path} is not a {what} that this version of tamis reads: delete it, or repeat `{command}`")
    return read_record(path)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file that grows, each a JSON object. A last line that a killed process cut is skipped.

    Raises:
        DamageError: another line is not an object.
    """
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return
            raise damaged(path, f"line {number} is not JSON ({error})") from error
        if not isinstance(value, dict):
            raise damaged(path, f"line {number} is not an object")
        yield value
