"""A heterogeneous graph over two processes: papers are classified by what their authors and venues tell of them.

    python examples/hetero.py                                     # a generated graph
    python examples/hetero.py --data npz:graph.npz                # a file with edge_index__SOURCE__RELATION__DESTINATION
    python examples/hetero.py --data pyg:DBLP --strategy sylvie_sync --devices 4

The LightningModule is an ordinary one: nothing in it knows of processes.
"""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.transforms import ToUndirected
from torchmetrics.classification import MulticlassAccuracy

from lightning_gnncomm import GraphDataModule
from lightning_gnncomm.graph import load_graph


class Net(L.LightningModule):
    """Two layers of one convolution per edge type, on features that are brought to one width first."""

    def __init__(
        self,
        metadata: tuple[list[str], list[tuple[str, str, str]]],
        num_features: dict[str, int],
        num_classes: int,
        target: str,
        hidden: int = 32,
    ) -> None:
        super().__init__()
        node_types, edge_types = metadata
        self.target = target
        self.inputs = torch.nn.ModuleDict({name: torch.nn.Linear(num_features[name], hidden) for name in node_types})
        self.convs = torch.nn.ModuleList(
            HeteroConv({edge_type: SAGEConv(hidden, hidden) for edge_type in edge_types}, aggr="mean") for _ in range(2)
        )
        self.head = torch.nn.Linear(hidden, num_classes)
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, batch: HeteroData) -> Tensor:
        x = {name: F.relu(layer(batch[name].x)) for name, layer in self.inputs.items()}
        for conv in self.convs:
            x = {name: F.relu(rows) for name, rows in conv(x, batch.edge_index_dict).items()}
        out: Tensor = self.head(F.dropout(x[self.target], training=self.training))
        return out

    def training_step(self, batch: HeteroData, batch_idx: int) -> Tensor:
        nodes = batch[self.target]
        loss = F.cross_entropy(self(batch)[nodes.train_mask], nodes.y[nodes.train_mask])
        self.log("train_loss", loss, batch_size=nodes.num_nodes)
        return loss

    def validation_step(self, batch: HeteroData, batch_idx: int) -> None:
        nodes = batch[self.target]
        self.val_accuracy(self(batch)[nodes.val_mask], nodes.y[nodes.val_mask])
        self.log("val_acc", self.val_accuracy, batch_size=nodes.num_nodes)

    def test_step(self, batch: HeteroData, batch_idx: int) -> None:
        nodes = batch[self.target]
        self.test_accuracy(self(batch)[nodes.test_mask], nodes.y[nodes.test_mask])
        self.log("test_acc", self.test_accuracy, batch_size=nodes.num_nodes)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=5e-4)


def generated_graph(num_papers: int = 1200, num_classes: int = 4, seed: int = 0) -> HeteroData:
    """Papers whose field shows, with exceptions, in their authors' features; own features say little, venues have none."""
    generator = torch.Generator().manual_seed(seed)
    num_authors, num_venues = num_papers // 2, 5 * num_classes
    field = {"paper": torch.arange(num_papers) % num_classes, "author": torch.arange(num_authors) % num_classes}
    data = HeteroData()
    for name, noise in (("paper", 4.0), ("author", 0.5)):
        data[name].x = F.one_hot(field[name], 8) + noise * torch.randn(len(field[name]), 8, generator=generator)
    data["venue"].num_nodes = num_venues
    for source, relation, size, degree in (("author", "writes", num_authors, 3), ("venue", "hosts", num_venues, 1)):
        papers = torch.arange(num_papers).repeat_interleave(degree)
        group = torch.randint(size // num_classes, papers.shape, generator=generator)
        own = group * num_classes + field["paper"][papers]
        other = torch.randint(size, papers.shape, generator=generator)
        is_other = torch.rand(papers.shape, generator=generator) < 0.15
        data[source, relation, "paper"].edge_index = torch.stack([torch.where(is_other, other, own), papers])
    data["paper"].y = field["paper"]
    place = torch.randperm(num_papers, generator=generator)
    data["paper"].train_mask, data["paper"].val_mask = place < 120, (place >= 120) & (place < 420)
    data["paper"].test_mask = place >= 420
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="name of a heterogeneous graph, instead of the generated one")
    parser.add_argument("--strategy", default="halo")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()

    L.seed_everything(0)
    graph = load_graph(options.data) if options.data else generated_graph()
    # Each relation in its other direction too: papers hear of their authors, and authors of their papers.
    graph = ToUndirected()(graph)
    (target,) = [name for name in graph.node_types if "y" in graph[name]]
    data = GraphDataModule(graph, add_features="degree", balance=["nodes", "edges"])
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        devices=options.devices,
        strategy=options.strategy,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Net(graph.metadata(), data.num_features, data.num_classes, target)
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data)


if __name__ == "__main__":  # PyG and Lightning both import this file again
    main()
