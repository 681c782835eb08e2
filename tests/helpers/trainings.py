"""A small run to train on, trainings of it, and what they leave."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import score, write_pool
from safetensors.torch import load_file

from tamis.core.types import Device
from tamis.runs import Run
from tamis.train.clip import Trained, train_clip
from tamis.train.scales import ClipTraining
from tamis.train.step import How
from tamis.train.watch import Watch

CPU = How(device=Device(kind="cpu", threads=1, batch_size=8), report_every=1, save_every=2)


def make_run(folder: Path, shards: int = 2, rows: int = 8) -> Run:
    return score(write_pool(folder / "pool", shards, rows), folder / "run", "caption_length")


def trained(run: Run, out: Path, training: ClipTraining, how: How = CPU, **more: Any) -> Trained:
    return train_clip(more.pop("source", run), out=out, training=training, how=how, **more)


def train_here(path: str, out: str, training: ClipTraining) -> None:
    train_clip(Run(path), out=out, training=training, how=CPU)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "training" / "metrics.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(out / "model.safetensors"))


def assert_same_model(one: Path, other: Path) -> None:
    """Every file of the two models has the same bytes."""
    names = sorted(path.name for path in one.iterdir() if path.is_file())
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= set(names)
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def after(number: int, action: Any, monkeypatch: pytest.MonkeyPatch, *, before: bool = False) -> None:
    """Calls `action(watch)` after the work of a step, or before it."""
    plain = Watch.__call__

    def call(self: Watch, step: int, loss: float) -> None:
        if before and step == number:
            action(self)
        plain(self, step, loss)
        if not before and step == number:
            action(self)

    monkeypatch.setattr(Watch, "__call__", call)
