"""Results of `tamis choose`: a race of recipes at shares of the pool, and curves of recipes over their shares."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from tamis.core.files.checked import read_result
from tamis.reports.charts import Shapes, apart, area, axis, curve_shapes, ticks
from tamis.reports.context import Context, Facts
from tamis.reports.formats import colours
from tamis.runs import Run


def race(context: Context) -> Facts | None:
    """Reads the last race on this run; None if there is none.

    `scores` of an arm are {round: mean}, `below` how far these are below the round's best; rounds count from 1.
    """
    facts = read_result(context.run.path / "choose.json", "tamis choose")
    if facts is None:
        return None
    colour = colours(context.run.subset_names, [each["label"] for each in context.names], facts["answer"])
    means = [{int(number): fmean(scores) for number, scores in each["scores"].items()} for each in facts["arms"]]
    best = {number: max(each[number] for each in means if number in each) for number in range(1, facts["done"] + 1)}
    arms = [
        {
            "subset": {"colour": colour[each["name"]] if each["name"] in facts["answer"] else "gone",
                       "label": " = ".join([each["name"], *each["same"]]), "kept": each["kept"]},
            "share": each["kept"] / facts["rows"] if facts["rows"] else 0.0,
            "state": each["state"] if each["left"] is None else f"excluded, round {each['left']}",
            "scores": scores, "below": {number: mean - best[number] for number, mean in scores.items()},
            "accuracy": fmean(each["accuracies"][str(max(scores))]) if scores else None,
            "epochs": each["epochs"][str(max(scores))] if scores else None, "scoring_seconds": each["scoring_seconds"],
        }
        for each, scores in zip(facts["arms"], means, strict=True)
    ]  # fmt: skip
    names = ("lengths", "seeds", "done", "errors", "margins", "verdict", "failed")
    return {"arms": arms, "model": facts["training"]["model"], **{name: facts[name] for name in names}}


def shares(context: Context) -> Facts | None:
    """Reads the last curves on this run; None if there are none."""
    curves = curves_of(context.run)
    return {"curves": curves} if curves else None


def curves_of(run: Run) -> list[Facts]:
    """Returns the curves in the run's folder, with the mean of each share in place of all scores."""
    facts = read_result(run.path / "shares.json", "tamis choose --curve") or {"curves": ()}
    names = ("recipe", "shares", "kept", "left", "margin", "error", "bracket", "point", "verdict")
    return [
        {**{name: each[name] for name in names}, "scores": [fmean(scores) for scores in each["scores"]],
         "model": each["training"]["model"], "seeds": len(each["scores"][0])}
        for each in facts["curves"]
    ]  # fmt: skip


def draw_race(facts: Facts) -> Facts:
    """Returns the shapes of a race, where its ticks and the label of each line are, and its height in lines of text.

    A round is a column. Scores are below the best arm's: all grow from round to round by far more than they differ.
    """
    width, drawn = 100 / len(facts["lengths"]), [arm for arm in facts["arms"] if arm["below"]]
    drawn.sort(key=lambda arm: arm["subset"]["colour"] != "gone")  # the answer on top
    points = [
        [((number - 0.5) * width, mean, facts["errors"][number - 1]) for number, mean in arm["below"].items()]
        for arm in drawn
    ]
    margins = {number: -margin for number, margin in enumerate(facts["margins"]) if margin is not None}
    reach = [mean + sign * error for each in points for _, mean, error in each for sign in (-1, 1)]
    y = axis([*reach, *margins.values()], turned=True)
    shapes: Shapes = [area("leaves", number * width, (number + 1) * width, y(top)) for number, top in margins.items()]
    for arm, each in zip(drawn, points, strict=True):
        shapes += curve_shapes(arm["subset"]["colour"], each, y)
    lines, labels = max(11, len(drawn)), []
    for x in {each[-1][0] for each in points}:  # a label moved next to another line's end would name that line
        ends = [(y(each[-1][1]), arm) for arm, each in zip(drawn, points, strict=True) if each[-1][0] == x]
        tops = apart([place for place, _ in ends], 100 / lines)
        labels += [(x, top, arm) for top, (_, arm) in zip(tops, ends, strict=True)]
    return {"shapes": shapes, "ticks": ticks([*reach, *margins.values()], y), "labels": labels, "lines": lines}


def draw_curve(curve: Mapping[str, Any]) -> Facts:
    """Returns the shapes of a curve over the logarithm of the share, and the places of ticks, shares and the point."""
    x, limit = axis(curve["shares"], log=True), max(curve["scores"]) - curve["margin"]
    points = [(x(share), mean, curve["error"]) for share, mean in zip(curve["shares"], curve["scores"], strict=True)]
    reach = [limit, *(mean + sign * error for _, mean, error in points for sign in (-1, 1))]
    y, point = axis(reach, turned=True), x(curve["point"])
    shapes = [area("bracket", *map(x, curve["bracket"])), *curve_shapes("", points, y)]
    for one, left in zip(points, curve["left"], strict=True):
        shapes += curve_shapes("gone", [one], y)[-1:] if left else []  # a grey dot
    shapes.append({"class": "limit", "x1": 0, "x2": 100, "y1": y(limit), "y2": y(limit)})
    shapes.append({"class": "cut", "x1": point, "x2": point, "y1": 0, "y2": 100})
    return {"shapes": shapes, "ticks": ticks(reach, y), "shares": [place for place, *_ in points], "point": point}
