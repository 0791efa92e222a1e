"""What the benchmarks share: quiet training, statistics of a few runs, tables that no pipe cuts."""

from __future__ import annotations

import logging
import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import lightning as L
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

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


def spread(values: Sequence[float], sign: str = "") -> str:
    """Return mean and standard error for people."""
    return f"{mean(values):{sign}.4f} ± {standard_error(values):.4f}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that is not below a share of the values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def make_table(rows: Iterable[Sequence[str]]) -> Table:
    """Return a table that can go into a Markdown page as it is; the first of the rows is its head."""
    head, *body = rows
    table = Table(box=MARKDOWN)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in body:
        table.add_row(*row)
    return table


def make_console() -> Console:
    """Return a console whose tables are as wide as they need to be in files and pipes."""
    console = Console()
    return console if console.is_terminal else Console(width=160)
