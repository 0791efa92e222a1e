"""What a graph must look like before it is partitioned, and the message when it does not."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import N_KEYS

from lightning_gnncomm.graph.adjacency import csr_matrix

__all__ = ["check_assignment", "check_graph"]

_SAMPLED = ("input_id", "batch_size", "num_sampled_nodes")
_RESERVED = ("halo", "n_id")


def check_graph(data: Any) -> Data:
    """Return a shallow copy of a graph with ``num_nodes`` set, or say why it cannot be partitioned.

    The copy shares every tensor with ``data``, which is left alone. The ``ptr`` of a ``Batch`` of one graph is dropped.

    Args:
        data: The whole graph, with ``edge_index`` of shape ``[2, E]``, int32 or int64, or a sparse ``adj_t`` of shape ``[N, N]``, or
            both. The copy has a plain tensor for an ``EdgeIndex``, whose facts would be wrong for parts, and CSR for COO.

    Raises:
        TypeError: If ``data`` is no homogeneous graph, ``edge_index`` does not hold integers, or ``adj_t`` is no sparse tensor of
            torch.
        ValueError: If ids are out of range, a target or mask does not have one row per node, the graph has no nodes, is a sampled
            batch or a part already, or holds node ids outside ``edge_index``.

    Example:
        >>> check_graph(Data(edge_index=torch.tensor([[0, 1], [1, 2]]))).num_nodes
        3
    """
    _check_kind(data)
    graph: Data = copy.copy(data)
    if isinstance(graph, Batch):
        if graph.num_graphs != 1:
            raise ValueError(
                f"Expected one graph, got a Batch of {graph.num_graphs}. Partition each graph by itself, or batch_size=1."
            )
        del graph["ptr"]
    num_nodes = _declared_nodes(graph)
    _check_edges(graph)
    graph.num_nodes = _count_nodes(graph, num_nodes)
    graph._store.__dict__.pop("_cached_attr", None)  # PyG remembers which attributes it took for edge attributes
    _check_ids(graph)
    _check_attributes(graph)
    return graph


def check_assignment(assignment: Any, num_nodes: int, num_parts: int) -> Tensor:
    """Return an assignment as a contiguous int64 tensor on the CPU, or say what is wrong with it.

    Args:
        assignment: Part of each node, shape ``[N]``, any integer type.
        num_nodes: Number of nodes ``N`` of the graph.
        num_parts: Number of parts; ids must lie in ``0..num_parts-1``.

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
        raise TypeError(f"Expected an assignment as a tensor of integers, one per node, got {got}.")
    if tuple(assignment.shape) != (num_nodes,):
        raise ValueError(
            f"Expected an assignment of shape [{num_nodes}], one part id per node, got {list(assignment.shape)}."
        )
    checked: Tensor = assignment.detach().to("cpu", torch.long).contiguous()
    low, high = (int(checked.min()), int(checked.max())) if num_nodes else (0, 0)
    if low < 0 or high >= num_parts:
        raise ValueError(
            f"Expected part ids in 0..{num_parts - 1} for {num_parts} parts, got ids from {low} to {high}. "
            "Ask for more parts or renumber the assignment."
        )
    return checked


def _check_kind(data: Any) -> None:
    if isinstance(data, HeteroData):
        raise TypeError(
            "Expected a homogeneous Data, got HeteroData. Heterogeneous graphs are not supported yet; "
            "data.to_homogeneous() turns one into a Data with node_type and edge_type."
        )
    if not isinstance(data, Data):
        raise TypeError(f"Expected a torch_geometric.data.Data, got {type(data).__name__}.")
    sampled = [key for key in _SAMPLED if key in data]
    if sampled:
        raise ValueError(
            f"Expected a full graph, got a sampled batch (it has {', '.join(sampled)}, as batches of NeighborLoader do). "
            "Pass the whole Data, or a loader that yields it: DataLoader([data]) or LightningNodeData(loader='full')."
        )
    for key in _RESERVED:
        if key in data:
            raise ValueError(
                f"Expected a graph that is not partitioned yet, got one with the attribute {key!r}, which parts use. "
                "Pass the whole graph, or rename the attribute."
            )


def _check_edges(data: Data) -> None:
    if "adj" in data:
        raise ValueError(
            "Expected edges in edge_index or adj_t, got adj, which would keep the whole graph. Delete it, or name its transpose "
            "adj_t, whose rows are the targets of edges."
        )
    if "adj_t" in data:
        data.adj_t = _checked_adjacency(data.adj_t)
    edge_index = data.edge_index
    if edge_index is None:
        if "adj_t" in data:
            return
        raise ValueError("Expected a graph with edge_index, got none. A graph without edges needs an empty [2, 0] one.")
    if not isinstance(edge_index, Tensor) or edge_index.dtype not in (torch.int32, torch.int64):
        got = edge_index.dtype if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise TypeError(f"Expected edge_index of int32 or int64, got {got}. Convert it with edge_index.long().")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"Expected edge_index of shape [2, E], got {list(edge_index.shape)}.")
    data.edge_index = edge_index.as_subclass(Tensor)


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


def _declared_nodes(data: Data) -> int | None:
    """Return the number of nodes that a graph states: by itself, or by an ``EdgeIndex`` that knows it."""
    explicit = data._store.get("num_nodes")
    if explicit is not None:
        return int(explicit.sum()) if isinstance(explicit, Tensor) else int(explicit)  # a Batch sums them up
    return data.edge_index.sparse_size(0) if isinstance(data.edge_index, EdgeIndex) else None


def _count_nodes(data: Data, explicit: int | None) -> int:
    """Count the nodes without PyG's guess from edge_index, which misses isolated nodes at the end."""
    known = [(key, value.size(0)) for key, value in data.to_dict().items() if _has_node_rows(key, value)]
    edge_index = data.edge_index
    if explicit is not None:
        num_nodes = explicit
    elif known:
        num_nodes = known[0][1]
    else:
        assert edge_index is not None  # an adjacency matrix is known by its rows
        num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    for key, rows in known:
        if rows != num_nodes:
            source = "num_nodes" if explicit is not None else known[0][0]
            raise ValueError(
                f"Expected {key} with one row per node, {num_nodes} by {source}, got {rows} rows. "
                "Graph-level targets and per-edge targets cannot be trained over parts."
            )
    if num_nodes <= 0:
        raise ValueError(f"Expected a graph with at least one node, got {num_nodes}.")
    return num_nodes


def _has_node_rows(key: str, value: Any) -> bool:
    """Whether an attribute must have one row per node, those that best tell the number of nodes first."""
    named = key in N_KEYS or key in ("y", "adj_t") or key in ("train_mask", "val_mask", "test_mask")
    return named and isinstance(value, Tensor) and value.dim() > 0


def _check_ids(data: Data) -> None:
    edge_index, num_nodes = data.edge_index, data.num_nodes
    assert num_nodes is not None
    if edge_index is None or not edge_index.numel():
        return
    low, high = int(edge_index.min()), int(edge_index.max())
    if low < 0 or high >= num_nodes:
        raise ValueError(
            f"Expected edge_index with ids in 0..{num_nodes - 1} for {num_nodes} nodes, got ids from {low} to {high}. "
            "Set data.num_nodes if the graph has more nodes."
        )


def _check_attributes(data: Data) -> None:
    num_entries = data.adj_t.values().size(0) if data.edge_index is None else None
    for key, value in data.to_dict().items():
        if key in ("edge_index", "adj_t") or not isinstance(value, Tensor):
            continue
        if num_entries is not None and "edge" in key and value.dim() > 0 and value.size(0) != num_entries:
            raise ValueError(
                f"Expected {key} with one row per entry of adj_t ({num_entries}), got {value.size(0)} rows. Edges that were there "
                "twice are one entry: coalesce the graph before ToSparseTensor()."
            )
        if value.layout != torch.strided:
            raise ValueError(
                f"Expected dense attributes, got {key!r} with layout {value.layout}. Convert it with to_dense(), or delete it."
            )
        holds_ids = ("index" in key or key == "face") and value.dim() > 0 and not value.is_floating_point()
        if holds_ids and value.dtype != torch.bool:
            raise ValueError(
                f"Expected node ids in edge_index only, got {key!r}, which PyG's naming says holds node ids and would point to "
                "the wrong rows of a part. Turn it into a mask over the nodes, rename it, or delete it."
            )
        if key.endswith("_mask") and value.dim() > 0 and value.size(0) not in (data.num_nodes, data.num_edges):
            raise ValueError(f"Expected {key} with one row per node ({data.num_nodes}), got {value.size(0)} rows.")
