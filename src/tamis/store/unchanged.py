"""Whether a sample that is read again is still the one that was scored: its caption and uid are those of the index."""

from __future__ import annotations

import logging
from pathlib import Path

from tamis.data import Sample
from tamis.pool.source import Problem
from tamis.uid import content_uid, format_uid

log = logging.getLogger(__name__)

#: Columns of the index that a sample is compared with.
COMPARED = ("uid_hi", "uid_lo", "caption", "image_bytes")

_SHOWN = 60  # characters of a caption in a message

#: Runs that were warned of.
_warned: set[Path] = set()


def difference(now: Sample, uid: tuple[int, int], caption: str | None, image_bytes: int) -> str:
    """Returns what the index has otherwise than a sample that was read again; "" where they agree."""
    if now.shown_caption != caption:
        return f"its caption is {_shown(now.shown_caption)}, was {_shown(caption)}"
    if image_bytes and now.image_bytes != image_bytes:
        return f"its image has {now.image_bytes:,} bytes, had {image_bytes:,}"
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


def warn_of_images(now: Sample, url: str, run: Path) -> None:
    """Warns, once for a run, that nothing tells whether the images of a changed file are the same: uids were given."""
    if run in _warned or now.image is None or now.uid == content_uid(now.image, (now.shown_caption or "").encode()):
        return
    _warned.add(run)
    log.warning(
        "%s (and maybe others) has another size or time than when it was scored. Captions, uids and sizes of samples "
        "are compared; their uids were given, not made from the images: another image of as many bytes is not noticed",
        url,
    )
