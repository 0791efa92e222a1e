"""Parts of a graph: plain PyG data of one rank's own nodes, with a plan for the rows of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lightning_gnncomm.graph.adjacency import csr_matrix, entries, entry_order, num_all_edges
from lightning_gnncomm.graph.check import check_assignments, check_graph
from lightning_gnncomm.graph.layout import PartitionLayout, partition_layout
from lightning_gnncomm.graph.pairs import cut_pairs, id_key, join_pairs, pair_keys, row_keys
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.graph.typed import (
    Assignment,
    Graph,
    GraphT,
    TypeName,
    by_type,
    edge_types,
    empty_like,
    ends,
    joint_ids,
    joint_values,
    node_types,
    plain,
    stores,
    untyped,
)

__all__ = ["build_part", "build_parts", "join_parts", "lay_out", "trivial_part"]


def build_part(data: GraphT, assignment: Assignment, rank: int, num_parts: int) -> GraphT:
    """Return the part of a graph that one rank trains on.

    Args:
        data: The whole graph: ``N`` nodes, ``E`` edges; a ``Data`` or a ``HeteroData``.
        assignment: Part of each node, shape ``[N]``, integers in ``0..num_parts-1``; of a ``HeteroData`` a dict of one such tensor
            per node type.
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

        Pairs of nodes to be scored, ``edge_label_index`` ``[2, L]``, are cut like edges: a part has those that end at own nodes,
        numbered alike, their rows of ``edge_label``, and ``edge_label_id`` ``[L_p]``, their places among all pairs. Their first nodes
        are halo nodes too if they lie elsewhere.

        Of a ``HeteroData`` a plain ``HeteroData`` of the same types, to which the above applies in each: ``num_nodes`` and ``n_id``
        in each node type, ``edge_index`` of the edges into own nodes in each edge type, and ``halo``, a dict of one plan per node
        type. All edge types that start at a node type share its halo rows, which are those that any of them reads.

    Raises:
        TypeError: If ``data`` is no graph or ids are no integers.
        ValueError: If graph, assignment or ``rank`` are out of range; see :func:`~lightning_gnncomm.graph.check.check_graph`.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> part = build_part(ring, torch.tensor([0, 0, 1, 1]), rank=0, num_parts=2)
        >>> part.n_id.tolist(), part.edge_index.tolist(), part.halo.recv_counts
        ([0, 1], [[0, 2], [1, 0]], (0, 1))
    """
    if not 0 <= rank < num_parts:
        raise ValueError(f"Expected a rank in 0..{num_parts - 1} for {num_parts} parts, got {rank}.")
    part: GraphT = next(_build(data, assignment, num_parts, [rank], None))
    return part


def build_parts(
    data: GraphT, assignment: Assignment, num_parts: int, *, layout: PartitionLayout | None = None
) -> Iterator[GraphT]:
    """Yield all parts of a graph in turn, as :func:`build_part` returns them, sharing the work on ids.

    Only one part exists at a time if the caller lets go of it, so the peak is the graph and one part.

    Args:
        data: The whole graph: ``N`` nodes, ``E`` edges.
        assignment: Part of each node, as for :func:`build_part`.
        num_parts: Number of parts.
        layout: The layout of this very graph and assignment if it is known already.

    Raises:
        TypeError, ValueError: As :func:`build_part`.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = Data(edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> [part.num_nodes for part in build_parts(path, torch.tensor([0, 1, 1]), 2)]
        [1, 2]
    """
    return _build(data, assignment, num_parts, range(num_parts), layout)


def trivial_part(data: GraphT) -> GraphT:
    """Return a whole graph as the only part: attributes shared with ``data``, no halo.

    Example:
        >>> from torch_geometric.data import Data
        >>> trivial_part(Data(edge_index=torch.tensor([[0, 1], [1, 2]]))).halo.num_halo
        0
    """
    graph = check_graph(data)
    part, plans = empty_like(graph), {}
    source, target = stores(graph), stores(part)
    for name, store in source.items():
        for key, value in store.items():
            target[name][key] = value
    for relation in edge_types(graph):
        if "edge_index" in source[relation]:
            target[relation].edge_index = plain(source[relation].edge_index).long()
        for key in pair_keys(source[relation]):
            target[relation][key] = plain(source[relation][key]).long()
            target[relation][id_key(key)] = torch.arange(source[relation][key].size(1))
    for name in node_types(graph):
        target[name].n_id = torch.arange(source[name].num_nodes)
        plans[name] = HaloPlan.trivial(source[name].num_nodes)
    part.halo = untyped(plans)
    return cast(GraphT, part)


def lay_out(graph: Graph, assignment: Mapping[TypeName, Tensor], num_parts: int) -> PartitionLayout:
    """Return the layout of a checked graph for a checked assignment by node type."""
    joint = joint_ids(graph, with_pairs=True)
    return partition_layout(
        joint.edge_index,
        joint_values(graph, assignment),
        num_parts,
        type_start=joint.node_start,
        relation_start=joint.edge_start,
    )


def join_parts(parts: Sequence[GraphT], *, levels: Mapping[TypeName, Mapping[str, str]] | None = None) -> GraphT:
    """Return the graph whose parts these are: the inverse of :func:`build_parts`, up to the order of edges.

    Args:
        parts: All parts of one graph, in the order of their ranks, on one device.
        levels: ``"node"``, ``"edge"`` or ``"graph"`` for each attribute of each store (``None`` is the only one of a ``Data``), told
            from their sizes by default.

    Returns:
        Nodes in their original order; edges grouped by the part of their destination.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> join_parts(list(build_parts(ring, torch.tensor([1, 0, 0, 1]), 2))).x.equal(ring.x)
        True
    """
    graph = empty_like(parts[0])
    of_parts = [stores(part) for part in parts]
    edge_order = None
    if "adj_t" in parts[0]:
        num_nodes = sum(part.num_nodes for part in parts)
        graph.adj_t, entry = _join_adjacency(parts, num_nodes)
        edge_order = None if "edge_index" in parts[0] else entry
    for name, target in stores(graph).items():
        pieces = [of_part[name] for of_part in of_parts]
        known = None if levels is None else levels[name]
        _join_attributes(target, pieces, parts[0], name, known, edge_order)
    for relation in edge_types(graph):
        if "edge_index" in of_parts[0][relation]:
            edges = [_global_edges(part, relation, stores(part)[relation].edge_index) for part in parts]
            stores(graph)[relation].edge_index = torch.cat(edges, dim=1)
        for key in pair_keys(of_parts[0][relation]):
            pieces = [of_part[relation] for of_part in of_parts]
            pairs = [_global_edges(part, relation, piece[key]) for part, piece in zip(parts, pieces, strict=True)]
            for other, value in join_pairs(key, pairs, pieces).items():
                stores(graph)[relation][other] = value
    for name in node_types(graph):
        stores(graph)[name].num_nodes = sum(of_part[name].num_nodes for of_part in of_parts)
    return cast(GraphT, graph)


def _join_attributes(
    target: Any,
    pieces: Sequence[Any],
    part: Graph,
    name: TypeName,
    levels: Mapping[str, str] | None,
    edge_order: Tensor | None,
) -> None:
    """Join what all parts have in one store; pairs have their own order."""
    of_pairs = _keys_of_pairs(pieces[0])
    order = torch.argsort(torch.cat([piece.n_id for piece in pieces])) if name in node_types(part) else None
    for key, value in pieces[0].items():
        if key in ("halo", "n_id", "edge_index", "adj_t", "num_nodes") or key in of_pairs:
            continue
        dim = part.__cat_dim__(key, value, pieces[0])
        level = levels[key] if levels is not None else _level_of(pieces, part, name, key, dim)
        values = [piece[key] for piece in pieces]
        target[key] = value if level == "graph" else _join(values, dim, order if level == "node" else edge_order)


def _keys_of_pairs(store: Any) -> set[str]:
    """Return the attributes of a store that are pairs of nodes or belong to them."""
    return {other for key in pair_keys(store) for other in (key, *row_keys(store, key))}


def _level_of(pieces: Sequence[Any], part: Graph, name: TypeName, key: str, dim: Any) -> str:
    """Tell from the sizes in all parts at once what the rows of an attribute are; in one part they can agree by chance."""
    sizes = [_length(piece[key], dim) for piece in pieces]
    node = name in node_types(part) and sizes == [piece.num_nodes for piece in pieces]
    edge = name in edge_types(part) and sizes == [piece.num_edges for piece in pieces]
    if node and edge:
        return "edge" if "edge" in key else "node"  # PyG's own rule
    return "node" if node else "edge" if edge else "graph"


def _length(value: Any, dim: Any) -> int:
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = getattr(value, "shape", ())
    return int(shape[dim]) if len(shape) and isinstance(dim, int) else -1


def _join(values: Sequence[Any], dim: int, order: Tensor | None) -> Any:
    if isinstance(values[0], (list, tuple)):
        joined: Any = type(values[0])(row for value in values for row in value)
    else:
        joined = torch.cat(list(values), dim) if isinstance(values[0], Tensor) else np.concatenate(values, dim)
    return joined if order is None else _rows(joined, order, dim)


def _join_adjacency(parts: Sequence[Any], num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the whole graph's ``adj_t``, and which entry of all parts' each of its entries is."""
    found = [entries(part.adj_t) for part in parts]
    edges = torch.cat([_global_edges(part, None, edges) for part, (edges, _) in zip(parts, found, strict=True)], dim=1)
    joined = csr_matrix(edges, torch.cat([values for _, values in found]), (num_nodes, num_nodes))
    return joined, entry_order(edges, num_nodes)


def _global_edges(part: Graph, relation: TypeName, edges: Tensor) -> Tensor:
    store, plans = stores(part), by_type(part, part.halo)
    source, target = ends(relation)
    sources = plans[source].global_ids(store[source].n_id)
    return torch.stack([sources[edges[0]], store[target].n_id[edges[1]]])


def _build(
    data: Graph, assignment: Assignment, num_parts: int, ranks: Sequence[int], layout: PartitionLayout | None
) -> Iterator[Any]:
    graph = check_graph(data)
    checked = check_assignments(assignment, graph, num_parts)
    if num_parts == 1:
        return iter([trivial_part(data)])  # nothing to cut, so nothing to copy
    found = lay_out(graph, checked, num_parts) if layout is None else layout
    return (_cut(graph, found, rank) for rank in ranks)


def _cut(graph: Graph, layout: PartitionLayout, rank: int) -> Graph:
    part = empty_like(graph)
    plans = {name: layout.plan_of(rank, kind) for kind, name in enumerate(node_types(graph))}
    nodes = {name: layout.nodes_of(rank, kind) for kind, name in enumerate(node_types(graph))}
    edges, pairs = _edges_and_pairs(graph, layout, rank)
    if "adj_t" in graph:
        part.adj_t, ids, places = _cut_adjacency(graph, *edges[None], plans[None])
        edges[None] = ids, places
    for name, target in stores(part).items():
        store, of_pairs = stores(graph)[name], pairs.get(name, {})
        for key, value in store.items():
            if key in ("edge_index", "adj_t", "num_nodes") or key in of_pairs:
                continue
            dim = graph.__cat_dim__(key, value, store)
            if name in nodes and store.is_node_attr(key):
                target[key] = _rows(value, nodes[name], dim)
            elif name in edges and store.is_edge_attr(key):
                target[key] = _rows(value, edges[name][0], dim)
            else:
                target[key] = value
        if "edge_index" in store:
            target.edge_index = edges[name][1]
        for key, rows in of_pairs.items():
            target[key] = rows
        if name in nodes:
            target.num_nodes = nodes[name].numel()
            target.n_id = nodes[name]
    part.halo = untyped(plans)
    return cast(Graph, part)


def _edges_and_pairs(
    graph: Graph, layout: PartitionLayout, rank: int
) -> tuple[dict[TypeName, tuple[Tensor, Tensor]], dict[TypeName, dict[str, Tensor]]]:
    """Return by edge type a part's edges (ids ``[E_p]`` and local ends ``[2, E_p]``), and its pairs with what belongs to them."""
    edges, pairs = {}, {}
    for kind, name in enumerate(edge_types(graph)):
        store, (ids, places) = stores(graph)[name], layout.edges_of(rank, kind)
        num_edges = num_all_edges(store)
        is_edge = ids < num_edges
        edges[name] = ids[is_edge], places[:, is_edge]
        pairs[name] = cut_pairs(store, ids[~is_edge], places[:, ~is_edge], num_edges)
    return edges, pairs


def _cut_adjacency(graph: Any, edges: Tensor, local: Tensor, plan: HaloPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Return a part's ``adj_t``, and ids ``[E_p]`` and local ends ``[2, E_p]`` of the edges that edge-level attributes belong to.

    Args:
        graph: The whole graph.
        edges: Ids of the part's edges among all edges of the graph, in which the entries of ``adj_t`` come last.
        local: Their local ends.
        plan: The part's halo plan.
    """
    num_listed = 0 if "edge_index" not in graph else graph.edge_index.size(1)
    is_entry = edges >= num_listed
    size = (plan.num_local, plan.num_local + plan.num_halo)
    order = entry_order(local[:, is_entry], size[1])
    ids, places = edges[is_entry][order] - num_listed, local[:, is_entry][:, order]
    adj_t = csr_matrix(places, _rows(graph.adj_t.values(), ids, 0), size)
    if "edge_index" not in graph:
        return adj_t, ids, places
    return adj_t, edges[~is_entry], local[:, ~is_entry]


def _rows(value: Any, rows: Tensor, dim: int) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().index_select(dim, rows)
    if isinstance(value, (list, tuple)):
        return type(value)(value[row] for row in rows.tolist())
    return value.take(rows.numpy(), axis=dim)
