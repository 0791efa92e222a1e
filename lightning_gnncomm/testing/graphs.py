"""Toy graphs."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

__all__ = ["random_graph"]


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
