"""Thousands of flipped bits over every kind of part: none changes an answer, and the check finds what readers find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from damage import answer, files_of, flipped, flips, small_run

import tamis
from tamis.errors import RunError

pytestmark = [pytest.mark.attack, pytest.mark.timeout(1800)]

FLIPS = 500  # per seed


@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_changes_an_answer_and_the_check_finds_each(
    seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run = small_run(tmp_path / "run").path
    right, tries = answer(run), {"refused": 0, "harmless": 0, "silent": 0, "unseen": 0}
    for path, byte, bit in flips(files_of(run), FLIPS, seed=100 + seed):
        whole = flipped(path, byte, bit)
        outcome = "refused"
        with suppress(RunError):
            outcome = "harmless" if answer(run) == right else "silent"
        tries[outcome] += 1
        with suppress(RunError):  # the list of shards is beyond repair, and ends it
            # Parquet has bytes that are never read, such as statistics.
            tries["unseen"] += outcome != "harmless" and tamis.check(run).exit_code == 0
        path.write_bytes(whole)
    record_property("measured", f"{FLIPS} flipped bits: {tries}")
    assert (tries["silent"], tries["unseen"]) == (0, 0), tries
    assert answer(run) == right
