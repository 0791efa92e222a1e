"""How good a partition is: what it cuts, how even it is, and what an exchange costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from lightning_gnncomm.graph.check import check_assignments, check_graph
from lightning_gnncomm.graph.layout import PartitionLayout
from lightning_gnncomm.graph.partition import lay_out
from lightning_gnncomm.graph.typed import Assignment, Graph, TypeName, by_type, node_types, stores

__all__ = ["PartitionQuality", "partition_quality"]


@dataclass(frozen=True)
class PartitionQuality:
    """Figures of one partition of one graph.

    Args:
        num_parts: Number of parts ``P``.
        num_nodes: Number of nodes ``N``.
        num_edges: Number of edges ``E`` as stored: an undirected edge counts twice, as does one in ``edge_index`` and ``adj_t``. All
            types together, as in what follows.
        edge_cut: Edges between different parts.
        nodes: Own nodes of each part.
        edges: Edges into each part.
        train_nodes: Training nodes of each part, all zero without a ``train_mask``.
        halo_rows: Rows each part receives in one exchange.
        nodes_by_type: Own nodes of each part by node type, empty for a homogeneous graph.
        halo_rows_by_type: Rows each part receives by node type, empty for a homogeneous graph.
    """

    num_parts: int
    num_nodes: int
    num_edges: int
    edge_cut: int
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    train_nodes: tuple[int, ...]
    halo_rows: tuple[int, ...]
    nodes_by_type: dict[str, tuple[int, ...]] = field(default_factory=dict)
    halo_rows_by_type: dict[str, tuple[int, ...]] = field(default_factory=dict)

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
        # A partition stored before there were types has no figures of them.
        return cls(**{name: _tuples(figures[name]) for name in cls.__dataclass_fields__ if name in figures})

    def table(self, max_rows: int = 16) -> Table:
        """Return a table of the parts, the first ``max_rows`` of them, with the totals in its caption."""
        title = f"{self.num_nodes:,} nodes and {self.num_edges:,} edges in {self.num_parts} parts"
        caption = (
            f"cut {self.edge_cut:,} edges ({self.cut_fraction:.1%}), halo ratio {self.halo_ratio:.3f}, "
            f"{self.rows_on_wire:,} rows on the wire per exchange\n"
            f"largest part over mean: nodes {self.node_balance:.2f}, edges {self.edge_balance:.2f}, "
            f"training nodes {self.train_balance:.2f}"
        )
        for name, nodes in self.nodes_by_type.items():
            caption += f"\n{name}: {sum(nodes):,} nodes, {min(nodes):,} to {max(nodes):,} a part"
            caption += f", {sum(self.halo_rows_by_type[name]):,} halo rows"
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
    data: Graph, assignment: Assignment, num_parts: int | None = None, *, layout: PartitionLayout | None = None
) -> PartitionQuality:
    """Measure a partition.

    Args:
        data: The whole graph, ``N`` nodes.
        assignment: Part of each node, shape ``[N]``; of a ``HeteroData`` a dict of one such tensor per node type.
        num_parts: Number of parts, the largest id plus one by default.
        layout: The layout of this graph and assignment if it is known already.

    Raises:
        TypeError, ValueError: If the graph or the assignment is wrong.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> quality = partition_quality(ring, torch.tensor([0, 0, 1, 1]))
        >>> quality.edge_cut, quality.halo_rows
        (2, (1, 1))
    """
    graph = check_graph(data)
    if num_parts is None:
        num_parts = 1 + max(int(part.max()) for part in by_type(graph, assignment).values() if len(part))
    checked = check_assignments(assignment, graph, num_parts)
    if layout is None:
        layout = lay_out(graph, checked, num_parts)
    nodes = np.diff(layout.node_start).reshape(-1, num_parts)
    edges = np.diff(layout.edge_start).reshape(-1, num_parts)
    halo = layout.halo_count.sum(axis=2).T
    names = [name for name in node_types(graph) if name is not None]
    return PartitionQuality(
        num_parts=num_parts,
        num_nodes=layout.type_start[-1],
        num_edges=layout.relation_start[-1],
        edge_cut=layout.edge_cut,
        nodes=tuple(nodes.sum(axis=0).tolist()),
        edges=tuple(edges.sum(axis=0).tolist()),
        train_nodes=_train_nodes(graph, checked, num_parts),
        halo_rows=tuple(halo.sum(axis=0).tolist()),
        nodes_by_type={name: tuple(row.tolist()) for name, row in zip(names, nodes, strict=False)},
        halo_rows_by_type={name: tuple(row.tolist()) for name, row in zip(names, halo, strict=False)},
    )


def _train_nodes(graph: Graph, assignment: Mapping[TypeName, Tensor], num_parts: int) -> tuple[int, ...]:
    train = torch.zeros(num_parts, dtype=torch.long)
    for name, part in assignment.items():
        mask = stores(graph)[name].get("train_mask")
        if mask is not None:
            in_any_split = (mask if mask.dim() == 1 else mask.flatten(1).any(dim=1)).cpu()
            train += torch.bincount(part[in_any_split], minlength=num_parts)
    return tuple(train.tolist())


def _tuples(value: Any) -> Any:
    """Return a value with tuples where JSON has lists."""
    if isinstance(value, dict):
        return {name: _tuples(entry) for name, entry in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _balance(amounts: tuple[int, ...]) -> float:
    total = sum(amounts)
    return max(amounts) * len(amounts) / total if total else 1.0
