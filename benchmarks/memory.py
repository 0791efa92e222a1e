"""Peak memory of a rank over the size of its part.

    python benchmarks/memory.py npz:PATH/wordnet_lexname.npz --parts 1 2 4 8

The graph is partitioned and stored beforehand. Fresh processes then load their parts and train. A process's peak is what its
resident memory (the kernel's VmHWM, which getrusage reports too) rose above its resident memory after imports and a training
on a tiny graph, so that what PyTorch needs anyway is not in it. The largest of the ranks is shown. Loading maps the part's file
and costs nothing until it is read, so every value is read once.

Training is predicted to need the part and what the first layer, the widest, makes at a time. For a part of n nodes, h halo rows
and E edges, and H hidden columns:

    several parts:  part + 4 H (6 n + h) + 40 (E + n)
    one part:       part + 4 H (4 n + 2 (E + n))

since several parts aggregate by a sparse product (40 bytes an edge: the list with self-loops, a CSR matrix and its transpose), and
one part is plain PyG, which makes a row an edge before and after weighting it. This holds if freed memory goes back to the kernel.
glibc keeps blocks of up to 32 MB, which adds to the peak of small parts; with MALLOC_MMAP_THRESHOLD_=131072 in the environment it
gives them back.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: all ranks share this machine's cores

import torch
from rich.table import Table
from shared import make_console, make_trainer
from torch_geometric.data import Data

from lightning_gnncomm import GraphDataModule, HaloStrategy, NodeClassifier
from lightning_gnncomm.graph.store import load_part, partition_and_store
from lightning_gnncomm.testing import RankPool

MEGABYTE = 1e6


@dataclass
class Peak:
    """What one rank measured."""

    num_nodes: int
    num_halo: int
    num_edges: int
    part_bytes: int
    peak_bytes: int


def status(field: str) -> int:
    """Return a number of bytes from the kernel's account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def rise(work: Callable[[], Data]) -> Peak:
    """Return how far ``work``, which returns the part it has loaded, makes the resident memory rise."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls back to the resident memory
    before = status("VmRSS")
    part = work()
    peak = status("VmHWM") - before
    tensors = [value for value in part.to_dict().values() if isinstance(value, torch.Tensor)]
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Peak(int(part.num_nodes or 0), part.halo.num_halo, part.num_edges, nbytes, peak)


def predicted_bytes(peak: Peak, num_parts: int, hidden: int) -> int:
    """Return what training on a part should need, see above."""
    nodes, edges = peak.num_nodes, peak.num_edges + peak.num_nodes  # GCN adds self-loops
    if num_parts == 1:
        return peak.part_bytes + 4 * hidden * (4 * nodes + 2 * edges)
    return peak.part_bytes + 4 * hidden * (6 * nodes + peak.num_halo) + 40 * edges


def load(folder: str) -> Data:
    """Load this rank's part and read every value of it."""
    part = load_part(folder, torch.distributed.get_rank())
    for value in part.to_dict().values():
        if isinstance(value, torch.Tensor):
            value.sum()
    return part


class KeepingModule(GraphDataModule):
    """Keeps the part after training, as a script does that goes on to predict."""

    kept: Data

    def teardown(self, stage: str | None = None) -> None:
        assert self.part is not None
        self.kept = self.part


def fit(source: str, root: str, epochs: int, hidden: int) -> Data:
    """Train a 2-layer GCN and return the part it was trained on."""
    trainer = make_trainer(HaloStrategy(), torch.distributed.get_world_size(), max_epochs=epochs)
    data = KeepingModule(source, root=root, progress=False)
    trainer.fit(NodeClassifier("GCN", hidden_channels=hidden), datamodule=data)
    return data.kept


def measure(folder: str, root: str, epochs: int, hidden: int) -> Peak:
    """Load this rank's part, and train on it if there are ``epochs``."""
    fit("sbm:nodes=200", root, 2, hidden)
    if epochs:
        return rise(lambda: fit(folder, root, epochs, hidden))
    return rise(lambda: load(folder))


def largest(num_parts: int, folder: str, root: str, epochs: int, hidden: int) -> Peak:
    """Return the peak of the rank that rose most, of processes started for this."""
    with RankPool(num_parts) as pool:
        peaks = pool.run(measure, folder, root, epochs, hidden, timeout=600)
    return max(peaks, key=lambda peak: peak.peak_bytes)


def build_table(graph: str, epochs: int, hidden: int) -> Table:
    """Return an empty table."""
    table = Table(
        title=f"Peak memory of a rank above that before, {graph.rpartition('/')[2]}, MB",
        caption=f"The rank with the highest peak. Training: {epochs} epochs of a 2-layer GCN, {hidden} hidden.",
    )
    for name in ("Parts", "Nodes", "Edges", "Halo", "Part", "Load", "Train", "Predicted", "Train / first row"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="a name as GraphDataModule takes it, e.g. npz:PATH/wordnet_lexname.npz")
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=64)
    options = parser.parse_args()
    table = build_table(options.graph, options.epochs, options.hidden)
    first = None
    with tempfile.TemporaryDirectory() as root:
        for num_parts in options.parts:
            folder = str(partition_and_store(options.graph, num_parts, root=root, progress=False))
            loaded, train = (largest(num_parts, folder, root, epochs, options.hidden) for epochs in (0, options.epochs))
            first = first or train.peak_bytes
            predicted = predicted_bytes(train, num_parts, options.hidden)
            counts = (num_parts, train.num_nodes, train.num_edges, train.num_halo)
            sizes = (train.part_bytes, loaded.peak_bytes, train.peak_bytes, predicted)
            table.add_row(
                *(f"{count:,}" for count in counts),
                *(f"{size / MEGABYTE:,.0f}" for size in sizes),
                f"{train.peak_bytes / first:.3f}",
            )
    make_console().print(table)


if __name__ == "__main__":
    main()
