"""The page and its facts: gathers the sections' dictionaries, shows them by templates, and writes them as JSON.

A section is a function in `sections/` that returns a dictionary (None to leave the section out), a line in `SECTIONS`,
and a template in `templates/` that shows the dictionary. Templates escape all values; links pass the filter `link`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import yaml

from tamis.core.errors import plural
from tamis.core.files.storage import writing
from tamis.core.files.targets import check_ending, check_target
from tamis.core.types import STATUSES
from tamis.core.version import __version__
from tamis.reports import charts, formats
from tamis.reports.context import GALLERIES, Context, Facts
from tamis.reports.distributions import RARE
from tamis.reports.page_pairs import Pair
from tamis.reports.sections import bench, choice, findings, pool, race, scores, subsets, text, values
from tamis.runs import Run
from tamis.runs.subset import Subset, partial_facts

#: Name -> (title, what it shows, function), in page order. The name is also the anchor, the key in `report.json` and
#: the template. A section is folded, with what it shows next to its title; those that say "" are open.
SECTIONS: Mapping[str, tuple[str, str, Callable[[Context], Facts | None]]] = {
    "choice": ("Decision", "", choice.gather),
    "mosaic": ("Images", "", pool.mosaic),
    "look": ("Recipes to try", "", bench.look),
    "funnels": ("Funnels", "what each step of a recipe keeps and drops", subsets.funnels),
    "bench": ("Bench", "models trained on what each recipe keeps", bench.gather),
    "race": ("Race", "models trained on recipes at shares of the pool, in rounds", race.race),
    "shares": ("Shares", "models trained on eight shares of a recipe", race.shares),
    "galleries": ("Galleries", "pairs just above and just below each cut", subsets.galleries),
    "overlap": ("Overlap", "what two subsets share, and where they disagree", subsets.overlap),
    "text": ("Written text", "pairs that match by the text in the image", text.gather),
    "scores": ("Scores", "a histogram of each score, with pairs from low to high", scores.gather),
    "correlation": ("Correlation", "which scores rank the pairs alike", scores.correlation),
    "values": ("Values and words", "what each subset keeps of each value and word", values.gather),
    "pool": ("Pool and run", "statuses, sizes, signals and their settings, the folder and its recipe", pool.gather),
}

#: The section after the mosaic, built from the facts of the others. The page shows "look" in it.
FINDINGS = "findings"

#: Version of the layout of report.json; docs/report.md describes it.
FORMAT = 5

#: Strings near the start of our page and our JSON file; a file without them is not overwritten.
GENERATOR = 'name="generator" content="tamis '
BEGINS = '{"kind": "tamis report"'

#: Loads nothing and runs no script, whatever a caption contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

#: Maximum number of characters of a text: where its pair is open, and on its card.
TEXT_MOST, CARD_MOST = 8_000, 200

#: Findings that are shown with their images at once.
SHOWN = 5

#: Controls, lone surrogates and non-characters: not allowed in HTML, or not encodable as UTF-8.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")

#: Keys of a pair that only the page shows; report.json omits them.
_IMAGES = frozenset({"thumbnail", "thumbnail_size", "no_image", "painted"})


def write_report(
    run: Run,
    subsets: Sequence[Subset],
    out: Path,
    *,
    title: str = "",
    chosen: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the report of a run and of subsets of it: a single file that loads nothing and runs no script.

    The same facts go into a JSON file next to it, without the images: `report.html` gets `report.json`.
    Images come from the run's pool. Returns the path of the page.

    Raises:
        RunError: no subset has the name `chosen`, a file of the run is damaged, or the page cannot be written.
    """
    check_page(out, overwrite=overwrite, read=run.pool_files)
    facts = gather(Context(run, subsets, title=title, chosen=chosen))
    partly = partial_facts(run)  # comes first in the file if shards are missing
    text = as_json({**({"partial": partly} if partly else {}), "tamis": __version__, **facts})
    with writing(facts_path(out)) as aside, writing(out) as temporary:
        aside.write_text(text, encoding="utf-8")
        temporary.write_text(render(facts), encoding="utf-8")
    return out


def facts_path(page: Path) -> Path:
    """Returns the path of the JSON file of a page: report.json for report.html."""
    if page.suffix.lower() in (".html", ".htm"):
        return page.with_suffix(".json")
    return page.with_name(f"{page.name}.json")


def check_page(page: Path, *, overwrite: bool = False, read: Iterable[str] = ()) -> None:
    """Checks the page's file ending, and that neither it nor its JSON file replaces a file of another program."""
    check_ending(page, "html", "htm")
    kinds = {page: ("page", GENERATOR), facts_path(page): ("facts file of a page", BEGINS)}
    for path, (what, begins) in kinds.items():
        ours = functools.partial(_begins, text=begins)
        check_target(path, what=what, ours=ours, overwrite=overwrite, read=read, of_runs="")


def _begins(path: Path, text: str) -> bool:
    try:
        with path.open("rb") as file:
            return text.encode() in file.read(1024)
    except OSError:
        return False


def gather(context: Context) -> Facts:
    """Returns heading, notes and the facts of each section; sections without any are left out."""
    found = {name: gather(context) for name, (_, _, gather) in SECTIONS.items()}
    sections = {
        "choice": found["choice"],
        "mosaic": found["mosaic"],
        FINDINGS: findings.gather(context),
        **found,
    }
    context.read_pairs()
    return {
        "heading": pool.heading(context),
        "notes": pool.notes(context),
        "sections": {name: facts for name, facts in sections.items() if facts is not None},
    }


def render(facts: Facts, *, now: float | None = None) -> str:
    """Returns the page as HTML. `now`: the date it shows, in seconds since 1970; None for the current time."""
    titles = {FINDINGS: "Findings", **{name: title for name, (title, _, _) in SECTIONS.items()}}
    about = {FINDINGS: "", **{name: about for name, (_, about, _) in SECTIONS.items()}}
    pairs: dict[int, Pair] = {}
    _plain(facts, pairs)  # each pair of the page once
    page = (
        environment()
        .get_template("page.html")
        .render(
            facts, titles=titles, about=about, pairs=[pairs[row] for row in sorted(pairs)],
            now=time.time() if now is None else now, version=__version__, policy=POLICY,
        )
    )  # fmt: skip
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", page)


@functools.cache
def environment() -> jinja2.Environment:
    """Returns the Jinja environment: the templates, with the filters and functions they use."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("tamis.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("as_stored", "share", "width", "number", "fixed", "size", "when", "clip", "in_words", "duration")
    made.filters |= {name: getattr(formats, name) for name in names}
    made.filters |= {"count": "{:,}".format, "link": link, "plural": plural, "colour": formats.colour, "yaml": _yaml}
    made.globals |= {
        "NONE": formats.NONE, "STATUSES": STATUSES, "CARD_MOST": CARD_MOST, "TEXT_MOST": TEXT_MOST, "SHOWN": SHOWN,
        "JOINED": charts.JOINED,
        "GALLERIES": GALLERIES, "FIRST": values.FIRST, "RARE": RARE, "entries": _entries,
        "histogram_shapes": charts.histogram_shapes, "interval_shapes": charts.interval_shapes,
        "bench_tables": bench.tables, "disagreements": subsets.disagreements, "says": subsets.says,
        "removed_phrases": values.removed_phrases, "draw_race": race.draw_race, "draw_curve": race.draw_curve,
    }  # fmt: skip
    return made


def link(address: str) -> str:
    """Returns the address if it is http(s), a #anchor or a data:image; raises ValueError for any other."""
    if not re.match(r"https?://|#|data:image/", address):
        raise ValueError(f"only http(s), #anchors and data:image may be linked, got {address[:40]!r}")
    return address


def _yaml(recipe: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)


def _entries(pair: Pair, names: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Returns a pair's numbers, then its words except free text, formatted; `names` selects some."""
    written = {name: formats.number(value) for name, value in pair.numbers.items()}
    written |= {
        name: formats.NONE if word is None else word for name, word in pair.words.items() if name not in pair.texts
    }
    return [(name, formats.clip(text, 300)) for name, text in written.items() if names is None or name in names]


def as_json(facts: Facts) -> str:
    """Returns facts as JSON on one line; the same facts give the same bytes. NaN and infinities are null.

    Each pair is stored once, under `pairs`; sections refer to it by row number.
    """
    pairs: dict[int, Pair] = {}
    plain = _plain({"kind": "tamis report", "format": FORMAT, **facts}, pairs)
    plain["pairs"] = {
        str(row): _plain({name: each for name, each in vars(pairs[row]).items() if name not in _IMAGES}, {})
        for row in sorted(pairs)
    }
    written = json.dumps(plain, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c") + "\n"
    # UTF-8 cannot encode a lone surrogate.
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", written)


def _plain(value: Any, pairs: dict[int, Pair]) -> Any:
    """Converts a value to plain JSON types, and adds the pairs in it to `pairs`."""
    if isinstance(value, Pair):
        pairs[value.row] = value
        return value.row
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, pairs) for key, inner in value.items()}
    return [_plain(inner, pairs) for inner in value] if isinstance(value, list | tuple) else value
