"""What each host runs: trainings of several lengths, and what this host's interface sent during each."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning as L
import torch.distributed as dist

from lightning_gnncomm import CommunicationMonitor, GraphDataModule, HaloStrategy, NodeClassifier

GRAPH = "rmat:scale=13"
INTERFACE = "eth0"


@dataclass
class Measured:
    """One training, on one host.

    Args:
        tx_bytes: Bytes its interface sent, headers included.
        tx_packets: Packets its interface sent.
        halo_bytes: Bytes of halo rows handed to torch.distributed.
        gradient_bytes: Bytes of parameter gradients handed to the all-reduce.
        monitor_bytes: Bytes of halo rows that the callback counted over both hosts.
    """

    tx_bytes: int
    tx_packets: int
    halo_bytes: int
    gradient_bytes: int
    monitor_bytes: int


def sent_by_interface() -> tuple[int, int]:
    """Return bytes and packets this host's interface has sent, as the kernel counts them."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            fields = numbers.split()
            return int(fields[8]), int(fields[9])
    raise KeyError(INTERFACE)


def together() -> tuple[int, int]:
    """Return the interface's count at a moment when neither host has anything under way."""
    if dist.is_initialized():
        dist.barrier()
    return sent_by_interface()


def fit(strategy: str, epochs: int, folder: str) -> Measured:
    """Train once."""
    L.seed_everything(0, verbose=False)
    before = together()
    monitor = CommunicationMonitor(table=False)
    trainer = L.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        num_nodes=2,
        max_epochs=epochs,
        callbacks=[monitor],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Random parts need many rows of each other, so that what is counted outweighs what is not.
    data = GraphDataModule(GRAPH, partition="random", root=folder, progress=False)
    trainer.fit(NodeClassifier("GCN", hidden_channels=256), datamodule=data)
    after = together()
    counted = trainer.strategy
    assert isinstance(counted, HaloStrategy)
    return Measured(
        after[0] - before[0],
        after[1] - before[1],
        counted.traffic.total().sent_bytes,
        counted.gradient_traffic.sent_bytes,
        monitor.summary.halo.sent_bytes,
    )


def main(folder: str, strategies: str, lengths: str) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Connects the hosts; what that takes is nobody's traffic.
    fit("halo", 1, folder)
    results = {
        strategy: [asdict(fit(strategy, int(epochs), folder)) for epochs in lengths.split(",")]
        for strategy in strategies.split(",")
    }
    Path(folder, f"host{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
