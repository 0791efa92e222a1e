"""Link prediction on a node encoder: pairs of nodes on several ranks, as on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, HeteroConv, SAGEConv
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import negative_sampling
from torchmetrics.classification import BinaryAUROC

from lightning_gnncomm import GraphDataModule
from lightning_gnncomm.graph import build_parts, load_graph
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import join_parts
from lightning_gnncomm.testing import RankPool, random_graph, random_hetero_graph
from tests.strategies.project import assert_close, make_trainer, state_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]


def splits() -> tuple[Data, Data, Data]:
    """Training, validation and test graphs whose negative pairs lie anywhere in the graph."""
    pl.seed_everything(1, verbose=False)
    split = RandomLinkSplit(num_val=0.2, num_test=0.2, add_negative_train_samples=True)
    return split(random_graph(60, 300))


class Links(pl.LightningModule):
    """PyG's usual link prediction, which knows nothing of ranks."""

    def __init__(self, samples: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.samples = samples
        self.encoder = GCN(6, 16, num_layers=2, out_channels=8)
        self.auroc = BinaryAUROC()

    def scores(self, batch: Data, pairs: Tensor) -> Tensor:
        z = self.encoder(batch.x, batch.edge_index)
        return (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        pairs, labels = batch.edge_label_index, batch.edge_label
        if self.samples:
            # Fresh ones at each step, between any own or halo node and an own one.
            sizes = batch.num_nodes + batch.halo.num_halo, batch.num_nodes
            extra = negative_sampling(batch.edge_index, sizes, pairs.size(1))
            pairs, labels = torch.cat([pairs, extra], dim=-1), torch.cat([labels, labels.new_zeros(extra.size(1))])
        loss = F.binary_cross_entropy_with_logits(self.scores(batch, pairs), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        z = self.encoder(batch.x, batch.edge_index)
        first, second = batch.edge_label_index
        out = (z.index_select(0, first) * z[second]).sum(dim=-1)
        self.log("val_loss", F.binary_cross_entropy_with_logits(out, batch.edge_label))
        self.auroc(out, batch.edge_label.long())
        self.log("val_auroc", self.auroc)

    def predict_step(self, batch: Data, batch_idx: int) -> Tensor:
        positive = batch.edge_label_index[:, batch.edge_label == 1]  # a selection of pairs is one of pairs
        assert self.scores(batch, positive).numel() == positive.size(1)
        return self.scores(batch, batch.edge_label_index)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(strategy: str, world_size: int, samples: bool = False) -> dict[str, Any]:
    train, val, test = splits()
    module, trainer = Links(samples), make_trainer(strategy, world_size)
    trainer.fit(module, DataLoader([train]), DataLoader([val]))
    result = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {"metrics": result, "state": state_of(module), "scores": trainer.predict(module, DataLoader([test]))}


@pytest.mark.parametrize("world_size", [2, 3])
def test_several_ranks_show_what_one_process_shows(two_ranks: RankPool, three_ranks: RankPool, world_size: int) -> None:
    alone = fit("auto", 1)
    for result in {2: two_ranks, 3: three_ranks}[world_size].run(fit, "halo", world_size):
        assert_close(result, alone)


def test_pairs_sampled_across_parts_train(two_ranks: RankPool) -> None:
    for result in two_ranks.run(fit, "sylvie_sync", 2, True):
        assert result["metrics"]["val_loss"] < 1.0
        assert torch.isfinite(torch.cat([value.view(-1) for value in result["state"].values()])).all()


def without_the_mode() -> str:
    from lightning_gnncomm.halo.pairs import PairReads

    PairReads.is_needed = property(lambda self: False)  # type: ignore[assignment,method-assign]
    try:
        fit("halo", 2)
    except Exception as error:  # noqa: BLE001
        return str(error)
    return ""


def test_without_halo_rows_of_pairs_it_fails() -> None:
    with RankPool(2) as pool:
        assert any("beyond the rows at hand" in message for message in pool.run(without_the_mode))


class TypedLinks(pl.LightningModule):
    """Pairs of nodes of two types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        types = random_hetero_graph().edge_types
        self.conv = HeteroConv({key: SAGEConv((6, 6), 8) for key in types})

    def training_step(self, batch: HeteroData, batch_idx: int) -> Tensor:
        z = self.conv(batch.x_dict, batch.edge_index_dict)
        store = batch[WRITES]
        pairs = store.edge_label_index
        out = (z["author"][pairs[0]] * z["paper"][pairs[1]]).sum(-1)
        loss = F.binary_cross_entropy_with_logits(out, store.edge_label)
        self.log("train_loss", loss, batch_size=store.edge_label.numel())
        return loss

    def validation_step(self, batch: HeteroData, batch_idx: int) -> None:
        self.training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


WRITES = next(key for key in random_hetero_graph().edge_types if key[0] == "author" and key[2] == "paper")


def typed_graph() -> HeteroData:
    data = random_hetero_graph()
    generator = torch.Generator().manual_seed(3)
    ends = [torch.randint(data[name].num_nodes, (30,), generator=generator) for name in ("author", "paper")]
    data[WRITES].edge_label_index = torch.stack(ends)
    data[WRITES].edge_label = torch.randint(2, (30,), generator=generator).float()
    return data


def fit_typed(strategy: str, world_size: int, root: str) -> dict[str, Any]:
    module, trainer = TypedLinks(), make_trainer(strategy, world_size, max_epochs=5)
    trainer.fit(module, datamodule=GraphDataModule(typed_graph(), root=root))
    return {"loss": float(trainer.callback_metrics["train_loss"]), "state": state_of(module)}


def test_pairs_between_types(three_ranks: RankPool, tmp_path: Path) -> None:
    alone = fit_typed("auto", 1, str(tmp_path))
    for result in three_ranks.run(fit_typed, "halo", 3, str(tmp_path)):
        assert_close(result, alone)


def test_pairs_are_cut_stored_and_joined(tmp_path: Path) -> None:
    from lightning_gnncomm.graph import partition_and_store

    for data in (splits()[0], typed_graph()):
        joined = join_parts(list(build_parts(data, assign(data, 3), 3)))
        folder = partition_and_store(data, 3, root=tmp_path, progress=False)
        for whole in (joined, load_graph(folder)):
            store, original = (g[WRITES] if isinstance(g, HeteroData) else g for g in (whole, data))
            assert torch.equal(store.edge_label_index, original.edge_label_index)
            assert torch.equal(store.edge_label, original.edge_label)


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.long), ValueError, r"edge_label_index of shape \[2, L\], got \[3, 2\]"),
        (torch.zeros(2, 2), TypeError, "edge_label_index of int32 or int64, got torch.float32"),
        (torch.tensor([[0], [60]]), ValueError, r"edge_label_index with ids in 0..59, got ids from 60 to 60"),
    ],
)
def test_bad_pairs_say_what_is_wrong(pairs: Tensor, error: type[Exception], message: str) -> None:
    data = random_graph(60, 100)
    data.edge_label_index = pairs
    with pytest.raises(error, match=message):
        assign(data, 2)
