"""HTML that cannot be broken out of: everything is escaped unless it was built here.

Captions, keys, uids, reasons and paths come from the web. They reach the page only as children or attribute values
of `tag`, which escapes every string that is not `Markup`; nothing else makes `Markup` of a string from outside.

Functions and no templates: an engine with autoescape would escape as well, but it knows no attribute from another, so
nothing would refuse a handler, a link or a picture from elsewhere (`_check`); mypy checks these calls, and the base
install stays small.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final

#: Controls, lone surrogates and non-characters: not allowed in HTML, or not encodable as UTF-8.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_VOID: Final = frozenset({"br", "img", "input", "meta", "hr", "path", "line"})


class Markup(str):
    """A piece of finished HTML."""

    __slots__ = ()


NOTHING: Final = Markup("")


Child = str | int | None | Iterable["Child"]
Attribute = str | int | float | bool | None


def escape(text: str) -> Markup:
    """Returns text that stands for itself anywhere in HTML, between tags or in a quoted attribute."""
    return Markup(html.escape(_UNFIT.sub("\N{REPLACEMENT CHARACTER}", text), quote=True))


def join(*children: Child) -> Markup:
    """Returns children one after the other, escaped where they are not `Markup`; None is nothing."""
    return Markup("".join(_pieces(children)))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Returns one element.

    Args:
        name: of the element.
        children: `Markup` as it is, other strings escaped, None left out, sequences flattened.
        attributes: `class_` is class, `data_x` is data-x; True is a bare attribute, None and False are none.

    Raises:
        ValueError: an attribute could run code or reach the network.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        _check(key, value)
        parts.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    parts.append(">")
    inner = _pieces(children)
    if name in _VOID:
        assert not any(inner), f"<{name}> holds nothing"
        if name in ("path", "line"):
            parts.append(f"</{name}>")
        return Markup("".join(parts))
    return Markup("".join([*parts, *inner, f"</{name}>"]))


def _check(key: str, value: Attribute) -> None:
    if key.startswith("on"):
        raise ValueError(f"the page runs no scripts: attribute {key!r}")
    if key == "href" and not str(value).startswith("#"):
        raise ValueError(f"links stay on the page: {value!r}")
    if key == "src" and not str(value).startswith("data:image/"):
        raise ValueError(f"images are held in the page: {str(value)[:40]!r}")


def _pieces(children: Iterable[Child]) -> list[str]:
    pieces: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            pieces.append(child)
        elif isinstance(child, str):
            pieces.append(escape(child))
        elif isinstance(child, int):
            pieces.append(str(child))
        else:
            pieces.extend(_pieces(child))
    return pieces
