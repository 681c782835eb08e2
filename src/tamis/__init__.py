"""Tamis scores every image-text pair of a pool once and lets you choose training subsets as often as you like.

run = tamis.score("pool/{00000..00031}.tar", run="runs/mine", signals=["caption_length", "language"])
subset = tamis.select(run, "basic")
tamis.export(subset, "npy", "subset.npy")
tamis.report(run, [subset], out="report.html")

A recipe that names its pool and run does all of it: tamis.run_recipe("recipe.yaml").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tamis.api import export as export
    from tamis.api import plan as plan
    from tamis.api import report as report
    from tamis.api import run_recipe as run_recipe
    from tamis.choosing import select as select
    from tamis.derived.clusters import cluster as cluster
    from tamis.evaluate.bench import bench as bench
    from tamis.explore.layout import lay_out as lay_out
    from tamis.first_look import look as look
    from tamis.overlaps import overlap as overlap
    from tamis.pool import Pool as Pool
    from tamis.pool import PoolSpec as PoolSpec
    from tamis.pool import open_pool as open_pool
    from tamis.reporting.notebook import show as show
    from tamis.scoring import derive as derive
    from tamis.scoring import score as score
    from tamis.store import Run as Run
    from tamis.store import open_run as open_run
    from tamis.store.check import check as check
    from tamis.store.stream import samples_of as samples_of
    from tamis.store.subset import Subset as Subset

_MODULES = {
    "plan": "tamis.api",
    "score": "tamis.scoring",
    "select": "tamis.choosing",
    "cluster": "tamis.derived.clusters",
    "derive": "tamis.scoring",
    "lay_out": "tamis.explore.layout",
    "bench": "tamis.evaluate.bench",
    "check": "tamis.store.check",
    "export": "tamis.api",
    "look": "tamis.first_look",
    "overlap": "tamis.overlaps",
    "report": "tamis.api",
    "show": "tamis.reporting.notebook",
    "run_recipe": "tamis.api",
    "Pool": "tamis.pool",
    "PoolSpec": "tamis.pool",
    "open_pool": "tamis.pool",
    "Run": "tamis.store",
    "open_run": "tamis.store",
    "Subset": "tamis.store.subset",
    "samples_of": "tamis.store.stream",
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
