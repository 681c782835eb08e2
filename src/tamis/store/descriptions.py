"""Descriptions: what `scorer.json` and `feature.json` say of the parts beside them, bound to their folder and sealed.

A description says the folder that it was written for and a hash of all that it says, so that one of another folder, or
one of which a letter has changed, is told from its own. Those of older versions say neither: where they hold what the
fingerprint in the folder's name was made of, that is compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from tamis.errors import DamageError
from tamis.fingerprint import canonical_json, fingerprint
from tamis.store.formats import FeatureFacts, ScorerFacts, advice, read_checked

#: The file that describes a folder: of scores, and of stored features.
SCORER, FEATURE = "scorer.json", "feature.json"

_MAKER, _DIGEST = "maker", "digest"


def description_of(folder: Path) -> Path:
    """Returns the file that describes a folder of parts."""
    return folder / (SCORER if folder.parent.name == "scores" else FEATURE)


def bound(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a description as its file holds it: with the folder that it is written for, and the hash of all of it."""
    plain = {key: value for key, value in facts.items() if key != _DIGEST} | {_MAKER: folder.name}
    return {**plain, _DIGEST: _digest(json.loads(json.dumps(plain)))}  # of what a reader will find: lists, no tuples


def read_description(path: Path) -> dict[str, Any]:
    """Returns what a description says, if it is that of the folder where it lies.

    Raises:
        DamageError: it is damaged, or was written for another folder.
        RunError: it cannot be read.
    """
    facts = read_checked(path, ScorerFacts if path.name == SCORER else FeatureFacts)
    here = path.parent.name
    if _MAKER in facts or _DIGEST in facts:
        maker = facts.get(_MAKER)
        if facts.get(_DIGEST) != _digest({key: value for key, value in facts.items() if key != _DIGEST}):
            raise _damaged(path, "what it says is not what was written")
    else:
        maker = f"{facts['name']}-{fingerprint(facts['identity'])}" if facts.get("identity") else here
    if maker != here:
        raise _damaged(path, f"it was written for {maker}, and lies in {here}")
    return facts


def _digest(facts: Mapping[str, Any]) -> str:
    try:
        return xxhash.xxh3_64_hexdigest(canonical_json(facts).encode())
    except (ValueError, UnicodeEncodeError):  # NaN, half a surrogate: nothing of ours
        return ""


def _damaged(path: Path, what: str) -> DamageError:
    return DamageError(f"{path} is damaged, or not the file that belongs there: {what}; {advice(path)}", what)
