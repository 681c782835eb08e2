"""The lab's task set: the same bytes every time, labels that are true, and the layout that clip-benchmark reads."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tamis.train.evaluate.tasks import ZeroShotTask, find_tasks
from tamis_lab.tasks import _TASKS, TASKS_SEED, make_tasks
from tamis_lab.world import COLOURS, OBJECTS, PLACES
from tools.lab_models.examples import HELD_OUT_SEED, TRAINING_SEED

SIZE = 50
FEW = 6  # enough where only sets of the same size are compared


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("lab") / "tasks", size=SIZE)


@pytest.fixture(scope="module")
def tasks(folder: Path) -> dict[str, ZeroShotTask]:
    return {task.name: task for task in find_tasks(folder)[0]}


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_tasks_are_a_function_of_their_arguments_and_a_larger_set_begins_with_a_smaller_one(
    tasks: dict[str, ZeroShotTask], tmp_path: Path
) -> None:
    before = digests(make_tasks(tmp_path / "one", size=FEW))
    assert digests(make_tasks(tmp_path / "two", size=FEW)) == before
    assert digests(make_tasks(tmp_path / "one", size=FEW)) == before
    assert len({name.split("/")[0] for name in before}) == 5
    assert not any("partial" in name for name in before)
    other = digests(make_tasks(tmp_path / "other", size=FEW, seed=7))
    assert not any(name.endswith(".tar") for name in before if other[name] == before[name])
    for task in find_tasks(tmp_path / "one")[0]:
        few = [(image.image, image.label, image.captions) for image in task.images()]
        many = [(image.image, image.label, image.captions) for image in tasks[task.name].images()]
        assert few == many[:FEW]
    assert TASKS_SEED not in {TRAINING_SEED, *range(HELD_OUT_SEED, HELD_OUT_SEED + 10)}


def test_every_class_is_as_frequent_as_any_other_and_images_differ(tasks: dict[str, ZeroShotTask]) -> None:
    classes = {"lab-objects": len(OBJECTS), "lab-colours": len(COLOURS), "lab-places": len(PLACES), "lab-reading": 48}
    for name, count in classes.items():
        labels = [image.label for image in tasks[name].images()]
        assert (len(tasks[name].classes), len(labels)) == (count, SIZE)
        often = np.bincount(labels, minlength=count)
        assert often.max() - often.min() <= 1
    images = [image.image for task in tasks.values() for image in task.images()]
    assert len(set(images)) == 5 * SIZE
    for data in images[:: SIZE // 2]:
        assert Image.open(io.BytesIO(data)).size == (128, 128)
    captions = [image.captions for image in tasks["lab-retrieval"].images()]
    assert {len(some) for some in captions} == {5}
    assert len({caption.lower() for some in captions for caption in some}) == 5 * SIZE


def test_labels_are_what_is_drawn_and_objects_have_colour_and_place(tasks: dict[str, ZeroShotTask]) -> None:
    for label in range(11):
        rngs = [np.random.default_rng([5, label]) for _ in range(4)]
        scenes = [task.draw(label, rng)[1] for task, rng in zip(_TASKS.values(), rngs, strict=True)]
        objects, colours, places, reading = scenes
        assert objects.subject == list(OBJECTS)[label]
        assert colours.colour == list(COLOURS)[label]
        assert places.place == list(PLACES)[label]
        assert reading.subject != list(OBJECTS)[label], "what is written is not what is drawn"
        assert all(scene.relation is None for scene in scenes)
    task = tasks["lab-objects"]
    assert task.worst == {"acc_worst_colour": "colour", "acc_worst_place": "place"}
    metadata = np.array([image.groups for image in task.images()])
    assert metadata.shape == (SIZE, 2)
    assert 0 <= metadata.min() <= metadata[:, 0].max() < len(COLOURS)
    assert metadata[:, 1].max() < len(PLACES)


def test_tasks_that_are_there_stay(folder: Path, tmp_path: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.tar")}
    make_tasks(folder, size=SIZE, again=False)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.tar")} == times
    with pytest.raises(ValueError, match="size"):
        make_tasks(folder, size=0)
    before = digests(make_tasks(tmp_path, size=FEW))
    with pytest.raises(FileExistsError, match=r"0\.tar"):
        make_tasks(tmp_path, size=FEW, seed=7)
    assert digests(tmp_path) == before
    (tmp_path / "wds_lab-objects" / "classnames.txt").write_text("mine\n")
    with pytest.raises(FileExistsError, match=r"classnames\.txt"):
        make_tasks(tmp_path, size=FEW)
    assert (tmp_path / "wds_lab-objects" / "classnames.txt").read_text() == "mine\n"
