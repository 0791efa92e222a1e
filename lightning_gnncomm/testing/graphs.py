"""Toy graphs."""

from __future__ import annotations

import torch
from torch_geometric.data import Data, HeteroData

__all__ = ["random_graph", "random_hetero_graph"]


def random_graph(
    num_nodes: int = 40,
    num_edges: int = 160,
    num_features: int = 6,
    num_classes: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Data:
    """Return a seeded random directed graph with self-loops, duplicate edges, edge weights, labels and masks.

    Returns:
        ``x [N, F]``, ``edge_index [2, E]``, ``edge_weight [E]`` in ``(0.5, 1.5)``, ``y [N]`` and three boolean masks ``[N]``.

    Example:
        >>> random_graph(10, 30).edge_index.shape
        torch.Size([2, 30])
    """
    generator = torch.Generator().manual_seed(seed)
    split = torch.randint(3, (num_nodes,), generator=generator)
    return Data(
        x=torch.randn(num_nodes, num_features, generator=generator, dtype=dtype),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
        edge_weight=torch.rand(num_edges, generator=generator, dtype=dtype) + 0.5,
        y=torch.randint(num_classes, (num_nodes,), generator=generator),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
    )


def random_hetero_graph(
    num_papers: int = 30,
    num_features: int = 6,
    num_classes: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> HeteroData:
    """Return a seeded random graph of papers, authors and a few venues, with labels and masks on papers.

    Returns:
        Node types ``"paper"`` (``N``), ``"author"`` (``2 N / 3``) and ``"venue"`` (4), each with ``x``, the first with ``y`` and three
        boolean masks. Edge types ``("author", "writes", "paper")``, ``("paper", "cites", "paper")``, ``("paper", "written_by",
        "author")``, ``("venue", "hosts", "paper")`` and ``("paper", "in", "venue")``, each with ``edge_weight`` in ``(0.5, 1.5)``.

    Example:
        >>> graph = random_hetero_graph()
        >>> graph.node_types, graph["author", "writes", "paper"].edge_index.shape
        (['paper', 'author', 'venue'], torch.Size([2, 60]))
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = {"paper": num_papers, "author": 2 * num_papers // 3, "venue": 4}
    degrees = {
        ("author", "writes", "paper"): 2,
        ("paper", "cites", "paper"): 3,
        ("paper", "written_by", "author"): 2,
        ("venue", "hosts", "paper"): 1,
        ("paper", "in", "venue"): 1,
    }
    graph = HeteroData()
    for name, size in sizes.items():
        graph[name].x = torch.randn(size, num_features, generator=generator, dtype=dtype)
    for (source, relation, target), degree in degrees.items():
        num_edges = degree * num_papers
        ends = [torch.randint(sizes[end], (num_edges,), generator=generator) for end in (source, target)]
        graph[source, relation, target].edge_index = torch.stack(ends)
        weight = torch.rand(num_edges, generator=generator, dtype=dtype) + 0.5
        graph[source, relation, target].edge_weight = weight
    split = torch.randint(3, (num_papers,), generator=generator)
    graph["paper"].y = torch.randint(num_classes, (num_papers,), generator=generator)
    for place, stage in enumerate(("train", "val", "test")):
        graph["paper"][f"{stage}_mask"] = split == place
    return graph
