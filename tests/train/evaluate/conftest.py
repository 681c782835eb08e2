"""Small zero-shot tasks on disk."""

import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import image_bytes

#: Writes a WebDataset task; see `_write`.
WriteTask = Callable[..., Path]


@pytest.fixture
def write_task() -> WriteTask:
    """The function that writes a task as clip-benchmark lays it out."""
    return _write


def _write(
    folder: Path,
    samples: Sequence[dict[str, bytes]],
    *,
    classes: Sequence[str] | None = ("dog", "cat", "red boat"),
    templates: Sequence[str] | None = ("a photo of a {c}.", "a {c}"),
    tars: int = 1,
    kind: str | None = None,
    split: str = "test",
) -> Path:
    """Writes samples (extension to bytes) into some tars, with the texts that belong to them; None leaves one out."""
    inner = folder / split
    inner.mkdir(parents=True)
    for name, lines in (
        ("classnames.txt", classes),
        ("zeroshot_classification_templates.txt", templates),
        ("dataset_type.txt", [kind] if kind else None),
    ):
        if lines is not None:
            (folder / name).write_text("\n".join(lines) + "\n")
    for number in range(tars):
        with tarfile.open(inner / f"{number}.tar", "w") as tar:
            for place, files in enumerate(samples):
                for ending, data in files.items() if place % tars == number else ():
                    member = tarfile.TarInfo(f"s{place:07d}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    (inner / "nshards.txt").write_text(f"{tars}\n")
    return folder


@pytest.fixture
def labelled() -> Callable[..., list[dict[str, bytes]]]:
    """The function that makes n labelled samples, with the metadata of each where there are fields."""

    def make(n: int, *, classes: int = 3, fields: int = 0, start: int = 0) -> list[dict[str, bytes]]:
        formats = (("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"))
        samples = []
        for number in range(start, start + n):
            ending, format = formats[number % 3]
            files = {ending: image_bytes(number, format=format), "cls": str(number % classes).encode()}
            if fields:
                files["npy"] = npy([number // 2 % 3] * fields)
            samples.append(files)
        return samples

    return make


def npy(values: Any) -> bytes:
    """The bytes of an array in a .npy file."""
    out = io.BytesIO()
    np.save(out, np.array(values))
    return out.getvalue()
