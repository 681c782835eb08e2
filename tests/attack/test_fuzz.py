"""A short, seeded share of the fuzzing in every run of the suite; `make attack` does a hundred times as much.

Inputs that once broke a reader are in `found`.
"""

import random
from functools import cache
from pathlib import Path

import pytest
from targets import TARGETS

HERE = Path(__file__).parent
FOUND = sorted(path for path in (HERE / "found").rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name[:20]}")
def test_inputs_that_once_broke_a_reader_do_no_harm(path: Path) -> None:
    TARGETS[path.parent.name][0](path.read_bytes())


@cache
def seeds(target: str) -> list[bytes]:
    return TARGETS[target][1]()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Changes some bytes, a block, or the end of an input."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        place = rng.randrange(min(len(changed), rng.choice((64, 600, 1 << 20))))
        what = rng.randrange(6)
        if what == 0:
            changed[place] ^= 1 << rng.randrange(8)
        elif what == 1:
            changed[place] = rng.choice((0, 255, 128, 127, 32, 48, 57))
        elif what == 2:
            changed[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
        elif what == 3:
            del changed[place : place + rng.randrange(1, 600)]
        elif what == 4:
            changed[place:place] = changed[place : place + rng.randrange(1, 600)]
        else:
            del changed[place + 1 :]
    return bytes(changed)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("seed", "tries"), [(0, 100), *(pytest.param(seed, 5_000, marks=pytest.mark.attack) for seed in range(1, 5))]
)
@pytest.mark.timeout(1800)
def test_changed_inputs_end_in_a_value_or_in_our_own_error(target: str, seed: int, tries: int) -> None:
    rng = random.Random(seed)
    for _ in range(tries):
        data = mutated(rng.choice(seeds(target)), rng)
        try:
            TARGETS[target][0](data)
        except Exception as error:
            folder = HERE / "found" / target
            raise AssertionError(f"{error!r}; keep this input in {folder}: {data!r}") from error
