"""Test accuracy and bytes of exact and one-bit halos over several seeds, and of one process.

    python benchmarks/accuracy.py npz:PATH/cora.npz --parts 8 --seeds 10 --normalize-features

All schemes of a seed start from the same parameters, and both halo schemes drop the same positions, so their results are
compared in pairs. The accuracy of a run is the test accuracy at the epoch of best validation accuracy (the first of
several); that at the last epoch is shown too. Validation is exact in every scheme.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: all ranks share this machine's cores

import lightning as L
from rich.table import Table
from shared import make_console, make_trainer, mean, standard_error
from torch import Tensor
from torch_geometric.data import Data
from torchmetrics import Metric

from lightning_gnncomm import CommunicationMonitor, GraphDataModule, HaloStrategy, NodeClassifier
from lightning_gnncomm.graph.store import read_manifest
from lightning_gnncomm.models.labels import Stage, select_labelled
from lightning_gnncomm.models.metrics import update_metric
from lightning_gnncomm.slots import Role
from lightning_gnncomm.testing import RankPool

SINGLE, HALO, ONE_BIT = "one process", "halo", "sylvie_sync"
CODECS = {HALO: "identity", ONE_BIT: "one_bit"}
HALO_ROLES = (Role.FEATURE, Role.GRADIENT)
TITLES = {"best": "at best validation", "last": "at last epoch"}
STAGES: tuple[Stage, ...] = ("val", "test")


@dataclass(frozen=True)
class Setting:
    """What every run of a comparison has in common."""

    graph: str
    parts: int
    root: str
    model: str
    hidden: int
    layers: int
    dropout: float
    lr: float
    weight_decay: float
    epochs: int
    validate_every: int
    normalize_features: bool


class Message(NamedTuple):
    """A message of every training step: its width in values, and how often it was sent."""

    width: int
    exchanges: int


@dataclass
class Run:
    """What one training measured."""

    best: float
    last: float
    bytes_per_epoch: float
    compression: float
    seconds: float
    messages: list[Message]


class Classifier(NodeClassifier):
    """A NodeClassifier whose validation also measures the test nodes, from the same output."""

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        logits: Tensor = self(batch)
        for stage in STAGES:
            target, chosen = select_labelled(batch, stage, bool(self.multi_label))
            metric = self.metrics[f"{stage}_acc"]
            assert isinstance(metric, Metric)
            update_metric(metric, logits[chosen], target[chosen])
            self.log(f"{stage}_acc", metric, batch_size=len(target), on_step=False, on_epoch=True)


class Curve(L.Callback):
    """Keeps validation and test accuracy of every validation."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        values = trainer.callback_metrics
        self.points.append((float(values["val_acc"]), float(values["test_acc"])))

    def at_best_validation(self) -> float:
        return max(self.points, key=lambda point: point[0])[1]


def train(setting: Setting, scheme: str, seed: int) -> Run:
    """Train once; on several ranks each calls this."""
    L.seed_everything(seed, verbose=False)
    curve, monitor = Curve(), CommunicationMonitor(table=False)
    strategy = "auto" if scheme == SINGLE else HaloStrategy(codec=CODECS[scheme], seed=seed)
    trainer = make_trainer(
        strategy,
        1 if scheme == SINGLE else setting.parts,
        max_epochs=setting.epochs,
        check_val_every_n_epoch=setting.validate_every,
        callbacks=[curve, monitor],
    )
    data = GraphDataModule(
        setting.graph, root=setting.root, normalize_features=setting.normalize_features, progress=False
    )
    model = Classifier(
        setting.model,
        hidden_channels=setting.hidden,
        num_layers=setting.layers,
        dropout=setting.dropout,
        lr=setting.lr,
        weight_decay=setting.weight_decay,
    )
    start = time.perf_counter()
    trainer.fit(model, datamodule=data)
    seconds = time.perf_counter() - start
    summary = monitor.summary
    messages = [
        Message(record.dense_bytes // (4 * record.rows), record.exchanges)
        for slot, record in summary.slots.items()
        if slot.role in HALO_ROLES and record.rows
    ]
    return Run(
        curve.at_best_validation(),
        curve.points[-1][1],
        summary.bytes_per_epoch,
        summary.compression,
        seconds,
        messages,
    )


def run_all(setting: Setting, seeds: Sequence[int], say: Callable[[str], None]) -> dict[str, list[Run]]:
    """Train every scheme with every seed; the ranks are started once."""
    runs: dict[str, list[Run]] = {SINGLE: [], HALO: [], ONE_BIT: []}
    with RankPool(1) as alone, RankPool(setting.parts) as ranks:
        for seed in seeds:
            for scheme, done in runs.items():
                pool = alone if scheme == SINGLE else ranks
                done.append(pool.run(train, setting, scheme, seed, timeout=3600)[0])
                say(f"seed {seed}, {scheme}: test accuracy {done[-1].best:.4f}, fit {done[-1].seconds:.1f} s")
    return runs


def rows_on_wire(setting: Setting) -> int:
    """Rows that all ranks send in one exchange, as the partition says: known before anything is sent."""
    (folder,) = Path(setting.root).glob(f"*-{setting.parts}-parts-*")
    rows: int = read_manifest(folder)["quality"]["rows_on_wire"]
    return rows


def predicted_bytes(rows: int, messages: Sequence[Message], epochs: int, scheme: str) -> float:
    """Bytes an epoch of all ranks: a row of F values takes 4 F bytes exactly, 4 + ceil(F / 8) with one bit a value."""
    total = 0.0
    for width, exchanges in messages:
        row_bytes = 4 * width if scheme == HALO else 4 + math.ceil(width / 8)
        total += rows * row_bytes * exchanges / epochs
    return total


def accuracy_table(runs: dict[str, list[Run]], caption: str) -> Table:
    """Return accuracy, time and bytes of each scheme."""
    table = Table(title="Test accuracy: mean and standard error over seeds", caption=caption)
    table.add_column("Scheme", no_wrap=True)
    for name in ("At best validation", "At last epoch", "Fit (s)"):
        table.add_column(name, justify="right", no_wrap=True)
    for scheme, done in runs.items():
        best, last = [run.best for run in done], [run.last for run in done]
        seconds = mean([run.seconds for run in done])
        table.add_row(scheme, f"{spread(best)}", f"{spread(last)}", f"{seconds:.1f}")
    return table


def spread(values: Sequence[float]) -> str:
    """Return mean and standard error for people."""
    return f"{mean(values):.4f} +- {standard_error(values):.4f}"


def traffic_table(runs: dict[str, list[Run]], rows: int, epochs: int) -> Table:
    """Return the bytes of each scheme beside those predicted."""
    table = Table(
        title="Halo bytes of an epoch, all ranks together",
        caption=f"Predicted: {rows:,} rows an exchange x (4 F, or 4 + ceil(F/8) with one bit), for each message.",
    )
    for name in ("Scheme", "Message widths F"):
        table.add_column(name, no_wrap=True)
    for name in ("Measured", "Predicted", "Ratio to halo", "Predicted ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    exact = predicted_bytes(rows, runs[HALO][0].messages, epochs, HALO)
    for scheme in CODECS:
        messages = runs[scheme][0].messages
        sent, predicted = runs[scheme][0].bytes_per_epoch, predicted_bytes(rows, messages, epochs, scheme)
        ratio = runs[HALO][0].bytes_per_epoch / sent
        widths = " ".join(str(message.width) for message in messages)
        table.add_row(scheme, widths, f"{sent:,.0f}", f"{predicted:,.0f}", f"{ratio:.2f}x", f"{exact / predicted:.2f}x")
    return table


def verdict(runs: dict[str, list[Run]], measure: str) -> str:
    """Compare one-bit with exact halos, seed by seed."""
    exact, coded = ([getattr(run, measure) for run in runs[scheme]] for scheme in (HALO, ONE_BIT))
    differences = [b - a for a, b in zip(exact, coded, strict=True)]
    difference, paired, error = mean(differences), standard_error(differences), standard_error(exact)
    return (
        f"{ONE_BIT} - {HALO}, {TITLES[measure]}: {difference:+.5f}, which is {difference / error:+.2f} standard errors of {HALO} "
        f"({error:.5f}) and {difference / paired:+.2f} of the paired difference ({paired:.5f})"
    )


def show(setting: Setting, runs: dict[str, list[Run]], num_seeds: int) -> None:
    """Print everything measured."""
    console = make_console()
    name = setting.graph.rpartition("/")[2]
    caption = (
        f"{name}, {setting.parts} parts, {num_seeds} seeds; {setting.layers}-layer {setting.model}, "
        f"{setting.hidden} hidden, dropout {setting.dropout}, {setting.epochs} epochs."
    )
    console.print(accuracy_table(runs, caption))
    for measure in TITLES:
        console.print(verdict(runs, measure), soft_wrap=True)
    if setting.parts > 1:
        console.print(traffic_table(runs, rows_on_wire(setting), setting.epochs))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="a name as GraphDataModule takes it, e.g. npz:PATH/cora.npz or digits")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--validate-every", type=int, default=5, help="epochs between validations")
    parser.add_argument("--model", default="GCN")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--normalize-features", action="store_true", help="divide each row of x by its sum")
    return parser.parse_args()


def main() -> None:
    options = vars(parse())
    count, first = options.pop("seeds"), options.pop("first_seed")
    with tempfile.TemporaryDirectory() as root:
        setting = Setting(root=root, **options)
        runs = run_all(setting, range(first, first + count), lambda text: print(text, flush=True))
        for scheme, done in runs.items():
            print(f"{scheme}, at best validation, by seed: {' '.join(f'{run.best:.4f}' for run in done)}")
        show(setting, runs, count)


if __name__ == "__main__":
    main()
