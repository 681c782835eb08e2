"""The pairs to look at first (by rules of shipped recipes, repeated, unreadable), and the summary of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Mask
from tamis.core.errors import RecipeError, plural
from tamis.core.types import ORIENTATION, STATUSES
from tamis.recipes.steps import Distinct
from tamis.reports.context import Context, Facts
from tamis.reports.formats import in_words, share
from tamis.reports.page_pairs import Group, current_groups, first_of_each

#: Number of pairs shown per trait, and per status.
_SHOWN, _REJECTS = 8, 6

#: The reason by which `distinct` and `semdedup` drop a pair.
_REPEATS = "repeats another"

#: In pools of at most this many pairs the report looks for repeats itself; `benchmarks/copies.py` has the cost.
_POOL = 100_000

#: Limits in recipes: languages and sizes in `basic`, text in images in `text_match`.
LANGUAGE, SHORTER_SIDE, ASPECT_RATIO, WORDS, SHARED = "en", 200, 3, 3, 5

#: A caption is probably not in English if English has less than this probability, another language at least that one,
#: and it has at least this many words. docs/report.md has the precision of each finding.
ENGLISH, OTHER, ENOUGH_WORDS = 0.02, 0.6, 5

#: Languages written without spaces, where one word may be a sentence: the limits of English and of characters there.
UNSPACED, ENGLISH_UNSPACED, ENOUGH_CHARACTERS = ("zh", "ja", "th", "yue", "wuu", "lo", "km", "my", "bo"), 0.05, 8

#: Limits on images, the last in medians of the pool. With CleanVision's, dark and bright images of real pools were
#: drawings. There is none on sharpness: half of what it finds has a shallow depth of field, a gradient or glow.
DARK, DARK_PARTS, BRIGHT, ONE_COLOUR, ENTROPY, OPAQUE, ODD_SIZE = 0.15, 0.7, 0.95, 0.95, 3, 0.1, 5


@dataclass(frozen=True, kw_only=True)
class Trait:
    """What a finding is about: the words of its sentence, and whether a pair `holds` it (None: found in another way).

    The sentence counts the `noun` and ends with what it `says` of one or of several. Cards show the first of `columns`.
    `holds` gets `columns`, `optional` ones (None in a run without them), and if `relative` the median of the first.
    `judged`: how many flagged pairs were right, of how many checked by eye; None for a plain measure. `among`: of which
    kinds of images, if others are worse.
    """

    noun: str
    says: tuple[str, str]
    rule: str
    columns: tuple[str, ...] = ()
    holds: Callable[..., Mask] | None = None
    optional: tuple[str, ...] = ()
    relative: bool = False
    judged: tuple[int, int] | None = None
    among: str = ""


def _unspaced(top: Any, other: Any, characters: Any) -> Mask:
    """Returns which captions are a sentence in a language without spaces."""
    top = top if top.type == pa.string() else top.cast(pa.string())
    unspaced = pc.is_in(top, pa.array(UNSPACED)).to_numpy(zero_copy_only=False)
    found: Mask = unspaced & (other >= OTHER) & (characters >= ENOUGH_CHARACTERS)
    return found


def _another_language(top: Any, other: Any, characters: Any, english: Any, words: Any) -> Mask:
    found: Mask = (other >= OTHER) & (english < ENGLISH) & (words >= ENOUGH_WORDS)
    found |= _unspaced(top, other, characters) & (english < ENGLISH_UNSPACED)
    return found


def _short(words: Any, *unspaced: Any) -> Mask:
    short: Mask = words < WORDS
    return short if any(column is None for column in unspaced) else short & ~_unspaced(*unspaced)


#: Name in `report.json` and in links -> trait.
TRAITS: Mapping[str, Trait] = {
    "language": Trait(
        noun="caption",
        says=("is probably not in English", "are probably not in English"),
        rule=f"another language at least {OTHER:.0%} likely, English below {ENGLISH:.0%}; {ENOUGH_WORDS} "
        f"words or more (without spaces: below {ENGLISH_UNSPACED:.0%}, {ENOUGH_CHARACTERS} characters)",
        columns=("top_language", "other_language", "characters", "english", "words"),
        holds=_another_language,
        judged=(131, 147),
    ),
    "bytes": Trait(
        noun="caption",
        says=("is Python's text of bytes, b'...'", "are Python's text of bytes, b'...'"),
        rule="str() instead of decode() in whatever wrote the pool: write it again",
        holds=lambda texts: (
            pc.match_substring_regex(texts, r"(?s)^\s*b('.*'|\".*\")\s*$").fill_null(False).to_numpy(False)
        ),
        optional=("caption",),
    ),
    "tiny": Trait(
        noun="image",
        says=("is tiny", "are tiny"),
        rule=f"the shorter side has fewer than {SHORTER_SIDE} pixels",
        columns=("shorter_side",),
        holds=lambda side: side < SHORTER_SIDE,
    ),
    "hidden": Trait(
        noun="image",
        says=("is a single colour once transparency is ignored", "are a single colour once transparency is ignored"),
        rule="such as black line art on a transparent background: tamis score --transparency white shows it on white",
        columns=("content_hidden",),
        holds=lambda hidden: hidden == 1,
        judged=(2, 2),
    ),
    "turned": Trait(
        noun="image",
        says=("is stored turned or mirrored", "are stored turned or mirrored"),
        rule="by the field exif of its json: above as stored, below as scored; --orientation none leaves it as stored",
        columns=(ORIENTATION,),
        holds=lambda orientation: pc.is_valid(orientation).to_numpy(zero_copy_only=False),
    ),
    "size": Trait(
        noun="image",
        says=("has an odd size", "have an odd size"),
        rule=f"the shorter side is over {ODD_SIZE} times as long, or as short, as the median; not tiny",
        columns=("shorter_side",),
        holds=lambda side, median: (side > ODD_SIZE * median) | ((side < median / ODD_SIZE) & (side >= SHORTER_SIDE)),
        relative=True,
    ),
    "dark": Trait(
        noun="image",
        says=("is dark, often as a screenshot in a dark theme", "are dark, often screenshots in a dark theme"),
        rule=f"brightness below {DARK:.0%} on average, below {DARK_PARTS:.0%} in the brightest parts; no drawing",
        columns=("brightness", "brightest", "entropy", "transparent"),
        holds=lambda mean, parts, entropy, transparent: (
            (mean < DARK) & (parts < DARK_PARTS) & (entropy > ENTROPY) & (transparent < OPAQUE)
        ),
        judged=(29, 32),
    ),
    "bright": Trait(
        noun="image",
        says=("is nearly white", "are nearly white"),
        rule=f"mean brightness above {BRIGHT:.0%}; often a drawing or product on white",
        columns=("brightness", "one_colour", "transparent"),
        holds=lambda mean, colour, transparent: (mean > BRIGHT) & (colour <= ONE_COLOUR) & (transparent < OPAQUE),
        judged=(139, 142),
    ),
    "plain": Trait(
        noun="image",
        says=("is almost one colour", "are almost one colour"),
        rule=f"one colour fills more than {ONE_COLOUR:.0%} of it",
        columns=("one_colour", "transparent"),
        holds=lambda colour, transparent: (colour > ONE_COLOUR) & (transparent < OPAQUE),
        judged=(120, 120),
    ),
    "elongated": Trait(
        noun="image",
        says=("is long and thin", "are long and thin"),
        rule=f"the longer side is more than {ASPECT_RATIO} times the shorter one",
        columns=("aspect_ratio",),
        holds=lambda ratio: ratio > ASPECT_RATIO,
    ),
    "short": Trait(
        noun="caption",
        says=("is short", "are short"),
        rule=f"fewer than {WORDS} words",
        columns=("words",),
        optional=("top_language", "other_language", "characters"),
        holds=_short,
    ),
    "spelt": Trait(
        noun="image",
        says=("shows text that repeats part of its caption", "show text that repeats part of their caption"),
        rule=f"text in the image shares {SHARED} or more consecutive characters with the caption",
        columns=("text_match",),
        holds=lambda shared: shared >= SHARED,
        judged=(192, 200),
    ),
    "copies": Trait(
        noun="image",
        says=("is a near-copy of another", "are near-copies of another"),
        rule="nearly equal; the copy to keep is not counted",
        judged=(139, 139),
        among=" among photographs, products and logos",
    ),
}


def found(context: Context) -> Facts | None:
    """Returns the findings, the most frequent first, and groups of `repeated` images; None if there are none."""
    scores = [name for name in [*context.numbers, *context.words] if name not in context.run.number_fields]
    columns = {context.run.columns[name][0]: name for name in reversed(scores)} | {"caption": "caption"}
    asked = {ident: trait for ident, trait in TRAITS.items() if trait.holds and set(trait.columns) <= set(columns)}
    medians = {
        ident: [context.histograms[columns[trait.columns[0]]].quantiles[0.5]]
        for ident, trait in asked.items() if trait.relative
    }  # fmt: skip

    def masks(values: Mapping[str, Any]) -> dict[str, Mask]:
        return {
            ident: trait.holds(
                *(values.get(columns.get(name, "")) for name in trait.columns + trait.optional), *medians.get(ident, ())
            )
            for ident, trait in asked.items()
            if trait.holds
        }

    needed = {
        columns[name]: None for each in asked.values() for name in each.columns + each.optional if name in columns
    }
    found = first_of_each(context.table, list(needed), masks, context.order, _SHOWN) if asked else {}
    repeats, repeated = _find_repeats(context)
    members = [row for groups in repeated[:1] for group in groups["groups"] for row in group["rows"][:2]]
    found["copies"] = repeats, members[:_SHOWN]
    repeated = [
        {**each, "groups": [{"size": group["size"], "pairs": [context.pair(row) for row in group["rows"]]}
                            for group in each["groups"]]}
        for each in repeated
    ]  # fmt: skip
    kinds = [
        _finding(ident, rows, context.rows, columns, [context.pair(row) for row in first])
        for ident, (rows, first) in sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
        if rows
    ]
    return {"rows": context.rows, "kinds": kinds, "repeated": repeated} if kinds or repeated else None


def _finding(ident: str, rows: int, of: int, columns: Mapping[str, str], pairs: list[Any]) -> Facts:
    trait = TRAITS[ident]
    return {
        "ident": ident,
        "sentence": f"{plural(rows, trait.noun)} ({share(rows, of)}) {trait.says[rows != 1]}.",
        "rule": trait.rule,
        "rows": rows,
        "share": rows / of,
        "column": columns[trait.columns[0]] if trait.columns else None,
        "pairs": pairs,
        "precision": trait.judged
        and "Of {1} that we checked by eye{2}, {0} were right.".format(*trait.judged, trait.among),
    }


def _find_repeats(context: Context) -> tuple[int, list[Facts]]:
    """Returns how many pairs repeat another, and the largest `groups` of rows per `subset` (None: of the pool).

    The count is of a recipe that saw all pairs, else of `distinct`, else of a step that saw only some.
    """
    counts: dict[int, int] = {}  # pairs that a step saw -> pairs that it dropped
    for line in (line for subset in context.subsets for line in subset.funnel):
        if (line.get("facts") or {}).get("largest_groups"):
            before, repeats = int(line["before"]), int((line.get("dropped") or {}).get(_REPEATS, 0))
            counts[before] = max(repeats, counts.get(before, 0))
    of_pool = _repeats_of_pool(context) if context.rows not in counts else None
    if not counts and of_pool is None:
        return 0, []
    repeats = of_pool[0] if of_pool else counts.get(context.rows, max(counts.values(), default=0))
    groups: list[Facts] = [{"subset": context.names[position], "groups": of} for position, of in context.groups.items()]
    if not groups and of_pool and of_pool[1]:
        groups = [{"subset": None, "groups": of_pool[1]}]
    return repeats, groups


def _repeats_of_pool(context: Context) -> tuple[int, list[Group]] | None:
    """Returns how many pairs `distinct` would drop, and the largest groups; None without hashes or in a large pool."""
    hashes = {label for label, group in context.run.scores.items() if group.facts["name"] == "image_hash"}
    step = Distinct(best="image_bytes", missing="drop")
    complete = hashes and not hashes & set(context.incomplete) and step.reads <= set(context.run.columns)
    if not complete or context.rows > _POOL:
        return None
    try:
        found = step.select(context.run.table())
    except RecipeError:  # hashes of another kind
        return None
    return int(found.counts.get(_REPEATS, 0)), current_groups(found.facts.get("largest_groups", ()), context.table)


def rejects(context: Context) -> Facts:
    """Picks some pairs of each status except `ok`, the most frequent status first."""
    bad = sorted(set(context.run.statuses) - {"ok"}, key=lambda status: (-context.run.statuses[status], status))
    found = [
        {
            "status": status,
            "rows": context.run.statuses[status],
            "pairs": [context.pair(row) for row in context.of_status[status][:_REJECTS]],
        }
        for status in bad
    ]
    return {"rows": context.rows, "rejects": found}


#: Maximum number of disagreements, and of pairs of similar scores, in the summary.
_NAMED = 3

#: Rank correlation from which two scores are called alike.
_ALIKE = 0.9


def gather(context: Context, sections: Mapping[str, Facts | None]) -> Facts:
    """Sums up the other `sections`. Each has `rows`, a `sentence` or `what` they are, and an `anchor` or ""."""
    pool = []
    for each in (sections["rejects"] or {"rejects": []})["rejects"]:
        status, rows = each["status"], each["rows"]
        pool.append({
            "anchor": f"reject-{status}", "about": status.partition("_")[0],
            "sentence": f"{rows:,} {STATUSES[status].counted(rows)} ({share(rows, context.rows)}).",
            "rule": STATUSES[status].about, "precision": None, "column": None, **each,
        })  # fmt: skip
    for kind in (sections["found"] or {"kinds": []})["kinds"]:
        pool.append({**kind, "anchor": f"found-{kind['ident']}", "about": TRAITS[kind["ident"]].noun})
    return {
        "rows": context.rows,
        "pool": _largest_first(pool),
        "scored": bool(context.numbers or context.words),
        "subsets": [{"subset": subset, "drops": _drops(context, subset["place"])} for subset in context.names],
        "disagreements": _disagreements(sections["overlap"]),
        "alike": _alike(context, sections["correlation"]),
    }


def _number(rows: int, what: str, anchor: str) -> Facts:
    return {"rows": rows, "what": what, "anchor": anchor}


def _largest_first(numbers: list[Facts]) -> list[Facts]:
    return sorted(numbers, key=lambda each: -int(each["rows"]))


def _drops(context: Context, position: int) -> list[Facts]:
    verdict, shown = context.verdicts[position], context.shown_reasons(position)
    return _largest_first([
        _number(rows, in_words(verdict.why[code - 1].text), f"drop-{position}-{code}" if code in shown else "")
        for code, rows in enumerate(context.dropped[position], start=1)
        if rows
    ])  # fmt: skip


def _disagreements(overlap: Facts | None) -> list[Facts]:
    """Returns the largest disagreements; subsets of which one contains the other come last."""
    if overlap is None:
        return []
    shared = overlap["shared"]
    linked = {(each["keeps"]["place"], each["drops"]["place"]) for each in overlap["only"]}

    def only(keeps: Facts, drops: Facts) -> Facts:
        here, there = keeps["place"], drops["place"]
        anchor = f"only-{here}-{there}" if (here, there) in linked else ""
        return _number(int(shared[here, here]) - int(shared[here, there]), f"only {keeps['label']} keeps", anchor)

    found = []
    for one, two in combinations(overlap["subsets"], 2):
        sides = {"only_one": only(one, two), "only_two": only(two, one)}
        rows = [int(side["rows"]) for side in sides.values()]
        if any(rows):
            both = int(shared[one["place"], two["place"]])
            found.append(((-min(rows), -sum(rows)), {"one": one, "two": two, **sides, "both": both}))
    return [each for _, each in sorted(found, key=lambda item: item[0])[:_NAMED]]


def _alike(context: Context, correlation: Facts | None) -> list[Facts]:
    if correlation is None:
        return []
    names, matrix = correlation["names"], correlation["matrix"]
    groups = {name: context.run.columns[name][1] for name in names}
    signals = {name: group.label if group else "" for name, group in groups.items()}
    found = [
        {"one": one, "two": two, "correlation": float(matrix[row, column])}
        for row, one in enumerate(names)
        for column, two in enumerate(names[:row])
        if signals[one] != signals[two] and abs(matrix[row, column]) >= _ALIKE
    ]
    return sorted(found, key=lambda each: -abs(float(each["correlation"])))[:_NAMED]
