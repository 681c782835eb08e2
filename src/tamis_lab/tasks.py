"""Draws small zero-shot tasks from the lab's world, in clip-benchmark's layout.

Each tests one ability: to know objects, colours or places, to read, or to find an image by its caption. Every image
depends only on (seed, task, number). Pools and training examples use other seeds.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from tamis.core.errors import at_least_one
from tamis_lab.captions import describe, noun_phrase, with_article
from tamis_lab.drawing import render
from tamis_lab.painted_text import paint_text
from tamis_lab.pool import add_member, finish_together
from tamis_lab.samples import jpeg
from tamis_lab.world import COLOURS, OBJECTS, PLACES, Scene, sample_scene

#: Default number of images per task: ten for each of the 48 objects.
SIZE = 480

#: An unlikely seed for a user's pool. The built-in models' training and held-out examples have other seeds.
TASKS_SEED = 20_260_021

_SIDE = 128
_CAPTIONS = 5  # per image, as in MSCOCO and Flickr30k

_THINGS = ("{c}", "a photo of {c}", "a picture of {c}", "a drawing of {c}")
# Captions in this world name an object, so templates for colours and places do too.
_NOUNS = ("dog", "car", "flower", "book", "house", "hat", "bird", "bottle")

Draw = Callable[[int, np.random.Generator], tuple[Image.Image, Scene]]


@dataclass(frozen=True)
class _Labelled:
    """A classification task. `draw` draws an image of the class with a given number."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]
    draw: Draw


def make_tasks(out: str | Path, *, size: int = SIZE, seed: int = TASKS_SEED, again: bool = True) -> Path:
    """Draws the tasks and writes each into a folder `wds_lab-...`.

    - `lab-objects`: which of 48 objects is it? Metadata has its colour and place, for accuracies by group.
    - `lab-colours`: which of 11 colours has the object? `lab-places`: at which of 12 places is it?
    - `lab-reading`: which object's name is written on the image? The image shows another object.
    - `lab-retrieval`: five captions per image; all scenes and all captions differ.

    The same arguments give the same bytes, and a larger set starts with the images of a smaller one.

    Args:
        size: images per task.
        seed: another seed draws other images.
        again: False keeps existing tasks unchecked.

    Raises:
        ValueError: the size is below 1.
        FileExistsError: the folder holds different files with these names, such as tasks of another seed or size.

    Cost: 4 ms per image on one CPU core.
    """
    at_least_one(size=size)
    out = Path(out)
    for number, (name, task) in enumerate(_TASKS.items()):
        folder = out / f"wds_lab-{name}"
        if again or not (folder / "test" / "nshards.txt").is_file():
            _write(folder, _draw_labelled(task, size, [seed, number]), _texts(task))
    folder = out / "wds_lab-retrieval"
    if again or not (folder / "test" / "nshards.txt").is_file():
        _write(folder, _draw_captioned(size, [seed, len(_TASKS)]), {"dataset_type.txt": ["retrieval"]})
    return out


def _texts(task: _Labelled) -> dict[str, list[str]]:
    texts = {"classnames.txt": [*task.classes], "zeroshot_classification_templates.txt": [*task.templates]}
    return texts | ({"metadata_fields.txt": ["colour", "place"]} if task is _TASKS["objects"] else {})


def _draw_labelled(task: _Labelled, size: int, seed: list[int]) -> Iterator[dict[str, bytes]]:
    for number in range(size):
        label = number % len(task.classes)
        image, scene = task.draw(label, np.random.default_rng([*seed, number]))
        files = {"jpg": jpeg(image, 92), "cls": str(label).encode()}
        if task is _TASKS["objects"]:
            metadata = io.BytesIO()
            np.save(metadata, np.array([list(COLOURS).index(scene.colour), list(PLACES).index(scene.place)], "<i8"))
            files["npy"] = metadata.getvalue()
        yield files


def _draw_captioned(size: int, seed: list[int]) -> Iterator[dict[str, bytes]]:
    rng = np.random.default_rng(seed)
    seen: set[Scene | str] = set()
    for _ in range(size):
        scene = sample_scene(rng)
        while scene in seen:
            scene = sample_scene(rng)
        seen.add(scene)
        captions: list[str] = []
        while len(captions) < _CAPTIONS:
            caption = describe(scene, rng)
            if caption.lower() not in seen:
                seen.add(caption.lower())
                captions.append(caption)
        yield {"jpg": jpeg(render(scene, _SIDE, rng), 92), "txt": "\n".join(captions).encode()}


def _alone(rng: np.random.Generator) -> Scene:
    """Draws a scene with objects of one class only."""
    return replace(sample_scene(rng), relation=None, other=None, other_colour=None)


def _with(attribute: str, names: Iterable[str]) -> Draw:
    """Returns a function that draws a scene whose subject, colour or place is the class."""
    values = list(names)

    def draw(label: int, rng: np.random.Generator) -> tuple[Image.Image, Scene]:
        scene = replace(_alone(rng), **{attribute: values[label]})  # type: ignore[arg-type]
        return render(scene, _SIDE, rng), scene

    return draw


def _draw_word(label: int, rng: np.random.Generator) -> tuple[Image.Image, Scene]:
    word = list(OBJECTS)[label]
    scene = _alone(rng)
    while scene.subject == word:
        scene = _alone(rng)
    colour = list(COLOURS)[int(rng.integers(len(COLOURS)))] if rng.random() < 0.5 else None
    text = noun_phrase(word, colour, 1, rng, article=bool(rng.random() < 0.5))
    return paint_text(render(scene, _SIDE, rng), text, rng).image, scene


_NAMES = tuple(with_article(name) for name in OBJECTS)

# A task's number is part of its images' seed, so append new tasks at the end.
_TASKS: Mapping[str, _Labelled] = {
    "objects": _Labelled(_NAMES, _THINGS, _with("subject", OBJECTS)),
    "colours": _Labelled(  # with the article: "an orange" before "dog"
        tuple(map(with_article, COLOURS)), tuple(f"{{c}} {noun}" for noun in _NOUNS), _with("colour", COLOURS)
    ),
    "places": _Labelled(
        tuple(place.phrases[0] for place in PLACES.values()),
        tuple(f"a {noun} {{c}}" for noun in _NOUNS),
        _with("place", PLACES),
    ),
    "reading": _Labelled(_NAMES, _THINGS, _draw_word),
}


def _write(folder: Path, samples: Iterator[dict[str, bytes]], texts: Mapping[str, list[str]]) -> None:
    """Writes a task, nshards.txt last: a task without it is incomplete."""
    contents = {name: "".join(f"{line}\n" for line in lines) for name, lines in texts.items()}
    for name, text in contents.items():
        if (folder / name).exists() and (folder / name).read_text(encoding="utf-8", errors="replace") != text:
            raise FileExistsError(f"{folder / name} exists with another content: use another folder")
    inner = folder / "test"
    inner.mkdir(parents=True, exist_ok=True)
    with finish_together(inner / "0.tar") as (path,), tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, files in enumerate(samples):
            for ending, data in files.items():
                add_member(tar, f"s{number:07d}.{ending}", data)
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    (inner / "nshards.txt").write_text("1\n", encoding="utf-8")
