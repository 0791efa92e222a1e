"""Graphs for the tests of this folder."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data


def _random_graph(nodes: int = 40, edges: int = 200, seed: int = 0) -> Data:
    """A directed graph with self-loops, duplicate edges, isolated nodes and every kind of attribute."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.randint(0, max(nodes * 3 // 4, 1), (2, edges), generator=generator)  # the last quarter is isolated
    low[:, : edges // 10] = low[:, edges // 10 : 2 * (edges // 10)]  # duplicates
    low[1, -edges // 10 :] = low[0, -edges // 10 :]  # self-loops
    return Data(
        x=torch.randn(nodes, 3, generator=generator),
        edge_index=low,
        edge_weight=torch.rand(edges, generator=generator),
        edge_attr=torch.randn(edges, 2, generator=generator),
        edge_type=torch.randint(0, 3, (edges,), generator=generator),
        y=torch.randint(0, 4, (nodes,), generator=generator),
        train_mask=torch.rand(nodes, generator=generator) < 0.3,
        scale=torch.tensor(2.5),
        title="random",
    )


@pytest.fixture
def random_graph() -> Callable[..., Data]:
    return _random_graph


@pytest.fixture
def graph() -> Data:
    return _random_graph()


@pytest.fixture
def real_graph() -> Callable[[str], str]:
    """The name of a graph of the shared collection; skips where the collection is absent."""

    def find(name: str) -> str:
        folder = Path(os.environ.get("GNNCOMM_DATA", Path(__file__).parents[3] / "shared" / "data"))
        path = folder / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"needs {path}; set GNNCOMM_DATA to the folder of real graphs")
        return f"npz:{path}"

    return find
