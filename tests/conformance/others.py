"""Recipes of norms, aggregations and models, and of compositions a user writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import aggr as pyg_aggr

from tests.conformance.convs import DEGREE
from tests.conformance.graphs import NUM_NODES
from tests.conformance.recipes import (
    ATTR,
    EDGES,
    WEIGHT,
    Later,
    Recipe,
    labelled,
    layer,
    mlp,
    opt,
    recipe,
    takes,
    unfit,
)

__all__ = ["AGGREGATIONS", "COMPOSITIONS", "MODELS", "NORMS"]

X = takes("x")

# --- norms ------------------------------------------------------------------------------------------------------------


@labelled("two graphs")
def batched(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.node_type)


@labelled("two graphs, batch_size")
def batched_sized(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.node_type, 2)


WITH_BATCH = (opt(X), opt(batched), opt(batched_sized))

NORMS: dict[str, Recipe] = {
    "BatchNorm": recipe(6)(
        opt(X),
        opt(X, affine=False),
        opt(X, track_running_stats=False),
        opt(X, momentum=None),
        opt(X, allow_single_element=True),
    ),
    "HeteroBatchNorm": recipe(6, 2)(
        opt(takes("x", "node_type")), opt(takes("x", "node_type"), track_running_stats=False)
    ),
    "InstanceNorm": recipe(6)(
        *WITH_BATCH, opt(X, affine=True, track_running_stats=True), opt(batched, track_running_stats=True)
    ),
    "LayerNorm": recipe(6)(*WITH_BATCH, opt(X, affine=False), opt(X, mode="node")),
    "HeteroLayerNorm": recipe(6, 2)(opt(takes("x", "node_type"))),
    "GraphNorm": recipe(6)(*WITH_BATCH),
    "GraphSizeNorm": recipe()(*WITH_BATCH),
    "PairNorm": recipe()(*WITH_BATCH, opt(X, scale_individually=True), opt(X, scale=2.0)),
    "MeanSubtractionNorm": recipe()(*WITH_BATCH),
    "MessageNorm": recipe()(opt(takes("x", "x_0")), opt(takes("x", "x_0"), learn_scale=True)),
    "DiffGroupNorm": recipe(6, 3)(opt(X), opt(X, lamda=0.5, affine=False)),
}

# --- aggregations: in a layer that does nothing else --------------------------------------------------------------------

AGGREGATIONS: dict[str, Recipe] = {
    "Aggregation": unfit("abstract"),
    "MultiAggregation": recipe(["mean", "max"])(
        *(opt(mode=mode) for mode in ("cat", "sum", "mean", "max", "std")),
        opt(mode="proj", mode_kwargs={"in_channels": 6, "out_channels": 5}),
        opt(mode="attn", mode_kwargs={"in_channels": 6, "out_channels": 6, "num_heads": 2}),
    ),
    **{
        f"{name}Aggregation": recipe()(opt())
        for name in ("Sum", "Mean", "Max", "Min", "Mul", "Var", "Std", "Median", "VariancePreserving")
    },
    "SoftmaxAggregation": recipe()(opt(), opt(learn=True), opt(learn=True, channels=6), opt(t=2.0, semi_grad=True)),
    "PowerMeanAggregation": recipe()(opt(), opt(learn=True), opt(p=2.0)),
    "QuantileAggregation": recipe(0.3)(*(opt(interpolation=how) for how in ("linear", "lower", "nearest"))),
    "LSTMAggregation": recipe(6, 5)(opt(EDGES, "sorted")),
    "GRUAggregation": recipe(6, 5)(opt(EDGES, "sorted")),
    "Set2Set": recipe(6, 2)(opt()),
    "DegreeScalerAggregation": recipe(["mean", "max"], ["identity", "amplification", "linear"], DEGREE)(
        opt(), opt(train_norm=True)
    ),
    "SortAggregation": recipe(3)(opt(EDGES, "sorted")),
    "GraphMultisetTransformer": recipe(6, 2)(opt(EDGES, "sorted", heads=2)),
    "AttentionalAggregation": recipe(mlp(6, 1))(
        opt(), opt(nn=mlp(6, 5)), opt(nn=Later(lambda: pyg.MLP([6, 8, 5]), "pyg MLP"))
    ),
    "EquilibriumAggregation": recipe(6, 5, [8])(opt()),
    "MLPAggregation": recipe(6, 5, 12)(
        opt(EDGES, "sorted", num_layers=1), opt(EDGES, "sorted", num_layers=2, hidden_channels=7)
    ),
    "DeepSetsAggregation": recipe(mlp(6, 7), mlp(7, 5))(opt()),
    "SetTransformerAggregation": recipe(6)(
        opt(EDGES, "sorted"), opt(EDGES, "sorted", num_seed_points=2, heads=2, layer_norm=True)
    ),
    "LCMAggregation": recipe(6, 5)(opt(EDGES, "sorted")),
    "PatchTransformerAggregation": recipe(6, 5, 2, 8)(opt(EDGES, "sorted")),
}

# --- models -----------------------------------------------------------------------------------------------------------


@labelled("list of tensors")
def jumps(module: nn.Module, data: Data) -> Any:
    return module([data.x, data.x_0, data.x * 2])


@labelled("dict of lists")
def hetero_jumps(module: nn.Module, data: Data) -> Any:
    return module({"n": [data.x, data.x_0]})


@labelled("pos and neg edges")
def signed(module: nn.Module, data: Data) -> Any:
    positive = data.edge_type == 0
    return module(data.x, data.edge_index[:, positive], data.edge_index[:, ~positive])


@labelled("soft labels")
def soft_labels(module: nn.Module, data: Data) -> Any:
    return module(data.one_hot, data.edge_index, data.mask, edge_weight=data.edge_weight)


@labelled("soft labels, no weights")
def soft_labels_only(module: nn.Module, data: Data) -> Any:
    return module(data.one_hot, data.edge_index, data.mask)


@labelled("class labels")
def class_labels(module: nn.Module, data: Data) -> Any:
    return module(data.y, data.edge_index, data.mask)


@labelled("global attention")
def with_global_attention(module: nn.Module, data: Data) -> Any:
    module._global = True
    return whole(module, data)


@labelled("")
def correct_and_smooth(module: nn.Module, data: Data) -> Any:
    return module(data.one_hot.softmax(-1), data.y[data.mask], data.mask, data.edge_index, data.edge_weight)


@labelled("one graph")
def whole(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.edge_index, torch.zeros_like(data.node_type))


def gnn(*more: Any, jk: bool = True, **kwargs: Any) -> list[Any]:
    """The options that all of PyG's basic models have."""
    options = [
        opt(**kwargs),
        opt(norm="BatchNorm", act_first=True, **kwargs),
        opt(norm="GraphNorm", act="elu", **kwargs),
    ]
    return [*options, *(opt(jk=mode, **kwargs) for mode in ("last", "cat", "max", "lstm") if jk), *more]


@labelled("")
def nodes_only(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.edge_index)[0]


class Edge(nn.Module):
    """A model of a MetaLayer that reads rows by edge itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor, *_: Any) -> Tensor:
        return x.index_add(0, edge_index[1], self.lin(x)[edge_index[0]])


GRAPH_LEVEL = "not node-level: one output for each (small) graph"
MOLECULE = "not node-level: molecules, whose edges it draws itself by distance"
LINK_LEVEL = "not node-level: scores of node pairs"
OWN_LOSS = "its losses sample pairs of the whole graph"
H = (6, 8, 2, 5)
ENCODER = layer("GCNConv", 6, 8)
POLYNORMER = {"local_layers": 2, "global_layers": 1, "in_dropout": 0.0, "dropout": 0.0, "global_dropout": 0.0}

MODELS: dict[str, Recipe] = {
    "MLP": recipe()(
        opt(X, channel_list=[6, 8, 5]),
        opt(X, channel_list=[6, 8, 5], norm=None),
        opt(X, channel_list=[6, 8, 5], norm="GraphNorm"),
        opt(X, channel_list=[6, 8, 5], norm="LayerNorm", act_first=True, plain_last=False),
    ),
    "GCN": recipe(*H)(*gnn(opt(WEIGHT), opt(WEIGHT, cached=True), opt(improved=True), opt(WEIGHT, normalize=False))),
    "GraphSAGE": recipe(*H)(
        *gnn(
            opt(aggr="max", project=True),
            opt(normalize=True),
            opt(root_weight=False),
            opt(aggr=["mean", "std"]),
            opt(EDGES, "sorted", aggr="lstm"),
        )
    ),
    "GIN": recipe(*H)(*gnn(opt(train_eps=True), opt(aggr="max"))),
    "GAT": recipe(*H)(
        *gnn(
            opt(heads=2),
            opt(heads=2, v2=True),
            opt(heads=2, concat=False),
            opt(ATTR, heads=2, edge_dim=4),
            opt(residual=True),
        )
    ),
    "PNA": recipe(*H)(*gnn(aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=DEGREE)),
    "EdgeCNN": recipe(*H)(*gnn(opt(aggr="mean"))),
    "JumpingKnowledge": recipe()(
        opt(jumps, mode="cat"), opt(jumps, mode="max"), opt(jumps, mode="lstm", channels=6, num_layers=3)
    ),
    "HeteroJumpingKnowledge": recipe(["n"])(opt(hetero_jumps, mode="cat"), opt(hetero_jumps, mode="max")),
    "MetaLayer": recipe()(opt(nodes_only, node_model=Later(Edge, "x[edge_index[0]]"))),
    "Node2Vec": unfit(
        "not node-level: an embedding table trained on random walks", torch.zeros(2, 1, dtype=torch.long), 4, 2, 2
    ),
    "DeepGraphInfomax": unfit(
        "its summary and corruption run over all nodes", 8, ENCODER, nn.Identity(), nn.Identity()
    ),
    "InnerProductDecoder": unfit(LINK_LEVEL),
    "GAE": unfit(OWN_LOSS, ENCODER),
    "VGAE": unfit(OWN_LOSS, ENCODER),
    "ARGA": unfit(OWN_LOSS, ENCODER, nn.Identity()),
    "ARGVA": unfit(OWN_LOSS, ENCODER, nn.Identity()),
    "SignedGCN": recipe(6, 8, 2)(opt(signed)),
    "RENet": unfit("not node-level: events between entities over time", 4, 2, 8, 3),
    "GraphUNet": unfit("ranks all nodes to pool them", 6, 8, 5, 2),
    "SchNet": unfit(MOLECULE, 8, 8, 1),
    "DimeNet": unfit(MOLECULE, 8, 1, 1, 2, 2, 2),
    "DimeNetPlusPlus": unfit(MOLECULE, 8, 1, 1, 4, 4, 8, 2, 2),
    "GPSE": unfit(GRAPH_LEVEL, 4, 4, 8, layers_mp=2),
    "GPSENodeEncoder": recipe(12, 6, 5)(
        opt(takes("x", "x_0"), dim_in=6, expand_x=True, dropout_be=0.0, dropout_ae=0.0)
    ),
    "MetaPath2Vec": unfit(
        "not node-level: an embedding table trained on random walks",
        {("n", "to", "n"): torch.zeros(2, 1, dtype=torch.long)},
        4,
        [("n", "to", "n")],
        1,
        1,
    ),
    "DeepGCNLayer": recipe(layer("GENConv", 6, 6, norm="layer"), layer("LayerNorm", 6), Later(nn.ELU, "ELU"))(
        *(opt(block=block) for block in ("res+", "res", "dense", "plain")),
        opt(ckpt_grad=True),
    ),
    "TGNMemory": unfit(
        "not node-level: events between nodes over time",
        4,
        2,
        2,
        2,
        Later(lambda: pyg.models.tgn.IdentityMessage(2, 2, 2), ""),
        Later(pyg.models.tgn.LastAggregator, ""),
    ),
    "LabelPropagation": recipe()(
        *(opt(call, num_layers=2, alpha=0.8) for call in (soft_labels, soft_labels_only, class_labels))
    ),
    "CorrectAndSmooth": recipe(2, 0.8, 2, 0.7)(opt(correct_and_smooth), opt(correct_and_smooth, autoscale=False)),
    "AttentiveFP": unfit(GRAPH_LEVEL, 6, 8, 5, 4, 2, 2),
    "RECT_L": recipe(6, 8)(opt(), opt(WEIGHT), opt(normalize=False)),
    "LINKX": recipe(NUM_NODES)(
        opt(in_channels=6, hidden_channels=8, out_channels=5, num_layers=2),
        opt(WEIGHT, in_channels=6, hidden_channels=8, out_channels=5, num_layers=2, num_edge_layers=2),
    ),
    "LightGCN": unfit(LINK_LEVEL + ", from an embedding table over all nodes", NUM_NODES, 8, 2),
    "MaskLabel": recipe(3)(
        opt(takes("x", "y", "mask"), out_channels=6), opt(takes("x", "y", "mask"), out_channels=6, method="concat")
    ),
    "GroupAddRev": unfit(
        "frees its input and runs its layers again in the backward pass", layer("SAGEConv", 3, 3), num_groups=2
    ),
    "GNNFF": unfit(MOLECULE, 8, 8, 1),
    "PMLP": recipe(*H[:2], 5, 2)(opt(), opt(norm=False, bias=False)),
    "NeuralFingerprint": unfit(GRAPH_LEVEL, 6, 8, 5, 2),
    "ViSNet": unfit(MOLECULE, hidden_channels=8, num_heads=2, num_layers=1, num_rbf=4),
    "LPFormer": unfit(LINK_LEVEL, 6, 8),
    "SGFormer": recipe(6, 8, 5)(opt(whole, trans_dropout=0.0, gnn_dropout=0.0)),
    "Polynormer": recipe(6, 8, 5)(
        *(opt(whole, **POLYNORMER, local_attn=attn) for attn in (False, True)),
        opt(with_global_attention, **POLYNORMER),
    ),
    "ARLinkPredictor": unfit(LINK_LEVEL, 6, 8),
}

# --- compositions -----------------------------------------------------------------------------------------------------


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
        return pyg.conv.gat_conv.softmax((a_j + b_i).tanh(), index, num_nodes=size_i)

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


def one(make: Callable[[], nn.Module], call: Any = EDGES, reason: str = "") -> tuple[Callable[[], nn.Module], Recipe]:
    """A composition: what makes it, how it is called, and why it must be refused if so."""
    return make, Recipe((), [opt(call)], reason)


COMPOSITIONS: dict[str, tuple[Callable[[], nn.Module], Recipe]] = {
    "own MessagePassing": one(OwnConv, WEIGHT),
    "own MessagePassing, aggr=max": one(lambda: OwnConv(aggr="max")),
    "own MessagePassing, edge_updater": one(OwnAttention),
    "own MessagePassing, x in update": one(RootInUpdate),
    "own MessagePassing, x in message": one(RawInMessage),
    "own MessagePassing, own degree in forward": one(OwnDegree),
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
    "torch.compile(GCN)": one(
        lambda: torch.compile(pyg.GCN(6, 8, 2), backend="eager"), reason="torch.compile skips hooks"
    ),
    "virtual node by global_mean_pool": one(Pooled),
    "nn.TransformerEncoderLayer over nodes": one(
        lambda: nn.TransformerEncoderLayer(6, 2), reason="attends to all nodes"
    ),
    "nn.MultiheadAttention over nodes": one(lambda: nn.MultiheadAttention(6, 2), reason="attends to all nodes"),
    "nn.InstanceNorm1d": one(lambda: nn.InstanceNorm1d(6), reason="statistics over nodes"),
    "nn.BatchNorm1d": one(lambda: nn.BatchNorm1d(6), X),
    "nn.LayerNorm": one(lambda: nn.LayerNorm(6), X),
    "TopKPooling": one(lambda: pyg.TopKPooling(6), reason="ranks all nodes"),
}


def aggregation_case(name: str) -> Callable[..., nn.Module]:
    """Return what makes a layer that only aggregates, by this class."""
    return lambda *args, **kwargs: pyg.SimpleConv(aggr=getattr(pyg_aggr, name)(*args, **kwargs))
