"""Which signal, settings and models made the columns that a choice reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tamis.runs.run import Run


def maker_of(run: Run, column: str) -> dict[str, Any]:
    """Returns what made a column or stored embeddings; {} if the pool brings them."""
    inner, group, _ = run.locate(column)
    facts = run.table().about(column)
    if "name" not in facts:
        return {}
    label, stem = (facts["name"], inner) if group is None else (group.label, group.folder.name)
    maker = {"label": label, "column": inner, "signal": facts["name"], "fingerprint": stem.rpartition("-")[2]}
    return maker | {name: dict(facts.get(name) or {}) for name in ("settings", "models")}


def models_in_words(makers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns sentences: which models made columns, and which of them know only the lab's drawings."""
    return chosen_by(makers) + drawn_world({maker["label"]: maker["models"] for maker in makers})


def chosen_by(makers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a sentence about the models that made columns; [] for none."""
    made = []
    for maker in makers:
        named = f" (the recipe names {' and '.join(maker['named'])})" if maker.get("named") else ""
        made += [f"{maker['label']} of {' and '.join(maker['models'])}{named}"] if maker["models"] else []
    return [f"Chosen by {', '.join(dict.fromkeys(made))}"] if made else []


def drawn_world(models: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns a sentence about scores by models of the lab; [] for none. `models` has those of each label."""
    labels: dict[str, list[str]] = {}
    for label, name in ((label, name) for label, names in models.items() for name in names if name.startswith("lab/")):
        labels.setdefault(name, []).append(label)
    who = [f"{_listed(some)} {'is' if len(some) == 1 else 'are'} {name}" for name, some in labels.items()]
    knows = "it knows" if len(who) == 1 else "they know"
    return [f"{', '.join(who)}: {knows} only the drawn world, so scores of photographs mean nothing"] if who else []


def _listed(names: Sequence[str]) -> str:
    """Returns "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
