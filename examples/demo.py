"""Trains the built-in digits graph in one process and over two, exactly and with one bit a value: `make demo`.

Each training runs in processes of their own, which this script starts, waits for and compares. It fails if accuracy
collapses or if the bytes on the wire are not what the formula says.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

HIDDEN, CLASSES, EPOCHS, LIMIT_SECONDS = 64, 10, 100, 150
MAX_LOSS_EXACT, MAX_LOSS_ONE_BIT = 0.01, 0.03  # of test accuracy, against one process


class Setting(NamedTuple):
    title: str
    strategy: str
    devices: int


SETTINGS = (
    Setting("one process", "auto", 1),
    Setting("two processes, exact", "halo", 2),
    Setting("two processes, one bit", "sylvie_sync", 2),
)


def train(strategy: str, devices: int, folder: Path) -> None:
    """Train once and write what was measured; Lightning starts this script again for the second process."""
    import lightning as L

    from lightning_gnncomm.callbacks import CommunicationMonitor
    from lightning_gnncomm.data import GraphDataModule
    from lightning_gnncomm.models import NodeClassifier

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*LeafSpec.*|.*does not have many workers.*")
    L.seed_everything(0, verbose=False)
    monitor = CommunicationMonitor(table=False)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        callbacks=[monitor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    data = GraphDataModule("digits", root=folder, progress=False)
    model = NodeClassifier("GCN", hidden_channels=HIDDEN)
    start = time.perf_counter()
    trainer.fit(model, datamodule=data)
    seconds = time.perf_counter() - start
    accuracy = trainer.test(model, datamodule=data, verbose=False)[0]["test_acc"]
    if trainer.is_global_zero:
        measured = {"accuracy": accuracy, "seconds": seconds, "bytes_per_epoch": monitor.summary.bytes_per_epoch}
        (folder / f"{strategy}.json").write_text(json.dumps(measured))


def run(setting: Setting, folder: Path) -> dict[str, Any]:
    """Train in other processes and return what they measured; what they print, tracebacks too, goes to the terminal."""
    command = [sys.executable, __file__, "--strategy", setting.strategy, "--devices", str(setting.devices)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    # A session of its own, so that a training that hangs can be ended with all its processes.
    process = subprocess.Popen([*command, "--folder", str(folder)], env=environment, start_new_session=True)
    try:
        status = process.wait(timeout=LIMIT_SECONDS)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            sys.exit(f"demo: {setting.title} did not end within {LIMIT_SECONDS} s")
        raise
    if status != 0:
        sys.exit(f"demo: {setting.title} failed with status {status}; its traceback is above")
    measured: dict[str, Any] = json.loads((folder / f"{setting.strategy}.json").read_text())
    return measured


def rows_on_wire(folder: Path) -> int:
    """Rows of one exchange, both processes together, as the partition says: known before anything is sent."""
    from lightning_gnncomm.graph.store import read_manifest

    (partition,) = folder.glob("*-2-parts-*")
    rows: int = read_manifest(partition)["quality"]["rows_on_wire"]
    return rows


def predicted_bytes(strategy: str, rows: int) -> int:
    """Bytes of an epoch: each layer's rows, after its linear map, travel forward and their gradients back.

    A row of F values takes 4 F bytes exactly, and with one bit 4 for its two ends and ceil(F / 8) for its bits.
    """
    widths = (HIDDEN, CLASSES)
    row_bytes = sum(4 * f if strategy == "halo" else 4 + math.ceil(f / 8) for f in widths)
    return 0 if strategy == "auto" else 2 * rows * row_bytes


def check(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with the results."""
    problems = []
    for strategy, measured in results.items():
        sent, predicted = measured["bytes_per_epoch"], measured["predicted"]
        if sent != predicted:
            problems.append(f"{strategy} sent {sent:.0f} bytes an epoch, predicted {predicted}")
    for strategy, limit in (("halo", MAX_LOSS_EXACT), ("sylvie_sync", MAX_LOSS_ONE_BIT)):
        lost = results["auto"]["accuracy"] - results[strategy]["accuracy"]
        if not lost <= limit:
            problems.append(f"{strategy} lost {lost:.3f} of test accuracy, more than {limit}")
    return problems


def show(results: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"A GCN on the digits graph, {EPOCHS} epochs", caption="Bytes of halo rows, of both processes.")
    table.add_column("Training")
    for name in ("Test accuracy", "Bytes an epoch", "Predicted", "Compression", "Fit (s)"):
        table.add_column(name, justify="right")
    for setting in SETTINGS:
        measured = results[setting.strategy]
        sent = measured["bytes_per_epoch"]
        compression = f"{results['halo']['bytes_per_epoch'] / sent:.1f}x" if sent else "-"
        cells = (f"{sent:,.0f}", f"{measured['predicted']:,}", compression)
        table.add_row(setting.title, f"{measured['accuracy']:.3f}", *cells, f"{measured['seconds']:.1f}")
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=[setting.strategy for setting in SETTINGS], help=argparse.SUPPRESS)
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.strategy:
        train(options.strategy, options.devices, options.folder)
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for setting in SETTINGS:
            print(f"Training: {setting.title} ...", flush=True)
            results[setting.strategy] = run(setting, Path(folder))
        rows = rows_on_wire(Path(folder))
    for strategy, measured in results.items():
        measured["predicted"] = predicted_bytes(strategy, rows)
    show(results)
    problems = check(results)
    if problems:
        sys.exit("demo: " + "; ".join(problems))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that trainings in progress are ended too
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
