"""Sparse adjacency matrices ``adj_t``, whose rows are targets: made of edges, and taken apart into edges again."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from lightning_gnncomm.graph.plan import HaloPlan

__all__ = [
    "all_edges",
    "csr_matrix",
    "edge_list",
    "entries",
    "entry_order",
    "num_all_edges",
    "sparse_parts",
    "with_adjacency",
]

with warnings.catch_warnings():
    # Torch says once per process that CSR is in beta.
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), dtype=torch.float32, check_invariants=False)


def entries(adj_t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entries of a CSR matrix, in its order, as edges ``[2, E]`` from column to row and their values ``[E, *]``.

    Example:
        >>> matrix = csr_matrix(torch.tensor([[2, 0], [0, 1]]), torch.tensor([1.0, 2.0]), (2, 3))
        >>> entries(matrix)[0].tolist()
        [[2, 0], [0, 1]]
    """
    starts = adj_t.crow_indices().long()
    rows = torch.arange(starts.numel() - 1, device=starts.device).repeat_interleave(starts.diff())
    return torch.stack([adj_t.col_indices().long(), rows]), adj_t.values()


def entry_order(edges: Tensor, num_sources: int) -> Tensor:
    """Return the order ``[E]`` in which edges ``[2, E]`` are the entries of a matrix: by target, then by source."""
    return (edges[1] * num_sources + edges[0]).argsort(stable=True)


def csr_matrix(edges: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """Return edges as a CSR matrix with a row for each target.

    Args:
        edges: Sources and targets ``[2, E]``, in any order; what is there twice stays so.
        values: A value for each, ``[E, *]``.
        size: Numbers of targets and of sources.
    """
    order = entry_order(edges, size[1])
    starts = torch.zeros(size[0] + 1, dtype=torch.long, device=edges.device)
    starts[1:] = torch.bincount(edges[1], minlength=size[0]).cumsum(0)
    shape = (*size, *values.shape[1:])
    return torch.sparse_csr_tensor(starts, edges[0][order], values[order], shape, check_invariants=False)


def sparse_parts(adj_t: Tensor) -> dict[str, Tensor]:
    """Return the dense tensors that a CSR or COO matrix consists of, by name."""
    if adj_t.layout == torch.sparse_coo:
        return {"indices": adj_t._indices(), "values": adj_t._values()}
    return {"crow_indices": adj_t.crow_indices(), "col_indices": adj_t.col_indices(), "values": adj_t.values()}


def edge_list(store: Any) -> Tensor:
    """Return the edges ``[2, E]`` of a checked graph's store: its ``edge_index``, or the entries of ``adj_t`` if it has only that."""
    edge_index = store.get("edge_index")
    return entries(store.adj_t)[0] if edge_index is None else edge_index


def all_edges(store: Any) -> Tensor:
    """Return the edges of a checked graph's store that rows travel along: those of ``edge_index``, then the entries of ``adj_t``."""
    edge_index = store.get("edge_index")
    given = [] if edge_index is None else [edge_index]
    if "adj_t" in store:
        given.append(entries(store.adj_t)[0])
    return given[0] if len(given) == 1 else torch.cat(given, dim=1)


def num_all_edges(store: Any) -> int:
    """Return the number of :func:`all_edges`."""
    edge_index = store.get("edge_index")
    num_entries = store.adj_t.values().size(0) if "adj_t" in store else 0
    return num_entries + (0 if edge_index is None else int(edge_index.size(1)))


def with_adjacency(part: Any) -> Data:
    """Return a shallow copy of a part with ``adj_t``, unless it has one.

    It is what ``ToSparseTensor(layout=torch.sparse_csr)`` of PyG makes of the whole graph, this part's rows of it:
    ``edge_weight`` are its values, added up where an edge is there more than once; without weights all are 1.

    Args:
        part: A part with ``edge_index`` ``[2, E]``, :math:`n` own and :math:`H` halo nodes.

    Returns:
        The part with ``adj_t``, a CSR matrix ``[n, n + H]`` from own and halo nodes to own nodes.

    Raises:
        ValueError: If ``edge_weight`` has several columns.
        TypeError: If the part is heterogeneous.

    Example:
        >>> from lightning_gnncomm.graph import trivial_part
        >>> part = trivial_part(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=torch.tensor([0.5, 2.0])))
        >>> with_adjacency(part).adj_t.to_dense().tolist()
        [[0.0, 2.0], [0.5, 0.0]]
    """
    if isinstance(part, HeteroData):
        raise TypeError("Expected a homogeneous graph for layout='csr', got a HeteroData. Use layout='coo'.")
    if "adj_t" in part:
        return part
    plan: HaloPlan = part.halo
    assert part.edge_index is not None
    weight = part.get("edge_weight")
    if weight is not None and weight.dim() > 1 and weight.size(1) > 1:
        raise ValueError(
            f"Expected one edge_weight an edge for layout='csr', got shape {list(weight.shape)}. Use layout='coo'."
        )
    size = (plan.num_local, plan.num_local + plan.num_halo)
    source, target = part.edge_index
    key, place = (target * size[1] + source).unique(return_inverse=True)
    if weight is None:
        x = part.get("x")
        known = isinstance(x, Tensor) and x.is_floating_point()
        values = torch.ones(key.numel(), dtype=x.dtype if known else None, device=source.device)
    else:
        values = weight.new_zeros(key.numel()).index_add_(0, place, weight.detach().reshape(-1))
    edges = torch.stack([key % max(size[1], 1), key // max(size[1], 1)])
    extended: Data = copy.copy(part)
    extended.adj_t = csr_matrix(edges, values, size)
    return extended
