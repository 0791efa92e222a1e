"""Parity with a single process: the same model and graph, whole and in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from lightning_gnncomm.codecs.base import Codec, resolve_codec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Schedule, resolve_schedule
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.graph.typed import Assignment, Graph
from lightning_gnncomm.halo.attach import Attachment, attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.remote import RemoteSource
from lightning_gnncomm.testing.threads import run_threads

__all__ = ["Training", "assert_matches_single_process", "train_distributed", "train_single"]


class Training(NamedTuple):
    """What a short training left behind, for the whole graph and in the original node order.

    Args:
        losses: Loss at each step.
        first_output: Output ``[N, C]`` before the first update, or one for each node type.
        gradients: Parameter gradients of the first step, by name.
        state: Parameters and buffers after the last step, by name.
        channel: The channel used (``None`` in a single process).
    """

    losses: list[float]
    first_output: Tensor | dict[str, Tensor]
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]
    channel: Channel | None = None


Output = Tensor | Mapping[str, Tensor | None]
Forward = Callable[[nn.Module, Any], Output]


def _default_forward(model: nn.Module, data: Graph) -> Output:
    """Call ``model(x, edge_index)``, with dicts by type for a heterogeneous graph."""
    typed = isinstance(data, HeteroData)
    out: Output = model(data.x_dict, data.edge_index_dict) if typed else model(data.x, data.edge_index)
    return out


def _labelled(data: Graph) -> Any:
    """Return what holds the labels: the graph, or its first node type with a ``train_mask``."""
    return next(s for s in data.node_stores if "train_mask" in s) if isinstance(data, HeteroData) else data


def _training_rows(out: Output, labelled: Any) -> tuple[Tensor, Tensor]:
    """Return outputs and labels of the training nodes."""
    rows = out[labelled._key] if isinstance(out, Mapping) else out
    assert rows is not None
    return rows[labelled.train_mask], labelled.y[labelled.train_mask]


def _collect(out: Output, gather: Callable[[str | None, Tensor], Tensor]) -> Tensor | dict[str, Tensor]:
    """Gather an output, or those of all node types that have one."""
    if isinstance(out, Tensor):
        return gather(None, out.detach())
    return {name: gather(name, rows.detach()) for name, rows in out.items() if rows is not None}


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def train_single(
    model: nn.Module, data: Graph, steps: int = 3, forward: Forward = _default_forward, lr: float = 0.1
) -> Training:
    """Train a copy of ``model`` on the whole graph with SGD on the cross-entropy over ``train_mask``."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses: list[float] = []
    first: Tensor | dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        out = forward(model, data)
        loss = F.cross_entropy(*_training_rows(out, _labelled(data)))
        loss.backward()
        if step == 0:
            first, gradients = _collect(out, lambda _, rows: rows.clone()), _gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return Training(losses, first, gradients, {k: v.clone() for k, v in model.state_dict().items()})


def train_distributed(
    model: nn.Module,
    data: Graph,
    assignment: Assignment,
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
        assignment: Part of each node, shape ``[N]``; a dict by node type for a heterogeneous graph.
        num_parts: Number of ranks.
        steps: Optimizer steps.
        forward: How the model is called on a graph or its part.
        lr: Learning rate.
        codec: Codec of halo rows.
        seed: Seed of the rounding randomness.
        allow: As for the strategy.
        exchange: ``False`` replaces halo rows by zeros, for twin tests that must fail.
        schedule: When halo rows are due.
    """
    num_train = int(_labelled(data).train_mask.sum())

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
    part: Graph,
    attachment: Attachment,
    num_train: int,
    steps: int,
    forward: Forward,
    lr: float,
    wire: Wire,
) -> Training:
    context = attachment.context
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses: list[float] = []
    first: Tensor | dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}

    def gather(node_type: str | None, rows: Tensor) -> Tensor:
        n_id = (_labelled(part) if node_type is None else part[node_type]).n_id
        return torch.cat(wire.all_gather(rows))[torch.cat(wire.all_gather(n_id)).argsort()]

    for step in range(steps):
        optimizer.zero_grad()
        with context.step(part.halo, part.to_dict(), step, exact=False):
            out = forward(model, part)
            # A mean over own nodes becomes this rank's share of the mean over all nodes.
            loss = F.cross_entropy(*_training_rows(out, _labelled(part)), reduction="sum") / num_train
            loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = wire.all_reduce(parameter.grad)
        if step == 0:
            first, gradients = _collect(out, gather), _gradients(model)
        optimizer.step()
        losses.append(wire.all_reduce(loss.detach()).item())
    return Training(losses, first, gradients, {k: v.clone() for k, v in model.state_dict().items()}, context.channel)


class _ZeroSource(RemoteSource):
    """Halo rows without an exchange: what training would be if remote neighbours were left out."""

    def rows(self, blocks: Sequence[Tensor], plan: Any, slots: Any, step: int, exact: bool) -> list[Tensor]:
        return [x.new_zeros(plan.num_halo, *x.shape[1:]) for x in blocks]


def assert_matches_single_process(
    model: nn.Module,
    data: Graph,
    num_parts: int = 2,
    *,
    assignment: Assignment | None = None,
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
        data: Whole graph with ``y`` and ``train_mask``; a ``HeteroData`` has them on one of its node types.
        num_parts: Number of ranks.
        assignment: Part of each node, shape ``[N]``, or a dict of such by node type; METIS by default.
        steps: Optimizer steps.
        forward: How the model is called on a graph or its part; ``model(x, edge_index)`` by default, with ``x_dict`` and
            ``edge_index_dict`` of a ``HeteroData``. It returns the output, or one for each node type.
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
        for name, theirs in _by_name(expected.first_output).items():
            _compare(f"output{name} on rank {rank}", _by_name(actual.first_output)[name], theirs, tolerance)
        _compare(f"losses on rank {rank}", torch.tensor(actual.losses), torch.tensor(expected.losses), tolerance)
        for what in ("gradients", "state"):
            ours, whole = getattr(actual, what), getattr(expected, what)
            assert ours.keys() == whole.keys(), f"{what} differ in names on rank {rank}: {ours.keys() ^ whole.keys()}"
            # Tensors near zero are compared on the scale of all of them, which is what an optimizer step sees.
            scale = max((t.double().abs().max().item() for t in whole.values() if t.numel()), default=0.0)
            for name in whole:
                _compare(f"{what} '{name}' on rank {rank}", ours[name], whole[name], tolerance, scale)


def _by_name(output: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
    """Return an output with what follows its name in a message."""
    return {"": output} if isinstance(output, Tensor) else {f" of '{name}'": rows for name, rows in output.items()}


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
