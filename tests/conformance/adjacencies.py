"""Recipes of layers and models called with ``adj_t``, a CSR matrix that is the only place where the graph has its edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import aggr as pyg_aggr
from torch_geometric.utils.sparse import set_sparse_value

from tests.conformance.convs import DEGREE, PNA
from tests.conformance.graphs import NUM_NODES, NUM_RELATIONS
from tests.conformance.recipes import ADJ_T, Later, Option, Recipe, labelled, layer, mlp, opt, recipe, takes

__all__ = ["ADJACENCIES"]


@labelled("adj_t of ones")
def ones(module: nn.Module, data: Data) -> Any:
    return module(data.x, set_sparse_value(data.adj_t, torch.ones_like(data.edge_value)))


@labelled("adj_t of learned values")
def learned(module: nn.Module, data: Data) -> Any:
    return module(data.x, set_sparse_value(data.adj_t, data.edge_value))


@labelled("x=(x, x_dst), adj_t")
def pair(module: nn.Module, data: Data) -> Any:
    return module((data.x, data.x_0), data.adj_t)


@labelled("adj_t, return_attention_weights")
def attention(module: nn.Module, data: Data) -> Any:
    out, (weights, _) = module(data.x, data.adj_t, return_attention_weights=True)
    assert weights.layout == torch.sparse_csr
    return out


@labelled("x [N, 2, F], adj_t")
def stacked(module: nn.Module, data: Data) -> Any:
    return module(torch.stack([data.x, data.x_0], 1), data.adj_t)


def on(call: Any, **kwargs: Any) -> Option:
    """One case on the graph of a matrix."""
    return opt(call, on="adj_t", **kwargs)


def plain(*more: Option, **kwargs: Any) -> list[Option]:
    """What every layer is tried with: the batch's matrix, and one whose values are learned."""
    return [on(ADJ_T, **kwargs), on(learned, **kwargs), *more]


def aggrs(*names: Any) -> list[Option]:
    return [on(ADJ_T, aggr=name) for name in names]


ATTR = takes("x", "adj_t", edge_attr="edge_attr")
PSEUDO = takes("x", "adj_t", edge_attr="edge_pos")
TYPE = takes("x", "adj_t", edge_type="edge_type")
POS = takes("x", "pos", "adj_t")
INITIAL = takes("x", "x_0", "adj_t")
H = (6, 8)
EXTREMES = ("max", "min")
HEAT = {
    "num_node_types": 2,
    "num_edge_types": NUM_RELATIONS,
    "edge_type_emb_dim": 3,
    "edge_dim": 4,
    "edge_attr_emb_dim": 5,
}

CONVS: dict[str, Recipe] = {
    "SimpleConv": recipe()(
        *plain(), *aggrs("mean", *EXTREMES, "std", "median"), on(ADJ_T, combine_root="self_loop"), on(pair)
    ),
    "GCNConv": recipe(*H)(
        *plain(),
        on(ones),
        on(ADJ_T, improved=True),
        on(ADJ_T, cached=True),
        on(ADJ_T, add_self_loops=False),
        on(ADJ_T, normalize=False),
        *aggrs("mean", "max"),
        on(learned, add_self_loops=False),
    ),
    "SAGEConv": recipe(*H)(
        *plain(),
        *aggrs("sum", *EXTREMES, "std", "median", "lstm", ["mean", "max"]),
        on(ADJ_T, aggr=Later(lambda: pyg_aggr.MLPAggregation(6, 6, 12, num_layers=1), "MLPAggregation")),
        on(learned, aggr="sum"),
        on(ADJ_T, project=True),
        on(ADJ_T, normalize=True),
        on(pair),
    ),
    "GraphConv": recipe(*H)(*plain(), *aggrs("mean", "max"), on(learned, aggr="mean"), on(pair)),
    "GatedGraphConv": recipe(8)(*plain(num_layers=2), on(ADJ_T, num_layers=2, aggr="max")),
    "ResGatedGraphConv": recipe(*H)(*plain(), on(ATTR, edge_dim=4)),
    "GATConv": recipe(*H)(
        *plain(),
        on(ADJ_T, heads=3),
        on(ADJ_T, add_self_loops=False),
        on(ADJ_T, residual=True, heads=2),
        on(ATTR, edge_dim=4, add_self_loops=False),
        on(attention, heads=2),
        on(pair),
    ),
    "GATv2Conv": recipe(*H)(
        *plain(),
        on(ADJ_T, heads=3),
        on(ADJ_T, add_self_loops=False),
        on(ATTR, edge_dim=4, add_self_loops=False),
        on(attention, heads=2),
        on(pair),
    ),
    "TransformerConv": recipe(*H)(
        *plain(), on(ADJ_T, heads=3, beta=True), on(ATTR, edge_dim=4), on(attention, heads=2)
    ),
    "AGNNConv": recipe()(*plain()),
    "TAGConv": recipe(*H)(*plain(), on(ADJ_T, normalize=False)),
    "GINConv": recipe(mlp(6, 8))(*plain(), on(ADJ_T, train_eps=True), *aggrs("mean", "max"), on(pair)),
    "GINEConv": recipe(mlp(6, 8))(on(ATTR, edge_dim=4)),
    "SGConv": recipe(*H)(*plain(K=2), on(ADJ_T, K=2, cached=True)),
    "SSGConv": recipe(*H)(*plain(alpha=0.1, K=2), on(ADJ_T, alpha=0.1, K=2, cached=True)),
    "APPNP": recipe()(*plain(K=3, alpha=0.1), on(ADJ_T, K=3, alpha=0.1, cached=True)),
    "FastRGCNConv": recipe(*H)(on(TYPE, num_relations=NUM_RELATIONS)),
    "RGATConv": recipe(*H)(on(TYPE, num_relations=NUM_RELATIONS)),
    "DNAConv": recipe(6)(on(stacked), on(stacked, cached=True), on(stacked, normalize=False)),
    "PointNetConv": recipe()(on(POS), on(POS, add_self_loops=False)),
    "GMMConv": recipe(*H)(on(PSEUDO, dim=2, kernel_size=3)),
    "SplineConv": recipe(*H)(on(PSEUDO, dim=2, kernel_size=3)),
    "NNConv": recipe(*H)(on(ATTR, nn=mlp(4, 48))),
    "CGConv": recipe(6)(*plain(), on(ATTR, dim=4)),
    "EdgeConv": recipe(mlp(12, 8))(*plain(), *aggrs("sum")),
    "PPFConv": recipe()(on(takes("x", "pos", "normal", "adj_t"), local_nn=mlp(10, 8))),
    "FeaStConv": recipe(*H)(*plain(), on(ADJ_T, heads=3)),
    "PointTransformerConv": recipe(*H)(on(POS)),
    "LEConv": recipe(*H)(*plain()),
    "PNAConv": recipe(*H)(*plain(deg=DEGREE, **PNA), on(ATTR, deg=DEGREE, edge_dim=4, **PNA)),
    "ClusterGCNConv": recipe(*H)(*plain(), on(ADJ_T, diag_lambda=0.5)),
    "GENConv": recipe(*H)(*plain(norm="layer"), on(ATTR, norm="layer", edge_dim=4)),
    "GCN2Conv": recipe(6)(
        on(INITIAL, alpha=0.1), on(INITIAL, alpha=0.1, cached=True), on(INITIAL, alpha=0.1, normalize=False)
    ),
    "FiLMConv": recipe(*H)(*plain()),
    "FAConv": recipe(6)(on(INITIAL), on(INITIAL, cached=True), on(INITIAL, normalize=False)),
    "EGConv": recipe(*H)(*plain(), on(ADJ_T, aggregators=["symnorm", "std", "var", "min"]), on(ADJ_T, cached=True)),
    "PDNConv": recipe(*H)(on(ATTR, edge_dim=4, hidden_channels=5)),
    "GeneralConv": recipe(*H)(*plain(), on(ADJ_T, attention=True, heads=2), on(ATTR, in_edge_channels=4)),
    "HEATConv": recipe(*H)(on(takes("x", "adj_t", "node_type", "edge_type", "edge_attr"), **HEAT)),
    "LGConv": recipe()(*plain(), on(ADJ_T, normalize=False)),
    "PointGNNConv": recipe(mlp(6, 3), mlp(9, 7), mlp(7, 6))(on(POS)),
    "GPSConv": recipe(6)(
        on(ADJ_T, conv=None),
        on(ADJ_T, conv=layer("GCNConv", 6, 6), heads=2),
        on(learned, conv=layer("SAGEConv", 6, 6), attn_type="performer"),
    ),
    "AntiSymmetricConv": recipe(6)(*plain(), on(ADJ_T, num_iters=3), on(ADJ_T, phi=layer("SAGEConv", 6, 6))),
    "MixHopConv": recipe(*H)(*plain(), on(ADJ_T, add_self_loops=False)),
}

BASIC = (6, 8, 2, 5)
MODELS: dict[str, Recipe] = {
    "GCN": recipe(*BASIC)(*plain(), on(ADJ_T, norm="BatchNorm"), on(ADJ_T, cached=True)),
    "GraphSAGE": recipe(*BASIC)(*plain(), on(ADJ_T, norm="BatchNorm"), on(ADJ_T, aggr="max", project=True)),
    "GIN": recipe(*BASIC)(*plain(), on(ADJ_T, norm="BatchNorm")),
    "GAT": recipe(*BASIC)(*plain(), on(ADJ_T, heads=2, v2=True)),
    "PNA": recipe(*BASIC)(on(ADJ_T, aggregators=["mean", "max"], scalers=["identity", "amplification"], deg=DEGREE)),
    "EdgeCNN": recipe(*BASIC)(on(ADJ_T)),
    "DeepGCNLayer": recipe(layer("GENConv", 6, 6, norm="layer"), layer("LayerNorm", 6), Later(nn.ELU, "ELU"))(
        on(ADJ_T)
    ),
    "RECT_L": recipe(*H)(on(ADJ_T)),
    "PMLP": recipe(6, 8, 5, 2)(on(ADJ_T)),
    "LINKX": recipe(NUM_NODES)(*plain(in_channels=6, hidden_channels=8, out_channels=5, num_layers=2)),
}

ADJACENCIES: dict[str, dict[str, Recipe]] = {"conv": CONVS, "models": MODELS}
"""By part of PyG and name, as the recipes of edge lists are."""
