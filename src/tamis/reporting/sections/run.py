"""Where the run is, what else it stores, and the recipe it was scored by."""

from __future__ import annotations

from tamis.reporting.context import Context, Facts


def gather(context: Context) -> Facts:
    """Reads the recipe ("" where there is none), and lists what is stored next to the scores."""
    run = context.run
    try:
        recipe = (run.path / "recipe.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        recipe = ""
    return {
        "folder": str(run.path.resolve()),
        "pool_fingerprint": run.facts.get("pool_fingerprint"),
        "format": run.facts.get("format"),
        "embeddings": list(run.embeddings),
        "texts": list(run.texts),
        "recipe": recipe,
    }
