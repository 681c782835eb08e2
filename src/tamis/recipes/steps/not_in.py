"""Copies of reference images, such as those of a test set: finding and dropping them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float32s, Mask, Rows, load_array
from tamis.core.errors import RecipeError, check_words, first_line, read_text
from tamis.core.files.scratch import stored
from tamis.core.ids import format_uids
from tamis.core.math.copies import COLOUR, LIGHT, NearTo, Thumbnails, are_copies
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps.clusters import BLOCK, check_widths, has_embedding, present, reference_vectors
from tamis.recipes.steps.distinct import decode, decode_column
from tamis.recipes.steps.outcome import Blockwise, IfMissing, Rule, check_kind, coded, rule_by, rule_of
from tamis.runs import Run
from tamis.runs.reasons import Codes
from tamis.runs.table import Table, as_numbers

_HASHES = ("image_hash", "image_colours", "image_lightness")

#: Borderline: thumbnails that agree if they may differ by so many times more; cosines below the limit by so much.
_LOOSER, _BELOW = 3, 0.02

#: A pair: row of the pool, number of the reference, whether it is a copy (else borderline), bits or cosine.
PAIR = np.dtype([("row", "i8"), ("reference", "i8"), ("copy", "?"), ("by_cosine", "?"), ("value", "f4")])


@dataclass(frozen=True)
class References:
    """The m reference images. Fields are None if not compared. Names are uids, or numbers from 0."""

    names: NDArray[Any] | range
    hashes: U64 | None = None  # (m, k); 0 for a flat image, or one without a hash
    images: Thumbnails | None = None  # None: hashes alone decide
    vectors: Float32s | None = None  # (m, d) unit rows, NaN for none
    captions: list[str | None] | None = None


@dataclass(frozen=True, kw_only=True)
class NotIn(Blockwise):
    """Drops pairs whose image is a copy of a reference image, such as one of a test set or of another pool.

    An image is a copy by the rules of `distinct` (near hashes, and thumbnails that agree), or by the cosine of stored
    embeddings. Borderline pairs stay, and are counted in the facts; `find` returns them.

    Attributes:
        reference: a run that stores image_hash (or the embedding); a text file with a hash of 16 hex digits per line,
            which must then be within half of `distance`, as no thumbnail can confirm it; or a .npy file: hashes
            (m,) uint64, or embeddings (m, d).
        hashes: compare hashes and thumbnails.
        distance, levels, tolerance: as `distinct` has them.
        embedding: stored embeddings to compare as well; None: compare only hashes.
        cosine: images whose embeddings have at least this cosine are copies.
        caption: "same": drop a pair only if its caption is also that of the reference, apart from case, white space and
            punctuation.
        missing: what to do with rows without hash or embedding.

    Cost: look-ups in tables of hashes; n m d multiplications for embeddings. Memory: 1.2 kB per reference, and its
        embedding in float32.
    """

    name: ClassVar[str] = "not_in"
    poolwide: ClassVar[frozenset[str]] = frozenset()
    reference: str
    hashes: bool = True
    distance: int = 8
    levels: int = 3
    tolerance: int = 3
    embedding: str | None = None
    cosine: float = 0.95
    caption: Literal["any", "same"] = "any"
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        for name, most in (("distance", 15), ("levels", 255), ("tolerance", 255), ("cosine", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be between 0 and {most}, got {getattr(self, name)}")
        if not self.hashes and self.embedding is None:
            raise ValueError(
                "hashes: false compares nothing: name stored embeddings, such as embedding: image_embedding"
            )
        check_words(self)

    @property
    def _vectors(self) -> list[str]:
        return [self.embedding] if self.embedding else []

    @property
    def reads(self) -> frozenset[str]:
        hashes = (*_HASHES, "width", "height") if self.hashes else ()
        return frozenset([*hashes, *self._vectors, *(["caption"] if self.caption == "same" else [])])

    @property
    def described(self) -> str:
        return f"no copy of {Path(self.reference).name}"

    def check_files(self) -> None:
        """Raises RecipeError if the references cannot be read."""
        self.references()

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError unless hashes and captions are words, and embeddings vectors."""
        for name in sorted(self.reads - {"width", "height"}):
            check_kind(self.name, table, name, "vector" if name in self._vectors else "word")

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        references, what = self.references(table), " and ".join(["image_hash"] * self.hashes + self._vectors)
        pairs, missing = self.find(table, references)
        copies = pairs[pairs["copy"]]
        rows = np.unique(copies["row"])
        facts = {
            "references": len(references.names),
            "references_found": np.unique(copies["reference"]).size,
            "borderline": np.setdiff1d(pairs["row"], rows).size,
        }

        def kept(span: slice) -> Mask:
            return ~np.isin(np.arange(span.start, span.stop), rows)

        reason = f"copy of {Path(self.reference).name}"
        return rule_by(self, kept, missing.__getitem__, reason, what=what, facts=facts)

    def find(self, table: Table, references: References) -> tuple[NDArray[Any], Any]:
        """Returns the candidates' pairs with references, (n,) `PAIR`, and which candidates could not be compared, an
        array or `stored`.
        """
        near = None if references.hashes is None else NearTo(references.hashes, self.distance)
        by_hash, by_vector = references.hashes is not None, references.vectors is not None
        names = [*(_HASHES if by_hash else ()), *(("width", "height") if by_hash else ()), *self._vectors * by_vector]
        names += ["caption"] if self.caption == "same" else []

        def work(span: slice, columns: dict[str, Any], among: Mask) -> tuple[slice, NDArray[Any], Mask]:
            lacks, found = np.zeros(among.size, bool), [np.empty(0, PAIR)]
            if near is not None:
                lacks |= decode(columns["image_hash"], "image_hash")[1]
                found += self._by_hash(columns, np.flatnonzero(among & ~lacks), references, near)
            if by_vector and self.embedding:
                there = present(columns[self.embedding])
                lacks = lacks & ~there if by_hash else ~there
                found += self._by_cosine(columns[self.embedding], np.flatnonzero(among & there), references)
            pairs = np.unique(np.concatenate(found))
            if self.caption == "same":
                mine, theirs = columns["caption"].take(pairs["row"]).to_pylist(), references.captions or []
                pairs = pairs[
                    [
                        normalise(one) == normalise(theirs[n])
                        for one, n in zip(mine, pairs["reference"].tolist(), strict=True)
                    ]
                ]
            pairs["row"] += span.start
            return span, pairs, lacks & among

        missing, parts = stored(len(table), bool), [np.empty(0, PAIR)]
        for span, pairs, lacks in table.scan(names, work):
            missing[span] = lacks
            parts.append(pairs)
        return np.concatenate(parts), missing

    def _by_hash(
        self, columns: dict[str, Any], rows: Rows, references: References, index: NearTo
    ) -> Iterator[NDArray[Any]]:
        """Yields the pairs of some rows of a block whose hashes are near."""
        assert references.hashes is not None
        hashes = decode(columns["image_hash"].take(rows), "image_hash")[0].view(">u8").astype(np.uint64)
        flat = references.hashes[:, 0] == 0
        for mine, theirs, bits in index.pairs(hashes):
            # A flat image has only its hash in common with others: thumbnails must be equal (see `distinct`).
            apart = (hashes[mine, 0] == 0) | flat[theirs]
            if references.images is None:
                copy, near = bits <= self.distance // 2, ~apart
            else:
                images, where = np.unique(mine, return_inverse=True)
                one = thumbnails(columns, rows[images]).of(where)
                two = references.images.of(theirs)
                same = (one.light == two.light).all(axis=1) & (one.colours == two.colours).all(axis=1)
                copy = np.where(apart, same, False)
                near = copy.copy()
                shaped = np.flatnonzero(~apart)
                one, two = one.of(shaped), two.of(shaped)
                copy[shaped] = are_copies(one, two, levels=self.levels, tolerance=self.tolerance)
                looser = are_copies(one, two, levels=_LOOSER * self.levels, tolerance=_LOOSER * self.tolerance)
                near[shaped] = copy[shaped] | looser
            yield _pairs(rows[mine[near]], theirs[near], copy[near], bits[near], by_cosine=False)

    def _by_cosine(self, vectors: Any, rows: Rows, references: References) -> Iterator[NDArray[Any]]:
        """Yields the pairs of some rows of a block with a cosine near the limit or above it."""
        others = references.vectors
        assert others is not None
        check_widths(self.name, {"the references": others.shape[1], self._vectors[0]: vectors.shape[1]})
        for start in range(0, rows.size, BLOCK):
            some = rows[start : start + BLOCK]
            mine = unit_rows(vectors[some])
            for first in range(0, len(others), BLOCK):
                products = mine @ others[first : first + BLOCK].T
                row, other = np.nonzero(products >= self.cosine - _BELOW - 1e-6)
                value = products[row, other].round(6)  # float32 sums differ by about a millionth between machines
                near = value >= np.float32(self.cosine - _BELOW)
                row, other, value = row[near], other[near], value[near]
                yield _pairs(some[row], first + other, value >= np.float32(self.cosine), value, by_cosine=True)

    def references(self, table: Table | None = None) -> References:
        """Reads the references; RecipeError if they cannot be read, or lack what is compared."""
        path = Path(self.reference).expanduser()
        try:
            if (path / "run.json").is_file():
                return self._of_run(Run(path), table)
            if path.is_dir():
                raise RecipeError(
                    f"not_in: {path} is a folder without run.json. Score its images first: tamis score {path} --run "
                    "REFERENCE --signals image_hash, and name that run"
                )
            found = load_array(path) if path.suffix == ".npy" else _read_hashes(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or first_line(error)
            raise RecipeError(f"not_in: the references {path} cannot be read ({reason})") from error
        if not found.size:
            raise RecipeError(f"not_in: {path} holds no references")
        if found.dtype == np.uint64 and found.ndim in (1, 2) and self.hashes:
            references = References(range(len(found)), hashes=found.reshape(len(found), -1))
        elif found.dtype.kind == "f" and found.ndim == 2 and self.embedding:
            vectors = np.concatenate([*reference_vectors(str(path), self.embedding, of=self.name)])
            with np.errstate(over="ignore"):  # beyond float32's range: infinite, so missing
                names = np.flatnonzero(present(np.asarray(found, np.float32)))  # the others are left out
            references = References(names, vectors=vectors)
        else:
            lacking = "embedding: image_embedding" if found.dtype.kind == "f" else "hashes (m,) uint64, hashes: true"
            raise RecipeError(f"not_in: {path} holds {found.shape} {found.dtype}: comparing it needs {lacking}")
        if self.caption == "same":
            raise RecipeError(f"not_in: {path} has no captions to compare (caption: same): use a run as the reference")
        return references

    def _of_run(self, run: Run, pool: Table | None) -> References:
        table = run.table()
        there, found = np.zeros(len(table), bool), dict[str, Any]()
        if self.hashes:
            if "image_hash" not in run.columns:
                raise RecipeError(f"not_in: {run.path} has no hashes: {run.score_command()} --signals image_hash")
            numbers, missing = decode_column(table, "image_hash")
            there |= ~missing
            found["hashes"] = numbers.view(">u8").astype(np.uint64)
            parts = list(table.map([*_HASHES, "width", "height"], lambda span, columns: thumbnails(columns)))
            found["images"] = Thumbnails(*(np.concatenate([getattr(p, n) for p in parts]) for n in _PARTS))
        if self.embedding:
            models = pool.about(self.embedding).get("models") if pool is not None else None
            next(reference_vectors(self.reference, self.embedding, models, of=self.name))  # checks the models
            there |= has_embedding(table, self.embedding)[:]
        rows = np.flatnonzero(there)  # the others cannot be compared
        if not rows.size:
            raise RecipeError(f"not_in: {self.reference} holds no references")
        if self.hashes:
            found |= {"hashes": found["hashes"][rows], "images": found["images"].of(rows)}
        if self.embedding:
            found["vectors"] = unit_rows(table.vectors(self.embedding, rows))
        if self.caption == "same":
            texts = table.map(["caption"], lambda span, columns: columns["caption"].to_pylist())
            captions = [one for some in texts for one in some]
            found["captions"] = [captions[row] for row in rows]
        return References(format_uids(*table.uids(rows)), **found)


@dataclass(frozen=True, kw_only=True)
class HashMatch(Blockwise):
    """Drops pairs whose image is on a list of the derived signal `hash_match`; the lists are its settings.

    Make it the first step, so that later ones never choose such an image over its copies.

    Attributes:
        missing: what to do with rows without any of the hashes.
    """

    name: ClassVar[str] = "hash_match"
    reads: ClassVar[frozenset[str]] = frozenset({"on_list"})
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        check_words(self)

    def fit(self, table: Table) -> Rule:
        def decide(span: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            listed = as_numbers(columns["on_list"])
            return coded(listed == 0, np.isnan(listed))

        return rule_of(self, ["on_list"], decide, "on a list of hashes", what="on_list")


_PARTS = ("light", "colours", "side")


def thumbnails(columns: dict[str, Any], rows: Rows | None = None) -> Thumbnails:
    """Returns the thumbnails of rows of a block with the columns of `image_hash`; zeros for rows without."""
    rows = np.arange(len(columns["image_hash"])) if rows is None else rows
    light, colours = (decode(columns[name].take(rows), name)[0] for name in ("image_lightness", "image_colours"))
    side = np.minimum(columns["width"], columns["height"])[rows]
    if not light.shape[1]:  # no row has one
        light, colours = np.zeros((rows.size, LIGHT**2), np.uint8), np.zeros((rows.size, 2 * COLOUR**2), np.uint8)
    return Thumbnails(light, colours, np.where(np.isnan(side), np.inf, side).astype(np.float32))


def normalise(caption: str | None) -> str | None:
    """Returns a caption in lower case, with single spaces and without punctuation; None stays None and equals none."""
    return None if caption is None else " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", caption).casefold()))


def _read_hashes(path: Path) -> U64:
    """Reads hashes of 16 hex digits, one a line; empty lines and those that begin with # are left out."""
    lines = [(n, line.strip()) for n, line in enumerate(read_text(path).splitlines(), 1)]
    wanted = [(n, line) for n, line in lines if line and not line.startswith("#")]
    for number, line in wanted:
        if not re.fullmatch("[0-9a-fA-F]{16}", line):
            raise RecipeError(f"not_in: {path}, line {number}: {line[:40]!r} is not a hash of 16 hex digits")
    return np.array([int(line, 16) for _, line in wanted], np.uint64)


def _pairs(rows: Rows, others: Rows, copy: Mask, value: Any, *, by_cosine: bool) -> NDArray[Any]:
    found = np.empty(rows.size, PAIR)
    for name, values in zip(PAIR.names or (), (rows, others, copy, by_cosine, value), strict=True):
        found[name] = values
    return found
