"""Task folders of every layout: what is read from them, and what is said of one that is incomplete."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes

from tamis.errors import PoolError, ShardError
from tamis.evaluate.tasks import find_tasks, read_task, task_name

WriteTask = Callable[..., Path]
Labelled = Callable[..., list[dict[str, bytes]]]


def test_a_webdataset_task_is_read_in_the_order_of_its_tars(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled
) -> None:
    samples = labelled(26)
    folder = write_task(tmp_path / "wds_vtab-dtd_test", samples, tars=12)
    task = read_task(folder)
    assert task is not None
    assert (task.name, task.kind, task.classes) == ("vtab-dtd", "classification", ("dog", "cat", "red boat"))
    assert task.templates == ("a photo of a {c}.", "a {c}")
    assert task.entry is not None
    assert task.entry.name == "Describable Textures"
    images = list(task.source.images())
    order = [place for tar in range(12) for place in range(tar, 26, 12)]  # 0.tar, 1.tar, ..., 11.tar
    assert [image.label for image in images] == [place % 3 for place in order]
    assert [image.image for image in images] == [next(iter(samples[place].values())) for place in order]
    assert images[0].key == "0.tar: s0000000"
    assert not any(image.problem for image in images)


def test_tasks_may_lie_in_a_folder_with_signs_of_globs(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled
) -> None:
    folder = tmp_path / "odd [1] {x}"
    write_task(folder / "wds_vtab-dtd_test", labelled(3), tars=2)
    (task,), others = find_tasks(folder)
    assert (task.name, others) == ("vtab-dtd", {})
    assert [image.label for image in task.source.images()] == [0, 2, 1]


def test_captions_are_the_lines_of_a_text(tmp_path: Path, write_task: WriteTask) -> None:
    samples = [
        {"jpg": image_bytes(1), "txt": b"a dog\n\n a red dog \n"},
        {"jpg": image_bytes(2), "txt": b" \n"},
        {"txt": b"no image"},
    ]
    folder = write_task(tmp_path / "wds_flickr30k", samples, classes=None, templates=None, kind="retrieval")
    task = read_task(folder)
    assert task is not None
    assert task.kind == "retrieval"
    assert task.metric == "mean_recall@1"
    assert task.entry is not None
    assert task.entry.name == "Flickr"
    one, empty, blind = task.source.images()
    assert one.captions == ("a dog", "a red dog")
    assert "white space" in empty.problem
    assert "no member is an image" in blind.problem


def test_folders_are_classes_and_their_names_are_the_classes(tmp_path: Path) -> None:
    for name, count in (("sea_turtle", 2), ("dog", 3)):
        (tmp_path / "animals" / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "animals" / name / f"{number}.JPG").write_bytes(image_bytes(number))
    (tmp_path / "animals" / ".cache").mkdir()
    task = read_task(tmp_path / "animals")
    assert task is not None
    assert (task.name, task.classes, task.templates) == ("animals", ("dog", "sea turtle"), ("a photo of a {c}.",))
    assert [(image.key, image.label) for image in task.source.images()] == [
        *((f"dog/{number}.JPG", 0) for number in range(3)),
        *((f"sea_turtle/{number}.JPG", 1) for number in range(2)),
    ]
    (tmp_path / "animals" / "classnames.txt").write_text("a hound\na swimming turtle\n")
    assert read_task(tmp_path / "animals").classes == ("a hound", "a swimming turtle")  # type: ignore[union-attr]
    found, others = find_tasks(tmp_path)
    assert ([task.name for task in found], others) == (["animals"], {})


def test_images_with_texts_beside_them_are_a_retrieval_task(tmp_path: Path) -> None:
    folder = tmp_path / "holiday"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(image_bytes(number, format="PNG"))
    (folder / "0.txt").write_text("one\ntwo\n")
    (folder / "1.txt").write_text("three\n")
    task = read_task(folder)
    assert task is not None
    assert task.kind == "retrieval"
    one, other, bare = task.source.images()
    assert (one.captions, other.captions) == (("one", "two"), ("three",))
    assert bare.problem == "2.txt beside it is missing or empty"


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_datacomps_cache_of_tables_is_read(tmp_path: Path, ending: str, write_task: WriteTask) -> None:
    captions = [["a dog", "the dog"], ["a cat"], []]
    flickr = pa.table({
        "image": [{"bytes": image_bytes(n), "path": f"{n}.jpg"} for n in range(3)],
        "caption": captions,
        "split": ["test"] * 3,
    })  # fmt: skip
    (tmp_path / "by-path.jpg").write_bytes(image_bytes(9))
    wino = pa.table({
        "candidates": [["dog", "sea", "owl"], ["sky", "pie"]],
        "candidate_images": [
            [{"bytes": image_bytes(n), "path": None} for n in range(3)],
            [{"bytes": None, "path": str(tmp_path / "by-path.jpg")}, {"bytes": None, "path": "/nowhere.jpg"}],
        ],
        "cue": ["wet", "blue"],
        "associations": [["sea", "dog"], ["sky"]],
    })  # fmt: skip
    for name, table in (("flickr_1k_test_image_text_retrieval", flickr), ("winogavil", wino)):
        place = tmp_path / "tasks" / "hf_cache" / f"nlphuji___{name}" / "default" / "1.1.0" / "0a1b"
        place.mkdir(parents=True)
        if ending == "parquet":
            pq.write_table(table, place / f"{name}-test.parquet")
        else:
            with pa.OSFile(str(place / f"{name}-test.arrow"), "wb") as raw, pa.ipc.new_stream(raw, table.schema) as out:
                out.write_table(table)
    write_task(tmp_path / "tasks" / "wds_fairface_test", [], classes=None, templates=None)
    (tmp_path / "tasks" / "notes").mkdir()
    (retrieval, association), others = find_tasks(tmp_path / "tasks")
    assert retrieval.entry is not None
    assert association.entry is not None
    assert (retrieval.entry.name, association.entry.name) == ("Flickr", "WinoGAViL")
    assert association.metric == "jaccard_score_10-12"
    images = list(retrieval.source.images())
    assert [image.captions for image in images] == [tuple(some) for some in captions]
    assert [image.problem for image in images] == ["", "", "there is no caption"]
    assert [image.image for image in images] == [image_bytes(n) for n in range(3)]
    candidates = list(association.source.images())
    assert [(one.label, one.right) for one in candidates] == [(0, True), (0, True), (0, False), (1, True), (1, False)]
    assert candidates[3].image == image_bytes(9)
    assert candidates[3].captions == ("blue",)
    assert "/nowhere.jpg cannot be read: No such file" in candidates[4].problem
    assert others["wds_fairface_test"] == "DataComp runs it without a score of its own"
    assert others["notes"].startswith("no task: not a WebDataset task (test/*.tar and test/nshards.txt)")


def test_names_of_folders_lead_to_names_of_tasks() -> None:
    assert task_name("wds_vtab-dtd_test") == task_name("vtab-dtd") == "vtab-dtd"
    assert task_name("nlphuji___winogavil") == "winogavil"
    assert task_name("wds_pets_val", "val") == "pets"


def test_a_changed_file_or_name_is_another_task(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_pets", labelled(4))
    before = read_task(folder).digest  # type: ignore[union-attr]
    assert read_task(folder).digest == before  # type: ignore[union-attr]
    (folder / "classnames.txt").write_text("hound\ncat\nred boat\n")
    named = read_task(folder).digest  # type: ignore[union-attr]
    with open(folder / "test" / "0.tar", "ab") as tar:
        tar.write(b"\0" * 512)
    assert len({before, named, read_task(folder).digest}) == 3  # type: ignore[union-attr]


def broken(folder: Path, how: str) -> None:
    """Takes something from a good task."""
    inner = folder / "test"
    match how:
        case "no names":
            (folder / "classnames.txt").unlink()
        case "one name":
            (folder / "classnames.txt").write_text("dog\n\n")
        case "a name left out":
            (folder / "classnames.txt").write_text("dog\n \ncat\n")
        case "no templates":
            (folder / "zeroshot_classification_templates.txt").unlink()
        case "empty templates":
            (folder / "zeroshot_classification_templates.txt").write_text("\n")
        case "no place":
            (folder / "zeroshot_classification_templates.txt").write_text("a photo of a {}.\n")
        case "a tar less":
            (inner / "1.tar").unlink()
        case "no number":
            (inner / "nshards.txt").write_text("two")
        case "a number of thousands of digits":
            (inner / "nshards.txt").write_text("1" * 5000)
        case "no tars":
            for tar in inner.glob("*.tar"):
                tar.unlink()
            (inner / "nshards.txt").write_text("0")
        case "other split":
            inner.rename(folder / "val")
        case "many labels":
            (folder / "dataset_type.txt").write_text("multilabel")
        case "not text":
            (folder / "classnames.txt").write_bytes(b"\xff\xfe\x00d")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no names", "has no classnames.txt: write the names of its classes there, one a line"),
        ("one name", "names 1 classes: a task has at least two"),
        ("a name left out", "classnames.txt: line 2 is empty, and the lines after it would be taken for others"),
        ("a number of thousands of digits", "nshards.txt holds text (5,000 bytes), expected the number of tars"),
        ("no templates", "has no zeroshot_classification_templates.txt: write there"),
        ("empty templates", "is empty: write sentences as 'a photo of a {c}.'"),
        ("no place", "sentence 1 has no {c}, where the class's name goes"),
        ("a tar less", "nshards.txt says 2 tars, and 1 are there: fetch the task again"),
        ("no number", "nshards.txt holds text (3 bytes), expected the number of tars"),
        ("no tars", "test holds no tars"),
        ("other split", "has no test/nshards.txt and no tars in test/; splits that are there: val"),
        ("many labels", "says neither classification (as without the file) nor retrieval; tasks here are of these two"),
        ("not text", "classnames.txt cannot be read as UTF-8 text"),
    ],
)
def test_an_incomplete_task_is_told_before_any_work(
    how: str, message: str, tmp_path: Path, write_task: WriteTask, labelled: Labelled
) -> None:
    folder = write_task(tmp_path / "wds_pets", labelled(4), tars=2)
    broken(folder, how)
    with pytest.raises(PoolError) as told:
        find_tasks(tmp_path)
    assert message in str(told.value)


def test_a_folder_without_any_task_is_told_with_what_was_looked_for(tmp_path: Path, write_task: WriteTask) -> None:
    with pytest.raises(PoolError, match="there is no such folder"):
        find_tasks(tmp_path / "none")
    (tmp_path / "notes").mkdir()
    with pytest.raises(PoolError, match="neither it nor a folder in it is a WebDataset task"):
        find_tasks(tmp_path)
    write_task(tmp_path / "wds_pets", [])
    write_task(tmp_path / "wds_pets_test", [])
    with pytest.raises(PoolError, match="both hold the task pets"):
        find_tasks(tmp_path)


def test_slips_in_class_folders_are_told(tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "0.jpg").write_bytes(image_bytes(0))
    with pytest.raises(PoolError, match="a task has at least two classes"):
        read_task(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(PoolError, match="holds no images"):
        read_task(tmp_path)
    (tmp_path / "cat" / "0.jpg").write_bytes(image_bytes(1))
    (tmp_path / "classnames.txt").write_text("cat\ndog\nowl\n")
    with pytest.raises(PoolError, match="names 3 classes, and there are 2 folders of classes"):
        read_task(tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("red boat\ndog\ncat\n", "its line 1 is 'red boat', and that folder, of all sorted by name, is cat"),
        ("cat\nRed-Boat\ndog\n", "its line 2 is 'Red-Boat', and that folder, of all sorted by name, is dog"),
        ("Cat\ndog\nred boat\n", None),
        ("boat\na cat\ndog\n", None),  # other words than the folders': nobody can tell
    ],
)
def test_class_names_in_another_order_than_their_folders_are_told(
    tmp_path: Path, lines: str, message: str | None
) -> None:
    for number, name in enumerate(("dog", "cat", "red_boat")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(image_bytes(number))
    (tmp_path / "classnames.txt").write_text(lines)
    if message is not None:
        with pytest.raises(PoolError, match=re.escape(message)):
            read_task(tmp_path)
        return
    task = read_task(tmp_path)
    assert task is not None
    assert task.classes == tuple(lines.splitlines())


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"jpg": b"x"}], "has no .cls member"),
        ([{"jpg": b"x", "cls": b"dog"}], "holds text \\(3 bytes\\), expected the number of a class, from 0"),
        ([{"jpg": b"x", "cls": b"-1"}], "holds text \\(2 bytes\\), expected the number"),
        ([{"jpg": b"x", "cls": b"9" * 5000}], "holds text \\(5,000 bytes\\), expected the number"),
    ],
)
def test_labels_that_are_none_are_told(
    samples: list[dict[str, bytes]], message: str, tmp_path: Path, write_task: WriteTask
) -> None:
    task = read_task(write_task(tmp_path / "wds_pets", samples))
    assert task is not None
    with pytest.raises(PoolError, match=message):
        list(task.source.images())


def test_a_tar_that_is_cut_is_told(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_pets", labelled(8))
    tar = folder / "test" / "0.tar"
    whole = tar.read_bytes()
    for length in (600, 1500, 3000):  # within the first image, within the first label, later
        tar.write_bytes(whole[:length])
        task = read_task(folder)
        assert task is not None
        with pytest.raises(ShardError, match=r"0\.tar: the tar"):
            list(task.source.images())


def test_metadata_comes_in_the_order_of_the_images(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_geode_test", labelled(9, fields=2), tars=2)
    task = read_task(folder)
    assert task is not None
    assert task.worst == {"acc_wg": "region"}
    order = [place for tar in range(2) for place in range(tar, 9, 2)]
    assert task.source.metadata().tolist() == [[place // 2 % 3] * 2 for place in order]
    bare = read_task(write_task(tmp_path / "wds_fmow_test", labelled(2)))
    assert bare is not None
    with pytest.raises(PoolError, match=r"has no \.npy member, which says what group it is of"):
        bare.source.metadata()


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (b"", r"0\.tar: a \.npy member cannot be read: "),
        (b"\x93NUMPY\x01\x00\x0c\x00{'shape': (8", r"a \.npy member cannot be read: TokenError"),
        (b"PK\x03\x04", r"a \.npy member cannot be read: BadZipFile"),
        (
            b"\x93NUMPY\x01\x00\x39\x00{'descr': '<U1', 'fortran_order': False, 'shape': (0,), }\n",
            "holds <U1, expected numbers",
        ),
    ],
)
def test_metadata_that_are_none_are_told(
    member: bytes, words: str, tmp_path: Path, write_task: WriteTask, labelled: Labelled
) -> None:
    task = read_task(write_task(tmp_path / "wds_geode_test", [{**labelled(1)[0], "npy": member}]))
    assert task is not None
    with pytest.raises(PoolError, match=words):
        task.source.metadata()


def test_hidden_files_in_a_tar_are_no_images(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_geode_test", labelled(3, fields=2))
    with tarfile.open(folder / "test" / "0.tar", "a") as tar:
        for name in (".DS_Store", "inner/._s0000001.jpg", "._s0000002.jpg"):  # as macOS puts them in
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"junk"))
    task = read_task(folder)
    assert task is not None
    assert [image.key for image in task.source.images()] == [f"0.tar: s000000{place}" for place in range(3)]
    assert task.source.metadata().shape == (3, 2)


def test_signs_that_only_look_like_the_end_of_a_line_end_none(tmp_path: Path, write_task: WriteTask) -> None:
    samples = [{"jpg": image_bytes(1), "txt": "a dog\u2028in a car\r\na red\x0cdog\n".encode()}]
    task = read_task(write_task(tmp_path / "wds_flickr30k", samples, classes=None, templates=None, kind="retrieval"))
    assert task is not None
    (one,) = task.source.images()
    assert one.captions == ("a dog\u2028in a car", "a red\x0cdog")
    named = read_task(write_task(tmp_path / "wds_pets", [], classes=["a dog\u2028in a car", "cat"]))
    assert named is not None
    assert named.classes == ("a dog\u2028in a car", "cat")


def test_tables_without_the_columns_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"picture": [b"x"], "caption": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(PoolError, match="has the columns picture, caption; looked for image or jpg or img"):
        read_task(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(PoolError, match="cannot be read as a table"):
        read_task(tmp_path)
