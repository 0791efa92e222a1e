"""What a graph must look like before it is partitioned, and the message when it does not."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import N_KEYS

from lightning_gnncomm.graph.adjacency import csr_matrix
from lightning_gnncomm.graph.pairs import is_pair_key, pair_keys
from lightning_gnncomm.graph.typed import Graph, TypeName, edge_types, ends, node_types, of_type, stores

__all__ = ["check_assignment", "check_assignments", "check_graph"]

_SAMPLED = ("input_id", "batch_size", "num_sampled_nodes")
_RESERVED = ("halo", "n_id")


def check_graph(data: Any) -> Any:
    """Return a shallow copy of a graph with ``num_nodes`` set, or say why it cannot be partitioned.

    The copy shares every tensor with ``data``, which is left alone. The ``ptr`` of a ``Batch`` of one graph is dropped, and a node
    type that only edges name gets a store.

    Args:
        data: The whole graph, with ``edge_index`` of shape ``[2, E]``, int32 or int64, or a sparse ``adj_t`` of shape ``[N, N]``, or
            both; if it is a ``HeteroData``, with an ``edge_index`` in each edge type. The copy has a plain tensor for an
            ``EdgeIndex``, whose facts would be wrong for parts, and CSR for COO.

    Raises:
        TypeError: If ``data`` is no graph, an ``edge_index`` does not hold integers, or ``adj_t`` is no sparse tensor of torch.
        ValueError: If ids are out of range, a target or mask does not have one row per node, the graph has no nodes, is a sampled
            batch or a part already, or holds node ids outside ``edge_index``.

    Example:
        >>> check_graph(Data(edge_index=torch.tensor([[0, 1], [1, 2]]))).num_nodes
        3
    """
    _check_kind(data)
    graph: Graph = copy.copy(data)
    if isinstance(graph, Batch) and graph.num_graphs != 1:
        raise ValueError(
            f"Expected one graph, got a Batch of {graph.num_graphs}. Partition each graph by itself, or batch_size=1."
        )
    if isinstance(graph, HeteroData):
        _refuse_matrices(graph)
    declared = _declared_nodes(graph)
    for relation in edge_types(graph):
        _check_edges(stores(graph)[relation], relation)
        if relation is not None:
            for end in ends(relation):
                graph[end]  # PyG makes a store when it is asked for one
    ranges = {relation: _id_ranges(stores(graph)[relation]) for relation in edge_types(graph)}
    _count_nodes(graph, ranges, declared)
    _check_ids(graph, ranges)
    _check_pairs(graph)
    for name, store in stores(graph).items():
        if isinstance(graph, Batch):
            store.pop("ptr", None)
        store.__dict__.pop("_cached_attr", None)  # PyG remembers which attributes it took for edge attributes
        _check_attributes(store, name, _row_counts(graph, name))
    return graph


def check_assignments(assignment: Any, graph: Graph, num_parts: int) -> dict[TypeName, Tensor]:
    """Return the assignment of a checked graph by node type, each as :func:`check_assignment` does.

    Args:
        assignment: Part of each node, shape ``[N]``; of a ``HeteroData`` a dict of one such tensor per node type.
        graph: The checked graph.
        num_parts: Number of parts.

    Raises:
        TypeError, ValueError: As :func:`check_assignment`, or if the node types are not those of the graph.
    """
    names, store = node_types(graph), stores(graph)
    if not isinstance(graph, HeteroData):
        return {None: check_assignment(assignment, store[None].num_nodes, num_parts)}
    if not isinstance(assignment, Mapping):
        raise TypeError(
            f"Expected an assignment as a dict of one tensor per node type, {names}, for a heterogeneous graph, got "
            f"{type(assignment).__name__}."
        )
    if set(assignment) != set(names):
        raise ValueError(f"Expected an assignment for the node types {names}, got one for {list(assignment)}.")
    return {name: check_assignment(assignment[name], store[name].num_nodes, num_parts, name) for name in names}


def check_assignment(assignment: Any, num_nodes: int, num_parts: int, node_type: TypeName = None) -> Tensor:
    """Return an assignment as a contiguous int64 tensor on the CPU, or say what is wrong with it.

    Args:
        assignment: Part of each node, shape ``[N]``, any integer type.
        num_nodes: Number of nodes ``N`` of the graph.
        num_parts: Number of parts; ids must lie in ``0..num_parts-1``.
        node_type: The nodes' type, for messages.

    Raises:
        TypeError: If it is no tensor of integers.
        ValueError: If its shape or range is wrong.

    Example:
        >>> check_assignment(torch.tensor([0, 1], dtype=torch.int32), 2, 2).dtype
        torch.int64
    """
    if isinstance(assignment, np.ndarray):
        assignment = torch.from_numpy(assignment)
    if not isinstance(assignment, Tensor) or assignment.is_floating_point() or assignment.dtype == torch.bool:
        got = assignment.dtype if isinstance(assignment, Tensor) else type(assignment).__name__
        raise TypeError(f"Expected an assignment{of_type(node_type)} as a tensor of integers, one per node, got {got}.")
    if tuple(assignment.shape) != (num_nodes,):
        raise ValueError(
            f"Expected an assignment{of_type(node_type)} of shape [{num_nodes}], one part id per node, got "
            f"{list(assignment.shape)}."
        )
    checked: Tensor = assignment.detach().to("cpu", torch.long).contiguous()
    low, high = (int(checked.min()), int(checked.max())) if num_nodes else (0, 0)
    if low < 0 or high >= num_parts:
        raise ValueError(
            f"Expected part ids{of_type(node_type)} in 0..{num_parts - 1} for {num_parts} parts, got ids from {low} to {high}. "
            "Ask for more parts or renumber the assignment."
        )
    return checked


def _check_kind(data: Any) -> None:
    if not isinstance(data, (Data, HeteroData)):
        raise TypeError(f"Expected a torch_geometric.data.Data or HeteroData, got {type(data).__name__}.")
    kind = "HeteroData" if isinstance(data, HeteroData) else "Data"
    sampled = [key for key in _SAMPLED if key in data]
    if sampled:
        raise ValueError(
            f"Expected a full graph, got a sampled batch (it has {', '.join(sampled)}, as batches of NeighborLoader do). "
            f"Pass the whole {kind}, or a loader that yields it: DataLoader([data]) or LightningNodeData(loader='full')."
        )
    for key in _RESERVED:
        if key in data:
            raise ValueError(
                f"Expected a graph that is not partitioned yet, got one with the attribute {key!r}, which parts use. "
                "Pass the whole graph, or rename the attribute."
            )


def _refuse_matrices(graph: HeteroData) -> None:
    for name, store in stores(graph).items():
        for key in ("adj_t", "adj"):
            if key in store:
                raise ValueError(
                    f"Expected edges{of_type(name)} in edge_index, got {key}, which is supported in homogeneous graphs only. Leave "
                    f"out ToSparseTensor(), or make an edge_index of {key} and delete it."
                )


def _check_edges(store: Any, relation: TypeName) -> None:
    where = of_type(relation)
    if "adj" in store:
        raise ValueError(
            "Expected edges in edge_index or adj_t, got adj, which would keep the whole graph. Delete it, or name its transpose "
            "adj_t, whose rows are the targets of edges."
        )
    if "adj_t" in store:
        store.adj_t = _checked_adjacency(store.adj_t)
    edge_index = store.get("edge_index")
    if edge_index is None:
        if "adj_t" in store:
            return
        raise ValueError(
            f"Expected a graph with edge_index{where}, got none. A graph without edges needs an empty [2, 0] one."
        )
    if not isinstance(edge_index, Tensor) or edge_index.dtype not in (torch.int32, torch.int64):
        got = edge_index.dtype if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise TypeError(f"Expected edge_index{where} of int32 or int64, got {got}. Convert it with edge_index.long().")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"Expected edge_index{where} of shape [2, E], got {list(edge_index.shape)}.")
    store.edge_index = edge_index.as_subclass(Tensor)


def _check_pairs(graph: Graph) -> None:
    """Check ``edge_label_index`` and its kin, which hold nodes as edges do."""
    store = stores(graph)
    for relation in edge_types(graph):
        for key in pair_keys(store[relation]):
            where, pairs = f"{key}{of_type(relation)}", store[relation][key]
            if not isinstance(pairs, Tensor) or pairs.dtype not in (torch.int32, torch.int64):
                got = pairs.dtype if isinstance(pairs, Tensor) else type(pairs).__name__
                raise TypeError(f"Expected {where} of int32 or int64, got {got}. Convert it with long().")
            if pairs.dim() != 2 or pairs.size(0) != 2:
                raise ValueError(f"Expected {where} of shape [2, L], got {list(pairs.shape)}.")
            for end, ids in zip(ends(relation), pairs, strict=True):
                low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, -1)
                if low < 0 or high >= store[end].num_nodes:
                    raise ValueError(
                        f"Expected {where} with ids in 0..{store[end].num_nodes - 1}, got ids from {low} to {high}."
                    )


def _checked_adjacency(adj_t: Any) -> Tensor:
    """Return a sparse adjacency matrix as CSR, or say what is wrong with it."""
    again = "Make it with ToSparseTensor(layout=torch.sparse_csr)."
    if not isinstance(adj_t, Tensor) or adj_t.layout not in (torch.sparse_csr, torch.sparse_coo):
        got = f"layout {adj_t.layout}" if isinstance(adj_t, Tensor) else type(adj_t).__name__
        raise TypeError(f"Expected adj_t as a sparse tensor of torch (CSR or COO), got {got}. {again}")
    if adj_t.size(0) != adj_t.size(1):
        raise ValueError(f"Expected adj_t of shape [N, N], got {list(adj_t.shape)}. {again}")
    if adj_t.layout == torch.sparse_coo:
        if not adj_t.is_coalesced():
            raise ValueError(
                "Expected adj_t coalesced, got a COO matrix that may hold entries twice. Use adj_t.coalesce()."
            )
        # Row by row already; torch's own conversion takes no vectors as values.
        return csr_matrix(adj_t.indices().flip(0), adj_t.values(), (adj_t.size(0), adj_t.size(1)))
    return adj_t


def _declared_nodes(graph: Graph) -> int | None:
    """Return the number of nodes that an ``EdgeIndex`` states, ``None`` if there is none that does."""
    edge_index = None if isinstance(graph, HeteroData) else graph.edge_index
    return edge_index.sparse_size(0) if isinstance(edge_index, EdgeIndex) else None


def _id_ranges(store: Any) -> list[tuple[int, int]]:
    """Return the smallest and largest id of sources, then of destinations; an empty range without edges."""
    edge_index = store.get("edge_index")
    if edge_index is None:  # a matrix has a row and a column for every node
        return [(0, store.adj_t.size(0) - 1)] * 2
    return [(int(ids.min()), int(ids.max())) if ids.numel() else (0, -1) for ids in edge_index]


def _count_nodes(graph: Graph, ranges: Mapping[TypeName, list[tuple[int, int]]], declared: int | None) -> None:
    """Count the nodes without PyG's guess from edge_index, which misses isolated nodes at the end."""
    store = stores(graph)
    by_edges = dict.fromkeys(node_types(graph), 0)
    for relation, found in ranges.items():
        for end, (_, high) in zip(ends(relation), found, strict=True):
            by_edges[end] = max(by_edges[end], high + 1)
    for name, least in by_edges.items():
        store[name].num_nodes = _num_nodes(store[name], name, least, declared)
    total = sum(store[name].num_nodes for name in by_edges)
    if total <= 0:
        raise ValueError(f"Expected a graph with at least one node, got {total}.")


def _num_nodes(store: Any, name: TypeName, by_edges: int, declared: int | None) -> int:
    known = [(key, value.size(0)) for key, value in store.items() if _has_node_rows(key, value)]
    explicit = store.get("num_nodes", declared)
    num_nodes = known[0][1] if known else by_edges
    if explicit is not None:
        num_nodes = int(torch.as_tensor(explicit).sum())  # a Batch has one number per graph
    for key, rows in known:
        if rows != num_nodes:
            source = "num_nodes" if explicit is not None else known[0][0]
            raise ValueError(
                f"Expected {key}{of_type(name)} with one row per node, {num_nodes} by {source}, got {rows} rows. "
                "Graph-level targets and per-edge targets cannot be trained over parts."
            )
    return num_nodes


def _has_node_rows(key: str, value: Any) -> bool:
    """Whether an attribute must have one row per node, those that best tell the number of nodes first."""
    named = key in N_KEYS or key in ("y", "adj_t") or key in ("train_mask", "val_mask", "test_mask")
    return named and isinstance(value, Tensor) and value.dim() > 0


def _check_ids(graph: Graph, ranges: Mapping[TypeName, list[tuple[int, int]]]) -> None:
    store = stores(graph)
    for relation, found in ranges.items():
        for name, (low, high) in zip(ends(relation), found, strict=True):
            num_nodes = store[name].num_nodes
            if low < 0 or high >= num_nodes:
                data = "data" if name is None else f"data[{name!r}]"
                raise ValueError(
                    f"Expected edge_index{of_type(relation)} with ids in 0..{num_nodes - 1} for {num_nodes} nodes{of_type(name)}, "
                    f"got ids from {low} to {high}. Set {data}.num_nodes if the graph has more nodes."
                )


def _row_counts(graph: Graph, name: TypeName) -> list[int]:
    """Return how many rows a mask of a store may have: a number for nodes, for edges, or both; none if it has neither."""
    store = stores(graph)[name]
    nodes = [store.num_nodes] if name in node_types(graph) else []
    return [*nodes, store.num_edges] if name in edge_types(graph) else nodes


def _check_attributes(store: Any, name: TypeName, rows: Collection[int]) -> None:
    is_matrix = "adj_t" in store and store.get("edge_index") is None
    num_entries = store.adj_t.values().size(0) if is_matrix else None
    for key, value in store.items():
        if key in ("edge_index", "adj_t", "num_nodes") or is_pair_key(key) or not isinstance(value, Tensor):
            continue
        if num_entries is not None and "edge" in key and value.dim() > 0 and value.size(0) != num_entries:
            raise ValueError(
                f"Expected {key} with one row per entry of adj_t ({num_entries}), got {value.size(0)} rows. Edges that were there "
                "twice are one entry: coalesce the graph before ToSparseTensor()."
            )
        if value.layout != torch.strided:
            raise ValueError(
                f"Expected dense attributes, got {key!r}{of_type(name)} with layout {value.layout}. Convert it with to_dense(), "
                "or delete it."
            )
        holds_ids = ("index" in key or key == "face") and value.dim() > 0 and not value.is_floating_point()
        if holds_ids and value.dtype != torch.bool:
            raise ValueError(
                f"Expected node ids in edge_index and edge_label_index only, got {key!r}{of_type(name)}, which PyG's naming says "
                "holds node ids and would point to the wrong rows of a part. Turn it into a mask over the nodes, rename it, or "
                "delete it."
            )
        if rows and key.endswith("_mask") and value.dim() > 0 and value.size(0) not in rows:
            what = "edge" if isinstance(name, tuple) else "node"
            raise ValueError(
                f"Expected {key}{of_type(name)} with one row per {what} ({next(iter(rows))}), got {value.size(0)} rows."
            )
