"""Recipes of the classes of ``torch_geometric.nn.models``."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

from tests.conformance.convs import DEGREE
from tests.conformance.graphs import NUM_NODES
from tests.conformance.recipes import ATTR, EDGES, WEIGHT, Later, Recipe, labelled, layer, opt, recipe, takes, unfit

__all__ = ["MODELS"]

X = takes("x")


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
    "Node2Vec": unfit(torch.zeros(2, 1, dtype=torch.long), 4, 2, 2),
    "DeepGraphInfomax": unfit(8, ENCODER, nn.Identity(), nn.Identity()),
    "InnerProductDecoder": unfit(),
    "GAE": unfit(ENCODER),
    "VGAE": unfit(ENCODER),
    "ARGA": unfit(ENCODER, nn.Identity()),
    "ARGVA": unfit(ENCODER, nn.Identity()),
    "SignedGCN": recipe(6, 8, 2)(opt(signed)),
    "RENet": unfit(4, 2, 8, 3),
    "GraphUNet": unfit(6, 8, 5, 2),
    "SchNet": unfit(8, 8, 1),
    "DimeNet": unfit(8, 1, 1, 2, 2, 2),
    "DimeNetPlusPlus": unfit(8, 1, 1, 4, 4, 8, 2, 2),
    "GPSE": unfit(4, 4, 8, layers_mp=2),
    "GPSENodeEncoder": recipe(12, 6, 5)(
        opt(takes("x", "x_0"), dim_in=6, expand_x=True, dropout_be=0.0, dropout_ae=0.0)
    ),
    "MetaPath2Vec": unfit(
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
    "AttentiveFP": unfit(6, 8, 5, 4, 2, 2),
    "RECT_L": recipe(6, 8)(opt(), opt(WEIGHT), opt(normalize=False)),
    "LINKX": recipe(NUM_NODES)(
        opt(in_channels=6, hidden_channels=8, out_channels=5, num_layers=2),
        opt(WEIGHT, in_channels=6, hidden_channels=8, out_channels=5, num_layers=2, num_edge_layers=2),
    ),
    "LightGCN": unfit(NUM_NODES, 8, 2),
    "MaskLabel": recipe(3)(
        opt(takes("x", "y", "mask"), out_channels=6), opt(takes("x", "y", "mask"), out_channels=6, method="concat")
    ),
    "GroupAddRev": unfit(layer("SAGEConv", 3, 3), num_groups=2),
    "GNNFF": unfit(8, 8, 1),
    "PMLP": recipe(*H[:2], 5, 2)(opt(), opt(norm=False, bias=False)),
    "NeuralFingerprint": unfit(6, 8, 5, 2),
    "ViSNet": unfit(hidden_channels=8, num_heads=2, num_layers=1, num_rbf=4),
    "LPFormer": unfit(6, 8),
    "SGFormer": recipe(6, 8, 5)(
        *(
            opt(whole, trans_dropout=0.0, gnn_dropout=0.0, **more)
            for more in ({}, {"trans_num_heads": 2, "aggregate": "cat"})
        )
    ),
    "Polynormer": recipe(6, 8, 5)(
        *(opt(whole, **POLYNORMER, local_attn=attn) for attn in (False, True)),
        opt(with_global_attention, **POLYNORMER),
        opt(with_global_attention, **POLYNORMER, qk_shared=True, pre_ln=True, post_bn=False),
    ),
    "ARLinkPredictor": unfit(6, 8),
}
