"""One configuration over several ranks against one process: outputs, gradients, buffers and the number of exchanges."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Pending, Wire
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.graph.typed import Graph, TypeName, stores
from lightning_gnncomm.halo.attach import UnsupportedModuleError, attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.testing import run_threads
from tests.conformance.graphs import assignment_of, graph

__all__ = ["Case", "Counts", "Pass", "double_precision", "on_rank", "on_ranks", "on_whole_graph", "refusal_of"]

NUM_RANKS = 3
LEARNED = ("x", "x_0", "pos", "normal", "edge_weight", "edge_value", "edge_attr", "edge_pos")
"""Inputs that are tried with a gradient of their own, as if layers before had made them."""

Call = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Case:
    """One configuration of one class.

    Args:
        group: Part of PyG the class is from.
        name: Class, e.g. ``"GCNConv"``.
        options: What is varied, for the table.
        build: Makes the module.
        call: Calls the module on a graph; what it returns has one row per node.
        kind: Kind of graph.
        static_edges: Edge attributes never get a gradient (the layer caches what it computes from them).
        unfit: Whether the class cannot run over parts of a graph: it must be refused and is not run.
    """

    group: str
    name: str
    options: str
    build: Callable[[], nn.Module]
    call: Call
    kind: str = "random"
    static_edges: bool = False
    unfit: bool = False

    def module(self) -> nn.Module:
        """Return a new module, as a user's model holds it: below a path."""
        torch.manual_seed(12)
        holder = nn.Module()
        holder.layer = self.build()
        for parameter in holder.parameters():
            if not parameter.detach().abs().lt(100).all():  # left as the memory was, as RGATConv does
                nn.init.normal_(parameter)
        return holder

    def __str__(self) -> str:
        return f"{self.name}({self.options})"


@dataclass
class Counts:
    """Exchanges of rows forward and backward, and reductions over all ranks, of one step."""

    forward: int = 0
    backward: int = 0
    sums: int = 0

    def __str__(self) -> str:
        rows = f"{self.forward}+{self.backward}"
        return f"{rows}, {self.sums} sums" if self.sums else rows


class CountedWire:
    """A wire that counts its collectives; several tensors that travel together are one."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.rank, self.world_size = wire.rank, wire.world_size
        self.exchanges = self.reductions = 0

    def exchange(self, send: Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> Pending:
        self.exchanges += 1
        return self._wire.exchange(send, send_sizes, recv_sizes)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        self.reductions += 1
        return self._wire.all_reduce(tensor, op)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._wire.all_gather(tensor)


@dataclass
class Pass:
    """What a configuration computed, for the whole graph and in the original order, on one rank.

    Args:
        tensors: Outputs, gradients and buffers by name.
        counts: Collectives of a later step of a hidden layer (input rows that change, adjacency that does not).
        raw: The same for a first layer that reads the features of the batch.
        roles: Roles of the messages sent; ``"degree"``, ``"statistics"`` and ``"attention"`` for those.
    """

    tensors: dict[str, Tensor]
    counts: Counts
    raw: Counts
    roles: frozenset[str]


@contextmanager
def double_precision() -> Iterator[None]:
    """Make float64 the default, for layers that make tensors of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def refusal_of(model: nn.Module) -> str | None:
    """Return what attaching a model without ``allow`` says, ``None`` if it is taken."""
    try:
        attach(model, HaloContext(Channel(None, IdentityCodec(), Synchronous()))).detach()  # type: ignore[arg-type]
    except UnsupportedModuleError as error:
        return str(error)
    return None


def _flatten(out: Any, name: str = "output") -> dict[str, Tensor]:
    if isinstance(out, Tensor):
        return {name: out}
    items = out.items() if isinstance(out, dict) else enumerate(out)
    return {key: value for part, item in items for key, value in _flatten(item, f"{name}.{part}").items()}


def _nodes_of(output: str, data: Graph) -> Any:
    """Return the nodes that an output has rows of: of the type it is named after, in a heterogeneous graph."""
    return data[output.split(".")[1]] if isinstance(data, HeteroData) else data


def _loss(outputs: dict[str, Tensor], data: Graph) -> Tensor:
    """A sum over nodes in which every output entry has a weight of its own."""
    total = torch.zeros(())
    for name, out in outputs.items():
        if out.is_floating_point():
            weight, width = _nodes_of(name, data).weight, math.prod(out.shape[1:])
            weight = weight.repeat(1, 1 + width // weight.size(1))[:, :width]
            total = total + (out.reshape(out.size(0), width) * weight).sum()
    return total


class _Runner:
    """The passes of one configuration on one rank (or on the whole graph, without a context)."""

    def __init__(
        self, case: Case, model: nn.Module, data: Graph, context: HaloContext | None, wire: Wire | None
    ) -> None:
        self.case, self.model, self.data, self.context, self.wire = case, model, data, context, wire
        self.tensors: dict[str, Tensor] = {}
        self.number = 0

    def step(self, label: str, learned: tuple[str, ...], train: bool = True) -> Counts:
        """Run forward (and backward) once from the same parameters and buffers and keep all that came of it."""
        model, case = self.model, self.case
        model.train(train)
        data = copy.copy(self.data)
        leaves = {
            (name, key): store[key].clone().requires_grad_()
            for name, store in stores(data).items()
            for key in learned
            if train and key in store
        }
        for (name, key), leaf in leaves.items():
            stores(data)[name][key] = leaf
        model.zero_grad()
        before = self._collectives()
        with self._step(data, train), torch.set_grad_enabled(train):
            outputs = _flatten(case.call(model.layer, data))
            loss = _loss(outputs, data)
        forward = self._collectives()
        if train and loss.requires_grad:
            loss.backward()
        total = self._collectives()
        counts = Counts(forward[0] - before[0], total[0] - forward[0], total[1] - before[1])
        self._keep(label, outputs, leaves)
        return counts

    def _step(self, data: Graph, train: bool) -> Any:
        if self.context is None:
            return _nothing()
        self.context.channel.traffic.reset()
        self.number += 1
        return self.context.step(data.halo, data.to_dict(), self.number, exact=not train)

    def _collectives(self) -> tuple[int, int]:
        return (0, 0) if self.wire is None else (self.wire.exchanges, self.wire.reductions)

    def _keep(self, label: str, outputs: dict[str, Tensor], leaves: dict[tuple[TypeName, str], Tensor]) -> None:
        for name, out in outputs.items():
            self.tensors[f"{label} {name}"] = self._gather(out.detach(), _nodes_of(name, self.data).n_id)
        for (name, key), leaf in leaves.items():
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            ids = stores(self.data)[name]["edge_id" if "edge" in key else "n_id"]
            what = key if name is None else f"{key} of {name}"
            self.tensors[f"{label} gradient of {what}"] = self._gather(grad, ids)
        if not label.startswith("eval"):
            for name, parameter in self.model.named_parameters():
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self.tensors[f"{label} gradient of {name}"] = grad if self.wire is None else self.wire.all_reduce(grad)
        for name, buffer in self.model.named_buffers():
            self.tensors[f"{label} buffer {name}"] = buffer.clone()

    def _gather(self, rows: Tensor, ids: Tensor) -> Tensor:
        if self.wire is None:
            return rows
        order = torch.cat(self.wire.all_gather(ids)).argsort()
        return torch.cat(self.wire.all_gather(rows))[order]

    def run(self, labels: Collection[str] = ()) -> Pass:
        """Run all passes, or those named: everything learned, a hidden layer twice, a first layer twice, evaluation."""
        everything = tuple(key for key in LEARNED if not (self.case.static_edges and "edge" in key))
        passes = {
            "learned": everything,
            "hidden": ("x",),
            "hidden again": ("x",),
            "first": (),
            "first again": (),
            "eval": (),
        }
        counts, roles = {}, set()
        for label in labels or passes:
            counts[label] = self.step(label, passes[label], train=label != "eval")
            roles |= self._roles()
        nothing = Counts()
        return Pass(
            self.tensors, counts.get("hidden again", nothing), counts.get("first again", nothing), frozenset(roles)
        )

    def _roles(self) -> set[str]:
        if self.context is None:
            return set()
        slots = self.context.channel.traffic.records
        special = ("statistics", "degree", "attention")
        return {slot.argument if slot.argument in special else slot.role.value for slot in slots}


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def on_whole_graph(case: Case, model: nn.Module) -> Pass:
    """Run a copy of a configuration's module in one process."""
    data = copy.copy(graph(case.kind))
    for nodes in data.node_stores:
        nodes.n_id = torch.arange(nodes.num_nodes)  # as parts have it
    return _Runner(case, copy.deepcopy(model), data, None, None).run()


def on_rank(
    wire: Wire,
    case: Case,
    model: nn.Module,
    prepare: Callable[[HaloContext], None] | None = None,
    labels: Collection[str] = (),
) -> Pass:
    """Run a configuration as one rank of several, whatever the list of known layers says."""
    model, counted = copy.deepcopy(model), CountedWire(wire)
    context = HaloContext(Channel(counted, IdentityCodec(), Synchronous()))
    if prepare is not None:
        prepare(context)
    assignment = assignment_of(case.kind, wire.world_size)
    data = build_part(graph(case.kind), assignment, wire.rank, wire.world_size)
    attachment = attach(model, context, [path for path, _ in model.named_modules()])
    try:
        return _Runner(case, model, data, context, counted).run(labels)
    finally:
        attachment.detach()


def on_ranks(
    case: Case,
    model: nn.Module,
    prepare: Callable[[HaloContext], None] | None = None,
    labels: Collection[str] = (),
) -> list[Pass]:
    """Run copies of a configuration's module (all passes, or those named) over threads as ranks.

    Args:
        case: The configuration.
        model: Its module.
        prepare: What to do to each rank's context before, for twins.
        labels: Names of passes.
    """
    assignment_of(case.kind, NUM_RANKS)  # once, not in every thread
    work = functools.partial(on_rank, case=case, model=model, prepare=prepare, labels=labels)
    return run_threads(work, NUM_RANKS, timeout=20.0)
