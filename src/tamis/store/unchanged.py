"""Whether a sample that is read again is still the one that was scored: its caption and uid are those of the index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.data import Sample
from tamis.pool.source import Problem
from tamis.uid import content_uid, format_uid, image_hash

#: Columns of the index that a sample is compared with.
COMPARED = ("uid_hi", "uid_lo", "caption", "image_bytes", "image_xxh3")

_SHOWN = 60  # characters of a caption in a message


def difference(now: Sample, was: Mapping[str, Any]) -> str:
    """Returns what the index (its columns `COMPARED`) has otherwise than a sample read again; "" where they agree."""
    caption, uid = was["caption"], (was["uid_hi"], was["uid_lo"])
    if now.shown_caption != caption:
        return f"its caption is {_shown(now.shown_caption)}, was {_shown(caption)}"
    if was["image_bytes"] and now.image_bytes != was["image_bytes"]:
        return f"its image has {now.image_bytes:,} bytes, had {was['image_bytes']:,}"
    if was["image_xxh3"] is not None and now.image is not None and image_hash(now.image) != was["image_xxh3"]:
        return "its image is another of as many bytes"
    # An image that could not be read when it was scored has left no trace in the uid.
    if now.uid != uid and uid != content_uid(None, (caption or "").encode()):
        return f"its image, or a uid given with it, is another (uid {format_uid(*now.uid)}, was {format_uid(*uid)})"
    return ""


def _shown(caption: str | None) -> str:
    return "none" if caption is None else repr(caption[:_SHOWN])


def changed(url: str, how: str) -> Problem:
    """Returns the problem of a sample that is not what it was."""
    return Problem(
        "changed",
        f"a sample of {url} has changed since it was scored: {how}; put the old file back, or score the pool into "
        "another run folder",
    )
