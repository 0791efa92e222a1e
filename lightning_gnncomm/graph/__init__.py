"""Graphs in parts: assigning nodes, cutting, storing and loading."""

from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.check import check_graph
from lightning_gnncomm.graph.features import GraphFacts, graph_facts, prepare_graph
from lightning_gnncomm.graph.partition import build_part, build_parts, join_parts, trivial_part
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.graph.quality import PartitionQuality, partition_quality
from lightning_gnncomm.graph.sources import load_graph
from lightning_gnncomm.graph.store import (
    describe_source,
    load_part,
    partition_and_store,
    read_manifest,
    save_partition,
)

__all__ = [
    "GraphFacts",
    "HaloPlan",
    "PartitionQuality",
    "assign",
    "build_part",
    "build_parts",
    "check_graph",
    "describe_source",
    "graph_facts",
    "join_parts",
    "load_graph",
    "load_part",
    "partition_and_store",
    "partition_quality",
    "prepare_graph",
    "read_manifest",
    "save_partition",
    "trivial_part",
]
