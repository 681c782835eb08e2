"""A run, trainings of it, and a kill in a step of one."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import WORDS
from tiny_models import clip_folder, tokenizer_folder
from trainings import CPU, make_run, trained
from transformers import BertConfig, BertModel

from tamis.runs import Run
from tamis.train.clip import Trained
from tamis.train.scales import ClipTraining
from tamis.train.step import TrainingStep

Kill = Callable[[int], AbstractContextManager[None]]


class Killed(BaseException):
    """Stands for a kill."""


@pytest.fixture
def kill() -> Kill:
    """`with kill(6): ...` dies in the sixth step, counted over all trainings, before anything of it is written."""

    @contextmanager
    def in_step(number: int) -> Iterator[None]:
        plain, seen = TrainingStep.__call__, itertools.count(1)

        def call(self: TrainingStep, batch: Any) -> Any:
            if next(seen) == number:
                raise Killed
            return plain(self, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingStep, "__call__", call)
            with pytest.raises(Killed):
                yield

    return in_step


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two shards of eight good pairs."""
    return make_run(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ClipTraining:
    """Six steps of 8 pairs on a tiny checkpoint."""
    folder = clip_folder(tmp_path_factory.mktemp("tiny") / "clip")
    return ClipTraining(model=str(folder), samples=48, batch=8, learning_rate=1e-3, warmup=2)


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random BERT as a sentence encoder that averages its tokens."""
    folder = tmp_path_factory.mktemp("sentences")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS) + 4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return str(tokenizer_folder(folder))


@pytest.fixture(scope="session")
def residual(sentences: str) -> ClipTraining:
    """Four steps of 8 pairs of a residual image tower with a frozen text tower."""
    return ClipTraining(
        model="resnet-64", text=sentences, freeze_text=True, samples=32, batch=8, learning_rate=1e-3, warmup=2
    )


@pytest.fixture(scope="session")
def whole(run: Run, tiny: ClipTraining, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """The six steps, and the folder that they left."""
    out = tmp_path_factory.mktemp("whole")
    return trained(run, out, tiny), out


@pytest.fixture(scope="session")
def in_pieces(run: Run, tiny: ClipTraining, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """The same with each batch in two pieces."""
    out = tmp_path_factory.mktemp("pieces")
    return trained(run, out, tiny, replace(CPU, pieces=2)), out
