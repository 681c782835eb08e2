"""Training a CLIP: what it reads, how it goes on, what it writes, and what it refuses."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from factories import clip_folder, pair, tokenizer_folder, write_tar  # noqa: E402
from safetensors import safe_open  # noqa: E402
from torch_processes import on_processes  # noqa: E402

import tamis  # noqa: E402
from tamis.data import Device  # noqa: E402
from tamis.errors import DamageError, DiskFullError, ModelError, RunError, StopError  # noqa: E402
from tamis.models.clip import load_clip  # noqa: E402
from tamis.models.tokens import load_tokenizer  # noqa: E402
from tamis.processes import temporary_name  # noqa: E402
from tamis.store import Run  # noqa: E402
from tamis.store.claims import locked  # noqa: E402
from tamis.store.parts import index_facts, read_columns, write_index  # noqa: E402
from tamis.store.stream import pool_of  # noqa: E402
from tamis.store.subset import Subset  # noqa: E402
from tamis.train import clip_loop, memory  # noqa: E402
from tamis.train.batches import Batches  # noqa: E402
from tamis.train.clip import Trained, train_clip, training_rows  # noqa: E402
from tamis.train.clip_loop import How  # noqa: E402
from tamis.train.contrastive import contrastive_loss  # noqa: E402
from tamis.train.held_out import HeldOut, split  # noqa: E402
from tamis.train.processes import Processes  # noqa: E402
from tamis.train.scales import ClipTraining  # noqa: E402
from tamis.train.towers import build  # noqa: E402

CPU = How(device=Device(kind="cpu", threads=1, batch_size=8), report_every=1, save_every=2)


def make_run(folder: Path, shards: int = 2, rows: int = 8, broken: int = 0) -> Run:
    """A run of a small pool; the first images of the first shard may be broken."""
    for shard in range(shards):
        samples = [(f"{shard:05d}{row:04d}", pair(shard * 1000 + row)) for row in range(rows)]
        for row in range(broken if shard == 0 else 0):
            samples[row] = (samples[row][0], {**samples[row][1], "jpg": b"no image"})
        write_tar(folder / "pool" / f"{shard:05d}.tar", samples)
    return tamis.score(folder / "pool", run=folder / "run", scores=["caption_length"], quiet=True)


def spoil(run: Run, rows: list[int]) -> None:
    """Breaks images of the first shard after the run was made, as a decoder that fails where another did not."""
    path = run.index_path(run.shards[0])
    facts, index = index_facts(path), read_columns(path, None)
    column = index.column_names.index("image_xxh3")
    index = index.set_column(column, index.schema.field(column), pa.nulls(len(index), pa.uint64()))
    write_index(path, index, source=run.urls[run.shards[0]], stamp=facts.stamp)
    with open(run.urls[run.shards[0]], "r+b") as file:
        for members in run.members(run.shards[0], rows):
            image = next(member for member in members if member.ext == "jpg")
            file.seek(image.offset)
            file.write(b"x" * image.size)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("train-clip"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ClipTraining:
    """Six steps of 8 pairs on a tiny checkpoint."""
    folder = clip_folder(tmp_path_factory.mktemp("tiny") / "clip")
    return ClipTraining(model=str(folder), samples=48, batch=8, learning_rate=1e-3, warmup=2)


def trained(run: Run, out: Path, training: ClipTraining, how: How = CPU, **more: Any) -> Trained:
    return train_clip(more.pop("source", run), pool=pool_of(run), out=out, training=training, how=how, **more)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "training" / "metrics.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(out / "model.safetensors"))


def test_the_loss_falls_and_the_folder_loads_with_transformers_and_with_our_scorers(
    run: Run, tmp_path: Path, tiny: ClipTraining
) -> None:
    from transformers import AutoTokenizer, CLIPModel

    done = trained(run, tmp_path, replace(tiny, samples=160))
    assert (done.steps, done.samples, done.pairs, done.unreadable) == (20, 160, 16, 0)
    assert np.mean(done.losses[-4:]) < np.mean(done.losses[:4]) - 0.2
    model, tokenizer = CLIPModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    texts = ["a red dog", "the old house by the sea"]
    theirs = model.get_text_features(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
    ours = load_clip(str(tmp_path), Device()).texts(load_tokenizer(str(tmp_path))(texts))
    assert np.allclose(theirs.detach().numpy(), ours, atol=1e-5)
    assert not (tmp_path / "training" / "checkpoint.safetensors").exists()


def test_metrics_say_step_loss_rate_scale_and_speed(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    done = trained(run, tmp_path, tiny)
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in lines] == list(done.losses)
    assert lines[0]["learning_rate"] == 1e-3 / 2
    assert lines[1]["learning_rate"] == 1e-3
    # The fourth of the four steps after the warm-up: half a cosine, three quarters of the way down.
    assert lines[5]["learning_rate"] == pytest.approx(1e-3 * 0.5 * (1 + np.cos(np.pi * 3 / 4)))
    assert all(line["samples_per_second"] > 0 and line["utilisation"] > 0 for line in lines)
    assert lines[5]["samples"] == 48
    assert lines[5]["epoch"] == 3.0


def test_every_report_is_one_line_that_says_what_its_loss_is(
    run: Run, tmp_path: Path, tiny: ClipTraining, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tamis.train")
    losses = trained(run, tmp_path, tiny, replace(CPU, report_every=4)).losses
    lines = [line for line in caplog.messages if " of 6: " in line]
    assert [line.partition(", scale")[0] for line in lines] == [
        f"step 4 of 6: mean loss of the last 4 steps {np.mean(losses[:4]):.3f}",
        f"step 6 of 6: mean loss of the last 2 steps {np.mean(losses[4:]):.3f}",
    ]


def test_the_same_call_again_does_nothing(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    first = trained(run, tmp_path, tiny)
    before = weights(tmp_path)
    again = trained(run, tmp_path, tiny)
    assert again == replace(first, losses=[])
    assert all(torch.equal(one, before[name]) for name, one in weights(tmp_path).items())


class Killed(BaseException):
    """What stands for a kill."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the process die in a step: after the loss, before anything is written."""
    plain = clip_loop.Step.backward
    seen = iter(range(1, 1000))

    def backward(self: clip_loop.Step, loss: torch.Tensor) -> None:
        if next(seen) == step:
            raise Killed
        plain(self, loss)

    monkeypatch.setattr(clip_loop.Step, "backward", backward)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_training_that_was_killed_goes_on_to_the_same_losses_and_weights_to_the_bit(
    run: Run, tmp_path: Path, tiny: ClipTraining, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = replace(CPU, pieces=pieces)
    whole = trained(run, tmp_path / "whole", tiny, how)
    with monkeypatch.context() as patch:
        killed_at(6, patch)
        with pytest.raises(Killed):
            trained(run, tmp_path / "killed", tiny, how)
    assert [line["step"] for line in metrics(tmp_path / "killed")] == [1, 2, 3, 4, 5]
    checkpoint = tmp_path / "killed" / "training" / "checkpoint.safetensors"
    with safe_open(checkpoint, "pt") as file:
        before_the_kill = json.loads(file.metadata()["tamis.training"])["seconds"]
    rest = trained(run, tmp_path / "killed", tiny, how)
    assert rest.seconds > before_the_kill > 0
    assert list(rest.losses) == list(whole.losses)[4:]  # the checkpoint was that of step 4
    assert [line["loss"] for line in metrics(tmp_path / "killed")] == list(whole.losses)
    before = weights(tmp_path / "whole")
    assert all(torch.equal(one, before[name]) for name, one in weights(tmp_path / "killed").items())


def test_pieces_and_recomputed_layers_change_losses_by_rounding_only(
    run: Run, tmp_path: Path, tiny: ClipTraining
) -> None:
    plain = trained(run, tmp_path / "plain", tiny)
    for name, how in (("pieces", replace(CPU, pieces=3)), ("layers", replace(CPU, checkpointing=True))):
        assert trained(run, tmp_path / name, tiny, how).losses == pytest.approx(plain.losses, abs=1e-4)


def test_a_training_removes_what_a_killed_one_left_half_written(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killed_at(4, patch)
        with pytest.raises(Killed):
            trained(run, tmp_path, tiny)
    state = tmp_path / "training"
    names = {path.name for path in state.iterdir()}
    ours = temporary_name(state / "checkpoint.safetensors").name
    dead = ours.replace(f"-{os.getpid()}-", "-4194305-")  # above the highest number of a process
    for name in (".tmpXy12Zw", dead):  # safetensors' own, and ours
        (state / name).write_bytes(b"half a checkpoint")
    trained(run, tmp_path, tiny)
    assert {path.name for path in state.iterdir()} == names - {"checkpoint.safetensors"}


def train_here(path: str, out: str, training: ClipTraining) -> None:
    opened = Run(path)
    train_clip(opened, pool=pool_of(opened), out=out, training=training, how=CPU)


def test_two_processes_train_as_one_does(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    alone = trained(run, tmp_path / "one", tiny)
    on_processes(2, train_here, str(run.path), str(tmp_path / "two"), tiny)
    assert [line["loss"] for line in metrics(tmp_path / "two")] == pytest.approx(alone.losses, abs=1e-4)


def batches_of(run: Run, source: Subset | Run, **settings: Any) -> Batches:
    usual = {"rows": training_rows(source)[0], "smallest": 0.9, "batch": 4, "side": 32}
    return Batches(run=run, pool=pool_of(run), **usual | settings)


def uids(run: Run) -> list[tuple[int, int]]:
    high, low = run.table().uids(np.arange(len(run)))
    return list(zip(high.tolist(), low.tolist(), strict=True))


class Repeating(Subset):
    """A subset that keeps pairs several times."""

    times: np.ndarray


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_epoch_shows_a_subsets_pairs_as_often_as_it_keeps_them(run: Run, count: int) -> None:
    times = np.zeros(len(run), np.uint16)
    times[[1, 5, 9, 14]] = [1, 3, 2, 1]
    subset = Subset(run=run, keep=times > 0)
    object.__setattr__(subset, "times", times)
    found: dict[int, Counter[int]] = {}
    for rank in range(count):
        batches = batches_of(run, subset, processes=Processes(rank=rank, count=count))
        assert batches.rows.epoch_size == 7
        for epoch, places, _ in batches.shown(0, 7):  # 28 pairs of all processes: four epochs
            found.setdefault(epoch, Counter()).update(batches.rows.rows[places].tolist())
    assert found == {epoch: Counter({1: 1, 5: 3, 9: 2, 14: 1}) for epoch in range(4)}


def test_batches_hold_the_pictures_and_captions_of_the_rows_they_name(run: Run) -> None:
    from tamis.pool.images import decode

    batches = batches_of(run, run, side=24)
    captions, pictures = {}, {}
    for shard in pool_of(run).shards:
        for sample in shard.samples():
            captions[sample.uid] = sample.caption
            assert sample.image is not None
            pictures[sample.uid] = decode(sample.image, max_pixels=10**6).astype(float).mean((0, 1))
    seen = []
    for batch in batches(0, 4, lambda batch: batch):
        assert batch.pixels.shape == (4, 24, 24, 3)
        assert batch.usable.tolist() == [True] * 4
        for number, place in enumerate(batch.places.tolist()):
            uid = (int(batches.rows.high[place]), int(batches.rows.low[place]))
            seen.append(uid)
            assert batch.captions[number] == captions[uid]
            # A crop of nine tenths has nearly the mean colour of its picture, and no other picture's.
            colour = batch.pixels[number].numpy().astype(float).mean((0, 1))
            near = min(pictures, key=lambda one: np.abs(pictures[one] - colour).sum())
            assert near == uid
    assert sorted(seen) == sorted(uids(run))


def test_batches_are_the_same_from_any_step_with_any_threads_and_without_a_cache(run: Run) -> None:
    def collected(first: int, **settings: Any) -> list[torch.Tensor]:
        return [batch.pixels for batch in batches_of(run, run, **settings)(first, 9, lambda batch: batch)]

    whole = collected(0)
    assert not torch.equal(whole[0], whole[4])  # the first batches of two epochs
    for settings in ({"threads": 1}, {"cache": 0}):
        assert all(torch.equal(a, b) for a, b in zip(whole, collected(0, **settings), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole[5:], collected(5), strict=True))


def test_what_cannot_be_decoded_is_counted_and_is_no_negative(tmp_path: Path, tiny: ClipTraining) -> None:
    broken = make_run(tmp_path)
    spoil(broken, [0, 3, 6])
    done = trained(broken, tmp_path / "out", tiny)
    assert done.unreadable == 9  # three in each of three epochs
    assert metrics(tmp_path / "out")[-1]["unreadable"] == 9
    first = next(iter(batches_of(broken, broken, batch=16)(0, 1, lambda batch: batch)))
    assert int((~first.usable).sum()) == 3


def test_batch_normalisation_does_not_see_what_cannot_be_decoded(tmp_path: Path, residual: ClipTraining) -> None:
    broken = make_run(tmp_path)
    spoil(broken, [0, 2, 3, 6])
    good = Subset(run=broken, keep=~np.isin(np.arange(len(broken)), [0, 2, 3, 6]))
    alone = trained(broken, tmp_path / "alone", replace(residual, samples=24, batch=12), source=good)
    among = trained(broken, tmp_path / "among", replace(residual, samples=32, batch=16))
    assert among.unreadable == 8
    assert among.losses == pytest.approx(alone.losses, abs=1e-4)
    found, wanted = weights(tmp_path / "among"), weights(tmp_path / "alone")
    name = "vision_model.embeddings.backbone.embedder.embedder.normalization.running_mean"
    assert torch.allclose(found[name], wanted[name], atol=1e-5)


def test_what_a_process_cannot_read_is_left_out_and_a_batch_of_which_nobody_can_read_any_stops_the_training(
    tmp_path: Path, tiny: ClipTraining
) -> None:
    broken = make_run(tmp_path, shards=1, rows=16)
    first = batches_of(broken, broken, batch=8, processes=Processes(rank=1, count=2))
    whole = batches_of(broken, broken, batch=8)
    lost = [next(first.shown(0, 1))[1], next(whole.shown(1, 2))[1]]  # of step 1 one process's part, all of step 2
    spoil(broken, sorted(whole.rows.rows[np.concatenate(lost)].tolist()))
    message = "not one of the 8 images of step 2 can be read, and the run says that all can: .* has changed since"
    with pytest.raises(StopError, match=message):
        trained(broken, tmp_path / "alone", tiny)
    with pytest.raises(Exception, match=message):  # torch's own, with what a process said in it
        on_processes(2, train_here, str(broken.path), str(tmp_path / "two"), tiny)
    (alone,), (two,) = metrics(tmp_path / "alone"), metrics(tmp_path / "two")
    assert (two["loss"], two["unreadable"]) == (pytest.approx(alone["loss"], abs=1e-4), 4)


@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_a_shard_that_is_lost_on_the_way_stops_the_training_which_goes_on_when_it_is_back(
    fault: str, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    whole = trained(run, tmp_path / "whole", tiny)
    shard = Path(run.urls[run.shards[1]])
    data, stamp = shard.read_bytes(), shard.stat()
    plain = clip_loop.Watch.__call__

    def lost(self: clip_loop.Watch, step: int) -> None:
        plain(self, step)
        if step == 2:  # an epoch has two steps
            shard.unlink() if fault == "gone" else os.truncate(shard, 600)

    how, longer = replace(CPU, save_every=1, cache=0), replace(tiny, samples=160)
    with monkeypatch.context() as patch:
        patch.setattr(clip_loop.Watch, "__call__", lost)
        with pytest.raises(RunError, match=r"of the shard '00001' cannot be read again: .*repeat the command"):
            trained(run, tmp_path / "out", longer, how)
    shard.write_bytes(data)
    os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    rest = trained(run, tmp_path / "out", longer, how)
    assert 0 < len(rest.losses) < 20
    assert metrics(tmp_path / "out")[0]["loss"] == whole.losses[0]
    assert [line["step"] for line in metrics(tmp_path / "out")] == list(range(1, 21))


def test_pairs_that_the_index_calls_unreadable_are_left_out_and_told(
    tmp_path: Path, tiny: ClipTraining, caplog: pytest.LogCaptureFixture
) -> None:
    broken = make_run(tmp_path, broken=2)
    rows, left_out = training_rows(broken)
    assert left_out == 2
    assert rows.rows.tolist() == list(range(2, 16))
    trained(broken, tmp_path / "out", replace(tiny, samples=8))
    assert "2 pairs are left out: their image or caption cannot be read" in caplog.text


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random BERT as a sentence encoder that averages its tokens."""
    from factories import WORDS, tokenizer_folder
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("sentences")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS) + 4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return str(tokenizer_folder(folder))


def test_a_frozen_text_tower_stays_as_it_is_and_its_states_are_those_of_the_saved_model(
    run: Run, tmp_path: Path, sentences: str
) -> None:
    from transformers import AutoModel, AutoTokenizer

    frozen = ClipTraining(
        model="convnet", text=sentences, freeze_text=True, samples=32, batch=8, learning_rate=1e-3, warmup=2
    )
    done = trained(run, tmp_path, frozen)
    assert done.steps == 4
    model, tokenizer = AutoModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "VisionTextDualEncoderModel"
    before = AutoModel.from_pretrained(sentences).state_dict()
    after = model.text_model.state_dict()
    kept = [name for name in before if "pooler" not in name]
    assert len(kept) > 20
    assert all(torch.equal(before[name], after[name]) for name in kept)
    texts = ["a red dog", "the old house by the sea and the river"]
    theirs = model.get_text_features(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
    ours = load_clip(str(tmp_path), Device()).texts(load_tokenizer(str(tmp_path))(texts))
    assert np.allclose(theirs.detach().numpy(), ours, atol=1e-5)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    assert load_clip(str(tmp_path), Device()).images([pixels]).shape == (1, 128)


def test_depthwise_convolutions_in_float32_are_the_same_convolutions() -> None:
    from tamis.train.towers import depthwise_in_float32

    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 8, 7, padding=3, groups=8))
    ours = copy.deepcopy(plain)
    depthwise_in_float32(ours)
    pixels = torch.randn(2, 3, 9, 5)
    outs = []
    for network in (plain, ours):
        out = network(pixels)
        out.pow(2).sum().backward()
        outs.append(out)
    assert torch.allclose(outs[0], outs[1], atol=1e-6)
    grads = [dict(network.named_parameters()) for network in (plain, ours)]
    assert list(grads[0]) == list(grads[1])
    for name, weight in grads[0].items():
        assert torch.allclose(weight.grad, grads[1][name].grad, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain(pixels).dtype == torch.bfloat16
        assert ours(pixels).dtype == torch.float32


def test_the_added_layer_takes_the_mean_of_all_tokens_and_of_no_padding(sentences: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    from tamis.train.towers import take_mean

    plain, tokenizer = AutoModel.from_pretrained(sentences).eval(), AutoTokenizer.from_pretrained(sentences)
    texts = tokenizer(["a red dog", "the old house by the sea"], padding=True, return_tensors="pt")
    states, mask = plain(**texts).last_hidden_state, texts["attention_mask"][:, :, None]
    mean = (states * mask).sum(1) / mask.sum(1)
    wanted = torch.tanh((mean - mean.mean(1, keepdim=True)) / mean.std(1, keepdim=True, unbiased=False) / 4)
    take_mean(plain)
    found = plain(**texts).pooler_output
    assert torch.allclose(found, wanted, atol=5e-3)
    assert not torch.allclose(found[0], found[1], atol=5e-2)


def test_states_that_are_not_kept_give_the_same_training(
    run: Run, tmp_path: Path, sentences: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = ClipTraining(model="convnet", text=sentences, freeze_text=True, samples=32, batch=8, warmup=2)
    kept = trained(run, tmp_path / "kept", frozen)
    monkeypatch.setattr(clip_loop, "_MOST_STATES", 3)
    assert trained(run, tmp_path / "not", frozen).losses == pytest.approx(kept.losses, abs=1e-4)


def test_a_clip_from_scratch_learns_its_tokenizer_from_the_captions(run: Run, tmp_path: Path) -> None:
    from transformers import CLIPModel

    done = trained(run, tmp_path, ClipTraining(model="ViT-tiny", samples=16, batch=8, warmup=1))
    assert done.steps == 2
    model = CLIPModel.from_pretrained(tmp_path)
    words = load_tokenizer(str(tmp_path))(["the old house"])
    assert words[0][0] == model.config.text_config.bos_token_id
    assert words[0][-1] == model.config.text_config.eos_token_id
    assert model.config.text_config.hidden_act == "gelu"


def test_the_model_of_every_epoch_is_kept_where_that_is_asked(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    trained(run, tmp_path, tiny, replace(CPU, keep_epochs=True), epochs=3)
    assert sorted(path.name for path in tmp_path.glob("epoch-*")) == ["epoch-1", "epoch-2", "epoch-3"]
    assert load_clip(str(tmp_path / "epoch-2"), Device()).texts([[1, 2]]).shape == (1, 24)
    last, final = weights(tmp_path / "epoch-3"), weights(tmp_path)
    assert all(torch.equal(one, last[name]) for name, one in final.items())
    assert not torch.equal(weights(tmp_path / "epoch-1")["logit_scale"], final["logit_scale"])


def test_the_temperature_stays_within_its_bounds(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    trained(run, tmp_path, replace(tiny, learning_rate=3.0, warmup=0, samples=24))
    assert all(1 <= line["scale"] <= 100 * (1 + 1e-6) for line in metrics(tmp_path))
    assert any(line["scale"] in (1.0, pytest.approx(100)) for line in metrics(tmp_path))


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = clip_loop.Step.loss
    seen: Iterator[int] = iter(range(1, 1000))

    def loss(self: clip_loop.Step, batch: clip_loop.Prepared) -> torch.Tensor:
        value = plain(self, batch)
        return value * float("nan") if next(seen) == 4 else value

    monkeypatch.setattr(clip_loop.Step, "loss", loss)
    with pytest.raises(StopError, match=r"the loss of step 4 is nan: .* what step 2 had reached stays"):
        trained(run, tmp_path, tiny)
    assert (tmp_path / "training" / "checkpoint.safetensors").is_file()
    assert not (tmp_path / "config.json").exists()


def test_a_full_disk_leaves_the_last_checkpoint(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    plain = safetensors.torch.save_file
    calls = iter(range(1, 1000))

    def save_file(tensors: Any, path: Any, **more: Any) -> None:
        if next(calls) == 2:
            Path(path).write_bytes(b"half of it")
            raise safetensors.SafetensorError(f"Error while serializing: I/O error: ... (os error {errno.ENOSPC})")
        plain(tensors, path, **more)

    monkeypatch.setattr(safetensors.torch, "save_file", save_file)
    with pytest.raises(DiskFullError, match="no space is left"):
        trained(run, tmp_path, tiny)
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == [
        "checkpoint.safetensors", "metrics.jsonl", "training.json",
    ]  # fmt: skip
    rest = trained(run, tmp_path, tiny)
    assert len(rest.losses) == 4  # after the checkpoint of step 2


def part_of(run: Run, out: Path, training: ClipTraining, monkeypatch: pytest.MonkeyPatch, how: How = CPU) -> Path:
    """Trains until something breaks after step 3, with a checkpoint of step 2, and returns the checkpoint's path."""
    plain = clip_loop.Watch.__call__

    def stopped(self: clip_loop.Watch, step: int) -> None:
        plain(self, step)
        if step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clip_loop.Watch, "__call__", stopped)
        with pytest.raises(KeyboardInterrupt):
            trained(run, out, training, how)
    return out / "training" / "checkpoint.safetensors"


@pytest.mark.parametrize("place", [0.0, 0.02, 0.3, 0.7, 1.0])
def test_a_checkpoint_with_a_flipped_bit_is_refused(
    place: float, run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = part_of(run, tmp_path, tiny, monkeypatch)
    data = bytearray(path.read_bytes())
    data[round(place * (len(data) - 1))] ^= 4
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"checkpoint.safetensors is damaged, .*: delete it to start anew"):
        trained(run, tmp_path, tiny)


def test_damaged_lines_of_metrics_do_not_stop_a_training_that_goes_on(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_of(run, tmp_path, tiny, monkeypatch)
    with open(tmp_path / "training" / "metrics.jsonl", "ab") as file:
        file.write(b'\xff\xfe\nnull\n5\n{}\n[1]\n"x"\n{"step": "2"}\n{"step": 2, "lo')
    trained(run, tmp_path, tiny)
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"settings": 1}', '{"settings": {}, "result": {"steps": 1}}'])
def test_a_damaged_manifest_is_told(content: str, run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    trained(run, tmp_path, replace(tiny, samples=8))
    (tmp_path / "training" / "training.json").write_text(content)
    with pytest.raises(DamageError, match=r"training.json is damaged"):
        trained(run, tmp_path, replace(tiny, samples=8))


def test_a_manifest_that_says_something_else_is_damaged(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    trained(run, tmp_path, replace(tiny, samples=8))
    path = tmp_path / "training" / "training.json"
    path.write_text(path.read_text().replace('"samples": 8', '"samples": 9'))
    with pytest.raises(DamageError, match=r"training.json is damaged, .* what it says is not what was written"):
        trained(run, tmp_path, replace(tiny, samples=9))


def test_a_model_that_is_not_finite_is_kept_for_no_epoch(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = clip_loop.Watch.__call__

    def spoilt(self: clip_loop.Watch, step: int) -> None:
        if step == 2:  # the last one of the first epoch
            with torch.no_grad():
                [*self._towers.model.parameters()][-1].fill_(float("inf"))
        plain(self, step)

    monkeypatch.setattr(clip_loop.Watch, "__call__", spoilt)
    with pytest.raises(StopError, match=r"is not finite after step 2, which is not saved; .* Lower the learning rate"):
        trained(run, tmp_path, tiny, replace(CPU, keep_epochs=True))
    assert [path.name for path in tmp_path.iterdir()] == ["training"]


def test_a_training_that_is_done_and_whose_model_is_gone_is_told(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    short = replace(tiny, samples=16)
    trained(run, tmp_path, short)
    with pytest.raises(RunError, match=r"without a model of its epoch 1: it was begun without keeping them"):
        trained(run, tmp_path, short, replace(CPU, keep_epochs=True))
    clip_folder(tmp_path / "epoch-1")  # another model's weights in the folder are none of its own
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"says that its training is done, and holds no whole model: restore its files"):
        trained(run, tmp_path, short)


def test_epochs_that_were_not_kept_are_told_where_a_training_goes_on(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_of(run, tmp_path, tiny, monkeypatch)
    with pytest.raises(RunError, match=r"has come to step 2 without a model of its epoch 1"):
        trained(run, tmp_path, tiny, replace(CPU, keep_epochs=True))


def test_a_tokenizer_is_refused_where_the_model_brings_one(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    with pytest.raises(ModelError, match=r"brings its tokenizer with its text tower: leave --tokenizer out"):
        trained(run, tmp_path, tiny, tokenizer=tiny.model)


@pytest.mark.parametrize("epochs", [0, -1, float("nan"), float("inf")])
def test_epochs_that_make_no_sense_are_refused(epochs: float, run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    with pytest.raises(ValueError, match="epochs must be above 0 and finite"):
        trained(run, tmp_path, tiny, epochs=epochs)


def test_a_checkpoint_and_the_model_are_on_the_disk_before_they_count(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    renamed: dict[str, bool] = {}
    sync, move = os.fsync, os.replace

    def noted(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    def seen(source: Path, target: Path) -> None:
        renamed[Path(target).name] = os.stat(source).st_ino in synced
        move(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", seen)
    trained(run, tmp_path, tiny)
    for name in ("training.json", "checkpoint.safetensors", "model.safetensors", "config.json"):
        assert renamed[name], name


def test_two_trainings_cannot_share_a_folder(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    with locked(tmp_path / "training"), pytest.raises(RunError, match=r"training folder .* is in use by process"):
        trained(run, tmp_path, tiny)


def test_another_training_does_not_go_on_in_the_folder(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    trained(run, tmp_path, tiny)
    with pytest.raises(RunError, match=r"holds another training: its batch was 8 and is now 4; choose another folder"):
        trained(run, tmp_path, replace(tiny, batch=4))
    keep = np.arange(len(run)) < 8
    with pytest.raises(RunError, match="holds another training: of other pairs"):
        trained(run, tmp_path, tiny, source=Subset(run=run, keep=keep))


def test_a_training_goes_on_with_the_captions_that_it_began_with(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    pool = tamis.PoolSpec(path=run.facts["pool"]["path"], caption="json:uid")
    other = tamis.score(pool, run=tmp_path / "other", scores=["caption_length"], quiet=True)
    out = tmp_path / "out"
    trained(run, out, tiny)
    with pytest.raises(RunError, match=r"holds another training: .*read otherwise.*'caption': 'json:uid'"):
        trained(other, out, tiny)


def test_a_folder_with_other_files_is_not_written_into(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(RunError, match=r"holds no training but other files \(thesis.txt, ...\)"):
        trained(run, tmp_path, tiny)
    assert [path.name for path in tmp_path.rglob("*")] == ["thesis.txt"]
    (tmp_path / "mine" / "training").mkdir(parents=True)
    (tmp_path / "mine" / "training" / "marathon.csv").write_text("")
    with pytest.raises(RunError, match=r"training holds no training but other files \(marathon.csv, ...\)"):
        trained(run, tmp_path / "mine", tiny)
    assert [path.name for path in (tmp_path / "mine" / "training").iterdir()] == ["marathon.csv"]


def test_a_model_that_is_not_here_leaves_no_trace(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    with pytest.raises(ModelError, match="lost"):
        trained(run, tmp_path / "out", replace(tiny, model="./lost"))
    assert not (tmp_path / "out").exists()


def test_a_subset_of_another_pool_is_refused(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    other = make_run(tmp_path, rows=9)
    with pytest.raises(RunError, match=r"00000\.tar has changed since it was scored"):
        train_clip(
            Subset(run=other, keep=np.ones(18, bool)), pool=pool_of(run), out=tmp_path / "out", training=tiny, how=CPU
        )


def test_a_subset_without_pairs_is_refused(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    with pytest.raises(RunError, match=r"0 of 16 pairs\) has no pair whose image and caption can be read"):
        trained(run, tmp_path, tiny, source=Subset(run=run, keep=np.zeros(len(run), bool)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "ViT-B32"}, r"not an architecture either \(did you mean 'ViT-B-32'\?\)"),
        ({"model": "convnet"}, "an image tower alone: name an encoder of texts"),
        ({"text": "minilm"}, "is a checkpoint and brings its text tower"),
        ({"model": "ViT-tiny", "freeze_text": True}, "a text tower that knows nothing would be kept as it is"),
    ],
)
def test_models_that_do_not_fit_are_refused_before_any_work(
    run: Run, tmp_path: Path, tiny: ClipTraining, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        trained(run, tmp_path, replace(tiny, **change))


def test_a_small_subset_is_warned_of(
    run: Run, tmp_path: Path, tiny: ClipTraining, caplog: pytest.LogCaptureFixture
) -> None:
    trained(run, tmp_path, replace(tiny, samples=8), source=Subset(run=run, keep=np.arange(len(run)) < 5))
    assert "an epoch has 5 pairs and a batch 8" in caplog.text


@pytest.fixture(scope="module")
def residual(sentences: str) -> ClipTraining:
    """Four steps of 8 pairs of a residual image tower beside a frozen text tower."""
    return ClipTraining(
        model="resnet-64", text=sentences, freeze_text=True, samples=32, batch=8, learning_rate=1e-3, warmup=2
    )


def test_a_residual_tower_begins_as_the_mean_over_the_places_of_its_last_features(residual: ClipTraining) -> None:
    network = build(residual).model.vision_model.eval()
    pixels = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = network(pixels).pooler_output
        features = network.embeddings.projection(network.embeddings.backbone(pixels).feature_maps[-1])
        places = features.flatten(2).transpose(1, 2)  # (b, 4, 256)
        # The first token begins at 0, stays so when normalised, and is one of the five that are averaged.
        mean = network.encoder.layer[0].layernorm_before(places).sum(1) / 5
        wanted = network.layernorm(mean)
    assert found.shape == (3, 256)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_residual_tower_learns_loads_with_transformers_and_goes_on_to_the_bit(
    run: Run, tmp_path: Path, residual: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModel

    whole = trained(run, tmp_path / "whole", residual)
    with monkeypatch.context() as patch:
        killed_at(4, patch)
        with pytest.raises(Killed):
            trained(run, tmp_path / "killed", residual)
    assert list(trained(run, tmp_path / "killed", residual).losses) == list(whole.losses)[2:]
    before = weights(tmp_path / "whole")
    files = sorted(path.name for path in (tmp_path / "whole").iterdir() if path.is_file())
    assert "tokenizer.json" in files
    for name in files:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name
    assert "vision_model.embeddings.backbone.embedder.embedder.normalization.running_mean" in before
    assert all(torch.equal(one, before[name]) for name, one in weights(tmp_path / "killed").items())
    network = AutoModel.from_pretrained(tmp_path / "whole").eval()
    assert network.vision_model.embeddings.cls_token.abs().max() > 0  # it learned
    black = np.zeros((64, 64, 3), np.uint8)
    normalised = -torch.tensor([0.48145466, 0.4578275, 0.40821073]) / torch.tensor([0.26862954, 0.26130258, 0.27577711])
    theirs = network.get_image_features(pixel_values=normalised.view(1, 3, 1, 1).expand(1, 3, 64, 64)).pooler_output
    ours = torch.from_numpy(load_clip(str(tmp_path / "whole"), Device()).images([black]))
    assert torch.allclose(theirs, ours, atol=1e-5)


def test_a_batch_that_is_cut_up_is_refused_for_a_model_that_normalises_over_it(
    run: Run, tmp_path: Path, residual: ClipTraining
) -> None:
    with pytest.raises(StopError, match=r"resnet-64 normalises over the whole batch.* of 2 pieces.*convnet"):
        trained(run, tmp_path, residual, replace(CPU, pieces=2))


# ---- pairs that are held out


def test_pairs_that_are_held_out_are_not_trained_on_and_their_loss_is_in_the_metrics(
    run: Run, tmp_path: Path, tiny: ClipTraining
) -> None:
    done = trained(run, tmp_path, replace(tiny, hold_out=0.3))
    learned, held = split(training_rows(run)[0], 0.3)
    assert held is not None
    assert sorted([*learned.rows, *held.rows]) == list(range(16))
    assert 2 <= len(held.rows) <= 8
    assert done.pairs == len(learned.rows)
    towers = build(replace(tiny, model=str(tmp_path)))
    towers.model.eval()
    batch = next(batches_of(run, run, batch=len(held.rows), smallest=1.0, rows=held)(0, 1, lambda batch: batch))
    with torch.no_grad():
        images, texts = towers.images(batch.pixels), towers.texts(*towers.tokens(batch.captions))
        loss = contrastive_loss(images, texts, towers.model.logit_scale.exp())
    assert metrics(tmp_path)[-1]["held_out_loss"] == pytest.approx(float(loss), abs=1e-4)


def test_the_best_model_is_kept_after_a_kill_too_and_overfitting_is_reported(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    best = replace(tiny, hold_out=0.3, keep_best=True)
    third: dict[str, torch.Tensor] = {}
    plain = clip_loop.Watch.__call__
    scripted = {1: 3.0, 2: 2.0, 3: 1.0, 4: 4.0, 5: 5.0, 6: 6.0}
    at = 0

    def seen(self: clip_loop.Watch, step: int) -> None:
        nonlocal at
        at = step
        plain(self, step)
        if step == 3:
            third.update({name: one.clone() for name, one in self._towers.model.state_dict().items()})

    monkeypatch.setattr(clip_loop.Watch, "__call__", seen)
    monkeypatch.setattr(HeldOut, "loss", lambda self: scripted[at])
    with monkeypatch.context() as patch:
        killed_at(6, patch)
        with pytest.raises(Killed):
            trained(run, tmp_path, best)
    trained(run, tmp_path, best)
    assert all(torch.equal(one, third[name]) for name, one in weights(tmp_path).items())
    assert "the model overfits: since step 3 the training loss fell from " in caplog.text
    assert "and the held-out loss rose from 1.000 to 4.000" in caplog.text
    assert [line["held_out_loss"] for line in metrics(tmp_path)] == list(scripted.values())
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == ["metrics.jsonl", "training.json"]


def test_a_share_that_holds_out_too_few_pairs_is_refused(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    with pytest.raises(RunError, match=r"holding out 0.001 of 16 pairs leaves 16 to train on and 0 to measure"):
        trained(run, tmp_path, replace(tiny, hold_out=0.001))


# ---- memory


def free(amount: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets so many bytes be free, and nothing be read ahead."""
    monkeypatch.setattr(memory, "free_memory", lambda kind: amount)
    monkeypatch.setattr(memory, "_READ_AHEAD", 0)


SPARE = replace(CPU, cache=0)


def test_a_batch_is_cut_so_that_it_fits_into_free_memory_and_losses_stay_the_same(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tamis.train")
    whole = trained(run, tmp_path / "whole", tiny)
    assert "a batch of 8 is computed in one piece: a pair takes " in caplog.text
    free(1_100_000, monkeypatch)
    cut = trained(run, tmp_path / "cut", tiny, SPARE)
    assert "a batch of 8 is cut into 4 pieces of at most 2: a pair takes " in caplog.text
    assert cut.losses == pytest.approx(whole.losses, abs=1e-4)
    before, after = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.allclose(one, after[name], atol=1e-3) for name, one in before.items())


def test_the_measured_step_leaves_nothing_behind(run: Run, tmp_path: Path, residual: ClipTraining) -> None:
    measured = trained(run, tmp_path / "a", residual)
    assert measured.losses == trained(run, tmp_path / "b", residual, replace(CPU, pieces=1)).losses
    before = weights(tmp_path / "b")
    assert all(torch.equal(one, before[name]) for name, one in weights(tmp_path / "a").items())


def test_a_training_goes_on_in_the_pieces_that_it_began_with(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(1_100_000, monkeypatch)
    whole = trained(run, tmp_path / "whole", tiny, SPARE)
    with monkeypatch.context() as patch:
        killed_at(4, patch)
        with pytest.raises(Killed):
            trained(run, tmp_path / "killed", tiny, SPARE)
    free(1 << 40, monkeypatch)
    assert list(trained(run, tmp_path / "killed", tiny, SPARE).losses) == list(whole.losses)[2:]
    before = weights(tmp_path / "whole")
    assert all(torch.equal(one, before[name]) for name, one in weights(tmp_path / "killed").items())


def test_what_does_not_fit_into_memory_is_refused_with_the_arithmetic(
    run: Run, tmp_path: Path, tiny: ClipTraining, residual: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(500_000, monkeypatch)
    with pytest.raises(
        StopError, match=r"clip does not fit into memory: without any pair it takes \d.* GiB; \d.* GiB may"
    ):
        trained(run, tmp_path / "tiny", tiny, SPARE)
    numbers = r"a pair takes \d.* GiB, gradients, AdamW and what .* ahead \d.* GiB; \d.* GiB may be used, 80% of what"
    free(720_000, monkeypatch)
    with pytest.raises(StopError, match=rf"clip does not fit into memory: {numbers}"):
        trained(run, tmp_path / "tiny", tiny, SPARE)
    free(30_000_000, monkeypatch)
    with pytest.raises(StopError, match=rf"a batch of 8 does not fit into memory: {numbers}.* take at most \d"):
        trained(run, tmp_path / "residual", residual, SPARE)


@pytest.mark.parametrize(("end", "message"), [(2, "has the number 2"), (7, "does not end its texts")])
def test_a_tokenizer_whose_end_clip_would_not_find_is_refused(tmp_path: Path, end: int, message: str) -> None:
    folder = tokenizer_folder(tmp_path / "tokens")  # its end mark, number 2, is RoBERTa's
    if end != 2:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "dog"}))
    with pytest.raises(ModelError, match=message):
        build(ClipTraining(model="ViT-tiny", samples=16, batch=8), tokenizer=folder)
