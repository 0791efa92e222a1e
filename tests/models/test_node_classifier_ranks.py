"""NodeClassifier over two real processes logs what it logs on one device, whatever a part lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import functools, json, sys
import lightning as L, torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN
import lightning_gnncomm
from lightning_gnncomm import CommunicationMonitor, GraphDataModule, NodeClassifier


def graph(multi_label):
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 60, (2, 240), generator=generator)
    y = torch.randint(0, 3, (60,), generator=generator)
    x = torch.nn.functional.one_hot(y, 6).float() + torch.randn(60, 6, generator=generator)
    order = torch.arange(60)
    y[::7] = -1
    data = Data(x=x, edge_index=edges, edge_weight=torch.rand(240, generator=generator), y=y)
    if multi_label:
        data.y = torch.nn.functional.one_hot(y.clamp(min=0), 3)
    # Nodes 30 to 59 have nothing to train on, nodes 0 to 29 nothing to test.
    data.train_mask, data.val_mask, data.test_mask = order < 20, order % 2 == 1, order >= 30
    return data


def main(devices, out):
    results = []
    for multi_label in (False, True):
        L.seed_everything(0, verbose=False)
        monitor = CommunicationMonitor(table=False)
        trainer = L.Trainer(
            max_epochs=5, accelerator="cpu", devices=devices, strategy="halo" if devices > 1 else "auto",
            callbacks=[monitor], logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = GraphDataModule(graph(multi_label), partition=(torch.arange(60) >= 30).long(), root=out + ".parts")
        # Not Adam: the gradient of a bias before a batch norm is zero but for rounding, which Adam scales up to steps.
        model = NodeClassifier(
            "GCN", hidden_channels=8, dropout=0.0, norm="batch_norm", metrics=["accuracy", "f1", "auroc"],
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        )
        trainer.fit(model, datamodule=data)
        logged = {key: value.item() for key, value in trainer.callback_metrics.items()}
        logged |= trainer.test(model, datamodule=data, verbose=False)[0]
        logged["predicted"] = trainer.predict(model, datamodule=data)[0].flatten()[:50].tolist()
        results.append(logged)
    if trainer.is_global_zero:
        with open(out, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
"""


def run(folder: Path, devices: int) -> list[dict[str, Any]]:
    script, out = folder / "script.py", folder / f"{devices}.json"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(devices), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results: list[dict[str, Any]] = json.loads(out.read_text())
    return results


@pytest.mark.processes
@pytest.mark.timeout(220)
def test_losses_metrics_and_predictions_equal_one_process_with_parts_that_lack_nodes(tmp_path: Path) -> None:
    for alone, together in zip(run(tmp_path, 1), run(tmp_path, 2), strict=True):
        assert set(alone) >= {"train_loss", "val_loss", "val_acc", "val_f1", "val_auroc", "test_loss", "test_f1"}
        assert set(together) == set(alone)
        for name, value in alone.items():
            assert together[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
