"""The loader of a part."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from lightning_gnncomm.graph.typed import Graph

__all__ = ["PartLoader"]


class PartLoader:
    """A loader of one batch, the part; no list, which Lightning would take for several loaders.

    Each pass yields a shallow copy, so that what a model sets on ``batch`` is gone in the next step; tensors and plans are shared.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from lightning_gnncomm.graph import trivial_part
        >>> loader = PartLoader(trivial_part(Data(edge_index=torch.tensor([[0], [1]]))))
        >>> len(loader), next(iter(loader)).num_nodes
        (1, 2)
    """

    def __init__(self, part: Graph) -> None:
        self.part = part

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Graph]:
        yield copy.copy(self.part)
