"""A PyG project as its owner wrote it for one device, and how the tests run it on several."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from lightning_gnncomm.testing import random_graph


class Project(pl.LightningModule):
    """Nothing in here knows of ranks."""

    def __init__(self, norm: str | None = "batch_norm", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = GCN(6, 8, num_layers=2, out_channels=3, norm=norm).to(dtype)
        self.accuracy = MulticlassAccuracy(3)
        self.f1 = MulticlassF1Score(3)
        self.auroc = MulticlassAUROC(3)

    def forward(self, batch: Data) -> Tensor:
        out: Tensor = self.net(batch.x, batch.edge_index, batch.edge_weight)
        return out

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        every = self(batch)
        out, y = every[batch.train_mask], batch.y[batch.train_mask]
        loss = self.loss(out, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        other = batch.x.sum(1) > 0  # a second loss on nodes that no mask names
        total = loss + 0.3 * F.mse_loss(every[other].sum(1), batch.x[other].mean(1))
        self.log("train_total", total)
        self.log("train_hits", (out.argmax(-1) == y).float().mean())
        self.log("lr", self.optimizers().param_groups[0]["lr"])
        return loss

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        out = self(batch)
        out, y = out[batch.val_mask], batch.y[batch.val_mask]
        self.accuracy(out, y)
        self.f1(out, y)
        self.auroc(out, y)
        self.log_dict(
            {"val_accuracy": self.accuracy, "val_f1": self.f1, "val_auroc": self.auroc}, on_step=True, on_epoch=True
        )
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_total", F.cross_entropy(out, y, reduction="sum"), reduce_fx="sum")
        self.log("val_worst", -out.max(), reduce_fx="min")
        self.log("val_weighted", F.cross_entropy(out, y, weight=torch.tensor([0.1, 1.0, 5.0])))
        self.log("val_everywhere", self(batch).abs().mean())
        self.log("val_number", float((out.argmax(-1) == y).float().mean()) if len(y) else 0.0)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        out = self(batch)
        self.log("test_all", F.cross_entropy(out, batch.y), batch_size=batch.num_nodes)
        self.log("test_loss", F.cross_entropy(out[batch.test_mask], batch.y[batch.test_mask]))

    def predict_step(self, batch: Data, batch_idx: int) -> dict[str, Any]:
        out = self(batch)
        return {"all": out, "masked": (out[batch.test_mask].argmax(-1),)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)


def graph(**options: Any) -> Data:
    """A graph where one of two METIS parts can hold far more training nodes than the other."""
    data = random_graph(**options)
    data.train_mask[:6] = True
    return data


def make_trainer(strategy: Any = "halo", world_size: int = 2, **options: Any) -> pl.Trainer:
    defaults: dict[str, Any] = {
        "max_epochs": 20,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    devices = world_size if strategy != "auto" else 1
    return pl.Trainer(accelerator="cpu", strategy=strategy, devices=devices, **(defaults | options))


def loaders(data: Data) -> dict[str, Any]:
    """What the project already had."""
    return {"train_dataloaders": DataLoader([data]), "val_dataloaders": DataLoader([data])}


def state_of(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5, path: str = "") -> None:
    """Compare nested values; floats and tensors within a tolerance relative to the largest value."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for name in expected:
            assert_close(actual[name], expected[name], tolerance, f"{path}.{name}")
        return
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, tolerance, path)
        return
    torch.testing.assert_close(
        torch.as_tensor(actual),
        torch.as_tensor(expected),
        rtol=tolerance,
        msg=lambda text: f"{path}: {text}",
        atol=tolerance * max(float(torch.as_tensor(expected).abs().max()), 0.1),
    )
