"""What the interceptors of one model share during a step: the part's relations, the step number and what was exchanged already."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.halo.cache import TensorCache, TensorMemo
from lightning_gnncomm.halo.exchange import Message, all_reduce_sum, collect_rows, exchange_rows
from lightning_gnncomm.halo.relation import Plans, Relation, Relations, tensors_in
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
        self.exact = True
        self.step_number = 0
        self.neighbour_order: Tensor | None = None
        """Order in which the whole graph has the entries of the matrix that the current layer was called with."""
        self.current: Relation | None = None
        """What the running layer's edges join, ``None`` if it has not shown; see :attr:`relation`."""
        self._relations: Relations | None = None
        self._static: set[int] = set()
        self._calls: Counter[tuple[str, str]] = Counter()
        self.product_argument = ""
        """Argument of the running layer that a sparse product will read."""
        self._rows: TensorMemo[Tensor] = TensorMemo()
        self._repeated_rows: TensorMemo[Tensor] = TensorMemo()
        self._received: TensorMemo[Tensor] = TensorMemo()
        self._constant_rows: TensorCache[Tensor] = TensorCache(capacity=8)
        self._reversals: TensorCache[Reversal] = TensorCache(capacity=2)
        self._edge_values: TensorCache[Tensor] = TensorCache(capacity=8)
        self._lasting: dict[int, Tensor] = {}
        self._replay = Replay()
        self._repeatable: tuple[Relations | None, Mapping[Any, Any]] = (None, {})
        self._repeated: list[tuple[Relations | None, Relation | None, set[int]]] = []
        self.gatherings: TensorCache[HaloPlan] = TensorCache(capacity=2)
        self.matrices: TensorCache[Any] = TensorCache(capacity=8)
        self.adjacencies: TensorCache[tuple[Tensor, Tensor | None]] = TensorCache(capacity=8)

    def __deepcopy__(self, memo: dict[int, Any]) -> HaloContext:
        return self  # a copy of an attached model talks over the same wire

    @contextmanager
    def step(self, plans: Plans, tensors: Mapping[Any, Any], number: int, exact: bool) -> Iterator[None]:
        """Run one step on a part.

        Args:
            plans: Halo plan of the part, or of each node type of a heterogeneous one: ``part.halo``.
            tensors: The part's attributes, ``part.to_dict()``; what is computed from these alone is kept between steps.
            number: Training step, a counter of the rounding randomness.
            exact: Whether rows travel unencoded (validation, test, predict).

        Raises:
            ValueError: If the part is one of another number of parts than there are ranks.
        """
        relations = Relations(plans, tensors)
        if relations.num_parts != self.channel.wire.world_size:
            raise ValueError(
                f"The batch is one of {relations.num_parts} parts but {self.channel.wire.world_size} ranks are running. "
                f"Partition the graph into {self.channel.wire.world_size} parts."
            )
        self._relations, self.current = relations, relations.single
        self.step_number, self.exact = number, exact
        self._static = {id(value) for value in tensors_in(tensors)}
        self._make_room(len(relations))
        self._repeatable = relations, tensors
        self._replay.forget()
        self._repeated_rows.clear()
        self._calls.clear()
        try:
            yield
        finally:
            self._relations = self.current = None
            self._static = set()
            self._clear_rows()

    def begin_call(self, layer: str) -> None:
        """Note that an intercepted module is being called; inside a backward pass, take the last step up again.

        Activation checkpointing repeats calls there. They are given what they received the first time; see :class:`Replay`.

        Raises:
            RuntimeError: If that is not at hand.
        """
        self.neighbour_order = None
        if not in_backward():
            if self.is_in_step:
                self._replay.begin(layer)
            return
        self._replay.rewind(layer)
        if not self._repeated:
            # What the first calls left would let these skip a message that they are to be given.
            self._rows, self._repeated_rows = self._repeated_rows, self._rows
        self._repeated.append((self._relations, self.current, self._static))
        self._relations, tensors = self._repeatable
        self.current = self.relations.single
        self._static = {id(value) for value in tensors_in(tensors)}

    def own(self, value: Any) -> Any:
        """Return the batch's own tensor that a repeated call got a copy of, which torch's reentrant checkpointing makes."""
        if not self._repeated or not isinstance(value, Tensor) or value.requires_grad:
            return value
        looks = value.data_ptr(), value.dtype, value.shape, value.stride()
        for own in tensors_in(self._repeatable[1]):
            if (own.data_ptr(), own.dtype, own.shape, own.stride()) == looks:
                return own
        return value

    def end_call(self) -> None:
        """Note that an intercepted module's call has ended."""
        if self._repeated:
            self._relations, self.current, self._static = self._repeated.pop()
            if not self._repeated:
                self._rows, self._repeated_rows = self._repeated_rows, self._rows

    def _clear_rows(self) -> None:
        self._rows.clear()
        self._received.clear()

    def _make_room(self, num_relations: int) -> None:
        """Let what lasts between steps have as many entries for each relation as a homogeneous part has for its one."""
        for cache, entries in (
            (self._constant_rows, 8),
            (self._reversals, 2),
            (self._edge_values, 8),
            (self.matrices, 8),
            (self.adjacencies, 8),
        ):
            cache.capacity = entries * num_relations

    @property
    def is_in_step(self) -> bool:
        """Whether a step is running."""
        return self._relations is not None

    @property
    def is_distributed(self) -> bool:
        """Whether a step over several parts is running, so that layers are intercepted."""
        return self._relations is not None and self._relations.num_parts > 1

    @property
    def relations(self) -> Relations:
        """The relations of the running step's part."""
        assert self._relations is not None
        return self._relations

    @property
    def relation(self) -> Relation:
        """What the running layer's edges join.

        Raises:
            ValueError: If neither its edges nor its path tell, which is so on every rank.
        """
        if self.current is None:
            scope = current_scope()
            raise ValueError(
                f"Layer '{scope.layer if scope else '?'}' works on edges of which nobody can tell between which node types they are: "
                f"expected an 'edge_index' of the batch as it is, or a layer kept under its edge type as in HeteroConv or "
                f"to_hetero, got edges that were computed. Put the layer into a HeteroConv, or pass it the batch's own edges."
            )
        return self.current

    def turn_to(self, arguments: Iterable[Any], path: str = "") -> Relation | None:
        """Make what edges among the arguments join, or else a path tells, current; return the relation before, to be put back."""
        before = self.current
        self.current = self.relations.of_edges(arguments) or self.relations.of_path(path) or before
        return before

    def is_static(self, tensor: Tensor | None) -> bool:
        """Return whether a tensor is an attribute of the batch itself, so that what is derived from it can be kept."""
        if tensor is None:
            return True
        return (id(tensor) in self._static or id(tensor) in self._lasting) and not tensor.requires_grad

    def keep(self, tensor: Tensor) -> None:
        """Count a tensor that was derived from the batch's own, once, among those that do not change."""
        self._lasting[id(tensor)] = tensor

    def forget_untracked_rows(self) -> None:
        """Forget exchanged rows of tensors made under inference_mode, which a model may have changed in place since."""
        self._rows.forget_untracked()
        self._received.forget_untracked()

    def extend(self, x: Tensor, layer: str, argument: str, dim: int = 0, role: Role = Role.FEATURE) -> Tensor:
        """Return ``x`` with the halo rows appended along the node dimension ``dim``; see :meth:`extend_all`."""
        return self.extend_all({argument: x}, layer, dim, role)[argument]

    def extend_all(
        self, blocks: Mapping[str, Tensor], layer: str, dim: int = 0, role: Role = Role.FEATURE
    ) -> dict[str, Tensor]:
        """Return each block with the halo rows appended along the node dimension ``dim``: ``n -> n + H`` rows.

        All blocks travel in one exchange. A tensor exchanged before in the same step is not exchanged again, whichever layer reads
        it, nor are the batch's own unchanging tensors. A parameter with a row for each node of the graph is the same on all ranks,
        so its halo rows are looked up by the nodes' ids.

        Args:
            blocks: Node tensors by the argument of the layer that they are.
            layer: Path of the layer.
            dim: Node dimension.
            role: What the rows are.

        Raises:
            ValueError: If a block has another number of rows than the part has nodes.
        """
        tables = {argument: x for argument, x in blocks.items() if self.is_table(x, dim)}
        rows = {argument: x for argument, x in blocks.items() if argument not in tables}
        for argument, x in rows.items():
            self._check_rows(x, layer, argument, dim)
        missing: dict[str, Tensor] = {}
        for argument, x in rows.items():
            if self.is_static(x) and role is Role.FEATURE:
                self._fetch_constant(x, layer, argument, dim)
            elif self._rows.get(x, self._row_key(x, dim)) is None and all(x is not m for m in missing.values()):
                missing[argument] = x
        if missing:
            self._fetch(missing, layer, dim, role)
        return {
            argument: x.index_select(dim, self.relation.all_ids()) if argument in tables else self._extended(x, dim)
            for argument, x in blocks.items()
        }

    def is_table(self, x: Tensor, dim: int) -> bool:
        """Whether a tensor is a parameter with one row per node of the whole graph, in the order of their ids."""
        relation = self.relation
        is_whole = x.dim() > 0 and x.size(dim) == relation.plan.num_global
        return isinstance(x, torch.nn.Parameter) and is_whole and relation.node_ids is not None

    def _check_rows(self, x: Tensor, layer: str, argument: str, dim: int) -> None:
        num_local = self.relation.plan.num_local
        if x.size(dim) != num_local:
            raise ValueError(
                f"Layer '{layer}' exchanges '{argument}', which must have one row per node of this rank's part: expected "
                f"{num_local} rows in dimension {dim}, got shape {tuple(x.shape)}. Tensors over all nodes (an "
                f"embedding table, say) are indexed by the part's global ids: 'table[batch.n_id]'."
            )

    def _row_key(self, x: Tensor, dim: int) -> tuple[Any, ...]:
        """What rows of a tensor depend on besides its values: whether they carry gradients must not be mixed up."""
        learns = torch.is_grad_enabled() and x.requires_grad
        return dim % x.dim(), id(self.relation.plan), learns, torch.is_inference_mode_enabled()

    def _fetch(self, blocks: Mapping[str, Tensor], layer: str, dim: int, role: Role) -> None:
        """Exchange blocks in one message and keep the halo rows for the rest of the step."""
        tensors = list(blocks.values())
        slots = [self._slot(layer, argument, role) for argument in blocks]
        moved = [x.movedim(dim, 0) for x in tensors]
        known = [None if self._repeated else self._received.get(x, self._row_key(x, dim)) for x in tensors]
        if len(tensors) == 1 and known[0] is not None:
            # A product had these rows but can give them no gradient: that alone travels, under a name of its own.
            message = Message(self.channel, self.relation.plan, tuple(slots), self.step_number, self.exact, (known[0],))
            received = exchange_rows(moved, message)
        else:
            received = self.receive(moved, self.relation.plan, slots, self.exact)
        for x, rows in zip(tensors, received, strict=True):
            self._rows.put(rows.movedim(0, dim), x, self._row_key(x, dim))

    def rows_or_message(self, x: Tensor, layer: str) -> tuple[Tensor | None, Message | None]:
        """Return the halo rows ``[H, F]`` of a tensor ``[n, F]`` if they are at hand, else the message that brings them.

        Who sends the message calls :meth:`keep_received`.
        """
        argument = self.product_argument
        self._check_rows(x, layer, argument, 0)
        plan = self.relation.plan
        if self.is_static(x):
            self._fetch_constant(x, layer, argument, 0)
            return self._constant_rows.get(x, extra=(0, id(plan))), None
        key = self._row_key(x, 0)
        if self._rows.get(x, key) is None:
            # Several relations of a heterogeneous part may read one tensor, whose gradients then travel together.
            is_only = self.relations.single is not None and not self._repeated
            if is_only and self.source.overlaps and self._received.get(x, key) is None:
                slots = (self._slot(layer, argument, Role.FEATURE),)
                return None, Message(self.channel, plan, slots, self.step_number, self.exact)
            self._fetch({argument: x}, layer, 0, Role.FEATURE)
        return self._rows.get(x, key), None

    def keep_received(self, x: Tensor, message: Message, rows: Tensor) -> None:
        """Keep what a message of :meth:`rows_or_message` brought, for others who read the tensor and for repeated calls."""
        self._received.put(rows, x, self._row_key(x, 0))
        if not self.exact:
            self._replay.keep(Received(message.slots[0], rows))

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
        plan = self.relation.plan
        if self._constant_rows.get(x, extra=(dim % x.dim(), id(plan))) is not None:
            return
        slots = [self._slot(layer, argument, Role.CONSTANT)]
        # Kept rows must serve training as well, also if a validation under inference_mode fetches them first.
        with torch.inference_mode(False), torch.no_grad():
            (rows,) = self.source.rows([x.movedim(dim, 0)], plan, slots, self.step_number, self.exact)
            self._constant_rows.put(rows.movedim(0, dim), x, extra=(dim % x.dim(), id(plan)))

    def _extended(self, x: Tensor, dim: int) -> Tensor:
        # Halo rows are kept and not the extended tensor, which would hold every exchanged activation a second time.
        rows = self._rows.get(x, self._row_key(x, dim))
        if rows is None:
            rows = self._constant_rows.get(x, extra=(dim % x.dim(), id(self.relation.plan)))
        assert rows is not None
        return torch.cat([x, rows], dim)

    def collect(self, x: Tensor, layer: str, argument: str) -> Tensor:
        """Return the sum, at the owners, of what all ranks hold for their halo rows: ``[H, F] -> [n, F]``, differentiable.

        The adjoint of an exchange; its rows are always exact.
        """
        slots = (self._slot(layer, argument, Role.NORM),)
        return collect_rows(x, Message(self.channel, self.relation.plan, slots, self.step_number, exact=True))

    def reversal(self, edge_index: Tensor, layer: str) -> Reversal:
        """Return the part seen from its out-edges, exchanged at first use; a layer that is given these finds their plan.

        Raises:
            ValueError: If the edges are not the batch's own, which may change with every step, or join different node types.
        """
        if not self.is_static(edge_index):
            raise ValueError(
                f"Layer '{layer}' aggregates over out-edges, which are exchanged between ranks once: it needs the batch's own "
                f"'edge_index', but got one that was computed from it."
            )
        relation = self.relations.of_edges([edge_index]) or self.relation
        if relation.is_bipartite:
            raise ValueError(
                f"Layer '{layer}' aggregates over out-edges, which is not supported between different node types: expected "
                f"flow='source_to_target'. Add the reverse edge type to the graph (torch_geometric.transforms.ToUndirected) and use "
                f"a layer along it."
            )
        assert relation.node_ids is not None
        found = self._reversals.get(edge_index, extra=(id(relation.plan),))
        if found is None:
            with torch.inference_mode(False), torch.no_grad():
                found = reverse(edge_index, relation.plan, relation.node_ids, self.channel.wire)
            self._reversals.put(found, edge_index, extra=(id(relation.plan),))
            self.keep(found.edge_index)
            self.keep(found.flipped)
        for edges in (found.edge_index, found.flipped):
            self.relations.add(edges, replace(relation, plan=found.plan))
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
        relation = self.relation
        ids = relation.all_ids()
        last = ids[edge_index].max() if edge_index.numel() else ids.new_tensor(-1)
        last = self.channel.wire.all_reduce(last, "max")
        return int((ids[: relation.num_targets] <= last).sum())

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
