"""Scalars of parts, put together to what they are on the whole, with and without gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.strategies.meaning import _merge
from lightning_gnncomm.strategies.provenance import ReductionRecorder, pieces_of
from lightning_gnncomm.testing import run_threads

SHARES = ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11], [])
WEIGHT = torch.tensor([0.1, 1.0, 5.0])
Value = Callable[[Tensor, Tensor, Tensor], Tensor]

VALUES: dict[str, Value] = {
    "mean": lambda x, y, m: F.cross_entropy(x, y),
    "sum": lambda x, y, m: F.cross_entropy(x, y, reduction="sum"),
    "class weights": lambda x, y, m: F.cross_entropy(x, y, weight=WEIGHT),
    "class weights by module": lambda x, y, m: torch.nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1)(x, y),
    "ignored labels": lambda x, y, m: F.cross_entropy(x, torch.where(m, y, -100)),
    "probabilities": lambda x, y, m: F.cross_entropy(x, F.one_hot(y, 3).float()),
    "mse": lambda x, y, m: F.mse_loss(x, x * 0.5),
    "bce": lambda x, y, m: F.binary_cross_entropy_with_logits(x, F.one_hot(y, 3).float()),
    "kl": lambda x, y, m: F.kl_div(F.log_softmax(x, -1), x.softmax(-1).flip(1), reduction="batchmean"),
    "masked mean": lambda x, y, m: F.cross_entropy(x[m], y[m]),
    "accuracy": lambda x, y, m: (x.argmax(-1) == y).float().mean(),
    "accuracy by counts": lambda x, y, m: (x.argmax(-1) == y)[m].sum() / m.sum(),
    "accuracy by rows": lambda x, y, m: (
        (x.argmax(-1) == y).sum() / len(y) if len(y) else (x.argmax(-1) == y).float().mean()
    ),
    "two losses": lambda x, y, m: F.cross_entropy(x, y) + 0.3 * F.mse_loss(x[m], x[m] * 2),
    "loss and sum": lambda x, y, m: F.cross_entropy(x, y) - x.pow(2).sum() / 10.0,
    "loss and constant": lambda x, y, m: 2 * F.cross_entropy(x, y) / 3 + WEIGHT.norm() - 1,
    "negated": lambda x, y, m: 1 - (x.argmax(-1) == y).float().mean(),
    "mean of columns": lambda x, y, m: x.pow(2).mean(0).mean(),
    "stack": lambda x, y, m: torch.stack([F.cross_entropy(x, y), x.abs().mean()]).mean(),
    "running total": lambda x, y, m: F.cross_entropy(x, y).clone().add_(x.abs().mean()).detach().double(),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_values_of_parts_become_the_value_of_the_whole(name: str, gradients: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.randint(3, (12,), generator=generator)
    m = torch.arange(12) % 3 < 2
    expected = VALUES[name](x, y, m)

    def rank_main(wire: Wire) -> Tensor:
        share = torch.tensor(SHARES[wire.rank], dtype=torch.long)
        rows = x[share].requires_grad_(gradients)
        with ReductionRecorder():
            value = VALUES[name](rows, y[share], m[share])
        return _merge(pieces_of(value), value.detach(), wire)

    for value in run_threads(rank_main, len(SHARES)):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_what_is_no_combination_of_reductions_has_no_note() -> None:
    x = torch.randn(4, 3)
    with ReductionRecorder():
        root = x.pow(2).mean().sqrt()
        product = x.mean() * x.sum()
        changed = x.mean()
        changed.exp_()
    assert pieces_of(root) == pieces_of(product) == pieces_of(changed) == []
    assert pieces_of(x.mean()) == []
