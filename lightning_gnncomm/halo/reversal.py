"""The same part seen from its out-edges, for layers that aggregate against the direction of edges.

A part holds the edges into its nodes. The edges out of them lie on the ranks they lead to; these ranks send them back, once, with
a second halo plan for the nodes at their far ends.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_gnncomm.comm.index import exchange_index
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.plan import HaloPlan

__all__ = ["Reversal", "reverse"]


class Reversal(NamedTuple):
    """The out-edges of a part's nodes.

    Args:
        plan: Halo plan of the nodes that own nodes point to.
        edge_index: Edges as messages run along them: from the far end (own or halo) to the own node, ``[2, E']``.
        flipped: The same edges in the direction they have in the graph.
        own_edges: Positions in the part's edges of those that lie here, which come first.
        edge_plan: Where the values of the others come from: a plan whose rows are edges.
    """

    plan: HaloPlan
    edge_index: Tensor
    flipped: Tensor
    own_edges: Tensor
    edge_plan: HaloPlan


def reverse(edge_index: Tensor, plan: HaloPlan, node_ids: Tensor, wire: Wire) -> Reversal:
    """Exchange edges so that each rank holds those out of its nodes; every rank must take part.

    Args:
        edge_index: The part's edges ``[2, E]``.
        plan: The part's halo plan.
        node_ids: Global ids of own nodes ``[n]``, ascending.
        wire: The ranks.
    """
    source, target = edge_index
    is_own = source < plan.num_local
    own_edges = is_own.nonzero().view(-1)
    far_edges, far_counts = _by_owner(source, is_own, plan)
    # A halo node is named by its position in the list that its owner sends here, which both ends know.
    position = source[far_edges] - plan.num_local - _starts(plan.recv_counts, far_counts, source)
    rows = torch.stack([position, node_ids[target[far_edges]]], 1)
    received, counts = exchange_index(wire, rows, far_counts)
    own_end = plan.send_index[received[:, 0] + _starts(plan.send_counts, counts, source)]
    far_plan, far_end = _plan_of(received[:, 1], counts, plan, node_ids, wire)
    edges = torch.stack([torch.cat([target[own_edges], far_end]), torch.cat([source[own_edges], own_end])])
    unused = far_edges.new_zeros  # edge values are never rounded
    edge_plan = HaloPlan(
        num_local=source.numel(),
        num_global=source.numel(),
        send_index=far_edges,
        send_counts=tuple(far_counts),
        recv_counts=tuple(counts),
        send_key=unused(far_edges.numel()),
        recv_key=unused(sum(counts)),
    )
    return Reversal(far_plan, edges, edges.flip(0), own_edges, edge_plan)


def _by_owner(source: Tensor, is_own: Tensor, plan: HaloPlan) -> tuple[Tensor, list[int]]:
    """Return edges that start at halo nodes, grouped by the owner of these, and their number by owner."""
    ranks = torch.arange(plan.num_parts, device=source.device)
    owner_of_halo = ranks.repeat_interleave(torch.tensor(plan.recv_counts, device=source.device))
    far = (~is_own).nonzero().view(-1)
    owner = owner_of_halo[source[far] - plan.num_local]
    return far[owner.argsort(stable=True)], torch.bincount(owner, minlength=plan.num_parts).tolist()


def _starts(list_sizes: tuple[int, ...], counts: list[int], like: Tensor) -> Tensor:
    """Return, for rows grouped by rank with ``counts`` each, where that rank's list begins."""
    sizes = torch.tensor(list_sizes, device=like.device)
    return (sizes.cumsum(0) - sizes).repeat_interleave(torch.tensor(counts, device=like.device))


def _plan_of(ids: Tensor, counts: list[int], plan: HaloPlan, node_ids: Tensor, wire: Wire) -> tuple[HaloPlan, Tensor]:
    """Return the plan for nodes with global ``ids``, grouped by owner, and each one's place behind the own nodes."""
    wanted, places, start = [], [], plan.num_local
    for piece in ids.split(counts):
        unique, place = piece.unique(return_inverse=True)
        wanted.append(unique)
        places.append(place + start)
        start += unique.numel()
    recv_counts = [unique.numel() for unique in wanted]
    requested, send_counts = exchange_index(wire, torch.cat(wanted), recv_counts)
    first = node_ids[:1] if node_ids.numel() else node_ids.new_tensor([plan.num_global + wire.rank])
    far_plan = HaloPlan(
        num_local=plan.num_local,
        num_global=plan.num_global,
        send_index=torch.searchsorted(node_ids, requested),
        send_counts=tuple(send_counts),
        recv_counts=tuple(recv_counts),
        send_key=requested,
        recv_key=torch.cat(wanted) + plan.num_global * (1 + first),
    )
    return far_plan, torch.cat(places)
