"""Signals that are scored within a subset: what is read, what is kept, what goes on, and what `select` refuses."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import image_bytes, parts_of, score, write_tar
from odd_signals import Brightness
from processes import command, die_at_file

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.engines.local import Local, Rank
from tamis.pools import PoolSpec
from tamis.runs import Run, parts
from tamis.runs.subset import Subset
from tamis.signals import ImageSize


def subset(run: Run, *rows: int, name: str = "some") -> Subset:
    keep = np.zeros(len(run), bool)
    keep[list(rows)] = True
    return Subset(run=run, keep=keep, recipe={"name": name})


def within(pool: Path | PoolSpec, run: Path, rows: Any, *signals: Any, **how: Any) -> Run:
    signals = signals or (Brightness(),)
    return tamis.score(pool, run=run, signals=list(signals), within=rows, quiet=True, **how)


@pytest.fixture
def whole(pool: Path, tmp_path: Path) -> Run:
    return score(pool, tmp_path / "whole", "caption_length", Brightness())


@pytest.fixture
def run(pool: Path, tmp_path: Path) -> Run:
    return score(pool, tmp_path / "run", "caption_length")


def test_only_the_subset_s_rows_are_scored_and_wider_ones_add_only_what_is_missing(
    pool: Path, run: Run, whole: Run, decoded: list[str]
) -> None:
    expected = whole["brightness"]
    rows = [1, 2, 6, 7, 20]
    done = within(pool, run.path, subset(run, *rows))
    assert sorted(decoded) == ["000000001", "000000002", "000000006", "000010000", "000020006"]
    assert np.flatnonzero(~np.isnan(done["brightness"])).tolist() == rows
    np.testing.assert_array_equal(done["brightness"][rows], expected[rows])
    part = parts.read_columns(done.scores["brightness"].folder / "00000.parquet", ["reason"])["reason"].to_pylist()
    assert part == ["not asked: outside some", None, None, *["not asked: outside some"] * 3, None]
    assert [parts.requested_in(done.scores["brightness"].folder / f"0000{shard}.parquet") for shard in range(3)] == [
        3,
        1,
        1,
    ]
    assert done.scores["brightness"].folder.name == whole.scores["brightness"].folder.name
    decoded.clear()
    done = within(pool, run.path, subset(run, 0, *rows, 8, name="more"))
    assert sorted(decoded) == ["000000000", "000010001"]
    np.testing.assert_array_equal(done["brightness"][[0, 1, 8]], expected[[0, 1, 8]])
    decoded.clear()
    within(pool, run.path, subset(run, 0, 1))
    assert decoded == []
    score(pool, run.path, Brightness())
    assert len(decoded) == 21 - 7
    assert parts_of(run.path) == parts_of(whole.path)


def test_select_ranks_over_no_row_that_nobody_asked_for_and_says_how_to_fill_it(pool: Path, run: Run) -> None:
    done = within(pool, run.path, subset(run, *range(0, 21, 2), name="even"), ImageSize(of="stored"))
    top: dict[str, Any] = {"top_fraction": {"score": "shorter_side", "fraction": 0.5, "missing": "drop"}}
    command_line = f"tamis score {pool} --run {run.path} --signals image_size --set signals.image_size.of=stored"
    why = "top_fraction: .* looks at 10 rows whose 'shorter_side' is not scored yet"
    with pytest.raises(RunError, match=f"(?s){why}.*\n{command_line}$"):
        tamis.select(done, {"select": [top]})
    inside = [{"equals": {"score": "key", "value": [f"{row // 7:05}{row % 7:04}" for row in range(0, 21, 2)]}}]
    assert tamis.select(done, {"select": [*inside, top]}).kept == 6
    for step in (
        {"at_least": {"score": "minmax(shorter_side)", "value": 0.1, "missing": "drop"}},
        {"all_of": [[top]]},
        {"any_of": [[top], inside]},
        {"none_of": [[top]]},
    ):
        with pytest.raises(RunError, match="not scored yet"):
            tamis.select(done, {"select": [*inside, step]})


def test_columns_of_some_rows_are_worked_into_no_derived_one(pool: Path, run: Run) -> None:
    done = within(pool, run.path, subset(run, 3))
    with pytest.raises(RunError, match="vote reads 'brightness', which nobody asked for in 20 of 21 rows"):
        tamis.derive(done, [{"vote": {"scores": ["brightness"]}}])


def test_a_recipe_limits_single_signals_by_what_the_others_say(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "long.yaml"
    recipe.write_text("select: [{top_n: {score: words, n: 4}}]")
    both = {"signals": ["caption_length", {"image_size": {"within": "long.yaml"}}]}
    planned = tamis.plan(pool, run=tmp_path / "run", recipe=both)
    assert [part.shards for part in planned.missing] == [3, 3, 3]
    done = tamis.score(pool, run=tmp_path / "run", recipe=both, quiet=True)
    kept = tamis.select(done, recipe).keep
    np.testing.assert_array_equal(~np.isnan(done["shorter_side"]), kept)
    assert f"within: {recipe}" in (done.path / "recipe.yaml").read_text()
    before = parts_of(done.path)
    again = command(*done.completing_command().split()[1:], "-q")
    assert (again.returncode, parts_of(done.path)) == (0, before)
    assert [part.shards for part in tamis.plan(pool, run=done.path, recipe=both).missing] == [0, 0, 0]
    with pytest.raises(RecipeError, match="'within' limits no model"):
        tamis.score(pool, run=done.path, signals=[], recipe={"signals": [{"vote": {"scores": ["a"], "within": "b"}}]})


def test_the_command_takes_a_subset_by_its_name(pool: Path, run: Run) -> None:
    subset(run, 1, 2, name="two").save(run.path / "subsets" / "two.parquet")
    arguments = ["score", pool, "--run", run.path, "--signals", "image_size", "--within"]
    assert command(*arguments, "two", "-q").returncode == 0
    assert np.flatnonzero(~np.isnan(Run(run.path)["shorter_side"])).tolist() == [1, 2]
    assert "has no subset 'twö'" in command(*arguments, "twö", "-q").stderr
    assert "0 shards to do" in command(*arguments, "two", "--dry-run").stdout.splitlines()[-1]


@pytest.mark.parametrize("files", [1, 2])
def test_kills_lose_nothing(files: int, pool: Path, run: Run) -> None:
    subset(run, *range(0, 21, 3), name="third").save(run.path / "subsets" / "third.parquet")
    arguments = ["score", pool, "--run", run.path, "--signals", "image_size", "-q"]
    killed = command(*arguments, "--within", "third", before=partial(die_at_file, files))
    assert killed.returncode == -signal.SIGKILL
    assert command(*arguments, "--within", "third").returncode == 0
    assert np.flatnonzero(~np.isnan(Run(run.path)["shorter_side"])).tolist() == [*range(0, 21, 3)]


def test_saved_rows_of_a_part_that_covers_some_are_taken_up(
    pool: Path, run: Run, whole: Run, decoded: list[str], interrupted_after: Any
) -> None:
    within(pool, run.path, subset(run, 0))
    with interrupted_after(2):
        within(pool, run.path, subset(run, *range(6)), batch_size=2)
    decoded.clear()
    done = within(pool, run.path, subset(run, *range(6)), batch_size=2)
    assert decoded == ["000000005"]
    np.testing.assert_array_equal(done["brightness"][:6], whole["brightness"][:6])
    assert list((run.path / "unfinished").iterdir()) == []


def test_features_are_taken_from_the_run_and_never_stored_of_some_rows(
    pool: Path, run: Run, tmp_path: Path, clip_model: str, decoded: list[str]
) -> None:
    clip, other = {"clip": {"model": clip_model}}, {"pac": {"model": clip_model}}
    with pytest.raises(RecipeError, match="clip: leave out 'within' or keep no embeddings"):
        within(pool, run.path, subset(run, 1), clip, keep=["embeddings"])
    full = tamis.score(pool, run=tmp_path / "full", signals=[clip], keep=["embeddings"], quiet=True)
    plain = tamis.score(pool, run=tmp_path / "plain", signals=[other], quiet=True)
    decoded.clear()
    done = within(pool, full.path, subset(full, 1, 9, 20), other)
    assert decoded == []  # the images' embeddings are there
    np.testing.assert_allclose(done["pac"][[1, 9, 20]], plain["pac"][[1, 9, 20]], atol=5e-3)
    assert np.isnan(done["pac"]).sum() == 18


def test_a_file_that_has_changed_is_an_error_and_a_broken_image_a_row(pool: Path, run: Run) -> None:
    content = bytearray((pool / "00001.tar").read_bytes())
    start = content.index(b"\xff\xd8\xff") + 40
    content[start : start + 4] = b"\0\0\0\0"
    (pool / "00001.tar").write_bytes(content)
    done = within(pool, run.path, subset(run, 0, 7, 8))
    assert "another sample in row 0" in done.failures["00001"]
    assert done.scores["brightness"].shards == {"00000", "00002"}


def test_bad_rows_and_several_captions_of_an_image_are_what_they_are_in_full(tmp_path: Path) -> None:
    texts = json.dumps({"all": ["one", "two", "two and a half"]}).encode()
    samples: list[tuple[str, dict[str, bytes]]] = [
        ("a", {"jpg": image_bytes(1), "json": texts}),
        ("b", {"jpg": image_bytes(2)[:300], "json": texts}),
        ("c", {"json": texts}),
        ("d", {"jpg": b"", "json": b"{"}),
        ("e", {"jpg": image_bytes(3), "json": texts}),
    ]
    spec = PoolSpec(path=str(write_tar(tmp_path / "0.tar", samples)), caption="json:all", captions="each")
    whole = score(spec, tmp_path / "whole", "caption_length", Brightness(), "image_hash")
    run = score(spec, tmp_path / "run", "caption_length")
    for rows in ([0, 2, 4, 9, 11], [1, 6, 7], range(len(run))):
        run = within(spec, run.path, subset(run, *rows), Brightness(), "image_hash")
    assert parts_of(run.path) == parts_of(whole.path)


def test_ranks_and_worker_processes_score_within(pool: Path, run: Run, whole: Run) -> None:
    for rows, engine in ((range(9), Local(2)), (range(6, 21), Local(rank=Rank(0, 1)))):
        within(pool, run.path, subset(run, *rows), engine=engine)
    assert parts_of(run.path) == parts_of(whole.path)


def test_status_check_and_report_say_how_many_rows_were_asked_for(pool: Path, run: Run) -> None:
    done = within(pool, run.path, subset(run, 1, 8), "image_size")
    assert "  image_size 3/3 shards, 2 pairs requested" in command("status", run.path).stdout
    checked = command("check", run.path)
    assert (checked.returncode, "image_size: 2 pairs are scored, the others" in checked.stdout) == (0, True)
    assert done.columns["shorter_side"][2].about.endswith("scored of 2 of 21 pairs, the others were not requested")
    page = tamis.report(done, out=done.path / "report.html").read_text()
    assert "scored of 2 of 21 pairs" in page
    score(pool, run.path, "image_size")
    assert "nobody" not in command("status", run.path).stdout + command("check", run.path).stdout
