"""Attention of every node to all nodes equals that of one process, also where ranks have no nodes; a batch of graphs is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.codecs.base import Codec
from lightning_gnncomm.codecs.one_bit import OneBitCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.slots import Role
from lightning_gnncomm.testing import assert_matches_single_process, random_graph, run_threads


class Attending(nn.Module):
    """A user's block around a linear attention module."""

    def __init__(self, attention: nn.Module, out_channels: int) -> None:
        super().__init__()
        self.conv, self.attention, self.lin = pyg.GCNConv(6, 6), attention, nn.Linear(out_channels, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.attention(self.conv(x, edge_index).tanh().unsqueeze(0)).squeeze(0))


def gps(**options: Any) -> nn.Module:
    return pyg.Sequential(
        "x, edge_index", [(pyg.GPSConv(6, pyg.GCNConv(6, 6), **options), "x, edge_index -> x"), nn.Linear(6, 3)]
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "multihead": lambda: gps(heads=2),
    "performer": lambda: gps(heads=2, attn_type="performer", attn_kwargs={"head_channels": 4}),
    "own performer": lambda: Attending(PerformerAttention(6, 2, 4), 6),
    "own polynormer": lambda: Attending(PolynormerAttention(6, 2, 4, qk_shared=False), 8),
    "own sgformer": lambda: Attending(SGFormerAttention(6, 2, 4), 4),
}
PARTS: dict[str, Callable[[Data], Tensor]] = {
    "METIS": lambda data: assign(data, 3),
    "uneven, one empty": lambda data: 2 * (torch.arange(data.num_nodes) > 4).long(),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The default type, of which SGFormerAttention makes tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", MODELS)
def test_every_node_attends_to_all_nodes(name: str, parts: str, dtype: torch.dtype) -> None:
    data = random_graph(dtype=dtype)
    assert_matches_single_process(build(name), data, 3, assignment=PARTS[parts](data))


@pytest.mark.parametrize("name", MODELS)
def test_without_the_nodes_of_other_ranks_the_same_test_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receive, all_reduce = HaloContext.receive, HaloContext.all_reduce

    def without_rows(self: HaloContext, blocks: Any, plan: Any, slots: Any, exact: bool) -> list[Tensor]:
        rows = receive(self, blocks, plan, slots, exact)
        return [torch.zeros_like(r) for r in rows] if slots[0].argument == "attention" else rows

    def without_sums(self: HaloContext, x: Tensor, layer: str) -> Tensor:
        return x if "att" in layer else all_reduce(self, x, layer)

    monkeypatch.setattr(HaloContext, "receive", without_rows)
    monkeypatch.setattr(HaloContext, "all_reduce", without_sums)
    with pytest.raises(AssertionError, match="output on rank"):
        assert_matches_single_process(build(name), random_graph(), 3)


Work = Callable[[nn.Module, HaloContext, Data], Any]


def on_parts(name: str, work: Work, codec: Codec | None = None) -> list[Any]:
    data, original = random_graph(), build(name)
    assignment = assign(data, 2)

    def on_rank(wire: Wire) -> Any:
        part, model = build_part(data, assignment, wire.rank, 2), copy.deepcopy(original)
        context = HaloContext(Channel(wire, codec or IdentityCodec(), Synchronous()))
        attachment = attach(model, context)
        try:
            with context.step(part.halo, part.to_dict(), 0, exact=False):
                return work(model, context, part)
        finally:
            attachment.detach()

    return run_threads(on_rank, 2)


def test_gathered_rows_are_counted_and_never_encoded() -> None:
    def work(model: nn.Module, context: HaloContext, part: Data) -> list[tuple[str, Role, int, int, bool]]:
        model(part.x.requires_grad_(), part.edge_index).sum().backward()
        found = [
            (slot, record) for slot, record in context.channel.traffic.records.items() if slot.argument == "attention"
        ]
        dense = all(record.sent_bytes == record.dense_bytes for _, record in found)
        return [(slot.layer, slot.role, record.exchanges, record.sent_bytes, dense) for slot, record in found]

    for (found,) in on_parts("multihead", work, OneBitCodec()):
        layer, role, exchanges, sent, dense = found
        # Rows go out to the other rank, and the gradients of its rows come back: 40 rows in all.
        assert (layer, role, exchanges, sent, dense) == ("module_0", Role.NORM, 2, 40 * 6 * 4, True)


@pytest.mark.parametrize("name", ["multihead", "performer"])
def test_a_batch_of_several_graphs_is_refused_on_every_rank(name: str) -> None:
    def work(model: nn.Module, context: HaloContext, part: Data) -> str:
        # Only one rank sees the second graph.
        batch = torch.full((part.num_nodes,), context.channel.wire.rank)
        with pytest.raises(ValueError, match="Layer 'module_0' got a 'batch' vector with graphs 0 to 1") as caught:
            model[0](part.x, part.edge_index, batch)
        return str(caught.value)

    assert len(on_parts(name, work)) == 2


def test_one_graph_with_a_batch_vector_is_the_same_as_without() -> None:
    def work(model: nn.Module, context: HaloContext, part: Data) -> tuple[Tensor, Tensor]:
        model[0].eval()
        batch = torch.zeros(part.num_nodes, dtype=torch.long)
        return model[0](part.x, part.edge_index), model[0](part.x, part.edge_index, batch)

    for without, given in on_parts("multihead", work):
        torch.testing.assert_close(without, given)


def test_rows_that_are_not_the_nodes_are_an_error() -> None:
    def work(model: nn.Module, context: HaloContext, part: Data) -> None:
        with pytest.raises(ValueError, match=r"'attention' attends over one graph.*\[1, \d+, F\], got \(2, 3, 6\)"):
            model.attention(torch.randn(2, 3, 6))

    on_parts("own performer", work)


def test_a_detached_model_attends_to_what_it_is_given_again() -> None:
    x = torch.randn(5, 6)
    edges = torch.tensor([[0, 1], [1, 2]])
    for name in MODELS:
        model = build(name).eval()
        expected = model(x, edges)
        attach(model, HaloContext(Channel(None, IdentityCodec(), Synchronous()))).detach()  # type: ignore[arg-type]
        torch.testing.assert_close(model(x, edges), expected)
        assert all(
            "forward" not in vars(module) for module in model.modules() if not isinstance(module, pyg.Sequential)
        )
