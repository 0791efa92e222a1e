"""One-line drop-in: a user's own loader of one full graph becomes a loader of this rank's part."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.lightning import LightningNodeData

from lightning_gnncomm.data.loader import PartLoader
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.fingerprint import add_tensor
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.graph.typed import Assignment, Graph, stores

__all__ = ["DropIn", "find_part", "let_full_loader_pass"]


def find_part(*candidates: Any) -> Graph | None:
    """Return the first part of a graph (a ``Data`` or ``HeteroData`` with a ``halo`` plan) among step arguments."""
    for candidate in candidates:
        if isinstance(candidate, (Data, HeteroData)) and "halo" in candidate:
            return candidate
        if isinstance(candidate, dict):
            candidate = list(candidate.values())
        if isinstance(candidate, (list, tuple)) and (found := find_part(*candidate)) is not None:
            return found
    return None


class DropIn:
    """Partitions graphs found in loaders; the same graph in several loaders becomes one part.

    Args:
        strategy: Whose ranks get a part each.
    """

    def __init__(self, strategy: ParallelStrategy) -> None:
        self._strategy = strategy
        self._parts: dict[str, Graph] = {}

    def part_loader(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return a loader of this rank's part of the one graph that ``loader`` yields.

        Raises:
            TypeError: If the loader yields something else than a ``Data`` or ``HeteroData``.
            ValueError: If it yields no or several graphs, or not the same graph on all ranks.
        """
        if isinstance(loader, PartLoader):
            return loader
        items = list(itertools.islice(loader, 2))
        if len(items) != 1:
            raise ValueError(
                f"A halo strategy trains on one graph, but the loader {type(loader).__name__} yields "
                f"{'no batch' if not items else 'several'}. Give it one full-graph Data or HeteroData, without neighbour sampling."
            )
        graph = items[0]
        if find_part(graph) is not None:
            return loader
        if not isinstance(graph, (Data, HeteroData)):
            raise TypeError(
                f"A halo strategy needs a loader of one torch_geometric Data or HeteroData, but {type(loader).__name__} yields "
                f"{type(graph).__name__}. See GraphDataModule."
            )
        key = self._agree(graph)
        if key not in self._parts:
            rank, world_size = self._strategy.global_rank, self._strategy.world_size
            # Loaders of a sanity check are processed under inference_mode, but the part serves training too.
            with torch.inference_mode(False):
                part = build_part(graph, self._assign(graph), rank, world_size)
                self._parts[key] = part.to(self._strategy.root_device)
            rank_zero_info(
                f"Partitioned the loader's graph ({graph.num_nodes} nodes) into {world_size} parts. Every rank holds the "
                f"whole graph to do so; for graphs that do not fit, GraphDataModule lets each rank read its part only."
            )
        return PartLoader(self._parts[key])

    def _agree(self, graph: Graph) -> str:
        """Return a digest of the graph, which must be the same on all ranks."""
        digest = _digest(graph)
        if not self._strategy.reduce_boolean_decision(digest == self._strategy.broadcast(digest)):
            raise ValueError(
                "The ranks loaded different graphs, so their parts would not fit together. Load or generate the graph from the "
                "same files and seed on every rank."
            )
        return digest

    def _assign(self, graph: Graph) -> Assignment:
        result: Assignment | Exception
        if self._strategy.global_rank == 0:
            try:
                result = assign(graph, self._strategy.world_size)
            except Exception as error:  # noqa: BLE001  # all ranks raise what rank 0 met
                result = error
        else:
            result = torch.empty(0)
        result = self._strategy.broadcast(result)
        if isinstance(result, Exception):
            raise result
        return result


def _digest(graph: Graph) -> str:
    """Hash a graph for comparison between ranks; unlike a stored one it may have attributes of any kind."""
    digest = hashlib.blake2b(digest_size=16)
    for name, store in stores(graph).items():
        digest.update(f"{name!r}\0".encode())
        for key, value in sorted(store.items()):
            if isinstance(value, Tensor):
                add_tensor(digest, key, value)
            else:
                digest.update(f"{key}\0{value!r}\0".encode())
    return digest.hexdigest()


def let_full_loader_pass(trainer: pl.Trainer) -> Callable[[], None]:
    """Lift ``LightningNodeData(loader="full")``'s refusal of several devices, since the graph is partitioned here.

    Returns:
        What reverts it.
    """
    datamodule = getattr(trainer, "datamodule", None)
    if isinstance(datamodule, LightningNodeData) and datamodule.loader == "full":
        datamodule.prepare_data = lambda: None

    def revert() -> None:
        if isinstance(datamodule, LightningNodeData):
            vars(datamodule).pop("prepare_data", None)

    return revert
