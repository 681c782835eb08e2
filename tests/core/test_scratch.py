"""Arrays that memory need not hold behave as arrays do, and say before the work that a disk is too small."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tamis.core.errors import DiskFullError, StopError
from tamis.core.files import scratch
from tamis.core.files.scratch import StoredRows, filled, put, scratch_in, stored


@pytest.mark.parametrize("dtype", ["u1", "i4", "f8", "?", [("row", "i8"), ("v", "f2", (3,))]])
def test_rows_in_a_file_are_read_and_written_as_those_of_an_array(
    dtype: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_BLOCK", 4)
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)  # type: ignore[call-overload]
    given = np.frombuffer(rng.integers(0, 2, 30 * kind.itemsize, np.uint8).tobytes(), kind)
    file, array = StoredRows(30, kind), np.zeros(30, kind)
    assert (len(file), file[:].tobytes()) == (30, array.tobytes())
    rows = rng.permutation(30)[:11]
    for either in (file, array):
        either[3:9] = given[3:9]
        either[40:50] = given[:0]
        put(either, rows, given[rows])
    for some in (slice(None), slice(2, 7), slice(25, 90), slice(9, 9)):
        assert file[some].tobytes() == array[some].tobytes()


def test_small_arrays_are_in_memory_and_large_ones_in_files_that_nobody_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "IN_MEMORY", 80)
    with scratch_in(tmp_path):
        small, large = stored(10, np.float64), filled(11, np.float64, [(slice(0, 11), 0.5)])
    assert isinstance(small, np.ndarray)
    assert isinstance(large, StoredRows)
    assert large[:].tolist() == [0.5] * 11
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_named_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path).free
    with scratch_in(tmp_path), pytest.raises(DiskFullError, match=f"{tmp_path} has .* GB free, and .* GB are needed"):
        StoredRows(free, np.float64)
    with pytest.raises(StopError, match=r"--scratch .*missing is no folder"), scratch_in(tmp_path / "missing"):
        pass

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    file = StoredRows(10, np.uint8)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFullError, match=r"temporary files do not fit into .*No space left on device"):
        file[:] = 1
