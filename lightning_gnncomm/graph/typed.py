"""One view of homogeneous and heterogeneous graphs, so that what cuts and stores graphs is written once.

PyG keeps attributes in stores: a ``Data`` has one, a ``HeteroData`` one per node type, one per edge type and one for the graph. Here
the only node type and the only edge type of a ``Data`` are called ``None``, and so is the store of the graph's own attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from lightning_gnncomm.graph.adjacency import all_edges
from lightning_gnncomm.graph.pairs import pair_keys

__all__ = ["Assignment", "Graph", "GraphT", "JointIds", "TypeName", "by_type", "edge_types", "empty_graph"]
__all__ += ["empty_like", "ends", "joint_ids", "joint_values", "node_types", "of_type", "plain", "stores", "untyped"]

Graph: TypeAlias = Data | HeteroData
"""A graph of one node type and one edge type, or of several."""

GraphT = TypeVar("GraphT", bound=Data | HeteroData)

Assignment: TypeAlias = Tensor | Mapping[str, Tensor]
"""Part of each node ``[N]``; of a heterogeneous graph one such tensor per node type."""

TypeName: TypeAlias = Any
"""``None`` for a homogeneous graph, else a node type (a string) or an edge type (three strings)."""


def node_types(graph: Graph) -> list[TypeName]:
    """Return the node types in the graph's order, ``[None]`` for a homogeneous graph."""
    return list(graph.node_types) if isinstance(graph, HeteroData) else [None]


def edge_types(graph: Graph) -> list[TypeName]:
    """Return the edge types in the graph's order, ``[None]`` for a homogeneous graph."""
    return list(graph.edge_types) if isinstance(graph, HeteroData) else [None]


def ends(edge_type: TypeName) -> tuple[TypeName, TypeName]:
    """Return the node types of sources and destinations."""
    return (None, None) if edge_type is None else (edge_type[0], edge_type[2])


def stores(graph: Graph) -> dict[TypeName, Any]:
    """Return the stores by type: ``None`` first (the whole of a ``Data``), then node types, then edge types."""
    if not isinstance(graph, HeteroData):
        return {None: graph._store}
    return {None: graph._global_store, **dict(graph.node_items()), **dict(graph.edge_items())}


def empty_like(graph: Graph) -> Any:
    """Return a plain graph without attributes that has the same types in the same order."""
    return empty_graph(node_types(graph), edge_types(graph))


def empty_graph(nodes: Sequence[TypeName] = (None,), edges: Sequence[TypeName] = (None,)) -> Any:
    """Return a plain graph of these types without attributes, a ``Data`` by default."""
    if None in nodes:
        return Data()
    empty = HeteroData()
    for name in [*nodes, *map(tuple, edges)]:
        empty[name]  # PyG makes a store when it is asked for one
    return empty


def by_type(graph: Graph, value: Any) -> dict[TypeName, Any]:
    """Return what belongs to the nodes by node type: ``value`` itself if the graph is heterogeneous."""
    return dict(value) if isinstance(graph, HeteroData) else {None: value}


def untyped(values: dict[TypeName, Any]) -> Any:
    """Return the inverse of :func:`by_type`: the only value of a homogeneous graph, or a dict by node type."""
    return values.get(None, values)


def of_type(name: TypeName) -> str:
    """Return what follows an attribute's name in a message: nothing for a homogeneous graph."""
    return "" if name is None else f" of {name!r}"


def plain(edge_index: Any) -> Tensor:
    """Strip PyG's EdgeIndex, which carries facts about the whole graph (its size, its sort order)."""
    assert isinstance(edge_index, Tensor)
    return edge_index.as_subclass(Tensor)


@dataclass(frozen=True)
class JointIds:
    """The nodes of all types in one numbering, type after type, and the edges of all types in one list.

    The entries of a graph's ``adj_t`` follow the edges of its ``edge_index``, and pairs to be scored follow these if wanted.

    Args:
        node_start: Joint id of the first node of each type, and their number ``N``, length ``T + 1``.
        edge_start: Place of the first edge of each type, and their number ``E``, length ``R + 1``.
        edge_index: Joint ids of sources and destinations, shape ``[2, E]``, on the CPU.
    """

    node_start: tuple[int, ...]
    edge_start: tuple[int, ...]
    edge_index: Tensor


def joint_ids(graph: Graph, with_pairs: bool = False) -> JointIds:
    """Return the joint numbering of a checked graph; a homogeneous one shares its ``edge_index``.

    Args:
        graph: The checked graph.
        with_pairs: Whether pairs of nodes that are scored count as edges: their ends must be at hand, but say nothing of how the
            graph hangs together.

    Example:
        >>> graph = HeteroData({"a": {"num_nodes": 2}, "b": {"num_nodes": 1}})
        >>> graph["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 0]])
        >>> joint_ids(graph).edge_index.tolist()
        [[0, 1], [2, 2]]
    """
    store = stores(graph)
    names, relations = node_types(graph), edge_types(graph)
    node_start = _starts([store[name].num_nodes for name in names])
    edges = [plain(all_edges(store[relation])).detach().cpu() for relation in relations]
    if with_pairs:
        pairs = [[plain(store[relation][key]).cpu() for key in pair_keys(store[relation])] for relation in relations]
        edges = [torch.cat([ids, *more], dim=1) if more else ids for ids, more in zip(edges, pairs, strict=True)]
    edge_start = _starts([edge_index.size(1) for edge_index in edges])
    if not isinstance(graph, HeteroData):
        return JointIds(node_start, edge_start, edges[0])
    first = dict(zip(names, node_start, strict=False))
    shifts = [torch.tensor([[first[end]] for end in ends(relation)]) for relation in relations]
    shifted = [edge_index.long() + shift for edge_index, shift in zip(edges, shifts, strict=True)]
    return JointIds(node_start, edge_start, torch.cat([torch.empty(2, 0, dtype=torch.long), *shifted], dim=1))


def joint_values(graph: Graph, values: Mapping[TypeName, Tensor]) -> Tensor:
    """Return one value per node by joint id ``[N]`` from values by node type; those of a homogeneous graph are shared."""
    pieces = [values[name] for name in node_types(graph)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _starts(counts: list[int]) -> tuple[int, ...]:
    return (0, *np.cumsum(counts, dtype=np.int64).tolist())
