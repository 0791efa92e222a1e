"""Local aggregation of an attached layer: one sparse product against PyG's messages, forward and backward, on one core.

    python benchmarks/aggregation.py --nodes 85000 --edges 1200000 --features 256

Both run in this process, in turn, on the same part of the same graph, so that only the ratio counts. The product reads and writes
each row once per edge, as messages do, but makes no tensor of E x F values, which messages write and read about five times.
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
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo import interceptors
from lightning_gnncomm.halo.attach import attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.testing import run_threads


def seconds(part: Data, wire: Wire, features: int, repeats: int) -> list[float]:
    """Return the times of a forward and backward pass, the first left out."""
    layer = SAGEConv(features, 1, root_weight=False)
    context = HaloContext(Channel(wire, IdentityCodec(), Synchronous()))
    attachment = attach(layer, context)
    x = torch.randn(part.num_nodes, features, requires_grad=True)
    times = []
    for step in range(repeats + 1):
        start = time.perf_counter()
        with context.step(part.halo, part.to_dict(), step, exact=False):
            layer(x, part.edge_index).sum().backward()
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

    def rank_main(wire: Wire) -> list[float]:
        return seconds(build_part(graph, assignment, wire.rank, 2), wire, options.features, options.repeats)

    product = run_threads(rank_main, 2, timeout=600)[0]
    with mock.patch.object(interceptors, "aggregator", return_value=None):
        messages = run_threads(rank_main, 2, timeout=600)[0]
    ratio = statistics.median(messages) / statistics.median(product)
    print(
        f"messages {statistics.median(messages):.2f} s, product {statistics.median(product):.2f} s, ratio {ratio:.1f}x"
    )


if __name__ == "__main__":
    main()
