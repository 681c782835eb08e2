"""What models trained on the recipes' pairs score: the last `tamis bench` on this run, if there was one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tamis.reporting.charts import interval
from tamis.reporting.context import Context
from tamis.reporting.formats import NONE, count, number, share
from tamis.reporting.html import Markup, tag
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.reporting.tables import scrolling
from tamis.store.records import BenchFile, read_left

#: The file in the run folder that `tamis bench` leaves, and the version of its layout that is read.
FILE, FORMAT = "bench.json", 1


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One recipe.

    Attributes:
        subset: what it is called here.
        share: of the pool's pairs that it keeps.
        epochs: how often a model sees each of them.
        score: the mean over tasks and seeds; None where fewer than two models were trained.
        gain: over the baseline, by seeds; None of the baseline, or where it is unknown.
        tasks: the mean score of each task.
        kinds: of each true kind how many pairs it keeps, and how many there are.
        scoring_seconds, training_seconds: what scoring the pool for it and training one model took; None: unknown.
    """

    subset: SubsetName
    share: float
    epochs: float
    score: Estimate | None
    gain: Estimate | None
    tasks: Mapping[str, float]
    kinds: Mapping[str, tuple[int, int]]
    scoring_seconds: float | None
    training_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class BenchFacts:
    """The ranking.

    Attributes:
        lines: the highest score first.
        baseline: what gains are measured from.
        seeds: how many models of each recipe.
        samples: that each of them saw, repeats counted.
        model: their architecture, or the checkpoint they went on from.
        overlap: intersection over union of what each two recipes keep, in the order of the lines; None of nothing.
        failed: models that there are not, with why.
    """

    lines: Sequence[Line]
    baseline: str
    seeds: int
    samples: int
    model: str
    overlap: Sequence[Sequence[float | None]]
    failed: Mapping[str, str]


def gather(context: Context) -> BenchFacts | None:
    """Reads what the last bench on the run left; None where there is nothing.

    Raises:
        RunError: the file is damaged, or was written by a newer version.
    """
    facts = read_left(context.run.path / FILE, "tamis bench", FORMAT, BenchFile)
    if facts is None:
        return None
    names = [each["name"] for each in facts["contenders"]]
    return BenchFacts(
        lines=[_line(place, each, facts["rows"]) for place, each in enumerate(facts["contenders"])],
        baseline=facts["baseline"],
        seeds=len(facts["seeds"]),
        samples=facts["training"]["samples"],
        model=facts["training"]["model"],
        overlap=[[facts["overlap"][one][two] for two in names] for one in names],
        failed=facts["failed"],
    )


def _line(place: int, each: Mapping[str, Any], rows: int) -> Line:
    return Line(
        subset=SubsetName(place=place, label=each["name"], kept=each["kept"]),
        share=each["kept"] / rows if rows else 0.0,
        epochs=each["epochs"],
        score=_estimate(each["score"]),
        gain=_estimate(each["gain"]),
        tasks={task: measured["value"] for task, measured in each["tasks"].items()},
        kinds={kind: (kept, total) for kind, (kept, total) in each["kinds"].items()},
        scoring_seconds=each["scoring_seconds"],
        training_seconds=each["training_seconds"],
    )


def _estimate(measured: Mapping[str, float] | None) -> Estimate | None:
    if measured is None:
        return None
    return Estimate(value=measured["value"], low=measured["low"], high=measured["high"])


def draw(facts: BenchFacts) -> Markup:
    """Draws the ranking with its intervals, then tasks, true kinds and overlap."""
    intro = tag(
        "p",
        f"{facts.model}, {count(facts.samples)} samples seen by each model whatever the recipe keeps, {facts.seeds} "
        f"seeds. Bars are 95 % intervals over the seeds; the gain is over {facts.baseline}, seed by seed. Where the "
        "gain's interval holds 0, these models do not tell the two apart.",
        class_="quiet",
    )
    failed = [tag("p", f"{name} has no result: {why}", class_="warning") for name, why in facts.failed.items()]
    parts = [_ranking(facts), _numbers(facts, "Mean score by task", _tasks(facts))]
    if facts.lines[0].kinds:
        parts.append(_numbers(facts, "Kept of each true kind", _kinds(facts)))
    if len(facts.lines) > 1:
        parts.append(_numbers(facts, "Shared pairs by pairs in either", _overlap(facts)))
    return tag("div", failed, intro, [tag("div", part, class_="card") for part in parts], class_="stack")


def _ranking(facts: BenchFacts) -> Markup:
    scores, gains = [line.score for line in facts.lines], [line.gain for line in facts.lines]
    head = ("Recipe", "Kept", "Epochs", "Score", "", f"Gain over {facts.baseline}", "", "Scoring", "Training")
    rows = [
        tag(
            "tr",
            tag("th", swatched(line.subset), scope="row"),
            tag("td", f"{100 * line.share:.1f} %", tag("small", count(line.subset.kept)), class_="n"),
            tag("td", number(line.epochs, 3), class_="n"),
            tag("td", _told(line.score), class_="n"),
            tag("td", _bar(line.score, scores, None, f"{line.subset.label}: score"), class_="bars"),
            tag("td", _told(line.gain, sign=True), class_="n"),
            tag("td", _bar(line.gain, gains, 0.0, f"{line.subset.label}: gain"), class_="bars"),
            tag("td", _seconds(line.scoring_seconds), class_="n"),
            tag("td", _seconds(line.training_seconds), class_="n"),
            class_=colour(line.subset),
        )
        for line in facts.lines
    ]
    sides = dict.fromkeys(head[1:], "n")
    header = tag("tr", [tag("th", text, scope="col", class_=sides.get(text)) if text else tag("td") for text in head])
    return scrolling(tag("table", tag("thead", header), tag("tbody", rows), class_="ranking"), "Ranking of recipes")


def _told(estimate: Estimate | None, *, sign: bool = False) -> Markup:
    if estimate is None:
        return tag("span", NONE)
    form = "+.3f" if sign else ".3f"
    low, value, high = (f"{end:{form}}".replace("-", "−") for end in (estimate.low, estimate.value, estimate.high))
    return tag("span", value, tag("small", f"{low} to {high}"))


def _bar(estimate: Estimate | None, beside: Sequence[Estimate | None], zero: float | None, what: str) -> Markup | None:
    """Returns the interval on the scale that all intervals of its column share."""
    if estimate is None:
        return None
    known = [one for one in beside if one is not None]
    ends = [*(one.low for one in known), *(one.high for one in known), *([] if zero is None else [zero])]
    words = f"{what} {estimate.value:.3f}, from {estimate.low:.3f} to {estimate.high:.3f}"
    return interval(estimate.low, estimate.value, estimate.high, ends=(min(ends), max(ends)), mark=zero, describe=words)


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f} s"


#: The name of a row with its cells, one for each recipe: what it says, and how full it is, in [0, 1].
Row = tuple[str, Sequence[tuple[str, float]]]


def _numbers(facts: BenchFacts, title: str, rows: Sequence[Row]) -> Markup:
    """Returns a table with a column per recipe."""
    header = tag(
        "tr", tag("td"), [tag("th", swatched(line.subset), scope="col", class_="n subset") for line in facts.lines]
    )
    body = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            [
                tag("td", text, class_=f"n heat {colour(line.subset)}", style=f"--v:{100 * filled:.1f}%")
                for line, (text, filled) in zip(facts.lines, cells, strict=True)
            ],
        )
        for name, cells in rows
    ]
    table = tag("table", tag("caption", title), tag("thead", header), tag("tbody", body))
    return scrolling(table, title)


def _rows(facts: BenchFacts, names: Sequence[str], cell: Callable[[Line, str], tuple[str, float]]) -> list[Row]:
    return [(name, [cell(line, name) for line in facts.lines]) for name in names]


def _tasks(facts: BenchFacts) -> list[Row]:
    def cell(line: Line, task: str) -> tuple[str, float]:
        value = line.tasks.get(task)
        return (NONE, 0.0) if value is None else (f"{value:.3f}", value)

    return _rows(facts, sorted({task for line in facts.lines for task in line.tasks}), cell)


def _kinds(facts: BenchFacts) -> list[Row]:
    def cell(line: Line, kind: str) -> tuple[str, float]:
        kept, total = line.kinds[kind]
        return share(kept, total), kept / total

    totals = {kind: total for kind, (_, total) in facts.lines[0].kinds.items()}
    return _rows(facts, sorted(totals, key=lambda kind: (-totals[kind], kind)), cell)


def _overlap(facts: BenchFacts) -> list[Row]:
    return [
        (line.subset.label, [(NONE, 0.0) if value is None else (f"{value:.2f}", value) for value in values])
        for line, values in zip(facts.lines, facts.overlap, strict=True)
    ]
