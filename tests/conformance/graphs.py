"""The graphs that every configuration is tried on: small, directed, with everything that goes wrong on real ones."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToSparseTensor

from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.typed import Assignment, Graph
from lightning_gnncomm.testing import random_hetero_graph

__all__ = ["HETERO_METADATA", "NUM_NODES", "NUM_RELATIONS", "assignment_of", "graph"]

NUM_NODES, NUM_EDGES, NUM_RELATIONS = 40, 150, 3
HETERO_METADATA = random_hetero_graph().metadata()
"""Node and edge types of the graph of kind ``"hetero"``."""


def _edges(generator: torch.Generator) -> Tensor:
    """Random edges with self-loops, one of them doubled, duplicates, a node without in-edges and one without any edge."""
    edges = torch.randint(NUM_NODES, (2, NUM_EDGES), generator=generator)
    edges = edges[:, (edges[1] != 3) & (edges != 5).all(0)]
    loops = torch.tensor([0, 1, 1, 7, 20, 33]).expand(2, -1)
    edges = torch.cat([edges, loops, edges[:, :10]], dim=1)
    return edges[:, torch.randperm(edges.size(1), generator=generator)]


def _mesh(generator: torch.Generator) -> Tensor:
    """Four in-edges for each node, in the node's order (what MeshCNN reads)."""
    source = torch.randint(NUM_NODES, (4 * NUM_NODES,), generator=generator)
    return torch.stack([source, torch.arange(NUM_NODES).repeat_interleave(4)])


@functools.cache
def graph(kind: str = "random") -> Graph:
    """Return a graph with every attribute a recipe can ask for.

    Args:
        kind: ``"random"``; ``"sorted"`` by destination; ``"simple"``, without self-loops and duplicates; ``"undirected"``, the
            same in both directions; ``"mesh"``, with four in-edges a node; ``"adj_t"``, whose edges are the entries of a CSR
            matrix and nowhere else; or ``"hetero"``, of three node types and five edge types.

    Returns:
        Nodes: ``x [N, 6]``, ``x_0 [N, 6]``, ``pos`` and ``normal [N, 3]``, ``one_hot [N, 4]``, ``node_type [N]``, ``y [N]``,
        ``mask [N]``, ``weight [N, 16]`` (of the loss). Edges: ``edge_index``, ``edge_weight``, ``edge_attr [E, 4]`` in (0, 1),
        ``edge_pos [E, 2]`` in (0, 1), ``edge_type [E]``, ``edge_id [E]``. Each type of a heterogeneous graph has ``x`` and ``weight``,
        or ``edge_index``, ``edge_weight`` and ``edge_id``.
    """
    if kind == "hetero":
        return _hetero()
    generator = torch.Generator().manual_seed(0)
    edges = _mesh(generator) if kind == "mesh" else _edges(generator)
    if kind == "adj_t":
        edges = edges.unique(dim=1)  # attributes belong to entries, of which there is one where edges were doubled
    if kind in ("simple", "undirected"):
        edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    if kind == "undirected":
        edges = torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
    if kind == "sorted":
        edges = edges[:, edges[1].argsort(stable=True)]
    n, e = NUM_NODES, edges.size(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=torch.float64) * 0.98 + 0.01

    def integers(high: int, size: int) -> Tensor:
        return torch.randint(high, (size,), generator=generator)

    data = Data(
        x=normal(n, 6),
        x_0=normal(n, 6),
        pos=normal(n, 3),
        normal=torch.nn.functional.normalize(normal(n, 3), dim=1),
        one_hot=torch.eye(4, dtype=torch.float64)[integers(4, n)],
        node_type=integers(2, n),
        y=integers(3, n),
        mask=integers(2, n).bool(),
        weight=normal(n, 16),
        edge_index=edges,
        edge_weight=uniform(e) + 0.5,
        edge_attr=uniform(e, 4),
        edge_pos=uniform(e, 2),
        edge_type=integers(NUM_RELATIONS, e),
        edge_id=torch.arange(e),
    )
    if kind != "adj_t":
        return data
    data.edge_value = data.edge_weight.clone()  # the transform takes the weights away
    data = ToSparseTensor(layout=torch.sparse_csr)(data)
    data.edge_id = torch.arange(e)
    return data


def _hetero() -> HeteroData:
    """Papers, authors and venues; METIS leaves one of three parts without a venue."""
    data, generator = random_hetero_graph(dtype=torch.float64), torch.Generator().manual_seed(0)
    for store in data.node_stores:
        store.weight = torch.randn(store.x.size(0), 16, generator=generator, dtype=torch.float64)
    for store in data.edge_stores:
        store.edge_id = torch.arange(store.edge_index.size(1))
    return data


@functools.cache
def assignment_of(kind: str, num_parts: int) -> Assignment:
    """Return the part of each node, by METIS."""
    return assign(graph(kind), num_parts)
