"""Rows of other ranks are on their way while own rows are summed, forward and backward, and nothing is sent twice."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Pending, Wire
from lightning_gnncomm.graph.adjacency import csr_matrix
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.exchange import Message
from lightning_gnncomm.halo.sparse import Aggregator, Directions, _Aggregate
from lightning_gnncomm.slots import Slot
from lightning_gnncomm.testing import assert_matches_single_process, random_graph, run_threads

PARTS = 3


class Watched:
    """A wire that tells when a message is sent and when it is waited for."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.rank, self.world_size = wire, wire.rank, wire.world_size
        self.events: list[str] = []

    def exchange(self, send: Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> Pending:
        self.events.append("send")
        return Waited(self._wire.exchange(send, send_sizes, recv_sizes), self.events)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        return self._wire.all_reduce(tensor, op)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._wire.all_gather(tensor)


class Waited:
    seconds = 0.0

    def __init__(self, pending: Pending, events: list[str]) -> None:
        self._pending, self._events = pending, events

    def wait(self) -> Tensor:
        self._events.append("wait")
        return self._pending.wait()

    def done(self) -> bool:
        return True


class Multiplied:
    """A matrix that tells when it multiplies."""

    def __init__(self, matrix: Tensor, name: str, events: list[str]) -> None:
        self._matrix, self._name, self._events = matrix, name, events

    def __matmul__(self, other: Tensor) -> Tensor:
        self._events.append(self._name)
        return self._matrix @ other


def test_own_rows_are_summed_between_sending_and_waiting() -> None:
    data = random_graph(dtype=torch.float64)

    def look(wire: Wire) -> None:
        part, watched = build_part(data, assign(data, PARTS), wire.rank, PARTS), Watched(wire)
        events, plan = watched.events, part.halo
        (source, target), n = part.edge_index, plan.num_local
        is_own = source < n

        def both(name: str, edges: Tensor, num_sources: int) -> Any:
            ones = torch.ones(edges.size(1), dtype=torch.float64)
            matrices = csr_matrix(edges, ones, (n, num_sources)), csr_matrix(edges.flip(0), ones, (num_sources, n))
            return Directions(*(Multiplied(matrix, name, events) for matrix in matrices))

        matrix = Aggregator(
            both("own", part.edge_index[:, is_own], n),
            both("halo", torch.stack([source[~is_own] - n, target[~is_own]]), plan.num_halo),
        )
        channel = Channel(watched, IdentityCodec(), Synchronous())
        message = Message(channel, plan, (Slot("conv", "x"),), step=0, exact=False)
        x = part.x.clone().requires_grad_()
        out, _ = _Aggregate.apply(x, None, matrix, message)
        assert events == ["send", "own", "wait", "halo"]
        events.clear()
        out.sum().backward()
        assert events == ["halo", "send", "own", "wait"]

    run_threads(look, PARTS)


class Shared(nn.Module):
    """Two layers that read one tensor, and one that reads it by messages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = SAGEConv(6, 8), SAGEConv(8, 3), SAGEConv(8, 3, aggr="sum")
        self.largest = SAGEConv(8, 3, aggr="max")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        return self.one(x, edge_index) + self.other(x, edge_index) + self.largest(x, edge_index)


@pytest.mark.parametrize("model", [Shared, lambda: GCNConv(6, 3)], ids=["shared", "GCN"])
def test_products_that_overlap_are_exact(model: Any) -> None:
    torch.manual_seed(0)
    data = random_graph(dtype=torch.float64)
    assert_matches_single_process(model().double(), data, PARTS)
    with pytest.raises(AssertionError):
        assert_matches_single_process(model().double(), data, PARTS, exchange=False)


def test_a_tensor_that_several_layers_read_is_sent_once() -> None:
    torch.manual_seed(0)
    data, whole = random_graph(dtype=torch.float64), Shared().double()

    def look(wire: Wire) -> None:
        part, watched, model = (
            build_part(data, assign(data, PARTS), wire.rank, PARTS),
            Watched(wire),
            copy.deepcopy(whole),
        )
        context = HaloContext(Channel(watched, IdentityCodec(), Synchronous()))
        attachment = attach(model, context)
        try:
            for step in range(2):
                watched.events.clear()
                with context.step(part.halo, part.to_dict(), step, exact=False):
                    out = model(part.x, part.edge_index)
                # Features of the batch itself travel in the first step only.
                assert watched.events.count("send") == (2 if step == 0 else 1)
                watched.events.clear()
                out.sum().backward()
                # Gradients of the product that sent the rows, and those of the two others together.
                assert watched.events.count("send") == 2
        finally:
            attachment.detach()

    run_threads(look, PARTS)
