"""A short, seeded share of the fuzzing in every run of the suite; `make attack` does a hundred times as much.

`fuzz.py` feeds the same readers with atheris; what it found is tried here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hostile import header, pax
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from targets import TARGETS, expression, recipes, seeds, tar

HERE = Path(__file__).parent
FOUND = sorted(path for path in (HERE / "found").rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name[:20]}")
def test_what_fuzzers_found_is_borne(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


cached = cache(seeds)


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
        data = mutated(rng.choice(cached(target)), rng)
        try:
            TARGETS[target](data)
        except Exception as error:
            folder = HERE / "found" / target
            raise AssertionError(f"{error!r}; keep this input in {folder}: {data!r}") from error


names = st.text(st.characters(codec="utf-8"), max_size=90) | st.sampled_from(["a.jpg", "a.txt", "a.json", "b.c.txt"])
sizes = st.integers(-(1 << 60), 1 << 62) | st.integers(0, 2000)
kinds = st.sampled_from([b"0", b"\0", b"1", b"2", b"5", b"L", b"K", b"x", b"g", b"X", b"S", b"7", b"?"])
records = st.lists(
    st.tuples(st.sampled_from(["path", "size", "GNU.sparse.name", "x"]), st.binary(max_size=40)), max_size=3
)


@st.composite
def tars(draw: st.DrawFn) -> bytes:
    """Tars whose headers say anything."""
    parts = []
    for _ in range(draw(st.integers(0, 6))):
        data = draw(st.binary(max_size=1100))
        if draw(st.booleans()):
            parts.append(pax(draw(records)))
        size = len(data) if draw(st.booleans()) else draw(sizes)
        try:
            parts.append(header(draw(names), size, draw(kinds)))
        except (ValueError, UnicodeError):
            continue
        parts.append(data + bytes(-len(data) % draw(st.sampled_from([1, 512]))))
    return b"".join(parts) + bytes(draw(st.sampled_from([0, 512, 1024, 3000])))


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
keys = st.sampled_from(["name", "about", "pool", "run", "scores", "keep", "columns", "select", "export", "report", "x"])
steps = st.sampled_from(
    ["at_least", "top_fraction", "all_of", "equals", "clip", "npy", "score", "value", "path", "out"]
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(steps | st.text(max_size=5), inner, max_size=3)
)
words = st.sampled_from(["a", "b.c", "0.5", *"()+-*/,é'[ ", "**", "rank(", "minmax(", "max(", "log(", "1e9", ":="])


def read_mapping(data: dict[str, object]) -> None:
    import yaml

    recipes(yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass"))


ANY: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], None]]] = {
    "tar": (tars(), tar),
    "recipe": (st.dictionaries(keys, values, max_size=5), read_mapping),
    "expression": (st.lists(words, max_size=40), lambda parts: expression("".join(parts).encode())),
}


@pytest.mark.parametrize("reader", ANY)
@pytest.mark.parametrize("often", [False, pytest.param(True, marks=pytest.mark.attack)])
@pytest.mark.timeout(1800)
def test_tars_of_any_headers_recipes_of_any_values_and_expressions_of_any_words(reader: str, often: bool) -> None:
    made, read = ANY[reader]
    some = settings(
        max_examples=5_000 if often else 60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=not often,
    )
    some(given(made)(read))()
