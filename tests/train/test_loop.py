"""The training loop and its optimisers."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch

from tamis.train import Settings, fit
from tamis.train.loop import new_optimisers


class Net(torch.nn.Module):
    """Two layers, a head, a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)])
        self.head = torch.nn.Linear(6, 1)
        self.frozen = torch.nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.head(self.frozen(x))


def batches(seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(32, 6, generator=draw)
        yield x, x[:, :1] - 2 * x[:, 1:2]


def trained(steps: int = 400, *, own_gradients: bool = False, **how: object) -> tuple[Net, list[float]]:
    torch.manual_seed(0)
    net = Net()

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        value = torch.nn.functional.mse_loss(net(batch[0]).float(), batch[1])
        if own_gradients:
            value.backward()
        return value.detach() if own_gradients else value

    settings = Settings(steps=steps, learning_rate=1e-2, matrix_learning_rate=5e-2, warmup=5, report_every=5)
    return net, fit(net, loss, batches(), settings, **how)  # type: ignore[arg-type]


def test_the_loss_falls_and_the_same_seed_gives_the_same_weights() -> None:
    net, losses = trained()
    for again, same in (trained(), trained(own_gradients=True)):
        assert losses == same
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    assert len(losses) == 400
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])
    assert not net.training
    torch.manual_seed(0)
    assert torch.equal(net.frozen.weight, Net().frozen.weight)


def test_bf16_learns_too_and_the_weights_stay_float32() -> None:
    net, losses = trained(precision="bf16")
    assert losses != trained()[1]
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}


def test_matrices_inside_the_layers_go_to_muon_and_everything_else_to_adamw() -> None:
    net = Net()
    adamw, muon = new_optimisers(net, Settings(steps=1))
    of_muon = {one.data_ptr() for group in muon.param_groups for one in group["params"]}
    assert {name for name, one in net.named_parameters() if one.data_ptr() in of_muon} == {
        "layers.0.weight",
        "layers.1.weight",
    }
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    of_adamw = {names[id(one)] for group in adamw.param_groups for one in group["params"]}
    assert of_adamw == {"layers.0.bias", "layers.1.bias", "head.weight", "head.bias"}
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.05, 0.0]


def test_the_filters_of_a_convolution_are_the_rows_of_a_matrix_and_a_step_is_as_long_as_adamws() -> None:
    torch.manual_seed(3)
    gradient, steps = torch.randn(5, 12), []
    for layer in (torch.nn.Conv2d(3, 5, 2, bias=False), torch.nn.Linear(12, 5, bias=False)):
        net = torch.nn.Sequential(torch.nn.Sequential(layer))
        torch.nn.init.ones_(layer.weight)
        layer.weight.grad = gradient.view_as(layer.weight)
        (muon,) = new_optimisers(net, Settings(steps=1, matrix_learning_rate=0.1, weight_decay=0.0))
        muon.step()
        steps.append(layer.weight.detach().view(5, 12) - 1)
    assert torch.equal(steps[0], steps[1])
    assert steps[0].pow(2).mean().sqrt() == pytest.approx(0.1 * 0.2, rel=0.35)


def test_the_rates_rise_and_fall_and_never_reach_zero() -> None:
    settings = Settings(steps=100, warmup=10, floor=0.1)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:11] == pytest.approx([n / 10 for n in range(1, 11)] + [1.0])  # the fall starts after the warm-up
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.001)
    half = Settings(steps=14, warmup=4, floor=0.0)
    assert half.rate(9) == pytest.approx(0.5)  # half-way between the steps 4 and 14
    assert half.rate(13) == pytest.approx(0.5 * (1 + math.cos(0.9 * math.pi)))
    assert Settings(steps=1, warmup=500).rate(0) == 1 / 500
    assert Settings(steps=1000).shorten(0.25).steps == 250
    assert Settings(steps=1000).shorten(0.0001).steps == 2
