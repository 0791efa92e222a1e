"""Small changes to a graph that belong to its choice rather than to a model: features, and which of several splits."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from lightning_gnncomm.graph.adjacency import edge_list
from lightning_gnncomm.graph.check import check_graph

__all__ = ["GraphFacts", "graph_facts", "prepare_graph"]

_MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class GraphFacts:
    """What a model must know of a graph before it is built.

    Args:
        num_nodes: Number of nodes.
        num_edges: Number of edges as stored.
        num_features: Features per node, 0 without ``x``.
        num_classes: Classes, or targets per node if they are several; 0 without ``y``.
        multi_label: Whether a node has several targets: ``y`` is ``[N, K]`` with ``K > 1``.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    multi_label: bool


def graph_facts(data: Data) -> GraphFacts:
    """Return the facts of a whole graph.

    Example:
        >>> data = Data(x=torch.ones(3, 2), y=torch.tensor([0, 2, -1]), edge_index=torch.empty(2, 0, dtype=torch.long))
        >>> graph_facts(data).num_classes
        3
    """
    y = data.get("y")
    multi_label = isinstance(y, Tensor) and y.dim() == 2 and y.size(1) > 1
    if not isinstance(y, Tensor) or not y.numel():
        num_classes = 0
    elif multi_label or y.is_floating_point():
        num_classes = y.size(1) if y.dim() == 2 else 1
    else:
        num_classes = max(int(y.max()) + 1, 0)
    assert data.num_nodes is not None
    return GraphFacts(data.num_nodes, data.num_edges, data.num_node_features, num_classes, multi_label)


def prepare_graph(
    data: Data, *, normalize_features: bool = False, split: int | None = None, add_features: str | None = None
) -> Data:
    """Return a checked shallow copy of a graph with the changes asked for.

    Args:
        data: The whole graph.
        normalize_features: Divide each row of ``x`` by its sum (rows that sum to 0 stay).
        split: Column of ``train_masks``, ``val_masks`` and ``test_masks`` ``[N, K]``, or of such ``train_mask`` etc., to use as the
            masks ``[N]``. By default masks stay as they are.
        add_features: For a graph without ``x``: ``"degree"`` makes it ``log(1 + in-degree)``, ``"constant"`` ones, ``[N, 1]``.
            By default such a graph keeps having no ``x``.

    Raises:
        ValueError: If there are no features to normalise, ``x`` exists already, or there is no such split.

    Example:
        >>> data = Data(x=torch.tensor([[1.0, 3.0]]), edge_index=torch.empty(2, 0, dtype=torch.long))
        >>> prepare_graph(data, normalize_features=True).x.tolist()
        [[0.25, 0.75]]
    """
    graph = check_graph(data)
    if add_features is not None:
        graph.x = _new_features(graph, add_features)
    if normalize_features:
        if not isinstance(graph.x, Tensor):
            raise ValueError("Expected features to normalise, got a graph without x. Use normalize_features=False.")
        total = graph.x.sum(dim=1, keepdim=True)
        graph.x = torch.where(total == 0, graph.x, graph.x / torch.where(total == 0, torch.ones_like(total), total))
    if split is not None:
        graph = _choose_split(graph, split)
    return graph


def _new_features(graph: Data, kind: str) -> Tensor:
    if graph.x is not None:
        raise ValueError(f"Expected a graph without x to add features to, got x of shape {list(graph.x.shape)}.")
    assert graph.num_nodes is not None
    if kind == "constant":
        return torch.ones(graph.num_nodes, 1)
    if kind == "degree":
        return torch.bincount(edge_list(graph)[1], minlength=graph.num_nodes).float().log1p().unsqueeze(1)
    raise ValueError(f"Expected add_features to be 'degree', 'constant' or None, got {kind!r}.")


def _choose_split(graph: Data, split: int) -> Data:
    graph = copy.copy(graph)
    for name in _MASKS:
        many: Any = graph.get(f"{name}s", graph.get(name))
        if not isinstance(many, Tensor) or many.dim() != 2:
            raise ValueError(f"Expected several splits, {name}s of shape [N, K], to choose split {split} of; got none.")
        if not 0 <= split < many.size(1):
            raise ValueError(f"Expected a split in 0..{many.size(1) - 1}, got {split}.")
        graph[name] = many[:, split]
        if f"{name}s" in graph:
            del graph[f"{name}s"]
    return graph
