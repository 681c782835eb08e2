"""CLIP's loss over several processes and in pieces, against a plain one."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretended_gpu import on_gpu
from torch_processes import on_processes

from tamis.train.loop import ALONE, ProcessGroup, join_group
from tamis.train.losses import backward, contrastive_loss, loss_over_processes

PAIRS, WIDTH, SIZE = 12, 6, 5


class TwoTowers(torch.nn.Module):  # type: ignore[misc]
    """Two layers, and a scale, as a CLIP has them."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.image = torch.nn.Sequential(torch.nn.Linear(WIDTH, SIZE), torch.nn.Tanh(), torch.nn.Dropout(dropout))
        self.text = torch.nn.Linear(WIDTH, SIZE)
        self.logit_scale = torch.nn.Parameter(torch.tensor(1.5))

    def embed(self, piece: Any) -> Any:
        return self.image(piece[0]), self.text(piece[1])


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(PAIRS, WIDTH, generator=draw), torch.randn(PAIRS, WIDTH, generator=draw)


def gradients(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in net.named_parameters() if one.grad is not None}


def expected(usable: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one process with the whole batch at once, by cross-entropy written out."""
    net = TwoTowers()
    images, texts = net.embed([one[usable] for one in pairs()])
    images, texts = images / images.norm(dim=1, keepdim=True), texts / texts.norm(dim=1, keepdim=True)
    logits = net.logit_scale.exp() * images @ texts.T
    own = logits.diagonal()
    loss = ((logits.logsumexp(1) - own).mean() + (logits.logsumexp(0) - own).mean()) / 2
    loss.backward()
    return float(loss.detach()), gradients(net)


def computed(
    usable: torch.Tensor, *, pieces: int, local: bool, processes: ProcessGroup, net: TwoTowers | None = None
) -> tuple[float, dict[str, torch.Tensor]]:
    """Ours: of this process's share, gradients averaged over the processes."""
    net = net or TwoTowers()
    size = PAIRS // processes.count
    share = slice(processes.rank * size, (processes.rank + 1) * size)
    images, texts = pairs()
    parts = list(zip(images[share].chunk(pieces), texts[share].chunk(pieces), strict=True))

    def loss(images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        scale = net.logit_scale.exp()
        return loss_over_processes(images, texts, scale, usable=usable[share], local=local, processes=processes)

    value = backward(net.embed, parts, loss, device="cpu")
    processes.average_gradients(net.parameters())
    return processes.total(float(value)) / processes.count, gradients(net)


def assert_same(found: tuple[float, dict[str, torch.Tensor]], wanted: tuple[float, dict[str, torch.Tensor]]) -> None:
    assert found[0] == pytest.approx(wanted[0], abs=1e-5)
    assert found[1].keys() == wanted[1].keys()
    for name, gradient in wanted[1].items():
        assert torch.allclose(found[1][name], gradient, atol=1e-5), name


ALL = torch.ones(PAIRS, dtype=torch.bool)
#: The first two stand in the first process; of the last process nothing is left in `SECOND_GONE`.
SOME = torch.tensor([n not in (1, 2, 7) for n in range(PAIRS)])
SECOND_GONE = torch.arange(PAIRS) < PAIRS // 2


def test_the_loss_of_two_pairs_is_the_one_worked_by_hand() -> None:
    # Cosines [[1, 0], [0.6, 0.8]] times 2: rows give log(1 + e^-2) and log(1 + e^-0.4), columns log(1 + e^-0.8) and
    # log(1 + e^-1.6).
    images, texts = torch.tensor([[2.0, 0.0], [0.6, 0.8]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    by_hand = np.mean([np.log1p(np.exp(-gap)) for gap in (2.0, 0.4, 0.8, 1.6)])
    found = float(contrastive_loss(images, texts, torch.tensor(2.0)))
    assert found == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize("usable", [ALL, SOME])
@pytest.mark.parametrize("pieces", [1, 2, 3, 12])
def test_one_process_has_the_plain_loss_and_gradients_in_however_many_pieces(pieces: int, usable: torch.Tensor) -> None:
    assert_same(computed(usable, pieces=pieces, local=True, processes=ALONE), expected(usable))


def test_dropout_draws_the_same_in_both_passes() -> None:
    torch.manual_seed(5)
    net = TwoTowers(dropout=0.5)
    images, texts = pairs()
    torch.manual_seed(7)
    whole = [net.embed(part) for part in zip(images.chunk(3), texts.chunk(3), strict=True)]
    loss = contrastive_loss(
        torch.cat([one for one, _ in whole]), torch.cat([one for _, one in whole]), net.logit_scale.exp()
    )
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = float(loss.detach()), gradients(net)
    net.zero_grad()
    torch.manual_seed(7)
    assert_same(computed(ALL, pieces=3, local=True, processes=ALONE, net=net), wanted)


def test_dropout_draws_the_same_in_both_passes_on_the_second_gpu() -> None:
    drawn: list[torch.Tensor] = []
    with on_gpu():
        net = TwoTowers(dropout=0.5).to("cuda:1")

        def embed(piece: Any) -> Any:
            made = net.embed(piece)
            drawn.append(made[0].detach().cpu())
            return made

        parts = list(zip(*(one.to("cuda:1").chunk(3) for one in pairs()), strict=True))
        backward(embed, parts, partial(contrastive_loss, scale=net.logit_scale.exp()), device="cuda:1")
    assert len(drawn) == 6
    for first, again in zip(drawn[:3], drawn[3:], strict=True):
        assert torch.equal(first, again)


def test_a_frozen_tower_gets_no_gradient_in_pieces() -> None:
    net = TwoTowers()
    net.text.requires_grad_(False)
    loss, wanted = expected(ALL)
    learned = {name: gradient for name, gradient in wanted.items() if not name.startswith("text.")}
    assert_same(computed(ALL, pieces=3, local=True, processes=ALONE, net=net), (loss, learned))


def compute_all(folder: str) -> None:
    with warnings.catch_warnings(), join_group("cpu") as processes:
        warnings.simplefilter("error")  # pytest's setting does not reach these processes
        found = {
            f"{name} {pieces} {local}": computed(usable, pieces=pieces, local=local, processes=processes)
            for name, usable in (("all", ALL), ("some", SOME), ("second gone", SECOND_GONE))
            for pieces in (1, 3)
            for local in (True, False)
        }
        torch.save(found, Path(folder) / f"{processes.rank}.pt")


def test_two_processes_have_the_loss_and_gradients_of_one(tmp_path: Path) -> None:
    on_processes(2, compute_all, str(tmp_path))
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert len(found) == 12
        for case, one in found.items():
            usable = {"all": ALL, "some": SOME, "second gone": SECOND_GONE}[case.rsplit(" ", 2)[0]]
            assert_same(one, expected(usable))
