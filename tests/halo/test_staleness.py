"""Asynchronous halo rows: with frozen weights a step is the exact one with the rows, and the gradients of rows, of the step before."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Asynchronous, Schedule, Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.remote import RemoteSource
from lightning_gnncomm.testing import random_graph, run_threads

PARTS, STEPS = 3, 5
MODELS = {
    "GCN": lambda: GCN(6, 8, num_layers=3, out_channels=3, norm="batch_norm"),
    "GraphSAGE": lambda: GraphSAGE(6, 8, num_layers=3, out_channels=3),
    "GAT": lambda: GAT(6, 8, num_layers=2, out_channels=3, heads=2),
}


class Seen(NamedTuple):
    """What one layer's exchange was given and gave, at one step."""

    rows: list[Tensor]
    halo: list[Tensor]
    halo_gradient: list[Tensor]
    gradient: list[Tensor]


class Recorder(RemoteSource):
    """Keeps rows and gradients on both sides of every exchange."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self.steps: list[dict[str, Seen]] = []

    def rows(self, blocks: Any, plan: Any, slots: Any, step: int, exact: bool) -> list[Tensor]:
        # Through a view of their own, so that gradients which come back over the wire are told from local ones.
        blocks = [x.view_as(x) for x in blocks]
        received = super().rows(blocks, plan, slots, step, exact)
        seen = Seen([x.detach() for x in blocks], [x.detach() for x in received], [], [])
        for x in blocks:
            if x.requires_grad:
                x.register_hook(lambda grad: seen.gradient.append(grad.clone()))
        for x in received:
            if x.requires_grad:
                x.register_hook(lambda grad: seen.halo_gradient.append(grad.clone()))
        self.steps[-1][str(slots[0])] = seen
        return received


def inputs(part: Data, step: int) -> Tensor:
    """Features that change with every step, of nodes in any order."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(part.halo.num_global, 6, generator=generator, dtype=torch.float64)[part.n_id]


def build(name: str) -> torch.nn.Module:
    """Once for all ranks: threads share their random numbers."""
    torch.manual_seed(0)
    return MODELS[name]().double()


def run(wire: Wire, model: torch.nn.Module, schedule: Schedule) -> list[dict[str, Seen]]:
    data = random_graph(dtype=torch.float64)
    part = build_part(data, assign(data, PARTS), wire.rank, PARTS)
    model = copy.deepcopy(model)
    context = HaloContext(Channel(wire, IdentityCodec(), schedule))
    context.source = recorder = Recorder(context.channel)
    attachment = attach(model, context)
    try:
        for step in range(STEPS):
            recorder.steps.append({})
            x = inputs(part, step).requires_grad_()
            with context.step(part.halo, part.to_dict(), step, exact=False):
                out = model(x, part.edge_index)
                (out * inputs(part, 100 + step)[:, :3]).sum().backward()
    finally:
        attachment.detach()
    return recorder.steps


@pytest.mark.parametrize("name", MODELS)
def test_a_stale_step_uses_what_was_sent_at_the_step_before(name: str) -> None:
    """For every layer: halo rows are the owners' rows of step t-1, and what comes back are the readers' gradients of step t-1."""
    model = build(name)

    def look(wire: Wire) -> None:
        steps = run(wire, model, Asynchronous())
        data = random_graph(dtype=torch.float64)
        plan = build_part(data, assign(data, PARTS), wire.rank, PARTS).halo
        for step in range(STEPS):
            before = max(step - 1, 0)
            for layer, seen in steps[step].items():
                there = steps[before][layer]
                for k, halo in enumerate(seen.halo):
                    sent = there.rows[k][plan.send_index].reshape(plan.num_sent, -1)
                    width = sent.size(1)
                    arrived = wire.exchange(
                        sent.contiguous().view(torch.uint8).reshape(-1),
                        [n * width * 8 for n in plan.send_counts],
                        [n * width * 8 for n in plan.recv_counts],
                    ).wait()
                    assert torch.equal(arrived.view(torch.float64).view(-1, width), halo.reshape(-1, width))
                for k in range(len(seen.gradient)):
                    sent = there.halo_gradient[k].reshape(plan.num_halo, -1)
                    width = sent.size(1)
                    arrived = wire.exchange(
                        sent.contiguous().view(torch.uint8).reshape(-1),
                        [n * width * 8 for n in plan.recv_counts],
                        [n * width * 8 for n in plan.send_counts],
                    ).wait()
                    rows = arrived.view(torch.float64).view(-1, width)
                    wanted = rows.new_zeros(plan.num_local, width).index_add_(0, plan.send_index, rows)
                    torch.testing.assert_close(seen.gradient[k].reshape(-1, width), wanted, rtol=1e-12, atol=1e-12)

    run_threads(look, PARTS)


def test_first_layers_equal_the_exact_run_one_step_late_and_differ_from_that_of_the_same_step() -> None:
    model = build("GCN")

    def look(wire: Wire) -> None:
        exact, stale = (run(wire, model, schedule) for schedule in (Synchronous(), Asynchronous()))
        layer = "convs.0.x"
        for step in range(1, STEPS):
            assert torch.equal(stale[step][layer].halo[0], exact[step - 1][layer].halo[0])
            if exact[step][layer].halo[0].numel():
                assert not torch.equal(stale[step][layer].halo[0], exact[step][layer].halo[0])

    run_threads(look, PARTS)


@pytest.mark.parametrize("name", MODELS)
def test_refreshing_at_every_step_is_synchronous_bit_for_bit(name: str) -> None:
    model = build(name)

    def look(wire: Wire) -> None:
        exact, fresh = (run(wire, model, schedule) for schedule in (Synchronous(), Asynchronous(refresh_every=1)))
        for ours, theirs in zip(fresh, exact, strict=True):
            for layer in theirs:
                for what in Seen._fields:
                    assert all(map(torch.equal, getattr(ours[layer], what), getattr(theirs[layer], what)))

    run_threads(look, PARTS)


def test_a_static_input_is_never_stale() -> None:
    """Rows of the batch itself travel once, exactly; with one layer an asynchronous run is then the exact one."""
    data = random_graph(dtype=torch.float64)
    layer = GraphSAGE(6, 8, num_layers=1).double()

    def look(wire: Wire) -> None:
        part = build_part(data, assign(data, PARTS), wire.rank, PARTS)
        model = copy.deepcopy(layer)
        whole = layer(data.x, data.edge_index)[part.n_id]
        context = HaloContext(Channel(wire, IdentityCodec(), Asynchronous()))
        attachment = attach(model, context)
        for step in range(3):
            with context.step(part.halo, part.to_dict(), step, exact=False):
                torch.testing.assert_close(model(part.x, part.edge_index), whole, rtol=1e-10, atol=1e-12)
        attachment.detach()
        assert not context.channel.staleness

    run_threads(look, PARTS)
