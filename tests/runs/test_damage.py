"""Damage and mix-ups never change an answer: whatever happens to a part, reading it says so, and the check finds it."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import answer, contents, delete, files_of, flipped, flips
from factories import uids_in

import tamis
from tamis.core.errors import DamageError, RunError
from tamis.core.files import checked
from tamis.core.files.checked import CheckedParquet
from tamis.runs import parts


@pytest.mark.parametrize(
    ("seed", "number", "step"),
    [(1, 48, 5), *(pytest.param(seed, 500, 1, marks=pytest.mark.attack) for seed in range(100, 104))],
)
@pytest.mark.timeout(1800)
def test_no_flipped_bit_changes_an_answer_and_the_check_finds_each(
    seed: int, number: int, step: int, run: Path
) -> None:
    right = answer(run)
    for count, (path, byte, bit) in enumerate(flips(files_of(run), number, seed=seed)):
        before, refused = flipped(path, byte, bit), True
        with suppress(RunError):
            assert answer(run) == right, (path.name, byte, bit)
            refused = False  # Parquet has bytes that are never read
        if refused and count % step == 0:
            with suppress(RunError):  # the list of shards is beyond repair
                assert tamis.check(run).exit_code != 0, (path.name, byte, bit)
        path.write_bytes(before)
    assert answer(run) == right
    assert tamis.check(run).exit_code == 0


def test_every_byte_of_a_parquet_file_is_sealed(tmp_path: Path) -> None:
    """Also those that readers do not look at: statistics, and what is between the pages."""
    path = tmp_path / "a.parquet"
    checked.write_parquet(path, pa.table({"a": ["x", "y"] * 9, "b": range(18)}), uids="0", row_group_size=7)
    CheckedParquet(path).verify()
    for byte in range(path.stat().st_size):
        before = flipped(path, byte, byte % 8)
        with pytest.raises(DamageError):
            CheckedParquet(path).verify()
        path.write_bytes(before)


def test_a_changed_value_is_noticed_by_the_read_of_its_column(tmp_path: Path) -> None:
    path, values = tmp_path / "a.parquet", np.linspace(0, 1, 50).astype(np.float32)
    checked.write_parquet(
        path, pa.table({"a": values}), uids="0", row_group_size=99, compression="NONE", use_dictionary=False
    )
    flipped(path, path.read_bytes().index(values[20:25].tobytes()), 3)
    with pytest.raises(DamageError):
        CheckedParquet(path).read(["a"])


def reversed_rows(path: Path, _: Path) -> None:
    """As a program would that knows the format but not the hashes."""
    if path.suffix == ".npy":
        np.save(path, np.load(path)[::-1])
        return
    table, footer = pq.read_table(path), pq.read_metadata(path).metadata
    pq.write_table(table[::-1].replace_schema_metadata(footer), path)


def zeroed_in_place(path: Path, _: Path) -> None:
    content = bytearray(path.read_bytes())
    content[128 : 128 + 8 * 6 * 2] = bytes(8 * 6 * 2)
    path.write_bytes(bytes(content))


def wider(path: Path, run: Path) -> None:
    """Hashes agree, but the width is another than its siblings'."""
    parts.write_rows(path, [np.zeros((8, 7))], uids=uids_in(run / "index" / "00001.parquet"))


def anothers(path: Path, run: Path) -> None:
    """The same shard of another run: only the uids differ."""
    columns = tamis.open_run(run).scores["given"].columns
    values = {"x": np.zeros(8), "y": np.zeros(8), "word": ["a"] * 8}
    uids = uids_in(run / "index" / "00002.parquet")
    parts.write_scores(path, columns, values, [None] * 8, uids=uids)


def copied(source: str) -> Callable[[Path, Path], None]:
    def copy(path: Path, run: Path) -> None:
        shutil.copyfile(next(run.glob(source)), path)

    return copy


SCORES, INDEX, EMBEDDINGS = "scores/*/00001.parquet", "index/00001.parquet", "embeddings/*/00001.npy"

SWAPS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "a sibling's scores": (SCORES, copied("scores/*/00000.parquet")),
    "a sibling's index": (INDEX, copied("index/00000.parquet")),
    "a sibling's embeddings": (EMBEDDINGS, copied("embeddings/*/00000.npy")),
    "texts in the place of scores": (SCORES, copied("captions/*/00001.parquet")),
    "another run's scores": (SCORES, anothers),
    "reversed scores": (SCORES, reversed_rows),
    "a reversed index": (INDEX, reversed_rows),
    "reversed embeddings": (EMBEDDINGS, reversed_rows),
    "embeddings zeroed under their hash": (EMBEDDINGS, zeroed_in_place),
    "embeddings of another width": (EMBEDDINGS, wider),
}


@pytest.mark.parametrize("swap", SWAPS)
def test_a_part_that_does_not_belong_there_is_named_alone(swap: str, run: Path) -> None:
    pattern, change = SWAPS[swap]
    before, path = contents(run), next(run.glob(pattern))
    change(path, run)
    name = path.relative_to(run).as_posix()
    with pytest.raises(DamageError) as error:
        answer(run)
    assert str(path) in str(error.value)
    found = tamis.check(run)
    assert (next(each.path for each in found.findings if each.kind == "damaged"), found.exit_code) == (name, 1)
    assert (found.to_delete, found.command[:12]) == ((path,), "tamis score ")
    delete(found)
    assert before.keys() - contents(run).keys() == {name}
    assert {each.kind for each in tamis.check(run).findings} == {"missing"}


def test_numpys_file_is_hashed_once_while_it_does_not_change_but_the_check_reads_it_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tamis.open_run(run)
    opened.embedding("image_embedding", "00000")
    with monkeypatch.context() as patch:
        patch.setattr(checked, "_hash_of", None)
        opened.embedding("image_embedding", "00000")
    path = next(run.glob("embeddings/*/00000.npy"))
    times = path.stat()
    with open(path, "r+b") as file:  # as a failing disk does: inode, size and time stay
        file.seek(130)
        file.write(b"\0" * 4)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [(each.kind, run / each.path) for each in tamis.check(run).findings] == [("damaged", path)]
    with pytest.raises(DamageError, match=path.name):
        opened.embedding("image_embedding", "00000")


def test_a_part_that_becomes_shorter_while_it_is_read_is_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory-mapped file would end the process here, with a signal and no name."""
    path = next(run.glob("captions/*/*.parquet"))
    # Larger than what is read with the footer.
    parts.write_text_lists(path, [[f"{n * 7919:x} a red dog"] for n in range(20_000)], uids="")
    part = CheckedParquet(path)
    os.truncate(path, 100)
    with pytest.raises(DamageError, match=path.name):
        part.read(["texts"])
    path = next(run.glob("embeddings/*/*.npy"))
    real = checked._verified_facts

    def cut(*args: Any) -> Any:
        os.truncate(path, 0)
        return real(*args)

    monkeypatch.setattr(checked, "_verified_facts", cut)
    with pytest.raises(DamageError, match=path.name):
        checked.read_array(path)
