"""Every hostile input in a process of its own: it ends in rows or in one of our errors, soon, within 1.5 GiB.

`make attack` prints a table of them: attack, outcome, memory at its height, time.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from child import MEMORY, Measured, measured
from factories import image_bytes, write_tar
from hostile import IMAGES, RECIPES, TABLES, TARS, png

pytestmark = [pytest.mark.attack, pytest.mark.timeout(900)]

#: No hostile file may take longer, on a machine that does other work too.
SECONDS = 120


Record = Callable[[str, object], None]


def check(name: str, found: Measured, record: Record) -> None:
    line = f"{name:55} {found.peak / 2**20:6.0f} MiB {found.seconds:7.1f} s  {found.outcome[:90]}"
    record("measured", line)
    assert found.survived, found
    assert found.peak <= MEMORY, found
    assert found.seconds <= SECONDS, found


@pytest.mark.parametrize("name", [*TARS, *TABLES])
def test_a_hostile_tar_or_table_costs_one_shard(name: str, tmp_path: Path, record_property: Record) -> None:
    found = measured("score", ({**TARS, **TABLES})[name](tmp_path))
    check(name, found, record_property)
    assert found.outcome.startswith("rows: ") or name in TABLES, found


@pytest.mark.parametrize("name", IMAGES)
def test_a_hostile_image_costs_one_row(name: str, tmp_path: Path, record_property: Record) -> None:
    path = tmp_path / "image"
    path.write_bytes(IMAGES[name]())
    check(name, measured("decode", path), record_property)


@pytest.mark.parametrize("name", RECIPES)
def test_a_hostile_recipe_ends_in_our_own_error(name: str, tmp_path: Path, record_property: Record) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(RECIPES[name])
    found = measured("recipe", path)
    check(name, found, record_property)
    assert found.outcome.startswith("refused: "), found
    assert len(found.outcome) < 1500


def test_a_pool_of_large_images_is_scored_within_the_limit(tmp_path: Path, record_property: Record) -> None:
    """As many at once as there are threads, each of nearly the limit on pixels, between small ones."""
    large = png(9_900, 9_900, pixels=bytes(29_701 * 9_900))
    samples = [(f"{n:02d}", {"jpg": large if n % 2 else image_bytes(n), "txt": b"a"}) for n in range(24)]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    found = measured("score", tmp_path / "pool")
    check("a pool of 12 images of 98 million pixels", found, record_property)
    assert found.outcome == "rows: ok 24"
