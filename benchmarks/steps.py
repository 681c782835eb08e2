"""Every step and every derived signal that looks at the whole pool, at 1.28, 12.8 and 128 million rows.

Rows are drawn as they are read (`benchmarks.drawn`): nothing is on disk but 2,000 references. Drawing counts in the
times, and is named next to them: in a run, reading takes its place. Each case runs in a new process.

`drawing`: what each column costs. `steps`: the steps.

- growth: CPU seconds (and seconds) per row, divided by those of a tenth of the rows. 1 is linear. Some settings cannot
  be linear; a note says how their work grows.
- peak: of resident memory, imports included. Pages of mapped files count too, which the system can take back.
- scratch: bytes of temporary files at their largest, looked at ten times a second.

`--steps NAME,NAME` takes some steps, `--sizes 0.128,1.28` other sizes in millions of rows. A size is skipped where the
one before it predicts more than `--most` seconds, and stopped after twice as long. `--tree DIR` measures the source of
another checkout in turn with this one, and says whether both give the same rows.

Settings are the same at all sizes. `clip_loss` and `norm_sim_d` take hours less than at the published ones; `not_in`,
`norm_sim` and `image_based` have 2,000 references. Left out: `all_of`, `any_of` and `none_of` cost what their parts
cost, `at_most` what `at_least` costs; `tagged` needs people, `scores_from` a file of scores.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.drawn import BLOCK_ROWS, NOISE, NUMBERS, VECTORS, WORDS, DrawnTable, banks, draw, in_hex
from benchmarks.measure import GIB, Case, Spent, benchmark, child, spend
from tamis.recipes.derived import DERIVED
from tamis.recipes.steps import SELECTORS, run_steps

REFERENCES = 2_000
QUICK_STEPS, QUICK_SIZES = ("top_fraction", "sample", "density", "vote"), "0.01,0.1"
GROWTH, PEAK = 1.15, 2 * GIB  # targets


@dataclass(frozen=True)
class Measured:
    """A step or a derived signal with its settings.

    Attributes:
        step: its name.
        settings: FOLDER stands for the folder with the references; a function takes the number of rows.
        label: what tells several cases of a step apart.
        derived: take the derived signal where a step has the same name.
        power: the work grows with this power of the rows.
        note: why it does so.
    """

    step: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    derived: bool = False
    power: float = 1.0
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.step}, {self.label}" if self.label else self.step


SQUARE_ROOT = "sqrt(rows) clusters, and rows are assigned to them"
FUSION = "0.6*minmax(clip) + 0.4*zscore(generated_clip)"

CASES = (
    Measured("at_least", {"score": "clip", "value": 0.28}),
    Measured("between", {"score": "clip - generated_clip", "low": -0.1, "high": 0.0}),
    Measured("equals", {"score": "top_language", "value": ("en", "de")}),
    Measured("top_fraction", {"score": FUSION, "fraction": 0.3}),
    Measured("top_fraction", {"score": "rank(clip)", "fraction": 0.3}, "by rank"),
    Measured("top_n", {"score": "clip", "n": 1_000, "per": "top_language"}, "per language"),
    Measured("random_fraction", {"fraction": 0.1}),
    Measured("hash_match"),
    Measured("choose_caption"),
    Measured("sample", {"score": "clip", "fraction": 1.0}),
    Measured("balance", {"tail": 0.2}),
    Measured("not_in", {"reference": "FOLDER/references.npy", "embedding": "image_embedding", "hashes": False}),
    Measured("distinct"),
    Measured("image_based", {"reference": "FOLDER/references.npy", "clusters": 1_000}),
    Measured("density", {"fraction": 0.277, "clusters": 100}),
    Measured("semdedup", {"epsilon": 0.05}, power=1.5, note=SQUARE_ROOT),
    Measured(
        "semdedup", {"epsilon": 0.05, "clusters": lambda rows: max(rows // 1_000, 1)}, "1,000 rows a cluster",
        power=2, note="linear inside clusters, but as many more clusters to assign rows to",
    ),
    Measured("d2", {"score": "clip", "fraction": 0.3}, power=1.5, note=SQUARE_ROOT),
    Measured("norm_sim_d", {"fraction": 0.2, "rounds": 5}),
    Measured("clipcov", {"fraction": 0.1}, note="2,000 classes"),
    Measured("mix", {"terms": {"clip": 0.6, "generated_clip": 0.4}}),
    Measured("vote", {"scores": ("clip", "generated_clip")}),
    Measured("hash_match", {"phash": "FOLDER/hashes.txt"}, "finding", derived=True),
    Measured("entries", {}),
    Measured("concept_weight", {"concepts": "FOLDER/concepts.npy"}),
    Measured("norm_sim", {"targets": "FOLDER/references.npy", "norm": 2}),
    Measured("clip_loss", {"batch": 1024, "repeats": 1}),
)  # fmt: skip


def write_references(folder: Path, width: int) -> None:
    """Writes references near some centres, the centres, and hashes of which no image of the pool has one."""
    rng, centres = np.random.default_rng(2), banks(width).centres
    near = centres[rng.integers(0, len(centres), REFERENCES)] + rng.normal(0, NOISE / np.sqrt(width), (1, width))
    near += rng.normal(0, NOISE / np.sqrt(width), near.shape)
    np.save(folder / "references.npy", (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32))
    np.save(folder / "concepts.npy", centres)
    hashes = in_hex(draw(np.arange(REFERENCES), 10_000)[:, None])
    (folder / "hashes.txt").write_text("\n".join(hashes.to_pylist()) + "\n", encoding="utf-8")


# ---- in the measured process


def measure_step(folder: str, number: int, rows: int, width: int) -> Spent:
    """Applies a step to a drawn table, or computes a derived signal of it.

    The result has a summary, a digest of the rows that stay (or of the values), the most scratch space in bytes, and
    the CPU seconds in which the table was drawn.
    """
    case, scratch = CASES[number], Path(folder) / "scratch"
    scratch.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    settings = {}
    for key, value in case.settings.items():
        settings[key] = value(rows) if callable(value) else value
        settings[key] = value.replace("FOLDER", folder) if isinstance(value, str) else settings[key]
    is_step = case.step in SELECTORS and not case.derived
    made: Any = (SELECTORS if is_step else DERIVED).named(case.step)(**settings)
    table = DrawnTable(rows, width)
    table.read(0, sorted(made.reads))  # so that banks of noise are ready
    table.drawing.clear()
    with ScratchSpace(scratch) as space:
        if is_step:
            spent = spend(lambda: run_steps(table, [made]))
        else:
            spent = spend(lambda: made.compute(table, lambda _, make: make()))
    facts = {"scratch": space.most, "drawing": sum(table.drawing)}
    if is_step:
        outcome = spent.result
        chosen = [values for values in (outcome.times, outcome.caption) if values is not None]
        result, digest = f"{outcome.funnel[0]['kept']:,} kept", digest_of(rows, outcome.keep, *chosen)
    else:
        columns = [values for values in spent.result.values() if len(values) == rows]
        result, digest = f"{len(columns)} columns", digest_of(rows, *columns)
    return Spent(spent.seconds, spent.cpu_seconds, 0, facts | {"result": result, "digest": digest})


def digest_of(rows: int, *columns: Any) -> str:
    """Returns a short digest of columns, read block by block."""
    digest = hashlib.blake2b(digest_size=8)
    for start in range(0, rows, BLOCK_ROWS):
        for column in columns:
            part = column[start : start + BLOCK_ROWS]
            if isinstance(part, pa.ChunkedArray | pa.Array):
                digest.update("\n".join(map(str, part.to_pylist())).encode())
            else:
                digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


class ScratchSpace:
    """Watches how many bytes the temporary files of this process take: those in a folder, and deleted ones still open.

    Attributes:
        most: the largest number of bytes seen.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder.resolve(), 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ScratchSpace:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.most = max(self.most, self._bytes())

    def _bytes(self) -> int:
        sizes = {}
        opened = Path("/proc/self/fd")
        for path in (*self.folder.rglob("*"), *(one for one in opened.iterdir() if self._is_inside(one))):
            try:
                facts = path.stat()
            except OSError:  # closed or deleted meanwhile
                continue
            if stat.S_ISREG(facts.st_mode):
                sizes[facts.st_dev, facts.st_ino] = 512 * facts.st_blocks  # of a sparse file what is written
        return sum(sizes.values())

    def _is_inside(self, descriptor: Path) -> bool:
        try:
            return os.readlink(descriptor).startswith(f"{self.folder}/")
        except OSError:
            return False


# ---- all cases


@dataclass
class Attempts:
    """The measurements of one case with one source, by rows, and why there are no more."""

    tree: Path | None
    done: dict[int, Spent] = field(default_factory=dict)
    ended: str = ""

    def measure(self, case: Measured, rows: int, most: float, run: Callable[..., Spent]) -> Spent | None:
        """Measures a size unless the ones before predict that it takes too long; None where it was not."""
        if self.done and not self.ended:
            last, power = max(self.done), case.power
            if (growth := self.growth(last)) is not None:
                power = max(power, 1 + math.log10(max(growth[1], 1)))
            predicted = self.done[last].seconds * (rows / last) ** power
            if predicted > most:
                self.ended = f"{rows / 1e6:g} M rows skipped: about {predicted:,.0f} s expected"
        if self.ended:
            return None
        try:
            self.done[rows] = run(tree=self.tree, limit=2 * most)
        except SystemExit as error:
            self.ended = f"{rows / 1e6:g} M rows: {str(error.code).strip().splitlines()[-1]}"
            return None
        return self.done[rows]

    def growth(self, rows: int) -> tuple[float, float] | None:
        """Returns how CPU seconds and seconds per row have grown since a tenth of the rows; None if not measured."""
        if (tenth := self.done.get(rows // 10)) is None:
            return None
        now = self.done[rows]
        return now.cpu_seconds / tenth.cpu_seconds / 10, now.seconds / tenth.seconds / 10


def drawing(root: Path, given: Any) -> Iterator[Case]:
    """Yields what it costs to draw a million rows of each column, and their uids."""
    table = DrawnTable((2 if given.quick else 10) * BLOCK_ROWS, given.width)
    readers: dict[str, Callable[[int], Any]] = {"uids": table.read_uids}
    readers |= {name: partial(table.read, names=[name]) for name in (*NUMBERS, *WORDS, *VECTORS)}
    for name, read in readers.items():
        read(0)  # so that banks of noise are ready
        table.drawing.clear()
        for block in range(len(table.sizes)):
            read(block)
        yield Case(f"drawing {name}", "CPU seconds per million rows", sum(table.drawing) * 1e6 / len(table))


def measure(root: Path, given: Any) -> Iterator[Case]:
    """Yields the cases, and prints a table of them at the end."""
    write_references(root, given.width)
    names = given.steps.split(",") if given.steps else QUICK_STEPS if given.quick else [one.step for one in CASES]
    if unknown := {*names} - {one.step for one in CASES}:
        raise SystemExit(
            f"--steps: {', '.join(sorted(unknown))} not among {', '.join(sorted({c.step for c in CASES}))}"
        )
    given_sizes = given.sizes or (QUICK_SIZES if given.quick else "1.28,12.8,128")
    sizes = sorted(round(1e6 * float(size)) for size in given_sizes.split(","))
    lines = []
    for number, case in enumerate(CASES):
        if case.step not in names:
            continue
        ours, theirs = Attempts(None), Attempts(Path(given.tree)) if given.tree else None
        for place, rows in enumerate(sizes):

            def run(rows: int = rows, number: int = number, **options: Any) -> Spent:
                return child(measure_step, root, number, rows, given.width, **options)

            sides = [side for side in (ours, theirs) if side is not None]
            spent = {}
            for side in sides[:: -1 if place % 2 else 1]:
                before = side.ended
                spent[id(side)] = side.measure(case, rows, float(given.most), run)
                if side.ended != before:
                    where = f", {side.tree}" if side.tree else ""
                    print(f"{case.name}{where}: {side.ended}", flush=True)
                    lines.append([f"{case.name}{where}", f"{rows / 1e6:g} M", side.ended.partition(": ")[2]])
            mine, other = spent[id(ours)], spent[id(theirs)] if theirs else None
            lines += [
                line_of(case, side, rows)
                for side, found in ((ours, mine), (theirs, other))
                if side and found is not None
            ]
            if mine is not None:
                yield case_of(case, ours, rows, mine, other)
    print_table(lines)


def case_of(case: Measured, ours: Attempts, rows: int, mine: Spent, other: Spent | None) -> Case:
    """Returns a measurement of ours, compared with the other tree's if there is one."""
    found = Case(f"{case.name}, {rows / 1e6:g} M rows", "seconds", mine.seconds)
    growth = ours.growth(rows)
    linear = case.power == 1
    found.target = f"growth <= {GROWTH}, peak <= 2 GiB" if linear else "peak <= 2 GiB"
    found.settings = {
        "rows": rows,
        "CPU seconds": round(mine.cpu_seconds, 2),
        "of these for drawing": round(mine.result["drawing"], 2),
        "peak GiB": round(mine.peak_bytes / GIB, 2),
        "scratch GB": round(mine.result["scratch"] / 1e9, 3),
        "growth of CPU seconds per row": growth and round(growth[0], 2),
        "growth of seconds per row": growth and round(growth[1], 2),
        "within targets": mine.peak_bytes <= PEAK and (not linear or growth is None or growth[0] <= GROWTH),
        "result": mine.result["result"],
    }
    found.settings |= {"note": case.note} if case.note else {}
    if other is not None:
        found.baseline, found.ratio = other.seconds, other.seconds / mine.seconds
        found.settings |= {
            "the other tree's CPU seconds": round(other.cpu_seconds, 2),
            "the other tree's peak GiB": round(other.peak_bytes / GIB, 2),
            "the other tree's scratch GB": round(other.result["scratch"] / 1e9, 3),
            "same result": mine.result["digest"] == other.result["digest"],
        }
    return found


COLUMNS = ("step", "rows", "seconds", "CPU s", "of these drawing", "peak GiB", "scratch GB",
           "growth, CPU s", "growth, s", "result", "digest", "note")  # fmt: skip


def line_of(case: Measured, side: Attempts, rows: int) -> list[str]:
    """Returns the cells of a measurement's line."""
    spent, growth = side.done[rows], side.growth(rows)
    name = f"{case.name}, {side.tree}" if side.tree else case.name
    facts = spent.result
    numbers = (spent.seconds, spent.cpu_seconds, facts["drawing"], spent.peak_bytes / GIB, facts["scratch"] / 1e9)
    grown = ["", ""] if growth is None else [f"{each:.2f}" for each in growth]
    expected = "" if case.power == 1 else f"growth up to {10 ** (case.power - 1):.1f}: "
    return [
        name, f"{rows / 1e6:g} M", *(f"{each:,.2f}" for each in numbers), *grown, facts["result"], facts["digest"],
        expected + case.note,
    ]  # fmt: skip


def print_table(lines: list[list[str]]) -> None:
    print("\n| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for line in lines:
        print("| " + " | ".join(line + [""] * (len(COLUMNS) - len(line))) + " |")


if __name__ == "__main__":
    benchmark(__doc__, {"drawing": drawing, "steps": measure}, steps=None, sizes=None, width=64, most=600, tree=None)
