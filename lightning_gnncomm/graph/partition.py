"""Parts of a graph: plain PyG data of one rank's own nodes, with a plan for the rows of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from lightning_gnncomm.graph.adjacency import all_edges, csr_matrix, entries, entry_order
from lightning_gnncomm.graph.check import check_assignment, check_graph
from lightning_gnncomm.graph.layout import PartitionLayout, partition_layout
from lightning_gnncomm.graph.plan import HaloPlan

__all__ = ["build_part", "build_parts", "join_parts", "trivial_part"]


def build_part(data: Data, assignment: Tensor, rank: int, num_parts: int) -> Data:
    """Return the part of a graph that one rank trains on.

    Args:
        data: The whole graph: ``N`` nodes, ``E`` edges.
        assignment: Part of each node, shape ``[N]``, integers in ``0..num_parts-1``.
        rank: The part to return.
        num_parts: Number of parts.

    Returns:
        A plain ``Data`` with ``num_nodes = n`` own nodes in ascending global id, their ids ``n_id`` ``[n]``, node-level attributes cut
        to ``n`` rows, ``edge_index`` ``[2, E_p]`` of exactly the edges *into* own nodes in their original order, edge-level
        attributes cut to ``E_p`` rows, graph-level attributes unchanged, and ``halo``, a
        :class:`~lightning_gnncomm.graph.plan.HaloPlan`. Destinations lie in ``0..n-1``, sources in ``0..n+H-1``, where halo nodes
        follow the own ones, ordered by owner and then by global id. If the graph has ``adj_t``, beside ``edge_index`` or instead of
        it, so has the part: the rows of own nodes, a CSR matrix ``[n, n+H]`` with their values. Edge-level attributes of a graph
        without ``edge_index`` belong to its entries.

    Raises:
        TypeError: If ``data`` is no homogeneous graph or ids are no integers.
        ValueError: If graph, assignment or ``rank`` are out of range; see :func:`~lightning_gnncomm.graph.check.check_graph`.

    Example:
        >>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> part = build_part(ring, torch.tensor([0, 0, 1, 1]), rank=0, num_parts=2)
        >>> part.n_id.tolist(), part.edge_index.tolist(), part.halo.recv_counts
        ([0, 1], [[0, 2], [1, 0]], (0, 1))
    """
    if not 0 <= rank < num_parts:
        raise ValueError(f"Expected a rank in 0..{num_parts - 1} for {num_parts} parts, got {rank}.")
    return next(_build(data, assignment, num_parts, [rank], None))


def build_parts(
    data: Data, assignment: Tensor, num_parts: int, *, layout: PartitionLayout | None = None
) -> Iterator[Data]:
    """Yield all parts of a graph in turn, as :func:`build_part` returns them, sharing the work on ids.

    Only one part exists at a time if the caller lets go of it, so the peak is the graph and one part.

    Args:
        data: The whole graph: ``N`` nodes, ``E`` edges.
        assignment: Part of each node, shape ``[N]``, integers in ``0..num_parts-1``.
        num_parts: Number of parts.
        layout: The layout of this very graph and assignment if it is known already.

    Raises:
        TypeError, ValueError: As :func:`build_part`.

    Example:
        >>> path = Data(edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> [part.num_nodes for part in build_parts(path, torch.tensor([0, 1, 1]), 2)]
        [1, 2]
    """
    return _build(data, assignment, num_parts, range(num_parts), layout)


def trivial_part(data: Data) -> Data:
    """Return a whole graph as the only part: attributes shared with ``data``, no halo.

    Example:
        >>> trivial_part(Data(edge_index=torch.tensor([[0, 1], [1, 2]]))).halo.num_halo
        0
    """
    graph = check_graph(data)
    assert graph.num_nodes is not None
    part = Data(**graph.to_dict())
    if part.edge_index is not None:
        part.edge_index = part.edge_index.long()
    part.num_nodes = graph.num_nodes
    part.n_id = torch.arange(graph.num_nodes)
    part.halo = HaloPlan.trivial(graph.num_nodes)
    return part


def join_parts(parts: Sequence[Data], *, levels: Mapping[str, str] | None = None) -> Data:
    """Return the graph whose parts these are: the inverse of :func:`build_parts`, up to the order of edges.

    Args:
        parts: All parts of one graph, in the order of their ranks, on one device.
        levels: ``"node"``, ``"edge"`` or ``"graph"`` for each attribute, told from their sizes by default.

    Returns:
        Nodes in their original order; edges grouped by the part of their destination.

    Example:
        >>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> join_parts(list(build_parts(ring, torch.tensor([1, 0, 0, 1]), 2))).x.equal(ring.x)
        True
    """
    n_id = torch.cat([part.n_id for part in parts])
    order = torch.argsort(n_id)
    graph = Data()
    edge_order = None
    if "adj_t" in parts[0]:
        graph.adj_t, entry = _join_adjacency(parts, n_id.numel())
        edge_order = entry if parts[0].edge_index is None else None
    for key, value in parts[0].to_dict().items():
        if key in ("halo", "n_id", "edge_index", "adj_t", "num_nodes"):
            continue
        level = levels[key] if levels is not None else _level_of(parts, key)
        graph[key] = value if level == "graph" else _join(parts, key, order if level == "node" else edge_order)
    if parts[0].edge_index is not None:
        graph.edge_index = torch.cat([_global_edges(part, part.edge_index) for part in parts], dim=1)
    graph.num_nodes = n_id.numel()
    return graph


def _level_of(parts: Sequence[Data], key: str) -> str:
    """Tell from the sizes in all parts at once what the rows of an attribute are; in one part they can agree by chance."""
    sizes = [_length(part[key], part.__cat_dim__(key, part[key])) for part in parts]
    node = sizes == [part.num_nodes for part in parts]
    edge = sizes == [part.num_edges for part in parts]
    if node and edge:
        return "edge" if "edge" in key else "node"  # PyG's own rule
    return "node" if node else "edge" if edge else "graph"


def _length(value: Any, dim: Any) -> int:
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = getattr(value, "shape", ())
    return int(shape[dim]) if len(shape) and isinstance(dim, int) else -1


def _join(parts: Sequence[Data], key: str, order: Tensor | None) -> Any:
    values = [part[key] for part in parts]
    dim = parts[0].__cat_dim__(key, values[0])
    if isinstance(values[0], (list, tuple)):
        joined: Any = type(values[0])(row for value in values for row in value)
    else:
        joined = torch.cat(values, dim) if isinstance(values[0], Tensor) else np.concatenate(values, dim)
    return joined if order is None else _rows(joined, order, dim)


def _join_adjacency(parts: Sequence[Data], num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the whole graph's ``adj_t``, and which entry of all parts' each of its entries is."""
    found = [entries(part.adj_t) for part in parts]
    edges = torch.cat([_global_edges(part, edges) for part, (edges, _) in zip(parts, found, strict=True)], dim=1)
    joined = csr_matrix(edges, torch.cat([values for _, values in found]), (num_nodes, num_nodes))
    return joined, entry_order(edges, num_nodes)


def _global_edges(part: Data, edges: Tensor) -> Tensor:
    plan: HaloPlan = part.halo
    return plan.global_ids(part.n_id)[edges]


def _build(
    data: Data, assignment: Tensor, num_parts: int, ranks: Sequence[int], layout: PartitionLayout | None
) -> Iterator[Data]:
    graph = check_graph(data)
    assert graph.num_nodes is not None
    assignment = check_assignment(assignment, graph.num_nodes, num_parts)
    if num_parts == 1:
        return iter([trivial_part(data)])  # nothing to cut, so nothing to copy
    if layout is None:
        layout = partition_layout(all_edges(graph), assignment, num_parts)
    return (_cut(graph, layout, rank) for rank in ranks)


def _cut(graph: Data, layout: PartitionLayout, rank: int) -> Data:
    nodes = layout.nodes_of(rank)
    edges, edge_index = layout.edges_of(rank)
    plan = layout.plan_of(rank)
    part = Data()
    if "adj_t" in graph:
        part.adj_t, edges, edge_index = _cut_adjacency(graph, edges, edge_index, plan)
    for key, value in graph.to_dict().items():
        if key in ("edge_index", "adj_t", "num_nodes"):
            continue
        if graph.is_node_attr(key):
            part[key] = _rows(value, nodes, graph.__cat_dim__(key, value))
        elif graph.is_edge_attr(key):
            part[key] = _rows(value, edges, graph.__cat_dim__(key, value))
        else:
            part[key] = value
    if graph.edge_index is not None:
        part.edge_index = edge_index
    part.num_nodes = nodes.numel()
    part.n_id = nodes
    part.halo = plan
    return part


def _cut_adjacency(graph: Data, edges: Tensor, local: Tensor, plan: HaloPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Return a part's ``adj_t``, and ids ``[E_p]`` and local ends ``[2, E_p]`` of the edges that edge-level attributes belong to.

    Args:
        graph: The whole graph.
        edges: Ids of the part's edges among all edges of the graph, in which the entries of ``adj_t`` come last.
        local: Their local ends.
        plan: The part's halo plan.
    """
    num_listed = 0 if graph.edge_index is None else graph.edge_index.size(1)
    is_entry = edges >= num_listed
    size = (plan.num_local, plan.num_local + plan.num_halo)
    order = entry_order(local[:, is_entry], size[1])
    ids, ends = edges[is_entry][order] - num_listed, local[:, is_entry][:, order]
    adj_t = csr_matrix(ends, _rows(graph.adj_t.values(), ids, 0), size)
    if graph.edge_index is None:
        return adj_t, ids, ends
    return adj_t, edges[~is_entry], local[:, ~is_entry]


def _rows(value: Any, rows: Tensor, dim: int) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().index_select(dim, rows)
    if isinstance(value, (list, tuple)):
        return type(value)(value[row] for row in rows.tolist())
    return value.take(rows.numpy(), axis=dim)
