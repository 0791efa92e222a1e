"""What layers compute from the adjacency inside ``forward``: degrees of remote nodes, and self-loops of own nodes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    get_laplacian,
    is_sparse,
    remove_self_loops,
    scatter,
)

from lightning_gnncomm.graph.adjacency import csr_matrix, entries
from lightning_gnncomm.halo.context import HaloContext, Scope
from lightning_gnncomm.halo.namespaces import Redirection
from lightning_gnncomm.slots import Role

__all__ = ["ADJACENCY"]

Weighted = tuple[Tensor, Tensor | None]
"""Edge index ``[2, E]`` and one weight an edge ``[E]``, or a sparse matrix of weights and ``None``."""


def _halo_gcn_norm(
    scope: Scope,
    original: Callable[..., Any],
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: torch.dtype | None = None,
) -> Weighted:
    """Symmetric normalisation with the true degrees of remote source nodes.

    Every edge into an own node is local, so own degrees are complete; those of halo nodes are exchanged (differentiably, so
    learned edge weights stay exact). Against the flow, edges are those out of own nodes.
    """
    if is_sparse(edge_index):
        return _normalised_matrix(scope, edge_index, (2.0 if improved else 1.0) if add_self_loops else None)
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()
    own, far = (1, 0) if flow == "source_to_target" else (0, 1)

    def normalise(context: HaloContext) -> Weighted:
        num_own = context.relation.num_targets
        loops, weights = edge_index, edge_weight
        if add_self_loops:
            _check_loops(scope)
            fill_value = 2.0 if improved else 1.0
            loops, weights = add_remaining_self_loops(loops, weights, fill_value, num_own)
        # As in PyG, without weights self-loops weigh 1 even if they are to be improved.
        weights = _weights(loops, weights, dtype)
        degree = scatter(weights, loops[own], 0, num_own, reduce="sum")
        inverse_root = _power(degree, -0.5)
        extended = context.extend(inverse_root, scope.layer, "degree", role=Role.NORM)
        return loops, extended[loops[far]] * weights * inverse_root[loops[own]]

    return _kept(scope, edge_index, edge_weight, ("gcn", improved, add_self_loops, dtype), normalise)


def _normalised_matrix(scope: Scope, adj_t: Tensor, fill_value: float | None) -> Weighted:
    """Normalise a sparse matrix as PyG does, which adds self-loops to those that are there."""
    _check_csr(adj_t, scope)

    def normalise(context: HaloContext) -> Weighted:
        # PyG's helper fills the diagonal as far as the shorter side goes, which is that of own nodes.
        looped = adj_t if fill_value is None else add_self_loops(adj_t, None, fill_value)[0]
        edges, values = entries(looped)
        inverse_root = _power(scatter(values, edges[1], 0, context.relation.num_targets, reduce="sum"), -0.5)
        extended = context.extend(inverse_root, scope.layer, "degree", role=Role.NORM)
        values = inverse_root[edges[1]] * values * extended[edges[0]]
        return csr_matrix(edges, values, (looped.size(0), looped.size(1))), None

    return _kept(scope, adj_t, None, ("gcn", fill_value), normalise)


def _halo_laplacian(
    scope: Scope,
    original: Callable[..., Any],
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    normalization: str | None = None,
    dtype: torch.dtype | None = None,
    num_nodes: int | None = None,
) -> Weighted:
    """Graph Laplacian with the true out-degrees, whose edges lie on the ranks they lead to.

    Each rank sums its edges by source; the sums of halo nodes go back to their owners, and the totals come out again.
    """

    def laplacian(context: HaloContext) -> Weighted:
        plan = context.relation.plan
        num_local = plan.num_local
        edges, weights = remove_self_loops(edge_index, edge_weight)
        weights = _weights(edges, weights, dtype)
        partial = scatter(weights, edges[0], 0, num_local + plan.num_halo, reduce="sum")
        degree = partial[:num_local] + context.collect(partial[num_local:], scope.layer, "degree")
        if normalization is None:
            return add_self_loops(edges, num_nodes=num_local)[0], torch.cat([-weights, degree])
        inverse = _power(degree, -0.5 if normalization == "sym" else -1.0)
        weights = context.extend(inverse, scope.layer, "degree", role=Role.NORM)[edges[0]] * weights
        if normalization == "sym":
            weights = weights * inverse[edges[1]]
        with_loops: Weighted = add_self_loops(edges, -weights, fill_value=1.0, num_nodes=num_local)
        return with_loops

    if is_sparse(edge_index):
        raise TypeError(
            f"Layer '{scope.layer}' needs the Laplacian of its adjacency, which PyG computes of edges [2, E] only, but got a sparse "
            f"matrix. Pass 'edge_index'."
        )
    edges, weights = _kept(scope, edge_index, edge_weight, ("laplacian", normalization, dtype), laplacian)
    assert weights is not None
    return edges, weights.clone()  # ChebConv changes the weights in place


def _kept(
    scope: Scope,
    edge_index: Tensor,
    edge_weight: Tensor | None,
    options: tuple[Any, ...],
    compute: Callable[[HaloContext], Weighted],
) -> Weighted:
    """Compute a weighted adjacency once, as long as edges and weights are the batch's own."""
    context = scope.context
    if not (context.is_static(edge_index) and context.is_static(edge_weight)):
        return compute(context)
    options = (*options, id(context.relation.plan))
    found = context.adjacencies.get(edge_index, edge_weight, extra=options)
    if found is not None:
        return found
    # What is kept must serve training as well, also if a validation under inference_mode computes it first.
    with torch.inference_mode(False), torch.no_grad():
        result = context.adjacencies.put(compute(context), edge_index, edge_weight, extra=options)
    for tensor in result:
        if tensor is not None:
            context.keep(tensor)
    return result


def _check_csr(adj_t: Any, scope: Scope) -> None:
    if not isinstance(adj_t, Tensor) or adj_t.layout != torch.sparse_csr:
        got = f"layout {adj_t.layout}" if isinstance(adj_t, Tensor) else type(adj_t).__name__
        raise TypeError(
            f"Layer '{scope.layer}' needs a sparse adjacency as torch's CSR, got {got}. Pass 'batch.adj_t'."
        )


def _weights(edge_index: Tensor, edge_weight: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    if edge_weight is not None:
        return edge_weight
    return torch.ones(edge_index.size(1), dtype=dtype, device=edge_index.device)


def _power(degree: Tensor, exponent: float) -> Tensor:
    """A power of degrees, 0 for nodes without edges."""
    power = degree.pow(exponent)
    return power.masked_fill(power == float("inf"), 0.0)


def _own_self_loops(
    scope: Scope,
    original: Callable[..., Any],
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    fill_value: Any = None,
    num_nodes: Any = None,
) -> Any:
    """Give self-loops to own nodes where a layer left it to the largest node id, which may be a halo node's."""
    _check_loops(scope)
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()  # its size is that of own nodes only, wherever it came from
    if num_nodes is None and not is_sparse(edge_index):
        num_nodes = scope.context.num_nodes_up_to_last_edge(edge_index)
    return original(edge_index, edge_attr, fill_value, num_nodes)


def _check_loops(scope: Scope) -> None:
    """Refuse self-loops between nodes of different types, which join nodes that happen to have the same number."""
    if scope.context.relation.is_bipartite:
        raise ValueError(
            f"Layer '{scope.layer}' adds self-loops to edges between different node types, whose nodes are numbered apart: expected "
            f"add_self_loops=False. Build the layer so, or use another layer for this edge type."
        )


_CONVS = "torch_geometric.nn.conv"

ADJACENCY = (
    Redirection("", gcn_norm, _halo_gcn_norm),
    Redirection(_CONVS, get_laplacian, _halo_laplacian),
    Redirection(_CONVS, add_remaining_self_loops, _own_self_loops),
    Redirection(_CONVS, add_self_loops, _own_self_loops),
)
"""Functions of the adjacency as layers see them, halo-aware inside an attached model."""
