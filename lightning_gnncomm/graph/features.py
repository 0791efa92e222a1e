"""Small changes to a graph that belong to its choice rather than to a model: features, and which of several splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_gnncomm.graph.adjacency import edge_list
from lightning_gnncomm.graph.check import check_graph
from lightning_gnncomm.graph.typed import (
    Graph,
    GraphT,
    TypeName,
    edge_types,
    ends,
    node_types,
    of_type,
    stores,
    untyped,
)

__all__ = ["GraphFacts", "graph_facts", "prepare_graph"]

_MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class GraphFacts:
    """What a model must know of a graph before it is built.

    Args:
        num_nodes: Number of nodes, of all types together.
        num_edges: Number of edges as stored, of all types together.
        num_features: Features per node, 0 without ``x``; of a heterogeneous graph a dict of one number per node type.
        num_classes: Classes, or targets per node if they are several; 0 without ``y``. Of a heterogeneous graph those of the node
            type that has ``y``, or a dict by node type if several have one.
        multi_label: Whether a node has several targets: ``y`` is ``[N, K]`` with ``K > 1``, in any node type.
    """

    num_nodes: int
    num_edges: int
    num_features: int | dict[str, int]
    num_classes: int | dict[str, int]
    multi_label: bool


def graph_facts(data: Graph) -> GraphFacts:
    """Return the facts of a whole graph.

    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.ones(3, 2), y=torch.tensor([0, 2, -1]), edge_index=torch.empty(2, 0, dtype=torch.long))
        >>> graph_facts(data).num_classes
        3
    """
    of_nodes = {name: stores(data)[name] for name in node_types(data)}
    targets = {name: store["y"] for name, store in of_nodes.items() if isinstance(store.get("y"), Tensor)}
    classes = {name: _num_classes(y) for name, y in targets.items()}
    num_nodes, num_edges = data.num_nodes, data.num_edges
    assert num_nodes is not None
    return GraphFacts(
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_features=untyped({name: store.num_node_features for name, store in of_nodes.items()}),
        num_classes=classes if len(classes) > 1 else next(iter(classes.values()), 0),
        multi_label=any(_has_several(y) for y in targets.values()),
    )


def _num_classes(y: Tensor) -> int:
    if not y.numel():
        return 0
    if _has_several(y) or y.is_floating_point():
        return y.size(1) if y.dim() == 2 else 1
    return max(int(y.max()) + 1, 0)


def _has_several(y: Tensor) -> bool:
    return y.dim() == 2 and y.size(1) > 1


def prepare_graph(
    data: GraphT,
    *,
    normalize_features: bool | Sequence[str] = False,
    split: int | None = None,
    add_features: str | None = None,
) -> GraphT:
    """Return a checked shallow copy of a graph with the changes asked for.

    Args:
        data: The whole graph.
        normalize_features: Divide each row of ``x`` by its sum (rows that sum to 0 stay). Of a heterogeneous graph the ``x`` of each
            node type that has one, or of the node types named.
        split: Column of ``train_masks``, ``val_masks`` and ``test_masks`` ``[N, K]``, or of such ``train_mask`` etc., to use as the
            masks ``[N]``. By default masks stay as they are.
        add_features: For a graph without ``x``, or node types without: ``"degree"`` makes it ``log(1 + in-degree)`` over edges of
            all types, ``"constant"`` ones, ``[N, 1]``. By default such a graph keeps having no ``x``.

    Raises:
        ValueError: If there are no features to normalise, no node type lacks ``x``, or there is no such split.

    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.tensor([[1.0, 3.0]]), edge_index=torch.empty(2, 0, dtype=torch.long))
        >>> prepare_graph(data, normalize_features=True).x.tolist()
        [[0.25, 0.75]]
    """
    graph: GraphT = check_graph(data)
    if add_features is not None:
        _add_features(graph, add_features)
    if normalize_features:
        _normalize(graph, normalize_features)
    if split is not None:
        _choose_split(graph, split)
    return graph


def _normalize(graph: Graph, chosen: bool | Sequence[str]) -> None:
    with_x = [name for name in node_types(graph) if isinstance(stores(graph)[name].get("x"), Tensor)]
    if not with_x:
        raise ValueError("Expected features to normalise, got a graph without x. Use normalize_features=False.")
    names = with_x if isinstance(chosen, bool) else list(chosen)
    for name in names:
        if name not in with_x:
            raise ValueError(
                f"Expected normalize_features to be True, False or node types with x, {with_x}, got {name!r}."
            )
        store = stores(graph)[name]
        total = store.x.sum(dim=1, keepdim=True)
        store.x = torch.where(total == 0, store.x, store.x / torch.where(total == 0, torch.ones_like(total), total))


def _add_features(graph: Graph, kind: str) -> None:
    store = stores(graph)
    without_x = [name for name in node_types(graph) if store[name].get("x") is None]
    if not without_x:
        shapes = [f"x{of_type(name)} of shape {list(store[name].x.shape)}" for name in node_types(graph)]
        raise ValueError(f"Expected a graph without x to add features to, got {', '.join(shapes)}.")
    for name in without_x:
        store[name].x = _new_features(graph, name, kind)


def _new_features(graph: Graph, name: TypeName, kind: str) -> Tensor:
    store = stores(graph)
    num_nodes = store[name].num_nodes
    if kind == "constant":
        return torch.ones(num_nodes, 1)
    if kind == "degree":
        into = [edge_list(store[relation])[1] for relation in edge_types(graph) if ends(relation)[1] == name]
        degree = sum((torch.bincount(ids, minlength=num_nodes) for ids in into), torch.zeros(num_nodes))
        return degree.float().log1p().unsqueeze(1)
    raise ValueError(f"Expected add_features to be 'degree', 'constant' or None, got {kind!r}.")


def _choose_split(graph: Graph, split: int) -> None:
    """Choose a split in each node type that has several; one at least must."""
    of_nodes = [stores(graph)[name] for name in node_types(graph)]
    masked = [store for store in of_nodes if any(name in store or f"{name}s" in store for name in _MASKS)]
    for store in masked or of_nodes:
        for name in _MASKS:
            many: Any = store.get(f"{name}s", store.get(name))
            if not isinstance(many, Tensor) or many.dim() != 2:
                raise ValueError(
                    f"Expected several splits, {name}s of shape [N, K], to choose split {split} of; got none."
                )
            if not 0 <= split < many.size(1):
                raise ValueError(f"Expected a split in 0..{many.size(1) - 1}, got {split}.")
            store[name] = many[:, split]
            if f"{name}s" in store:
                del store[f"{name}s"]
