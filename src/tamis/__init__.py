"""Tamis scores every image-text pair of a pool once and lets you choose training subsets as often as you like.

run = tamis.score("pool/{00000..00031}.tar", run="runs/mine", signals=["caption_length", "language"])
subset = tamis.select(run, "basic")
tamis.export(subset, "npy", "subset.npy")
tamis.report(run, [subset], out="report.html")

A recipe that names its pool and run does all of it: tamis.run_recipe("recipe.yaml").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamis.core.version import __version__ as __version__

if TYPE_CHECKING:
    from tamis.commands.explore import explore as explore
    from tamis.commands.export import export as export
    from tamis.commands.look import look as look
    from tamis.commands.overlap import overlap as overlap
    from tamis.commands.report import report as report
    from tamis.commands.run_recipe import plan as plan
    from tamis.commands.run_recipe import run_recipe as run_recipe
    from tamis.commands.score import derive as derive
    from tamis.commands.score import score as score
    from tamis.commands.select import select as select
    from tamis.pools import Pool as Pool
    from tamis.pools import PoolSpec as PoolSpec
    from tamis.pools import open_pool as open_pool
    from tamis.recipes.derived.cluster_columns import cluster as cluster
    from tamis.reports.explore.layout import map_embeddings as map_embeddings
    from tamis.reports.notebook import show as show
    from tamis.runs import Run as Run
    from tamis.runs import open_run as open_run
    from tamis.runs.check import check as check
    from tamis.runs.stream import samples_of as samples_of
    from tamis.runs.subset import Subset as Subset
    from tamis.train.evaluate.bench import bench as bench
    from tamis.train.evaluate.choose import choose as choose

_MODULES = {
    "plan": "tamis.commands.run_recipe",
    "score": "tamis.commands.score",
    "select": "tamis.commands.select",
    "cluster": "tamis.recipes.derived.cluster_columns",
    "derive": "tamis.commands.score",
    "map_embeddings": "tamis.reports.explore.layout",
    "bench": "tamis.train.evaluate.bench",
    "check": "tamis.runs.check",
    "choose": "tamis.train.evaluate.choose",
    "explore": "tamis.commands.explore",
    "export": "tamis.commands.export",
    "look": "tamis.commands.look",
    "overlap": "tamis.commands.overlap",
    "report": "tamis.commands.report",
    "show": "tamis.reports.notebook",
    "run_recipe": "tamis.commands.run_recipe",
    "Pool": "tamis.pools",
    "PoolSpec": "tamis.pools",
    "open_pool": "tamis.pools",
    "Run": "tamis.runs",
    "open_run": "tamis.runs",
    "Subset": "tamis.runs.subset",
    "samples_of": "tamis.runs.stream",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    # Imported when first used, so that `import tamis` costs nothing.
    if name not in _MODULES:
        raise AttributeError(f"module 'tamis' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
