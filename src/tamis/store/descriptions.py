"""Descriptions: what `scorer.json` and `feature.json` say of the parts beside them, bound to their folder and sealed.

A description says the folder that it was written for and carries a seal, so that one of another folder, or one of which
a letter has changed, is told from its own. Those of older versions do neither: where they hold what the fingerprint in
the folder's name was made of, that is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.fingerprint import fingerprint
from tamis.store.formats import FeatureFacts, ScorerFacts, damaged, read_checked, sealed

#: The file that describes a folder: of scores, and of stored features.
SCORER, FEATURE = "scorer.json", "feature.json"

_MAKER = "maker"


def description_of(folder: Path) -> Path:
    """Returns the file that describes a folder of parts."""
    return folder / (SCORER if folder.parent.name == "scores" else FEATURE)


def bound(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a description as its file holds it: with the folder that it is written for, and sealed."""
    return sealed({**facts, _MAKER: folder.name})


def read_description(path: Path) -> dict[str, Any]:
    """Returns what a description says, if it is that of the folder where it lies.

    Raises:
        DamageError: it is damaged, or was written for another folder.
        RunError: it cannot be read.
    """
    facts = read_checked(path, ScorerFacts if path.name == SCORER else FeatureFacts)
    here = path.parent.name
    unbound = f"{facts['name']}-{fingerprint(facts['identity'])}" if facts.get("identity") else here
    maker = facts.get(_MAKER, unbound)
    if _MAKER in facts and not {"seal", "digest"} & facts.keys():  # a digest was the seal of one day
        raise damaged(path, "it has lost its seal")
    if maker != here:
        raise damaged(path, f"it was written for {maker}, and lies in {here}")
    return facts
