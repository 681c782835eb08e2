"""The training loop and its optimisers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from tamis.train import Settings, fit  # noqa: E402
from tamis.train.contrastive import contrastive_loss  # noqa: E402
from tamis.train.optimiser import Muon, optimisers, orthogonalised  # noqa: E402


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


def trained(steps: int = 400) -> tuple[Net, list[float]]:
    torch.manual_seed(0)
    net = Net()
    mse = torch.nn.functional.mse_loss
    given = Settings(steps=steps, learning_rate=1e-2, matrix_learning_rate=5e-2, warmup=5)
    return net, fit(net, lambda batch: mse(net(batch[0]), batch[1]), batches(), given)


def test_the_loss_falls_and_the_same_seed_gives_the_same_weights() -> None:
    net, losses = trained()
    again, same = trained()
    assert len(losses) == 400
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])
    assert losses == same
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    assert not net.training


def test_what_wants_no_gradient_stays_as_it_is() -> None:
    torch.manual_seed(0)
    before = Net().frozen.weight.clone()
    net, _ = trained(steps=3)
    assert torch.equal(net.frozen.weight, before)


def test_matrices_inside_the_layers_go_to_muon_and_everything_else_to_adamw() -> None:
    net = Net()
    adamw, muon = optimisers(net, Settings(steps=1))
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    of = lambda chosen: {names[id(p)] for group in chosen.param_groups for p in group["params"]}  # noqa: E731
    assert of(muon) == {"layers.0.weight", "layers.1.weight"}
    assert of(adamw) == {"layers.0.bias", "layers.1.bias", "head.weight", "head.bias"}
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.05, 0.0]


def test_the_rates_rise_and_fall_and_never_reach_zero() -> None:
    settings = Settings(steps=100, warmup=10, floor=0.1)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:11] == pytest.approx([n / 10 for n in range(1, 11)] + [1.0])  # the fall starts after the warm-up
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.001)


def test_a_long_warm_up_reaches_the_peak_and_half_a_cosine_follows() -> None:
    settings = Settings(steps=14, warmup=4, floor=0.0)
    assert [settings.rate(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert settings.rate(9) == pytest.approx(0.5)  # half-way between the steps 4 and 14
    assert settings.rate(13) == pytest.approx(0.5 * (1 + math.cos(0.9 * math.pi)))
    assert Settings(steps=100, warmup=80).rate(79) == 1.0
    assert Settings(steps=1, warmup=500).rate(0) == 1 / 500


def test_a_line_of_the_log_says_of_how_many_steps_its_loss_is_the_mean(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tamis.train")
    net = Net()
    losses = fit(net, lambda batch: net(batch[0]).pow(2).mean(), batches(), Settings(steps=7, report_every=5))
    assert f"step 5 of 7: mean loss of the last 5 steps {sum(losses[:5]) / 5:.3f}" in caplog.text
    assert f"step 7 of 7: mean loss of the last 2 steps {sum(losses[5:]) / 2:.3f}" in caplog.text


def test_a_loss_that_is_not_finite_stops_the_training_and_says_what_to_do() -> None:
    net = Net()
    with pytest.raises(FloatingPointError, match=r"step 1 is nan: lower the learning rates"):
        fit(net, lambda batch: net(batch[0]).sum() * float("nan"), batches(), Settings(steps=2))


def test_a_hook_hears_of_every_step() -> None:
    heard: list[int] = []
    net = Net()
    fit(net, lambda batch: net(batch[0]).mean(), batches(), Settings(steps=3), after_step=heard.append)
    assert heard == [1, 2, 3]


def test_fewer_steps_for_less_effort_but_at_least_two() -> None:
    assert Settings(steps=1000).shortened(0.25).steps == 250
    assert Settings(steps=1000).shortened(0.0001).steps == 2


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5)])
def test_singular_values_come_out_near_one(shape: tuple[int, int], kind: torch.dtype) -> None:
    torch.manual_seed(1)
    found = orthogonalised(torch.randn(3, *shape).to(kind))
    assert found.shape == (3, *shape)
    values = torch.linalg.svdvals(found.float())
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_matrices_of_one_shape_go_together_and_come_out_as_each_alone() -> None:
    torch.manual_seed(2)
    drawn = torch.randn(4, 6, 9)
    together = orthogonalised(drawn)
    for number in range(4):
        assert torch.allclose(together[number], orthogonalised(drawn[number : number + 1])[0], atol=1e-5)


def test_the_filters_of_a_convolution_are_the_rows_of_a_matrix() -> None:
    torch.manual_seed(3)
    gradient = torch.randn(5, 3, 2, 2)
    filters, matrix = torch.nn.Parameter(torch.ones(5, 3, 2, 2)), torch.nn.Parameter(torch.ones(5, 12))
    filters.grad, matrix.grad = gradient, gradient.view(5, 12)
    Muon([filters, matrix], lr=0.1, weight_decay=0.1).step()
    assert torch.allclose(filters.detach().view(5, 12), matrix.detach())


def test_bf16_learns_too_and_the_weights_stay_float32() -> None:
    torch.manual_seed(0)
    net = Net()
    mse = torch.nn.functional.mse_loss
    given = Settings(steps=400, learning_rate=1e-2, matrix_learning_rate=5e-2, warmup=5)
    losses = fit(net, lambda batch: mse(net(batch[0]).float(), batch[1]), batches(), given, precision="bf16")
    assert losses != trained()[1]
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}


def test_a_first_step_of_muon_by_hand() -> None:
    # A multiple of a rotation stays a rotation: every singular value is equal, so the step's direction is known.
    matrix = torch.nn.Parameter(torch.zeros(2, 2))
    matrix.grad = torch.tensor([[0.0, -3.0], [3.0, 0.0]])
    Muon([matrix], lr=0.1, weight_decay=0.0).step()
    turn = matrix.detach() / matrix.detach().norm() * 2**0.5
    assert torch.allclose(turn, torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), atol=1e-5)
    assert matrix.detach().abs().max() == pytest.approx(0.1 * 0.2 * 2**0.5, rel=0.35)


def test_the_contrastive_loss_by_hand() -> None:
    images = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    texts = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # Cosines are the unit matrix; with scale 1 each row's loss is log(1 + exp(-1)).
    found = contrastive_loss(images, texts, torch.tensor(1.0))
    assert float(found) == pytest.approx(0.313262, abs=1e-5)
    wrong = contrastive_loss(images, texts.flip(0), torch.tensor(1.0))
    assert float(wrong) == pytest.approx(1.313262, abs=1e-5)
