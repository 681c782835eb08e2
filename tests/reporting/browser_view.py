"""What a browser makes of a page."""

from __future__ import annotations

from html.parser import HTMLParser


def parsed(page: str) -> tuple[list[str], list[tuple[str, str | None]], str]:
    """Returns the tags, attributes and text that a browser's tokenizer would find."""
    tags: list[str] = []
    attributes: list[tuple[str, str | None]] = []
    texts: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            attributes.extend(attrs)

        def handle_data(self, data: str) -> None:
            texts.append(data)

    parser = Parser(convert_charrefs=True)
    parser.feed(page)
    parser.close()
    return tags, attributes, "".join(texts)
