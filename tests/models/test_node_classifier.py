"""NodeClassifier on one device, with plain Lightning: what it logs, selects, stores and refuses."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GCNConv, Sequential
from torch_geometric.utils import degree

from lightning_gnncomm.graph import trivial_part
from lightning_gnncomm.graph.adjacency import with_adjacency
from lightning_gnncomm.models import NodeClassifier
from lightning_gnncomm.models.architectures import build_model, call_model


def toy_graph(multi_label: bool = False, num_nodes: int = 40) -> Data:
    """A ring with chords whose labels can be read off the features."""
    generator = torch.Generator().manual_seed(0)
    source = torch.arange(num_nodes)
    target = torch.cat([(source + 1) % num_nodes, (source + 7) % num_nodes])
    edges = torch.stack([source.repeat(2), target])
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    y = torch.arange(num_nodes) // 4 % 3  # every class in every mask
    x = F.one_hot(y, 5).float() + 0.1 * torch.randn(num_nodes, 5, generator=generator)
    order = torch.arange(num_nodes)
    data = Data(x=x, edge_index=edges, y=F.one_hot(y, 3) if multi_label else y)
    data.train_mask, data.val_mask, data.test_mask = order % 4 < 2, order % 4 == 2, order % 4 == 3
    return data


class OneGraph(L.LightningDataModule):
    """What GraphDataModule promises, for one process."""

    def __init__(self, data: Data, multi_label: bool = False) -> None:
        super().__init__()
        self.data = data
        self.num_features, self.num_classes, self.multi_label = data.x.size(1), 3, multi_label

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader([self.data], batch_size=None)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


def make_trainer(tmp_path: Path, max_epochs: int = 3, **kwargs: Any) -> L.Trainer:
    return L.Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        **kwargs,
    )


# Loaders without workers and one batch an epoch are meant.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class TestFit:
    @pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GAT", "GIN", "PNA", "EdgeCNN"])
    def test_each_architecture_by_name_learns_with_sizes_from_the_data_module(self, name: str, tmp_path: Path) -> None:
        L.seed_everything(0, verbose=False)
        data = toy_graph()
        deg = degree(data.edge_index[1]).long().bincount().tolist()
        module = NodeClassifier(
            name,
            hidden_channels=16,
            dropout=0.0,
            norm="batch_norm",
            model_kwargs={"deg": deg} if name == "PNA" else None,
        )
        trainer = make_trainer(tmp_path, max_epochs=60)
        trainer.fit(module, datamodule=OneGraph(data))
        assert trainer.callback_metrics["train_loss"] < 0.7
        assert set(trainer.callback_metrics) == {"train_loss", "val_loss", "val_acc"}

    def test_every_metric_is_logged_for_validation_and_test(self, tmp_path: Path) -> None:
        module = NodeClassifier("GCN", metrics=["accuracy", "f1", "auroc"])
        trainer = make_trainer(tmp_path)
        trainer.fit(module, datamodule=OneGraph(toy_graph()))
        assert {"val_loss", "val_acc", "val_f1", "val_auroc"} <= set(trainer.callback_metrics)
        results = trainer.test(module, datamodule=OneGraph(toy_graph()), verbose=False)
        assert set(results[0]) == {"test_loss", "test_acc", "test_f1", "test_auroc"}

    def test_several_labels_a_node(self, tmp_path: Path) -> None:
        L.seed_everything(0, verbose=False)
        module = NodeClassifier("GraphSAGE", dropout=0.0, metrics=["accuracy", "f1", "auroc"])
        trainer = make_trainer(tmp_path, max_epochs=60)
        trainer.fit(module, datamodule=OneGraph(toy_graph(multi_label=True), multi_label=True))
        assert trainer.callback_metrics["val_f1"] > 0.9
        assert trainer.callback_metrics["val_auroc"] > 0.9

    def test_loss_and_accuracy_equal_plain_pytorch(self, tmp_path: Path) -> None:
        data = toy_graph()
        module = NodeClassifier("GCN", num_features=5, num_classes=3)
        trainer = make_trainer(tmp_path)
        result = trainer.validate(module, datamodule=OneGraph(data), verbose=False)[0]
        module.eval()
        with torch.no_grad():
            logits = module(data)[data.val_mask]
        assert result["val_loss"] == pytest.approx(F.cross_entropy(logits, data.y[data.val_mask]).item(), rel=1e-6)
        assert result["val_acc"] == pytest.approx((logits.argmax(1) == data.y[data.val_mask]).float().mean().item())

    def test_another_optimizer_and_a_scheduler_that_watches_a_metric(self, tmp_path: Path) -> None:
        module = NodeClassifier(
            "GCN",
            optimizer=functools.partial(torch.optim.SGD, lr=0.5),
            lr_scheduler=functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, threshold=10.0),
        )
        trainer = make_trainer(tmp_path, max_epochs=4)
        trainer.fit(module, datamodule=OneGraph(toy_graph()))
        assert isinstance(trainer.optimizers[0], torch.optim.SGD)
        assert trainer.optimizers[0].param_groups[0]["lr"] < 0.5


class TestPredict:
    def test_gives_the_logits_of_all_nodes(self, tmp_path: Path) -> None:
        module = NodeClassifier("GCN")
        output = make_trainer(tmp_path).predict(module, datamodule=OneGraph(toy_graph()))
        assert output is not None
        assert output[0].shape == (40, 3)

    def test_needs_no_labels(self, tmp_path: Path) -> None:
        data = toy_graph()
        del data.y
        output = make_trainer(tmp_path).predict(
            NodeClassifier("GCN", num_features=5, num_classes=3), datamodule=OneGraph(data)
        )
        assert output is not None
        assert output[0].shape == (40, 3)


class TestLabels:
    def test_unlabelled_nodes_count_nowhere(self, tmp_path: Path) -> None:
        data = toy_graph()
        hidden = data.clone()
        hidden.y[::5] = -1
        smaller = data.clone()
        for name in ("train_mask", "val_mask", "test_mask"):
            smaller[name] = smaller[name] & (torch.arange(40) % 5 != 0)
        module = NodeClassifier("GCN", metrics=["accuracy", "f1", "auroc"], num_features=5, num_classes=3)
        trainer = make_trainer(tmp_path)
        expected = trainer.test(module, datamodule=OneGraph(smaller), verbose=False)[0]
        assert trainer.test(module, datamodule=OneGraph(hidden), verbose=False)[0] == pytest.approx(expected)

    def test_a_missing_mask_means_all_labelled_nodes(self, tmp_path: Path) -> None:
        data = toy_graph()
        everywhere = data.clone()
        everywhere.val_mask = torch.ones(40, dtype=torch.bool)
        del data.val_mask
        module = NodeClassifier("GCN", num_features=5, num_classes=3)
        trainer = make_trainer(tmp_path)
        expected = trainer.validate(module, datamodule=OneGraph(everywhere), verbose=False)[0]
        assert trainer.validate(module, datamodule=OneGraph(data), verbose=False)[0] == pytest.approx(expected)

    def test_a_column_of_labels_is_a_list_of_labels(self, tmp_path: Path) -> None:
        data = toy_graph()
        column = data.clone()
        column.y = column.y.unsqueeze(1)
        module = NodeClassifier("GCN", num_features=5, num_classes=3)
        trainer = make_trainer(tmp_path)
        expected = trainer.validate(module, datamodule=OneGraph(data), verbose=False)[0]
        assert trainer.validate(module, datamodule=OneGraph(column), verbose=False)[0] == pytest.approx(expected)

    @pytest.mark.parametrize("multi_label", [False, True])
    def test_a_part_without_training_nodes_still_has_a_gradient_for_every_parameter(self, multi_label: bool) -> None:
        data = toy_graph(multi_label)
        data.train_mask[:] = False
        module = NodeClassifier("GCN", num_features=5, num_classes=3, multi_label=multi_label)
        module.trainer = Stub(world_size=2)  # type: ignore[assignment]
        module.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
        loss = module.training_step(data, 0)
        (loss * 0).backward()
        for parameter in module.parameters():
            assert parameter.grad is not None
            assert parameter.grad.abs().max() == 0

    @pytest.mark.parametrize("stage", ["train", "val", "test"])
    def test_one_device_without_a_labelled_node_is_an_error_that_names_the_mask(
        self, stage: str, tmp_path: Path
    ) -> None:
        data = toy_graph()
        data[f"{stage}_mask"][:] = False
        module, trainer = NodeClassifier("GCN"), make_trainer(tmp_path)
        run = {"train": trainer.fit, "val": trainer.validate, "test": trainer.test}[stage]
        with pytest.raises(ValueError, match=f"`{stage}_mask`"):
            run(module, datamodule=OneGraph(data))

    def test_several_splits_must_be_chosen_from(self, tmp_path: Path) -> None:
        data = toy_graph()
        data.val_mask = data.val_mask.unsqueeze(1).repeat(1, 10)
        with pytest.raises(ValueError, match=r"Choose a split: data.val_mask\[:, 0\]"):
            make_trainer(tmp_path).validate(NodeClassifier("GCN"), datamodule=OneGraph(data))

    def test_several_labels_without_saying_so(self, tmp_path: Path) -> None:
        module = NodeClassifier("GCN", multi_label=False)
        with pytest.raises(ValueError, match="multi_label=True"):
            make_trainer(tmp_path).validate(module, datamodule=OneGraph(toy_graph(multi_label=True)))


class Stub:
    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.datamodule = None


class Recorder(nn.Module):
    """Remembers the edge values it was called with."""

    out_channels = 3

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.seen: dict[str, Tensor | None] = {}

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        self.seen = {"edge_weight": edge_weight}
        return self.linear(x)


class TestCall:
    def with_edge_values(self) -> Data:
        data = toy_graph()
        data.edge_weight = torch.rand(data.num_edges)
        data.edge_attr = torch.rand(data.num_edges, 4)
        return data

    def test_a_module_gets_the_edge_values_it_names(self) -> None:
        data, model = self.with_edge_values(), Recorder()
        NodeClassifier(model)(data)
        assert model.seen["edge_weight"] is data.edge_weight
        NodeClassifier(model)(toy_graph())
        assert model.seen["edge_weight"] is None

    def test_pyg_models_get_what_they_use(self) -> None:
        data = self.with_edge_values()
        weighted = GCN(5, 8, 2, 3).eval()
        expected = weighted(data.x, data.edge_index, edge_weight=data.edge_weight)
        assert torch.equal(NodeClassifier(weighted)(data), expected)
        blind = GAT(5, 8, 2, 3).eval()  # fails on edge attributes, since it has no edge_dim
        assert torch.equal(NodeClassifier(blind)(data), blind(data.x, data.edge_index))
        seeing = GAT(5, 8, 2, 3, edge_dim=4).eval()
        expected = seeing(data.x, data.edge_index, edge_attr=data.edge_attr)
        assert torch.equal(NodeClassifier(seeing)(data), expected)

    def test_a_pyg_sequential(self) -> None:
        data = self.with_edge_values()
        for arguments in ("x, edge_index", "x, edge_index, edge_weight"):
            model = Sequential(arguments, [(GCNConv(5, 8), f"{arguments} -> x"), nn.ReLU(), nn.Linear(8, 3)])
            assert NodeClassifier(model)(data).shape == (40, 3)

    def test_a_module_that_takes_the_whole_graph(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = GCNConv(5, 3)

            def forward(self, data: Data) -> Tensor:
                out: Tensor = self.conv(data.x, data.edge_index)
                return out

        assert NodeClassifier(Net())(toy_graph()).shape == (40, 3)

    def test_a_graph_without_features(self) -> None:
        with pytest.raises(ValueError, match="graph with `x`"):
            NodeClassifier("GCN", num_features=5, num_classes=3)(Data(edge_index=torch.zeros(2, 0, dtype=torch.long)))


class TestCheckpoint:
    def test_a_model_by_name_loads_without_graph_or_arguments(self, tmp_path: Path) -> None:
        data = toy_graph()
        module = NodeClassifier("GAT", hidden_channels=8, model_kwargs={"heads": 2})
        trainer = make_trainer(tmp_path)
        trainer.fit(module, datamodule=OneGraph(data))
        trainer.save_checkpoint(tmp_path / "model.ckpt")
        loaded = NodeClassifier.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
        assert torch.equal(loaded.eval()(data), module.eval()(data))

    def test_a_module_is_passed_again_and_is_not_pickled(self, tmp_path: Path) -> None:
        data = toy_graph()
        module = NodeClassifier(GCN(5, 8, 2, 3), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        trainer = make_trainer(tmp_path)
        trainer.fit(module, datamodule=OneGraph(data))
        trainer.save_checkpoint(tmp_path / "model.ckpt")
        assert "model" not in torch.load(tmp_path / "model.ckpt", weights_only=True)["hyper_parameters"]
        loaded = NodeClassifier.load_from_checkpoint(tmp_path / "model.ckpt", model=GCN(5, 8, 2, 3))
        assert torch.equal(loaded.eval()(data), module.eval()(data))

    def test_weights_build_a_module_that_has_not_met_the_data(self, tmp_path: Path) -> None:
        # What Lightning does after training in a forked or spawned process.
        data, trained, untouched = toy_graph(), NodeClassifier("GCN"), NodeClassifier("GCN")
        make_trainer(tmp_path).fit(trained, datamodule=OneGraph(data))
        untouched.load_state_dict(trained.state_dict(), strict=False)
        assert torch.equal(untouched.eval()(data), trained.eval()(data))
        assert untouched.multi_label is False

    def test_a_fitted_module_can_go_on(self, tmp_path: Path) -> None:
        module = NodeClassifier("GCN")
        for _ in range(2):
            make_trainer(tmp_path).fit(module, datamodule=OneGraph(toy_graph()))
        make_trainer(tmp_path).test(module, datamodule=OneGraph(toy_graph()), verbose=False)


class TestErrors:
    def test_unknown_model(self) -> None:
        with pytest.raises(ValueError, match=r"GraphSAGE.*got 'GNC'"):
            NodeClassifier("GNC", num_features=5, num_classes=3)

    def test_unknown_metric(self) -> None:
        with pytest.raises(ValueError, match=r"auroc.*got 'auc'"):
            NodeClassifier("GCN", metrics=["auc"])

    def test_pna_without_degrees(self) -> None:
        with pytest.raises(ValueError, match="deg"):
            NodeClassifier("PNA", num_features=5, num_classes=3)

    def test_a_size_nobody_knows(self, tmp_path: Path) -> None:
        loader = torch.utils.data.DataLoader([toy_graph()], batch_size=None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="num_features"):
            make_trainer(tmp_path).fit(NodeClassifier("GCN"), loader, loader)


class Adjacency(nn.Module):
    """Keeps what it is called with."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        self.given = (edge_index, edge_weight)
        return x


class Unweighted(Adjacency):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, edge_index)


def test_a_matrix_is_given_where_it_says_the_same_to_the_model() -> None:
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), edge_weight=torch.ones(2))
    data = with_adjacency(trivial_part(data))
    weighted, plain = Adjacency(), Unweighted()
    call_model(weighted, data)
    assert weighted.given == (data.adj_t, None)
    call_model(plain, data)
    assert plain.given == (data.edge_index, None)
    attention = build_model("GAT", 2, 3, model_kwargs={"edge_dim": 1})
    data.edge_attr = torch.ones(2, 1)
    assert call_model(attention, data).shape == (3, 3)  # by edges: a matrix has no edge_attr
    del data["edge_weight"], data["edge_index"]
    call_model(plain, data)
    assert plain.given == (data.adj_t, None)
