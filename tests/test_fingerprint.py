"""Fingerprints: one spelling per value, other values other fingerprints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.fingerprint import LENGTH, canonical_json, fingerprint

plain = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-99, 99), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


def test_the_canonical_form_by_hand() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": {"é": True}}) == '{"a":{"é":true},"b":[1,2.5,null]}'


@given(st.dictionaries(st.text(max_size=3), plain, max_size=4))
def test_the_order_of_keys_does_not_matter(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))
    assert fingerprint(backwards) == fingerprint(value)
    assert len(fingerprint(value)) == LENGTH == 16


def test_small_differences_give_other_fingerprints() -> None:
    settings = [
        {"model": "a", "side": 320},
        {"model": "a", "side": 321},
        {"model": "a", "side": "320"},
        {"model": "a", "side": None},
        {"model": "a"},
        {"model": ["a"], "side": 320},
        {},
    ]
    assert len({fingerprint(value) for value in settings}) == len(settings)


def test_what_has_no_one_spelling_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        fingerprint({"threshold": float("nan")})
    with pytest.raises(TypeError):
        fingerprint({"model": object()})


def test_fingerprints_stay_what_they_were() -> None:
    """Folders on disk are named by them: a changed fingerprint would score every pool anew."""
    assert fingerprint({"name": "clip", "version": 1, "settings": {"model": "x"}}) == "6f3a5442aa87bc6d"
