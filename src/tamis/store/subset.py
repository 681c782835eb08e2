"""Subsets: which rows of a run a recipe keeps, how often, and why it drops the others; one Parquet file each."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.arrays import Rows
from tamis.errors import RunError
from tamis.ids import SUBSET_DTYPE
from tamis.storage import output_path
from tamis.store.combine import combined
from tamis.store.reasons import NO_REASONS, Codes, Cut, Reason, Verdict
from tamis.store.run import Run
from tamis.store.subset_file import SubsetFile, is_subset, write_subset
from tamis.store.targets import check_ending, check_target

if TYPE_CHECKING:
    import pandas

    from tamis.store.notebook import Shown


@dataclass(frozen=True, kw_only=True)
class Subset:
    """The rows of a run that a recipe keeps.

    Attributes:
        run: the run it was chosen from.
        keep: (rows,) bool, in the order of the run's rows.
        recipe: the recipe as resolved, including its `name`.
        funnel: a line per step: step, before, kept, dropped by reason, cut.
        reads: the score columns that the recipe reads.
        times: (rows,) uint16, how often each row is kept, 0 for dropped rows; None: once each.
        verdict: why each of the other rows is dropped, and the thresholds on scores.
        partial: if the run lacked shards: how many are `missing`, `of` how many, and the names of the first `shards`.
    """

    run: Run
    keep: NDArray[np.bool_]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    funnel: Sequence[Mapping[str, Any]] = ()
    reads: Sequence[str] = ()
    times: NDArray[np.uint16] | None = None
    verdict: Verdict = field(default=Verdict(problem=NO_REASONS), repr=False)
    partial: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.times is not None and not np.array_equal(self.times > 0, self.keep):
            raise ValueError("times must be above 0 for exactly the rows that keep sets")
        if not self.verdict.agrees(self.keep):
            raise ValueError(
                "the verdict drops other rows than keep: give it the verdict of these rows, or "
                "verdict=Verdict(problem='why there is none')"
            )

    def __len__(self) -> int:
        """Returns the number of pairs that a trainer gets: a row that is kept twice counts twice."""
        return int(np.count_nonzero(self.keep) if self.times is None else self.times.sum(dtype=np.int64))

    def __repr__(self) -> str:
        return f"Subset({self.name!r}, {len(self):,} of {self.keep.size:,} pairs)"

    def _repr_html_(self) -> str:
        from tamis.store.notebook import html_of_subset

        return html_of_subset(self)

    def __and__(self, other: Subset) -> Subset:
        """Returns the rows that are in both: see `tamis.store.combine`."""
        return combined(self, other, "&") if isinstance(other, Subset) else NotImplemented

    def __or__(self, other: Subset) -> Subset:
        """Returns the rows that are in this one, in the other, or in both."""
        return combined(self, other, "|") if isinstance(other, Subset) else NotImplemented

    def __sub__(self, other: Subset) -> Subset:
        """Returns the rows that are in this one and not in the other."""
        return combined(self, other, "-") if isinstance(other, Subset) else NotImplemented

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Returns a column of the kept pairs, like `Run.__getitem__`, each pair as often as it is kept."""
        found: NDArray[Any] = self.run[column][self.rows()]
        return found

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", "subset"))

    def show(
        self,
        pairs: int = 12,
        *,
        dropped: bool = False,
        rows: Sequence[int] | None = None,
        seed: int = 0,
        size: int = 160,
    ) -> Shown:
        """Shows some pairs in a notebook: images, captions, the scores that the recipe reads, why one was dropped.

        Args:
            pairs: how many, at random.
            dropped: whether to show pairs that the subset drops.
            rows: these rows of the run instead, in this order.
            seed: another one shows others.
            size: of the images in pixels.

        Returns:
            An object that notebooks display; printed, it is a line per pair. No text of a pair can run as HTML.

        Raises:
            RunError: the pool has no image files.
            PoolError: the pool does not exist.
        """
        from tamis.store.notebook import pairs_of

        return pairs_of(self, pairs, dropped=dropped, rows=rows, seed=seed, size=size)

    def rows(self, place: slice = slice(None)) -> Rows:
        """Returns the numbers of the kept rows, ascending, each as often as it is kept.

        Args:
            place: a part of the run; rows are numbered from its start.
        """
        rows = np.flatnonzero(self.keep[place])
        return rows if self.times is None else np.repeat(rows, self.times[place][rows])

    def rows_by_shard(self) -> Iterator[tuple[str, Rows]]:
        """Yields each shard with kept rows, and their numbers in it, ascending, each as often as it is kept."""
        for shard, place in _places(self.run).items():
            rows = self.rows(place)
            if rows.size:
                yield shard, rows

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes a row per kept row of the run (shard, row in it) as Parquet, with everything else in the footer.

        Args:
            path: a new file, or one in the folder `subsets` of a run.
            overwrite: replace another subset file.

        Raises:
            RunError: the folder cannot be written to, the file exists, or its name promises another format.
        """
        path = output_path(path)
        check_place(path, overwrite=overwrite, read=self.run.pool_files)
        codes, why = self.verdict.dropped_by, self.verdict.why
        # A cut at infinity is no threshold on any score.
        cuts = [replace(cut, low=_open(cut.low), high=_open(cut.high)) for cut in self.verdict.cuts]
        cuts = [cut for cut in cuts if (cut.low, cut.high) != (None, None)]
        facts = {
            "recipe": dict(self.recipe),
            "funnel": [{**line, "cut": _open(line["cut"])} for line in self.funnel],
            "reads": list(self.reads),
            "pool_rows": int(self.keep.size),
            "shards": _shard_facts(self.run),
            **({"partial": dict(self.partial)} if self.partial else {}),
            **({} if codes is None else {"reasons": [*map(asdict, why)], "cuts": [*map(asdict, cuts)]}),
        }
        write_subset(path, facts, _places(self.run), self.keep, self.times, codes)

    @classmethod
    def load(cls, path: str | os.PathLike[str], run: Run) -> Subset:
        """Reads a subset of a run. If it has no reasons, `verdict.problem` says why.

        Raises:
            RunError: the file is not a subset file, is damaged, or belongs to another run.
        """
        path = output_path(path)
        if not path.exists():
            raise RunError(f"there is no subset at {path}; make one with `tamis select RUN --recipe R --out FILE`")
        file = SubsetFile(path)
        facts = file.facts
        _check_run(path, facts, run)
        places = _places(run)
        keep = np.zeros(len(run), bool)
        times = np.zeros(len(run), np.uint16) if file.has_times else None
        for shard, rows, often in file.rows():
            here = rows + places[shard].start
            keep[here] = True
            if times is not None and often is not None:
                times[here] = often
        return cls(
            run=run,
            keep=keep,
            recipe=facts["recipe"],
            funnel=facts["funnel"],
            reads=facts["reads"],
            times=times,
            partial=facts.get("partial") or {},
            verdict=_read_verdict(file, places, keep),
        )

    def uids(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Returns the high and low halves of the kept pairs' uids, in the run's order, each as often as it is kept."""
        return self.run.table().uids(self.rows())

    def to_numpy(self) -> NDArray[np.void]:
        """Returns the kept uids as DataComp's structured array (u8, u8), in the order of `uids`."""
        high, low = self.uids()
        out = np.empty(high.size, SUBSET_DTYPE)
        out["f0"], out["f1"] = high, low
        return out

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the kept pairs like `Run.to_arrow`, each as often as it is kept."""
        every = self.run.to_arrow(columns)
        return every.filter(pa.array(self.keep)) if self.times is None else every.take(pa.array(self.rows()))

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """Returns `to_arrow` as a pandas DataFrame."""
        frame: pandas.DataFrame = self.to_arrow(columns).to_pandas()
        return frame


def check_place(path: Path, *, overwrite: bool = False, read: Iterable[str] = ()) -> None:
    """Raises RunError if a subset must not be written to a path: see `tamis.store.targets.check_target`."""
    hint = "`tamis export RUN SUBSET OUT --to npy|parquet|keys|webdataset` makes other files of it"
    check_ending(path, "parquet", hint=hint)
    check_target(path, what="subset file", ours=is_subset, overwrite=overwrite, read=read, of_runs="subsets")


def _places(run: Run) -> dict[str, slice]:
    """Returns the place of each shard's rows among those of the run."""
    starts = np.concatenate([[0], np.cumsum(run.sizes, dtype=np.int64)]).tolist()
    return {shard: slice(*ends) for shard, ends in zip(run.shards, itertools.pairwise(starts), strict=True)}


def _open(end: float | None) -> float | None:
    """Returns the end of a threshold; None for an infinite one, which JSON cannot hold and which is open anyway."""
    return end if end is None or math.isfinite(end) else None


def _read_verdict(file: SubsetFile, places: Mapping[str, slice], keep: NDArray[np.bool_]) -> Verdict:
    """Returns the reasons in a subset file, and one more for rows of shards that are new since."""
    facts = file.facts
    if "reasons" not in facts:
        return Verdict(problem=NO_REASONS)
    why = [Reason(**reason) for reason in facts["reasons"]]
    new = Reason(text="scored after the subset was chosen")
    why += [new] if len(places) > len(facts["shards"]) else []
    codes: Codes = np.full(keep.size, len(why), np.uint8 if len(why) < 256 else np.uint16)
    if not file.read_codes([places[shard] for shard in facts["shards"]], codes):
        return Verdict(
            problem=f"{file.path} was written again by another program, and its reasons are lost. Choose it again with "
            "`tamis select`"
        )
    names = facts["recipe"].get("columns") or {}
    return Verdict(names=names, why=tuple(why), dropped_by=codes, cuts=tuple(Cut(**cut) for cut in facts["cuts"]))


def _shard_facts(run: Run) -> dict[str, list[Any]]:
    """Returns rows, stamp and hash of uids of each shard, to recognise the run."""
    facts = zip(run.sizes, run.stamps, run.uids, strict=True)
    return dict(zip(run.shards, map(list, facts), strict=True))


def partial_facts(run: Run) -> dict[str, Any]:
    """Returns `Subset.partial` for a choice from a run: how many shards are missing, and the first hundred."""
    if not run.missing:
        return {}
    return {"missing": len(run.missing), "of": len(run.urls), "shards": list(run.missing[:100])}


def _check_run(path: Path, facts: Mapping[str, Any], run: Run) -> None:
    """Raises RunError if a subset was not chosen from the rows of a run."""
    known = _shard_facts(run)
    for shard, was in facts["shards"].items():
        if known.get(shard) != was:
            what = f"{known[shard][0]:,} rows of another file" if shard in known else "no such shard"
            raise RunError(
                f"{path} was chosen from a shard {shard} of {was[0]:,} rows, {run.path} has {what}: it belongs to "
                "another run, or the shard has changed; select again"
            )
