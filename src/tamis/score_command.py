"""The `tamis score` line that makes what a run lacks, to be typed as it stands."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tamis import recipe as recipes
from tamis.data import Scorer, model_refs
from tamis.errors import RecipeError
from tamis.models.registry import BUILT_IN, stand_in
from tamis.signals import SCORERS
from tamis.store import Run, parts


def score_commands(run: Run, entries: Sequence[tuple[str, Scorer]], keep: Sequence[str] = ()) -> list[str]:
    """Returns the commands that add scorers to a run: one, unless two of them have one name.

    Args:
        run: the run; the commands name its pool as it was given, and the settings it is read with.
        entries: label ("" for none of its own) and scorer.
        keep: features to store.
    """
    commands = []
    left = list(dict.fromkeys(entries))
    while left:
        now = list({scorer.name: (label, scorer) for label, scorer in reversed(left)}.values())[::-1]
        left = [entry for entry in left if entry not in now]
        words = [run.scoring(), "--signals", ",".join(scorer.name for _, scorer in now)]
        for label, scorer in now:
            given = {**dict(_settings(scorer)), **({"label": label} if label not in ("", scorer.name) else {})}
            for name, value in given.items():
                words += ["--set", shlex.quote(f"scores.{scorer.name}.{name}={_yaml(value)}")]
        words += ["--keep", ",".join(keep)] if keep else []
        commands.append(" ".join(words))
    return commands


def hidden_contents(run: Run) -> str:
    """Returns how many images show nothing without their transparency, as a sentence; "" for none.

    It counts the shards that have been scored so far, one at a time.
    """
    name, group, _ = run.columns.get("content_hidden", ("", None, None))
    if group is None:
        return ""
    images = 0
    for shard in group.shards.intersection(run.shards):
        found = parts.read_columns(group.folder / f"{shard}.parquet", [name], run.owner(shard)).column(name)
        images += int((parts.numbers(found) == 1).sum())
    kind = "image is of one colour without its" if images == 1 else "images are of one colour without their"
    advice = "score with --transparency white, into another run, to see them on white"
    return f"{images:,} {kind} transparency, as black drawings on a transparent ground are: {advice}" if images else ""


def _settings(record: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields a record's models, and settings that are not their defaults; those of records in it by dotted names."""
    models = model_refs(record) if isinstance(record, Scorer) else {}
    for setting in dataclasses.fields(record):
        value = getattr(record, setting.name)
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{above}{setting.name}.")
        elif (setting.name in models and value not in BUILT_IN) or value != setting.default:
            yield f"{above}{setting.name}", value


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def maker(column: str) -> tuple[str, Scorer] | None:
    """Returns one of our scorers that makes a column, with its label, under the models that shipped recipes give it.

    Args:
        column: its name, or a label and its name with a dot between them.

    Returns:
        None where no scorer of ours does, or where it needs what no recipe gives.
    """
    label, _, name = column.rpartition(".")
    for cls in SCORERS.values():
        if name in {found.name for found in cls.columns}:
            needed = [setting.name for setting in dataclasses.fields(cls) if setting.default is dataclasses.MISSING]
            usual = {setting: next(iter(recipes.usual(cls.name, setting)), None) for setting in needed}
            try:
                made: Scorer = recipes.scorer_from({cls.name: usual})[1]
            except RecipeError:
                return None
            return label, made
    return None


def models_of(entries: Sequence[tuple[str, Scorer]]) -> str:
    """Returns the sentence that tells which built-in models can stand in for those that scorers name; "" for none."""
    found: Mapping[str, str] = {
        f"scores.{scorer.name}.{setting}": built_in
        for _, scorer in entries
        for setting, model in model_refs(scorer).items()
        if model not in BUILT_IN and (built_in := stand_in(model))
    }
    shown = " ".join(f"--set {name}={model}" for name, model in found.items())
    return f"Built-in models, for the lab's drawn world only: {shown}" if found else ""
