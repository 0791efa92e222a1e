"""Parity with a single process: the same model and graph, whole and in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data

from lightning_gnncomm.codecs.base import Codec, resolve_codec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Schedule, resolve_schedule
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import Attachment, attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.remote import RemoteSource
from lightning_gnncomm.testing.threads import run_threads

__all__ = ["Training", "assert_matches_single_process", "train_distributed", "train_single"]


class Training(NamedTuple):
    """What a short training left behind, for the whole graph and in the original node order.

    Args:
        losses: Loss at each step.
        first_output: Output ``[N, C]`` before the first update.
        gradients: Parameter gradients of the first step, by name.
        state: Parameters and buffers after the last step, by name.
        channel: The channel used (``None`` in a single process).
    """

    losses: list[float]
    first_output: Tensor
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]
    channel: Channel | None = None


Forward = Callable[[nn.Module, Data], Tensor]


def _default_forward(model: nn.Module, data: Data) -> Tensor:
    """Call ``model(x, edge_index)``."""
    out: Tensor = model(data.x, data.edge_index)
    return out


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def train_single(
    model: nn.Module, data: Data, steps: int = 3, forward: Forward = _default_forward, lr: float = 0.1
) -> Training:
    """Train a copy of ``model`` on the whole graph with SGD on the cross-entropy over ``train_mask``."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses, first, gradients = [], torch.empty(0), {}
    for step in range(steps):
        optimizer.zero_grad()
        out = forward(model, data)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        if step == 0:
            first, gradients = out.detach().clone(), _gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return Training(losses, first, gradients, {k: v.clone() for k, v in model.state_dict().items()})


def train_distributed(
    model: nn.Module,
    data: Data,
    assignment: Tensor,
    num_parts: int,
    steps: int = 3,
    forward: Forward = _default_forward,
    lr: float = 0.1,
    codec: str | Codec | Mapping[str, str | Codec] = "identity",
    seed: int = 0,
    allow: Collection[str] = (),
    exchange: bool = True,
    schedule: str | Schedule = "sync",
) -> list[Training]:
    """Train as :func:`train_single` does, on threads as ranks; return each rank's view of the result.

    Args:
        model: Model to copy to each rank.
        data: Whole graph.
        assignment: Part of each node, shape ``[N]``.
        num_parts: Number of ranks.
        steps: Optimizer steps.
        forward: How the model is called on a ``Data``.
        lr: Learning rate.
        codec: Codec of halo rows.
        seed: Seed of the rounding randomness.
        allow: As for the strategy.
        exchange: ``False`` replaces halo rows by zeros, for twin tests that must fail.
        schedule: When halo rows are due.
    """
    num_train = int(data.train_mask.sum())

    def rank_main(wire: Wire) -> Training:
        replica, part = copy.deepcopy(model), build_part(data, assignment, wire.rank, num_parts)
        # Codecs and schedules may decide as they go, each rank for itself.
        messages = copy.deepcopy((resolve_codec(codec), resolve_schedule(schedule)))
        context = HaloContext(Channel(wire, *messages, seed))
        if not exchange:
            context.source = _ZeroSource(context.channel)
        attachment = attach(replica, context, allow)
        try:
            return _train_rank(replica, part, attachment, num_train, steps, forward, lr, wire)
        finally:
            attachment.detach()

    return run_threads(rank_main, num_parts)


def _train_rank(
    model: nn.Module,
    part: Data,
    attachment: Attachment,
    num_train: int,
    steps: int,
    forward: Forward,
    lr: float,
    wire: Wire,
) -> Training:
    context = attachment.context
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses, first, gradients = [], torch.empty(0), {}
    order = torch.cat(wire.all_gather(part.n_id)).argsort()
    for step in range(steps):
        optimizer.zero_grad()
        with context.step(part.halo, part.to_dict(), step, exact=False):
            out = forward(model, part)
            # A mean over own nodes becomes this rank's share of the mean over all nodes.
            loss = F.cross_entropy(out[part.train_mask], part.y[part.train_mask], reduction="sum") / num_train
            loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = wire.all_reduce(parameter.grad)
        if step == 0:
            first, gradients = torch.cat(wire.all_gather(out))[order], _gradients(model)
        optimizer.step()
        losses.append(wire.all_reduce(loss.detach()).item())
    return Training(losses, first, gradients, {k: v.clone() for k, v in model.state_dict().items()}, context.channel)


class _ZeroSource(RemoteSource):
    """Halo rows without an exchange: what training would be if remote neighbours were left out."""

    def rows(self, blocks: Sequence[Tensor], plan: Any, slots: Any, step: int, exact: bool) -> list[Tensor]:
        return [x.new_zeros(plan.num_halo, *x.shape[1:]) for x in blocks]


def assert_matches_single_process(
    model: nn.Module,
    data: Data,
    num_parts: int = 2,
    *,
    assignment: Tensor | None = None,
    steps: int = 3,
    forward: Forward = _default_forward,
    tolerance: float | None = None,
    allow: Collection[str] = (),
    exchange: bool = True,
) -> None:
    """Assert that a model trains on several ranks exactly as in a single process.

    Output, every gradient of the first step, losses and all parameters and buffers after ``steps`` SGD steps are compared, on
    every rank. Ranks are threads, so no process is started.

    Args:
        model: Model in the state to start from; it is copied. Switch dropout off (``p=0``) or make it deterministic.
        data: Whole graph with ``y`` and ``train_mask``.
        num_parts: Number of ranks.
        assignment: Part of each node, shape ``[N]``; METIS by default.
        steps: Optimizer steps.
        forward: How the model is called on a ``Data``; ``model(x, edge_index)`` by default.
        tolerance: Largest difference relative to the largest value of the tensor; 1e-5, or 1e-10 for float64, by default.
        allow: Paths of modules to take although they are not known to be exact, as for the strategy.
        exchange: ``False`` leaves the halo rows zero: a test that still passes then does not test the exchange.

    Raises:
        AssertionError: Naming the tensor, the rank and the difference.

    Example:
        >>> from torch_geometric.nn import GCN
        >>> from lightning_gnncomm.testing import random_graph
        >>> assert_matches_single_process(GCN(6, 8, num_layers=2, out_channels=3), random_graph(), num_parts=3)
    """
    if tolerance is None:
        tolerance = 1e-10 if next(model.parameters()).dtype == torch.float64 else 1e-5
    if assignment is None:
        assignment = assign(data, num_parts)
    expected = train_single(model, data, steps, forward)
    trainings = train_distributed(model, data, assignment, num_parts, steps, forward, allow=allow, exchange=exchange)
    for rank, actual in enumerate(trainings):
        _compare(f"output on rank {rank}", actual.first_output, expected.first_output, tolerance)
        _compare(f"losses on rank {rank}", torch.tensor(actual.losses), torch.tensor(expected.losses), tolerance)
        for what in ("gradients", "state"):
            ours, theirs = getattr(actual, what), getattr(expected, what)
            assert ours.keys() == theirs.keys(), f"{what} differ in names on rank {rank}: {ours.keys() ^ theirs.keys()}"
            # Tensors near zero are compared on the scale of all of them, which is what an optimizer step sees.
            scale = max((t.double().abs().max().item() for t in theirs.values() if t.numel()), default=0.0)
            for name in theirs:
                _compare(f"{what} '{name}' on rank {rank}", ours[name], theirs[name], tolerance, scale)


def _compare(what: str, actual: Tensor, expected: Tensor, tolerance: float, scale: float = 0.0) -> None:
    assert actual.shape == expected.shape, f"{what}: expected shape {tuple(expected.shape)}, got {tuple(actual.shape)}"
    if expected.numel() == 0:
        return
    difference = (actual.double() - expected.double()).abs().max().item()
    largest = max(expected.double().abs().max().item(), scale)
    # Written so that NaN fails.
    assert difference <= tolerance * max(largest, 1e-30), (
        f"{what}: differs by {difference:.3g}, largest value {largest:.3g}"
    )
