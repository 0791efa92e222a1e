"""A project on a heterogeneous graph: what it trains, logs and predicts on several ranks is what one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from lightning_gnncomm import GraphDataModule
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part, trivial_part
from lightning_gnncomm.halo.remote import RemoteSource
from lightning_gnncomm.strategies.dropin import _digest, find_part
from lightning_gnncomm.strategies.meaning import gather_predictions, mask_counts
from lightning_gnncomm.testing import RankPool, random_graph, random_hetero_graph, run_threads
from tests.strategies.project import assert_close, make_trainer, state_of

METADATA = random_hetero_graph().metadata()


def networks(name: str) -> nn.Module:
    if name == "HeteroConv":
        convs = [pyg.HeteroConv({key: pyg.SAGEConv(i, o) for key in METADATA[1]}) for i, o in [(6, 8), (8, 3)]]
        return pyg.Sequential("x, edges", [(conv, "x, edges -> x") for conv in convs])
    if name == "to_hetero":
        return pyg.to_hetero(pyg.GraphSAGE((6, 6), 8, 2, 3, norm="batch_norm"), METADATA)
    return pyg.Sequential(
        "x, edges",
        [
            (pyg.HGTConv(6, 8, METADATA, heads=2), "x, edges -> x"),
            (pyg.HANConv(8, 3, METADATA), "x, edges -> x"),
        ],
    )


class Project(pl.LightningModule):
    """Nothing in here knows of ranks. The loss is on papers, so the last layers of other types learn nothing."""

    def __init__(self, network: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = networks(network)
        self.accuracy = MulticlassAccuracy(3)

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        out: dict[str, Tensor] = self.net(batch.x_dict, batch.edge_index_dict)
        return out

    def training_step(self, batch: HeteroData, batch_idx: int) -> Tensor:
        papers = batch["paper"]
        out, y = self(batch)["paper"][papers.train_mask], papers.y[papers.train_mask]
        loss = F.cross_entropy(out, y)
        self.log("train_loss", loss)
        self.log("train_hits", (out.argmax(-1) == y).float().mean())
        return loss

    def validation_step(self, batch: HeteroData, batch_idx: int) -> None:
        papers = batch["paper"]
        out, y = self(batch)["paper"][papers.val_mask], papers.y[papers.val_mask]
        self.accuracy(out, y)
        self.log("val_accuracy", self.accuracy)
        hits = float((out.argmax(-1) == y).float().mean()) if len(y) else 0.0
        self.log("val_number", hits, batch_size=len(y))  # Lightning cannot count the nodes of a HeteroData

    def predict_step(self, batch: HeteroData, batch_idx: int) -> Any:
        out = self(batch)
        return {"all": out, "papers": out["paper"], "tested": out["paper"][batch["paper"].test_mask].argmax(-1)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5, weight_decay=1e-3)


def everything(strategy: str, network: str, root: str | None) -> dict[str, Any]:
    """Fit and predict with a loader of the whole graph, or with a data module that stores parts below ``root``."""
    data, module = random_hetero_graph(), Project(network)
    world_size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    trainer = make_trainer(strategy, world_size, max_epochs=5)
    if root is None:
        fit, predict = (DataLoader([data]), DataLoader([data])), {"dataloaders": DataLoader([data])}
        trainer.fit(module, *fit)
    else:
        predict = {"datamodule": GraphDataModule(data, root=root, progress=False)}
        trainer.fit(module, **predict)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {"metrics": metrics, "state": state_of(module), "predicted": trainer.predict(module, **predict)}


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]


@pytest.mark.processes
@pytest.mark.parametrize("network", ["HeteroConv", "to_hetero", "attention"])
def test_two_ranks_show_what_one_process_shows(two_ranks: RankPool, network: str) -> None:
    expected = everything("auto", network, None)
    for result in two_ranks.run(everything, "halo", network, None):
        assert_close(result, expected)


@pytest.mark.processes
def test_three_ranks_show_what_one_process_shows(three_ranks: RankPool, tmp_path: Path) -> None:
    expected = everything("auto", "HeteroConv", None)
    assert expected["metrics"].keys() == {"train_loss", "train_hits", "val_accuracy", "val_number"}
    for result in three_ranks.run(everything, "halo", "HeteroConv", str(tmp_path)):
        assert_close(result, expected)


def without_exchange() -> dict[str, Any]:
    real = RemoteSource.rows
    RemoteSource.rows = lambda self, blocks, plan, *_: [x.new_zeros(plan.num_halo, *x.shape[1:]) for x in blocks]
    try:
        return everything("halo", "HeteroConv", None)
    finally:
        RemoteSource.rows = real


@pytest.mark.processes
def test_without_the_exchange_they_show_something_else(two_ranks: RankPool) -> None:
    result = two_ranks.run(without_exchange)[0]
    with pytest.raises(AssertionError):
        assert_close(result["state"], everything("auto", "HeteroConv", None)["state"], 1e-3)


@pytest.mark.processes
def test_one_bit_halos_learn_nearly_the_same(two_ranks: RankPool) -> None:
    expected = everything("auto", "HeteroConv", None)
    first, second = two_ranks.run(everything, "sylvie_sync", "HeteroConv", None)
    assert_close(first, second, 1e-6)
    with pytest.raises(AssertionError):
        assert_close(first["state"], expected["state"], 1e-6)
    assert first["metrics"]["train_loss"] == pytest.approx(expected["metrics"]["train_loss"], rel=0.2)


def with_two_labelled_types() -> HeteroData:
    data = random_hetero_graph()
    data["author"].train_mask = torch.arange(20) < 7
    return data


def test_nodes_are_counted_in_the_types_that_have_masks() -> None:
    masks = random_hetero_graph()["paper"]
    counts = {name: int(masks[f"{name}_mask"].sum()) for name in ("train", "val", "test")}
    expected = {**counts, "all": 30, "loss": counts["train"]}
    assert mask_counts(trivial_part(random_hetero_graph())) == expected
    more = {"all": 50, "train": counts["train"] + 7, "loss": counts["train"] + 7}
    assert mask_counts(trivial_part(with_two_labelled_types())) == expected | more
    assert mask_counts(trivial_part(random_hetero_graph()), "nowhere")["loss"] == 30
    bare = HeteroData({"a": {"x": torch.ones(3, 1)}, "b": {"x": torch.ones(2, 1)}})
    bare["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    assert set(mask_counts(trivial_part(bare)).values()) == {5}


def test_predictions_return_in_the_order_of_their_type() -> None:
    data = random_hetero_graph()
    for store in data.node_stores:
        store.own = torch.arange(float(store.x.size(0)))
    assignment = assign(data, 3)

    def work(wire: Wire) -> Any:
        part = build_part(data, assignment, wire.rank, 3)
        papers, authors = part["paper"], part["author"]
        output = {
            "venue": part["venue"].own,
            "nested": {"author": authors.own, "paper": papers.own[papers.val_mask]},
            "plain": (papers.own, authors.own),
            "masked": papers.own[papers.test_mask],
        }
        return gather_predictions(output, part, wire)

    papers = data["paper"]
    for output in run_threads(work, 3):
        assert_close(
            output,
            {
                "venue": data["venue"].own,
                "nested": {"author": data["author"].own, "paper": papers.own[papers.val_mask]},
                "plain": (papers.own, data["author"].own),
                "masked": papers.own[papers.test_mask],
            },
            0.0,
        )


def test_parts_are_found_and_graphs_told_apart() -> None:
    data = random_hetero_graph()
    part = trivial_part(data)
    assert find_part({"graph": [part]}, random_graph()) is part
    assert find_part(data) is None
    assert _digest(data) == _digest(random_hetero_graph())
    other = random_hetero_graph()
    other["venue"].x[0, 0] += 1
    renamed = HeteroData({"journal": {"x": data["venue"].x}})
    assert len({_digest(graph) for graph in (data, other, renamed, Data(x=data["venue"].x))}) == 4
