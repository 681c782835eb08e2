"""Damage and mix-ups never change an answer: whatever happens to a part, reading it says so, and the check finds it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import answer, files_of, flipped, flips, reversed_rows, small_run

import tamis
from tamis.errors import DamageError, RunError
from tamis.store import checked, parts
from tamis.store.checked import CheckedParquet


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("damaged") / "run").path


def test_no_flipped_bit_changes_an_answer_and_the_check_finds_each(run: Path) -> None:
    right = answer(run)
    silent, unseen = [], []
    for number, (path, byte, bit) in enumerate(flips(files_of(run), 48, seed=1)):
        whole = flipped(path, byte, bit)
        try:
            if answer(run) != right:
                silent.append((path.name, byte, bit))
        except RunError:
            pass
        if number % 5 == 0:
            try:
                if tamis.check(run).exit_code == 0:
                    unseen.append((path.name, byte, bit))
            except RunError as error:
                assert "shards.parquet" in str(error)  # noqa: PT017
        path.write_bytes(whole)
    assert (silent, unseen) == ([], [])
    assert answer(run) == right
    assert tamis.check(run).exit_code == 0


def test_every_byte_of_a_parquet_file_is_sealed(tmp_path: Path) -> None:
    """Also those that readers do not look at: statistics, and what is between the pages."""
    path = tmp_path / "a.parquet"
    checked.write_parquet(path, pa.table({"a": ["x", "y"] * 9, "b": range(18)}), uids="0", row_group_size=7)
    CheckedParquet(path).verify()
    for byte in range(path.stat().st_size):
        whole = flipped(path, byte, byte % 8)
        with pytest.raises(DamageError):
            CheckedParquet(path).verify()
        path.write_bytes(whole)


def test_a_changed_value_is_noticed_by_the_read_of_its_column(tmp_path: Path) -> None:
    path, values = tmp_path / "a.parquet", np.linspace(0, 1, 50).astype(np.float32)
    checked.write_parquet(
        path, pa.table({"a": values}), uids="0", row_group_size=99, compression="NONE", use_dictionary=False
    )
    flipped(path, path.read_bytes().index(values[20:25].tobytes()), 3)
    with pytest.raises(DamageError):
        CheckedParquet(path).read(["a"])


def copy_over(one: str, other: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        source, target = next(folder.glob(one)), next(folder.glob(other))
        shutil.copyfile(source, target)
        return target

    return change


def turned(pattern: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        path = next(folder.glob(pattern))
        reversed_rows(path)
        return path

    return change


def zeroed(folder: Path) -> Path:
    path = next(folder.glob("embeddings/*/00001.npy"))
    np.save(path, np.zeros_like(np.load(path)))
    return path


def zeroed_in_place(folder: Path) -> Path:
    path = next(folder.glob("embeddings/*/00001.npy"))
    content = bytearray(path.read_bytes())
    content[128 : 128 + 8 * 6 * 2] = bytes(8 * 6 * 2)
    path.write_bytes(bytes(content))
    return path


def wider(folder: Path) -> Path:
    path = next(folder.glob("embeddings/*/00001.npy"))
    owner = parts.uids_in(folder / "index" / "00001.parquet")
    parts.write_rows(path, [np.zeros((8, 7))], uids=owner)  # with hashes, and of another width than its siblings
    return path


SWAPS = {
    "a sibling's scores": copy_over("scores/*/00000.parquet", "scores/*/00001.parquet"),
    "a sibling's index": copy_over("index/00000.parquet", "index/00001.parquet"),
    "a sibling's embeddings": copy_over("embeddings/*/00000.npy", "embeddings/*/00001.npy"),
    "texts in the place of scores": copy_over("captions/*/00001.parquet", "scores/*/00001.parquet"),
    "reversed scores": turned("scores/*/00001.parquet"),
    "a reversed index": turned("index/00001.parquet"),
    "reversed embeddings": turned("embeddings/*/00001.npy"),
    "zeroed embeddings": zeroed,
    "embeddings zeroed under their hash": zeroed_in_place,
    "embeddings of another width": wider,
}


@pytest.mark.parametrize("swap", SWAPS)
def test_a_part_that_does_not_belong_there_is_named_and_repaired(swap: str, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = SWAPS[swap](folder)
    with pytest.raises(DamageError) as error:
        answer(folder)
    assert str(path) in str(error.value)
    assert "`tamis score`" in str(error.value)
    found = tamis.check(folder)
    first = next(each for each in found.findings if each.kind == "damaged")
    assert first.path == str(path.relative_to(folder))
    assert path.exists()
    assert found.exit_code == 1
    repaired = tamis.check(folder, delete=True)
    assert not path.exists()
    assert repaired.command.startswith("tamis score ")
    again = tamis.check(folder)
    assert {each.kind for each in again.findings} == {"missing"}


def test_another_runs_part_of_the_same_name_is_told_by_its_uids(run: Path, tmp_path: Path) -> None:
    other = small_run(tmp_path / "run", rows=24)
    folder = tmp_path / "mine"
    shutil.copytree(run, folder)
    path = next(folder.glob("scores/*/00001.parquet"))
    uids = parts.uids_in(other.index_path("00002"))
    columns = other.scores["given"].columns
    values = {"x": np.zeros(8), "y": np.zeros(8), "word": ["a"] * 8}
    parts.write_scores(path, columns, values, [None] * 8, uids=uids)
    with pytest.raises(DamageError, match=r"00001\.parquet is damaged.*other samples than those of the index"):
        answer(folder)


def test_numpys_file_is_hashed_once_while_it_does_not_change(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = tamis.open_run(run)
    opened.embedding("image_embedding", "00000")
    monkeypatch.setattr(checked, "_hash_of", None)
    opened.embedding("image_embedding", "00000")


def test_a_part_that_becomes_shorter_while_it_is_read_is_damage(run: Path, tmp_path: Path) -> None:
    """A mapped file would end the process here, with a signal and no name."""
    path = next(shutil.copytree(run, tmp_path / "run").glob("captions/*/*.parquet"))
    # Larger than what is read with the footer.
    parts.write_text_lists(path, [[f"{n * 7919:x} a red dog"] for n in range(20_000)], uids="")
    part = CheckedParquet(path)
    os.truncate(path, 100)
    with pytest.raises(DamageError, match=rf"{path.name} is damaged.*it cannot be read"):
        part.read(["texts"])


def test_an_array_that_becomes_shorter_while_it_is_hashed_is_damage(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(shutil.copytree(run, tmp_path / "run").glob("embeddings/*/*.npy"))
    real = checked._verified_facts

    def cut(*args: Any) -> Any:
        os.truncate(path, 0)
        return real(*args)

    monkeypatch.setattr(checked, "_verified_facts", cut)
    with pytest.raises(DamageError, match=r"\.npy is damaged.*no hash follows the array"):
        checked.read_array(path)


@pytest.mark.parametrize("kind", ["captions/*/*.parquet", "embeddings/*/*.npy"])
def test_a_sector_that_cannot_be_read_is_told_and_nothing_is_called_damaged(
    kind: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(shutil.copytree(run, tmp_path / "run").glob(kind))

    def bad_sector(*_: Any, **__: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checked.pq, "ParquetFile", bad_sector)
    monkeypatch.setattr(checked, "_verified_facts", bad_sector)
    with pytest.raises(RunError, match=f"{path.name} cannot be read: Input/output error") as caught:
        parts.read_text_lists(path) if path.suffix == ".parquet" else checked.read_array(path)
    assert not isinstance(caught.value, DamageError)
