"""What may be wrong with pairs of a run, the most harmful first, and which recipe drops them. No image is read."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RecipeError, plural
from tamis.core.types import ORIENTATION, STATUSES
from tamis.pools.open import splits_of
from tamis.recipes.names import shipped_names
from tamis.recipes.recipe import Recipe, load
from tamis.recipes.steps import Distinct
from tamis.recipes.steps.outcome import run_steps
from tamis.reports.context import Context
from tamis.reports.formats import share
from tamis.reports.page_pairs import Group, current_groups, first_of_each
from tamis.runs.reasons import blocks

#: Number of pairs shown per finding.
SHOWN = 8

#: The reason by which `distinct` and `semdedup` drop a pair, and how the one of `not_in` begins.
_REPEATS, _REFERENCE = "repeats another", "copy of "

#: In pools of at most this many pairs the report looks for repeats itself; `benchmarks/copies.py` has the cost.
_POOL = 100_000

#: Ranks of harm: images on lists of hashes; no image; no caption; copies; other splits; damaged contents; style.
LISTED, IMAGES, CAPTIONS, COPIES, SPLITS, DAMAGED, STYLE = range(7)

#: Limits in recipes: languages and sizes in `basic`, text in images in `text_match`.
LANGUAGE, SHORTER_SIDE, ASPECT_RATIO, WORDS, SHARED = "en", 200, 3, 3, 5

#: A caption is probably not in English if English has less than this probability, another language at least that one,
#: and it has at least this many words. docs/report.md has the precision of each finding.
ENGLISH, OTHER, ENOUGH_WORDS = 0.02, 0.6, 5

#: Finding -> recipes that may suit a pool where it is of a hundredth of the pairs, or of any copy.
ARMS = {"spelt": ("tmars", "text_match"), "language": ("basic-multilingual-safe",), "copies": ("distinct",)}

#: Splits that a model is judged by.
EVALUATION = ("validation", "test")

#: Languages written without spaces, where one word may be a sentence: the limits of English and of characters there.
UNSPACED, ENGLISH_UNSPACED, ENOUGH_CHARACTERS = ("zh", "ja", "th", "yue", "wuu", "lo", "km", "my", "bo"), 0.05, 8

#: Limits on images. With CleanVision's, dark and bright images of real pools were
#: drawings. There is none on sharpness: half of what it finds has a shallow depth of field, a gradient or glow.
DARK, DARK_PARTS, BRIGHT, ONE_COLOUR, ENTROPY, OPAQUE = 0.15, 0.7, 0.95, 0.95, 3, 0.1


@dataclass(frozen=True, kw_only=True)
class Trait:
    """What a finding is about: the words of its sentence, and whether a pair `holds` it (None: found in another way).

    The sentence counts the `noun` and ends with what it `says` of one or of several. `holds` gets `columns` and
    `optional` ones (None in a run without them); recipes that read one of these may drop such pairs. `judged`: how many
    flagged pairs were right, of how many checked by eye; None for a plain measure. `among`: of which kinds of images,
    if others are worse. `harm`: a rank, 0 the worst.
    """

    noun: str
    says: tuple[str, str]
    rule: str
    columns: tuple[str, ...] = ()
    holds: Callable[..., Mask] | None = None
    optional: tuple[str, ...] = ()
    judged: tuple[int, int] | None = None
    among: str = ""
    harm: int = STYLE

    def sentence(self, rows: int, of: int) -> str:
        """Returns a sentence with the number of rows, and their share of `of`."""
        if self.columns == ("status",):
            return f"The pool has {rows:,} {self.says[rows != 1]} ({share(rows, of)})."
        return f"{plural(rows, self.noun)} ({share(rows, of)}) {self.says[rows != 1]}."


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


def _of_status(status: str) -> Trait:
    kind, facts = status.partition("_")[0], STATUSES[status]
    return Trait(
        noun=kind,
        says=(facts.one, facts.several),
        rule=facts.about,
        columns=("status",),
        holds=lambda words: pc.equal(words.cast(pa.string()), status).to_numpy(zero_copy_only=False),
        harm=STYLE if facts.usable else CAPTIONS if kind == "caption" else IMAGES,
    )


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
        harm=DAMAGED,
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
        harm=DAMAGED,
    ),
    "turned": Trait(
        noun="image",
        says=("is stored turned or mirrored", "are stored turned or mirrored"),
        rule="by the field exif of its json: above as stored, below as scored; --orientation none leaves it as stored",
        columns=(ORIENTATION,),
        holds=lambda orientation: pc.is_valid(orientation).to_numpy(zero_copy_only=False),
        harm=DAMAGED,
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
        rule="equal or nearly equal; the copy to keep is not counted",
        columns=("image_hash",),
        judged=(139, 139),
        among=" among photographs, products and logos",
        harm=COPIES,
    ),
    "exact": Trait(
        noun="image",
        says=("is the same file as another", "are the same file as another"),
        rule="equal bytes; the one to keep is not counted",
        columns=("image_hash",),
        harm=COPIES,
    ),
    "listed": Trait(
        noun="image",
        says=("is on a list of hash_match", "are on a list of hash_match"),
        rule="such as opt-outs or unlawful content; the step hash_match drops them",
        columns=("on_list",),
        holds=lambda listed: listed == 1,
        harm=LISTED,
    ),
    "references": Trait(
        noun="image",
        says=("is a copy of a reference", "are copies of references"),
        rule="found by the step not_in of a recipe, as images of a test set are",
        harm=SPLITS,
    ),
    "splits": Trait(
        noun="pair",
        says=("is of a test or validation split", "are of a test or validation split"),
        rule="by the names of the pool's files; to read one split: --split train",
        harm=SPLITS,
    ),
    **{f"status-{status}": _of_status(status) for status in STATUSES if status != "ok"},
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Pairs of a run that have a trait.

    Attributes:
        ident: the name of the trait in `TRAITS`.
        sentence: how many pairs have it, and their share.
        drops: a sentence that says which recipe drops them.
        rows: how many pairs have it.
        first: some of them in random order, at most `SHOWN`; copies each after the pair that they repeat.
        column: the run's column to show with them; None if there is none.
    """

    ident: str
    sentence: str
    drops: str
    rows: int
    first: Sequence[int]
    column: str | None


#: Decides about a block of rows: gets their slice and columns, returns (n,) bool.
_Judge = Callable[[slice, Mapping[str, Any]], Mask]


class Findings:
    """What may be wrong with the pairs of a run, found by the scores that all its shards have. No image is read.

    Args:
        context: of the run, and of any subsets, whose recipes are compared too.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._run = context, context.run
        scores = [name for name in [*context.numbers, *context.words] if name not in self._run.number_fields]
        columns = {self._run.columns[name][0]: name for name in reversed(scores)}
        self._columns = columns | {"caption": "caption", "status": "status"}

    @cached_property
    def every(self) -> list[Finding]:
        """All findings that pairs of the run have, the most harmful first, then those of the most pairs."""
        judges, recipes = self._judges, self._recipes
        reads = {ident: {*TRAITS[ident].columns, *TRAITS[ident].optional} for ident in judges}
        linked = {ident: [name for name, (columns, _) in recipes.items() if columns & reads[ident]] for ident in judges}

        def masks(span: slice, values: Mapping[str, Any]) -> dict[tuple[str, str], Mask]:
            held = {ident: judge(span, values) for ident, (_, judge) in judges.items()}
            dropped = {(ident, name): held[ident] & ~recipes[name][1][span] for ident in held for name in linked[ident]}
            return dropped | {(ident, ""): mask for ident, mask in held.items()}

        columns = dict.fromkeys(name for names, _ in judges.values() for name in names)
        found = first_of_each(self._context.table, list(columns), masks, self._context.order, SHOWN)
        members = [row for group in self.groups for row in group["rows"][:2]]
        shown = {
            ident: self._context.shown([self._columns.get(name, name) for name in TRAITS[ident].columns[:1]])
            for ident in judges
        }
        findings = [
            Finding(
                ident=ident,
                sentence=TRAITS[ident].sentence(rows, len(self._run)),
                drops=self._in_words(ident, rows, {name: found[ident, name][0] for name in linked[ident]}),
                rows=rows,
                first=members[:SHOWN] if ident == "copies" and members else first,
                column=next(iter(shown[ident]), None),
            )
            for (ident, recipe), (rows, first) in found.items()
            if rows and not recipe
        ]
        return sorted(findings, key=lambda each: (TRAITS[each.ident].harm, -each.rows, each.ident))

    def race(self, source: str) -> str:
        """Returns the command that races recipes on a run or pool: the usual one, and those for what was found.

        Text in images counts as found unless `text_match` has looked for it.
        """
        found = {each.ident for each in self.every if each.ident == "copies" or 100 * each.rows >= len(self._run)}
        found |= {"spelt"} if "text_match" not in self._columns else set()
        arms = ["clip-50", *(recipe for ident, recipes in ARMS.items() if ident in found for recipe in recipes)]
        where = shlex.join([source, "--arms", ",".join(arms)])
        return f"tamis choose {where} --shares .1,.2,.3,.5 --budget 4h"

    @cached_property
    def groups(self) -> Sequence[Group]:
        """The largest groups of copies: of the first subset whose recipe looked for them, else of `distinct`."""
        return next(iter(self._context.groups.values()), self._repeats[1])

    def rows(self, ident: str) -> Rows:
        """Returns all rows of a finding, ascending."""
        columns, judge = self._judges[ident]
        found = self._context.table.map(columns, lambda span, values: np.flatnonzero(judge(span, values)) + span.start)
        return np.concatenate([np.empty(0, np.int64), *found])

    @cached_property
    def _judges(self) -> Mapping[str, tuple[Sequence[str], _Judge]]:
        """Per trait that the run tells of: the columns to read, and whether the rows of a block have it."""
        found: dict[str, tuple[Sequence[str], _Judge]] = {}
        statuses = {f"status-{status}" for status in self._run.statuses}
        for ident, trait in TRAITS.items():
            known = set(trait.columns) <= set(self._columns) and (trait.columns != ("status",) or ident in statuses)
            if trait.holds and known:
                names = [self._columns.get(name, "") for name in trait.columns + trait.optional]
                found[ident] = [name for name in names if name], functools.partial(_holds, trait.holds, names)
        whole = {"copies": self._repeats[0], "exact": self._exact(), "splits": self._of_other_splits()}
        whole["references"] = self._dropped_for(_REFERENCE)
        return found | {
            ident: ([], functools.partial(_of_block, mask)) for ident, mask in whole.items() if mask is not None
        }

    @cached_property
    def _repeats(self) -> tuple[Mask | None, Sequence[Group]]:
        """The rows that repeat another, and groups of them: by `distinct`, in a large pool by the subsets' recipes."""
        hashes = {label for label, group in self._run.scores.items() if group.facts["name"] == "image_hash"}
        step = Distinct(best="image_bytes", missing="drop")
        complete = hashes and not hashes & set(self._context.incomplete) and step.reads <= set(self._run.columns)
        if not complete or len(self._run) > _POOL:
            return self._dropped_for(_REPEATS), ()
        try:
            found = step.select(self._run.table())
        except RecipeError:  # hashes of another kind
            return None, ()
        codes = [code for code, reason in enumerate(found.reasons, start=1) if reason.text == _REPEATS]
        groups = current_groups(found.facts.get("largest_groups", ()), self._context.table)
        return np.isin(found.dropped_by, codes), groups

    def _dropped_for(self, begins: str) -> Mask | None:
        """Returns the rows that subsets drop for a reason that begins so; None if no recipe has such a reason."""
        found = [
            np.isin(verdict.dropped_by[:], codes)
            for verdict in self._context.verdicts
            if (codes := [code for code, why in enumerate(verdict.why, start=1) if why.text.startswith(begins)])
            and verdict.dropped_by is not None
        ]
        return np.logical_or.reduce(found) if found else None

    def _exact(self) -> Mask:
        """Returns the rows whose image has the same bytes as one that comes before it in the random order."""
        index = (self._run.index(shard, ["image_xxh3"]).column(0) for shard in self._run.shards)
        of_row = np.concatenate([np.empty(0, np.uint64), *(hashes.fill_null(0).to_numpy() for hashes in index)])
        ordered = np.sort(of_row)
        several = np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] > 0)])
        rows = np.concatenate([np.empty(0, np.int64), *(
            np.flatnonzero(np.isin(of_row[span], several)) + span.start for span in blocks(of_row.size)
        )])  # fmt: skip
        rows = rows[np.lexsort((self._context.order[rows], of_row[rows]))]
        found = np.zeros(of_row.size, bool)
        found[rows[1:][of_row[rows[1:]] == of_row[rows[:-1]]]] = True
        return found

    def _of_other_splits(self) -> Mask | None:
        """Returns the rows in files of a test or validation split; None if the names of the files do not mix splits."""
        pool = self._run.readable_pool
        if pool is None or not pool.mixed:
            return None
        if pool.kind == "folder":
            keys = [self._run.index(shard, ["key"]).column(0).to_pylist() for shard in self._run.shards]
            return np.isin(splits_of(list(chain.from_iterable(keys)), by_folder=True), EVALUATION)
        of_shard = np.isin(splits_of([self._run.urls[shard] for shard in self._run.shards]), EVALUATION)
        return np.repeat(of_shard, self._run.sizes)

    @cached_property
    def _recipes(self) -> Mapping[str, tuple[set[str], Mask]]:
        """The columns that recipes read and the rows they keep, by name: the subsets', then shipped ones.

        Shipped ones count by the steps that judge each row alone, and only if these read what no other does.
        """
        found, known = {}, {name for column, name in self._columns.items() if name == column}
        for name, subset, keep in zip(self._context.names, self._context.subsets, self._context.keeps, strict=True):
            own = {self._run.columns[column][0] for column in subset.reads if column in self._run.columns}
            found[name["label"]] = own, keep
        covered: set[str] = set()
        for recipe in sorted(_shipped(), key=lambda each: not known >= set(each.reads)):
            steps = [step for step in recipe.steps if getattr(step, "pointwise", False) and step.reads <= known]
            reads = {name for step in steps for name in step.reads}
            if reads - covered and recipe.name not in found:
                found[recipe.name] = reads, run_steps(self._run.table(), steps).keep
            covered |= reads
        return found

    def _in_words(self, ident: str, rows: int, dropped: Mapping[str, int]) -> str:
        """Returns which recipe drops the rows of a finding; `dropped`: how many of them, by recipe."""
        if TRAITS[ident].harm == COPIES:
            verdicts = zip(self._context.names, self._context.verdicts, strict=True)
            found = [name["label"] for name, verdict in verdicts if any(why.text == _REPEATS for why in verdict.why)]
            found += [each.name for each in _shipped() if any(isinstance(step, Distinct) for step in each.steps)]
            return f"The recipe {found[0]} keeps one of each."
        best = max(dropped, key=dropped.__getitem__, default="")
        if not dropped.get(best):
            return "No shipped recipe drops them for that."
        some = "it" if rows == 1 else "them" if dropped[best] == rows else f"{dropped[best]:,} of them"
        return f"The recipe {best} drops {some}."


@functools.cache
def _shipped() -> Sequence[Recipe]:
    return [load(name) for name in shipped_names()]


def _holds(trait: Callable[..., Mask], names: Sequence[str], span: slice, values: Mapping[str, Any]) -> Mask:
    return trait(*(values.get(name) for name in names))


def _of_block(mask: Mask, span: slice, values: Mapping[str, Any]) -> Mask:
    return mask[span]
