"""What the benchmarks share: quiet training, statistics of a few runs, tables that no pipe cuts."""

from __future__ import annotations

import logging
import math
import statistics
import warnings
from collections.abc import Sequence
from typing import Any

import lightning as L
from rich.console import Console

QUIET_TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
"""Arguments of a Trainer that does nothing but train."""


def quiet() -> None:
    """Silence what Lightning says about every fit."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*LeafSpec.*|.*does not have many workers.*|.*GPU available but not used.*")
    # The halo strategies make every logged scalar a mean over the whole graph, which Lightning cannot know.
    warnings.filterwarnings("ignore", ".*sync_dist=True.*")


def make_trainer(strategy: Any, devices: int, **options: Any) -> L.Trainer:
    """Return a Trainer that prints and stores nothing."""
    quiet()
    return L.Trainer(strategy=strategy, devices=devices, **(QUIET_TRAINER | options))


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return statistics.fmean(values)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean, the sample's deviation over the root of its size; NaN for one value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def make_console() -> Console:
    """Return a console whose tables are as wide as they need to be in files and pipes."""
    console = Console()
    return console if console.is_terminal else Console(width=140)
