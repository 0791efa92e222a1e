"""Which node, edge and halo row goes to which part and to which place in it: ids only, no features."""

from __future__ import annotations

from dataclasses import dataclass
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
    """The ids of every part, grouped by part, so that a part is a slice of each array.

    Args:
        num_nodes: Number of nodes ``N`` of the whole graph.
        num_parts: Number of parts ``P``.
        node_id: Global node ids grouped by part, ascending in each, shape ``[N]``; part ``p`` is ``node_start[p]:node_start[p+1]``.
        node_start: Starts of the parts in ``node_id``, shape ``[P+1]``.
        edge_id: Ids of the edges grouped by the part of their destination, in original order in each, shape ``[E]``.
        edge_start: Starts of the parts in ``edge_id``, shape ``[P+1]``.
        edge_local: Local source and destination of each edge in the order of ``edge_id``, shape ``[2, E]``.
        halo_id: Global ids of halo nodes grouped by the part that needs them, then by owner, ascending, shape ``[H]``.
        halo_count: Rows that part ``p`` receives from part ``q``, shape ``[P, P]``.
        send_id: The same rows grouped by owner, then by the part that needs them, ascending, shape ``[H]``.

    Example:
        >>> layout = partition_layout(torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 0, 1]), 2)
        >>> layout.halo_count.tolist()
        [[0, 1], [1, 0]]
    """

    num_nodes: int
    num_parts: int
    node_id: _Ids
    node_start: _Ids
    edge_id: _Ids
    edge_start: _Ids
    edge_local: _Ids
    halo_id: _Ids
    halo_count: _Ids
    send_id: _Ids

    def nodes_of(self, rank: int) -> Tensor:
        """Return the global ids of the nodes part ``rank`` owns, ascending, shape ``[n]``, int64."""
        return _tensor(self.node_id[self.node_start[rank] : self.node_start[rank + 1]])

    def edges_of(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return ids ``[E_p]`` and local end points ``[2, E_p]`` of the edges into part ``rank``, both int64."""
        edges = slice(self.edge_start[rank], self.edge_start[rank + 1])
        return _tensor(self.edge_id[edges]), _tensor(self.edge_local[:, edges])

    def plan_of(self, rank: int) -> HaloPlan:
        """Return the halo plan of part ``rank``."""
        received, sent = self.halo_count.sum(axis=1), self.halo_count.sum(axis=0)
        halo_id = self.halo_id[received[:rank].sum() : received[: rank + 1].sum()].astype(np.int64)
        send_id = self.send_id[sent[:rank].sum() : sent[: rank + 1].sum()].astype(np.int64)
        own = self.node_id[self.node_start[rank] : self.node_start[rank + 1]]
        # Any number that no other part uses tells the gradients of one node apart; the smallest own id needs no agreement.
        reader = 1 + int(own[0]) if len(own) else 1 + self.num_nodes + rank
        return HaloPlan(
            num_local=len(own),
            num_global=self.num_nodes,
            send_index=torch.from_numpy(np.searchsorted(own, send_id)).long(),
            send_counts=tuple(self.halo_count[:, rank].tolist()),
            recv_counts=tuple(self.halo_count[rank].tolist()),
            send_key=torch.from_numpy(send_id),
            recv_key=torch.from_numpy(halo_id + self.num_nodes * reader),
        )


def partition_layout(edge_index: Tensor, assignment: Tensor, num_parts: int) -> PartitionLayout:
    """Work out the ids of every part at once, in a few passes over nodes and edges.

    Args:
        edge_index: Sources and destinations, shape ``[2, E]``, ids in ``0..N-1``.
        assignment: Part of each node, shape ``[N]``, ids in ``0..num_parts-1``.
        num_parts: Number of parts ``P``.

    Returns:
        The layout. An edge belongs to the part of its destination; its source is a halo node if another part owns it.
    """
    num_nodes = assignment.numel()
    assert num_nodes < 3_000_000_000, "keys of received rows, about N * N, must fit in int64"
    # NumPy sorts 16-bit integers by radix, which makes grouping by part linear.
    small = np.int16 if num_parts <= np.iinfo(np.int16).max else np.int32
    part = assignment.numpy().astype(small)
    source, target = edge_index.detach().cpu().as_subclass(Tensor).numpy()

    node_id, node_start = _group(part, num_parts)
    rank_of_node = np.empty(num_nodes, dtype=np.int64)  # place of a node in node_id: sorts by owner, then by global id
    rank_of_node[node_id] = np.arange(num_nodes)
    local = rank_of_node - node_start[part]

    reader = part[target]
    cut = np.flatnonzero(reader != part[source])
    cut_reader = reader[cut].astype(np.int64)
    key = cut_reader * num_nodes + rank_of_node[source[cut]]
    halo = np.unique(key)
    halo_reader, halo_place = np.divmod(halo, num_nodes)
    halo_id = node_id[halo_place]
    halo_owner = part[halo_id].astype(np.int64)
    halo_count = np.bincount(halo_reader * num_parts + halo_owner, minlength=num_parts**2).reshape(num_parts, num_parts)
    halo_start = _starts(halo_count.sum(axis=1))

    local_source = local[source]
    place = np.searchsorted(halo, key) - halo_start[cut_reader]
    local_source[cut] = np.diff(node_start)[cut_reader] + place
    edge_id, edge_start = _group(reader, num_parts)
    edge_local = np.stack([local_source[edge_id], local[target[edge_id]]])
    return PartitionLayout(
        num_nodes=num_nodes,
        num_parts=num_parts,
        node_id=node_id,
        node_start=node_start,
        edge_id=edge_id,
        edge_start=edge_start,
        edge_local=edge_local,
        halo_id=halo_id,
        halo_count=halo_count,
        send_id=halo_id[np.argsort(halo_owner.astype(small), kind="stable")],
    )


def _group(part: _Ids, num_parts: int) -> tuple[_Ids, _Ids]:
    return np.argsort(part, kind="stable"), _starts(np.bincount(part, minlength=num_parts))


def _starts(counts: _Ids) -> _Ids:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _tensor(ids: _Ids) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))  # a copy: a part must not keep the whole graph's array alive
