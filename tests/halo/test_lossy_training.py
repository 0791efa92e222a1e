"""Training with rounding equals a single process that rounds the same rows in the same way, and sends what it promises."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from lightning_gnncomm.codecs import AdaptiveWidthCodec, Codec, OneBitCodec, SlotStatistics, resolve_codec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.slots import Role, Slot
from lightning_gnncomm.testing import random_graph, run_threads, train_distributed, train_single

PARTS, STEPS, SEED = 3, 20, 7

CodecLike = str | Codec | dict[str, str]
PER_ROLE = {"feature": "one_bit", "gradient": "4bit"}


def adaptive() -> AdaptiveWidthCodec:
    """One bit for the rows of one layer and four for those of the other, the other way round for their gradients."""
    codec = AdaptiveWidthCodec(2.5)
    first, second = Slot("convs.0", "x"), Slot("convs.1", "x")
    for narrow, wide in ((first, second), (second.as_role(Role.GRADIENT), first.as_role(Role.GRADIENT))):
        codec.observe({narrow: SlotStatistics(100, 1.0), wide: SlotStatistics(100, 1000.0)})
    return codec


class Transform(torch.autograd.Function):
    """What a message does to rows forward and to their gradients backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, link: Link, slot: Slot, step: int, key: Tensor, gradient_key: Tensor) -> Tensor:
        ctx.saved = link, slot, step, gradient_key
        return link.round_trip(rows, slot, step, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        link, slot, step, key = ctx.saved
        return link.round_trip(grad, slot.as_role(Role.GRADIENT), step, key), None, None, None, None, None


class Link:
    """What lies between all parts and one that reads their rows: rounding, rows that both ends hold, and a delay of one step."""

    def __init__(self, name: CodecLike, is_late: bool) -> None:
        self.codec, self.is_late = resolve_codec(name), is_late
        self.held: dict[Slot, Tensor] = {}
        self.before: dict[Slot, Tensor] = {}

    def round_trip(self, rows: Tensor, slot: Slot, step: int, key: Tensor) -> Tensor:
        codec = self.codec.for_slot(slot)
        keys = Channel(None, codec, Synchronous(), SEED).rounding_key(slot, step, key)
        held = self.held.get(slot, torch.zeros_like(rows)) if codec.is_delta else torch.zeros_like(rows)
        decoded = held + codec.decode(codec.encode(rows - held, keys), rows.size(1), rows.dtype)
        self.held[slot] = decoded
        used = self.before.get(slot, decoded) if self.is_late else decoded
        self.before[slot] = decoded
        return used


def reference(
    model: GCN, data: Data, assignment: Tensor, codec: CodecLike, is_late: bool = False
) -> tuple[list[float], dict[str, Tensor]]:
    """Train a two-layer GCN on the whole graph; rows that cross between parts pass through the transform."""
    links = [Link(codec, is_late) for _ in range(PARTS)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (source, target), weight = gcn_norm(data.edge_index, data.edge_weight, data.num_nodes)
    owner, reader = assignment[source], assignment[target]
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x = data.x
        for number, conv in enumerate(model.convs):
            x = conv.lin(x)
            total = torch.zeros_like(x).index_add(
                0, target[owner == reader], (weight[:, None] * x[source])[owner == reader]
            )
            for part in range(PARTS):
                crossing = (reader == part) & (owner != part)
                halo, position = source[crossing].unique(return_inverse=True)
                first = (assignment == part).nonzero().min()
                rows = Transform.apply(
                    x[halo], links[part], Slot(f"convs.{number}", "x"), step, halo, halo + data.num_nodes * (1 + first)
                )
                total = total.index_add(0, target[crossing], weight[crossing, None] * rows[position])
            x = total + conv.bias
            x = x.relu() if number == 0 else x
        loss = F.cross_entropy(x[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def gcn(dtype: torch.dtype) -> GCN:
    torch.manual_seed(0)
    return GCN(6, 20, num_layers=2, out_channels=3).to(dtype)


def forward(model: GCN, data: Data) -> Tensor:
    return model(data.x, data.edge_index, data.edge_weight)


@pytest.mark.parametrize("schedule", ["sync", "async"])
@pytest.mark.parametrize("codec", ["one_bit", "2bit", "8bit", "delta_sign", PER_ROLE, adaptive()], ids=str)
def test_training_equals_the_same_transform_in_one_process(codec: CodecLike, schedule: str) -> None:
    data = random_graph(dtype=torch.float64)
    assignment = assign(data, PARTS)
    trainings = train_distributed(
        gcn(torch.float64), data, assignment, PARTS, STEPS, forward, codec=codec, seed=SEED, schedule=schedule
    )
    losses, state = reference(gcn(torch.float64), data, assignment, codec, is_late=schedule == "async")
    for training in trainings:
        torch.testing.assert_close(training.losses, losses, rtol=1e-9, atol=0)
        torch.testing.assert_close(training.state, state, rtol=1e-8, atol=1e-10)


def test_a_delay_and_rows_that_both_ends_hold_matter() -> None:
    data = random_graph(dtype=torch.float64)
    assignment = assign(data, PARTS)
    runs = [reference(gcn(torch.float64), data, assignment, "delta_sign", late)[0] for late in (False, True)]
    runs.append(reference(gcn(torch.float64), data, assignment, "one_bit")[0])
    for number, losses in enumerate(runs):
        for others in runs[number + 1 :]:
            assert max(abs(a - b) for a, b in zip(losses, others, strict=True)) > 1e-4


def test_the_direction_of_a_codec_matters() -> None:
    data = random_graph(dtype=torch.float64)
    assignment = assign(data, PARTS)
    turned = {"feature": PER_ROLE["gradient"], "gradient": PER_ROLE["feature"]}
    losses, _ = reference(gcn(torch.float64), data, assignment, PER_ROLE)
    others, _ = reference(gcn(torch.float64), data, assignment, turned)
    assert max(abs(a - b) for a, b in zip(losses, others, strict=True)) > 1e-4


def test_one_bit_training_really_rounds_and_another_seed_rounds_otherwise() -> None:
    data = random_graph(dtype=torch.float64)
    assignment = assign(data, PARTS)
    exact = train_single(gcn(torch.float64), data, 3, forward)
    runs = [
        train_distributed(gcn(torch.float64), data, assignment, PARTS, 3, forward, codec="one_bit", seed=seed)[0]
        for seed in (SEED, SEED, SEED + 1)
    ]
    assert runs[0].losses == runs[1].losses
    assert runs[0].losses != runs[2].losses
    assert abs(runs[0].losses[-1] - exact.losses[-1]) > 1e-4


@pytest.mark.parametrize("codec", ["identity", "one_bit", PER_ROLE], ids=str)
def test_bytes_are_rows_times_row_size_times_exchanges(codec: CodecLike) -> None:
    data = random_graph()
    assignment = assign(data, PARTS)
    trainings = train_distributed(
        gcn(torch.float32), data, assignment, PARTS, STEPS, forward, codec=resolve_codec(codec)
    )
    for rank, training in enumerate(trainings):
        plan = build_part(data, assignment, rank, PARTS).halo
        assert training.channel is not None
        for slot, record in training.channel.traffic.records.items():
            width = {"convs.0": 20, "convs.1": 3}[slot.layer]
            rows = plan.num_halo if slot.role is Role.GRADIENT else plan.num_sent
            if slot.role is Role.NORM:  # the degrees are exchanged once: adjacency and weights never change
                assert (record.exchanges, record.sent_bytes) == (1, rows * 4)
                continue
            row_size = {"identity": 4 * width, "one_bit": 4 + (width + 7) // 8, "4bit": 4 + (width + 1) // 2}[
                codec if isinstance(codec, str) else codec[slot.role.value]
            ]
            assert record.exchanges == STEPS
            assert record.rows == STEPS * rows
            assert record.sent_bytes == STEPS * rows * row_size
            assert record.dense_bytes == STEPS * rows * 4 * width
        assert len(training.channel.traffic.records) == 5


def test_raw_features_travel_once_and_exactly() -> None:
    data = random_graph()
    assignment = assign(data, PARTS)
    model = GraphSAGE(6, 20, num_layers=2, out_channels=3)
    training = train_distributed(model, data, assignment, PARTS, STEPS, codec="one_bit")[0]
    assert training.channel is not None
    records = training.channel.traffic.records
    raw = records.pop(Slot("convs.0", "x", role=Role.CONSTANT))
    assert (raw.exchanges, raw.sent_bytes) == (1, raw.dense_bytes)
    assert {slot.layer for slot in records} == {"convs.1"}
    assert all(record.exchanges == STEPS for record in records.values())


def test_changed_features_travel_again() -> None:
    data = random_graph()
    assignment = assign(data, PARTS)

    def shifted(model: torch.nn.Module, part: Data) -> Tensor:
        part.x.add_(0.1)
        return model(part.x, part.edge_index)

    model = GraphSAGE(6, 8, num_layers=2, out_channels=3)
    expected = train_single(model, data.clone(), 3, shifted)
    trainings = train_distributed(model, data, assignment, PARTS, 3, shifted)
    torch.testing.assert_close(trainings[0].losses, expected.losses, rtol=1e-5, atol=0)
    assert trainings[0].channel is not None
    assert trainings[0].channel.traffic.records[Slot("convs.0", "x", role=Role.CONSTANT)].exchanges == 3


def test_attention_and_rows_travel_in_one_exchange() -> None:
    data = random_graph()
    assignment = assign(data, PARTS)
    model = GAT(6, 8, num_layers=2, out_channels=3, heads=2)
    counted: list[int] = []

    def work(wire: Wire) -> None:
        exchange = wire.exchange
        wire.exchange = lambda *a: counted.append(wire.rank) or exchange(*a)  # type: ignore[method-assign]
        part = build_part(data, assignment, wire.rank, PARTS)
        replica = copy.deepcopy(model)
        attachment = attach(replica, context := HaloContext(Channel(wire, OneBitCodec(), Synchronous())))
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            replica(part.x, part.edge_index).sum().backward()
        attachment.detach()

    run_threads(work, PARTS)
    assert [counted.count(rank) for rank in range(PARTS)] == [4] * PARTS  # two layers, forward and backward
