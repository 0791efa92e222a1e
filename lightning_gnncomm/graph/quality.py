"""How good a partition is: what it cuts, how even it is, and what an exchange costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from torch_geometric.data import Data

from lightning_gnncomm.graph.adjacency import all_edges
from lightning_gnncomm.graph.check import check_assignment, check_graph
from lightning_gnncomm.graph.layout import PartitionLayout, partition_layout

__all__ = ["PartitionQuality", "partition_quality"]


@dataclass(frozen=True)
class PartitionQuality:
    """Figures of one partition of one graph.

    Args:
        num_parts: Number of parts ``P``.
        num_nodes: Number of nodes ``N``.
        num_edges: Number of edges ``E`` as stored: an undirected edge counts twice, as does one in ``edge_index`` and ``adj_t``.
        edge_cut: Edges between different parts.
        nodes: Own nodes of each part.
        edges: Edges into each part.
        train_nodes: Training nodes of each part, all zero without a ``train_mask``.
        halo_rows: Rows each part receives in one exchange.
    """

    num_parts: int
    num_nodes: int
    num_edges: int
    edge_cut: int
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    train_nodes: tuple[int, ...]
    halo_rows: tuple[int, ...]

    @property
    def cut_fraction(self) -> float:
        """Share of the edges that are cut, 0 to 1."""
        return self.edge_cut / max(self.num_edges, 1)

    @property
    def rows_on_wire(self) -> int:
        """Rows that all parts together receive in one exchange."""
        return sum(self.halo_rows)

    @property
    def halo_ratio(self) -> float:
        """Rows on the wire per node of the graph."""
        return self.rows_on_wire / self.num_nodes

    @property
    def node_balance(self) -> float:
        """Nodes of the largest part over the mean; 1 is even."""
        return _balance(self.nodes)

    @property
    def edge_balance(self) -> float:
        """Edges of the largest part over the mean; 1 is even."""
        return _balance(self.edges)

    @property
    def train_balance(self) -> float:
        """Training nodes of the part with most over the mean; 1 is even."""
        return _balance(self.train_nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures in a form that JSON can hold."""
        ratios = ("cut_fraction", "halo_ratio", "rows_on_wire", "node_balance", "edge_balance", "train_balance")
        return asdict(self) | {name: getattr(self, name) for name in ratios}

    @classmethod
    def from_dict(cls, figures: dict[str, Any]) -> PartitionQuality:
        """Return the figures that :meth:`to_dict` wrote."""
        values: dict[str, Any] = {name: figures[name] for name in cls.__dataclass_fields__}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**values)

    def table(self, max_rows: int = 16) -> Table:
        """Return a table of the parts, the first ``max_rows`` of them, with the totals in its caption."""
        title = f"{self.num_nodes:,} nodes and {self.num_edges:,} edges in {self.num_parts} parts"
        caption = (
            f"cut {self.edge_cut:,} edges ({self.cut_fraction:.1%}), halo ratio {self.halo_ratio:.3f}, "
            f"{self.rows_on_wire:,} rows on the wire per exchange\n"
            f"largest part over mean: nodes {self.node_balance:.2f}, edges {self.edge_balance:.2f}, "
            f"training nodes {self.train_balance:.2f}"
        )
        table = Table(title=title, caption=caption, min_width=72)  # so that the caption keeps its lines
        for heading in ("part", "nodes", "edges", "training nodes", "halo rows"):
            table.add_column(heading, justify="right")
        columns = (self.nodes, self.edges, self.train_nodes, self.halo_rows)
        for part in range(min(self.num_parts, max_rows)):
            table.add_row(str(part), *(f"{column[part]:,}" for column in columns))
        if self.num_parts > max_rows:
            table.add_row(*["..."] * 5)
        table.add_section()
        table.add_row("all", *(f"{sum(column):,}" for column in columns))
        return table


def partition_quality(
    data: Data, assignment: Tensor, num_parts: int | None = None, *, layout: PartitionLayout | None = None
) -> PartitionQuality:
    """Measure a partition.

    Args:
        data: The whole graph, ``N`` nodes.
        assignment: Part of each node, shape ``[N]``.
        num_parts: Number of parts, the largest id plus one by default.
        layout: The layout of this graph and assignment if it is known already.

    Raises:
        TypeError, ValueError: If the graph or the assignment is wrong.

    Example:
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> quality = partition_quality(ring, torch.tensor([0, 0, 1, 1]))
        >>> quality.edge_cut, quality.halo_rows
        (2, (1, 1))
    """
    graph = check_graph(data)
    assert graph.num_nodes is not None
    if num_parts is None:
        num_parts = int(assignment.max()) + 1
    assignment = check_assignment(assignment, graph.num_nodes, num_parts)
    if layout is None:
        layout = partition_layout(all_edges(graph), assignment, num_parts)
    nodes, edges = np.diff(layout.node_start), np.diff(layout.edge_start)
    # Halo nodes follow own nodes, so an edge is cut where its local source lies beyond them.
    cut = int((layout.edge_local[0] >= np.repeat(nodes, edges)).sum())
    train = torch.zeros(num_parts, dtype=torch.long)
    mask = graph.get("train_mask")
    if mask is not None:
        any_split = mask.cpu().reshape(graph.num_nodes, -1).any(dim=1)
        train = torch.bincount(assignment[any_split], minlength=num_parts)
    return PartitionQuality(
        num_parts=num_parts,
        num_nodes=graph.num_nodes,
        num_edges=layout.edge_id.size,
        edge_cut=cut,
        nodes=tuple(nodes.tolist()),
        edges=tuple(edges.tolist()),
        train_nodes=tuple(train.tolist()),
        halo_rows=tuple(layout.halo_count.sum(axis=1).tolist()),
    )


def _balance(amounts: tuple[int, ...]) -> float:
    total = sum(amounts)
    return max(amounts) * len(amounts) / total if total else 1.0
