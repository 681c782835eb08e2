"""Reads single rows of a shard again, from the pool's file, and compares each with the run's index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tamis.core.arrays import Rows
from tamis.core.ids import content_uid, format_uid, image_xxh3
from tamis.core.types import Member, Sample
from tamis.pools import Shard
from tamis.pools.source import SampleFault, SampleFiles, SampleReader
from tamis.runs import parts

#: The index columns that a sample is compared with.
COMPARED = ("uid_hi", "uid_lo", "caption", "image_bytes", "image_xxh3")

_TOGETHER, _TOGETHER_BYTES = 256, 32 << 20  # rows that are read together, and about the most bytes of them
_SHOWN = 60  # characters of a caption in a message

#: A row of a shard, the members of its file to read, and its facts in the index, at least those `COMPARED`.
Wanted = tuple[int, Sequence[Member], Mapping[str, Any]]


def read_again(reader: SampleReader, wanted: Sequence[Wanted]) -> list[SampleFiles | SampleFault]:
    """Reads rows of a shard; a `SampleFault` of the kind "differs" says how a sample differs from the index."""
    answer = reader.read(
        [row for row, _, _ in wanted], [members for _, members, _ in wanted], [was["caption"] for _, _, was in wanted]
    )
    found: list[SampleFiles | SampleFault] = []
    for one, (_, _, was) in zip(answer, wanted, strict=True):
        how = "" if isinstance(one, SampleFault) else _difference(one.sample, was)
        found.append(SampleFault("differs", how) if how else one)
    return found


def read_images_again(
    shard: Shard, index: Path, rows: Rows
) -> Iterator[tuple[Mapping[str, Any], SampleFiles | SampleFault | None]]:
    """Yields the facts of each row and its image with the texts next to it; None for a row without an image."""
    facts = parts.read_columns(index, [*COMPARED, "members"]).take(rows).to_pylist()
    group: list[Wanted] = []
    held = 0
    with closing(shard.reader(whole=False, keep_open=True)) as reader:

        def read() -> Iterator[tuple[Mapping[str, Any], SampleFiles | SampleFault | None]]:
            some = [one for one in group if one[1]]
            answer = iter(read_again(reader, some) if some else ())
            yield from ((was, next(answer) if members else None) for _, members, was in group)

        for row, was in zip(rows.tolist(), facts, strict=True):
            members = [Member(**part) for part in was["members"]]
            image = shard.image_member(members) if was["image_xxh3"] is not None else None
            group.append((row, [] if image is None else [image, *shard.text_members(members)], was))
            held += sum(member.size for member in group[-1][1])
            if len(group) >= _TOGETHER or held >= _TOGETHER_BYTES:
                yield from read()
                group, held = [], 0
        yield from read()


def _difference(now: Sample, was: Mapping[str, Any]) -> str:
    """Returns how a sample read again differs from the index (its columns `COMPARED`); "" if it does not."""
    caption, uid = was["caption"], (was["uid_hi"], was["uid_lo"])
    if now.shown_caption != caption:
        return f"its caption is {_shown(now.shown_caption)}, was {_shown(caption)}"
    if was["image_bytes"] and now.image_bytes != was["image_bytes"]:
        return f"its image has {now.image_bytes:,} bytes, had {was['image_bytes']:,}"
    if was["image_xxh3"] is not None and now.image is not None and image_xxh3(now.image) != was["image_xxh3"]:
        return "its image has other bytes of the same length"
    # If the image could not be read when it was scored, the uid does not depend on it.
    if now.uid != uid and uid != content_uid(None, (caption or "").encode()):
        return f"its image or its given uid has changed (uid {format_uid(*now.uid)}, was {format_uid(*uid)})"
    return ""


def _shown(caption: str | None) -> str:
    return "none" if caption is None else repr(caption[:_SHOWN])
