"""`Run`: a run folder opened for reading, with its shards, scores, embeddings and failures."""

from __future__ import annotations

import itertools
import logging
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import U64, Floats, Mask
from tamis.core.errors import PoolError, RunError, ShardError, nearest, unknown_message
from tamis.core.files.checked import damage_error, read_record
from tamis.core.files.find import absolute, expand_braces
from tamis.core.files.storage import files, folders, location, prefetch
from tamis.core.html import glimpse, html_table
from tamis.core.ids import format_uids
from tamis.core.types import INDEX, INDEX_NUMBERS, INDEX_WORDS, RESERVED, Column
from tamis.pools import Pool, PoolSpec
from tamis.pools.source import pool_options
from tamis.runs import parts
from tamis.runs.manifest import FEATURE, SIGNAL, pool_paths, read_description, read_manifest, read_shards, score_folders
from tamis.runs.parts import IndexFacts
from tamis.runs.table import Table, are_numbers

if TYPE_CHECKING:
    import pandas


log = logging.getLogger(__name__)

#: Environment variable: the pool's URLs with user, password or signature, separated by white space. The run stores them
#: without these.
POOL_URLS = "TAMIS_POOL"

_AHEAD = 64  # parts of a run at a URL that are downloaded together

#: What completes a score that `tamis score` does not make.
_COMPLETED_BY = {
    "label": "change a tag in `tamis explore`", "map": "repeat `tamis map`", "cluster": "repeat `tamis cluster`",
}  # fmt: skip


def completed_by(facts: Mapping[str, Any]) -> str:
    """Returns what completes parts with this description, in words; "" for those that `tamis score` makes."""
    return _COMPLETED_BY.get(facts["name"], "repeat `tamis derive`" if facts.get("derived") else "")


@dataclass(frozen=True)
class ScoreSet:
    """The scores of one signal with one fingerprint.

    Attributes:
        folder: `scores/<signal>-<fingerprint>`.
        label: its name in recipes, usually the signal's name.
        columns: the signal's columns.
        facts: the content of `signal.json`.
        shards: the shards that are scored.
        requested: how many rows of the run the signal was asked to judge; None: all.
    """

    folder: Path
    label: str
    columns: tuple[Column, ...]
    facts: Mapping[str, Any]
    shards: frozenset[str]
    requested: int | None = None

    @property
    def completed_by(self) -> str:
        """What completes these scores, in words."""
        return completed_by(self.facts) or "repeat `tamis score`"

    def side_file(self, name: str) -> Any:
        """Returns a side file of the signal (array or JSON), None if there is none; DamageError if it has changed."""
        return parts.read_side_file(self.folder / name, self.facts.get("side_files", {}).get(name))


class Run:
    """A run folder, opened for reading. It reads files only when needed, and holds no lock.

    Attributes:
        path: the folder: a `Path`, or a `tamis.core.files.storage.RemotePath` of a run at a URL.
        partial: whether rows may be read although shards are missing.
        facts: the content of run.json.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partial: bool = False,
        facts: Mapping[str, Any] | None = None,
        pool: Pool | None = None,
    ) -> None:
        """Opens a run folder: a path or a URL.

        Args:
            path: the folder or its URL.
            partial: whether rows may be read although shards are missing.
            facts: the content of run.json, if it was just read; None reads it.
            pool: the opened pool; None opens it on first use.

        Raises:
            RunError: it is not a run folder or has another format, or the store does not answer.
        """
        self.path = location(path)
        self.partial = partial
        facts = facts or read_manifest(self.path)
        if facts is None:
            what = "it holds no run.json" if self.path.exists() else "it does not exist"
            there = Path("runs", self.path.name)
            near = f" (did you mean {there}?)" if (there / "run.json").is_file() else ""
            make = "make one with `tamis score POOL --run RUN`"
            raise RunError(f"{self.path} is not a run folder: {what}{near}; {make}")
        self.facts: Mapping[str, Any] = facts
        if pool is not None and list(pool.spec.paths) == pool_paths(facts):  # else it is one of several
            self.pool = pool
        self._owners: dict[str, IndexFacts] = {}
        self._widths: dict[Path, int] = {}  # of stored embeddings
        self._requested: dict[str, Mask] = {}  # by label of a score
        self._numeric: dict[str, bool] = {}  # by field

    def reopen(self, *, partial: bool | None = None) -> Run:
        """Returns the run with what was written since. Its pool stays open."""
        partial = self.partial if partial is None else partial
        return Run(self.path, partial=partial, facts=self.facts, pool=vars(self).get("pool"))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self.shards)} shards)"

    def _repr_html_(self) -> str:
        shards = len(self.shards)
        rows = []
        for name in self.score_names():
            _, group, column = self.columns[name]
            assert group is not None  # it is a score
            done = len(group.shards & set(self.shards))
            there = "" if done == shards else f"{done:,} of {shards:,} shards"
            facts = {"unit": column.unit or column.kind, "about": column.about, "so far": there}
            rows.append({"column": name, **facts, "no value": self._share_of_nulls(name)})
        if not any(row["so far"] for row in rows):
            rows = [{key: value for key, value in row.items() if key != "so far"} for row in rows]
        counts = f"{len(self):,} pairs in {shards:,} shards"
        counts += f" ({', '.join(f'{count:,} {status}' for status, count in self.statuses.most_common())})"
        counts += f"; {len(self.missing_shards):,} shards are missing" if self.missing_shards else ""
        then = "Next: tamis.select(run, 'basic'), tamis.show(run, 24), tamis.explore(run)"
        return html_table(f"Run {self.path}", f"{counts}. {then}", rows) + glimpse(self)

    def _share_of_nulls(self, name: str) -> str:
        """Returns the share of rows without a score in at most 16 shards; "" if all have one."""
        inner, group, _ = self.columns[name]
        some = sorted(group.shards & {*self.shards}) if group else []
        paths = [group.folder / f"{shard}.parquet" for shard in some[:: -(-len(some) // 16) or 1]] if group else []
        columns = [parts.read_columns(path, [inner], self.owner(path.stem)).column(inner) for path in paths]
        nulls = sum(column.null_count for column in columns)
        return f"{nulls / sum(map(len, columns)):.1%}" if nulls else ""

    # ---- shards ----

    @cached_property
    def urls(self) -> dict[str, str]:
        """{name: path or URL} of the shards that the run lists."""
        return read_shards(self.path, self.facts)

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """The indexed shards, in the order of the run's rows."""
        return tuple(sorted(files(self.path / "index", ".parquet")))

    @cached_property
    def missing_shards(self) -> tuple[str, ...]:
        """The listed shards that are not indexed: not yet read, or unreadable."""
        return tuple(sorted(set(self.urls) - set(self.shards)))

    @cached_property
    def unlisted(self) -> tuple[str, ...]:
        """The indexed shards that the run does not list."""
        return tuple(sorted(set(self.shards) - set(self.urls)))

    @property
    def failures(self) -> dict[str, str]:
        """{shard: error} of shards that could not be read, or not to their end."""
        folder = self.path / "failures"
        return {name: read_record(folder / f"{name}.json")["error"] for name in sorted(files(folder, ".json"))}

    def check_complete(self) -> None:
        """Checks that the indexed shards are the listed ones.

        Raises:
            RunError: shards are missing and the run was not opened with `partial`, or shards of another run are here.
        """
        if self.unlisted:
            raise RunError(
                f"{self.path} has the index of {len(self.unlisted)} shards that it does not list "
                f"({', '.join(self.unlisted[:3])}): they belong to another run. `tamis check RUN` lists what to delete"
            )
        if self.missing_shards and not self.partial:
            failures = self.failures
            first = [f"{name} ({failures.get(name, 'not read yet')})" for name in self.missing_shards[:3]]
            count = len(self.missing_shards)
            more = f" and {count - 3:,} more" if count > 3 else ""
            raise RunError(
                f"{self.path} lacks {count:,} of its {len(self.urls):,} shards: {', '.join(first)}{more}. "
                f"To complete it: {self.completing_command()}. "
                "To go on without them: --partial (in Python: partial=True)"
            )

    @cached_property
    def pool(self) -> Pool:
        """The pool that the run was made from, opened on first use; its shards have the names of the run.

        Secrets of its URLs come from the environment (`POOL_URLS`), and stay in memory. Assign a pool to read its files
        instead.

        Raises:
            PoolError: the pool does not exist.
            RunError: the pool's settings in run.json are unusable.
        """
        from tamis.pools import open_pool

        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.facts["pool"].items()
            if name != "kind" and value is not None
        }
        try:
            spec = PoolSpec(**settings)
        except (TypeError, ValueError) as error:
            raise RunError(f"{self.path / 'run.json'}: the pool's settings cannot be read: {error}") from error
        secret_urls = os.environ.get(POOL_URLS, "").split()
        urls = set(self.urls.values()) if secret_urls else set()
        for url in secret_urls:
            known = absolute(url)  # keeps its secrets in memory
            if known not in spec.paths and not urls & set(expand_braces(known)):
                log.warning("%s names %s, from which %s was not made", POOL_URLS, known, self.path)
        return open_pool(spec, self.urls)

    @cached_property
    def readable_pool(self) -> Pool | None:
        """The pool; None, after a warning, if it cannot be read."""
        try:
            return self.pool
        except (PoolError, ShardError) as error:
            log.warning("the pool cannot be read (%s): the page has no images", error)
            return None

    @property
    def pool_files(self) -> list[str]:
        """The files of the pool, and the paths (files, folders, globs) that named it."""
        return [*self.urls.values(), *pool_paths(self.facts)]

    def completing_command(self) -> str:
        """Returns the command that completes the run."""
        return f"{self.score_command()} --recipe {shlex.quote(str(self.path / 'recipe.yaml'))}"

    def score_command(self) -> str:
        """Returns the start of a command to score the pool with the same settings: `tamis score POOL --run RUN`."""
        words = ["tamis", "score", *(pool_paths(self.facts) or ["POOL"]), "--run", str(self.path)]
        return shlex.join([*words, *pool_options(self.facts["pool"])])

    @property
    def subset_names(self) -> list[str]:
        """The names of the subsets that are stored in the run's folder."""
        return [file.stem for file in (self.path / "subsets").glob("[!.]*.parquet")]

    def embed_command(self) -> str:
        """Returns the command that stores embeddings: of the CLIP that scored the run, or else of a common one."""
        scored = [group.facts["settings"]["model"] for group in self.scores.values() if group.facts["name"] == "clip"]
        setting = f"signals.clip.model={scored[0] if scored else 'openai/clip-vit-base-patch32'}"
        return f"{self.score_command()} --signals clip --set {shlex.quote(setting)} --keep embeddings"

    # ---- the index ----

    def index_path(self, shard: str) -> Path:
        return self.path / "index" / f"{shard}.parquet"

    @cached_property
    def footers(self) -> list[IndexFacts]:
        """Facts in the footers of the index, in the order of `shards`."""
        prefetch(self.index_path(shard) for shard in self.shards if shard not in self._owners)
        return [self.owner(shard) for shard in self.shards]

    def owner(self, shard: str) -> IndexFacts:
        """Returns a shard's row count and uid hash, from its index footer: each of its parts must match them."""
        if shard not in self._owners:
            self._owners[shard] = parts.index_facts(self.index_path(shard))
        return self._owners[shard]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each shard."""
        return tuple(facts.rows for facts in self.footers)

    @cached_property
    def row_ranges(self) -> dict[str, slice]:
        """{shard: slice of the run's rows that it holds}."""
        ends = list(itertools.accumulate(self.sizes))
        return {shard: slice(*ends) for shard, *ends in zip(self.shards, [0, *ends], ends, strict=False)}

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def stamps(self) -> tuple[str, ...]:
        """Size and time of each shard's file when it was indexed."""
        return tuple(facts.stamp for facts in self.footers)

    @cached_property
    def statuses(self) -> Counter[str]:
        """Number of rows by status."""
        return sum((facts.statuses for facts in self.footers), Counter())

    def index(self, shard: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the index of one shard (docs/data-format.md lists its columns)."""
        return parts.read_columns(self.index_path(shard), columns, self.owner(shard))

    # ---- scores, embeddings and texts ----

    @cached_property
    def scores(self) -> dict[str, ScoreSet]:
        """{label: scores of a signal}.

        Raises:
            RunError: a description is damaged or another folder's, or two have the same label.
        """
        found = score_folders(self.path)
        for folder in set(folders(self.path / "scores")) - {folder for folder, _ in found.values()}:
            if files(folder, ".parquet"):
                log.warning("%s has parts but no %s and is left out: repeat `tamis score`", folder, SIGNAL)
        sets = {}
        for label, (folder, facts) in sorted(found.items()):
            shards, requested = files(folder, ".parquet"), None
            columns = tuple(Column(**column) for column in facts["columns"])
            if facts.get("within") and (requested := self._requested_in(folder, shards)) is not None:
                about = f"scored of {requested:,} of {len(self):,} pairs, the others were not requested"
                columns = tuple(
                    replace(column, about=f"{column.about}; {about}" if column.about else about) for column in columns
                )
            sets[label] = ScoreSet(folder, label, columns, facts, frozenset(shards), requested)
        return sets

    def _requested_in(self, folder: Path, shards: Iterable[str]) -> int | None:
        """Returns how many rows the parts of a folder cover; None: all rows of their shards."""
        here = set(shards).intersection(self.shards)
        counts = {shard: parts.requested_in(folder / f"{shard}.parquet") for shard in here}
        if all(count is None for count in counts.values()):
            return None
        return sum(self.owner(shard).rows if count is None else count for shard, count in counts.items())

    @cached_property
    def embeddings(self) -> dict[str, Path]:
        """The folders of stored embeddings, by name `<node>-<fingerprint>`."""
        return {folder.name: folder for folder in folders(self.path / "embeddings")}

    @cached_property
    def vectors(self) -> dict[str, str]:
        """{name in a recipe: folder of embeddings}. The short name, without fingerprint, works if it is unique."""
        return _names_of(self.embeddings)

    def embedding(self, name: str, shard: str) -> Floats:
        """Returns stored embeddings of a shard, memory-mapped.

        Args:
            name: a folder of `embeddings`, or its name without fingerprint if unique.
            shard: the shard.

        Returns:
            (rows, d) float16, unit rows; NaN rows where there is no embedding.
        """
        path = _folder(name, self.embeddings, "embedding") / f"{shard}.npy"
        found = parts.read_rows(path, self.owner(shard))
        width = self._widths.setdefault(path.parent, found.shape[1])
        if found.shape[1] != width:
            raise damage_error(path, f"it holds {found.shape[1]} numbers a row, other shards {width}")
        return found

    @cached_property
    def texts(self) -> dict[str, Path]:
        """The folders of stored texts (captions, lines read in images), by name `<node>-<fingerprint>`."""
        return {folder.name: folder for kind in ("captions", "texts") for folder in folders(self.path / kind)}

    def texts_of(self, name: str, shard: str) -> list[list[str] | None]:
        """Returns the stored texts of a shard: a list per row, or None if the image does not decode.

        Args:
            name: a folder of `texts`, or its name without fingerprint if unique ("generated_captions").
            shard: the shard.
        """
        return parts.read_text_lists(_folder(name, self.texts, "set of texts") / f"{shard}.parquet", self.owner(shard))

    # ---- columns by name ----

    @cached_property
    def columns(self) -> dict[str, tuple[str, ScoreSet | None, Column]]:
        """{name in a recipe: (column in the file, ScoreSet or None for the index, Column)}.

        A score's name is `label.column`, or just `column` if unique and not reserved for the index.
        """
        found: dict[str, tuple[str, ScoreSet | None, Column]] = {}
        for name in INDEX_NUMBERS:
            found[name] = (name, None, Column(name=name, unit=INDEX[name].unit, better="neither"))
        for name in (*INDEX_WORDS, *self.facts["pool"]["fields"]):
            found[name] = (name, None, Column(name=name, unit="", better="neither", kind="word"))
        short = Counter(column.name for group in self.scores.values() for column in group.columns)
        for group in self.scores.values():
            for column in group.columns:
                found[f"{group.label}.{column.name}"] = (column.name, group, column)
                own = short[column.name] == 1 or column.name == group.label
                if own and column.name not in RESERVED:
                    found[column.name] = (column.name, group, column)
        return found

    def locate(self, name: str) -> tuple[str, ScoreSet | None, Column]:
        """Returns the entry of a name in `columns`, or such an entry for stored embeddings.

        Raises:
            RunError: the run has no such column (the nearest is named), or several.
        """
        if name in self.columns:
            return self.columns[name]
        if name == "caption":
            return "caption", None, Column(name="caption", unit="", better="neither", kind="word")
        if name in self.vectors:
            return self.vectors[name], None, Column(name=name, unit="", better="neither", kind="vector")
        several = [folder for folder in self.embeddings if folder.rpartition("-")[0] == name]
        several += [full for full in self.columns if full.endswith(f".{name}")]
        if several:
            raise RunError(f"{self.path} has several {name!r}: write {' or '.join(several)}")
        if name == "tagged":
            raise RunError(f"no pair of {self.path} has a tag: give tags with `tamis explore`")
        if name.endswith("_embedding"):
            unknown = unknown_message("stored embedding", name, self.vectors)
            raise RunError(f"{unknown} in {self.path}. To store those of a CLIP:\n{self.embed_command()}")
        stored = [stem for stem in self.vectors if "-" not in stem]
        known = [*self.score_names(), *self.facts["pool"]["fields"], *stored]
        unknown = f"{unknown_message('score column', name, known)} in {self.path}"
        add = f"{self.score_command()} --field {shlex.quote(name)}"
        raise RunError(unknown if nearest(name, known) else f"{unknown}. If the pool's json or table has it: {add}")

    def is_complete(self, group: ScoreSet | None) -> bool:
        """Whether every shard has some scores (None: the index)."""
        return group is None or group.shards >= set(self.shards)

    @property
    def models(self) -> dict[str, list[str]]:
        """The models that made each set of scores, by its label."""
        return {label: list(group.facts.get("models") or ()) for label, group in self.scores.items()}

    def score_names(self) -> list[str]:
        """Returns the shortest name of every score column."""
        names: dict[tuple[str, str], str] = {}
        for name, (inner, group, _) in self.columns.items():
            if group is not None:
                names[group.label, inner] = min(names.get((group.label, inner), name), name, key=len)
        return list(names.values())

    def complete_score_names(self) -> list[str]:
        """Returns the shortest names of the score columns that all shards have; warns of the others."""
        for label, group in self.scores.items():
            if not self.is_complete(group):
                done = len(group.shards.intersection(self.shards))
                text = "the score %r is left out: only %d of %d shards have it; %s to complete it"
                log.warning(text, label, done, len(self.shards), group.completed_by)
        return [name for name in self.score_names() if self.is_complete(self.columns[name][1])]

    @cached_property
    def hidden(self) -> NDArray[np.bool_]:
        """(rows,) bool: images on a list of the signal `hash_match`. Nothing shows more of these rows than the uid."""
        found = np.zeros(len(self), bool)
        for group in self.scores.values():
            if group.facts["name"] == "hash_match":
                for shard in self.shards:
                    if shard in group.shards:
                        path = group.folder / f"{shard}.parquet"
                        part = parts.read_columns(path, ["on_list"], self.owner(shard))
                        found[self.row_ranges[shard]] |= parts.numbers(part.column("on_list")) == 1
        return found

    @cached_property
    def number_fields(self) -> tuple[str, ...]:
        """The pool's fields that hold numbers."""
        later = [label for label, group in self.scores.items() if group.facts["name"] == "carried_field"]
        fields = [*self.facts["pool"]["fields"], *later]
        return tuple(name for name in fields if self.columns[name][2].kind == "word" and self.holds_numbers(name))

    def holds_numbers(self, name: str) -> bool:
        """Whether a column holds numbers: a score, or a field of the pool with a number in each row that has a value.

        A field is stored as text, so that no digit of an id is lost.
        """
        inner, group, column = self.locate(name)
        if not (group.facts["name"] == "carried_field" if group else inner in self.facts["pool"]["fields"]):
            return column.kind == "number"
        if name not in self._numeric:
            table, seen = self.table(), set[bool | None]()
            for block in range(len(self.shards)):
                seen.add(are_numbers(table.read(block, [name])[name]))
                if False in seen:  # a word
                    break
            self._numeric[name] = False not in seen and True in seen
        return self._numeric[name]

    # ---- rows ----

    @property
    def shown(self) -> Table:
        """The rows as pages may show, count and search them: words of `hidden` rows are null, except the status."""
        self.check_complete()
        return _ShownTable(self)

    def table(self, aliases: Mapping[str, str] | None = None, *, blocks: Sequence[int] | None = None) -> Table:
        """Returns the run's rows as selectors read them: columns by name, block by block.

        Args:
            aliases: {a recipe's own name: column of the run}.
            blocks: the numbers of the shards whose rows it has; None: all.

        Raises:
            RunError: shards are missing, see `check_complete`.
        """
        self.check_complete()
        return RunTable(self, aliases or {}, blocks)

    def read_uids(self, block: int) -> tuple[U64, U64]:
        """Returns the halves of the uids of one shard's rows."""
        return parts.uids_of(self.index(self.shards[block], ["uid_hi", "uid_lo"]))

    def requested(self, group: ScoreSet | None) -> Mask | None:
        """Returns the rows that a signal was asked to judge, (rows,) bool; None: all."""
        if group is None or group.requested is None:
            return None
        if group.label not in self._requested:
            found = self._requested[group.label] = np.ones(len(self), bool)
            for shard in group.shards.intersection(self.shards):
                done = parts.covered_rows(group.folder / f"{shard}.parquet", self.owner(shard))
                found[self.row_ranges[shard]] = True if done is None else done
        return self._requested[group.label]

    def _read(self, block: int, wanted: Mapping[str, tuple[str, ScoreSet | None, Column]]) -> dict[str, Any]:
        """Reads columns of one shard, opening each part once. `wanted` maps names to what `locate` returns."""
        shard = self.shards[block]
        by_part: dict[Path, dict[str, tuple[str, Column]]] = {}
        values: dict[str, Any] = {}
        for name, (inner, group, column) in wanted.items():
            if column.kind == "vector":
                self._prefetch(self.embeddings[inner] / f"{shard}.npy", block)
                values[name] = self.embedding(inner, shard)
                continue
            if group is not None and shard not in group.shards:
                raise RunError(
                    f"the score {group.label!r} is incomplete: {len(group.shards)} of {len(self.shards)} "
                    f"shards have it ({shard} has not); {group.completed_by} first"
                )
            path = self.index_path(shard) if group is None else group.folder / f"{shard}.parquet"
            by_part.setdefault(path, {})[name] = inner, column
        for path, columns in by_part.items():
            self._prefetch(path, block)
            inside = dict.fromkeys(inner for inner, _ in columns.values())
            judged = ["caption_judged"] if path == self.index_path(shard) and "caption" in inside else []
            part = parts.read_columns(path, [*inside, *judged], self.owner(shard))
            for name, (inner, column) in columns.items():
                cells = part.column(inner)
                if judged and inner == "caption":  # not those that are shown but not judged, such as blank ones
                    import pyarrow.compute as pc

                    cells = pc.if_else(part.column("caption_judged"), cells, None)
                if cells.type == pa.uint64():  # image_xxh3: as float32, different images would be one
                    cells = cells.cast(pa.string())
                cells = parts.of_kind(path, inner, cells, column.kind)
                values[name] = parts.numbers(cells) if column.kind == "number" else cells.combine_chunks()
        return values

    def _prefetch(self, path: Path, block: int) -> None:
        """Downloads the parts of the next blocks at once: most readers go through all blocks."""
        if block % _AHEAD == 0:
            prefetch(path.with_name(f"{shard}{path.suffix}") for shard in self.shards[block : block + _AHEAD])

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns uid, shard, key and columns of every row, in memory.

        Args:
            columns: names of scores or index columns (`width`, `status`, ...), or `caption`. None: the caption and the
                scores that all shards have; a warning names the others.
        """
        wanted = list(columns) if columns is not None else ["caption", *self.complete_score_names()]
        self.check_complete()
        pieces = [self.block_to_arrow(block, wanted) for block in range(len(self.shards))]
        return pa.concat_tables(pieces).unify_dictionaries() if pieces else pa.table({"uid": pa.array([], pa.string())})

    def block_to_arrow(self, block: int, columns: Sequence[str]) -> pa.Table:
        """Returns uid, shard, key and columns of the rows of one shard."""
        shard = self.shards[block]
        index = self.index(shard, ["uid_hi", "uid_lo", "key", *(["caption"] if "caption" in columns else [])])
        values = self._read(block, {name: self.locate(name) for name in columns if name != "caption"})
        data = {
            "uid": pa.array(format_uids(*parts.uids_of(index))).cast(pa.string()),
            "shard": pa.array([shard] * index.num_rows, pa.string()).dictionary_encode(),
            "key": index["key"],
        }
        for name in columns:
            value = index["caption"] if name == "caption" else values[name]
            data[name] = pa.array(value, mask=np.isnan(value)) if isinstance(value, np.ndarray) else value
        return pa.table(data)

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """Returns `to_arrow` as a pandas DataFrame."""
        frame: pandas.DataFrame = self.to_arrow(columns).to_pandas()
        return frame

    def to_numpy(self, column: str) -> Floats:
        """Returns a number column, (rows,) float32, NaN where not judged; or stored embeddings, (rows, d) float16."""
        table = self.table()
        blocks = [table.read(block, [column])[column] for block in range(len(self.shards))]
        return np.concatenate(blocks) if blocks else np.empty(0, np.float32)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Returns one column of all rows: `run["clip"]`.

        Returns:
            Numbers: (rows,) float32, NaN where not judged. Words and `caption`: (rows,) str or None. Stored embeddings:
            (rows, d) float16, NaN where there is none.

        Raises:
            RunError: the run has no such column, or only for some shards.
        """
        if self.locate(column)[2].kind == "word":
            return np.array(self.to_arrow([column])[column].to_pylist(), object)
        return self.to_numpy(column)


class RunTable(Table):
    """The rows of a run: see `Run.table`."""

    def __init__(self, run: Run, aliases: Mapping[str, str] | None = None, blocks: Sequence[int] | None = None) -> None:
        self.run, self._aliases = run, dict(aliases or {})
        self._blocks = range(len(run.shards)) if blocks is None else blocks
        sizes = run.sizes
        self.sizes = [sizes[block] for block in self._blocks]
        self._id = uuid4().hex

    def __reduce__(self) -> Any:
        aliases = (*self._aliases.items(),)
        return _reopen, (self._id, str(self.run.path.absolute()), self.run.partial, aliases, len(self.run))

    def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
        return self.run._read(self._blocks[block], {name: self._locate(name) for name in names})

    def read_uids(self, block: int) -> tuple[U64, U64]:
        return self.run.read_uids(self._blocks[block])

    def kind(self, name: str) -> str:
        return self._locate(name)[2].kind

    def holds(self, name: str, kind: str) -> bool:
        return self.run.holds_numbers(self._name(name)) if kind == "number" else self.kind(name) == kind

    def about(self, name: str) -> Mapping[str, Any]:
        inner, group, column = self._locate(name)
        if group is not None:
            return group.facts
        path = self.run.embeddings[inner] / FEATURE if column.kind == "vector" else None
        return read_description(path) if path is not None and path.is_file() else {}

    def side_file(self, name: str, file: str) -> Any:
        group = self._locate(name)[1]
        return None if group is None else group.side_file(file)

    def requested(self, name: str) -> Mask | None:
        return self.run.requested(self._locate(name)[1])

    def _name(self, name: str) -> str:
        return self._aliases.get(name, name)

    def _locate(self, name: str) -> tuple[str, ScoreSet | None, Column]:
        return self.run.locate(self._name(name))


class _ShownTable(RunTable):
    def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
        values, hidden = super().read(block, names), self.run.hidden[slice(*self.starts[block : block + 2])]
        for name in names if hidden.any() else ():
            if name != "status" and self.kind(name) == "word":
                values[name] = values[name].take(pa.array(np.arange(hidden.size), mask=hidden))
        return values


def run_at(path: str | os.PathLike[str]) -> Run | None:
    """Returns the run in a folder; None if there is none yet."""
    return Run(path) if (location(path) / "run.json").is_file() else None


def open_run(path: str | os.PathLike[str] | Run, *, partial: bool = False) -> Run:
    """Opens a run folder to read its rows.

    Args:
        path: the folder or its URL; or an open run, which is then checked.
        partial: whether to go on with the `missing_shards` of an interruption, or of errors.

    Raises:
        RunError: it is not a run folder, or shards are missing; the message names them and the command to complete it.
    """
    run = path if isinstance(path, Run) else Run(path, partial=partial)
    if partial and not run.partial and run.missing_shards:
        run = run.reopen(partial=True)
    run.check_complete()
    return run


@lru_cache(maxsize=1)
def _reopen(once: str, path: str, partial: bool, aliases: tuple[tuple[str, str], ...], rows: int) -> Table:
    """Returns the table of a run that another process has opened with so many rows; `once` differs for each table."""
    run = Run(path, partial=partial)
    if len(run) != rows:
        raise RunError(f"{path} has {len(run):,} rows now and had {rows:,} when it was opened: repeat it")
    return run.table(dict(aliases))


def _names_of(folders: Iterable[str]) -> dict[str, str]:
    """Returns {name: folder}: the full name, and the one without fingerprint if it is unique."""
    short = Counter(name.rpartition("-")[0] for name in folders)
    found = {name: name for name in folders}
    return found | {stem: name for name in folders if short[stem := name.rpartition("-")[0]] == 1}


def _folder(name: str, folders: Mapping[str, Path], what: str) -> Path:
    found = _names_of(folders).get(name)
    if found is None:
        several = any(each.rpartition("-")[0] == name for each in folders)
        raise RunError(unknown_message(what, name, folders) + (" (name one in full)" if several else ""))
    return folders[found]
