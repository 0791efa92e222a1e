"""Each rank's share of a loss, for the ways people write losses."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.strategies.loss import UnknownReductionError, loss_terms, weighted
from lightning_gnncomm.testing import run_threads

ROWS = 12
SHARES = ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11], [])
"""Rows of three ranks; the last has none."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lin(x)
        return out


Loss = Callable[[Net, Tensor, Tensor, Tensor], Tensor]


def ce(out: Tensor, y: Tensor, **options: object) -> Tensor:
    return F.cross_entropy(out, y, **options)  # type: ignore[arg-type]


CLASS_WEIGHT = torch.tensor([1.0, 2.0, 5.0])
LOSSES: dict[str, Loss] = {
    "mean": lambda net, out, y, m: ce(out, y),
    "sum": lambda net, out, y, m: ce(out, y, reduction="sum"),
    "class weights": lambda net, out, y, m: ce(out, y, weight=CLASS_WEIGHT),
    "ignored labels": lambda net, out, y, m: ce(out, torch.where(m > 0, y, -100)),
    "label smoothing": lambda net, out, y, m: ce(out, y, label_smoothing=0.2),
    "mean of none": lambda net, out, y, m: ce(out, y, reduction="none").mean(),
    "masked mean": lambda net, out, y, m: (ce(out, y, reduction="none") * m).sum() / m.sum(),
    "sum by number of rows": lambda net, out, y, m: ce(out, y, reduction="sum") / y.numel(),
    "log softmax": lambda net, out, y, m: -F.log_softmax(out, -1)[torch.arange(len(y)), y].mean(),
    "nll": lambda net, out, y, m: F.nll_loss(F.log_softmax(out, -1), y),
    "mse": lambda net, out, y, m: F.mse_loss(out, out.detach() * 0.5),
    "l1": lambda net, out, y, m: F.l1_loss(out, out.detach() * 0.5),
    "huber": lambda net, out, y, m: F.huber_loss(out, out.detach() * 0.5),
    "bce with logits": lambda net, out, y, m: F.binary_cross_entropy_with_logits(out, F.one_hot(y, 3).float()),
    "bce": lambda net, out, y, m: F.binary_cross_entropy(out.sigmoid(), F.one_hot(y, 3).float()),
    "kl batchmean": lambda net, out, y, m: F.kl_div(
        F.log_softmax(out, -1), out.detach().softmax(-1).flip(1), reduction="batchmean"
    ),
    "focal": lambda net, out, y, m: (
        (1 - torch.exp(-ce(out, y, reduction="none"))) ** 2 * ce(out, y, reduction="none")
    ).mean(),
    "sum over classes": lambda net, out, y, m: out.pow(2).sum(-1).mean(),
    "mean of column means": lambda net, out, y, m: out.pow(2).mean(0).mean(),
    "mean by negative dim": lambda net, out, y, m: out.pow(2).mean(dim=(-2, -1)),
    "mean and sum": lambda net, out, y, m: ce(out, y) + 0.1 * out.pow(2).sum(),
    "different masks": lambda net, out, y, m: ce(out, y) + 0.5 * ce(out[m > 0], y[m > 0]),
    "weight penalty": lambda net, out, y, m: ce(out, y) + 0.1 * sum(p.pow(2).sum() for p in net.parameters()),
    "norm penalty on a sum": lambda net, out, y, m: ce(out, y, reduction="sum") + 0.1 * net.lin.weight.norm(),
    "learned weight": lambda net, out, y, m: torch.exp(-net.scale) * ce(out, y) + net.scale,
    "stacked": lambda net, out, y, m: torch.stack([ce(out, y), out.pow(2).mean()]).sum(),
    "halved": lambda net, out, y, m: ce(out, y) / 2 - 0.1 * out.abs().mean() * 3,
}


def rows() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 4, generator=generator)
    return x, torch.randint(3, (ROWS,), generator=generator), (torch.arange(ROWS) % 3 < 2).float()


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in net.named_parameters()}


def alone(loss: Loss) -> dict[str, Tensor]:
    net, (x, y, m) = Net(), rows()
    loss(net, net(x), y, m).backward()
    return gradients(net)


def together(loss: Loss, divided: bool, ranks: int = 3) -> list[dict[str, Tensor]]:
    net_of_all = Net()

    def rank_main(wire: Wire) -> dict[str, Tensor]:
        net, share = copy.deepcopy(net_of_all), torch.tensor(SHARES[wire.rank], dtype=torch.long)
        x, y, m = (tensor[share] for tensor in rows())
        value = loss(net, net(x), y, m)
        value = value / 1 if divided else value
        terms = loss_terms(value, divided, counts={float(m.sum())})
        with weighted(value, terms, wire):
            value.backward()
        return {name: wire.all_reduce(grad) / wire.world_size for name, grad in gradients(net).items()}

    return run_threads(rank_main, ranks)


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_the_loss_over_all_rows(name: str, divided: bool) -> None:
    expected = alone(LOSSES[name])
    for actual in together(LOSSES[name], divided):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "sum", "class weights", "masked mean"])
def test_without_weights_they_are_others(name: str) -> None:
    expected, net_of_all = alone(LOSSES[name]), Net()

    def rank_main(wire: Wire) -> dict[str, Tensor]:
        net, share = copy.deepcopy(net_of_all), torch.tensor(SHARES[wire.rank])
        x, y, m = (tensor[share] for tensor in rows())
        LOSSES[name](net, net(x), y, m).backward()
        return {key: wire.all_reduce(grad) / 2 for key, grad in gradients(net).items()}

    with pytest.raises(AssertionError):
        torch.testing.assert_close(run_threads(rank_main, 2)[0], expected, rtol=1e-2, atol=1e-3)


def test_hooks_are_gone_after_the_pass() -> None:
    def rank_main(wire: Wire) -> list[Tensor]:
        net, (x, y, _) = Net(), rows()
        value = F.cross_entropy(net(x), y, reduction="sum")
        grads = []
        for weigh in (True, False):
            net.zero_grad()
            if weigh:
                with weighted(value, loss_terms(value), wire):
                    value.backward(retain_graph=True)
            else:
                value.backward(retain_graph=True)
            grads.append(net.lin.weight.grad.clone())
        return grads

    first, second = run_threads(rank_main, 2)[0]
    torch.testing.assert_close(first, 2 * second)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda net, out, y, m: F.mse_loss(out, out.detach() * 2).sqrt(), "SqrtBackward"),
        (lambda net, out, y, m: out.pow(2).sum() / 7.5, "may be a number of rows or a constant"),
        (lambda net, out, y, m: ce(out, y) * out.pow(2).mean(), "multiplies terms"),
        (lambda net, out, y, m: out.max(), "MaxBackward"),
    ],
)
def test_losses_that_no_weight_makes_global_are_refused(loss: Loss, message: str) -> None:
    net, (x, y, m) = Net(), rows()
    with pytest.raises(UnknownReductionError, match=message):
        loss_terms(loss(net, net(x), y, m))


def test_a_mean_over_nothing_anywhere_is_an_error_on_all_ranks() -> None:
    def rank_main(wire: Wire) -> str:
        net, (x, y, _) = Net(), rows()
        value = F.cross_entropy(net(x)[:0], y[:0])
        with pytest.raises(ValueError, match="training mask empty"), weighted(value, loss_terms(value), wire):
            pass
        return "raised"

    assert run_threads(rank_main, 2) == ["raised", "raised"]


def test_ranks_with_different_losses_are_an_error_on_all_ranks() -> None:
    def rank_main(wire: Wire) -> str:
        net, (x, y, _) = Net(), rows()
        value = F.cross_entropy(net(x), y, reduction="sum" if wire.rank else "mean")
        with pytest.raises(ValueError, match="different forms"), weighted(value, loss_terms(value), wire):
            pass
        return "raised"

    assert run_threads(rank_main, 2) == ["raised", "raised"]
