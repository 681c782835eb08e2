"""Ids and fingerprints: parsing, content hashes, the order in which ties fall, and what may never change."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tamis.core.ids import (
    LENGTH,
    SUBSET_DTYPE,
    canonical_json,
    content_uid,
    fingerprint,
    format_uid,
    parse_uid,
    scramble,
    uid_order,
)

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


def mixed(value: int) -> int:
    """splitmix64's finaliser, in Python's own integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
    return value ^ (value >> 31)


@given(st.lists(st.tuples(half, half), max_size=9), st.integers(-(2**40), 2**70))
def test_scrambling_stays_what_it_was(uids: list[tuple[int, int]], seed: int) -> None:
    """Subsets chosen years apart must agree: this rule may never change, and looks at the uid and the seed alone."""
    salt = mixed((seed + 0x9E3779B97F4A7C15) % 2**64)
    high, low = (np.array([uid[part] for uid in uids], np.uint64) for part in (0, 1))
    found = scramble(high, low, seed)
    assert found.dtype == np.uint64
    assert found.tolist() == [mixed((mixed(one ^ salt) + other) % 2**64) for one, other in uids]


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


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2**63, 2**63 + 1, 2**64 - 1]), st.integers(0, 3)), max_size=20))
def test_uids_are_ordered_by_both_halves_and_then_by_row(uids: list[tuple[int, int]]) -> None:
    high, low = np.array(uids, np.uint64).reshape(-1, 2).T
    assert uid_order(high, low).tolist() == sorted(range(len(uids)), key=lambda row: uids[row])
