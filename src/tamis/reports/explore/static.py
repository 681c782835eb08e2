"""The explorer as one file that needs no server: drawn pairs, their values, and what the given subsets do with them.

The page has the scripts of `web/`, with `static.js` in place of `ask.js`. Its policy allows these scripts by their hash
and images in data URLs; nothing else is loaded or sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RunError, TamisError, plural
from tamis.core.files.storage import writing
from tamis.core.ids import as_json_value, scramble
from tamis.core.version import __version__
from tamis.recipes.recipe import load
from tamis.recipes.steps.outcome import with_parts
from tamis.reports.distributions import whole_column
from tamis.reports.explore.cached_run import CachedRun, bin_column, distance_from_cut
from tamis.reports.explore.pages import pack
from tamis.reports.explore.queries import COMPARED, Explorer, bar_facts
from tamis.reports.page import GENERATOR, check_page
from tamis.reports.page_pairs import KIND, Pair, add_images, first_by, random_order, read_pairs
from tamis.runs.expression import parse
from tamis.runs.subset import Subset

log = logging.getLogger(__name__)

#: Seed of the draw. Not 0: steps use 0, so the pairs that they keep would be drawn first.
_SEED = 2023

#: Longer side of the images of at most so many pairs, in pixels; of more it is the last.
_SIDES = {1_500: 320, 3_000: 256, 5_000: 208}

#: Share of the run that counts as near a cut; pairs in one block of images; characters of a caption or word.
_NEAR, _BLOCK, _TEXT = 0.05, 50, 2_000

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|let|class|function) (\w+))", re.MULTILINE)


def write_static(
    explorer: Explorer, subsets: Sequence[Subset], out: Path, *, pairs: int = 5000, overwrite: bool = False
) -> Path:
    """Writes the page of an explorer and its subsets, and returns its path.

    The run's columns are read one at a time; captions, images and embeddings of the drawn pairs only.

    Raises:
        RunError: the run has no pair to show, or the page cannot be written.
        ValueError: fewer than 100 pairs are asked for, which might be fewer than the strata.
    """
    if pairs < 100:
        raise ValueError(f"expected 100 pairs or more, got {pairs}")
    run = explorer.run
    check_page(out, overwrite=overwrite, read=run.pool_files)
    if run.hidden.all():
        raise RunError(f"{run.path} has no pair to show")
    rows, strata, sizes = draw(run, subsets, pairs)
    log.info("reading the values of %s", plural(rows.size, "pair"))
    found = read_pairs(run, rows, explorer.numbers, explorer.words)
    stored = gather(explorer, subsets, found, rows, strata, sizes)
    with writing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_html(stored, _images(run, found)))
    return out


def draw(run: CachedRun, subsets: Sequence[Subset], n: int) -> tuple[Rows, Rows, Rows]:
    """Draws at most n pairs by uid: half of them at random, half from the strata that matter. Hidden pairs never.

    The pairs of a stratum are kept by the same subsets, and are near a cut or not. Those near a cut, and those that the
    subsets disagree on, matter; without any, all do.

    Returns:
        The rows, ascending, and the stratum of each, (pairs,); how many pairs the run has of each stratum.
    """
    order, codes = random_order(run.table(), _SEED), np.zeros(len(run), np.uint8)
    for number, subset in enumerate(subsets[:COMPARED], start=1):
        codes |= subset.keep.astype(np.uint8) << number
        distance = distance_from_cut(run, subset)
        sample = distance[first_by(order, 20_000, ~run.hidden)]
        limit = np.nanquantile(sample, _NEAR, method="lower") if distance.any() else -1
        codes |= np.isfinite(distance) & (distance <= limit)
    kinds = np.arange(2 ** (min(len(subsets), COMPARED) + 1))
    sizes = np.bincount(codes[~run.hidden], minlength=kinds.size)
    matter = (sizes > 0) & ((kinds % 2 == 1) | ((kinds > 1) & (kinds < kinds.size - 2)))
    take = allot(sizes, matter if matter.any() else sizes > 0, n)
    drawn = [first_by(order, take[kind], (codes == kind) & ~run.hidden) for kind in np.flatnonzero(take)]
    rows = np.sort(np.concatenate(drawn))
    return rows, codes[rows].astype(np.int64), sizes


def allot(sizes: Rows, matter: Mask, n: int) -> Rows:
    """Returns how many pairs to draw from each stratum: at least one of each, at most n in all (n above the strata)."""
    if sizes.sum() <= n:
        return sizes
    n -= int(np.count_nonzero(sizes))  # each is rounded up
    take = np.minimum(sizes, n / 2 * (sizes / sizes.sum() + matter / matter.sum()))
    rest = sizes - take
    return np.asarray(np.ceil(take + rest * (n - take.sum()) / rest.sum()), np.int64)


def gather(
    explorer: Explorer, subsets: Sequence[Subset], found: Mapping[int, Pair], rows: Rows, strata: Rows, sizes: Rows
) -> dict[str, Any]:
    """Returns what the page stores for `static.js`. Arrays are base64 of little-endian numbers, one per drawn pair."""
    run, table, pairs = explorer.run, explorer.run.table(), [found[row] for row in rows.tolist()]
    explorer.near.only = rows
    facts = explorer.facts() | {"searchable": False}
    if rows.size < len(run):
        what = "half of them at random, half near cuts and where subsets disagree"
        facts["drawn"] += [f"{rows.size:,} pairs are in this page, {what}; counts of a changed recipe are estimates"]
    columns: dict[str, Any] = {}
    for name in explorer.numbers:
        bins, every = bin_column(table, name), np.sort(whole_column(table, name))
        values = np.array([pair.numbers[name] for pair in pairs], np.float32)
        below, upto = (np.searchsorted(every, values, side).astype(np.uint32) for side in ("left", "right"))
        columns[name] = bar_facts(bins) | {
            "values": _text(values), "bars": _text(bins.bars[rows]), "below": _text(below), "upto": _text(upto)
        }  # fmt: skip
    words = {}
    for name in explorer.words:
        texts = [(word := pair.words[name]) and word[:_TEXT] for pair in pairs]
        coded = pa.array(texts, pa.string()).dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        words[name] = {"known": coded.dictionary.to_pylist(), "codes": _text(codes)}
    recipes = [entry["start"] for entry in facts["recipes"] if "select" in entry["start"]]
    maps: dict[str, Any] = {}
    for name in [entry["name"] for entry in facts["maps"]]:
        with suppress(TamisError):  # no drawn pair has a place on it, or an extra is not installed
            maps[name] = {"packed": base64.b64encode(pack(*explorer.map_facts(name))).decode(), "names": []}
            maps[name]["names"] = explorer.map_names(name)
    found_in = explorer.found()
    has = {each["ident"]: np.isin(rows, explorer.findings.rows(each["ident"])) for each in found_in["findings"]}
    weights = (sizes / np.maximum(np.bincount(strata, minlength=sizes.size), 1))[strata]
    return {
        "facts": facts | {"maps": [entry for entry in facts["maps"] if entry["name"] in maps]}, "maps": maps,
        "size": _BLOCK, "kind": KIND, "rows": _text(rows.astype(np.uint32)), "strata": _text(strata.astype(np.uint8)),
        # The first pairs in this order are like the pool, whatever was drawn more often: Efraimidis and Spirakis 2006.
        "sizes": sizes.tolist(), "order": _text(-np.log1p(-(run.order[rows] + 0.5) / len(run)) / weights),
        "columns": columns, "words": words, "scores": _scores(run, recipes, rows, columns),
        "draw": _text((scramble(*table.uids(rows)) >> np.uint64(11)).astype(float)),
        "subsets": [_subset(explorer, number, subset, rows) for number, subset in enumerate(subsets)],
        "pairs": [_pair(explorer, pair) for pair in pairs], "found": found_in,
        "having": {ident: np.flatnonzero(those).tolist() for ident, those in has.items()},
    }  # fmt: skip


def _text(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _pair(explorer: Explorer, pair: Pair) -> dict[str, Any]:
    return {
        "caption": pair.caption and pair.caption[:_TEXT], "caption_length": len(pair.caption or ""), "key": pair.key,
        "shard": pair.shard, "uid": pair.uid, "status": pair.status, "size": [pair.width, pair.height],
        "why": [*filter(None, [pair.reason]), *pair.why_null], "tags": explorer.tags.of(pair.row),
    }  # fmt: skip


def _subset(explorer: Explorer, number: int, subset: Subset, rows: Rows) -> dict[str, Any]:
    """Returns what a subset says of the whole run, and what it does with each drawn pair."""
    codes, cut = subset.verdict.dropped_by, subset.verdict.ranking
    times = None if subset.times is None else _text(subset.times[rows].astype(np.uint32))
    picked = [0 if codes is None else codes[row : row + 1][0] for row in rows.tolist()]
    copies = {row: subset.verdict.original_of(row) for row in rows.tolist()}
    return explorer.chosen({"saved": number}, []) | {
        "keep": _text(subset.keep[rows].astype(np.uint8)), "often": times, "codes": _text(np.array(picked, np.uint16)),
        "ranking": cut and {"score": cut.score, "low": cut.low, "high": cut.high, "code": cut.code},
        "columns": dict(subset.verdict.names), "repeats": {row: one for row, one in copies.items() if one in copies},
    }  # fmt: skip


def _scores(run: CachedRun, recipes: Sequence[Any], rows: Rows, columns: Mapping[str, Any]) -> dict[str, str]:
    """Returns the scores of steps that are no plain column of the page, by JSON of the score and the recipe's names."""
    found: dict[str, str] = {}
    for recipe in recipes:
        with suppress(TamisError):  # it names a recipe that is gone, or a column that is not of numbers
            loaded = load(recipe)
            steps = with_parts(loaded.steps)
            for text in sorted({str(step.score) for step in steps if hasattr(step, "score")}):
                key = json.dumps([text, loaded.columns], ensure_ascii=False, separators=(",", ":"))
                if loaded.columns.get(text, text) not in columns and key not in found:
                    found[key] = _text(parse(text).values(run.table(loaded.columns))[rows])
    return found


def _images(run: CachedRun, found: Mapping[int, Pair]) -> Iterator[list[str]]:
    """Yields the images of each block of pairs as base64, "" for none; they have no metadata."""
    rows = sorted(found)
    side = next((side for most, side in _SIDES.items() if len(rows) <= most), [*_SIDES.values()][-1])
    for start in range(0, len(rows), 10 * _BLOCK):
        some = {row: found[row] for row in rows[start : start + 10 * _BLOCK]}
        add_images(run, some, side=side)
        log.info("read the images of %s", plural(start + len(some), "pair"))
        images = [pair.thumbnail.partition(",")[2] for pair in some.values()]
        yield from (images[place : place + _BLOCK] for place in range(0, len(images), _BLOCK))
        for pair in some.values():
            pair.thumbnail = ""


#: Loads nothing; runs the page's own script and style, whatever a caption contains.
_POLICY = (
    "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def _html(stored: Mapping[str, Any], blocks: Iterator[list[str]]) -> Iterator[str]:
    """Yields the parts of the page."""
    web = {entry.name: entry.read_text("utf-8") for entry in (files("tamis.reports.explore") / "web").iterdir()}
    colours = (files("tamis.reports") / "templates" / "colours.css").read_text("utf-8")
    script = bundle({**web, "ask.js": web["static.js"]}, "main.js")
    style = colours + web["style.css"] + web["static.css"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    head = (
        f'<meta charset="utf-8">\n<meta {GENERATOR}{__version__}">\n'
        f'<meta http-equiv="content-security-policy" content="{_POLICY.format(*hashes)}">\n<style>{style}</style>'
    )
    page = re.sub(r"<link .*?>\n|<script .*?</script>\n", "", web["index.html"])
    yield page.replace('<meta charset="utf-8">', head).partition("</body>")[0]
    written = json.dumps(as_json_value(stored, ".inf"), allow_nan=False).replace("<", "\\u003c")
    yield f'<script type="application/json" id="stored">{written}</script>\n'
    for number, block in enumerate(blocks):
        images = "\n".join(block)
        yield f'<script type="text/plain" id="images-{number}">{images}</script>\n'
    yield f'<script type="module">{script}</script>\n</body>\n</html>\n'


def bundle(modules: Mapping[str, str], start: str) -> str:
    """Returns one script: each module that `start` needs as a function, after those that it imports."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        for _, inner in _IMPORT.findall(modules[name]):
            if inner not in parts:
                add(inner)
        names = ", ".join(_EXPORT.findall(modules[name]))
        text = _IMPORT.sub(
            lambda found: f'const {{{found[1].replace(" as ", ": ")}}} = modules["{found[2]}"];', modules[name]
        )
        parts[name] = f'modules["{name}"] = (() => {{\n{_EXPORT.sub("", text)}\nreturn {{ {names} }};\n}})();'

    add(start)
    return "\n".join(["const modules = {};", *parts.values()])
