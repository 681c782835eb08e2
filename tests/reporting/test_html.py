from __future__ import annotations

import pytest
from browser_view import parsed
from hypothesis import given
from hypothesis import strategies as st

from tamis.reporting.html import Markup, escape, join, tag


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onclick='x",
        "</style>",
        "&lt;b&gt;",
        "<!-- ",
        "]]>",
    ],
)
def test_text_stays_text_between_tags_and_in_attributes(text: str) -> None:
    tags, attributes, inside = parsed(tag("p", text, title=text))
    assert tags == ["p"]
    assert attributes == [("title", text)]
    assert inside == text


@given(st.text())
def test_any_text_stays_text(text: str) -> None:
    tags, attributes, _ = parsed(tag("p", text, title=text))
    assert tags == ["p"]
    assert [name for name, _ in attributes] == ["title"]


@given(st.text(alphabet=st.characters(categories=None)))
def test_any_text_can_be_written_as_utf8(text: str) -> None:
    escape(text).encode("utf-8")


def test_what_html_cannot_hold_is_replaced() -> None:
    assert escape("a\x00b\ud800c\ufffed\te\n") == "a\ufffdb\ufffdc\ufffdd\te\n"


def test_children_are_flattened_and_none_is_nothing() -> None:
    assert tag("p", ["a", [Markup("<b>x</b>")]], None, 3) == "<p>a<b>x</b>3</p>"
    assert join("<", None, ["&"]) == "&lt;&amp;"


def test_attributes_are_named_as_in_html() -> None:
    written = tag("input", class_="c", aria_label="l", open=True, id=None, hidden=False, width=3)
    assert written == '<input class="c" aria-label="l" open width="3">'


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("onclick", "x"), ("href", "javascript:alert(1)"), ("href", "https://a.b"), ("src", "https://a.b/c.png")],
)
def test_nothing_runs_and_nothing_is_fetched(attribute: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"runs no scripts|stay on the page|held in the page"):
        tag("a", **{attribute: value})
