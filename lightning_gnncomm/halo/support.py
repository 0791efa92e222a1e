"""Which layers and modules are known to mean the same on several ranks; the conformance suite keeps the lists true."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["EXACT_LAYERS", "MIXES_ROWS", "REFUSED_MODULES", "ROW_WISE"]

EXACT_LAYERS = frozenset(
    {
        "AGNNConv",
        "APPNP",
        "ARMAConv",
        "AntiSymmetricConv",
        "CGConv",
        "ChebConv",
        "ClusterGCNConv",
        "DNAConv",
        "DirGNNConv",
        "EGConv",
        "EdgeConv",
        "FAConv",
        "FastRGCNConv",
        "FeaStConv",
        "FiLMConv",
        "GATConv",
        "GATv2Conv",
        "GCN2Conv",
        "GCNConv",
        "GENConv",
        "GINConv",
        "GINEConv",
        "GMMConv",
        "GatedGraphConv",
        "GeneralConv",
        "GraphConv",
        "HANConv",
        "HEATConv",
        "HGTConv",
        "HeteroConv",
        "LEConv",
        "LGConv",
        "MFConv",
        "MeshCNNConv",
        "MixHopConv",
        "NNConv",
        "PDNConv",
        "PNAConv",
        "PPFConv",
        "PointGNNConv",
        "PointNetConv",
        "PointTransformerConv",
        "RGATConv",
        "RGCNConv",
        "ResGatedGraphConv",
        "SAGEConv",
        "SGConv",
        "SSGConv",
        "SignedConv",
        "SimpleConv",
        "SparseLinear",
        "SplineConv",
        "TAGConv",
        "TransformerConv",
        "WLConvContinuous",
    }
)
"""Message-passing layers of PyG that are exact with every option that is not refused."""

_NEIGHBOURS = "it builds its own graph from the nearest neighbours among all nodes, of which this rank holds a part"
_KERNELS = "it runs kernels of its own over the adjacency, in which no exchange fits"
_ATTENDS = "it attends to every node of the graph, of which this rank holds a part"

REFUSED_MODULES = {
    "CuGraphGATConv": _KERNELS,
    "CuGraphRGCNConv": _KERNELS,
    "CuGraphSAGEConv": _KERNELS,
    "DynamicEdgeConv": _NEIGHBOURS,
    "EquilibriumAggregation": "it solves one optimisation for all nodes together, of which this rank holds a part",
    "FusedGATConv": _KERNELS,
    "GPSConv": _ATTENDS,
    "GravNetConv": _NEIGHBOURS,
    "HypergraphConv": "its hyperedges join nodes of several ranks; only edges between two nodes are partitioned",
    "PANConv": "it multiplies the adjacency with itself, which reaches beyond the neighbours that this rank knows",
    "Polynormer": _ATTENDS,
    "SGFormer": _ATTENDS,
    "SuperGATConv": "its attention loss samples edges and non-edges of the whole graph, of which this rank holds a part",
    "WLConv": "it numbers colours in the order in which a process meets them, so ranks would disagree; run it before partitioning",
    "XConv": _NEIGHBOURS,
}
"""PyG modules that cannot be exact, and why, in the words a user reads."""

ROW_WISE = (
    "torch_geometric.nn.dense.linear.",
    "torch_geometric.nn.models.basic_gnn.",
    "torch_geometric.nn.models.deepgcn.",
    "torch_geometric.nn.models.jumping_knowledge.",
    "torch_geometric.nn.models.linkx.",
    "torch_geometric.nn.models.mask_label.",
    "torch_geometric.nn.models.mlp.",
    "torch_geometric.nn.models.pmlp.",
    "torch_geometric.nn.models.rect.",
    "torch_geometric.nn.module_dict.",
    "torch_geometric.nn.norm.batch_norm.BatchNorm",
    "torch_geometric.nn.norm.diff_group_norm.DiffGroupNorm",
    "torch_geometric.nn.norm.layer_norm.HeteroLayerNorm",
    "torch_geometric.nn.norm.msg_norm.MessageNorm",
    "torch_geometric.nn.parameter_dict.",
    "torch_geometric.nn.sequential.",
    "torch_geometric.utils._trim_to_layer.",
)
"""Where PyG modules are defined that never mix nodes by themselves: what they contain is checked for itself."""

MIXES_ROWS: tuple[type[nn.Module], ...] = (
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    torch.nn.modules.instancenorm._InstanceNorm,
)
"""Torch modules that compute across rows, which would be the rows of one rank only."""
