"""The subcommands that train: LightningCLI with this package's model, data and monitor as defaults."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lightning_gnncomm.callbacks import CommunicationMonitor

__all__ = ["TRAINING_COMMANDS", "GraphCLI", "run_training"]

TRAINING_COMMANDS = {
    "fit": "train a model",
    "validate": "evaluate a checkpoint on the validation nodes",
    "test": "evaluate a checkpoint on the test nodes",
    "predict": "write the outputs of all nodes, in their original order, to a file",
}


class GraphCLI(LightningCLI):
    """LightningCLI with a NodeClassifier on a GraphDataModule, unless another ``class_path`` is given for either."""

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Add what only one subcommand takes."""
        super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
        self._subcommand_parsers["predict"].add_argument(
            "--output", type=str, default="predictions.pt", help="File for the outputs, written by torch.save."
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the monitor, and say which model and data are meant where none are named."""
        parser.add_lightning_class_args(CommunicationMonitor, "communication")
        parser.set_defaults(
            {
                "model": {"class_path": "lightning_gnncomm.models.NodeClassifier", "init_args": {"model": "GCN"}},
                "data": {"class_path": "lightning_gnncomm.data.GraphDataModule", "init_args": {"data": "digits"}},
            }
        )

    def predict(self, **kwargs: Any) -> None:
        """Predict, and let rank 0 write the result."""
        outputs = self.trainer.predict(**kwargs)
        if not self.trainer.is_global_zero or not outputs:
            return
        path = Path(self.config["predict"]["output"])
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(outputs[0] if len(outputs) == 1 else outputs, path)
        print(f"Wrote {path}")


def run_training(arguments: list[str] | None = None) -> None:
    """Run one of :data:`TRAINING_COMMANDS`.

    Args:
        arguments: The command and its options; ``sys.argv`` if not given.

    Raises:
        SystemExit: With status 2 if the arguments are wrong.
    """
    # A console script does not see the modules beside it; `python -m` does.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    GraphCLI(
        L.LightningModule,
        L.LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        # An optimizer is built before the data is there, so before a model that takes its sizes from the data.
        auto_configure_optimizers=False,
        seed_everything_default=0,
        # One batch is one epoch, so every step is worth a line in the log.
        trainer_defaults={"max_epochs": 100, "log_every_n_steps": 1},
        save_config_kwargs={"overwrite": True},
        parser_kwargs={"prog": "gnncomm"},
        args=arguments,
    )
