"""The batches of a training: which pairs they show, and what is done about those that cannot be read."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from factories import members_of, pair, score, write_pool, write_tar
from torch_processes import on_processes
from trainings import CPU, after, make_run, metrics, train_here, trained, weights

from tamis.core.errors import RunError, StopError
from tamis.core.types import Device
from tamis.pools.images import decode
from tamis.runs import Run
from tamis.runs.parts import index_facts, read_columns, write_index
from tamis.runs.subset import Subset
from tamis.train.batches import Batches, TrainingRows
from tamis.train.clip import training_rows
from tamis.train.loop import ProcessGroup
from tamis.train.scales import ClipTraining
from tamis.train.step import How, TrainingContext, with_cache


def spoil(run: Run, rows: list[int]) -> None:
    """Breaks images of the first shard after the run was made, as a decoder that fails where another did not."""
    path = run.index_path(run.shards[0])
    facts, index = index_facts(path), read_columns(path, None)
    column = index.column_names.index("image_xxh3")
    index = index.set_column(column, index.schema.field(column), pa.nulls(len(index), pa.uint64()))
    write_index(path, index, source=run.urls[run.shards[0]], stamp=facts.stamp)
    with open(run.urls[run.shards[0]], "r+b") as file:
        for members in [members_of(run, run.shards[0])[row] for row in rows]:
            image = next(member for member in members if member.ext == "jpg")
            file.seek(image.offset)
            file.write(b"x" * image.size)


def batches_of(run: Run, source: Subset | Run, **settings: Any) -> Batches:
    usual = {"rows": training_rows(source)[0], "smallest": 0.9, "batch": 4, "side": 32}
    return Batches(run=run, **usual | settings)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_epoch_shows_a_subsets_pairs_as_often_as_it_keeps_them(run: Run, count: int) -> None:
    class Repeating(Subset):
        times: np.ndarray

    times = np.zeros(len(run), np.uint16)
    times[[1, 5, 9, 14]] = [1, 3, 2, 1]
    subset = Repeating(run=run, keep=times > 0)
    object.__setattr__(subset, "times", times)
    found: dict[int, Counter[int]] = {}
    for rank in range(count):
        batches = batches_of(run, subset, processes=ProcessGroup(rank=rank, count=count))
        assert batches.rows.epoch_size == 7
        for epoch, places, _ in batches.shown(0, 7):  # 28 pairs of all processes: four epochs
            found.setdefault(epoch, Counter()).update(batches.rows.rows[places].tolist())
    assert found == {epoch: Counter({1: 1, 5: 3, 9: 2, 14: 1}) for epoch in range(4)}


def test_batches_have_the_images_and_captions_of_the_rows_they_name(run: Run) -> None:
    batches = batches_of(run, run, side=24)
    captions, images = {}, {}
    for shard in run.pool.shards:
        for sample in shard.samples():
            captions[sample.uid] = sample.caption
            assert sample.image is not None
            images[sample.uid] = decode(sample.image, max_pixels=10**6).astype(float).mean((0, 1))
    seen = []
    for batch in batches(0, 4, lambda batch: batch):
        assert batch.pixels.shape == (4, 24, 24, 3)
        assert batch.usable.tolist() == [True] * 4
        for number, place in enumerate(batch.indices.tolist()):
            uid = (int(batches.rows.high[place]), int(batches.rows.low[place]))
            seen.append(uid)
            assert batch.captions[number] == captions[uid]
            # A crop of nine tenths has nearly the mean colour of its image, and no other image's.
            colour = batch.pixels[number].numpy().astype(float).mean((0, 1))
            assert min(images, key=lambda one: np.abs(images[one] - colour).sum()) == uid
    assert sorted(seen) == sorted(captions)


def test_batches_are_the_same_from_any_step_with_any_threads_and_without_a_cache(run: Run) -> None:
    def collected(first: int, **settings: Any) -> list[torch.Tensor]:
        return [batch.pixels for batch in batches_of(run, run, **settings)(first, 9, lambda batch: batch)]

    whole = collected(0)
    assert not torch.equal(whole[0], whole[4])  # the first batches of two epochs
    for settings in ({"threads": 1}, {"cache": 0}):
        assert all(torch.equal(a, b) for a, b in zip(whole, collected(0, **settings), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole[5:], collected(5), strict=True))


@pytest.mark.parametrize("cache", [1 << 30, 5_000, 0])
def test_images_that_fit_into_the_cache_are_read_and_decoded_once(
    cache: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collected(**settings: Any) -> list[Any]:
        found = batches_of(run, run, **settings)(0, 16, lambda batch: batch)
        return [(batch.indices.tolist(), list(batch.captions), batch.pixels.tolist()) for batch in found]

    anew, read, decoded = collected(cache=0), list[int](), list[int]()
    samples = Batches._samples

    def spy(self: Any, rows: Any) -> Any:
        read.extend(rows.tolist())
        return samples(self, rows)

    def counted(*args: Any, **how: Any) -> Any:
        decoded.append(1)
        return decode(*args, **how)

    monkeypatch.setattr(Batches, "_samples", spy)
    monkeypatch.setattr("tamis.train.batches.decode", counted)
    assert collected(cache=cache) == anew
    assert len(run) == 16  # four epochs
    if cache == 1 << 30:  # what is still being decoded when an epoch begins is read once more
        assert len(decoded) <= len(read) < 3 * len(run)
    else:
        assert (len(read) < 4 * len(run)) == (cache > 0)


def test_broken_images_are_counted_and_batch_normalisation_does_not_see_them(
    tmp_path: Path, residual: ClipTraining
) -> None:
    broken = make_run(tmp_path)
    spoil(broken, [0, 2, 3, 6])
    good = Subset(run=broken, keep=~np.isin(np.arange(len(broken)), [0, 2, 3, 6]))
    alone = trained(broken, tmp_path / "alone", replace(residual, samples=24, batch=12), source=good)
    among = trained(broken, tmp_path / "among", replace(residual, samples=32, batch=16))
    assert among.unreadable == metrics(tmp_path / "among")[-1]["unreadable"] == 8
    assert among.losses == pytest.approx(alone.losses, abs=1e-4)
    name = "vision_model.embeddings.backbone.embedder.embedder.normalization.running_mean"
    assert torch.allclose(weights(tmp_path / "among")[name], weights(tmp_path / "alone")[name], atol=1e-5)


def test_a_process_leaves_unreadable_pairs_out_and_a_batch_without_any_readable_pair_stops_the_training(
    tmp_path: Path, tiny: ClipTraining
) -> None:
    broken = make_run(tmp_path, shards=1, rows=16)
    first = batches_of(broken, broken, batch=8, processes=ProcessGroup(rank=1, count=2))
    whole = batches_of(broken, broken, batch=8)
    lost = [next(first.shown(0, 1))[1], next(whole.shown(1, 2))[1]]  # of step 1 one process's part, all of step 2
    spoil(broken, sorted(whole.rows.rows[np.concatenate(lost)].tolist()))
    with pytest.raises(StopError, match="no image of step 2 can be read"):
        trained(broken, tmp_path / "alone", tiny)
    with pytest.raises(Exception, match="no image of step 2"):  # torch's own, with a process's error in it
        on_processes(2, train_here, str(broken.path), str(tmp_path / "two"), tiny)
    (alone,), (two,) = metrics(tmp_path / "alone"), metrics(tmp_path / "two")
    assert (two["loss"], two["unreadable"]) == (pytest.approx(alone["loss"], abs=1e-4), 4)


def test_a_shard_that_is_lost_meanwhile_stops_the_training_which_resumes_when_it_is_back(
    tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    shard = Path(run.urls[run.shards[1]])
    data, stamp = shard.read_bytes(), shard.stat()
    how, longer = replace(CPU, save_every=1, cache=0), replace(tiny, samples=160)
    with monkeypatch.context() as patch:
        # An epoch has two steps.
        after(2, lambda _: os.truncate(shard, 600), patch)
        with pytest.raises(RunError, match="00001"):
            trained(run, tmp_path / "out", longer, how)
    shard.write_bytes(data)
    os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert 0 < len(trained(run, tmp_path / "out", longer, how).losses) < 20
    assert [line["step"] for line in metrics(tmp_path / "out")] == list(range(1, 21))


def test_pairs_that_the_index_calls_unreadable_are_left_out(
    tmp_path: Path, tiny: ClipTraining, caplog: pytest.LogCaptureFixture
) -> None:
    pool = write_pool(tmp_path / "pool", 2, 8)
    files = [pair(row) | ({"jpg": b"no image"} if row < 2 else {}) for row in range(8)]
    write_tar(pool / "00000.tar", [(f"{row}", one) for row, one in enumerate(files)])
    broken = score(pool, tmp_path / "run", "caption_length")
    rows, left_out = training_rows(broken)
    assert left_out == 2
    assert rows.rows.tolist() == list(range(2, 16))
    few = Subset(run=broken, keep=np.arange(len(broken)) < 7)
    trained(broken, tmp_path / "out", replace(tiny, samples=8), source=few)
    assert "2 pairs are left out" in caplog.text
    assert "the epoch has 5 pairs and the batch 8" in caplog.text


@pytest.mark.parametrize(("steps", "times", "kept"), [(2, 1, False), (3, 1, True), (2, 2, False), (3, 2, True)])
def test_a_training_that_shows_no_pair_again_keeps_no_images(
    steps: int, times: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.train.step.free_memory", lambda kind: 1 << 34)
    number = np.arange(16)
    rows = TrainingRows(rows=number, times=number * 0 + times, high=number.astype(np.uint64), low=number.astype("u8"))
    training: Any = SimpleNamespace(steps=steps, batch=8)
    none: Any = None
    context = TrainingContext(none, rows, Path(), training, How(device=Device()), none)
    assert with_cache(context).how.cache == (1 << 31 if kept else 0)
    chosen = replace(context, how=replace(context.how, cache=5))
    assert with_cache(chosen).how.cache == 5


def test_an_epoch_is_the_order_that_a_subset_brings(run: Run) -> None:
    order = np.array([9, 1, 5, 9, 14, 5, 9])
    times = np.bincount(order, minlength=len(run)).astype(np.uint16)
    batches = batches_of(run, Subset(run=run, keep=times > 0, times=times, order=order))
    shown = [(epoch, row, copy) for epoch, places, copies in batches.shown(0, 7)
             for row, copy in zip(batches.rows.rows[places].tolist(), copies.tolist(), strict=True)]  # fmt: skip
    once = list(zip(order.tolist(), [0, 0, 0, 1, 0, 1, 2], strict=True))
    assert shown == [(epoch, *one) for epoch in range(4) for one in once]
    fewer = batches.rows.only(np.isin(batches.rows.rows, [5, 9]))
    assert fewer.rows[fewer.epoch(seed=0, epoch=3)[0]].tolist() == [9, 5, 9, 5, 9]


def test_a_training_goes_by_the_order_and_resumes_only_with_the_same(
    run: Run, tiny: ClipTraining, tmp_path: Path
) -> None:
    rows = np.arange(len(run))
    one, other = (Subset(run=run, keep=np.ones(len(run), bool), order=order) for order in (rows, rows[::-1]))
    losses = [trained(run, tmp_path / name, tiny, source=source).losses for name, source in (("1", one), ("2", other))]
    assert losses[0] != losses[1]
    with pytest.raises(RunError, match="pairs"):
        trained(run, tmp_path / "1", tiny, source=other)
