"""Recipes of norms, and of aggregations in a layer that does nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import aggr as pyg_aggr

from tests.conformance.convs import DEGREE
from tests.conformance.recipes import EDGES, Later, Recipe, labelled, mlp, opt, recipe, takes, unfit

__all__ = ["AGGREGATIONS", "NORMS", "aggregation_case"]

X = takes("x")


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


AGGREGATIONS: dict[str, Recipe] = {
    "Aggregation": unfit(),
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


def aggregation_case(name: str) -> Callable[..., nn.Module]:
    """Return what makes a layer that only aggregates, by this class."""
    return lambda *args, **kwargs: pyg.SimpleConv(aggr=getattr(pyg_aggr, name)(*args, **kwargs))
