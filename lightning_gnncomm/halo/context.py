"""What the interceptors of one model share during a step: the plan, the step number and what was exchanged already."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.halo.cache import TensorCache
from lightning_gnncomm.halo.exchange import Message, all_reduce_sum, collect_rows, exchange_rows
from lightning_gnncomm.halo.remote import RemoteSource
from lightning_gnncomm.halo.replay import Received, Replay, in_backward
from lightning_gnncomm.halo.reversal import Reversal, reverse
from lightning_gnncomm.slots import Role, Slot

__all__ = ["HaloContext", "Scope", "current_scope", "enter_scope", "leave_scope"]


class HaloContext:
    """The state behind the hooks of one attached model.

    Args:
        channel: What carries the rows.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.source = RemoteSource(channel)
        self.plan: HaloPlan | None = None
        self.exact = True
        self.step_number = 0
        self.neighbour_order: Tensor | None = None
        """Order in which the whole graph has the entries of the matrix that the current layer was called with."""
        self._static: set[int] = set()
        self._node_ids: Tensor | None = None
        self._calls: Counter[tuple[str, str]] = Counter()
        self._rows: TensorCache[Tensor] = TensorCache(capacity=8)
        self._constant_rows: TensorCache[Tensor] = TensorCache(capacity=8)
        self._reversals: TensorCache[Reversal] = TensorCache(capacity=2)
        self._edge_values: TensorCache[Tensor] = TensorCache(capacity=8)
        self._lasting: dict[int, Tensor] = {}
        self._replay = Replay()
        self._repeatable: tuple[HaloPlan | None, Mapping[str, Any]] = (None, {})
        self._repeated: list[tuple[HaloPlan | None, set[int]]] = []
        self.gatherings: TensorCache[HaloPlan] = TensorCache(capacity=2)
        self.matrices: TensorCache[Any] = TensorCache(capacity=8)
        self.adjacencies: TensorCache[tuple[Tensor, Tensor | None]] = TensorCache(capacity=8)

    def __deepcopy__(self, memo: dict[int, Any]) -> HaloContext:
        return self  # a copy of an attached model talks over the same wire

    @contextmanager
    def step(self, plan: HaloPlan, tensors: Mapping[str, Any], number: int, exact: bool) -> Iterator[None]:
        """Run one step on a part.

        Args:
            plan: Halo plan of the part.
            tensors: The part's attributes; what is computed from these alone is kept between steps.
            number: Training step, a counter of the rounding randomness.
            exact: Whether rows travel unencoded (validation, test, predict).
        """
        if plan.num_parts != self.channel.wire.world_size:
            raise ValueError(
                f"The batch is one of {plan.num_parts} parts but {self.channel.wire.world_size} ranks are running. "
                f"Partition the graph into {self.channel.wire.world_size} parts."
            )
        self.plan, self.step_number, self.exact = plan, number, exact
        self._static = _ids(tensors)
        self._repeatable = plan, tensors
        self._replay.forget()
        self._node_ids = tensors.get("n_id")
        self._calls.clear()
        try:
            yield
        finally:
            self.plan = None
            self._static = set()
            self.forget_rows()

    def begin_call(self, layer: str) -> None:
        """Note that an intercepted module is being called; inside a backward pass, take the last step up again.

        Activation checkpointing repeats calls there. They are given what they received the first time; see :class:`Replay`.

        Raises:
            RuntimeError: If that is not at hand.
        """
        if not in_backward():
            if self.plan is not None:
                self._replay.begin(layer)
            return
        self._replay.rewind(layer)
        self._repeated.append((self.plan, self._static))
        plan, tensors = self._repeatable
        self.plan, self._static = plan, _ids(tensors)

    def own(self, value: Any) -> Any:
        """Return the batch's own tensor that a repeated call got a copy of, which torch's reentrant checkpointing makes."""
        if not self._repeated or not isinstance(value, Tensor) or value.requires_grad:
            return value
        looks = value.data_ptr(), value.dtype, value.shape, value.stride()
        for own in self._repeatable[1].values():
            if isinstance(own, Tensor) and (own.data_ptr(), own.dtype, own.shape, own.stride()) == looks:
                return own
        return value

    def end_call(self) -> None:
        """Note that an intercepted module's call has ended."""
        if self._repeated:
            self.plan, self._static = self._repeated.pop()
            if not self._repeated:
                self._rows.clear()

    @property
    def is_distributed(self) -> bool:
        """Whether a step over several parts is running, so that layers are intercepted."""
        return self.plan is not None and self.plan.num_parts > 1

    def is_static(self, tensor: Tensor | None) -> bool:
        """Return whether a tensor is an attribute of the batch itself, so that what is derived from it can be kept."""
        if tensor is None:
            return True
        return (id(tensor) in self._static or id(tensor) in self._lasting) and not tensor.requires_grad

    def keep(self, tensor: Tensor) -> None:
        """Count a tensor that was derived from the batch's own, once, among those that do not change."""
        self._lasting[id(tensor)] = tensor

    def forget_rows(self) -> None:
        """Drop the memo of exchanged rows; they are shared only within one layer call."""
        self._rows.clear()
        self.neighbour_order = None

    def extend(self, x: Tensor, layer: str, argument: str, dim: int = 0, role: Role = Role.FEATURE) -> Tensor:
        """Return ``x`` with the halo rows appended along the node dimension ``dim``; see :meth:`extend_all`."""
        return self.extend_all({argument: x}, layer, dim, role)[argument]

    def extend_all(
        self, blocks: Mapping[str, Tensor], layer: str, dim: int = 0, role: Role = Role.FEATURE
    ) -> dict[str, Tensor]:
        """Return each block with the halo rows appended along the node dimension ``dim``: ``n -> n + H`` rows.

        All blocks travel in one exchange. A tensor exchanged before in the same layer call is not exchanged again, nor are the
        batch's own unchanging tensors.

        Args:
            blocks: Node tensors by the argument of the layer that they are.
            layer: Path of the layer.
            dim: Node dimension.
            role: What the rows are.

        Raises:
            ValueError: If a block has another number of rows than the part has nodes.
        """
        for argument, x in blocks.items():
            self._check_rows(x, layer, argument, dim)
        missing: dict[str, Tensor] = {}
        for argument, x in blocks.items():
            if self.is_static(x) and role is Role.FEATURE:
                self._fetch_constant(x, layer, argument, dim)
            elif self._rows.get(x, extra=(dim, id(self.plan))) is None and all(x is not m for m in missing.values()):
                missing[argument] = x
        if missing:
            self._fetch(missing, layer, dim, role)
        return {argument: self._extended(x, dim) for argument, x in blocks.items()}

    def _check_rows(self, x: Tensor, layer: str, argument: str, dim: int) -> None:
        assert self.plan is not None
        if x.size(dim) != self.plan.num_local:
            raise ValueError(
                f"Layer '{layer}' exchanges '{argument}', which must have one row per node of this rank's part: expected "
                f"{self.plan.num_local} rows in dimension {dim}, got shape {tuple(x.shape)}. Tensors over all nodes (an "
                f"embedding table, say) are indexed by the part's global ids: 'table[batch.n_id]'."
            )

    def _fetch(self, blocks: Mapping[str, Tensor], layer: str, dim: int, role: Role) -> None:
        """Exchange blocks in one message and keep the extended tensors for the rest of the layer call."""
        assert self.plan is not None
        slots = [self._slot(layer, argument, role) for argument in blocks]
        moved = [x.movedim(dim, 0) for x in blocks.values()]
        received = self.receive(moved, self.plan, slots, self.exact)
        for x, own, rows in zip(blocks.values(), moved, received, strict=True):
            self._rows.put(torch.cat([own, rows]).movedim(0, dim), x, extra=(dim, id(self.plan)))

    def receive(self, blocks: Sequence[Tensor], plan: HaloPlan, slots: Sequence[Slot], exact: bool) -> list[Tensor]:
        """Return the rows of other ranks ``[H, *F_k]`` that a plan brings for each of ``blocks``, in one exchange.

        A call that is repeated in the backward pass gets the rows of the first time, and exchanges nothing but their gradients.
        Rows that were not received then, since they were kept from earlier steps, are fetched as they are.
        """
        if self._repeated:
            known = [found for slot in slots if (found := self._replay.next(slot.layer, slot.argument)) is not None]
            names, values = tuple(found.slot for found in known), tuple(found.values for found in known)
            if len(known) < len(slots):
                return exchange_rows(blocks, Message(self.channel, plan, tuple(slots), self.step_number, exact=True))
            return exchange_rows(blocks, Message(self.channel, plan, names, self.step_number, exact, values))
        rows = self.source.rows(blocks, plan, slots, self.step_number, exact)
        if not self.exact:
            for slot, received in zip(slots, rows, strict=True):
                self._replay.keep(Received(slot, received))
        return rows

    def _fetch_constant(self, x: Tensor, layer: str, argument: str, dim: int) -> None:
        """Exchange a tensor of the batch itself at its first use and keep the halo rows."""
        assert self.plan is not None
        if self._constant_rows.get(x, extra=(dim, id(self.plan))) is not None:
            return
        slots = [self._slot(layer, argument, Role.CONSTANT)]
        # Kept rows must serve training as well, also if a validation under inference_mode fetches them first.
        with torch.inference_mode(False), torch.no_grad():
            (rows,) = self.source.rows([x.movedim(dim, 0)], self.plan, slots, self.step_number, self.exact)
            self._constant_rows.put(rows.movedim(0, dim), x, extra=(dim, id(self.plan)))

    def _extended(self, x: Tensor, dim: int) -> Tensor:
        found = self._rows.get(x, extra=(dim, id(self.plan)))
        if found is not None:
            return found
        rows = self._constant_rows.get(x, extra=(dim, id(self.plan)))
        assert rows is not None
        return torch.cat([x, rows], dim)

    def collect(self, x: Tensor, layer: str, argument: str) -> Tensor:
        """Return the sum, at the owners, of what all ranks hold for their halo rows: ``[H, F] -> [n, F]``, differentiable.

        The adjoint of an exchange; its rows are always exact.
        """
        assert self.plan is not None
        slots = (self._slot(layer, argument, Role.NORM),)
        return collect_rows(x, Message(self.channel, self.plan, slots, self.step_number, exact=True))

    def reversal(self, edge_index: Tensor, layer: str) -> Reversal:
        """Return the part seen from its out-edges, exchanged at first use.

        Raises:
            ValueError: If the edges are not the batch's own, which may change with every step.
        """
        if not self.is_static(edge_index):
            raise ValueError(
                f"Layer '{layer}' aggregates over out-edges, which are exchanged between ranks once: it needs the batch's own "
                f"'edge_index', but got one that was computed from it."
            )
        assert self.plan is not None and self._node_ids is not None
        found = self._reversals.get(edge_index, extra=(id(self.plan),))
        if found is None:
            with torch.inference_mode(False), torch.no_grad():
                found = reverse(edge_index, self.plan, self._node_ids, self.channel.wire)
            self._reversals.put(found, edge_index, extra=(id(self.plan),))
            self.keep(found.edge_index)
            self.keep(found.flipped)
        return found

    def reversed_values(self, values: Tensor, reversal: Reversal, layer: str, argument: str) -> Tensor:
        """Return values of edges ``[E, *]`` in the order of the out-edges ``[E', *]``, differentiably."""
        keep = self.is_static(values)
        found = self._edge_values.get(values, extra=(id(reversal.plan),)) if keep else None
        if found is not None:
            return found
        slots = (self._slot(layer, argument, Role.NORM),)
        message = Message(self.channel, reversal.edge_plan, slots, self.step_number, exact=True)
        with torch.inference_mode(False) if keep else nullcontext():
            (remote,) = exchange_rows([values], message)
            result = torch.cat([values[reversal.own_edges], remote])
        if keep:
            self._edge_values.put(result, values, extra=(id(reversal.plan),))
            self.keep(result)
        return result

    def num_nodes_up_to_last_edge(self, edge_index: Tensor) -> int:
        """Return how many own nodes have a global id up to the largest in any rank's edges.

        PyG counts nodes so where it is not told their number: isolated nodes at the end of the order are left out.
        """
        ids = self.global_ids()
        last = ids[edge_index].max() if edge_index.numel() else ids.new_tensor(-1)
        last = self.channel.wire.all_reduce(last, "max")
        assert self._node_ids is not None
        return int((self._node_ids <= last).sum())

    def global_ids(self) -> Tensor:
        """Return the global ids of own and halo nodes, ``[n + H]``."""
        assert self.plan is not None and self._node_ids is not None
        return self.plan.global_ids(self._node_ids)

    def all_reduce(self, x: Tensor, layer: str) -> Tensor:
        """Return the differentiable sum of ``x`` over all ranks (statistics of norms)."""
        slot = Slot(layer, "statistics", role=Role.NORM)
        known = self._replay.next(layer, slot.argument) if self._repeated else None
        total = all_reduce_sum(x, self.channel, slot, known.values if known else None)
        if not self.exact and not self._repeated:
            self._replay.keep(Received(slot, total))
        return total

    def _slot(self, layer: str, argument: str, role: Role) -> Slot:
        call = self._calls[layer, argument]
        self._calls[layer, argument] += 1
        return Slot(layer, argument, call=call, role=role)


def _ids(tensors: Mapping[str, Any]) -> set[int]:
    return {id(value) for value in tensors.values() if isinstance(value, Tensor)}


class Scope(NamedTuple):
    """The layer call in progress on this thread."""

    context: HaloContext
    layer: str


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Scope] = []


_scopes = _Scopes()


def current_scope() -> Scope | None:
    """Return the innermost intercepted layer call of this thread whose context is inside a step."""
    return _scopes.stack[-1] if _scopes.stack else None


def enter_scope(scope: Scope) -> None:
    """Mark the start of a layer call."""
    _scopes.stack.append(scope)


def leave_scope() -> None:
    """Mark the end of the innermost layer call."""
    _scopes.stack.pop()
