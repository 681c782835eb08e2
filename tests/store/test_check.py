"""What `tamis check` says of each file of a run; and what `--delete` must never take: a part as it was written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import contents, files_of, small_run, unreadable

import tamis
from tamis.errors import RunError
from tamis.store import check as module
from tamis.store import checked, manifest, parts, records
from tamis.store.check import Checked
from tamis.store.claims import locked
from tamis.store.shard_list import write_shards


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("check") / "run").path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    return folder


def kinds(found: Checked) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in found.findings]


DESCRIPTIONS = ("scores/given-0000000000000000/signal.json", "captions/says-2222222222222222/feature.json")


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_parts_outlive_the_file_that_describes_them(name: str, run: Path) -> None:
    before = contents(run)
    (run / name).write_bytes((run / name).read_bytes()[:-20])
    assert kinds(tamis.check(run, delete=True)) == [("damaged", name)]
    for _ in range(2):
        lost = tamis.check(run, delete=True)
        assert kinds(lost) == [("missing", name)]
        assert lost.exit_code == 1
        assert lost.command.startswith("tamis score ")
    assert contents(run) == before


@pytest.mark.parametrize(
    "name",
    [
        *DESCRIPTIONS,
        "scores/given-0000000000000000/class_names.json",
        "scores/given-0000000000000000/class_vectors.npy",
        "index/00001.parquet",
        "scores/given-0000000000000000/00001.parquet",
        "embeddings/image_embedding-1111111111111111/00001.npy",
        "captions/says-2222222222222222/00001.parquet",
        "captions/says-2222222222222222",
    ],
)
def test_what_may_not_be_read_is_told_and_left_alone(name: str, run: Path) -> None:
    before = contents(run)
    tamis.check(run, delete=True)  # whatever is imported, is
    with unreadable(run / name, run):
        found = tamis.check(run, delete=True)
    assert (kinds(found), found.exit_code) == ([("yours", name)], 1)
    assert "Permission denied" in found.findings[0].what
    assert contents(run) == before
    assert tamis.check(run).exit_code == 0


def test_the_width_of_most_embeddings_is_the_right_one(run: Path) -> None:
    path = next(run.glob("embeddings/*/00000.npy"))
    uids = parts.uids_in(run / "index" / "00000.parquet")
    parts.write_rows(path, [np.zeros((len(np.load(path)), 4))], uids=uids)
    found = tamis.check(run, delete=True)
    assert [(each.path, each.what) for each in found.findings] == [
        (str(path.relative_to(run)), "it holds 4 numbers a row, most of its siblings 6")
    ]
    assert kinds(tamis.check(run)) == [("missing", str(path.parent.relative_to(run)))]


def test_it_reads_also_what_its_process_has_read_before(run: Path) -> None:
    opened = tamis.open_run(run)
    opened.embedding("image_embedding", "00000")
    path = next(run.glob("embeddings/*/00000.npy"))
    times = path.stat()
    with open(path, "r+b") as file:  # as a failing disk does: inode, size and time stay
        file.seek(130)
        file.write(b"\0" * 4)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert kinds(tamis.check(run)) == [("damaged", str(path.relative_to(run)))]
    with pytest.raises(RunError, match="its bytes are not those that were written"):
        opened.embedding("image_embedding", "00000")


def test_what_lies_beside_the_parts_is_looked_at(run: Path) -> None:
    tamis.select(run, {"name": "mine", "select": [{"at_least": {"score": "x", "value": 0.5, "missing": "drop"}}]}).save(
        run / "subsets" / "mine.parquet"
    )
    (run / "events.jsonl").write_text('{"event": "shard", "shard": "00000"}\n')
    checked.write_parquet(
        run / "unfinished/00001/abc-00000.parquet", pa.table({"row": [0]}), uids=None, row_group_size=9
    )
    assert tamis.check(run).exit_code == 0

    content = bytearray((run / "subsets/mine.parquet").read_bytes())
    content[20] ^= 1
    (run / "subsets/mine.parquet").write_bytes(bytes(content))
    (run / "events.jsonl").write_text('{"a":\n5\n')
    (run / "recipe.yaml").write_text("a: [")
    (run / "scores/given-0000000000000000/junk.bin").write_bytes(b"x")
    (run / "unfinished/99999").mkdir()
    (run / "unfinished/99999/abc-00000.parquet").write_bytes(b"junk")
    (run / "unfinished/00000").mkdir()
    (run / "unfinished/00000/abc-00000.parquet").write_bytes(b"junk")
    mine = ["recipe.yaml", "events.jsonl", "subsets/mine.parquet"]
    left = ["unfinished/99999/abc-00000.parquet"]
    damaged = ["unfinished/00000/abc-00000.parquet"]
    junk = "scores/given-0000000000000000/junk.bin"
    found = tamis.check(run, delete=True)
    assert sorted(kinds(found)) == sorted(
        (kind, name)
        for kind, names in (("yours", [*mine, junk]), ("left over", left), ("damaged", damaged))
        for name in names
    )
    assert all(each.deleted == (each.kind != "yours") for each in found.findings)
    command = f"tamis select {run} --recipe mine --out {run / 'subsets/mine.parquet'}"
    assert command in next(each.what for each in found.findings if "subsets" in each.path)
    assert all((run / name).exists() for name in (*mine, junk))
    assert sorted(kinds(tamis.check(run))) == sorted(("yours", name) for name in (*mine, junk))


def each_kind(run: Path) -> list[Path]:
    """One file of each kind: of parts that of the second shard."""
    found = [*files_of(run), run / "run.json", run / "recipe.yaml"]
    return [path for path in found if path.stem not in ("00000", "00002")]


def lost(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def swapped(path: Path) -> None:
    """Puts a sibling's content, or that of another file of its kind, into a file's place."""
    siblings = [
        *path.parent.glob(f"0*{path.suffix}"),
        *path.parents[2].glob(f"*/*/{path.name}"),
        *path.parents[1].rglob(f"*{path.suffix}"),
    ]
    sibling = next(each for each in siblings if each.is_file() and each.read_bytes() != path.read_bytes())
    content = path.read_bytes()
    path.write_bytes(sibling.read_bytes())
    sibling.write_bytes(content)


def never_takes_what_is_whole(run: Path, harm: Callable[[Path], None], path: Path) -> None:
    """Harms one file: it must be told, and deleting must not take a part that is as it was."""
    before = contents(run)
    harm(path)
    harmed = contents(run)
    whole = {name for name, content in harmed.items() if before.get(name) == content}
    if path.parent.name == "index":  # `tamis score` makes every part of a shard again whose index it has to make
        whole = {
            name for name in whole if Path(name).stem in {"00000", "00002"} - ({"00000"} if harm is swapped else set())
        }
    try:
        codes = [tamis.check(run).exit_code, tamis.check(run, delete=True).exit_code]
    except RunError:  # of run.json and the list of shards: nothing can be said
        assert path.name in ("run.json", "shards.parquet")
        codes = [2, 2]
    chosen_again = harm is lost and path.parent.name == "subsets"  # nobody can tell that there was one
    assert chosen_again or 0 not in codes, (harm.__name__, path.name, codes)
    assert whole <= set(contents(run)), (harm.__name__, path.name)
    assert all(before[name] == contents(run)[name] for name in whole)


@pytest.mark.parametrize("harm", [lost, swapped, pytest.param(cut, marks=pytest.mark.attack)])
def test_whatever_is_harmed_no_whole_part_goes(harm: Callable[[Path], None], whole: Path, tmp_path: Path) -> None:
    for number, path in enumerate(each_kind(whole)):
        if harm is swapped and path.name in (
            "run.json",
            "recipe.yaml",
            "shards.parquet",
            "mine.parquet",
            "class_names.json",
            "class_vectors.npy",
        ):
            continue  # there is no other of its kind
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        never_takes_what_is_whole(folder, harm, folder / path.relative_to(whole))


def test_others_may_work_while_it_reads(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's lock is held for moments only, and its file says by whom."""
    (run / "scores/given-0000000000000000/signal.json").write_text("{")
    real, notes = module._verify, []

    def read(*arguments: Any, **settings: Any) -> None:
        with locked(run, patience=0):  # raises where it is held
            real(*arguments, **settings)

    def removing(path: Path) -> None:
        notes.append((run / "lock").read_text())
        path.unlink()

    monkeypatch.setattr(module, "_verify", read)
    monkeypatch.setattr(module, "remove", removing)
    assert kinds(tamis.check(run, delete=True)) == [("damaged", "scores/given-0000000000000000/signal.json")]
    assert len(notes) == 1
    assert notes[0].strip().count("deletes what is damaged")


@pytest.mark.parametrize("name", ["index/00001.parquet", "scores/given-0000000000000000/00001.parquet"])
def test_what_others_put_right_meanwhile_is_not_deleted(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, whole = contents(run), (run / name).read_bytes()
    (run / name).write_bytes(whole[:-20])
    real = module.claimed

    @contextmanager
    def claimed(folder: Path, shard: str) -> Iterator[bool]:
        (run / name).write_bytes(whole)  # by the process that had the shard until now
        with real(folder, shard) as mine:
            yield mine

    monkeypatch.setattr(module, "claimed", claimed)
    assert tamis.check(run, delete=True).findings == ()
    assert contents(run) == before


def test_shards_that_the_run_lists_meanwhile_are_not_foreign(
    run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(run)
    facts = (run / "run.json").read_bytes(), (run / "shards.parquet").read_bytes()
    listed = manifest.shards_of(run)
    shorter = {name: url for name, url in listed.items() if name != "00001"}
    told = json.loads(facts[0]) | {"shards": write_shards(run, shorter)}
    (run / "run.json").write_text(json.dumps(records.with_hash(told)))
    assert "left over" in {kind for kind, _ in kinds(tamis.check(run))}
    real = module._leftovers

    def growing(work: Any) -> None:
        assert "00001" not in work.run.urls
        (run / "run.json").write_bytes(facts[0])
        (run / "shards.parquet").write_bytes(facts[1])
        real(work)

    monkeypatch.setattr(module, "_leftovers", growing)
    tamis.check(run, delete=True)
    monkeypatch.undo()
    assert contents(run) == before
    assert tamis.check(run).findings == ()
