"""Test your own layers and models: threads or processes as ranks, toy graphs, and parity with a single process."""

from lightning_gnncomm.testing.graphs import random_graph, random_hetero_graph
from lightning_gnncomm.testing.parity import (
    Training,
    assert_matches_single_process,
    train_distributed,
    train_single,
)
from lightning_gnncomm.testing.processes import RankPool, run_ranks
from lightning_gnncomm.testing.threads import ThreadWire, run_threads

__all__ = [
    "RankPool",
    "ThreadWire",
    "Training",
    "assert_matches_single_process",
    "random_graph",
    "random_hetero_graph",
    "run_ranks",
    "run_threads",
    "train_distributed",
    "train_single",
]
