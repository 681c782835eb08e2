"""Subsets: which rows of a run a recipe keeps, how often, and why it drops the others; one Parquet file each.

The file holds the kept rows, and in its footer the recipe and the reasons. Parquet readers ignore bytes that the footer
does not point to. We use that to store the codes of the reasons after the last row group: a zstd block per shard, one
or two bits per row. Another program may rewrite the file, for example with fewer rows. So rows are checked when read,
and the reasons of such a file are lost.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tamis.core.arrays import Captions, Mask, Rows, Times, as_arrow
from tamis.core.errors import DamageError, RunError, nearest
from tamis.core.files.checked import CheckedParquet, footer_entry, parquet_writer, with_hash
from tamis.core.files.storage import local_copy, output_path
from tamis.core.files.targets import REPLACE, check_ending, check_target
from tamis.core.html import glimpse, html_table
from tamis.core.ids import SUBSET_DTYPE
from tamis.runs.reasons import NO_REASONS, Codes, Cut, DropReason, Verdict, blocks, rows_kept, widen
from tamis.runs.run import Run

if TYPE_CHECKING:
    import pandas

    from tamis.runs.audit import Group

#: The arrays of a subset, and columns of its file, that are there only if a row needs them.
PER_ROW = {"times": np.uint16, "caption": np.uint8}

FACTS, _CODES = "tamis.subset", "tamis.dropped_by"

_ROWS = 1 << 18  # rows of an ordered subset that are written at once

_KINDS = {
    "shard": pa.string(),
    "row": pa.int64(),
    **{name: pa.from_numpy_dtype(kind) for name, kind in PER_ROW.items()},
}

Sign = Literal["&", "|", "-"]

_WORDS: Mapping[Sign, str] = {"&": "in {0} and in {1}", "|": "in {0} or in {1}", "-": "in {0} and not in {1}"}


class Funnel(list[Mapping[str, Any]]):
    """The steps of a recipe with what each keeps and drops: a list, and a table in a notebook."""

    def _repr_html_(self) -> str:
        kept, total = (self[-1]["kept"], self[0]["before"]) if self else (0, 0)
        rows = [{"step": "every pair", "kept": f"{total:,}", "share": "", "dropped": ""}]
        for line in self:
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in line["dropped"].items())
            share = f"{line['kept'] / max(total, 1):.1%}"
            rows.append({"step": line["step"], "kept": rows_kept(line), "share": share, "dropped": dropped})
        return html_table("Funnel", f"{kept:,} of {total:,} pairs ({kept / max(total, 1):.1%})", rows)


@dataclass(frozen=True, kw_only=True)
class Subset:
    """The rows of a run that a recipe keeps.

    Attributes:
        run: the run it was chosen from.
        keep: (rows,) bool, in the order of the run's rows; of more than 2^28 rows, what reads them by slices.
        recipe: the recipe as resolved, including its `name`.
        funnel: a mapping per step: step, before, kept, dropped (by reason), cut, and facts if the step reports any.
        reads: the score columns that the recipe reads.
        times: (rows,) uint16, how often each row is kept, 0 for dropped rows; None: every kept row once.
        caption: (rows,) uint8, 1 for kept rows that carry their other caption; None: all carry their alt-text.
        order: the kept rows in the order to train on, each as often as it is kept; None: the subset has no order.
        captions_from: the run's column with the other captions.
        verdict: why rows are dropped, and the thresholds on scores.
        partial: if shards were missing: how many (`missing`) of how many (`of`), and the names of the first (`shards`).
        used: what made the columns that it was chosen by: signal, settings, models with their hashes, fingerprint.
    """

    run: Run
    keep: NDArray[np.bool_]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    funnel: Sequence[Mapping[str, Any]] = ()
    reads: Sequence[str] = ()
    times: Times | None = None
    caption: Captions | None = None
    order: Rows | None = None
    captions_from: str = ""
    verdict: Verdict = field(default=Verdict(problem=NO_REASONS), repr=False)
    partial: Mapping[str, Any] = field(default_factory=dict)
    used: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "funnel", Funnel(self.funnel))
        times, caption = self.times, self.caption
        if times is not None and not self._is_kept(times, every=True):
            raise ValueError("times must be above 0 where keep is True, and 0 elsewhere")
        if caption is not None and not self._is_kept(caption, every=False):
            raise ValueError("caption must have a number per row of the run, 0 where keep is False")
        if self.order is not None:
            object.__setattr__(self, "order", _as_rows(self.order))
            if not np.array_equal(np.sort(self.order), self.rows()):
                raise ValueError("order must have every kept row as often as it is kept")
        if not self.verdict.agrees(self.keep):
            raise ValueError("keep and verdict drop different rows: pass their verdict, or Verdict(problem='why none')")

    def _is_kept(self, values: NDArray[Any], *, every: bool) -> bool:
        """Whether values are above 0 only in kept rows, and in every one of them."""
        if values.size != self.keep.size:
            return False
        parts = ((values[rows] > 0, self.keep[rows]) for rows in blocks(self.keep.size))
        return all(np.array_equal(some, keep if every else keep & some) for some, keep in parts)

    def __len__(self) -> int:
        """Returns the number of pairs to train on: a row that is kept twice counts twice."""
        return self.kept if self.times is None else int(self.times.sum(dtype=np.int64))

    def __repr__(self) -> str:
        repeats = f", {len(self):,} with repeats" if len(self) > self.kept else ""
        return f"Subset({self.name!r}, {self.kept:,} of {self.keep.size:,} pairs{repeats})"

    def _repr_html_(self) -> str:
        dropped: Counter[str] = Counter()
        for line in self.funnel:
            dropped.update(line["dropped"])
        kept = rows_kept({"kept": self.kept} | ({} if self.times is None else {"times": len(self)}))
        counts = f"{kept} of {self.keep.size:,} pairs ({self.kept / max(self.keep.size, 1):.1%}); steps: subset.funnel"
        rows = [{"dropped": reason, "pairs": f"{count:,}"} for reason, count in dropped.most_common()]
        return html_table(self.name, counts, rows) + glimpse(self, 4) + glimpse(self, 4, dropped=True)

    def __and__(self, other: Subset) -> Subset:
        """Returns the rows in both subsets: see `combine`."""
        return combine(self, other, "&") if isinstance(other, Subset) else NotImplemented

    def __or__(self, other: Subset) -> Subset:
        """Returns the rows in either subset."""
        return combine(self, other, "|") if isinstance(other, Subset) else NotImplemented

    def __sub__(self, other: Subset) -> Subset:
        """Returns the rows in this subset and not in the other."""
        return combine(self, other, "-") if isinstance(other, Subset) else NotImplemented

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Returns a column like `Run.__getitem__`, for the kept pairs, each as often as it is kept."""
        found: NDArray[Any] = self.run[column][self.rows()]
        return found

    @property
    def kept(self) -> int:
        """Number of rows that it keeps; `len` counts repeats."""
        return sum(int(np.count_nonzero(self.keep[rows])) for rows in blocks(self.keep.size))

    def times_of(self, row: int) -> int:
        """Returns how often a row is kept."""
        return int((self.keep if self.times is None else self.times)[row : row + 1][0])

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", "subset"))

    def audit(self, by: Sequence[str] = ()) -> list[Group]:
        """Returns for each group of pairs its share of the subset over its share of the pool; those that shrink first.

        Groups have at least 20 pairs with one value of a column; pairs without a value do not count. A row that is kept
        twice counts once.

        Args:
            by: columns of words or numbers. By default the pool's fields, languages, classes, `script` and `cluster`.

        Source: Hong et al. 2024, "Who's in and who's out? A case study of multimodal CLIP-filtering in DataComp".
        """
        from tamis.runs.audit import audit

        return audit(self.run, [self.keep], by)[0]

    def rows(self, span: slice = slice(None)) -> Rows:
        """Returns the numbers of the kept rows, ascending, each as often as it is kept.

        Args:
            span: a range of the run's rows; the numbers count from its start.
        """
        rows = np.flatnonzero(self.keep[span])
        return rows if self.times is None else np.repeat(rows, self.times[span][rows])

    def in_order(self) -> Rows:
        """Returns the numbers of the kept rows in the order to train on, which is that of `rows` if it has none."""
        return self.rows() if self.order is None else self.order

    def rows_by_shard(self) -> Iterator[tuple[str, Rows]]:
        """Yields each shard with kept rows, and those rows: numbered in the shard, each as often as it is kept."""
        for shard, span in self.run.row_ranges.items():
            rows = self.rows(span)
            if rows.size:
                yield shard, rows

    def save(self, path: str | os.PathLike[str] | None = None, *, overwrite: bool = False) -> Path:
        """Writes the kept rows (shard, row in the shard) as Parquet, and everything else in the footer.

        Rows are in the order of the run. With an `order` they are in that, each as often as it is kept.

        Args:
            path: a new file, or one in the folder `subsets` of a run. None: `subsets/NAME.parquet` in the subset's run,
                where commands find it by its name. There it replaces what the same steps chose by the same scores.
            overwrite: replace another subset file.

        Returns:
            The file.

        Raises:
            RunError: the folder is not writable, the file exists, or its ending belongs to another format.
        """
        if path is None:
            path = self.run.path / "subsets" / f"{self.name}.parquet"
            if not overwrite and is_subset(path) and self._differs_from(path):
                more = f"keep both with --set name=NEW (in Python the recipe's `name`), or {REPLACE}"
                raise RunError(f"{self.run.path} has another subset called {self.name!r}: {more}")
        path = output_path(path)
        check_place(path, overwrite=overwrite, read=self.run.pool_files)
        codes, ranges = self.verdict.dropped_by, self.run.row_ranges
        chosen = {name: values for name in PER_ROW if (values := getattr(self, name)) is not None}
        if self.order is not None:
            chosen.pop("times", None)
        schema = pa.schema(
            [("shard", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64())]
            + [(name, _KINDS[name]) for name in chosen],
            metadata={FACTS: json.dumps(with_hash(self._facts()), ensure_ascii=False).encode()},
        )
        with parquet_writer(path, schema, compression="ZSTD") as (writer, sink):
            for rows, numbers, names in self._listed():
                begins = np.array([ranges[name].start for name in names])[numbers]
                columns = [numbers, rows - begins, *(values[rows] for values in chosen.values())]
                indices, *arrays = map(as_arrow, columns)
                shards = pa.DictionaryArray.from_arrays(indices, _as_strings(names))
                writer.write_table(pa.table([shards, *arrays], schema=schema))
            if codes is not None:
                begin, codec = sink.tell(), pa.Codec("zstd")
                lengths = [sink.write(codec.compress(codes[span].tobytes(), asbytes=True)) for span in ranges.values()]
                where = {"type": codes.dtype.str, "begin": begin, "lengths": lengths}
                writer.add_key_value_metadata({_CODES: json.dumps(where)})
        return path

    def _listed(self) -> Iterator[tuple[Rows, NDArray[np.int32], list[str]]]:
        """Yields rows to write, some at once: their numbers in the run, the shard of each, and the shards' names."""
        ranges = self.run.row_ranges
        if self.order is None:
            for shard, span in ranges.items():
                if (rows := np.flatnonzero(self.keep[span])).size:
                    yield rows + span.start, np.zeros(rows.size, np.int32), [shard]
            return
        begins = [span.start for span in ranges.values()]
        for first in range(0, self.order.size, _ROWS):
            rows = self.order[first : first + _ROWS]
            yield rows, np.searchsorted(begins, rows, side="right").astype(np.int32) - 1, [*ranges]

    def _differs_from(self, path: Path) -> bool:
        """Whether a file has a subset that other steps, or other scores, chose."""
        with suppress(RunError):  # a damaged file may be replaced
            facts = SubsetFile(path).facts
            ours = json.loads(json.dumps([self.recipe.get("select"), list(self.used)]))
            return bool(ours != [facts["recipe"].get("select"), facts.get("used")])
        return False

    def _facts(self) -> dict[str, Any]:
        """Returns the facts for the file's footer."""
        # A threshold at infinity drops nothing.
        cuts = [replace(cut, low=_open(cut.low), high=_open(cut.high)) for cut in self.verdict.cuts]
        cuts = [cut for cut in cuts if (cut.low, cut.high) != (None, None)]
        facts = {
            "recipe": dict(self.recipe),
            "funnel": [{**line, "cut": _open(line["cut"])} for line in self.funnel],
            "reads": list(self.reads),
            "used": list(self.used),
            "pool_rows": int(self.keep.size),
            "shards": _shard_facts(self.run),
        }
        if self.order is not None:
            facts["ordered"] = True
        if self.captions_from:
            facts["captions_from"] = self.captions_from
        if self.partial:
            facts["partial"] = dict(self.partial)
        if self.verdict.dropped_by is not None:
            facts |= {"reasons": [*map(asdict, self.verdict.why)], "cuts": [*map(asdict, cuts)]}
        return facts

    @classmethod
    def load(cls, path: str | os.PathLike[str], run: Run) -> Subset:
        """Reads a subset of a run: a file, or the name of one in the run's folder `subsets`.

        If the file has no reasons, `verdict.problem` says why.

        Raises:
            RunError: it is not a subset file, is damaged, or belongs to another run.
        """
        path = output_path(path)
        kept = run.path / "subsets" / f"{path}.parquet"
        path = kept if kept.is_file() and not path.is_file() else path  # an export may be a folder of that name
        if not path.exists():
            near = nearest(str(path), [file.stem for file in kept.parent.glob("*.parquet")])
            make = f"tamis select {shlex.quote(str(run.path))} --recipe {'RECIPE' if near else shlex.quote(path.stem)}"
            raise RunError(f"{run.path} has no subset {str(path)!r}{near}; make it with `{make}`")
        file = SubsetFile(path)
        facts = file.facts
        known = _shard_facts(run)
        for shard, was in facts["shards"].items():
            if known.get(shard) != was:
                what = f"{known[shard][0]:,} rows of another file" if shard in known else "no such shard"
                raise RunError(f"{path}: its shard {shard} had {was[0]:,} rows, {run.path} has {what}: select again")
        ranges = run.row_ranges
        keep = np.zeros(len(run), bool)
        chosen: dict[str, Any] = {name: np.zeros(len(run), PER_ROW[name]) for name in file.per_row}
        for shard, rows, more in file.rows():
            here = rows + ranges[shard].start
            keep[here] = True
            for name, values in more.items():
                chosen[name][here] = values
        if file.ordered:
            chosen["order"] = file.order(ranges)
            if chosen["order"].size > np.count_nonzero(keep):
                chosen["times"] = np.bincount(chosen["order"], minlength=keep.size).astype(PER_ROW["times"])
        return cls(
            run=run,
            keep=keep,
            recipe=facts["recipe"],
            funnel=facts["funnel"],
            reads=facts["reads"],
            **chosen,
            captions_from=facts.get("captions_from") or "",
            partial=facts.get("partial") or {},
            used=facts.get("used") or (),
            verdict=file.verdict(ranges, keep.size),
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
        if "caption" in every.column_names and (others := other_captions(self)):
            texts = others.instead(np.arange(self.keep.size), every["caption"].combine_chunks())
            every = every.set_column(every.column_names.index("caption"), "caption", texts)
        return every.filter(pa.array(self.keep[:])) if self.times is None else every.take(pa.array(self.rows()))

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """Returns `to_arrow` as a pandas DataFrame."""
        frame: pandas.DataFrame = self.to_arrow(columns).to_pandas()
        return frame


def is_subset(path: Path) -> bool:
    """Whether a file is a subset file."""
    return footer_entry(path, FACTS) is not None


def check_place(path: Path, *, overwrite: bool = False, read: Iterable[str] = ()) -> None:
    """Raises RunError if a subset cannot be written to a path: see `tamis.core.files.targets.check_target`."""
    hint = "`tamis export RUN SUBSET OUT --to npy|parquet|keys|webdataset` writes other formats"
    check_ending(path, "parquet", hint=hint)
    check_target(path, what="subset file", ours=is_subset, overwrite=overwrite, read=read, of_runs="subsets")


def _open(end: float | None) -> float | None:
    """Returns a threshold's limit; None for infinity, which limits nothing and which JSON cannot hold."""
    return end if end is None or math.isfinite(end) else None


def _as_rows(order: Any) -> Rows:
    """Returns row numbers as an array: (n,) int64."""
    rows = np.asarray(order)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(f"order must be a list of row numbers, got {rows.dtype} of shape {rows.shape}")
    return rows.astype(np.int64, copy=False)


def _as_strings(names: Sequence[str]) -> pa.Array:
    """Returns texts as an Arrow array: see `as_arrow`."""
    data = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, data)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(b"".join(data)))


def _shard_facts(run: Run) -> dict[str, list[Any]]:
    """Returns {shard: [rows, stamp, hash of uids]}, to recognise the run."""
    footers = zip(run.shards, run.footers, strict=True)
    return {shard: [facts.rows, facts.stamp, facts.uids] for shard, facts in footers}


def partial_facts(run: Run) -> dict[str, Any]:
    """Returns `Subset.partial` for a subset of a run: how many shards are missing, and the names of the first 100."""
    if not run.missing_shards:
        return {}
    return {"missing": len(run.missing_shards), "of": len(run.urls), "shards": list(run.missing_shards[:100])}


def _not_a_subset(path: Path, what: str) -> RunError:
    return RunError(f"{path} is not a subset file of tamis, or is damaged: {what}. Choose it again with `tamis select`")


class SubsetFile:
    """A subset file, opened for reading.

    Attributes:
        facts: the facts in its footer.
        per_row: its optional columns: `times` if rows may be kept more than once, `caption` if some carry another.
        ordered: whether its rows are in the order to train on, each as often as it is kept; then it has no `times`.
    """

    def __init__(self, path: Path) -> None:
        """Opens and verifies a file.

        Raises:
            RunError: it is not a subset file, or is damaged.
        """
        self.path = path
        try:
            self._file = CheckedParquet(path, may_be_foreign=True)
            if self._file.sealed:
                self._file.verify()
            self.facts: dict[str, Any] = json.loads(self._file.facts.get(FACTS, "null"))
            if not isinstance(self.facts, dict) or with_hash(self.facts) != self.facts:
                raise _not_a_subset(path, "its footer has no tamis.subset entry, or the entry has changed")
            self._table = self._file.read(None)
        except (DamageError, ValueError, RecursionError) as error:
            raise _not_a_subset(path, getattr(error, "what", "") or str(error)[:300]) from error
        self.ordered = bool(self.facts.get("ordered"))
        optional = [name for name in PER_ROW if name != "times" or not self.ordered]
        self.per_row = tuple(name for name in optional if name in self._table.column_names)

    @functools.cached_property
    def _listed(self) -> pa.Table:
        """The listed rows; another program may have stored them as other types."""
        names = ["shard", "row", *self.per_row]
        schema = pa.schema([pa.field(name, _KINDS[name], nullable=False) for name in names])
        try:
            return self._table.select(names).cast(schema)
        except (KeyError, ValueError) as error:  # Arrow's errors are ValueErrors
            raise _not_a_subset(self.path, f"its columns are not the rows of a subset ({error})") from error

    def rows(self) -> Iterator[tuple[str, Rows, dict[str, NDArray[Any]]]]:
        """Yields (shard, kept rows, {optional column: a number per kept row}).

        Raises:
            RunError: a row does not exist, or is listed twice, in order more than 65,535 times.
        """
        table = self._listed
        shards = table.column("shard").combine_chunks().dictionary_encode()
        codes, rows = shards.indices.to_numpy(), table.column("row").to_numpy()
        columns = {name: table.column(name).to_numpy() for name in self.per_row}
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(shards.dictionary) + 1))
        for number, shard in enumerate(shards.dictionary.to_pylist()):
            here = order[ends[number] : ends[number + 1]]
            if self.ordered:
                _, firsts, counts = np.unique(rows[here], return_index=True, return_counts=True)
                if (most := counts.max(initial=0)) > np.iinfo(np.uint16).max:
                    raise _not_a_subset(self.path, f"it lists a row of the shard {shard!r} {most:,} times")
                here = here[firsts]
            size, some = self.facts["shards"].get(shard, (0,))[0], rows[here]
            more = {name: values[here] for name, values in columns.items()}
            wrong = some.min() < 0 or some.max() >= size or np.unique(some).size < some.size
            if wrong or not more.get("times", some[:0]).all():
                what = f"it lists a row that the shard {shard!r} does not have ({size:,} rows), or a row twice"
                raise _not_a_subset(self.path, what)
            yield shard, some, more

    def order(self, ranges: Mapping[str, slice]) -> Rows:
        """Returns the numbers of the listed rows in the run, in the order of the file; `rows` checks them."""
        shards = self._listed.column("shard").combine_chunks().dictionary_encode()
        begins = np.array([ranges[shard].start for shard in shards.dictionary.to_pylist()], np.int64)
        found: Rows = begins[shards.indices.to_numpy()] + self._listed.column("row").to_numpy()
        return found

    def verdict(self, ranges: Mapping[str, slice], rows: int) -> Verdict:
        """Returns the reasons in the file, and one more for rows of shards scored after the choice.

        Args:
            ranges: `Run.row_ranges`.
            rows: number of rows of the run.
        """
        if "reasons" not in self.facts:
            return Verdict(problem=NO_REASONS)
        if not self._file.sealed or _CODES not in self._file.facts:
            return Verdict(
                problem=f"{self.path} was rewritten by another program, so its reasons are lost. Choose it again "
                "with `tamis select`"
            )
        why = [DropReason(**reason) for reason in self.facts["reasons"]]
        if len(ranges) > len(self.facts["shards"]):
            why.append(DropReason(text="scored after the subset was chosen"))
        codes: Codes = np.full(rows, len(why), np.uint8 if len(why) < 256 else np.uint16)
        where = json.loads(self._file.facts[_CODES])
        kind = np.dtype(where["type"])
        with open(local_copy(self.path), "rb") as file:
            file.seek(where["begin"])
            for shard, length in zip(self.facts["shards"], where["lengths"], strict=True):
                block, size = file.read(length), self.facts["shards"][shard][0] * kind.itemsize
                decoded = pa.Codec("zstd").decompress(block, size) if size else b""
                codes[ranges[shard]] = np.frombuffer(decoded, kind)
        cuts = tuple(Cut(**cut) for cut in self.facts["cuts"])
        return Verdict(names=self.facts["recipe"].get("columns") or {}, why=tuple(why), dropped_by=codes, cuts=cuts)


# ---- captions other than the alt-texts


@dataclass(frozen=True, eq=False)
class OtherCaptions:
    """Texts of some rows of a run; false if there are none. Memory: the texts and 16 bytes for each."""

    rows: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # (n,) ascending
    texts: pa.Array = field(default_factory=lambda: pa.array([], pa.large_string()))  # (n,)

    def __bool__(self) -> bool:
        return bool(self.rows.size)

    def of(self, row: int) -> str | None:
        """Returns the text of a row of the run; None if it carries its alt-text."""
        position = int(np.searchsorted(self.rows, row))
        here = position < self.rows.size and self.rows[position] == row
        return self.texts[position].as_py() if here else None

    def instead(self, rows: Rows, captions: pa.Array) -> pa.Array:
        """Returns the captions of rows of the run, with other captions in the place of alt-texts."""
        if not self:
            return captions
        import pyarrow.compute as pc

        places = np.searchsorted(self.rows, rows).clip(max=self.rows.size - 1)
        texts = self.texts.take(pa.array(places)).cast(captions.type)
        return pc.if_else(pa.array(self.rows[places] == rows), texts, captions)

    @functools.cached_property
    def digest(self) -> bytes:
        """Identifies the rows and texts; empty if there are none."""
        texts = "\0".join(self.texts.to_pylist())
        return xxhash.xxh3_128_digest(self.rows.tobytes() + texts.encode()) if self else b""


def other_captions(subset: Subset) -> OtherCaptions:
    """Reads the other captions of a subset's kept rows.

    Raises:
        RunError: the run no longer has them, or the subset does not say where they are.
    """
    if subset.caption is None or not subset.caption.any():
        return OtherCaptions()
    name, run = subset.captions_from, subset.run
    if not name:
        raise RunError(f"{subset.name!r} says that rows carry other captions: set captions_from to their column")
    found = texts_of(run, name, np.flatnonzero(subset.caption))
    if lost := found.texts.null_count:
        raise RunError(f"{lost:,} rows of {subset.name!r} have no text in {name!r} any more: select again")
    return found


def texts_of(run: Run, name: str, rows: Rows) -> OtherCaptions:
    """Reads a column of texts for ascending rows of a run; null where a row has none."""
    table, texts = run.table(), [pa.array([], pa.large_string())]
    for block, part in table.blocks_of(rows):
        values = table.read(block, [name])[name]
        texts.append(values.take(pa.array(rows[part] - table.starts[block])).cast(pa.large_string()))
    return OtherCaptions(rows, pa.concat_arrays(texts))


def captions_of(run: Run, rows: Rows, others: OtherCaptions) -> Iterator[str]:
    """Yields the captions of ascending rows of a run, "" for a missing one."""
    first = 0
    for shard, size in zip(run.shards, run.sizes, strict=True):
        low, high = np.searchsorted(rows, [first, first + size])
        if high > low:
            column = run.index(shard, ["caption"]).column("caption").take(pa.array(rows[low:high] - first))
            yield from (text or "" for text in others.instead(rows[low:high], column.combine_chunks()).to_pylist())
        first += size


# ---- two subsets of one run


def join_rows(parts: Sequence[Any], keep: Mask, *, every: bool) -> dict[str, Any]:
    """Returns `times` and `caption` of the rows that selections, outcomes or subsets keep together; None as in them.

    `every`: rows need all parts, count as in the part with the fewest copies, and carry the caption of the first part
    that chooses captions. Else they count as in the part with the most, and carry that of the first that keeps them.
    """
    times = caption = None
    if any(part.times is not None for part in parts):
        each = [part.keep.astype(np.uint16) if part.times is None else part.times for part in parts]
        times = functools.reduce(np.minimum if every else np.maximum, each) * keep
    if any(part.caption is not None for part in parts):
        caption, undecided = np.zeros(keep.size, np.uint8), keep.copy()
        for part in parts:
            if part.caption is not None:
                caption += part.caption * undecided
            if part.caption is not None or not every:
                undecided &= ~part.keep
    return {"times": times, "caption": caption}


def combine(left: Subset, right: Subset, sign: Sign) -> Subset:
    """Returns the rows in both (&), in either (|), or in the left and not in the right (-).

    Repeated rows and captions: see `join_rows`; - leaves both as in the left subset. A dropped row has
    its reason from the left subset, or else from the right one. The result has no order.
    """
    if left.run.path.resolve() != right.run.path.resolve() or left.keep.size != right.keep.size:
        raise ValueError(f"{left.name!r} and {right.name!r} are not of one run: {left.run.path}, {right.run.path}")
    keep = {"&": left.keep & right.keep, "|": left.keep | right.keep, "-": left.keep & ~right.keep}[sign]
    chosen = join_rows([left] if sign == "-" else [left, right], keep, every=sign != "|")
    columns = sorted({subset.captions_from for subset in (left, right)} - {""})
    if len(columns) > 1:
        raise ValueError(f"{left.name!r} and {right.name!r} have other captions from different columns: {columns}")
    verdict = _combine_verdicts(left, right, sign, keep)
    step = _WORDS[sign].format(left.name, right.name)
    dropped: Counter[str] = Counter()
    if verdict.dropped_by is not None:
        for code, count in zip(*np.unique(verdict.dropped_by[~keep], return_counts=True), strict=True):
            dropped[verdict.why[code - 1].text] += int(count)
    line = {"step": step, "before": keep.size, "kept": int(keep.sum()), "dropped": dict(dropped), "cut": None}
    names = [f"({subset.name})" if " " in subset.name else subset.name for subset in (left, right)]
    return replace(
        left,
        keep=keep,
        **chosen,
        order=None,
        captions_from="".join(columns),
        recipe={"about": step, **_combine_recipes(left, right, sign), "name": f" {sign} ".join(names)},
        funnel=[line if chosen["times"] is None else {**line, "times": int(chosen["times"].sum(dtype=np.int64))}],
        reads=sorted({*left.reads, *right.reads}),
        verdict=verdict,
        partial=left.partial or right.partial,
        used=[*left.used, *(maker for maker in right.used if maker not in left.used)],
    )


def _combine_verdicts(left: Subset, right: Subset, sign: Sign, keep: NDArray[np.bool_]) -> Verdict:
    """Returns the reasons for the rows dropped: the left subset's, then the right subset's."""
    one, two = left.verdict, right.verdict
    for subset in (left, right):
        if subset.verdict.dropped_by is None:
            return Verdict(problem=f"the reasons of {subset.name!r} are not known. {subset.verdict.problem}")
    assert one.dropped_by is not None
    assert two.dropped_by is not None
    clash = _names_clash(one.names, two.names)
    codes_right, cuts = two.dropped_by, two.cuts
    why = [_name_subset(reason, left.name, clash) for reason in one.why]
    if sign == "-":
        why.append(DropReason(text=f"in {right.name}", step=1))
        codes_right, cuts = right.keep.astype(np.uint8), ()
    else:
        why += [_name_subset(reason, right.name, clash) for reason in two.why]
    codes = widen(one.dropped_by.copy(), len(why))
    added = (codes == 0) & (codes_right > 0)
    codes[added] = codes_right[added].astype(codes.dtype) + len(one.why)
    codes[keep] = 0
    cuts = (*one.cuts, *(replace(cut, code=cut.code + len(one.why)) for cut in cuts))
    return Verdict(names={**two.names, **one.names}, why=tuple(why), dropped_by=codes, cuts=() if clash else cuts)


def _names_clash(names: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether two recipes use one name for different columns."""
    return any(names.get(name, name) != others.get(name, name) for name in {*names, *others})


def _name_subset(reason: DropReason, subset: str, clash: bool) -> DropReason:
    """Returns a reason that names its subset; without its score if the recipes' names clash."""
    return replace(reason, text=f"not in {subset}: {reason.text}", step=1, score=None if clash else reason.score)


def _combine_recipes(left: Subset, right: Subset, sign: Sign) -> dict[str, Any]:
    """Returns the steps and columns of a recipe that chooses the same rows; {} if one recipe cannot."""
    first, second = left.recipe.get("select"), right.recipe.get("select")
    columns, others = (dict(subset.recipe.get("columns") or {}) for subset in (left, right))
    if not first or not second or _names_clash(columns, others):
        return {}
    steps = {
        "&": [{"all_of": [first, second]}],
        "|": [{"any_of": [first, second]}],
        "-": [{"all_of": [first]}, {"none_of": [second]}],
    }[sign]
    named = columns | others
    return {"select": steps, **({"columns": named} if named else {})}
