"""The sections about `tamis choose`: the race drawn round by round, and the curves of shares."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser_view import parsed, sections_of, shown
from factories import write_run
from races import curve_of, race_of, write_curves, write_race

from tamis.core.errors import DamageError, RunError
from tamis.core.files.checked import write_record
from tamis.reports.charts import apart, axis, ticks
from tamis.reports.sections.race import curves_of, draw_curve, draw_race
from tamis.runs import Run

ARMS = {"tmars@0.3": 0.0, "<b>@0.2": -0.001, "random@0.3": -0.06, "no-filter": -0.3, "sieve@0.3": 0.0}
HUMP = (-2.2, -2.1, -2.0, -1.95, -1.94, -1.97, -2.05, -2.1)


@pytest.fixture
def raced(tmp_path: Path) -> Run:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0, 3.0, 4.0]})
    write_race(run, race_of(ARMS, aside=["sieve@0.3"]))
    return run


def lines_of(drawn: dict[str, Any], class_: str) -> list[Any]:
    return [each for each in drawn["shapes"] if each["class"].split()[0] == class_]


def test_a_race_is_shown_with_its_verdict_and_a_line_of_the_table_per_arm(raced: Run) -> None:
    html, text = shown(raced, [], "race")
    tags = parsed(html)[0]
    assert "b" not in tags  # a recipe's name is no markup
    assert tags.count("tr") == 1 + len(ARMS)
    for sentence in race_of(ARMS, aside=["sieve@0.3"]).verdict():
        assert f"{sentence[1:]}." in text
    for words in ("tmars@0.3 = its-twin", "set aside", "excluded, round 2", "98,304", "50.0 %500", "0.300", "12 s"):
        assert words in text


def test_lines_end_where_arms_left_and_only_the_answer_has_colour(raced: Run) -> None:
    facts = sections_of(raced, [])["race"]
    arms = {arm["subset"]["label"].split(" ")[0]: arm for arm in facts["arms"]}
    assert {name: max(arm["below"]) for name, arm in arms.items()} == {
        "tmars@0.3": 4, "<b>@0.2": 4, "sieve@0.3": 1, "random@0.3": 3, "no-filter": 2,
    }  # fmt: skip
    grey = {name for name, arm in arms.items() if arm["subset"]["colour"] == "gone"}
    assert grey == {"random@0.3", "no-filter"}
    best = max(arm["scores"][2] for arm in arms.values() if 2 in arm["scores"])
    assert arms["no-filter"]["below"][2] == arms["no-filter"]["scores"][2] - best < -0.25
    drawn = draw_race(facts)
    assert len(lines_of(drawn, "share")) == len(ARMS)
    assert len(lines_of(drawn, "range")) == len(lines_of(drawn, "dot")) == 4 + 4 + 1 + 3 + 2  # one per round of an arm
    assert [each["class"] for each in lines_of(drawn, "share")[:2]] == ["share gone"] * 2  # the answer is on top
    ends = {arm["subset"]["label"]: x for x, _, arm in drawn["labels"]}
    assert (ends["no-filter"], ends["<b>@0.2"], ends["sieve@0.3"]) == (37.5, 87.5, 12.5)


def test_an_arm_that_leaves_ends_in_the_shaded_part(raced: Run) -> None:
    drawn = draw_race(sections_of(raced, [])["race"])
    corners = [re.findall(r"[\d.]+", each["d"]) for each in lines_of(drawn, "leaves")]
    tops = {float(left): float(top) for left, top, *_ in corners}
    assert list(tops) == [25, 50, 75]  # the left sides of rounds 2 to 4: nothing leaves in the first
    inside = {}
    for each in lines_of(drawn, "share"):
        x, y = map(float, each["d"].split("L")[-1].removeprefix("M").split())
        inside[x, each["class"] == "share gone"] = y > tops.get(x - 12.5, 100)
    assert inside == {(37.5, True): True, (62.5, True): True, (87.5, False): False, (12.5, False): False}


def test_arms_without_a_result_are_listed_with_the_reason(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0]})
    race = race_of({"a": 0.0, "b": -0.1})
    none: dict[int, Any] = {}
    failed = replace(race.arms[1], name="<i>", state="failed", left=None, scores=none, accuracies=none, epochs=none)
    write_race(run, replace(race, arms=(*race.arms, failed), failed={"<i>": "its process died"}))
    html, text = shown(run, [], "race")
    assert "<i>" not in html
    assert "<i> has no result: its process died" in text
    assert re.search(r"<i> ?50.0 %500 ?failed", text), text
    assert len(draw_race(sections_of(run, [])["race"])["labels"]) == 2


def test_a_race_that_ended_after_one_round_has_no_margin(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0]})
    write_race(run, race_of({"a": 0.0, "b": -0.1}, done=1))
    drawn = draw_race(sections_of(run, [])["race"])
    assert (lines_of(drawn, "leaves"), len(drawn["labels"])) == ([], 2)
    assert "24,576" in shown(run, [], "race")[1]  # the axis has the rounds that were planned


def test_a_curve_has_its_bracket_shaded_and_its_point_marked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0]})
    curve = curve_of("clip-50", HUMP)
    write_curves(run, curve, curve_of("<b>", HUMP[::-1]))
    html, text = shown(run, [], "shares")
    assert "b" not in parsed(html)[0]
    assert f"{curve.verdict()[0]}." in text
    assert f"{100 * curve.point:.3g} %, no interval" in text
    assert "57.712182842" in text  # the shares in per cent, below the axis
    (first, _) = curves_of(run)
    drawn = draw_curve(first)
    (bracket,), (point,) = lines_of(drawn, "bracket"), lines_of(drawn, "cut")
    left, right = (float(number) for number in re.findall(r"[\d.]+", bracket["d"])[0:3:2])
    places = dict(zip(curve.shares, drawn["shares"], strict=True))
    assert (left, right) == (places[curve.bracket[0]], places[curve.bracket[1]])
    assert left < point["x1"] < right
    assert len([each for each in lines_of(drawn, "dot") if each["class"] == "dot gone"]) == sum(curve.left) > 0
    assert drawn["shares"][0] == 4
    assert drawn["shares"][-1] == 96


def test_without_results_there_are_no_sections(small_run: Run) -> None:
    assert {"race", "shares"} & set(sections_of(small_run, [])) == set()


@pytest.mark.parametrize(
    ("name", "command"), [("choose.json", "tamis choose"), ("shares.json", "tamis choose --curve")]
)
def test_files_of_other_versions_and_damaged_ones_are_errors(tmp_path: Path, name: str, command: str) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0]})
    write_record(run.path / name, {"kind": command, "format": 2})
    with pytest.raises(
        RunError, match=f"{name} was written by another version of tamis: delete it, or repeat `{command}`"
    ):
        sections_of(run, [])
    (run.path / name).write_text('{"kind": "mine"}')
    with pytest.raises(DamageError, match=f"delete it, and repeat `{command}`"):
        sections_of(run, [])


def test_ticks_are_round_numbers_on_their_axis() -> None:
    place = axis([-0.071, 0.004], turned=True)
    assert [text for _, text in ticks([-0.071, 0.004], place)] == [
        "−0.07", "−0.06", "−0.05", "−0.04", "−0.03", "−0.02", "−0.01", "0.00",
    ]  # fmt: skip
    assert (place(0.004), place(-0.071)) == (4, 96)
    assert [text for _, text in ticks([0, 40], axis([0, 40]))] == ["0", "5", "10", "15", "20", "25", "30", "35", "40"]
    assert len(ticks([2.0, 2.0], axis([2.0, 2.0]))) == 1
    assert axis([0.01, 0.1, 1.0], log=True)(0.1) == 50


def test_labels_keep_their_order_and_do_not_overlap() -> None:
    assert apart([50.0], 10) == [50]
    assert apart([50.0, 50.0], 10) == [45, 55]
    assert apart([99.0, 98.0, 97.0, 10.0], 9) == [100, 91, 82, 10]
    assert apart([1.0, 0.0, 50.0], 10) == [10, 0, 50]
    assert apart([20.0, 10.0, 30.0], 10) == [20, 10, 30]
