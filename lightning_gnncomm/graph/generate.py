"""Graphs made here: scikit-learn's digits as a k-NN graph, stochastic block models and R-MAT, all seeded and vectorised."""

from __future__ import annotations

import importlib
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, scatter, to_undirected

__all__ = ["GENERATOR_VERSION", "digits_graph", "rmat_graph", "sbm_graph"]

GENERATOR_VERSION = 1
"""Goes up when a generator returns another graph for the same arguments, so that stored partitions are not mixed up."""


def digits_graph(k: int = 10, train: int = 20, val: int = 30, seed: int = 0) -> Data:
    """Return scikit-learn's handwritten digits as a graph: each image is linked both ways to its nearest images.

    Args:
        k: Nearest neighbours per image by Euclidean distance; links are made symmetric.
        train: Training images per class.
        val: Validation images per class; the others are test images.
        seed: Seed of the split.

    Returns:
        1797 nodes, ``x`` ``[1797, 64]`` float32 in 0..1, ``y`` int64 of 10 classes, and three masks.

    Raises:
        ImportError: If scikit-learn is missing.
    """
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise ImportError("The graph 'digits' needs scikit-learn: pip install scikit-learn.") from error
    images, labels = datasets.load_digits(return_X_y=True)
    pixels = torch.from_numpy(np.asarray(images, dtype=np.float64))  # whole numbers 0..16, so distances are exact
    y = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    square = pixels.square().sum(dim=1)
    distance = square[:, None] + square[None, :] - 2 * pixels @ pixels.T
    distance.fill_diagonal_(torch.inf)
    nearest = distance.sort(dim=1, stable=True).indices[:, :k]  # ties go to the smaller id on every machine
    image = torch.arange(len(y)).repeat_interleave(k)
    edge_index = to_undirected(torch.stack([nearest.reshape(-1), image]), num_nodes=len(y))
    data = Data(x=(pixels / 16).float(), edge_index=edge_index, y=y, num_nodes=len(y))
    return _split_per_class(data, train, val, seed)


def sbm_graph(
    nodes: int = 1000,
    blocks: int = 4,
    p_in: float = 0.05,
    p_out: float = 0.005,
    features: int = 16,
    noise: float = 1.0,
    train: float = 0.1,
    val: float = 0.2,
    seed: int = 0,
) -> Data:
    """Return an undirected stochastic block model whose blocks are the classes.

    Args:
        nodes: Number of nodes, in blocks of equal size.
        blocks: Number of blocks, which are the classes.
        p_in: Probability of an edge inside a block.
        p_out: Probability of an edge between blocks.
        features: Number of features: the block's random centre plus noise.
        noise: Standard deviation of the noise; centres have 1.
        train: Share of training nodes.
        val: Share of validation nodes; the others are test nodes.
        seed: Seed of everything.
    """
    rng = np.random.default_rng(seed)
    y = np.arange(nodes) * blocks // nodes
    start = np.searchsorted(y, np.arange(blocks + 1))
    pairs = []
    for row, column in combinations_with_replacement(range(blocks), 2):
        height, width = start[row + 1] - start[row], start[column + 1] - start[column]
        cell = _bernoulli_positions(rng, int(height * width), p_in if row == column else p_out)
        pair = np.stack([start[row] + cell // width, start[column] + cell % width])
        pairs.append(pair[:, pair[0] < pair[1]])  # inside a block each unordered pair once, no self-loops
    edge_index = to_undirected(torch.from_numpy(np.concatenate(pairs, axis=1)), num_nodes=nodes)
    centre = rng.standard_normal((blocks, features))
    x = centre[y] + noise * rng.standard_normal((nodes, features))
    data = Data(x=torch.from_numpy(x).float(), edge_index=edge_index, y=torch.from_numpy(y), num_nodes=nodes)
    return _split(data, train, val, rng)


def rmat_graph(
    scale: int = 10,
    edge_factor: int = 8,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    features: int = 16,
    classes: int = 8,
    train: float = 0.1,
    val: float = 0.2,
    seed: int = 0,
) -> Data:
    """Return an undirected R-MAT graph, whose degrees are skewed as those of web and social graphs are.

    A node's class is the largest of ``classes`` random projections of its own features plus its neighbours' mean, so a message
    passing layer can learn it.

    Args:
        scale: Number of nodes as a power of two.
        edge_factor: Edges drawn per node; duplicates and self-loops are removed.
        a: Probability of the first quadrant; ``b`` and ``c`` of the second and third, the rest of the fourth.
        b: See ``a``.
        c: See ``a``.
        features: Number of features, standard normal.
        classes: Number of classes.
        train: Share of training nodes.
        val: Share of validation nodes; the others are test nodes.
        seed: Seed of everything.
    """
    rng = np.random.default_rng(seed)
    nodes, draws = 2**scale, 2**scale * edge_factor
    source, target = np.zeros(draws, np.int64), np.zeros(draws, np.int64)
    for _ in range(scale):
        quadrant = np.searchsorted(np.cumsum([a, b, c]), rng.random(draws), side="right")
        source, target = 2 * source + quadrant // 2, 2 * target + quadrant % 2
    name = rng.permutation(nodes)  # otherwise a low id means a high degree
    drawn, _ = remove_self_loops(torch.from_numpy(np.stack([name[source], name[target]])))
    edge_index = to_undirected(coalesce(drawn, num_nodes=nodes), num_nodes=nodes)
    x = torch.from_numpy(rng.standard_normal((nodes, features))).float()
    around = scatter(x[edge_index[0]], edge_index[1], dim=0, dim_size=nodes, reduce="mean")
    y = ((x + around) @ torch.from_numpy(rng.standard_normal((features, classes))).float()).argmax(dim=1)
    return _split(Data(x=x, edge_index=edge_index, y=y, num_nodes=nodes), train, val, rng)


def _bernoulli_positions(rng: np.random.Generator, cells: int, probability: float) -> NDArray[np.int64]:
    """Return the ascending positions of successes in ``cells`` trials, from the gaps between them: work by success, not by trial."""
    if not 0 <= probability <= 1:
        raise ValueError(f"Expected a probability between 0 and 1, got {probability}.")
    if not cells or not probability:
        return np.empty(0, np.int64)
    found: list[NDArray[np.int64]] = []
    last = -1
    while last < cells:
        expected = (cells - last) * probability
        gaps = rng.geometric(probability, size=int(expected + 4 * expected**0.5) + 8)
        found.append(last + np.cumsum(gaps))
        last = int(found[-1][-1])
    positions = np.concatenate(found)
    return positions[positions < cells]


def _split(data: Data, train: float, val: float, rng: np.random.Generator) -> Data:
    assert data.num_nodes is not None
    if train < 0 or val < 0 or train + val > 1:
        raise ValueError(
            f"Expected shares of training and validation nodes that sum to at most 1, got {train} and {val}."
        )
    place = torch.from_numpy(rng.permutation(data.num_nodes))
    first, second = round(train * data.num_nodes), round((train + val) * data.num_nodes)
    return _with_masks(data, place < first, (place >= first) & (place < second))


def _split_per_class(data: Data, train: int, val: int, seed: int) -> Data:
    assert isinstance(data.y, Tensor)
    rng = np.random.default_rng(seed)
    place = torch.empty_like(data.y)  # place of a node in the shuffled list of its class
    for label in range(int(data.y.max()) + 1):
        members = (data.y == label).nonzero().flatten()
        place[members] = torch.from_numpy(rng.permutation(len(members)))
    return _with_masks(data, place < train, (place >= train) & (place < train + val))


def _with_masks(data: Data, train_mask: Tensor, val_mask: Tensor) -> Data:
    data.train_mask, data.val_mask, data.test_mask = train_mask, val_mask, ~(train_mask | val_mask)
    return data
