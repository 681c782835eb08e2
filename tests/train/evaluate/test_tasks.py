"""Task folders of every layout: what is read from them, and what is said of one that is incomplete."""

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes

from tamis.core.errors import PoolError, ShardError
from tamis.train.evaluate.tasks import ZeroShotTask, find_tasks, read_task

WriteTask = Callable[..., Path]
Labelled = Callable[..., list[dict[str, bytes]]]


def read(folder: Path) -> ZeroShotTask:
    task = read_task(folder)
    assert task is not None
    return task


def test_a_webdataset_task_has_the_order_of_its_tars(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    samples = labelled(26)
    folder = write_task(tmp_path / "odd [1] {x}" / "wds_vtab-dtd_test", samples, tars=12)
    task = read(folder)
    assert (task.name, task.kind, task.classes) == ("vtab-dtd", "classification", ("dog", "cat", "red boat"))
    assert task.templates == ("a photo of a {c}.", "a {c}")
    assert (task.entry or task).name == "Describable Textures"
    images = list(task.images())
    order = [place for tar in range(12) for place in range(tar, 26, 12)]  # 0.tar, 1.tar, ..., 11.tar
    assert [image.label for image in images] == [place % 3 for place in order]
    assert [image.image for image in images] == [next(iter(samples[place].values())) for place in order]
    assert images[0].key == "0.tar: s0000000"
    assert not any(image.problem for image in images)


def test_captions_are_the_lines_of_a_text(tmp_path: Path, write_task: WriteTask) -> None:
    samples = [
        {"jpg": image_bytes(1), "txt": b"a dog\n\n a red dog \n"},
        {"jpg": image_bytes(2), "txt": b" \n"},
        {"txt": b"no image"},
    ]
    folder = write_task(tmp_path / "wds_flickr30k", samples, classes=None, templates=None, kind="retrieval")
    task = read(folder)
    assert task.kind == "retrieval"
    assert task.metric == "mean_recall@1"
    assert (task.entry or task).name == "Flickr"
    one, empty, blind = task.images()
    assert one.captions == ("a dog", "a red dog")
    assert empty.problem
    assert blind.problem


def test_folders_are_classes_and_their_names_are_the_classes(tmp_path: Path) -> None:
    for name, count in (("sea_turtle", 2), ("dog", 3)):
        (tmp_path / "animals" / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "animals" / name / f"{number}.JPG").write_bytes(image_bytes(number))
    (tmp_path / "animals" / ".cache").mkdir()
    task = read(tmp_path / "animals")
    assert (task.name, task.classes, task.templates) == ("animals", ("dog", "sea turtle"), ("a photo of a {c}.",))
    assert [(image.key, image.label) for image in task.images()] == [
        *((f"dog/{number}.JPG", 0) for number in range(3)),
        *((f"sea_turtle/{number}.JPG", 1) for number in range(2)),
    ]
    (tmp_path / "animals" / "classnames.txt").write_text("a hound\na swimming turtle\n")
    assert read(tmp_path / "animals").classes == ("a hound", "a swimming turtle")
    found, others = find_tasks(tmp_path)
    assert ([task.name for task in found], others) == (["animals"], {})


def test_images_with_texts_beside_them_are_a_retrieval_task(tmp_path: Path) -> None:
    folder = tmp_path / "holiday"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(image_bytes(number, format="PNG"))
    (folder / "0.txt").write_text("one\ntwo\n")
    (folder / "1.txt").write_text("three\n")
    task = read(folder)
    assert task.kind == "retrieval"
    one, other, bare = task.images()
    assert (one.captions, other.captions) == (("one", "two"), ("three",))
    assert bare.problem == "2.txt is missing or empty"


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
    assert [task.entry and task.entry.name for task in (retrieval, association)] == ["Flickr", "WinoGAViL"]
    assert association.metric == "jaccard_score_10-12"
    images = list(retrieval.images())
    assert [image.captions for image in images] == [tuple(some) for some in captions]
    assert [image.problem for image in images] == ["", "", "there is no caption"]
    assert [image.image for image in images] == [image_bytes(n) for n in range(3)]
    candidates = list(association.images())
    assert [(one.label, one.right) for one in candidates] == [(0, True), (0, True), (0, False), (1, True), (1, False)]
    assert candidates[3].image == image_bytes(9)
    assert candidates[3].captions == ("blue",)
    assert "/nowhere.jpg" in candidates[4].problem
    assert others["wds_fairface_test"] == "DataComp runs it without a score of its own"
    assert others["notes"].startswith("no task: expected WebDataset (test/*.tar and test/nshards.txt)")
    (path,) = association.files
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(PoolError, match="cannot be read as a table"):
        list(association.images())


def test_an_instance_with_fewer_images_than_candidates_is_not_scored(tmp_path: Path) -> None:
    row = {"candidates": ["dog", "sea", "owl"], "candidate_images": [b"1", b"2"], "cue": "wet", "associations": ["sea"]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "winogavil-test.parquet")
    task = read(tmp_path)
    assert ["differ in number" in one.problem for one in task.images()] == [True, True]


def test_a_changed_file_or_name_is_another_task(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_pets", labelled(4))
    before = read(folder).digest
    assert read(folder).digest == before
    (folder / "classnames.txt").write_text("hound\ncat\nred boat\n")
    named = read(folder).digest
    with open(folder / "test" / "0.tar", "ab") as tar:
        tar.write(b"\0" * 512)
    assert len({before, named, read(folder).digest}) == 3


def test_a_tar_that_is_cut_is_told(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_pets", labelled(8))
    tar = folder / "test" / "0.tar"
    whole = tar.read_bytes()
    for length in (600, 1500, 3000):  # within the first image, within the first label, later
        tar.write_bytes(whole[:length])
        task = read_task(folder)
        assert task is not None
        with pytest.raises(ShardError, match=r"0\.tar: "):
            list(task.images())


def test_metadata_comes_in_the_order_of_the_images(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_geode_test", labelled(9, fields=2), tars=2)
    task = read(folder)
    assert task.worst == {"acc_wg": "region"}
    order = [place for tar in range(2) for place in range(tar, 9, 2)]
    assert [image.groups for image in task.images()] == [(place // 2 % 3,) * 2 for place in order]
    bare = read(write_task(tmp_path / "wds_wilds-fmow_test", labelled(2)))
    with pytest.raises(PoolError, match=r"the \.npy member of s0000000"):
        list(bare.images())


def test_hidden_files_in_a_tar_are_no_images(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    folder = write_task(tmp_path / "wds_geode_test", labelled(3, fields=2))
    with tarfile.open(folder / "test" / "0.tar", "a") as tar:
        for name in (".DS_Store", "inner/._s0000001.jpg", "._s0000002.jpg"):  # as macOS puts them in
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"junk"))
    task = read(folder)
    assert [image.key for image in task.images()] == [f"0.tar: s000000{place}" for place in range(3)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("classnames.txt", None),
        ("classnames.txt", b"dog\n\n"),
        ("classnames.txt", b"dog\n \ncat\n"),
        ("classnames.txt", b"\xff\xfe\x00d"),
        ("zeroshot_classification_templates.txt", b"a {c}\na photo of a {}.\n"),
        ("test/1.tar", None),
        ("test/nshards.txt", b"two"),
        ("dataset_type.txt", b"multilabel"),
    ],
)
def test_an_incomplete_task_is_refused_before_any_work(
    name: str, content: bytes | None, tmp_path: Path, write_task: WriteTask, labelled: Labelled
) -> None:
    folder = write_task(tmp_path / "wds_pets", labelled(4), tars=2)
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(PoolError, match=re.escape(name.removesuffix("/1.tar").removesuffix("/nshards.txt"))):
        find_tasks(tmp_path)


def test_folders_that_are_no_task_are_refused(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    (tmp_path / "dog").mkdir()
    for place in (tmp_path / "none", tmp_path):  # no folder, no task
        with pytest.raises(PoolError):
            find_tasks(place)
    (tmp_path / "dog" / "0.jpg").write_bytes(image_bytes(0))
    (tmp_path / "red_boat").mkdir()
    with pytest.raises(PoolError, match="red_boat"):
        read_task(tmp_path)
    (tmp_path / "red_boat" / "0.jpg").write_bytes(image_bytes(1))
    (tmp_path / "classnames.txt").write_text("dog\nred boat\nowl\n")
    with pytest.raises(PoolError, match="3 names in classnames"):
        read_task(tmp_path)
    for lines in ("red boat\ndog\n", "Red-Boat\ndog\n"):
        (tmp_path / "classnames.txt").write_text(lines)
        with pytest.raises(PoolError, match="in the order of their names"):
            read_task(tmp_path)
    (tmp_path / "classnames.txt").write_text("boat\na dog\n")  # other words than the folders': nothing to compare
    assert read(tmp_path).classes == ("boat", "a dog")
    (tmp_path / "tables").mkdir()
    for content in (b"PAR1 and nothing else", None):
        path = tmp_path / "tables" / "a.parquet"
        path.write_bytes(content) if content else pq.write_table(pa.table({"painting": [b"x"], "caption": ["a"]}), path)
        with pytest.raises(PoolError, match=r"a\.parquet"):
            read_task(tmp_path / "tables")
    write_task(tmp_path / "both" / "wds_pets", labelled(1))
    write_task(tmp_path / "both" / "wds_pets_test", labelled(1))
    with pytest.raises(PoolError, match="both hold the task pets"):
        find_tasks(tmp_path / "both")


def test_members_that_are_no_numbers_are_refused(tmp_path: Path, write_task: WriteTask, labelled: Labelled) -> None:
    for number, label in enumerate((None, b"dog", b"-1", b"9" * 5000)):
        task = read(write_task(tmp_path / f"wds_{number}", [{"jpg": b"x"} | ({} if label is None else {"cls": label})]))
        with pytest.raises(PoolError, match="s0000000 must be its class's number"):
            list(task.images())
    for number, member in enumerate((b"", b"\x93NUMPY\x01\x00\x0c\x00{'shape': (8", b"PK\x03\x04")):
        task = read(write_task(tmp_path / str(number) / "wds_geode_test", [{**labelled(1)[0], "npy": member}]))
        with pytest.raises(PoolError, match=r"the \.npy member of s0000000"):
            list(task.images())
