"""What a browser makes of a page."""

import re
from html.parser import HTMLParser
from typing import Any

from tamis.reports.context import Context, Facts
from tamis.reports.page import gather, render
from tamis.runs import Run
from tamis.runs.subset import Subset


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


def sections_of(run: Run, subsets: list[Subset], **settings: Any) -> Facts:
    """Returns what each section of the report says."""
    found: Facts = gather(Context(run, subsets, **settings))["sections"]
    return found


def shown(run: Run, subsets: list[Subset], section: str) -> tuple[str, str]:
    """Returns a section of the page as HTML, and as its text with single spaces."""
    page = render(gather(Context(run, subsets)))
    (html,) = re.findall(rf'<section id="{section}".*?</section>', page, re.DOTALL)
    return html, " ".join(parsed(html)[2].split())
