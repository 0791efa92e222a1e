"""Recipes of the classes of ``torch_geometric.nn.conv``."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import degree

from tests.conformance.graphs import HETERO_METADATA, NUM_RELATIONS, graph
from tests.conformance.recipes import (
    ATTR,
    TYPE,
    WEIGHT,
    Later,
    Option,
    Recipe,
    labelled,
    layer,
    mlp,
    opt,
    recipe,
    takes,
)

__all__ = ["CONVS", "DEGREE"]


@labelled("x=(x, x_dst)")
def pair(module: nn.Module, data: Data) -> Any:
    return module((data.x, data.x_0), data.edge_index)


@labelled("x=(x, None), size")
def pair_none(module: nn.Module, data: Data) -> Any:
    return module((data.x, None), data.edge_index, size=(data.num_nodes, data.num_nodes))


@labelled("pos and neg edges")
def signed(module: nn.Module, data: Data) -> Any:
    positive = data.edge_type == 0
    return module(data.x, data.edge_index[:, positive], data.edge_index[:, ~positive])


@labelled("one graph")
def one_graph(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.edge_index, torch.zeros_like(data.node_type))


@labelled("x [N, 2, F]")
def stacked(module: nn.Module, data: Data) -> Any:
    return module(torch.stack([data.x, data.x_0], 1), data.edge_index, data.edge_weight)


RELATIONS = [("n", str(i), "n") for i in range(NUM_RELATIONS)]
HOMOGENEOUS = Later(lambda: (["n"], RELATIONS), "one type")
HETERO = Later(lambda: HETERO_METADATA, "three types")


def _relations(data: Data) -> dict[Any, Tensor]:
    return {key: data.edge_index[:, data.edge_type == i] for i, key in enumerate(RELATIONS)}


@labelled("3 relations")
def hetero(module: nn.Module, data: Data) -> Any:
    return module({"n": data.x}, _relations(data))


@labelled("")
def typed(module: nn.Module, data: HeteroData) -> Any:
    return module(data.x_dict, data.edge_index_dict)


@labelled("edge_weight")
def typed_weight(module: nn.Module, data: HeteroData) -> Any:
    weights = {key: data[key].edge_weight for key in data.edge_types}
    return module(data.x_dict, data.edge_index_dict, edge_weight_dict=weights)


@labelled("filtered edges")
def typed_filtered(module: nn.Module, data: HeteroData) -> Any:
    kept = {key: edges[:, data[key].edge_weight > 0.8] for key, edges in data.edge_index_dict.items()}
    return module(data.x_dict, kept)


def each(name: str, *args: Any, **kwargs: Any) -> Later:
    """One layer for each edge type."""
    words = [name, *(f"{k}={v}" for k, v in kwargs.items() if k != "add_self_loops")]
    make = lambda: {key: getattr(pyg, name)(*args, **kwargs) for key in HETERO_METADATA[1]}  # noqa: E731
    return Later(make, " ".join(words))


def within(inner: Later) -> Later:
    """A layer for edges among nodes of one type, and GATConv for the others."""
    other = layer("GATConv", (6, 6), 8, add_self_loops=False)
    make = lambda: {key: (inner if key[0] == key[2] else other).make() for key in HETERO_METADATA[1]}  # noqa: E731
    return Later(make, f"{inner.text} within a type")


@labelled("return_attention_weights")
def attention(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.edge_index, return_attention_weights=True)[0]


@labelled("return_attention_weights")
def fa_attention(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.x_0, data.edge_index, return_attention_weights=True)[0]


@labelled("x=None")
def no_x(module: nn.Module, data: Data) -> Any:
    return module(None, data.pos, data.edge_index)


@labelled("x=None")
def no_x_normal(module: nn.Module, data: Data) -> Any:
    return module(None, data.pos, data.normal, data.edge_index)


@labelled("lambda_max")
def lambda_max(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.edge_index, data.edge_weight, lambda_max=data.x.new_tensor(3.0))


@labelled("colours")
def colours(module: nn.Module, data: Data) -> Any:
    return module(data.node_type, data.edge_index)


@labelled("output only")
def first(module: nn.Module, data: Data) -> Any:
    return module(data.x, data.edge_index)[0]


def aggrs(*names: str) -> list[Option]:
    return [opt(aggr=name) for name in names]


def multi(mode: str = "cat", **kwargs: Any) -> dict[str, Any]:
    """Several aggregations at once."""
    return {"aggr": ["mean", "max", "std"], "aggr_kwargs": {"mode": mode, **kwargs}}


PSEUDO = takes("x", "edge_index", edge_attr="edge_pos")
DEGREE = torch.bincount(degree(graph().edge_index[1], 40, dtype=torch.long))
PNA = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}
ALL_SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
H = (6, 8)

CONVS: dict[str, Recipe] = {
    "SimpleConv": recipe()(
        *aggrs("sum", "mean", "max", "min", "std", "var", "mul", "median", "softmax", "powermean"),
        opt(WEIGHT),
        opt(WEIGHT, aggr="max"),
        opt(aggr=["mean", "max"]),
        *(opt(combine_root=how) for how in ("sum", "cat", "self_loop")),
        opt(WEIGHT, combine_root="self_loop"),
        opt(pair),
        opt(pair_none),
    ),
    "GCNConv": recipe(*H)(
        opt(),
        opt(WEIGHT),
        opt(improved=True),
        opt(WEIGHT, improved=True),
        opt(cached=True),
        opt(WEIGHT, cached=True),
        opt(add_self_loops=False),
        opt(WEIGHT, add_self_loops=False),
        opt(normalize=False),
        opt(WEIGHT, normalize=False),
        opt(bias=False),
        *aggrs("mean", "max"),
        opt(flow="target_to_source"),
    ),
    "ChebConv": recipe(*H)(
        opt(K=2),
        opt(WEIGHT, K=3),
        opt(WEIGHT, K=3, normalization="rw"),
        opt(lambda_max, K=3, normalization=None),
        opt(lambda_max, K=3),
        opt(K=3, normalization="rw"),
        opt(K=3, bias=False),
    ),
    "SAGEConv": recipe(*H)(
        *aggrs("mean", "sum", "max", "min", "std", "var", "median", "softmax", "powermean"),
        opt(aggr="lstm", on="sorted"),
        opt(aggr="softmax", aggr_kwargs={"learn": True}),
        opt(aggr="powermean", aggr_kwargs={"learn": True}),
        opt(**multi()),
        opt(**multi("sum")),
        opt(
            aggr=["mean", "max"],
            aggr_kwargs={"mode": "attn", "mode_kwargs": {"num_heads": 2, "in_channels": 6, "out_channels": 6}},
        ),
        opt(normalize=True),
        opt(root_weight=False),
        opt(project=True),
        opt(bias=False),
        opt(pair),
        opt(pair_none, project=False),
        opt(flow="target_to_source"),
    ),
    "CuGraphSAGEConv": recipe(*H)(opt()),
    "GraphConv": recipe(*H)(
        opt(),
        opt(WEIGHT),
        opt(WEIGHT, aggr="mean"),
        opt(WEIGHT, aggr="max"),
        opt(bias=False),
        opt(pair),
        opt(pair_none),
        opt(decomposed_layers=2),
    ),
    "GravNetConv": recipe(*H)(opt(takes("x"), space_dimensions=3, propagate_dimensions=4, k=3)),
    "GatedGraphConv": recipe(8)(
        opt(num_layers=1), opt(num_layers=3), opt(WEIGHT, num_layers=2), opt(num_layers=2, aggr="max")
    ),
    "ResGatedGraphConv": recipe(*H)(
        opt(),
        opt(ATTR, edge_dim=4),
        opt(root_weight=False),
        opt(act=Later(nn.Tanh, "tanh")),
        opt(pair),
        opt(aggr="max"),
    ),
    "GATConv": recipe(*H)(
        opt(),
        opt(heads=3),
        opt(heads=3, concat=False),
        opt(ATTR, heads=2, edge_dim=4),
        opt(ATTR, edge_dim=4, fill_value=0.5),
        opt(ATTR, edge_dim=4, fill_value="max"),
        opt(add_self_loops=False),
        opt(ATTR, edge_dim=4, add_self_loops=False),
        opt(residual=True, heads=2),
        opt(residual=True, concat=False, heads=2),
        opt(bias=False),
        opt(attention, heads=2),
        opt(pair, add_self_loops=False),
        opt(pair),
        opt(pair_none, add_self_loops=False),
        opt(aggr="mean"),
    ),
    "CuGraphGATConv": recipe(*H)(opt()),
    "FusedGATConv": recipe(*H)(opt(add_self_loops=False)),
    "GATv2Conv": recipe(*H)(
        opt(),
        opt(heads=3),
        opt(heads=3, concat=False),
        opt(ATTR, heads=2, edge_dim=4),
        opt(ATTR, edge_dim=4, fill_value=0.5),
        opt(add_self_loops=False),
        opt(ATTR, edge_dim=4, add_self_loops=False),
        opt(share_weights=True, heads=2),
        opt(residual=True, heads=2),
        opt(residual=True, concat=False, heads=2),
        opt(bias=False),
        opt(attention, heads=2),
        opt(pair),
    ),
    "TransformerConv": recipe(*H)(
        opt(),
        opt(heads=3),
        opt(heads=3, concat=False),
        opt(beta=True),
        opt(ATTR, heads=2, edge_dim=4),
        opt(root_weight=False),
        opt(bias=False),
        opt(attention, heads=2),
        opt(pair),
    ),
    "AGNNConv": recipe()(opt(), opt(requires_grad=False), opt(add_self_loops=False)),
    "TAGConv": recipe(*H)(opt(), opt(K=1), opt(WEIGHT, K=2), opt(normalize=False), opt(WEIGHT, normalize=False)),
    "GINConv": recipe(mlp(6, 8))(
        opt(), opt(eps=0.5), opt(train_eps=True), opt(aggr="mean"), opt(aggr="max"), opt(pair), opt(pair_none)
    ),
    "GINEConv": recipe(mlp(6, 8))(
        opt(ATTR, edge_dim=4), opt(ATTR, edge_dim=4, train_eps=True), opt(ATTR, edge_dim=4, aggr="max")
    ),
    "ARMAConv": recipe(*H)(
        opt(),
        opt(num_stacks=2),
        opt(num_layers=3),
        opt(WEIGHT, num_stacks=2, num_layers=2, shared_weights=True),
        opt(act=None),
        opt(bias=False),
    ),
    "SGConv": recipe(*H)(
        opt(), opt(K=3), opt(WEIGHT, K=2), opt(K=2, cached=True), opt(WEIGHT, K=2, add_self_loops=False)
    ),
    "SSGConv": recipe(*H)(
        opt(alpha=0.1),
        opt(WEIGHT, alpha=0.3, K=3),
        opt(alpha=0.1, K=2, cached=True),
        opt(alpha=0.1, K=2, add_self_loops=False),
    ),
    "APPNP": recipe()(
        opt(K=1, alpha=0.1),
        opt(WEIGHT, K=4, alpha=0.2),
        opt(K=3, alpha=0.1, cached=True),
        opt(K=3, alpha=0.1, add_self_loops=False),
        opt(WEIGHT, K=2, alpha=0.1, normalize=False),
    ),
    "MFConv": recipe(*H)(opt(), opt(max_degree=2), opt(pair), opt(bias=False), opt(aggr="mean")),
    "RGCNConv": recipe(*H)(
        *(
            opt(TYPE, num_relations=NUM_RELATIONS, **more)
            for more in (
                {},
                {"num_bases": 2},
                {"num_blocks": 2},
                {"aggr": "sum"},
                {"aggr": "max"},
                {"root_weight": False},
                {"bias": False},
            )
        ),
        opt(TYPE, num_relations=NUM_RELATIONS, flow="target_to_source"),
    ),
    "FastRGCNConv": recipe(*H)(
        *(
            opt(TYPE, num_relations=NUM_RELATIONS, **more)
            for more in ({}, {"num_bases": 2}, {"num_blocks": 2}, {"aggr": "sum"}, {"root_weight": False})
        ),
    ),
    "CuGraphRGCNConv": recipe(*H)(opt(TYPE, num_relations=NUM_RELATIONS)),
    "RGATConv": recipe(*H)(
        *(
            opt(TYPE, num_relations=NUM_RELATIONS, **more)
            for more in (
                {},
                {"num_bases": 2},
                {"num_blocks": 2},
                {"heads": 2},
                {"heads": 2, "concat": False},
                {"mod": "additive"},
                {"mod": "scaled"},
                {"mod": "f-additive"},
                {"mod": "f-scaled"},
                {"attention_mechanism": "within-relation"},
                {"attention_mode": "multiplicative-self-attention", "dim": 2, "heads": 2},
            )
        ),
        opt(
            takes("x", "edge_index", edge_type="edge_type", edge_attr="edge_attr"),
            num_relations=NUM_RELATIONS,
            edge_dim=4,
            heads=2,
        ),
    ),
    "SignedConv": recipe(6, 4)(opt(signed, first_aggr=True), opt(signed, first_aggr=True, bias=False)),
    "DNAConv": recipe(6)(
        opt(stacked),
        opt(stacked, heads=2),
        opt(stacked, heads=2, groups=2),
        opt(stacked, cached=True),
        opt(stacked, normalize=False),
        opt(stacked, add_self_loops=False),
    ),
    "PointNetConv": recipe()(
        opt(takes("x", "pos", "edge_index")),
        opt(takes("x", "pos", "edge_index"), local_nn=mlp(9, 8), global_nn=mlp(8, 5)),
        opt(no_x, local_nn=mlp(3, 8)),
        opt(takes("x", "pos", "edge_index"), add_self_loops=False),
        opt(takes("x", "pos", "edge_index"), aggr="mean"),
    ),
    "GMMConv": recipe(*H)(
        *(
            opt(PSEUDO, dim=2, kernel_size=3, **more)
            for more in ({}, {"separate_gaussians": True}, {"aggr": "max"}, {"bias": False})
        ),
    ),
    "SplineConv": recipe(*H)(
        opt(PSEUDO, dim=2, kernel_size=3), opt(PSEUDO, dim=2, kernel_size=3, aggr="sum", root_weight=False)
    ),
    "NNConv": recipe(*H)(
        *(opt(ATTR, nn=mlp(4, 48), **more) for more in ({}, {"aggr": "mean"}, {"aggr": "max"}, {"root_weight": False}))
    ),
    "CGConv": recipe(6)(
        opt(), opt(ATTR, dim=4), opt(batch_norm=True), opt(ATTR, dim=4, aggr="mean"), opt(aggr="max"), opt(pair)
    ),
    "EdgeConv": recipe(mlp(12, 8))(opt(), *aggrs("sum", "mean", "min", "std"), opt(pair)),
    "DynamicEdgeConv": recipe(mlp(12, 8))(opt(takes("x"), k=3)),
    "XConv": recipe(*H)(opt(takes("x", "pos"), dim=3, kernel_size=4)),
    "PPFConv": recipe()(
        opt(takes("x", "pos", "normal", "edge_index"), local_nn=mlp(10, 8), global_nn=mlp(8, 5)),
        opt(no_x_normal, local_nn=mlp(4, 8)),
        opt(takes("x", "pos", "normal", "edge_index"), local_nn=mlp(10, 8), add_self_loops=False),
    ),
    "FeaStConv": recipe(*H)(opt(), opt(heads=3), opt(heads=2, add_self_loops=False), opt(pair, heads=2)),
    "PointTransformerConv": recipe(*H)(
        opt(takes("x", "pos", "edge_index")),
        opt(takes("x", "pos", "edge_index"), pos_nn=mlp(3, 8), attn_nn=mlp(8, 8)),
        opt(takes("x", "pos", "edge_index"), add_self_loops=False),
    ),
    "HypergraphConv": recipe(*H)(
        opt(), opt(takes("x", "edge_index", hyperedge_attr="x_0"), use_attention=True, heads=2)
    ),
    "LEConv": recipe(*H)(opt(), opt(WEIGHT), opt(WEIGHT, aggr="mean"), opt(bias=False), opt(pair)),
    "PNAConv": recipe(6, 8)(
        *(
            opt(deg=DEGREE, **{**PNA, **more})
            for more in (
                {},
                {"scalers": ALL_SCALERS},
                {"towers": 2},
                {"towers": 2, "divide_input": True},
                {"pre_layers": 2, "post_layers": 2},
                {"train_norm": True},
                {"aggregators": ["sum", "var"]},
            )
        ),
        opt(ATTR, deg=DEGREE, edge_dim=4, **PNA),
    ),
    "ClusterGCNConv": recipe(*H)(opt(), opt(diag_lambda=0.5)),
    "GENConv": recipe(*H)(
        *(
            opt(norm="layer", **more)
            for more in (
                {},
                {"learn_t": True},
                {"aggr": "powermean", "learn_p": True},
                {"aggr": "mean"},
                {"aggr": "max"},
                {"msg_norm": True, "learn_msg_scale": True},
                {"num_layers": 1},
                {"bias": True},
            )
        ),
        opt(),
        opt(norm="instance"),
        opt(ATTR, norm="layer", edge_dim=4),
        opt(pair, norm="layer"),
        opt(norm="layer", aggr=["mean", "max"]),
    ),
    "GCN2Conv": recipe(6)(
        *(
            opt(takes("x", "x_0", "edge_index"), alpha=0.1, **more)
            for more in (
                {},
                {"theta": 0.5, "layer": 2},
                {"shared_weights": False},
                {"cached": True},
                {"add_self_loops": False},
            )
        ),
        opt(takes("x", "x_0", "edge_index", "edge_weight"), alpha=0.1),
        opt(takes("x", "x_0", "edge_index", "edge_weight"), alpha=0.1, normalize=False),
    ),
    "PANConv": recipe(*H)(opt(first, filter_size=2)),
    "WLConv": recipe()(opt(colours)),
    "WLConvContinuous": recipe()(opt(), opt(WEIGHT), opt(pair)),
    "FiLMConv": recipe(*H)(
        opt(), opt(TYPE, num_relations=NUM_RELATIONS), opt(nn=mlp(6, 16)), opt(act=None), opt(aggr="max"), opt(pair)
    ),
    "SuperGATConv": recipe(*H)(
        opt(),
        opt(attention_type="SD"),
        opt(heads=2, concat=False),
        opt(takes("x", "edge_index", neg_edge_index="edge_index")),
        opt(add_self_loops=False),
        opt(is_undirected=True, on="undirected"),
    ),
    "FAConv": recipe(6)(
        opt(takes("x", "x_0", "edge_index")),
        opt(takes("x", "x_0", "edge_index"), eps=0.5),
        opt(takes("x", "x_0", "edge_index"), cached=True),
        opt(takes("x", "x_0", "edge_index"), add_self_loops=False),
        opt(takes("x", "x_0", "edge_index", "edge_weight"), normalize=False),
        opt(fa_attention),
    ),
    "EGConv": recipe(*H)(
        opt(),
        opt(aggregators=["sum", "mean", "max"]),
        opt(aggregators=["symnorm", "std", "var", "min"]),
        opt(num_heads=4, num_bases=2),
        opt(cached=True),
        opt(add_self_loops=False),
        opt(aggregators=["sum"], add_self_loops=False),
        opt(aggregators=["mean"]),
    ),
    "PDNConv": recipe(*H)(
        *(
            opt(ATTR, edge_dim=4, hidden_channels=5, **more)
            for more in ({}, {"add_self_loops": False}, {"normalize": False}, {"bias": False})
        )
    ),
    "GeneralConv": recipe(*H)(
        opt(),
        opt(ATTR, in_edge_channels=4),
        *aggrs("mean", "max"),
        opt(skip_linear=True),
        opt(directed_msg=False),
        opt(heads=2),
        opt(attention=True, heads=2),
        opt(attention=True, attention_type="dot_product"),
        opt(l2_normalize=True),
        opt(pair),
        opt(ATTR, in_edge_channels=4, directed_msg=False, attention=True),
    ),
    "HGTConv": recipe(6, 8)(
        *(opt(hetero, metadata=HOMOGENEOUS, heads=heads) for heads in (1, 2)),
        *(opt(typed, on="hetero", metadata=HETERO, heads=heads) for heads in (1, 2, 4)),
        opt(typed_filtered, on="hetero", metadata=HETERO),
    ),
    "HEATConv": recipe(*H)(
        *(
            opt(
                takes("x", "edge_index", "node_type", "edge_type", "edge_attr"),
                num_node_types=2,
                num_edge_types=NUM_RELATIONS,
                edge_type_emb_dim=3,
                edge_dim=4,
                edge_attr_emb_dim=5,
                **more,
            )
            for more in ({}, {"heads": 2}, {"heads": 2, "concat": False}, {"root_weight": False})
        ),
    ),
    "HeteroConv": recipe()(
        *(
            opt(hetero, convs=Later(lambda: {k: pyg.SAGEConv(6, 8) for k in RELATIONS}, "SAGEConv"), aggr=aggr)
            for aggr in ("sum", "cat")
        ),
        *(
            opt(typed, on="hetero", convs=each("SAGEConv", (6, 6), 8), aggr=aggr)
            for aggr in ("sum", "mean", "max", "min", "cat", None)
        ),
        *(
            opt(typed, on="hetero", convs=each(name, (6, 6), 8, add_self_loops=False, heads=2), aggr=aggr)
            for name in ("GATConv", "GATv2Conv")
            for aggr in ("sum", "cat")
        ),
        opt(typed, on="hetero", convs=each("GraphConv", (6, 6), 8)),
        opt(typed_weight, on="hetero", convs=each("GraphConv", (6, 6), 8)),
        opt(typed, on="hetero", convs=each("TransformerConv", (6, 6), 8)),
        opt(typed, on="hetero", convs=each("SAGEConv", (6, 6), 8, aggr="max")),
        opt(typed_filtered, on="hetero", convs=each("SAGEConv", (6, 6), 8)),
        opt(typed, on="hetero", convs=within(layer("GCNConv", 6, 8))),
        opt(typed_filtered, on="hetero", convs=within(layer("GCNConv", 6, 8))),
        opt(typed, on="hetero", convs=within(layer("ChebConv", 6, 8, K=2))),
        opt(typed, on="hetero", convs=within(layer("GCNConv", 6, 8, flow="target_to_source"))),
    ),
    "HANConv": recipe(6, 8)(
        *(opt(hetero, metadata=HOMOGENEOUS, heads=heads) for heads in (1, 2)),
        *(opt(typed, on="hetero", metadata=HETERO, heads=heads) for heads in (1, 2)),
        opt(typed_filtered, on="hetero", metadata=HETERO),
    ),
    "LGConv": recipe()(opt(), opt(WEIGHT), opt(normalize=False), opt(WEIGHT, normalize=False)),
    "PointGNNConv": recipe(mlp(6, 3), mlp(9, 7), mlp(7, 6))(
        opt(takes("x", "pos", "edge_index")), opt(takes("x", "pos", "edge_index"), aggr="mean")
    ),
    "GPSConv": recipe(6)(
        opt(conv=None),
        opt(conv=layer("GCNConv", 6, 6), heads=2),
        opt(conv=layer("GCNConv", 6, 6), attn_type="performer"),
        opt(conv=layer("SAGEConv", 6, 6), norm=None),
        opt(conv=None, norm=None),
        opt(conv=None, norm=None, attn_type="performer", heads=2),
        opt(conv=None, norm=None, attn_kwargs={"add_bias_kv": True, "add_zero_attn": True}),
        opt(one_graph, conv=layer("SGConv", 6, 6), norm="layer_norm", heads=3),
        opt(one_graph, conv=layer("SGConv", 6, 6), norm="graph_norm", attn_type="performer"),
    ),
    "AntiSymmetricConv": recipe(6)(
        opt(), opt(num_iters=3), opt(phi=layer("SAGEConv", 6, 6)), opt(WEIGHT), opt(act=None, bias=False)
    ),
    "DirGNNConv": recipe()(
        opt(conv=layer("SAGEConv", 6, 8)),
        opt(conv=layer("GCNConv", 6, 8)),
        opt(conv=layer("SAGEConv", 6, 8), root_weight=False, alpha=0.2),
        opt(conv=layer("SAGEConv", 6, 8), on="undirected"),
        opt(conv=layer("GCNConv", 6, 8), on="undirected"),
    ),
    "MixHopConv": recipe(*H)(opt(), opt(WEIGHT, powers=[0, 1, 3]), opt(powers=[2]), opt(add_self_loops=False)),
    "MeshCNNConv": recipe(*H)(opt(on="mesh")),
}
