"""Advice on what to type: the commands that add missing columns to a run, ready to paste."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from tamis import recipe as recipes
from tamis.data import Signal, references
from tamis.errors import RecipeError
from tamis.graph import topological
from tamis.models.reference import BUILT_IN, stand_in
from tamis.recipe import Recipe
from tamis.signals import maker_of
from tamis.store import Run, parts


def score_commands(run: Run, entries: Sequence[tuple[str, Signal]], keep: Sequence[str] = ()) -> list[str]:
    """Returns the commands that add labelled signals to a run: one, unless two signals have the same name."""
    commands = []
    remaining = list(dict.fromkeys(entries))
    while remaining:
        now = list({signal.name: (label, signal) for label, signal in reversed(remaining)}.values())[::-1]
        remaining = [entry for entry in remaining if entry not in now]
        words = [run.scoring(), "--signals", ",".join(signal.name for _, signal in now)]
        for label, signal in now:
            settings = {**dict(_settings(signal)), **({"label": label} if label not in ("", signal.name) else {})}
            for name, value in settings.items():
                words += ["--set", shlex.quote(f"signals.{signal.name}.{name}={_yaml(value)}")]
        words += ["--keep", ",".join(keep)] if keep else []
        commands.append(" ".join(words))
    return commands


def hidden_contents(run: Run) -> str:
    """Returns a sentence with the number of images that show nothing without their transparency; "" for none."""
    name, group, _ = run.columns.get("content_hidden", ("", None, None))
    if group is None:
        return ""
    images = 0
    for shard in group.shards.intersection(run.shards):
        values = parts.read_columns(group.folder / f"{shard}.parquet", [name], run.owner(shard)).column(name)
        images += int((parts.numbers(values) == 1).sum())
    kind = "image is" if images == 1 else "images are"
    advice = "score with --transparency white, into another run, to see them on white"
    seen = f"{images:,} {kind} a single colour once transparency is ignored, e.g. black line art"
    return f"{seen}: {advice}" if images else ""


def _settings(record: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields a signal's models and the settings that are not defaults; those of nested records have dotted names."""
    models = references(record, "model") if isinstance(record, Signal) else {}
    for setting in dataclasses.fields(record):
        value = getattr(record, setting.name)
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{above}{setting.name}.")
        elif (setting.name in models and value not in BUILT_IN) or value != setting.default:
            yield f"{above}{setting.name}", value


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def how_to_make(columns: Sequence[str], run: Run, recipe: Recipe) -> str:
    """Returns the sentence and the commands that add columns to a run; "" if no signal of ours makes any of them.

    The signals of the recipe that reads the columns come first, with its settings.
    """
    entries: list[tuple[str, Signal]] = []
    vectors = [name for name in columns if name.endswith("_embedding")]
    for column in columns:
        of_recipe = [
            (label, signal)
            for label, signal in recipe.signals
            if column in {name for one in signal.columns for name in (one.name, f"{label or signal.name}.{one.name}")}
        ]
        built_in = _maker(column) if not of_recipe and column not in vectors else None
        entries += of_recipe or ([built_in] if built_in else [])
    if vectors:
        entries += [entry for entry in recipe.signals if any(node.name in vectors for node in topological([entry[1]]))]
    if not entries:
        return ""
    entries = list(dict.fromkeys(entries))
    commands = score_commands(run, entries, ["embeddings"] if vectors else [])
    lacks = f"{run.path} lacks what the recipe {recipe.name!r} reads: {', '.join(map(repr, columns))}"
    return "\n".join(["", f"{lacks}. To score it:", *commands, *_stand_ins(entries)])


def _maker(column: str) -> tuple[str, Signal] | None:
    """Returns a label and a built-in signal for a column, NAME or LABEL.NAME, with the models of shipped recipes."""
    cls = maker_of(column)
    if cls is None:
        return None
    required = [setting.name for setting in dataclasses.fields(cls) if setting.default is dataclasses.MISSING]
    values = {setting: next(iter(recipes.usual(cls.name, setting)), setting.upper()) for setting in required}
    try:
        return column.rpartition(".")[0], recipes.signal_from({cls.name: values})[1]
    except RecipeError:  # the placeholder is not valid for this setting
        return None


def _stand_ins(entries: Sequence[tuple[str, Signal]]) -> list[str]:
    """Returns a line with the built-in models that can replace those of signals, if there are any."""
    settings = [
        f"--set signals.{signal.name}.{setting}={built_in}"
        for _, signal in entries
        for setting, model in references(signal, "model").items()
        if model not in BUILT_IN and (built_in := stand_in(model))
    ]
    return [f"Built-in models, for the lab's drawn world only: {' '.join(dict.fromkeys(settings))}"] if settings else []
