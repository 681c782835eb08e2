"""The rows of `tamis list`: signals, recipes, models, selection steps and export formats."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from tamis.core.errors import ModelError, RecipeError, unknown_message
from tamis.core.hub import HUB

Rows = list[dict[str, Any]]


def _of_classes(what: str, heading: str) -> Rows:
    """Returns the rows of signals, steps or exports; `heading` is the first column's."""
    parts = dict.fromkeys(("all_of", "any_of", "none_of"), "a list of recipes, steps or lists of steps")
    rows: Rows = []
    for name, cls in _classes(what).items():
        facts = {"settings": parts.get(name) or _settings(cls), "about": _first_line(cls)}
        if what == "signals":
            columns = ", ".join(column.name for column in cls.columns) or "as its settings say"
            facts = {"columns": columns, "settings": facts["settings"], "cost": _cost(cls), "about": facts["about"]}
        rows.append({heading: name, **facts})
    return rows


def _recipes() -> Rows:
    from tamis.recipes.steps.outcome import describe

    rows: Rows = []
    for recipe in _load_recipes():
        steps = [describe(step) for step in recipe.steps if getattr(step, "score", "") != "status"]
        keeps = ", ".join(steps).replace("_", " ") or "every pair"
        facts = {"paper": _paper(recipe.source), "needs": _needs(recipe), "keeps": keeps}
        rows.append({"recipe": recipe.name, **facts, "about": recipe.about, "source": recipe.source})
    return rows


def _paper(source: str) -> str:
    """Returns the paper that a recipe's source names first: "DataComp 2023", "Radenovic 2023"; else "Tamis"."""
    found = re.search(r"(\w+) et al\. (\d{4})(?:, ([\w-]+))?", source)
    return f"{found[3] or found[1]} {found[2]}" if found and not source.startswith("Tamis") else "Tamis"


def _needs(recipe: Any) -> str:
    """Returns the signals of a recipe, and the size of the models of the hub that they run."""
    from tamis.core.types import references
    from tamis.signals.graph import topological

    nodes = topological([signal for _, signal in recipe.signals])
    models = {name for node in nodes for name in references(node, "model").values()}
    size = sum((HUB[name].size_mb or 0) / 1000 for name in models if name in HUB)
    names = ", ".join(signal.name for _, signal in recipe.entries) or "nothing"
    return f"{names} ({size:.1f} GB)" if size else names


def _models() -> Rows:
    from tamis.models.reference import BUILT_IN

    def row(model: str, kind: str, job: str | None, size: float | None, licence: str, **more: Any) -> dict[str, Any]:
        return {"model": model, "kind": kind, "job": job, "size_mb": size, "licence": licence, **more}

    rows: Rows = []
    for name, model in BUILT_IN.items():
        path = model.find()
        rows.append(row(
            name, "built-in", model.job, (_megabytes(path) or None) if path else None, model.licence,
            download=path is None and model.extra is not None, command=None if path else model.remedy,
            about=model.about, version=model.version,
        ))  # fmt: skip
    here = _in_the_cache()
    for name, path in here.items():
        known = HUB.get(name)
        licence = _licence(path) or (known.licence if known else "see its card")
        about = f"in the hub's cache: {path}"
        size = _megabytes(path)
        rows.append(
            row(name, "local", known.job if known else None, size, licence, download=False, command=None, about=about)
        )
    for name, known in HUB.items():
        if name not in here:
            kind, about = "hub", "fetched at its first use"
            if not known.revision:
                kind, about = "hub, pickled", f"pickles: tamis convert {name} OUT"
            rows.append(row(
                name, kind, known.job, known.size_mb, known.licence,
                download=True, command=f"hf download {name}", about=about,
            ))  # fmt: skip
    about = "any folder of save_pretrained, and any owner/name of the hub"
    folder = row("path/to/folder", "folder", None, None, "its own", download=False, command=None, about=about)
    return [*rows, folder]


#: Headings of the tables of models, by kind.
_HEADINGS = {
    "built-in": "Built in (lab/... know the lab's drawn world, not photographs)",
    "local": "On this machine, in the hub's cache",
    "hub": "On the hub: fetched at the first use, about as large as this",
    "hub, pickled": "On the hub as pickles only: to be loaded and saved again as safetensors",
}


#: What the tables of a terminal leave out, by list.
_OMITTED = {"signals": ("columns", "settings"), "recipes": ("about", "source"), "steps": ("settings",)}


def tables(what: str, rows: Rows) -> list[tuple[str, Rows]]:
    """Returns tables of (heading or "", rows) for the terminal; `in_full` shows everything about one row."""
    if what != "models":
        omitted = _OMITTED.get(what, ())
        return [("", [{name: value for name, value in row.items() if name not in omitted} for row in rows])]
    by_heading: dict[str, Rows] = {}
    for row in rows:
        size = row["size_mb"]
        # Facts that the heading states are left out, so that tables fit into 80 characters.
        line = {
            "model": row["model"],
            "job": row["job"] or "",
            "MB": "" if size is None else f"{size:,.0f}" if size >= 10 else f"{size:.1f}",
            "licence": row["licence"],
        }
        if row["kind"] == "built-in":
            line |= {"version": row["version"] or "", "download": row["command"] or "no"}
        if row["kind"] in _HEADINGS:
            by_heading.setdefault(_HEADINGS[row["kind"]], []).append(line)
    tables = [(heading, by_heading[heading]) for heading in _HEADINGS.values() if heading in by_heading]
    return [*tables, (f"{rows[-1]['model']}: {rows[-1]['about']}", [])]


def _in_the_cache() -> dict[str, Path]:
    """Returns the complete models of the hub in this machine's cache: id to folder."""
    from tamis.models.reference import hub_copy

    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return {}
    found = {}
    for name in sorted(
        path.name.removeprefix("models--").replace("--", "/") for path in Path(HF_HUB_CACHE).glob("models--*")
    ):
        with suppress(ModelError, OSError):  # not a hub id, or an unreadable folder
            if folder := hub_copy(name):
                found[name] = folder
    return found


def _licence(folder: Path) -> str | None:
    """Returns the licence that a model's card states in its front matter."""
    import yaml

    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
        facts = yaml.safe_load(text.split("---", 2)[1]) if text.startswith("---") else None
    except (OSError, ValueError, IndexError, yaml.YAMLError):
        return None
    stated = facts.get("license_name") or facts.get("license") if isinstance(facts, dict) else None
    return ", ".join(map(str, stated)) if isinstance(stated, list) else stated and str(stated)


def _megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return round(sum(file.stat().st_size for file in files) / 1e6, 1)


def _settings(cls: type[Any]) -> str:
    words = []
    for setting in sorted(dataclasses.fields(cls), key=lambda field: _default(field) is not dataclasses.MISSING):
        default = _default(setting)
        if default is dataclasses.MISSING:
            words.append(setting.name)
        elif dataclasses.is_dataclass(default):
            inner = dataclasses.fields(default)
            words += [f"{setting.name}.{field.name}={getattr(default, field.name)}" for field in inner]
        else:
            words.append(f"{setting.name}={list(default) if isinstance(default, tuple) else default}")
    return ", ".join(words)


def _default(setting: dataclasses.Field[Any]) -> Any:
    if setting.default_factory is not dataclasses.MISSING:
        return setting.default_factory()
    return setting.default


def _first_line(cls: type[Any]) -> str:
    text = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return text.partition(". Settings as")[0].rstrip(".")


def _cost(cls: type[Any]) -> str:
    """Returns the start of the sentence "Cost: ..." in a class's docstring; "not said" if there is none."""
    match = re.search(r"^Cost: (.*?)(?:[.;](?:\s|$)|\Z)", inspect.getdoc(cls) or "", re.MULTILINE | re.DOTALL)
    cost = " ".join(match[1].split()) if match else "not said"
    return cost if len(cost) < 70 else re.split(r", | \(", cost)[0]


def in_full(what: str, name: str) -> str:
    """Returns everything known about one entry of a list, as text; raises RecipeError for an unknown name."""
    import yaml

    from tamis.recipes.names import shipped_name, split_count
    from tamis.recipes.recipe import load

    rows = {next(iter(row.values())): row for row in CATALOGUES[what]()}
    name = (what == "recipes" and shipped_name(name)) or name
    if what == "recipes" and name not in rows and split_count(name)[0] in rows:
        return yaml.safe_dump(dict(load(name).text), sort_keys=False, allow_unicode=True, width=118).rstrip()
    if name not in rows:
        raise RecipeError(unknown_message(what.removesuffix("s"), name, rows))
    if what == "recipes":
        return (files("tamis.recipes.shipped") / f"{name}.yaml").read_text(encoding="utf-8").rstrip()
    if what == "models":
        return "\n".join(f"{key:<9} {value}" for key, value in rows[name].items() if value is not None)
    cls = _classes(what)[name]
    lines = [name, "", inspect.getdoc(cls) or "", ""]
    if columns := getattr(cls, "columns", ()):
        lines += ["Columns:", *(f"  {column.name}: {_of_column(column)}" for column in columns), ""]
    lines += ["Settings: " + (rows[name]["settings"] or "none")]
    if what == "signals":
        users = [recipe.name for recipe in _load_recipes() if name in {signal.name for _, signal in recipe.entries}]
        lines += ["Recipes: " + (", ".join(users) or "none that comes with Tamis")]
    return "\n".join(lines)


def _of_column(column: Any) -> str:
    words = [column.unit or column.kind, f"{column.better} is usually kept" if column.better != "neither" else ""]
    return "; ".join(word for word in (*words, column.about) if word)


def _classes(what: str) -> Mapping[str, type[Any]]:
    from tamis.exports import exporters
    from tamis.recipes.derived import DERIVED
    from tamis.recipes.steps import selectors
    from tamis.signals import signals

    def every() -> dict[str, type[Any]]:
        return {**signals(), **DERIVED}

    return {"signals": every, "steps": selectors, "exports": exporters}[what]()


def _load_recipes() -> list[Any]:
    from tamis.recipes import recipe
    from tamis.recipes.names import shipped_names

    return [recipe.load(name) for name in shipped_names()]


#: What `tamis list` can list.
CATALOGUES: Mapping[str, Callable[[], Rows]] = {
    "signals": partial(_of_classes, "signals", "signal"),
    "recipes": _recipes,
    "models": _models,
    "steps": partial(_of_classes, "steps", "step"),
    "exports": partial(_of_classes, "exports", "format"),
}


def names(what: str) -> Iterable[str]:
    """Returns the names that a shell completes ("signals", "recipes", "exports", "lists") without loading recipes."""
    from tamis.recipes.names import shipped_names

    if what == "lists":
        return CATALOGUES
    return shipped_names() if what == "recipes" else _classes(what)
