"""Layers and models as users write them, and modules of torch that mix nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, degree, softmax

from tests.conformance.convs import each, typed
from tests.conformance.graphs import HETERO_METADATA, NUM_NODES
from tests.conformance.recipes import EDGES, WEIGHT, Later, Recipe, labelled, layer, opt, takes

__all__ = ["COMPOSITIONS"]

X = takes("x")


class OwnConv(pyg.MessagePassing):
    """A layer a user wrote, as PyG's documentation shows it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lin = nn.Linear(12, 6)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.propagate(edge_index, x=x, edge_weight=edge_weight)

    def message(self, x_i: Tensor, x_j: Tensor, edge_weight: Tensor | None) -> Tensor:
        out = self.lin(torch.cat([x_i, x_j - x_i], dim=-1)).tanh()
        return out if edge_weight is None else out * edge_weight[:, None]


class OwnAttention(pyg.MessagePassing):
    """A layer of a user with ``edge_updater``."""

    def __init__(self) -> None:
        super().__init__(node_dim=0)
        self.lin, self.att = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        alpha = self.edge_updater(edge_index, a=self.att(x), b=self.att(x * 2))
        return self.propagate(edge_index, x=x, alpha=alpha)

    def edge_update(self, a_j: Tensor, b_i: Tensor, index: Tensor, size_i: int | None) -> Tensor:
        return softmax((a_j + b_i).tanh(), index, num_nodes=size_i)

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return x_j * alpha


class RootInUpdate(OwnConv):
    """A layer of a user whose ``update`` reads the nodes."""

    def update(self, aggregated: Tensor, x: Tensor) -> Tensor:
        return aggregated + x


class RawInMessage(OwnConv):
    """A layer of a user that lifts rows to edges itself."""

    def message(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return self.lin(torch.cat([x[edge_index[0]], x[edge_index[1]]], dim=-1))


class OwnDegree(OwnConv):
    """A layer of a user that normalises by the degree of the source."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        degree = torch.bincount(edge_index[1], minlength=x.size(0)).clamp(min=1).to(x.dtype)
        return self.propagate(edge_index, x=x / degree[:, None], edge_weight=None)


class Tutorial(OwnConv):
    """The GCN of PyG's tutorial, which reads the degrees of source nodes by hand."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        root = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
        return self.propagate(edge_index, x=x, edge_weight=root[row] * root[col])


class OutDegree(OwnConv):
    """A layer of a user that divides by the out-degree of the source, which no rank knows of halo nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        out_degree = degree(edge_index[0], dtype=x.dtype)
        return self.propagate(edge_index, x=x, edge_weight=1 / out_degree[edge_index[0]])


class MeanOfNodes(OwnConv):
    """A layer of a user that subtracts the mean over nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x - x.mean(0), edge_weight=None)


class ByHand(nn.Module):
    """A layer of a user that is no MessagePassing."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], self.lin(x)[edge_index[0]])


class Twice(nn.Module):
    """One layer under two names, called three times."""

    def __init__(self, conv: Later) -> None:
        super().__init__()
        self.conv = conv.make()
        self.same = self.conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.same(self.conv(x, edge_index).tanh(), edge_index).tanh(), edge_index)


class OnAttributes(nn.Module):
    """A layer called on several tensors of the batch and on two edge sets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(6, 6)

    def forward(self, data: Data) -> Tensor:
        out = self.conv(data.x, data.edge_index) + self.conv(data.x_0, data.edge_index, data.edge_weight)
        return out * self.conv(data.x, data.edge_index[:, data.edge_type > 0])


class BothFlows(nn.Module):
    """Layers along and against the edges, on the same adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.along = pyg.GCNConv(6, 6)
        self.against = pyg.GCNConv(6, 6, flow="target_to_source")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.against(self.along(x, edge_index).tanh(), edge_index) * self.along(x, edge_index)


class InPlace(nn.Module):
    """Rows changed in place between two calls that read the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GINConv(nn.Linear(6, 6))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x * 1
        out = self.conv(x, edge_index)
        return out + self.conv(x.mul_(2).relu_(), edge_index)


class Frozen(nn.Module):
    """A layer below ``no_grad``, before one that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.conv = pyg.GATConv(6, 6), pyg.SAGEConv(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.frozen(x, edge_index)
        return self.conv(x + fixed, edge_index)


class Embedded(nn.Module):
    """An embedding table over all nodes, read by their global ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(NUM_NODES, 6), pyg.GCNConv(6, 6)

    def forward(self, data: Data) -> Tensor:
        return self.conv(data.x + self.table(data.n_id), data.edge_index)


class Stacked(nn.Module):
    """Several feature sets on one graph, ``[2, N, F]``: nodes are the last but one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.sage = pyg.GCNConv(6, 6), pyg.SAGEConv(6, 6)

    def forward(self, data: Data) -> Tensor:
        both = torch.stack([data.x, data.x_0])
        return self.sage(self.conv(both, data.edge_index), data.edge_index).transpose(0, 1)


class Pooled(nn.Module):
    """A virtual node by hand: PyG's pooling function, which is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x + pyg.global_mean_pool(x, None), edge_index)


class Recomputed(nn.Module):
    """A layer below torch's activation checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return checkpoint(self.conv, x, edge_index, use_reentrant=False)


class RecomputedBlocks(nn.Module):
    """Blocks with norms and attention below both kinds of checkpointing, the second fed by the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.Sequential(
            "x, edge_index",
            [
                (pyg.SAGEConv(6, 6), "x, edge_index -> x"),
                (pyg.GATConv(6, 6), "x, edge_index -> x"),
                pyg.GraphNorm(6),
                nn.Tanh(),
                nn.BatchNorm1d(6),
                nn.ELU(),
            ],
        )
        self.second = pyg.GPSConv(6, pyg.TAGConv(6, 6, K=2), heads=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = checkpoint(self.first, x, edge_index, use_reentrant=False)
        return checkpoint(self.second, x.sigmoid(), edge_index, use_reentrant=True)


class RecomputedTwice(Recomputed):
    """One layer in two checkpointed calls."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(super().forward(x, edge_index), edge_index)


class Jumping(nn.Module):
    """JumpingKnowledge over a user's stack."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.SAGEConv(6, 6) for _ in range(3))
        self.jump = pyg.JumpingKnowledge(mode, 6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.jump([x := conv(x, edge_index) for conv in self.convs])


def deep(block: str, **kwargs: Any) -> Callable[[], nn.Module]:
    """Three layers of DeeperGCN with batch norm, as its authors stack them."""

    def build() -> nn.Module:
        width = [6, 12, 24] if block == "dense" else [6, 6, 6]
        layers = [
            (
                pyg.DeepGCNLayer(
                    pyg.GENConv(w, 6, num_layers=1),
                    pyg.BatchNorm(w if block == "res+" else 6),
                    nn.ReLU(),
                    block=block,
                    **kwargs,
                ),
                "x, edge_index -> x",
            )
            for w in (width if block != "dense" else [6, 12, 18])
        ]
        return pyg.Sequential("x, edge_index", layers)

    return build


def sequential() -> nn.Module:
    """PyG's Sequential with a residual."""
    return pyg.Sequential(
        "x, edge_index, edge_weight",
        [
            (pyg.GCNConv(6, 8), "x, edge_index, edge_weight -> x1"),
            nn.ReLU(),
            (pyg.BatchNorm(8), "x1 -> x1"),
            (pyg.GATConv(8, 8), "x1, edge_index -> x2"),
            (lambda a, b: torch.cat([a, b], -1), "x1, x2 -> x"),
            nn.Linear(16, 5),
        ],
    )


@labelled("")
def on_data(module: nn.Module, data: Data) -> Any:
    return module(data)


def one(
    make: Callable[[], nn.Module], call: Any = EDGES, unfit: bool = False, on: str = "random"
) -> tuple[Callable[[], nn.Module], Recipe]:
    """A composition: what makes it, how it is called, whether it must be refused, and the kind of graph."""
    return make, Recipe((), [opt(call, on)], unfit)


class TypedNorm(nn.Module):
    """Two layers on a heterogeneous graph with a norm in between that knows types."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = pyg.HeteroConv(each("SAGEConv", (6, 6), 8).make()), norm
        self.last = pyg.HeteroConv(each("SAGEConv", (8, 8), 5).make())

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Any:
        x = self.first(x, edges)
        sizes = [rows.size(0) for rows in x.values()]
        types = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        normed = self.norm(torch.cat(list(x.values())), types).split(sizes)
        return self.last(dict(zip(x, normed, strict=True)), edges)


def by_type(model: type[nn.Module], aggr: str = "sum", **kwargs: Any) -> Callable[[], nn.Module]:
    """A model of PyG's for homogeneous graphs, transformed for heterogeneous ones."""
    return lambda: pyg.to_hetero(model((6, 6), 8, 2, 5, **kwargs), HETERO_METADATA, aggr)


TYPED: dict[str, Callable[[], nn.Module]] = {
    "to_hetero(GraphSAGE)": by_type(pyg.GraphSAGE),
    "to_hetero(GraphSAGE), aggr=mean": by_type(pyg.GraphSAGE, "mean"),
    "to_hetero(GraphSAGE), norm=BatchNorm": by_type(pyg.GraphSAGE, norm="BatchNorm"),
    "to_hetero(GraphSAGE), jk=cat": by_type(pyg.GraphSAGE, jk="cat"),
    "to_hetero(GAT)": by_type(pyg.GAT, add_self_loops=False, heads=2),
    "to_hetero(GAT), v2": by_type(pyg.GAT, "max", add_self_loops=False, v2=True),
    "HeteroBatchNorm between HeteroConvs": lambda: TypedNorm(pyg.HeteroBatchNorm(8, 3)),
    "HeteroLayerNorm between HeteroConvs": lambda: TypedNorm(pyg.HeteroLayerNorm(8, 3)),
}


COMPOSITIONS: dict[str, tuple[Callable[[], nn.Module], Recipe]] = {
    "own MessagePassing": one(OwnConv, WEIGHT),
    "own MessagePassing, aggr=max": one(lambda: OwnConv(aggr="max")),
    "own MessagePassing, edge_updater": one(OwnAttention),
    "own MessagePassing, x in update": one(RootInUpdate),
    "own MessagePassing, x in message": one(RawInMessage),
    "own MessagePassing, own degree in forward": one(OwnDegree),
    "own MessagePassing, GCN of the tutorial": one(Tutorial),
    "own MessagePassing, out-degree in forward": one(OutDegree),
    "own MessagePassing, mean over nodes in forward": one(MeanOfNodes),
    "own module that reads x[edge_index[0]]": one(ByHand),
    "subclass of GCNConv": one(lambda: type("MyGCN", (pyg.GCNConv,), {"__module__": __name__})(6, 8), WEIGHT),
    "pyg.Sequential": one(sequential, WEIGHT),
    "shared layer called three times, GCNConv": one(lambda: Twice(layer("GCNConv", 6, 6))),
    "shared layer called three times, GCNConv cached": one(lambda: Twice(layer("GCNConv", 6, 6, cached=True))),
    "shared layer called three times, GATv2Conv": one(lambda: Twice(layer("GATv2Conv", 6, 6))),
    "one layer on two inputs and two edge sets": one(OnAttributes, on_data),
    **{
        f"JumpingKnowledge {mode} over SAGEConv": one(lambda mode=mode: Jumping(mode))
        for mode in ("cat", "max", "lstm")
    },
    **{f"DeepGCNLayer {block} with batch norm": one(deep(block)) for block in ("res+", "res", "dense", "plain")},
    "DeepGCNLayer res+ with ckpt_grad": one(deep("res+", ckpt_grad=True)),
    "torch.utils.checkpoint around a layer": one(Recomputed),
    "torch.utils.checkpoint around blocks with norms and attention": one(RecomputedBlocks),
    "torch.utils.checkpoint around two calls of a layer": one(RecomputedTwice),
    "GroupAddRev disable=True": one(lambda: pyg.GroupAddRev(pyg.SAGEConv(3, 3), num_groups=2, disable=True)),
    "torch.compile(GCN)": one(lambda: torch.compile(pyg.GCN(6, 8, 2), backend="eager"), unfit=True),
    "layers along and against the edges": one(BothFlows),
    "rows changed in place": one(InPlace),
    "frozen layer before one that learns": one(Frozen),
    "embedding table read by n_id": one(Embedded, on_data),
    "features [2, N, F]": one(Stacked, on_data),
    "virtual node by global_mean_pool": one(Pooled),
    "nn.TransformerEncoderLayer over nodes": one(lambda: nn.TransformerEncoderLayer(6, 2), unfit=True),
    "nn.MultiheadAttention over nodes": one(lambda: nn.MultiheadAttention(6, 2), unfit=True),
    "nn.InstanceNorm1d": one(lambda: nn.InstanceNorm1d(6), X),
    "nn.InstanceNorm1d with running statistics": one(
        lambda: nn.InstanceNorm1d(6, track_running_stats=True), unfit=True
    ),
    "nn.Softmax over nodes": one(lambda: nn.Softmax(dim=0), unfit=True),
    "nn.SyncBatchNorm": one(lambda: nn.SyncBatchNorm(6), X),
    "nn.BatchNorm1d": one(lambda: nn.BatchNorm1d(6), X),
    "nn.LayerNorm": one(lambda: nn.LayerNorm(6), X),
    "TopKPooling": one(lambda: pyg.TopKPooling(6), unfit=True),
    **{name: one(make, typed, on="hetero") for name, make in TYPED.items()},
}
