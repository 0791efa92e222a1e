"""Layers that run again inside the backward pass see what they saw before, and exchange nothing but gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from lightning_gnncomm.codecs.base import Codec, resolve_codec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.replay import Replay
from lightning_gnncomm.testing import assert_matches_single_process, random_graph, run_threads


class Net(nn.Module):
    """Two blocks, either of which can be checkpointed."""

    def __init__(self, conv: Callable[[int, int], nn.Module], reentrant: bool | None) -> None:
        super().__init__()
        self.lin, self.conv, self.norm = nn.Linear(6, 6), conv(6, 6), nn.BatchNorm1d(6)
        self.out, self.reentrant = conv(6, 3), reentrant

    def block(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x, edge_index)).tanh()
        return out

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        if self.reentrant is None:
            return self.out(self.block(x, edge_index), edge_index)  # type: ignore[no-any-return]
        x = checkpoint(self.block, x, edge_index, use_reentrant=self.reentrant)
        return checkpoint(self.out, x, edge_index, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "sage": pyg.SAGEConv,
    "gat": pyg.GATConv,
    "tag": lambda i, o: pyg.TAGConv(i, o, K=2),
    "gen": lambda i, o: pyg.GENConv(i, o, norm="batch"),
    "against the flow": lambda i, o: pyg.SAGEConv(i, o, flow="target_to_source"),
}


def net(name: str, reentrant: bool | None, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return Net(CONVS[name], reentrant).to(dtype)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", CONVS)
def test_checkpointed_layers_train_as_in_one_process(name: str, reentrant: bool) -> None:
    for dtype in (torch.float32, torch.float64):
        data = random_graph(dtype=dtype)
        assert_matches_single_process(net(name, reentrant, dtype), data, 3)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_rank_without_nodes_takes_part(reentrant: bool) -> None:
    data = random_graph(dtype=torch.float64)
    assignment = 2 * (torch.arange(40) > 10).long()
    assert_matches_single_process(net("tag", reentrant, torch.float64), data, 3, assignment=assignment)


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_other_rows_the_second_time_the_same_test_fails(reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replay.next

    def zeros(self: Replay, layer: str, argument: str) -> Any:
        found = real(self, layer, argument)
        return found._replace(values=found.values * 0) if found and argument == "x" else found

    monkeypatch.setattr(Replay, "next", zeros)
    with pytest.raises(AssertionError, match="gradients|losses"):
        assert_matches_single_process(net("gat", reentrant), random_graph(), 3)


def gradients(reentrant: bool | None, codec: str | Codec = "identity", inside: bool = False) -> list[Any]:
    """Gradients of three steps, and the number of messages by role in the last, on each rank."""
    data, original = random_graph(), net("sage", reentrant)
    assignment = assign(data, 2)

    def on_rank(wire: Wire) -> Any:
        part, model = build_part(data, assignment, wire.rank, 2), copy.deepcopy(original)
        context = HaloContext(Channel(wire, resolve_codec(codec), Synchronous()))
        attachment = attach(model, context)
        found = []
        for step in range(3):
            context.channel.traffic.reset()
            with context.step(part.halo, part.to_dict(), step, exact=False):
                out = model(part.x, part.edge_index)
                if inside:
                    out.pow(2).sum().backward()
            if not inside:
                out.pow(2).sum().backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        attachment.detach()
        records = context.channel.traffic.records.items()
        return found, sorted((str(slot), slot.role.value, record.exchanges) for slot, record in records)

    return run_threads(on_rank, 2)


@pytest.mark.parametrize("inside", [False, True], ids=["after the step", "inside the step"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("codec", ["identity", "one_bit"])
def test_nothing_is_exchanged_again_and_encoded_rows_are_the_same(codec: str, reentrant: bool, inside: bool) -> None:
    for (expected, messages), (actual, again) in zip(
        gradients(None, codec), gradients(reentrant, codec, inside), strict=True
    ):
        assert again == messages
        torch.testing.assert_close(actual, expected)


def on_parts(work: Callable[[Wire, Data, HaloContext], Any]) -> list[Any]:
    data = random_graph()
    assignment = assign(data, 2)
    return run_threads(
        lambda wire: work(
            wire,
            build_part(data, assignment, wire.rank, 2),
            HaloContext(Channel(wire, resolve_codec("identity"), Synchronous())),
        ),
        2,
    )


def test_a_layer_called_twice_cannot_be_repeated() -> None:
    def work(wire: Wire, part: Data, context: HaloContext) -> None:
        model = nn.Sequential(pyg.SAGEConv(6, 6))
        attach(model, context)
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            x = checkpoint(model[0], part.x, part.edge_index, use_reentrant=False)
            x = checkpoint(model[0], x, part.edge_index, use_reentrant=False)
        with pytest.raises(RuntimeError, match=r"Layer '0' ran again inside the backward pass.*called 2 times"):
            x.sum().backward()

    on_parts(work)


def test_rows_are_kept_until_the_next_step() -> None:
    def work(wire: Wire, part: Data, context: HaloContext) -> None:
        model = nn.Sequential(pyg.SAGEConv(6, 6))
        attach(model, context)
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            out = checkpoint(model[0], part.x.clone(), part.edge_index, use_reentrant=False)
        assert context._replay._received
        out.sum().backward(retain_graph=True)
        out.sum().backward()  # as often as the graph is kept
        with context.step(part.halo, part.to_dict(), 1, exact=False):
            model[0](part.x, part.edge_index)
        assert not context._replay._received

    on_parts(work)


def test_a_call_of_an_earlier_step_cannot_be_repeated() -> None:
    def work(wire: Wire, part: Data, context: HaloContext) -> None:
        model = nn.Sequential(pyg.SAGEConv(6, 6))
        attach(model, context)
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            out = checkpoint(model[0], part.x, part.edge_index, use_reentrant=False)
        with context.step(part.halo, part.to_dict(), 1, exact=True):
            model[0](part.x, part.edge_index)
        with pytest.raises(RuntimeError, match="was not kept"):
            out.sum().backward()

    on_parts(work)


def test_without_checkpointing_nothing_is_kept() -> None:
    def work(wire: Wire, part: Data, context: HaloContext) -> None:
        model = net("gat", None)
        attach(model, context)
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            model(part.x, part.edge_index).sum().backward()
        with torch.no_grad(), context.step(part.halo, part.to_dict(), 0, exact=True):
            model(part.x, part.edge_index)
        assert not context._replay._received

    on_parts(work)
