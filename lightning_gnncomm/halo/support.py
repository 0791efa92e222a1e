"""Which layers and modules are known to mean the same on several ranks; the conformance suite keeps the lists true."""

from __future__ import annotations

from torch import nn

__all__ = ["EXACT_LAYERS", "MIXES_ROWS", "REFUSED_MODULES", "REFUSED_PLACES", "ROW_WISE"]

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
        "GPSConv",
        "GatedGraphConv",
        "GeneralConv",
        "GraphConv",
        "HANConv",
        "HEATConv",
        "HGTConv",
        "HeteroConv",
        "LEConv",
        "LGConv",
        "LabelPropagation",
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
        "SuperGATConv",
        "TAGConv",
        "TransformerConv",
        "WLConvContinuous",
    }
)
"""Message-passing layers of PyG that are exact with every option that is not refused."""

_NEIGHBOURS = (
    "it builds its own graph from the nearest neighbours among all nodes, of which this rank holds a part. Where positions do not "
    "change, build the graph before partitioning and use a layer that takes edges (EdgeConv, PointNetConv)"
)
_KERNELS = "it runs kernels of its own over the adjacency, in which no exchange fits; use the layer of the same name without them"
_GRAPH_LEVEL = "it gives one output for each of many small graphs, which need no partition; use Lightning's 'ddp'"
_MOLECULE = "it draws the edges of molecules itself, by distance, and these need no partition; use Lightning's 'ddp'"
_LINK_LEVEL = (
    "it scores pairs of nodes, of which one may lie on another rank; train its encoder alone, on a loss over nodes"
)
_OWN_LOSS = "its losses sample pairs of the whole graph, of which a rank holds a part; train its encoder alone, on a loss over nodes"
_WALKS = (
    "it is an embedding table over all nodes, trained on random walks through the whole graph; train it first, and give the table "
    "as features"
)
_EVENTS = "it works on events over time, not on one partitioned graph"

REFUSED_MODULES = {
    "ARGA": _OWN_LOSS,
    "ARGVA": _OWN_LOSS,
    "ARLinkPredictor": _LINK_LEVEL,
    "AttentiveFP": _GRAPH_LEVEL,
    "CuGraphGATConv": _KERNELS,
    "CuGraphRGCNConv": _KERNELS,
    "CuGraphSAGEConv": _KERNELS,
    "DeepGraphInfomax": (
        "its summary and its corruption run over all nodes, of which this rank holds a part; train its encoder alone, on a loss "
        "over nodes"
    ),
    "DimeNet": _MOLECULE,
    "DimeNetPlusPlus": _MOLECULE,
    "DynamicEdgeConv": _NEIGHBOURS,
    "EquilibriumAggregation": (
        "it solves one optimisation for all nodes together, of which this rank holds a part; use another aggregation"
    ),
    "FusedGATConv": _KERNELS,
    "GAE": _OWN_LOSS,
    "GNNFF": _MOLECULE,
    "GPSE": _GRAPH_LEVEL,
    "GraphUNet": "it ranks all nodes to pool them, of which this rank holds a part; use a model that keeps its nodes",
    "GravNetConv": _NEIGHBOURS,
    "HypergraphConv": (
        "its 'edge_index' holds pairs of a node and a hyperedge, which a partition would take for edges between two nodes. Make "
        "hyperedges nodes of the graph, or join the nodes of a hyperedge by edges, before partitioning"
    ),
    "InnerProductDecoder": _LINK_LEVEL,
    "LPFormer": _LINK_LEVEL,
    "LightGCN": "it scores pairs of nodes from an embedding table over all nodes; use LGConv layers on features",
    "MetaLayer": (
        "it hands the rows at both ends of edges to models of yours, and one end may lie on another rank; write it as a "
        "MessagePassing layer"
    ),
    "MetaPath2Vec": _WALKS,
    "NeuralFingerprint": _GRAPH_LEVEL,
    "Node2Vec": _WALKS,
    "PANConv": (
        "it multiplies the adjacency with itself, which reaches beyond the neighbours that this rank knows; use layers of one hop "
        "each (TAGConv, MixHopConv)"
    ),
    "QFormer": "it lets all rows attend to each other, of which this rank holds a part; use GPSConv",
    "RENet": _EVENTS,
    "SchNet": _MOLECULE,
    "TGNMemory": _EVENTS,
    "VGAE": _OWN_LOSS,
    "ViSNet": _MOLECULE,
    "WLConv": (
        "it numbers colours in the order in which a process meets them, so ranks would disagree; run it before partitioning, or "
        "use WLConvContinuous"
    ),
    "XConv": _NEIGHBOURS,
}
"""PyG modules that cannot be exact, and why, in the words a user reads: what is in the way, and what to do instead."""

REFUSED_PLACES = {
    "torch_geometric.nn.aggr.": (
        "outside a message-passing layer it reduces over rows of the whole graph, of which this rank holds a part; use it as the "
        "'aggr' of a layer"
    ),
    "torch_geometric.nn.dense.": "it takes the dense adjacency of a whole graph; use the layer of the same name that takes edges",
    "torch_geometric.nn.kge.": _LINK_LEVEL,
    "torch_geometric.nn.pool.": "it pools nodes that lie on several ranks; use a model that keeps its nodes",
}
"""Where PyG modules are defined that cannot be exact, whatever their name."""

ROW_WISE = (
    "torch_geometric.nn.attention.performer.",
    "torch_geometric.nn.attention.polynormer.",
    "torch_geometric.nn.attention.sgformer.",
    "torch_geometric.nn.dense.linear.",
    "torch_geometric.nn.encoding.",
    "torch_geometric.nn.models.basic_gnn.",
    "torch_geometric.nn.models.correct_and_smooth.",
    "torch_geometric.nn.models.deepgcn.",
    "torch_geometric.nn.models.gpse.GPSENodeEncoder",
    "torch_geometric.nn.models.jumping_knowledge.",
    "torch_geometric.nn.models.linkx.",
    "torch_geometric.nn.models.mask_label.",
    "torch_geometric.nn.models.mlp.",
    "torch_geometric.nn.models.pmlp.",
    "torch_geometric.nn.models.polynormer.",
    "torch_geometric.nn.models.rect.",
    "torch_geometric.nn.models.rev_gnn.",
    "torch_geometric.nn.models.sgformer.",
    "torch_geometric.nn.models.signed_gcn.",
    "torch_geometric.nn.module_dict.",
    "torch_geometric.nn.norm.batch_norm.BatchNorm",
    "torch_geometric.nn.norm.diff_group_norm.DiffGroupNorm",
    "torch_geometric.nn.norm.layer_norm.HeteroLayerNorm",
    "torch_geometric.nn.norm.msg_norm.MessageNorm",
    "torch_geometric.nn.parameter_dict.",
    "torch_geometric.nn.sequential.",
    "torch_geometric.utils._trim_to_layer.",
)
"""Where PyG modules are defined that mix nodes only through what they contain, which is checked for itself, or is intercepted."""

MIXES_ROWS: tuple[type[nn.Module], ...] = (
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
"""Torch modules that compute across rows, which would be the rows of one rank only."""
