"""The head of the page: which run it is of, and what is wrong with it; at its foot the run's folder and recipe."""

from __future__ import annotations

from pathlib import PurePath

from tamis.reporting.context import Context, Facts


def gather(context: Context) -> Facts:
    """Reads what run.json says of the run. `created` is in seconds since 1970; `readable` rows have the status ok."""
    run = context.run
    pool = run.facts["pool"]
    paths = pool["path"] if isinstance(pool["path"], list) else [pool["path"]]
    return {
        "name": PurePath(str(run.path.resolve())).name,
        "paths": [str(path) for path in paths],
        "kind": str(pool.get("kind", "pool")),
        "created": float(run.facts.get("created", 0)),
        "tamis": str(run.facts.get("tamis", "?")),
        "rows": context.rows,
        "readable": context.statuses.get("ok", 0),
        "shards": len(run.shards),
        "subsets": len(context.subsets),
    }


def notes(context: Context) -> Facts:
    """Returns what the reader must know before the numbers.

    `failures`: the error of each failed shard; `incomplete`: scores that some of the `shards` lack, with how many have
    them; `missing` of the `listed` shards are not in the run; `unexplained`: subsets of which the page cannot say why
    pairs were dropped; `no_images`: why the page has none, or "".
    """
    no_images = ""
    if context.pool is None:
        no_images = "The pool's files are not where the run read them, so there are no images."
    elif not context.pool.has_images:
        no_images = "The pool is metadata only, so there are no images."
    run, subsets = context.run, zip(context.names, context.verdicts, context.keeps, strict=True)
    return {
        "failures": run.failures,
        "incomplete": context.incomplete,
        "shards": len(run.shards),
        "missing": len(run.missing),
        "listed": len(run.urls),
        "unexplained": [
            {"subset": name["label"], "problem": verdict.problem}
            for name, verdict, keep in subsets
            if verdict.problem and not keep.all()
        ],
        "no_images": no_images,
    }


def run_facts(context: Context) -> Facts:
    """Reads the recipe that the run was scored by ("": none), and lists what is stored next to the scores."""
    run = context.run
    path = run.path / "recipe.yaml"
    return {
        "folder": str(run.path.resolve()),
        "pool_fingerprint": run.facts.get("pool_fingerprint"),
        "format": run.facts.get("format"),
        "embeddings": list(run.embeddings),
        "texts": list(run.texts),
        "recipe": path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "",
    }
