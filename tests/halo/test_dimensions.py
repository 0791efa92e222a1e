"""Modules of torch along whose computing dimension nodes lie are named; along features and time they are taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.testing import assert_matches_single_process, random_graph, run_threads


class First(nn.Module):
    """The first of what a module returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(x)
        return out[0] if isinstance(out, tuple) else out


# Nodes are 17 and 23, features 6.
OVER_NODES: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
    "LSTM over rows": (nn.LSTM(6, 3), lambda x: x),
    "GRU over rows of a batch": (nn.GRU(6, 3, batch_first=True), lambda x: x[None]),
    "RNN with nodes as time": (nn.RNN(6, 3), lambda x: x[:, None]),
    "Conv1d over nodes": (nn.Conv1d(6, 3, 3, padding=1), lambda x: x.t()[None]),
    "pooling over nodes": (nn.AdaptiveAvgPool1d(1), lambda x: x.t()[None]),
    "unbatched pooling over nodes": (nn.AvgPool1d(3), lambda x: x.t()),
    "InstanceNorm over nodes": (nn.InstanceNorm1d(6), lambda x: x.t()[None]),
    "LocalResponseNorm over nodes": (nn.LocalResponseNorm(2), lambda x: x[None]),
}
BY_NODE: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
    "LSTM over time": (nn.LSTM(2, 3, batch_first=True), lambda x: x.view(-1, 3, 2)),
    "GRU over time, time first": (nn.GRU(2, 3), lambda x: x.view(-1, 3, 2).transpose(0, 1)),
    "Conv1d over time": (nn.Conv1d(2, 3, 3), lambda x: x.view(-1, 2, 3)),
    "pooling over features": (nn.AdaptiveAvgPool1d(3), lambda x: x),
    "Flatten": (nn.Flatten(), lambda x: x.view(-1, 2, 3)),
    "Softmax": (nn.Softmax(dim=1), lambda x: x),
    "InstanceNorm": (nn.InstanceNorm1d(6), lambda x: x[:, :, None].expand(-1, -1, 2) * torch.tensor([1.0, 2.0])),
    "LocalResponseNorm": (nn.LocalResponseNorm(2), lambda x: x.view(-1, 2, 3)),
    "encoding": (pyg.PositionalEncoding(4), lambda x: x[:, 0]),
}


@pytest.mark.parametrize("name", OVER_NODES)
def test_computing_along_nodes_is_an_error_by_path_unless_allowed(name: str) -> None:
    module, shape = OVER_NODES[name]
    data, assignment = random_graph(), torch.arange(40).ge(17).long()

    def work(wire: Wire) -> None:
        part = build_part(data, assignment, wire.rank, 2)
        for allow in ([], ["module"]):
            context = HaloContext(Channel(wire, IdentityCodec(), Synchronous()))
            attachment = attach(model := First(module), context, allow)
            with context.step(part.halo, part.to_dict(), 0, exact=True):
                if allow:
                    model(shape(part.x))
                    continue
                with pytest.raises(ValueError, match=rf"'module' \({type(module).__name__}\) got an input of shape"):
                    model(shape(part.x))
            attachment.detach()

    # One rank after the other: hooks of both would lie on the same module.
    for rank in range(2):
        run_threads(lambda wire, rank=rank: work(wire) if wire.rank == rank else None, 2)


class ByNode(nn.Module):
    def __init__(self, module: nn.Module, shape: Callable[[Tensor], Tensor], swap: bool) -> None:
        super().__init__()
        self.conv, self.first, self.shape, self.swap = pyg.SAGEConv(6, 6), First(module), shape, swap
        self.lin = nn.LazyLinear(3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.first(self.shape(self.conv(x, edge_index)))
        out = out.transpose(0, 1) if self.swap else out
        return self.lin(out.reshape(x.size(0), out.numel() // x.size(0)))


@pytest.mark.parametrize("name", BY_NODE)
def test_computing_for_each_node_is_exact(name: str) -> None:
    torch.manual_seed(0)
    module, shape = BY_NODE[name]
    data: Data = random_graph()
    model = ByNode(module, shape, "time first" in name)
    model(data.x, data.edge_index)
    assert_matches_single_process(model, data, 2, assignment=assign(data, 2))
