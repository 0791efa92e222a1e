"""Label propagation, correct and smooth, and layers of which one method is refused: exact also where a rank knows no label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.testing import random_graph, run_threads

Call = Callable[[nn.Module, Data], Any]


def on_parts(make: Callable[[], nn.Module], call: Call, data: Data, assignment: Tensor) -> list[Any]:
    def on_rank(wire: Wire) -> Any:
        part = build_part(data, assignment, wire.rank, 2)
        torch.manual_seed(0)
        model = nn.ModuleDict({"layer": make()})
        context = HaloContext(Channel(wire, IdentityCodec(), Synchronous()))
        attachment = attach(model, context)
        try:
            with context.step(part.halo, part.to_dict(), 0, exact=True):
                out = call(model["layer"], part)
            return torch.cat(wire.all_gather(out))[torch.cat(wire.all_gather(part.n_id)).argsort()]
        finally:
            attachment.detach()

    return run_threads(on_rank, 2)


def smooth(layer: nn.Module, data: Data) -> Any:
    return layer(data.soft, data.y[data.train_mask], data.train_mask, data.edge_index)


CASES: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "classes": (lambda: pyg.LabelPropagation(3, 0.9), lambda m, d: m(d.y, d.edge_index, d.train_mask)),
    "autoscale": (lambda: pyg.CorrectAndSmooth(3, 0.9, 2, 0.8), smooth),
    "fixed scale": (lambda: pyg.CorrectAndSmooth(3, 0.9, 2, 0.8, autoscale=False, scale=2.0), smooth),
}


@pytest.mark.parametrize("name", CASES)
def test_labels_spread_as_in_one_process(name: str) -> None:
    make, call = CASES[name]
    data = random_graph(dtype=torch.float64)
    data.soft = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    # The second rank knows no label of the training set, and the first none of the last class.
    assignment = (~data.train_mask | (data.y == 2)).long()
    data.train_mask = data.train_mask & (data.y < 2)
    expected = call(make(), data)
    for out in on_parts(make, call, data, assignment):
        torch.testing.assert_close(out.double(), expected.double(), rtol=1e-9, atol=1e-9 if name != "classes" else 1e-6)


def test_with_the_mean_error_of_each_rank_alone_the_same_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HaloContext, "all_reduce", lambda self, x, layer: x)
    with pytest.raises(AssertionError):
        test_labels_spread_as_in_one_process("autoscale")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SuperGATConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


def in_a_step(make: Callable[[], nn.Module], work: Callable[[nn.Module, Data], None]) -> None:
    data = random_graph()

    def on_rank(wire: Wire) -> None:
        part, model = build_part(data, torch.arange(40) % 2, wire.rank, 2), make()
        context = HaloContext(Channel(wire, IdentityCodec(), Synchronous()))
        attachment = attach(model, context)
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            work(model, part)
        attachment.detach()
        assert not {"get_attention_loss", "positive_sampling", "discriminate", "loss"} & {
            name for module in model.modules() for name in vars(module)
        }

    run_threads(on_rank, 2)


def test_an_attention_loss_over_pairs_of_the_whole_graph_is_refused_when_asked_for() -> None:
    def work(model: nn.Module, part: Data) -> None:
        model(part.x, part.edge_index).sum().backward()
        with pytest.raises(RuntimeError, match=r"'conv.get_attention_loss\(\)' samples or scores pairs"):
            model.conv.get_attention_loss()
        model.eval()
        assert model.conv.get_attention_loss().item() == 0

    in_a_step(Net, work)


def test_negatives_by_position_or_name_are_left_out() -> None:
    def work(model: nn.Module, part: Data) -> None:
        out = model.conv(part.x, part.edge_index)
        for args, kwargs in (((part.edge_index,), {}), ((), {"neg_edge_index": part.edge_index})):
            torch.testing.assert_close(model.conv(part.x, part.edge_index, *args, **kwargs), out)

    in_a_step(Net, work)


def test_losses_of_a_signed_model_are_refused_when_asked_for() -> None:
    def work(model: nn.Module, part: Data) -> None:
        z = model(part.x, part.edge_index[:, ::2], part.edge_index[:, 1::2])
        with pytest.raises(RuntimeError, match=r"SignedGCN can be used: train on a loss over nodes"):
            model.loss(z, part.edge_index[:, ::2], part.edge_index[:, 1::2])

    in_a_step(lambda: pyg.SignedGCN(6, 8, 2), work)
