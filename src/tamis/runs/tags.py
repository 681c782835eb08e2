"""Tags that people give to pairs: the columns `tagged` (the words) and `label` (1 for good, 0 for bad) of a run.

Nothing can make them again, so they follow their pairs. A part of a shard with tags holds the uids of its rows. When
the shard is read again, each pair gets its tags back; those of pairs that its file lacks now wait in the part's footer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import U64
from tamis.core.errors import plural
from tamis.core.files.checked import LABEL, CheckedParquet, uids_digest
from tamis.core.ids import copy_numbers, fingerprint, format_uid
from tamis.core.types import Column
from tamis.runs import parts

log = logging.getLogger(__name__)

#: What recipes call the column of tags, which are sorted and joined, null without a tag; LABEL has good and bad.
TAGS, SEPARATOR = "tagged", ","

#: Two tags that exclude each other. The column `label` has them as 1 and 0.
GOOD, BAD = "good", "bad"

COLUMNS = (
    Column(name=LABEL, unit="1 good, 0 bad", better="high", about="what a person said of the pair"),
    Column(name=TAGS, unit="", better="neither", kind="word", about="the pair's tags, joined by commas"),
)

#: Of the scores' folder.
FACTS: dict[str, Any] = {"name": LABEL, "version": 1, "settings": {}}
FOLDER = f"{LABEL}-{fingerprint(FACTS)}"

_ABSENT = "tamis.absent"  # in the footer: {uid and its copy's number: tags} of pairs that the shard lacks now
_UIDS = ["uid_hi", "uid_lo"]


def tags_in(text: str | None) -> list[str]:
    """Returns the tags of a cell of the column."""
    return text.split(SEPARATOR) if text else []


def write(
    path: Path, sets: Sequence[str], codes: NDArray[np.int32], halves: tuple[U64, U64], absent: Mapping[str, str]
) -> None:
    """Writes the tags of a shard.

    `sets` are joined tags, and `codes` the place there of each row's; `halves` are the rows' uids. `absent`: see
    `absent_of`.
    """
    label = np.array([1.0 if GOOD in (has := tags_in(text)) else 0.0 if BAD in has else np.nan for text in sets])[codes]
    words = np.array([text or None for text in sets], object)[codes]
    reasons = np.array([None, "not labelled"], object)[np.isnan(label).astype(np.int8)]
    untagged = np.full(codes.size, not any(words))
    parts.write_scores(
        path, COLUMNS, {LABEL: label, TAGS: words}, reasons, uids=uids_digest(*halves),
        more={name: pa.array(half, mask=untagged) for name, half in zip(_UIDS, halves, strict=True)},
        facts={_ABSENT: json.dumps(absent)} if absent else {},
    )  # fmt: skip


def absent_of(path: Path) -> dict[str, str]:
    """Returns the tags of pairs that a shard had once, {uid and copy: tags}, from its part; {} if there is none."""
    return dict(json.loads(CheckedParquet(path).facts.get(_ABSENT, "{}"))) if path.is_file() else {}


def carry(run: Path, shard: str, halves: tuple[U64, U64]) -> None:
    """Gives a shard's tags to its new rows, which have these uids.

    Raises DamageError if the tags cannot be read: the part is not changed then.
    """
    path = run / "scores" / FOLDER / f"{shard}.parquet"
    if not path.is_file() or CheckedParquet(path).facts["tamis.uids"] == uids_digest(*halves):
        return
    old, tags = parts.read_columns(path, None), absent_of(path)
    if any(words := old[TAGS].to_pylist()):
        tags |= {key: text for key, text in zip(_keys(parts.uids_of(old)), words, strict=True) if text}
    sets, codes = np.unique(np.array([tags.pop(key, "") for key in _keys(halves)], object), return_inverse=True)
    write(path, sets.tolist(), codes.astype(np.int32), halves, tags)
    if tags:
        text = "the shard %s lacks %s now: their tags are kept, and are back when the pairs are"
        log.warning(text, shard, plural(len(tags), "tagged pair"))


def _keys(halves: tuple[U64, U64]) -> list[str]:
    copies = zip(*(half.tolist() for half in (*halves, copy_numbers(*halves))), strict=True)
    return [f"{format_uid(high, low)}-{copy}" for high, low, copy in copies]
