"""Time to partition a graph, beside METIS's own time on the same adjacency with the same options.

    python benchmarks/partitioning.py npz:PATH/wordnet_lexname.npz npz:PATH/partition_mdual.npz --parts 8

"METIS" is one call of pymetis on a ready CSR. "Ours" starts from edge_index: the undirected CSR without duplicates, METIS, and
the layout of all parts (ids, halos, plans). Both are timed in turn, pair by pair; the ratio is the median over pairs of the
CPU time of this process, which other work on the machine disturbs least; both are single-threaded. "Stored" is everything
from the loaded graph to files on disk, in elapsed time, once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pymetis
from numpy.typing import NDArray
from rich.table import Table
from shared import make_console
from torch_geometric.data import Data

from lightning_gnncomm.graph.assign import assign, undirected_csr
from lightning_gnncomm.graph.layout import partition_layout
from lightning_gnncomm.graph.quality import partition_quality
from lightning_gnncomm.graph.sources import load_graph
from lightning_gnncomm.graph.store import partition_and_store

Parts = NDArray[Any]


def ready_metis(graph: Data, num_parts: int) -> Callable[[], Parts]:
    """Return METIS on a CSR made beforehand, with the options that ``assign`` gives it for seed 0."""
    assert graph.edge_index is not None and graph.num_nodes is not None
    adjacency = undirected_csr(graph.edge_index, graph.num_nodes)
    index_type = pymetis.zero_copy_dtype()
    csr = pymetis.CSRAdjacency(adjacency.indptr.astype(index_type), adjacency.indices.astype(index_type))
    options = pymetis.Options(seed=1, objtype=int(pymetis.ObjType.VOL))
    return lambda: np.asarray(pymetis.part_graph(num_parts, csr, recursive=False, options=options).vertex_part)


def ours(graph: Data, num_parts: int) -> Callable[[], Parts]:
    """Return what the package does to know every part."""

    def run() -> Parts:
        assignment = assign(graph, num_parts)
        assert graph.edge_index is not None
        partition_layout(graph.edge_index, assignment, num_parts)
        parts: Parts = assignment.numpy()
        return parts

    return run


def cpu_seconds(work: Callable[[], Parts]) -> float:
    """Return the CPU time of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(spec: str, num_parts: int, pairs: int) -> list[str]:
    """Return a row of the table."""
    graph = load_graph(spec)
    metis, package = ready_metis(graph, num_parts), ours(graph, num_parts)
    assert np.array_equal(metis(), package()), "not the same options: the assignments differ"
    times = []
    for number in range(pairs):
        both = (metis, package) if number % 2 == 0 else (package, metis)
        pair = {work: cpu_seconds(work) for work in both}
        times.append((pair[metis], pair[package]))
    ratios = [b / a for a, b in times]
    with tempfile.TemporaryDirectory() as root:
        start = time.perf_counter()
        partition_and_store(graph, num_parts, root=root, progress=False)
        stored = time.perf_counter() - start
    quality = partition_quality(graph, assign(graph, num_parts), num_parts)
    return [
        spec.rpartition("/")[2],
        f"{graph.num_nodes:,}",
        f"{graph.num_edges:,}",
        f"{quality.rows_on_wire:,}",
        *(f"{statistics.median(column):.3f}" for column in zip(*times, strict=True)),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{stored:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="+", help="names as GraphDataModule takes them, e.g. npz:PATH/cora.npz")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    table = Table(
        title=f"Partitioning into {options.parts} parts, seconds",
        caption=f"CPU time, median of {options.pairs} pairs; Stored: elapsed, with cutting, checksums and files.",
    )
    table.add_column("Graph", no_wrap=True)
    for name in ("Nodes", "Edges", "Halo rows", "METIS", "Ours", "Ratio", "Range", "Stored"):
        table.add_column(name, justify="right", no_wrap=True)
    for spec in options.graphs:
        table.add_row(*measure(spec, options.parts, options.pairs))
    make_console().print(table)


if __name__ == "__main__":
    main()
