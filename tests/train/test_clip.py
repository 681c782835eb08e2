"""Training a CLIP: what it reads, how it resumes, what it writes, and what it refuses."""

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretended_gpu import on_gpu
from tiny_models import tokenizer_folder
from trainings import CPU, after, assert_same_model, make_run, metrics, trained, weights

import tamis
from tamis.core.errors import ModelError, RunError, StopError
from tamis.core.processes import temporary_name
from tamis.core.types import Device
from tamis.models.clip import load_clip, load_tokenizer
from tamis.runs import Run
from tamis.runs.claims import lock_run
from tamis.runs.subset import Subset
from tamis.train import clip, step, watch
from tamis.train.batches import Batches, split
from tamis.train.clip import Trained, train_clip, training_rows
from tamis.train.losses import contrastive_loss
from tamis.train.scales import ClipTraining
from tamis.train.step import TrainingStep
from tamis.train.towers import build, depthwise_in_float32, take_mean
from tamis.train.watch import HeldOut, Watch


def test_the_loss_falls_and_the_folder_loads_with_transformers_and_with_our_signals(
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
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == ["metrics.jsonl", "training.json"]


def test_metrics_have_the_losses_the_rates_and_the_speed(
    run: Run, tmp_path: Path, tiny: ClipTraining, whole: tuple[Trained, Path]
) -> None:
    done, lines = whole[0], metrics(whole[1])
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in lines] == list(done.losses)
    # The fourth of the four steps after the warm-up: half a cosine, three quarters of the way down.
    rates = [1e-3 / 2, 1e-3, 1e-3 * 0.5 * (1 + np.cos(np.pi * 3 / 4))]
    assert [lines[step]["learning_rate"] for step in (0, 1, 5)] == pytest.approx(rates)
    assert all(line["samples_per_second"] > 0 and line["utilisation"] > 0 for line in lines)
    assert (lines[5]["samples"], lines[5]["epoch"]) == (48, 3.0)
    losses = trained(run, tmp_path / "fewer", tiny, replace(CPU, report_every=4)).losses
    wanted = [np.mean(losses[:4]), np.mean(losses[4:])]
    assert [line["loss"] for line in metrics(tmp_path / "fewer")] == pytest.approx(wanted)


def test_the_temperature_stays_within_its_bounds(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    trained(run, tmp_path, replace(tiny, learning_rate=3.0, warmup=0, samples=24))
    assert all(1 <= line["scale"] <= 100 * (1 + 1e-6) for line in metrics(tmp_path))
    assert any(line["scale"] in (1.0, pytest.approx(100)) for line in metrics(tmp_path))


def test_a_killed_training_resumes_to_the_same_losses_and_weights_to_the_bit(
    run: Run, tmp_path: Path, tiny: ClipTraining, in_pieces: tuple[Trained, Path], kill: Any
) -> None:
    how, (whole, folder), out = replace(CPU, pieces=2), in_pieces, tmp_path / "killed"
    with kill(6):
        trained(run, out, tiny, how)
    assert [line["step"] for line in metrics(out)] == [1, 2, 3, 4, 5]
    state = out / "training"
    ours = temporary_name(state / "checkpoint.safetensors").name
    dead = ours.replace(f"-{os.getpid()}-", "-4194305-")  # above the highest number of a process
    for name in (".tmpXy12Zw", dead):  # safetensors' own, and ours
        (state / name).write_bytes(b"half a checkpoint")
    with open(state / "metrics.jsonl", "a") as metric_lines:
        metric_lines.write('{"step": 2, "lo')  # the kill cut it
    rest = trained(run, out, tiny, how)
    assert list(rest.losses) == list(whole.losses)[4:]  # the checkpoint was that of step 4
    assert [line["loss"] for line in metrics(out)] == list(whole.losses)
    assert_same_model(folder, out)
    assert sorted(path.name for path in state.iterdir()) == ["metrics.jsonl", "training.json"]
    assert trained(run, out, tiny, how) == replace(rest, losses=[])  # done already
    assert_same_model(folder, out)


def test_a_residual_tower_learns_loads_with_transformers_and_resumes_to_the_bit(
    run: Run, tmp_path: Path, residual: ClipTraining, monkeypatch: pytest.MonkeyPatch, kill: Any
) -> None:
    from transformers import AutoModel

    whole = trained(run, tmp_path / "whole", residual)
    with kill(4):
        trained(run, tmp_path / "killed", residual)
    trained(run, tmp_path / "killed", residual)
    assert_same_model(tmp_path / "whole", tmp_path / "killed")
    trained(run, tmp_path / "not measured", residual, replace(CPU, pieces=1))
    assert_same_model(tmp_path / "whole", tmp_path / "not measured")
    network = AutoModel.from_pretrained(tmp_path / "whole").eval()
    assert network.vision_model.embeddings.cls_token.abs().max() > 0  # it learned
    black = np.zeros((64, 64, 3), np.uint8)
    normalised = -torch.tensor([0.48145466, 0.4578275, 0.40821073]) / torch.tensor([0.26862954, 0.26130258, 0.27577711])
    theirs = network.get_image_features(pixel_values=normalised.view(1, 3, 1, 1).expand(1, 3, 64, 64)).pooler_output
    ours = torch.from_numpy(load_clip(str(tmp_path / "whole"), Device()).images([black]))
    assert torch.allclose(theirs, ours, atol=1e-5)
    monkeypatch.setattr(step, "MOST_STATES", 3)  # states that are not kept give the same training
    assert trained(run, tmp_path / "no states", residual).losses == pytest.approx(whole.losses, abs=1e-4)
    with pytest.raises(StopError, match="normalises over the whole batch"):
        trained(run, tmp_path / "cut", residual, replace(CPU, pieces=2))


def test_pieces_and_recomputed_layers_change_losses_by_rounding_only(
    run: Run, tmp_path: Path, tiny: ClipTraining, whole: tuple[Trained, Path], in_pieces: tuple[Trained, Path]
) -> None:
    for done in (in_pieces[0], trained(run, tmp_path, tiny, replace(CPU, checkpointing=True))):
        assert done.losses == pytest.approx(whole[0].losses, abs=1e-4)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, seen = TrainingStep.__call__, iter(range(1, 1000))

    def call(self: TrainingStep, batch: Any) -> torch.Tensor:
        value = plain(self, batch)
        return value * float("nan") if next(seen) == 4 else value

    monkeypatch.setattr(TrainingStep, "__call__", call)
    with pytest.raises(StopError, match=r"the loss of step 4 is nan: .*step 2"):
        trained(run, tmp_path, tiny)
    assert (tmp_path / "training" / "checkpoint.safetensors").is_file()
    assert not (tmp_path / "config.json").exists()


def test_a_checkpoint_with_a_flipped_bit_is_refused(run: Run, tmp_path: Path, tiny: ClipTraining, kill: Any) -> None:
    with kill(4):
        trained(run, tmp_path, tiny)
    path = tmp_path / "training" / "checkpoint.safetensors"
    whole = path.read_bytes()
    for place in (0.0, 0.02, 0.3, 0.7, 1.0):
        data = bytearray(whole)
        data[round(place * (len(data) - 1))] ^= 4
        path.write_bytes(data)
        with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged"):
            trained(run, tmp_path, tiny)


def test_a_frozen_text_tower_stays_and_the_saved_model_has_its_states(run: Run, tmp_path: Path, sentences: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    frozen = ClipTraining(model="convnet", text=sentences, freeze_text=True, samples=32, batch=8, warmup=2)
    assert trained(run, tmp_path, frozen).steps == 4
    model, tokenizer = AutoModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "VisionTextDualEncoderModel"
    before, text = AutoModel.from_pretrained(sentences).state_dict(), model.text_model.state_dict()
    kept = [name for name in before if "pooler" not in name]
    assert len(kept) > 20
    assert all(torch.equal(before[name], text[name]) for name in kept)
    texts = ["a red dog", "the old house by the sea and the river"]
    theirs = model.get_text_features(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
    ours = load_clip(str(tmp_path), Device()).texts(load_tokenizer(str(tmp_path))(texts))
    assert np.allclose(theirs.detach().numpy(), ours, atol=1e-5)


def test_depthwise_convolutions_in_float32_are_the_same_convolutions() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 8, 7, padding=3, groups=8))
    ours = copy.deepcopy(plain)
    depthwise_in_float32(ours)
    pixels = torch.randn(2, 3, 9, 5)
    assert torch.allclose(plain(pixels), ours(pixels), atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (plain(pixels).dtype, ours(pixels).dtype) == (torch.bfloat16, torch.float32)


def test_the_added_layer_takes_the_mean_of_all_tokens_and_of_no_padding(sentences: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    plain, tokenizer = AutoModel.from_pretrained(sentences).eval(), AutoTokenizer.from_pretrained(sentences)
    texts = tokenizer(["a red dog", "the old house by the sea"], padding=True, return_tensors="pt")
    states, mask = plain(**texts).last_hidden_state, texts["attention_mask"][:, :, None]
    mean = (states * mask).sum(1) / mask.sum(1)
    wanted = torch.tanh((mean - mean.mean(1, keepdim=True)) / mean.std(1, keepdim=True, unbiased=False) / 4)
    take_mean(plain)
    found = plain(**texts).pooler_output
    assert torch.allclose(found, wanted, atol=5e-3)
    assert not torch.allclose(found[0], found[1], atol=5e-2)


def test_a_residual_tower_starts_as_the_mean_over_the_places_of_its_last_features(residual: ClipTraining) -> None:
    network = build(residual).model.vision_model.eval()
    pixels = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = network(pixels).pooler_output
        features = network.embeddings.projection(network.embeddings.backbone(pixels).feature_maps[-1])
        places = features.flatten(2).transpose(1, 2)  # (b, 4, 256)
        # The first token starts at 0, stays so when normalised, and is one of the five that are averaged.
        mean = network.encoder.layer[0].layernorm_before(places).sum(1) / 5
        wanted = network.layernorm(mean)
    assert found.shape == (3, 256)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_clip_from_scratch_learns_its_tokenizer_from_the_captions(run: Run, tmp_path: Path) -> None:
    from transformers import CLIPModel

    assert trained(run, tmp_path, ClipTraining(model="ViT-tiny", samples=16, batch=8, warmup=1)).steps == 2
    config = CLIPModel.from_pretrained(tmp_path).config.text_config
    ids = load_tokenizer(str(tmp_path))(["the old house"])[0]
    assert (ids[0], ids[-1], config.hidden_act) == (config.bos_token_id, config.eos_token_id, "gelu")


def test_the_model_of_every_epoch_is_kept_where_that_is_asked(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, out = replace(CPU, keep_epochs=True), tmp_path / "out"
    trained(run, out, tiny, keep, epochs=3)
    assert sorted(path.name for path in out.glob("epoch-*")) == ["epoch-1", "epoch-2", "epoch-3"]
    assert load_clip(str(out / "epoch-2"), Device()).texts([[1, 2]]).shape == (1, 24)
    last, final = weights(out / "epoch-3"), weights(out)
    assert all(torch.equal(one, last[name]) for name, one in final.items())
    assert not torch.equal(weights(out / "epoch-1")["logit_scale"], final["logit_scale"])

    def spoil_weights(watching: Watch) -> None:
        with torch.no_grad():
            [*watching._towers.model.parameters()][-1].fill_(float("inf"))

    with monkeypatch.context() as patch:
        after(2, spoil_weights, patch, before=True)  # step 2 is the last one of the first epoch
        with pytest.raises(StopError, match="not finite after step 2"):
            trained(run, tmp_path / "spoilt", tiny, keep)
    assert [path.name for path in (tmp_path / "spoilt").iterdir()] == ["training"]


def test_held_out_pairs_are_not_learned_and_have_a_loss_in_the_metrics(
    run: Run, tmp_path: Path, tiny: ClipTraining
) -> None:
    done = trained(run, tmp_path, replace(tiny, hold_out=0.3))
    learned, held = split(training_rows(run)[0], 0.3)
    assert held is not None
    assert sorted([*learned.rows, *held.rows]) == list(range(16))
    assert done.pairs == len(learned.rows)
    towers = build(replace(tiny, model=str(tmp_path)))
    towers.model.eval()
    batch = next(Batches(run=run, rows=held, batch=len(held.rows), side=32, smallest=1.0)(0, 1, lambda batch: batch))
    with torch.no_grad():
        images, texts = towers.images(batch.pixels), towers.texts(*towers.tokens(batch.captions))
        loss = contrastive_loss(images, texts, towers.model.logit_scale.exp())
    assert metrics(tmp_path)[-1]["held_out_loss"] == pytest.approx(float(loss), abs=1e-4)
    with pytest.raises(RunError, match="leaves 16 to train on, 0 to measure"):
        trained(run, tmp_path / "few", replace(tiny, hold_out=0.001))


def test_the_best_model_is_kept_after_a_kill_too_and_overfitting_is_reported(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    kill: Any,
) -> None:  # fmt: skip
    best = replace(tiny, hold_out=0.3, keep_best=True)
    scripted = {1: 3.0, 2: 2.0, 3: 1.0, 4: 4.0, 5: 5.0, 6: 6.0}
    third: dict[str, torch.Tensor] = {}
    check = HeldOut.check

    def checked(self: HeldOut, step: int, training_loss: float) -> bool:
        monkeypatch.setattr(HeldOut, "loss", lambda self: scripted[step])
        return check(self, step, training_loss)

    monkeypatch.setattr(HeldOut, "check", checked)
    after(3, lambda one: third.update({k: v.clone() for k, v in one._towers.model.state_dict().items()}), monkeypatch)
    with kill(6):
        trained(run, tmp_path, best)
    trained(run, tmp_path, best)
    assert all(torch.equal(one, third[name]) for name, one in weights(tmp_path).items())
    assert "the model overfits: since step 3 the training loss fell to " in caplog.text
    assert [line["held_out_loss"] for line in metrics(tmp_path)] == list(scripted.values())
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == ["metrics.jsonl", "training.json"]


SPARE = replace(CPU, cache=0)


def free(amount: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets so many bytes be free, and nothing be read ahead."""
    monkeypatch.setattr(step, "free_memory", lambda kind: amount)
    monkeypatch.setattr(step, "_READ_AHEAD", 0)


def test_a_batch_is_cut_to_fit_into_free_memory_and_resumes_in_the_same_pieces(
    run: Run, tmp_path: Path, tiny: ClipTraining, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    kill: Any,
) -> None:  # fmt: skip
    caplog.set_level("INFO", "tamis.train")
    whole = trained(run, tmp_path / "whole", tiny)
    assert "pieces of at most 8 pairs" in caplog.text
    free(1_100_000, monkeypatch)
    cut = trained(run, tmp_path / "cut", tiny, SPARE)
    assert "pieces of at most 2 pairs" in caplog.text
    assert cut.losses == pytest.approx(whole.losses, abs=1e-4)
    with kill(4):
        trained(run, tmp_path / "killed", tiny, SPARE)
    free(1 << 40, monkeypatch)
    assert list(trained(run, tmp_path / "killed", tiny, SPARE).losses) == list(cut.losses)[2:]
    assert_same_model(tmp_path / "cut", tmp_path / "killed")


def test_what_does_not_fit_into_memory_is_refused(
    run: Run, tmp_path: Path, tiny: ClipTraining, residual: ClipTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    for amount in (500_000, 720_000):  # without any pair, and with one
        free(amount, monkeypatch)
        with pytest.raises(StopError, match=r"clip does not fit into memory"):
            trained(run, tmp_path / "tiny", tiny, SPARE)
    free(30_000_000, monkeypatch)
    with pytest.raises(StopError, match=r"resnet-64 does not fit into memory: .* cannot be cut into pieces"):
        trained(run, tmp_path / "residual", residual, SPARE)


def test_another_training_does_not_resume_in_the_folder(
    run: Run, tmp_path: Path, tiny: ClipTraining, whole: tuple[Trained, Path]
) -> None:
    out = whole[1]
    pool = tamis.PoolSpec(path=run.facts["pool"]["path"], caption="json:uid")
    other = tamis.score(pool, run=tmp_path / "other", signals=["caption_length"], quiet=True)
    half = Subset(run=run, keep=np.arange(len(run)) < 8)
    for what, call in (
        (r"batch \(then 8, now 4\)", lambda: trained(run, out, replace(tiny, batch=4))),
        ("pairs", lambda: trained(run, out, tiny, source=half)),
        ("pool .*json:uid", lambda: trained(other, out, tiny)),
    ):
        with pytest.raises(RunError, match=f"a training with other {what}"):
            call()
    with lock_run(tmp_path / "busy" / "training"), pytest.raises(RunError, match="is in use by process"):
        trained(run, tmp_path / "busy", tiny)


def test_a_done_training_without_its_models_is_reported(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    short = replace(tiny, samples=16)
    trained(run, tmp_path, short)
    with pytest.raises(RunError, match="lacks the model of epoch 1"):
        trained(run, tmp_path, short, replace(CPU, keep_epochs=True))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RunError, match="its model is incomplete"):
        trained(run, tmp_path, short)


def test_models_that_do_not_fit_leave_no_trace(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    for change, name in (
        ({"model": "./lost"}, "lost"),
        ({"model": "ViT-B32"}, "did you mean 'ViT-B-32'"),
        ({"model": "convnet"}, "convnet"),
        ({"text": "minilm"}, "--text"),
        ({"model": "ViT-tiny", "freeze_text": True}, "ViT-tiny"),
    ):
        with pytest.raises(ModelError, match=name):
            trained(run, tmp_path / "out", replace(tiny, **change))  # type: ignore[arg-type]
    tokens = tokenizer_folder(tmp_path / "tokens")  # its end mark, number 2, is RoBERTa's
    with pytest.raises(ModelError, match="ends texts with"):
        build(ClipTraining(model="ViT-tiny", samples=16, batch=8), tokenizer=tokens)
    assert not (tmp_path / "out").exists()


def test_other_requests_that_make_no_sense_are_refused(run: Run, tmp_path: Path, tiny: ClipTraining) -> None:
    for epochs in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="epochs must be above 0 and finite"):
            trained(run, tmp_path / "out", tiny, epochs=epochs)
    with pytest.raises(ModelError, match="--tokenizer"):
        trained(run, tmp_path / "out", tiny, tokenizer=tiny.model)
    with pytest.raises(RunError, match="nothing to train on"):
        trained(run, tmp_path / "out", tiny, source=Subset(run=run, keep=np.zeros(len(run), bool)))
    other = make_run(tmp_path / "other", rows=9)
    other.pool = run.pool
    with pytest.raises(RunError, match=r"00000\.tar has changed since it was scored"):
        train_clip(Subset(run=other, keep=np.ones(18, bool)), out=tmp_path / "out", training=tiny, how=CPU)


def test_a_gpu_trains_the_model_of_a_cpu_in_pieces_and_resumed(
    run: Run, tiny: ClipTraining, in_pieces: tuple[Trained, Path], tmp_path: Path, kill: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gpu = replace(CPU, device=replace(CPU.device, kind="cuda:1"), pieces=2)
    monkeypatch.setattr(watch, "peak_rate", lambda *device: 1e12)  # else a product as large as a GPU likes
    with on_gpu() as gpus:
        with kill(5):
            trained(run, tmp_path / "gpu", tiny, gpu)
        trained(run, tmp_path / "gpu", tiny, gpu)
        monkeypatch.setattr(clip, "flops_per_pair", lambda *given: 1.0)  # so that the first step is what needs memory
        gpus.full = 1
        with pytest.raises(StopError, match="no memory for a step: use --pieces 4, or a smaller --train-batch; the"):
            trained(run, tmp_path / "full", tiny, gpu)
    assert gpus.calls > 1000
    for name, one in weights(in_pieces[1]).items():
        assert torch.allclose(one, weights(tmp_path / "gpu")[name], atol=1e-4), name
