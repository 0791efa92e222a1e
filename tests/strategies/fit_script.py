"""A training script as a user starts it; the test says how many ranks and what should go wrong."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

import lightning_gnncomm  # noqa: F401
from tests.strategies.project import Project, graph, make_trainer


class Telling(L.Callback):
    """Prints a line whenever a step gets somewhere, so that a test can kill the ranks there."""

    def _tell(self, *_: Any, **__: Any) -> None:
        print("reached", flush=True)

    on_train_batch_start = on_before_zero_grad = on_before_backward = on_after_backward = _tell
    on_before_optimizer_step = on_train_batch_end = on_save_checkpoint = on_validation_batch_start = _tell


class Troubled(Project):
    """Runs into trouble on one rank."""

    def __init__(self, trouble: str | None, trouble_rank: int) -> None:
        super().__init__()
        self.trouble, self.trouble_rank = trouble, trouble_rank

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        if self.current_epoch == 2 and self.global_rank == self.trouble_rank:
            if self.trouble == "raise":
                raise KeyError("trouble in the third step")
            if self.trouble == "die":
                os._exit(3)
            if self.trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            if self.trouble == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
        return super().training_step(batch, batch_idx)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="halo")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--trouble")
    parser.add_argument("--trouble-rank", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--tell", action="store_true", help="print what steps reach")
    parser.add_argument("--out")
    parser.add_argument("--checkpoints", help="folder; goes on from the last one in it")
    parser.add_argument("--other-tree", action="store_true")
    arguments = parser.parse_args()
    if arguments.other_tree:
        import pytorch_lightning

        pytorch_lightning.Trainer(strategy=arguments.strategy, accelerator="cpu", devices=2)
    module = Troubled(arguments.trouble, arguments.trouble_rank)
    options: dict[str, Any] = {"num_nodes": arguments.num_nodes, "max_epochs": arguments.epochs}
    last = None
    if arguments.checkpoints:
        keep = ModelCheckpoint(
            arguments.checkpoints, save_last=True, every_n_train_steps=1, enable_version_counter=False
        )
        options |= {"enable_checkpointing": True, "callbacks": [keep]}
        last = "last" if Path(arguments.checkpoints, "last.ckpt").exists() else None
    if arguments.tell:
        options["callbacks"] = [*options.get("callbacks", []), Telling()]
    trainer = make_trainer(arguments.strategy, arguments.devices, **options)
    loader = DataLoader([graph()])
    trainer.fit(module, loader, loader, ckpt_path=last)
    if arguments.checkpoints and trainer.global_rank == 0:
        torch.save(module.state_dict(), Path(arguments.checkpoints, "state.pt"))
    if trainer.global_rank == 0:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        Path(arguments.out).write_text(json.dumps(metrics))


if __name__ == "__main__":
    sys.exit(main())
