"""Shows rows as a table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from tamis.core.errors import escape_controls

_TABLE = """
<p><b>{{ title | shown }}</b>: {{ counts }}</p><table>
<thead><tr>{% for name in rows[0] %}<th style="text-align:left">{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}
<tr>{% for cell in row.values() %}<td style="text-align:left">{{ cell | shown }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table>"""


def html_table(title: object, counts: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of rows with the same keys; all text is escaped."""
    from jinja2 import Environment

    templates = Environment(autoescape=True)
    templates.filters["shown"] = lambda text: escape_controls(str(text))
    return templates.from_string(_TABLE).render(title=title, counts=counts, rows=rows)


def glimpse(source: Any, pairs: int = 8, *, dropped: bool = False) -> str:
    """Returns HTML with some pairs of a run or a subset; see `tamis.reports.notebook.glimpse`."""
    # By name: reports import runs, and only a notebook asks a run for its pairs.
    found: str = import_module("tamis.reports.notebook").glimpse(source, pairs, dropped=dropped)
    return found
