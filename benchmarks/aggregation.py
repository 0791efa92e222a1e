"""Local aggregation of an attached layer: sparse products against PyG's messages, forward and backward, on one core.

    python benchmarks/aggregation.py --nodes 85000 --edges 1200000 --features 256

All run in this process, in turn, on the same part of the same graph, so that only the ratio counts. The product reads and writes
each row once per edge, as messages do, but makes no tensor of E x F values, which messages write and read about five times. A layer
that is called with ``adj_t`` takes its own fused path; without the kept transpose, torch transposes in each backward pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from unittest import mock

import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.adjacency import with_adjacency
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo import interceptors, sparse
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.testing import run_threads


def seconds(part: Data, wire: Wire, features: int, repeats: int, form: str) -> list[float]:
    """Return the times of a forward and backward pass of a layer called with ``form``, the first left out."""
    layer = SAGEConv(features, 1, root_weight=False)
    context = HaloContext(Channel(wire, IdentityCodec(), Synchronous()))
    attachment = attach(layer, context)
    x = torch.randn(part.num_nodes, features, requires_grad=True)
    times = []
    for step in range(repeats + 1):
        start = time.perf_counter()
        with context.step(part.halo, part.to_dict(), step, exact=False):
            layer(x, part[form]).sum().backward()
        times.append(time.perf_counter() - start)
    attachment.detach()
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=85_000)
    parser.add_argument("--edges", type=int, default=1_200_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(options.nodes, (2, options.edges), generator=generator)
    # One rank owns nearly everything, so that its work is not shared with the other.
    assignment = torch.zeros(options.nodes, dtype=torch.long)
    assignment[-1] = 1
    graph = Data(edge_index=edges, num_nodes=options.nodes)

    def measure(form: str) -> float:
        def rank_main(wire: Wire) -> list[float]:
            part = with_adjacency(build_part(graph, assignment, wire.rank, 2))
            return seconds(part, wire, options.features, options.repeats, form)

        return statistics.median(run_threads(rank_main, 2, timeout=600)[0])

    with mock.patch.object(interceptors, "aggregator", return_value=None):
        times = {"edge_index, messages": measure("edge_index")}
    times["edge_index, product"] = measure("edge_index")
    # The layer's own product, as if nothing were kept.
    with mock.patch.object(sparse, "_directions", return_value=None):
        times["adj_t, PyG's product"] = measure("adj_t")
    times["adj_t, product"] = measure("adj_t")
    for name, time_ in times.items():
        print(f"{name:22} {time_:6.2f} s, {times['edge_index, messages'] / time_:.1f} times as fast as messages")


if __name__ == "__main__":
    main()
