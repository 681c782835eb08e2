"""Ids and fingerprints: parsing, content hashes, the order in which ties fall, and what may never change."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tamis.ids import LENGTH, SUBSET_DTYPE, canonical_json, content_uid, fingerprint, format_uid, parse_uid, scramble

half = st.integers(0, 2**64 - 1)


@given(half, half)
def test_formatting_undoes_parsing(high: int, low: int) -> None:
    assert parse_uid("00000000000000010000000000000010") == (1, 16)
    text = format_uid(high, low)
    assert len(text) == 32
    assert parse_uid(text) == parse_uid(text.upper()) == (high, low)
    assert format_uid(*(np.uint64(part) for part in (high, low))) == text


@pytest.mark.parametrize(
    "text", [None, 7, b"0" * 32, "", "0" * 31, "0" * 33, "g" * 32, "0x" + "0" * 30, " " + "0" * 31, "0" * 31 + "\n"]
)
def test_what_is_no_uid_is_none(text: object) -> None:
    assert parse_uid(text) is None


def test_a_content_uid_is_the_xxh3_of_image_nul_caption() -> None:
    high, low = content_uid(b"\xff\xd8jpeg", b"ein Schiff")
    assert (high << 64) | low == xxhash.xxh3_128_intdigest(b"\xff\xd8jpeg\0ein Schiff")
    assert content_uid(None, b"a") == content_uid(b"", b"a")
    assert content_uid(b"a", None) == content_uid(b"a", b"")
    assert content_uid(b"ab", b"c") != content_uid(b"a", b"bc")
    assert np.dtype("u8,u8") == SUBSET_DTYPE  # DataComp's


def uids(rows: int) -> tuple[np.ndarray, np.ndarray]:
    high, low = np.random.default_rng(0).integers(0, 2**64, (2, rows), dtype=np.uint64)
    return high, low


@pytest.mark.parametrize("kind", ["random", "counting", "high only"])
def test_scrambled_uids_are_distinct_and_uniform(kind: str) -> None:
    rows = 40_000
    count, zero = np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint64)
    found = scramble(*{"random": uids(rows), "counting": (zero, count), "high only": (count, zero)}[kind])
    assert found.dtype == np.uint64
    assert np.unique(found).size == rows
    histogram, _ = np.histogram(found / 2.0**64, bins=20, range=(0, 1))
    assert np.abs(histogram / (rows / 20) - 1).max() < 0.15
    # Neighbours share no more bits than chance: half of 64 differ.
    flips = np.unpackbits((found[1:] ^ found[:-1]).view(np.uint8)).reshape(-1, 64).sum(axis=1)
    assert flips.mean() == pytest.approx(32, abs=0.5)


@given(st.permutations(range(9)), st.integers(0, 5))
def test_a_scrambled_uid_does_not_depend_on_its_place(order: list[int], seed: int) -> None:
    high, low = uids(9)
    np.testing.assert_array_equal(scramble(high[order], low[order], seed), scramble(high, low, seed)[order])
    np.testing.assert_array_equal(scramble(high[3:4], low[3:4], seed), scramble(high, low, seed)[3:4])
    assert scramble(high[:0], low[:0]).shape == (0,)


def test_other_seeds_give_unrelated_orders() -> None:
    high, low = np.zeros(20_000, np.uint64), np.arange(20_000, dtype=np.uint64)
    orders = [scramble(high, low, seed) / 2.0**64 for seed in (0, 1, 2, 2**63, -1)]
    assert np.abs(np.corrcoef(orders)[np.triu_indices(5, 1)]).max() < 0.03


def mixed(value: int) -> int:
    """splitmix64's finaliser, in Python's own integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
    return value ^ (value >> 31)


@given(half, half, st.integers(-(2**40), 2**70))
def test_scrambling_stays_what_it_was(high: int, low: int, seed: int) -> None:
    """Subsets chosen years apart must agree: this rule may never change."""
    salt = mixed((seed + 0x9E3779B97F4A7C15) % 2**64)
    wanted = mixed((mixed(high ^ salt) + low) % 2**64)
    assert int(scramble(np.array([high], np.uint64), np.array([low], np.uint64), seed)[0]) == wanted


# ---- fingerprints


def test_fingerprints_stay_what_they_were() -> None:
    """Folders on disk are named by them: a changed fingerprint would score every pool again."""
    assert fingerprint({"name": "clip", "version": 1, "settings": {"model": "x"}}) == "6f3a5442aa87bc6d"
    assert canonical_json({"b": [1, 2.5, None], "a": {"é": True}}) == '{"a":{"é":true},"b":[1,2.5,null]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        fingerprint({"threshold": float("nan")})
    with pytest.raises(TypeError):
        fingerprint({"model": object()})


@given(st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(), max_size=4))
def test_the_order_of_keys_does_not_matter_and_small_differences_do(value: dict[str, object]) -> None:
    assert fingerprint(dict(reversed(value.items()))) == fingerprint(value)
    assert len(fingerprint(value)) == LENGTH == 16
    others = [value | {"side": other} for other in (320, 321, "320", None, [320])]
    assert len({fingerprint(one) for one in others}) == len(others)
