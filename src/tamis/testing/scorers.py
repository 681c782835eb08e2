"""What every scorer promises."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tamis.data import Column, Device, Node, Sample, Samples, Scorer
from tamis.graph import Executor, Identities, execute, topological
from tamis.graph import title as title_of
from tamis.testing import pairs, promises
from tamis.testing.promises import RECORD_PROMISES, Broken, Promise, docstring, expect, name_is_a_word

Found = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScorerCase:
    """A scorer, and what its promises are checked with.

    Attributes:
        record: the scorer. It is loaded once for all promises, as in a run.
        tolerance: how far two results for one pair may lie apart; 0 unless a network computes them.
        looks_at: "image", "caption" or both: what must be there for a score, or for each column by its name. None:
            not said, and then only a pair that has neither must be without a score. (): neither is looked at.
        good: pairs that it judges; None: drawn ones.
        documented: whether the docstring must tell of settings, columns, NaN and cost, as those of Tamis do.
        device: where networks run.
    """

    record: Scorer
    tolerance: float = 0.0
    looks_at: Collection[str] | Mapping[str, Collection[str]] | None = None
    good: Sequence[Sample] | None = None
    documented: bool = False
    device: Device = Device(batch_size=4)

    @property
    def title(self) -> str:
        """What messages call it."""
        return title_of(self.record)

    @cached_property
    def _executor(self) -> Executor:
        return Executor(self.device)

    @cached_property
    def good_pairs(self) -> list[Sample]:
        return list(self.good) if self.good is not None else pairs.good_pairs()

    def batch(self) -> list[Sample]:
        """Returns its pairs and odd ones, fresh: see `pairs.batch_of`."""
        return pairs.batch_of(self.good_pairs)

    def run(self, samples: Sequence[Sample]) -> Found:
        """Returns the scorer's columns for one batch."""
        found: Found = self._executor.run([self.record], {Samples(): list(samples)})[self.record]
        return found

    @cached_property
    def whole(self) -> Found:
        """The columns of the whole batch."""
        return self.run(self.batch())

    def compare(self, one: Found, two: Found, samples: Sequence[Sample], how: str) -> None:
        """Expects two results for the same samples to be the same.

        Args:
            one, two: columns by name, each with a value per sample.
            samples: whose they are.
            how: what was done between them, for messages.
        """
        for column in self.record.columns:
            for sample, first, second in zip(samples, one[column.name], two[column.name], strict=True):
                same = _same(first, second, self.tolerance if column.kind == "number" else 0)
                far = f" (they may lie {self.tolerance:g} apart)" if self.tolerance and column.kind == "number" else ""
                expect(
                    same,
                    f"{column.name} of the pair {sample.key!r} was {_shown(first)}, and {how} {_shown(second)}{far}",
                )

    def needed(self, column: Column) -> set[str] | None:
        """Returns what must be there for a score of a column; None where nothing was said."""
        if isinstance(self.looks_at, Mapping):
            return set(self.looks_at[column.name])
        return None if self.looks_at is None else set(self.looks_at)


def it_declares_itself(case: ScorerCase) -> None:
    """Name, version and columns are what recipes, folders and tables can hold."""
    scorer = case.record
    expect(isinstance(scorer, Scorer), "it does not derive from tamis.data.Scorer")
    name_is_a_word(scorer.name, "its name")
    expect(scorer.version >= 1, f"its version must be 1 or more, got {scorer.version!r}")
    names = [column.name for column in scorer.columns]
    expect(names, "it declares no column")
    expect(len(set(names)) == len(names), f"two of its columns have one name: {', '.join(names)}")
    for column in scorer.columns:
        name_is_a_word(column.name, "a column's name")
        expect(column.name != "reason", "a column cannot be called reason: that is where its reasons go")
        expect(column.kind in ("number", "word"), f"{column.name}: scorers emit numbers and words, not {column.kind}s")
        expect(column.beside in ("", *names), f"{column.name} says beside={column.beside!r}, which is no column of it")
    labelled = [setting.name for setting in dataclasses.fields(scorer) if setting.name == "label"]  # type: ignore[arg-type]
    expect(not labelled, "a setting cannot be called label: recipes name its columns under that key")


def its_identity_is_stable(case: ScorerCase) -> None:
    """An equal scorer has the same fingerprint and needs the same nodes."""
    again = deepcopy(case.record)
    one, two = (Identities(case.device).fingerprint(scorer) for scorer in (case.record, again))
    expect(one == two, f"its fingerprint is {one}, and that of its copy {two}")
    for argument, node in case.record.needs().items():
        expect(isinstance(node, Node), f"needs() gives {node!r} for {argument}, which is no node")
        expect(node == again.needs()[argument], f"needs() of its copy gives another node for {argument}")


def it_emits_its_declared_columns(case: ScorerCase) -> None:
    """Numbers are (n,) float32 and finite or NaN, words are text or None, and there are no others."""
    rows = len(case.batch())
    for column in case.record.columns:  # that they are there, and of their kind, was seen when they were made
        values = case.whole[column.name]
        if column.kind == "word":
            continue
        dtype = np.asarray(values).dtype
        expect(dtype == np.float32, f"{column.name} must be (n,) float32, got {dtype} of {np.shape(values)}")
        infinite = np.flatnonzero(np.isinf(values)).tolist()
        expect(not infinite, f"{column.name} is infinite in the rows {infinite} of {rows}")


def it_judges_good_pairs(case: ScorerCase) -> None:
    """Of its good pairs at least one has a value in each column: else the other promises say nothing."""
    for column in case.record.columns:
        judged = [value for value in case.whole[column.name][: len(case.good_pairs)] if not _missing(value)]
        expect(
            judged,
            f"{column.name} has a value for none of {len(case.good_pairs)} good pairs: pass good=[...] that have",
        )


def the_same_batch_gives_the_same_scores(case: ScorerCase) -> None:
    """Nothing is remembered from one batch to the next."""
    samples = case.batch()
    case.compare(case.whole, case.run(samples), samples, "in a second run")


def how_a_batch_is_cut_does_not_matter(case: ScorerCase) -> None:
    """A score does not depend on which pairs share its batch."""
    samples = case.batch()
    whole = case.whole
    for sizes in ([1] * len(samples), [4, 4, len(samples) - 8], [len(samples) - 2, 2]):
        pieces, start = [], 0
        for size in sizes:
            pieces.append(case.run(samples[start : start + size]))
            start += size
        joined = {c.name: [value for piece in pieces for value in piece[c.name]] for c in case.record.columns}
        case.compare(whole, joined, samples, f"in batches of {_counted(sizes)}")


def row_order_does_not_matter(case: ScorerCase) -> None:
    """A score does not depend on where its pair stands."""
    samples = case.batch()
    order = np.random.default_rng(1).permutation(len(samples)).tolist()
    moved = [samples[row] for row in order]
    shuffled = case.run(moved)
    picked = {column.name: [case.whole[column.name][row] for row in order] for column in case.record.columns}
    case.compare(picked, shuffled, moved, "in another place")


def equal_pairs_get_equal_scores(case: ScorerCase) -> None:
    """A pair that stands twice in a batch is judged alike."""
    first, copy = 0, len(case.good_pairs)
    rows = [{c.name: [case.whole[c.name][row]] for c in case.record.columns} for row in (first, copy)]
    case.compare(rows[0], rows[1], case.good_pairs[:1], "where it stands again")


def an_empty_batch_gives_empty_columns(case: ScorerCase) -> None:
    """A batch without pairs is one: a shard may hold none."""
    found = case.run([])
    for column in case.record.columns:
        expect(len(found[column.name]) == 0, f"{column.name} has {len(found[column.name])} values for no pairs")


def what_cannot_be_judged_has_no_score(case: ScorerCase) -> None:
    """A pair with neither image nor caption is NaN or None, alone in its batch and among others."""
    samples = case.batch()
    row = len(case.good_pairs) + 3
    nothing = samples[row]
    for some in ([nothing], [nothing, nothing], samples[row - 2 : row + 1]):
        found = case.run(some)
        for column in case.record.columns:
            if case.needed(column) == set():
                continue
            value = found[column.name][some.index(nothing)]
            expect(_missing(value), f"{column.name} is {_shown(value)} for a pair without image and caption")


def what_it_looks_at_must_be_there(case: ScorerCase) -> None:
    """A missing caption, or image, takes the scores of the columns that look at it, and no others."""
    for part, without in (("caption", pairs.without_caption), ("image", pairs.without_image)):
        rows = [0, len(case.good_pairs) - 1]
        found = case.run([without(case.good_pairs[row]) for row in rows])
        for column in case.record.columns:
            needed = case.needed(column)
            if needed is None:
                continue
            for row, value in zip(rows, found[column.name], strict=True):
                if part in needed:
                    expect(_missing(value), f"{column.name} is {_shown(value)} for a pair without its {part}")
                    continue
                before = case.whole[column.name][row]
                expect(
                    not _missing(value) or _missing(before),
                    f"{column.name} was {_shown(before)}, and is missing without the {part}, which it does not look at",
                )


def reasons_are_sentences(case: ScorerCase) -> None:
    """`reason` holds None, or a text that says why a pair could not be judged."""
    for reason in case.whole.get("reason") or []:
        good = reason is None or (isinstance(reason, str) and reason.strip())
        expect(good, f"a reason must be None or a sentence, got {reason!r}")


def it_changes_no_sample(case: ScorerCase) -> None:
    """Others read the same samples after it."""
    samples = case.batch()
    before = [pickle.dumps(sample) for sample in samples]
    case.run(samples)
    for sample, was in zip(samples, before, strict=True):
        if pickle.dumps(sample) != was:
            old = pickle.loads(was)
            changed = [
                f.name for f in dataclasses.fields(Sample) if _differ(getattr(sample, f.name), getattr(old, f.name))
            ]
            raise Broken(f"it changes {', '.join(changed) or 'something'} of the pair {sample.key!r}")


def it_gives_the_same_after_pickling(case: ScorerCase) -> None:
    """Worker processes get it pickled, and load it themselves."""
    samples = case.batch()[:2]
    again = pickle.loads(pickle.dumps(case.record))
    case.compare(case.run(samples), execute([again], samples, case.device)[again], samples, "after pickling")


def what_is_in_the_index_is_enough(case: ScorerCase) -> None:
    """Where all that looks at samples says `in_index`, scores need no pixels and no image file."""
    looking = [node for node in topological([case.record]) if Samples() in node.needs().values()]
    if not all(node.in_index for node in looking):
        return
    samples = case.batch()
    for sample in samples:
        sample.image = sample.pixels = None
    names = ", ".join(node.name for node in looking)
    how = f"from the index, which has no pixels and no image bytes (in_index is set by {names}),"
    case.compare(case.whole, case.run(samples), samples, how)


def its_docstring_tells_what_it_emits(case: ScorerCase) -> None:
    """Settings, columns with their meaning, NaN and cost stand in it; columns have a unit and a line for lists."""
    if not case.documented:
        return
    text = docstring(case)
    for word in ("Emits:", "NaN", "Cost:"):
        expect(word in text, f"its docstring has no {word!r}")
    emits = text.partition("Emits:")[2]
    for column in case.record.columns:
        expect(f"{column.name}:" in emits, f"its docstring does not tell of {column.name} under 'Emits:'")
        expect(column.unit and column.about, f"the column {column.name} needs a unit and an about")


#: What every scorer promises; each is called with a `ScorerCase`.
SCORER_PROMISES: tuple[Promise[ScorerCase], ...] = tuple(
    Promise(check)
    for check in (
        it_declares_itself,
        *RECORD_PROMISES,
        promises.its_settings_stand_in_a_recipe,
        its_identity_is_stable,
        it_emits_its_declared_columns,
        it_judges_good_pairs,
        the_same_batch_gives_the_same_scores,
        how_a_batch_is_cut_does_not_matter,
        row_order_does_not_matter,
        equal_pairs_get_equal_scores,
        an_empty_batch_gives_empty_columns,
        what_cannot_be_judged_has_no_score,
        what_it_looks_at_must_be_there,
        reasons_are_sentences,
        it_changes_no_sample,
        it_gives_the_same_after_pickling,
        what_is_in_the_index_is_enough,
        its_docstring_tells_what_it_emits,
    )
)


def check_scorer(
    scorer: Scorer,
    *,
    tolerance: float = 0.0,
    looks_at: Collection[str] | Mapping[str, Collection[str]] | None = None,
    good: Sequence[Sample] | None = None,
    documented: bool = False,
    device: Device | None = None,
) -> None:
    """Checks all that a scorer promises, on drawn pairs. The arguments are told of at `ScorerCase`.

    Raises:
        AssertionError: a promise is broken; the sentence says which, and with which values.
        ModelError, DependencyError: a model or package that it needs is not here.
    """
    if inspect.isclass(scorer):
        raise TypeError(f"check_scorer takes a scorer, not its class: {scorer.__name__}()")
    case = ScorerCase(
        record=scorer,
        tolerance=tolerance,
        looks_at=looks_at,
        good=good,
        documented=documented,
        device=device or Device(batch_size=4),
    )
    for promise in SCORER_PROMISES:
        promise(case)


def _missing(value: Any) -> bool:
    return value is None or value != value


def _same(one: Any, two: Any, tolerance: float) -> bool:
    if _missing(one) or _missing(two):
        return _missing(one) and _missing(two)
    return bool(one == two or (tolerance and abs(float(one) - float(two)) <= tolerance))


def _shown(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)


def _counted(sizes: Sequence[int]) -> str:
    return "one" if set(sizes) == {1} else ", ".join(map(str, sizes))


def _differ(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return not np.array_equal(one, two)
    return bool(one != two)
