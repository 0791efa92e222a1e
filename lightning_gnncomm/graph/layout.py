"""Which node, edge and halo row goes to which part and to which place in it: ids only, no features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_gnncomm.graph.plan import HaloPlan

__all__ = ["PartitionLayout", "partition_layout"]

_Ids = NDArray[Any]


@dataclass(frozen=True)
class PartitionLayout:
    """The ids of every part, grouped so that what a part has of one type is a slice of each array.

    A graph of ``T`` node types and ``R`` edge types is laid out in its joint numbering, see
    :class:`~lightning_gnncomm.graph.typed.JointIds`; a homogeneous graph is the case ``T = R = 1``. A *block* is one part's share of
    one type, and blocks are ordered by type, then by part.

    Args:
        num_parts: Number of parts ``P``.
        type_start: First joint id of each node type, and the number ``N`` of all nodes, shape ``[T+1]``.
        relation_start: First edge of each edge type, and the number ``E`` of all edges, shape ``[R+1]``.
        node_id: Joint node ids grouped by block, ascending in each, shape ``[N]``.
        node_start: Starts of the blocks in ``node_id``, shape ``[T*P+1]``.
        edge_id: Ids of the edges grouped by edge type and the part of their destination, in original order in each, shape ``[E]``.
        edge_start: Starts of these groups in ``edge_id``, shape ``[R*P+1]``.
        edge_local: Local source and destination of each edge in the order of ``edge_id``, shape ``[2, E]``.
        edge_cut: Number of edges between different parts.
        halo_id: Joint ids of halo nodes grouped by the part that needs them, then by type, then by owner, ascending, shape ``[H]``.
        halo_count: Rows that part ``p`` receives of type ``t`` from part ``q``, shape ``[P, T, P]``.
        send_id: The same rows grouped by type and owner, then by the part that needs them, ascending, shape ``[H]``.

    Example:
        >>> layout = partition_layout(torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 0, 1]), 2)
        >>> layout.halo_count[:, 0].tolist()
        [[0, 1], [1, 0]]
    """

    num_parts: int
    type_start: tuple[int, ...]
    relation_start: tuple[int, ...]
    node_id: _Ids
    node_start: _Ids
    edge_id: _Ids
    edge_start: _Ids
    edge_local: _Ids
    edge_cut: int
    halo_id: _Ids
    halo_count: _Ids
    send_id: _Ids

    def nodes_of(self, rank: int, kind: int = 0) -> Tensor:
        """Return the ids (within their type, the ``kind``-th) of the nodes part ``rank`` owns, ascending, ``[n]``, int64."""
        return _tensor(self._own(rank, kind) - self.type_start[kind])

    def edges_of(self, rank: int, kind: int = 0) -> tuple[Tensor, Tensor]:
        """Return ids ``[E_p]`` within the ``kind``-th edge type and local end points ``[2, E_p]`` of the edges into a part, int64."""
        edges = _block(self.edge_start, kind * self.num_parts + rank)
        return _tensor(self.edge_id[edges] - self.relation_start[kind]), _tensor(self.edge_local[:, edges])

    def plan_of(self, rank: int, kind: int = 0) -> HaloPlan:
        """Return the halo plan of part ``rank`` for the ``kind``-th node type."""
        num_parts, num_nodes = self.num_parts, self.type_start[-1]
        num_types = len(self.type_start) - 1
        received = _starts(self.halo_count.sum(axis=2).ravel())
        sent = _starts(self.halo_count.sum(axis=0).ravel())
        halo_id = self.halo_id[_block(received, rank * num_types + kind)].astype(np.int64)
        send_id = self.send_id[_block(sent, kind * num_parts + rank)].astype(np.int64)
        own = self._own(rank, kind)
        return HaloPlan(
            num_local=len(own),
            num_global=self.type_start[kind + 1] - self.type_start[kind],
            send_index=torch.from_numpy(np.searchsorted(own, send_id)).long(),
            send_counts=tuple(self.halo_count[:, kind, rank].tolist()),
            recv_counts=tuple(self.halo_count[rank, kind].tolist()),
            send_key=torch.from_numpy(send_id),
            recv_key=torch.from_numpy(halo_id + num_nodes * self._reader(rank)),
            first_key=self.type_start[kind],
            num_keys=num_nodes,
        )

    def _own(self, rank: int, kind: int) -> _Ids:
        own: _Ids = self.node_id[_block(self.node_start, kind * self.num_parts + rank)]
        return own

    def _reader(self, rank: int) -> int:
        """Return a number that no other part uses: it tells the gradients of one node apart.

        The smallest own id needs no agreement.
        """
        own = (self._own(rank, kind) for kind in range(len(self.type_start) - 1))
        return 1 + next((int(ids[0]) for ids in own if len(ids)), self.type_start[-1] + rank)


def partition_layout(
    edge_index: Tensor,
    assignment: Tensor,
    num_parts: int,
    *,
    type_start: Sequence[int] | None = None,
    relation_start: Sequence[int] | None = None,
) -> PartitionLayout:
    """Work out the ids of every part at once, in a few passes over nodes and edges.

    Args:
        edge_index: Sources and destinations, shape ``[2, E]``, joint ids in ``0..N-1``.
        assignment: Part of each node, shape ``[N]``, ids in ``0..num_parts-1``.
        num_parts: Number of parts ``P``.
        type_start: Where the node types start in the joint numbering, and ``N``; one type by default.
        relation_start: Where the edge types start in ``edge_index``, and ``E``; one type by default.

    Returns:
        The layout. An edge belongs to the part of its destination; its source is a halo node if another part owns it.
    """
    num_nodes = assignment.numel()
    assert num_nodes < 3_000_000_000, "keys of received rows, about N * N, must fit in int64"
    types = (0, num_nodes) if type_start is None else tuple(type_start)
    relations = (0, edge_index.size(1)) if relation_start is None else tuple(relation_start)
    num_types, num_relations = len(types) - 1, len(relations) - 1
    # NumPy sorts 16-bit integers by radix, which makes grouping linear.
    small = np.int16 if num_parts * max(num_types, num_relations) <= np.iinfo(np.int16).max else np.int32
    part = assignment.numpy().astype(small)
    block = _blocks(part, types, num_parts)
    source, target = edge_index.detach().cpu().as_subclass(Tensor).numpy()

    node_id, node_start = _group(block, num_types * num_parts)
    rank_of_node = np.empty(num_nodes, dtype=np.int64)  # place in node_id: sorts by type, then by owner, then by id
    rank_of_node[node_id] = np.arange(num_nodes)
    local = rank_of_node - node_start[block]

    reader = part[target]
    cut = np.flatnonzero(reader != part[source])
    cut_source, cut_reader = source[cut], reader[cut].astype(np.int64)
    key = cut_reader * num_nodes + rank_of_node[cut_source]
    halo = np.unique(key)
    halo_reader, halo_place = np.divmod(halo, num_nodes)
    halo_id = node_id[halo_place]
    halo_block = block[halo_id].astype(np.int64)
    halo_count = np.bincount(halo_reader * num_types * num_parts + halo_block, minlength=num_parts**2 * num_types)
    halo_count = halo_count.reshape(num_parts, num_types, num_parts)
    halo_start = _starts(halo_count.sum(axis=2).ravel())

    local_source = local[source]
    cut_type = block[cut_source] // num_parts if num_types > 1 else 0
    place = np.searchsorted(halo, key) - halo_start[cut_reader * num_types + cut_type]
    local_source[cut] = np.diff(node_start)[cut_type * num_parts + cut_reader] + place
    edge_id, edge_start = _group(_blocks(reader, relations, num_parts), num_relations * num_parts)
    edge_local = np.stack([local_source[edge_id], local[target[edge_id]]])
    return PartitionLayout(
        num_parts=num_parts,
        type_start=types,
        relation_start=relations,
        node_id=node_id,
        node_start=node_start,
        edge_id=edge_id,
        edge_start=edge_start,
        edge_local=edge_local,
        edge_cut=len(cut),
        halo_id=halo_id,
        halo_count=halo_count,
        send_id=halo_id[np.argsort(halo_block.astype(small), kind="stable")],
    )


def _blocks(part: _Ids, starts: Sequence[int], num_parts: int) -> _Ids:
    """Return the block of each node or edge from its part and from where the types start."""
    if len(starts) <= 2:
        return part
    block: _Ids = part.copy()
    for kind, (first, end) in enumerate(pairwise(starts)):
        block[first:end] += kind * num_parts
    return block


def _group(block: _Ids, num_blocks: int) -> tuple[_Ids, _Ids]:
    return np.argsort(block, kind="stable"), _starts(np.bincount(block, minlength=num_blocks))


def _starts(counts: _Ids) -> _Ids:
    starts: _Ids = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return starts


def _block(starts: _Ids, number: int) -> slice:
    return slice(starts[number], starts[number + 1])


def _tensor(ids: _Ids) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))  # a copy: a part must not keep the whole graph's array alive
