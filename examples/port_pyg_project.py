"""An existing PyG + Lightning project, moved from one device to several processes by two lines.

Run it with `python examples/port_pyg_project.py`. Everything but the two marked lines is what such a project has anyway:
its own LightningModule, its own layers, its own loader of one full graph.
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv
from torchmetrics.classification import MulticlassAccuracy

import lightning_gnncomm  # noqa: F401  <- line 1: makes the strategies known


class Net(L.LightningModule):
    """Two convolutions of different kinds, a batch norm, a skip connection: written for one device."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.conv = GCNConv(num_features, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.attention = GATConv(32, num_classes, heads=2, concat=False)
        self.skip = torch.nn.Linear(32, num_classes)
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x, edge_index)))
        x = F.dropout(x, training=self.training)
        out: Tensor = self.attention(x, edge_index) + self.skip(x)
        return out

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        out = self(batch.x, batch.edge_index)
        loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        out = self(batch.x, batch.edge_index)
        self.val_accuracy(out[batch.val_mask], batch.y[batch.val_mask])
        self.log("val_acc", self.val_accuracy, prog_bar=True)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        out = self(batch.x, batch.edge_index)
        self.test_accuracy(out[batch.test_mask], batch.y[batch.test_mask])
        self.log("test_acc", self.test_accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=5e-4)


def load_digits_graph() -> Data:
    """The project's own way to its graph: here scikit-learn's digits, joined to their nearest neighbours."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    x, y = load_digits(return_X_y=True)
    neighbours = kneighbors_graph(x, n_neighbors=8)
    edges = torch.tensor(neighbours.maximum(neighbours.T).nonzero())
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.from_numpy(x).float() / 16, edge_index=edges, y=torch.from_numpy(y))
    for name, nodes in (("train", order[:200]), ("val", order[200:700]), ("test", order[700:])):
        data[f"{name}_mask"] = torch.zeros(len(y), dtype=torch.bool).index_fill(0, nodes, True)
    return data


def main() -> None:
    L.seed_everything(0)
    data = load_digits_graph()
    loader = DataLoader([data], batch_size=1)
    trainer = L.Trainer(
        max_epochs=60,
        accelerator="cpu",
        devices=2,
        strategy="sylvie_sync",  # <- line 2: was "auto"; "halo" exchanges exactly
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Net(data.num_features, 10)
    trainer.fit(model, loader, loader)
    trainer.test(model, loader)


if __name__ == "__main__":  # PyG and Lightning both import this file again
    main()
