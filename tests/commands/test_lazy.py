"""`tamis run --lazy`: the pairs of the full run for a part of its work, and a plan that says so."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import parts_of
from processes import command, die_at_file

import tamis
from tamis.commands import lazy
from tamis.commands.score import Scoring
from tamis.engines import fill
from tamis.engines.progress import READING, read_status
from tamis.runs import Run
from tamis.signals.graph import topological

WORDS = {"at_least": {"score": "words", "value": 6, "missing": "drop"}}
CLIP = {"at_least": {"score": "clip", "value": 0.0, "missing": "drop"}}
TOP = {"top_fraction": {"score": "words", "fraction": 0.5, "of": "pool", "missing": "drop"}}


def written(pool: Path, run: Path, model: str, *steps: Any, **more: Any) -> dict[str, Any]:
    signals = ["caption_length", {"clip": {"model": model}}, {"pac": {"model": model, "label": "other"}}]
    return {"name": "mine", "pool": str(pool), "run": str(run), "signals": signals, "select": list(steps), **more}


def asked(run: Run, label: str) -> int:
    group = run.scores[label]
    return len(run) if group.requested is None else group.requested


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize(
    ("steps", "needs"),
    [
        ([CLIP, WORDS], "some"),
        ([{"all_of": [[CLIP], [TOP]]}], "some"),
        ([WORDS, {"top_n": {"score": "clip", "n": 3}}], "some"),
        ([{"any_of": [[CLIP], [WORDS]]}], "all"),
        ([WORDS, {"at_least": {"score": "rank(clip)", "value": 0.5}}], "all"),
    ],
)
def test_the_same_pairs_for_less(
    steps: list[Any], needs: str, measured: bool, pool: Path, tmp_path: Path, clip_model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(lazy, "_SAMPLE", 7 if measured else 100)
    monkeypatch.setattr(fill, "_TIMED", 7)
    measure = lazy._plan_by_sample

    def by_my_clock(recipe: Any, run: Run, took: Any, pairs: Any) -> Any:
        nodes = topological([signal for _, signal in recipe.signals])
        mine = {node.name: (0.1 if node.host else 50.0) / len(run) for node in nodes}
        return measure(recipe, run, mine | {READING: 8.0 / len(run)}, pairs)

    monkeypatch.setattr(lazy, "_plan_by_sample", by_my_clock)
    said: list[Any] = []
    full = tamis.run_recipe(written(pool, tmp_path / "full", clip_model, *steps), quiet=True)
    few = written(pool, tmp_path / "lazy", clip_model, *steps)
    done = tamis.run_recipe(few, lazy=True, quiet=True, on_result=said.append)
    np.testing.assert_array_equal(done.subset.keep, full.subset.keep)
    texts = [one for one in said if isinstance(one, str)]
    assert (len(texts), "expected cost" in texts[0]) == (2, measured)
    judged = asked(done.run, "clip")
    assert (judged == 21) == (needs == "all")
    assert f"clip {judged}" in texts[1] or (needs == "all" and ", clip" in texts[0].splitlines()[0])
    assert ("clip ('rank(clip) >= 0.5' looks at all pairs)" in texts[0]) == ("rank(clip)" in str(steps))
    assert asked(done.run, "other") in (done.subset.kept, 21 if measured else None)  # no step reads it
    assert {"caption_length", "clip", "pac"} <= set(read_status(done.run.path)["took"])  # of all passes
    before = parts_of(done.run.path)
    tamis.run_recipe(few, lazy=True, quiet=True)
    assert parts_of(done.run.path) == before
    again = tamis.run_recipe({**few, "run": str(done.run.path)}, quiet=True)
    np.testing.assert_array_equal(again.run["clip"], full.run["clip"])


def test_the_command_prints_its_plan_and_a_dry_run_scores_nothing(pool: Path, tmp_path: Path, clip_model: str) -> None:
    made = tmp_path / "mine.yaml"
    made.write_text(
        f"pool: {pool}\nrun: {tmp_path / 'run'}\nsignals: [caption_length, {{clip: {{model: {clip_model}}}}}]\n"
        "select:\n  - at_least: {score: clip, value: 0, missing: drop}\n  - at_least: {score: words, value: 6}\n"
    )
    planned = command("run", made, "--lazy", "--dry-run")
    assert planned.stdout.splitlines()[-3:] == [
        "scored in full      caption_length",
        "clip                where steps need it",
        "steps in this order clip >= 0; words >= 6",  # the second may end the recipe at rows without words
    ]
    assert not (tmp_path / "run").exists()
    killed = command("run", made, "--lazy", "-q", before=partial(die_at_file, 12))
    assert killed.returncode == -signal.SIGKILL
    done = command("run", made, "--lazy", "-q")
    assert done.returncode == 0, done.stderr
    assert "scored of 21 pairs: clip 21; it took" in done.stderr


def test_the_order_is_corrected_by_the_scores_of_some_rows(
    pool: Path, tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable = {"equals": {"score": "status", "value": "ok"}}
    all_stay, few_stay = (
        {"at_least": {"score": score, "value": value, "missing": "drop"}} for score, value in [("clip", -1), ("pac", 9)]
    )
    few = written(pool, tmp_path / "run", clip_model, readable, all_stay, few_stay)
    spec, chosen = tamis.PoolSpec(path=str(pool)), tamis.recipes.recipe.load(few)
    scoring = Scoring(spec, tmp_path / "run", chosen, quiet=True)
    plan = lazy.plan_lazily(scoring)
    assert [one.reads for one in plan.order] == [{"status"}, {"clip"}, {"pac"}]
    monkeypatch.setattr(lazy, "cost_of", lambda took, entries: 1.0)
    monkeypatch.setattr(lazy, "_SAMPLE", 3)
    monkeypatch.setattr(lazy, "_PILOT_EVERY", 4)
    run, order = lazy.score_lazily(scoring, plan)
    assert [one.reads for one in order] == [{"status"}, {"pac"}, {"clip"}]
    readable_rows = len(run) - run.statuses.total() + run.statuses["ok"]
    assert (asked(run, "other"), asked(run, "clip")) == (readable_rows, -(-readable_rows // 4))
    assert "; steps went in this order: status" in plan.describe_result(run, order, 0.0)
    assert tamis.select(run, chosen).kept == 0


def test_scores_of_some_rows_are_looked_at_last(pool: Path, tmp_path: Path, clip_model: str) -> None:
    run = tmp_path / "run"
    for name, within in (("first", None), ("second", "first")):
        made = written(pool, run, clip_model, CLIP, {"at_least": {"score": "mine.pac", "value": 0, "missing": "drop"}})
        limited = {"pac": {"model": clip_model, "prompt": "a ", "label": "mine", "within": within}}
        signals = [*made["signals"][:2], *([limited] if within else [])]
        steps = made["select"] if within else made["select"][:1]
        done = tamis.run_recipe({**made, "name": name, "signals": signals, "select": steps}, lazy=True, quiet=True)
    assert 0 < asked(done.run, "mine") < 21


def test_signals_that_others_need_judge_all_rows(pool: Path, tmp_path: Path, clip_model: str) -> None:
    few = written(pool, tmp_path / "run", clip_model, WORDS, CLIP, keep=["embeddings"])
    few["signals"].append({"vote": {"scores": ["other.pac"]}})
    assert lazy._may_wait(tamis.recipes.recipe.load(few))[0][1].name == "caption_length"
    assert len(lazy._may_wait(tamis.recipes.recipe.load(few))) == 1
    by_clip = tmp_path / "by_clip.yaml"
    by_clip.write_text("select: [{at_least: {score: clip, value: 0, missing: drop}}]")
    some = written(pool, tmp_path / "run", clip_model, WORDS, CLIP)
    some["signals"] += [{"image_size": {"within": str(by_clip)}}]
    assert [signal.name for _, signal in lazy._may_wait(tamis.recipes.recipe.load(some))] == ["caption_length", "pac"]
