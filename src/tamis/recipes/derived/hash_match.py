"""`hash_match`: images on lists of hashes that the user holds, such as opt-outs or unlawful content."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Float32s
from tamis.core.errors import RecipeError, read_text
from tamis.core.math.copies import NearTo
from tamis.core.types import Column, OptionalFileRef
from tamis.recipes.derived import Derived, Saved
from tamis.recipes.steps.distinct import decode
from tamis.runs.table import Table

log = logging.getLogger(__name__)

_DIGITS = {"md5": 32, "sha256": 64, "phash": 16}
_COLUMNS = {"md5": "image_md5", "sha256": "image_sha256", "phash": "image_hash"}


@dataclass(frozen=True, kw_only=True)
class HashMatch(Derived):
    """Marks images on lists of hashes. The step `hash_match` drops them; report and explorer show only their uid.

    Attributes:
        md5, sha256, phash: files of hex digits, one hash per line; the text after white space, and lines that begin
            with #, are ignored. md5 and sha256 need the signal file_hash, phash needs image_hash.
        distance: maximum number of bits in which a phash may differ, 0 to 15. Different images can be as near, so a
            match is no proof.

    Emits:
        on_list: 1 for an image on a list, else 0; NaN for a row without any of the hashes.

    Cost: reads the columns once; memory for the lists.
    """

    name: ClassVar[str] = "hash_match"
    columns: ClassVar[tuple[Column, ...]] = (Column("on_list", "0 or 1", "low", about="1: on a list of hashes"),)
    lacking: ClassVar[str] = "the row has no hash"
    ONE_OF: ClassVar[tuple[str, ...]] = ("sha256", "md5", "phash")
    md5: OptionalFileRef = None
    sha256: OptionalFileRef = None
    phash: OptionalFileRef = None
    distance: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.distance <= 15:
            raise ValueError(f"distance must be between 0 and 15, got {self.distance}")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(_COLUMNS[kind] for kind in self._lists())

    def _lists(self) -> dict[str, str]:
        return {kind: path for kind in _DIGITS if (path := getattr(self, kind))}

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Float32s]:
        listed = {kind: read_hashes(path, _DIGITS[kind], f"hash_match: {kind}") for kind, path in self._lists().items()}
        near = NearTo(np.array([int(one, 16) for one in listed.get("phash", ())], np.uint64)[:, None], self.distance)
        sets = {kind: pa.array(sorted(some), pa.string()) for kind, some in listed.items()}

        def work(place: slice, columns: dict[str, Any]) -> Float32s:
            found = np.full(place.stop - place.start, np.nan, np.float32)
            for kind in listed:
                words = columns[_COLUMNS[kind]].cast(pa.string())
                found[words.is_valid().to_numpy(zero_copy_only=False) & np.isnan(found)] = 0
                if kind == "phash":
                    for rows, *_ in near.pairs(decode(words, "image_hash")[0].view(">u8").astype(np.uint64)):
                        found[rows[words.take(rows).is_valid().to_numpy(zero_copy_only=False)]] = 1
                else:
                    found[pc.is_in(pc.utf8_lower(words), sets[kind]).to_numpy(zero_copy_only=False)] = 1
            return found

        parts = table.map(sorted(self.reads), work)
        return {"on_list": np.concatenate([np.zeros(0, np.float32), *parts])}


def read_hashes(path: str, digits: int, what: str) -> set[str]:
    """Returns the hashes of a list, in lower case; RecipeError names the line that has none."""
    found = set()
    for number, line in enumerate(read_text(path, "replace").splitlines(), 1):
        word = line.split()[0] if line.strip() else "#"
        if not word.startswith("#") and not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", word):
            raise RecipeError(f"{what}: {path}, line {number}: {word[:70]!r} is not a hash of {digits} hex digits")
        found |= {word.lower()} if not word.startswith("#") else set()
    if not found:
        log.warning("%s: %s has no hashes", what, path)
    return found
