"""A run goes on where it was stopped, however it was stopped, and does only what is missing."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import parts_of, safetensors_bytes, score, write_pool
from odd_signals import Brightness
from processes import command, die_at_file
from tiny_models import clip_folder

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.engines import shard as reading
from tamis.pools import PoolSpec
from tamis.runs import Run
from tamis.runs.writers import RowsWriter, TextsWriter
from tamis.signals import ClipScore, ImageSize


def times(run: Path) -> dict[str, int]:
    return {part: (run / part).stat().st_mtime_ns for part in parts_of(run)}


def temporary(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("files", [0, 3, 7, 11])
def test_a_run_killed_at_any_file_and_repeated_is_as_if_nothing_had_happened(
    files: int, pool: Path, tmp_path: Path
) -> None:
    arguments = ["score", str(pool), "--signals", "caption_length,image_size", "-q"]
    whole = score(pool, tmp_path / "whole", "caption_length", "image_size")
    killed = command(*arguments, "--run", tmp_path / "run", before=partial(die_at_file, files))
    assert killed.returncode == -signal.SIGKILL
    left = parts_of(tmp_path / "run")
    assert len(temporary(tmp_path / "run")) == 1
    assert len(left) < 9
    before = times(tmp_path / "run")
    done = command(*arguments, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert parts_of(tmp_path / "run") == parts_of(tmp_path / "whole")
    assert len(parts_of(tmp_path / "run")) == 9
    assert temporary(tmp_path / "run") == []
    after = times(tmp_path / "run")
    assert {part: after[part] for part in before} == before  # what was complete was not made again
    assert Run(tmp_path / "run").to_arrow().equals(whole.to_arrow())


@pytest.mark.parametrize(("workers", "size"), [(2, 64), (1, 1), (2, 3), (1, 100)])
def test_workers_and_batch_sizes_change_no_part(workers: int, size: int, pool: Path, tmp_path: Path) -> None:
    signals = ("caption_length", "image_size", "language", Brightness())
    one = score(pool, tmp_path / "one", *signals)
    other = score(pool, tmp_path / "other", *signals, workers=workers, batch_size=size)
    assert parts_of(other.path) == parts_of(one.path)
    assert len(parts_of(one.path)) == 15


def test_a_finished_run_repeated_writes_no_part_and_a_signal_added_later_is_computed_alone(
    pool: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    score(pool, run, Brightness())
    before, manifest = times(run), (run / "run.json").read_bytes()
    score(pool, run, Brightness())
    assert (times(run), (run / "run.json").read_bytes()) == (before, manifest)
    for path in pool.iterdir():
        path.write_bytes(b"")  # another size, but captions are in the index
    added = score(pool, run, "caption_length")
    after = times(run)
    assert ({part: after[part] for part in before}, len(after)) == (before, len(before) + 3)
    assert (sorted(added.scores), added.failures) == (["brightness", "caption_length"], {})
    assert len(added.to_numpy("words")) == 21


def test_other_settings_are_other_scores_and_a_label_stands_for_one_of_them(pool: Path, tmp_path: Path) -> None:
    score(pool, tmp_path / "run", ImageSize(of="original"))
    run = score(pool, tmp_path / "run", ImageSize(of="stored"))
    first, second = sorted(run.scores)
    assert (first, second.startswith("image_size_")) == ("image_size", True)
    assert run.to_numpy(f"{first}.shorter_side").tolist() == [320.0] * 21
    assert run.to_numpy(f"{second}.shorter_side").tolist() == [32.0] * 21
    with pytest.raises(RunError, match="has several 'shorter_side': write "):
        run.to_numpy("shorter_side")

    def labelled(of: str) -> Run:
        recipe = {"signals": [{"image_size": {"of": of, "label": "mine"}}]}
        return tamis.score(pool, run=tmp_path / "labelled", recipe=recipe, quiet=True)

    assert set(labelled("original").scores) == {"mine"}
    with pytest.raises(RecipeError, match="the label 'mine' belongs to other settings"):
        labelled("stored")


def test_other_weights_are_other_scores(pool: Path, tmp_path: Path) -> None:
    one, two = (ClipScore(model=str(clip_folder(tmp_path / f"model{seed}", seed))) for seed in (0, 1))
    first = score(pool, tmp_path / "run", one)
    both = score(pool, tmp_path / "run", two)
    assert len({group.folder for group in both.scores.values()}) == 2
    np.testing.assert_array_equal(both.to_numpy("clip.clip"), first.to_numpy("clip"))
    assert np.abs(both.to_numpy("clip.clip") - both.to_numpy(f"{sorted(both.scores)[1]}.clip")).max() > 1e-3
    (tmp_path / "model0").rename(tmp_path / "elsewhere")
    again = score(pool, tmp_path / "run", ClipScore(model=str(tmp_path / "elsewhere")))
    assert set(again.scores) == set(both.scores)  # the same weights under another path are the same


def test_weights_changed_in_place_are_noticed_by_the_next_command(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    plans = []
    for weights in (b"some", b"some", b"others"):
        (tmp_path / "model" / "model.safetensors").write_bytes(safetensors_bytes(weights))
        plan = tamis.plan(pool, run=tmp_path / "run", signals=[{"clip": {"model": str(tmp_path / "model")}}])
        plans.append(plan.missing[-1].folder)
    assert plans[0] == plans[1] != plans[2]
    assert not (tmp_path / "run").exists()


def test_a_pool_that_grows_costs_its_new_shards(pool: Path, tmp_path: Path) -> None:
    score(pool, tmp_path / "run", "caption_length", Brightness())
    before = times(tmp_path / "run")
    write_pool(pool, shards=1, first=3, rows=4)
    run = score(pool, tmp_path / "run", "caption_length", Brightness())
    after = times(tmp_path / "run")
    assert {part: after[part] for part in before} == before
    assert [part.rpartition("/")[2] for part in after.keys() - before] == ["00003.parquet"] * 3
    assert (run.sizes, run.urls["00003"]) == ((7, 7, 7, 4), str(pool / "00003.tar"))


def test_other_pool_settings_need_another_run(pool: Path, tmp_path: Path) -> None:
    score(pool, tmp_path / "run", "caption_length")
    before = parts_of(tmp_path / "run")
    settings: dict[str, Any] = {"caption": "json:other", "max_pixels": 5, "image_extensions": ("png",)}
    for setting, value in settings.items():
        with pytest.raises(RunError, match=rf"another pool setting \({setting}: .*use another run folder"):
            score(PoolSpec(path=str(pool), **{setting: value}), tmp_path / "run", "caption_length")
    assert parts_of(tmp_path / "run") == before


@pytest.mark.parametrize("indexed", [False, True])
def test_a_shard_that_was_interrupted_half_way_goes_on_where_it_was(
    indexed: bool, pool: Path, tmp_path: Path, decoded: list[str], interrupted_after: Any
) -> None:
    signals, run = ("caption_length", ImageSize(), Brightness()), tmp_path / "run"
    score(pool, tmp_path / "whole", *signals, batch_size=3)
    if indexed:
        score(pool, run, "image_hash")
    with interrupted_after(2):
        score(pool, run, *signals, batch_size=3)
    kept = sorted((run / "unfinished" / "00000").glob("*.parquet"))
    assert len(kept) == 2
    if indexed:  # what is kept outlives commands that make other parts of the shard
        score(pool, run, "language")
        assert sorted((run / "unfinished" / "00000").iterdir()) == kept
    decoded.clear()
    done = score(pool, run, *signals, batch_size=3)
    ours = {
        name: part for name, part in parts_of(run).items() if not name.startswith(("scores/image_h", "scores/lang"))
    }
    assert ours == parts_of(tmp_path / "whole")
    assert (len(decoded), sorted(decoded)[0]) == (15, "000000006")  # the six before were done
    assert done.statuses == {"ok": 21}
    assert '"rows": 7' in (run / "events.jsonl").read_text().splitlines()[-3]
    assert list((run / "unfinished").iterdir()) == []


def test_captions_alone_go_on_where_they_were(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted_after: Any
) -> None:
    monkeypatch.setattr(reading, "_CAPTIONS", 3)
    whole = score(pool, tmp_path / "whole", "image_size", "caption_length")
    score(pool, tmp_path / "run", "image_size", batch_size=3)
    with interrupted_after(1):
        score(pool, tmp_path / "run", "caption_length", batch_size=3)
    score(pool, tmp_path / "run", "caption_length", batch_size=3)
    assert parts_of(tmp_path / "run") == parts_of(whole.path)


@pytest.mark.parametrize("how", ["damaged", "other batches", "another file", "another file of that stamp"])
def test_what_was_kept_of_a_shard_is_not_taken_where_it_does_not_fit(
    how: str, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted_after: Any
) -> None:
    signals, run = ("caption_length", Brightness()), tmp_path / "run"
    if how.endswith("stamp"):
        monkeypatch.setattr("tamis.pools.source.stamp", lambda path: "the same")
    with interrupted_after(2):
        score(pool, run, *signals, batch_size=3)
    second = max((run / "unfinished" / "00000").glob("*.parquet"))
    if how == "damaged":
        content = bytearray(second.read_bytes())
        content[len(content) // 2] ^= 1
        second.write_bytes(content)
    if how.startswith("another file"):
        (pool / "00002.tar").replace(pool / "00000.tar")
    size = 4 if how == "other batches" else 3
    if how.endswith("stamp"):
        assert "another sample in the shard" in score(pool, run, *signals, batch_size=size).failures["00000"]
    done = score(pool, run, *signals, batch_size=size)
    assert done.failures == {}
    assert parts_of(run) == parts_of(score(pool, tmp_path / "whole", *signals, batch_size=size).path)


def test_every_kind_of_part_gives_back_what_it_had() -> None:
    rows = np.array([[0.5, np.nan], [1e-7, 3.0], [2.0, -1.0]], np.float32)
    texts = [["a", "b"], None, []]
    for make, value in ((RowsWriter, rows), (TextsWriter, texts)):
        first, second = make(), make()
        first.add(value, [])
        second.add(value[:1], [])
        second.restore(first.table().slice(1))
        assert second.table().equals(first.table())
        assert second.table().num_rows == 3
