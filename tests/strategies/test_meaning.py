"""Refusals at set-up, manual optimisation, schedulers, unusual losses: seen through a real Trainer on real ranks."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, HypergraphConv

from lightning_gnncomm import HaloStrategy
from lightning_gnncomm.strategies.loss import UnknownReductionError
from lightning_gnncomm.testing import RankPool
from tests.strategies.project import Project, assert_close, graph, loaders, make_trainer, state_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]


class SumLoss(Project):
    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y, reduction="sum") * 0.05


class WeightedLoss(Project):
    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return (
            F.cross_entropy(out, y, weight=torch.tensor([1.0, 3.0, 0.2])) + 0.01 * self.net.convs[0].lin.weight.norm()
        )


class Rooted(Project):
    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, F.one_hot(y, 3).float()).sqrt()


class Manual(Project):
    """Two optimizers stepped by hand."""

    def __init__(self) -> None:
        super().__init__(norm=None)
        self.automatic_optimization = False

    def training_step(self, batch: Data, batch_idx: int) -> None:
        first, second = self.optimizers()
        loss = self.loss(self(batch)[batch.train_mask], batch.y[batch.train_mask])
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        first.step()
        second.step()
        self.log("train_loss", loss)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        convs = self.net.convs
        return [torch.optim.SGD(convs[0].parameters(), 0.1), torch.optim.Adam(convs[1].parameters(), 0.01)]


class Bypass(Manual):
    def training_step(self, batch: Data, batch_idx: int) -> None:
        self.loss(self(batch)[batch.train_mask], batch.y[batch.train_mask]).backward()


class Scheduled(Project):
    def __init__(self) -> None:
        # With a norm behind it a bias has no gradient but rounding noise, which Adam blows up to full steps.
        super().__init__(norm=None)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.01)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


class ByHand(Project):
    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        return self(batch)[batch.edge_index[0]].mean()


class Untested(Project):
    def __init__(self) -> None:
        super().__init__()
        self.net.convs[1] = HypergraphConv(8, 3)


MODULES = {"sum": SumLoss, "weighted": WeightedLoss, "manual": Manual, "scheduled": Scheduled}


def fit(name: str, strategy: Any) -> dict[str, Any]:
    module = MODULES[name]()
    trainer = make_trainer(strategy, max_epochs=10)
    trainer.fit(module, **loaders(graph()))
    return {"state": state_of(module), "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()}}


@pytest.mark.parametrize("name", MODULES)
def test_modules_train_and_log_as_on_one_device(two_ranks: RankPool, name: str) -> None:
    expected = fit(name, "auto")
    for result in two_ranks.run(fit, name, "halo"):
        assert_close(result, expected)


def stop_early(strategy: Any, folder: str) -> tuple[int, float, list[str]]:
    module = Project()
    best = ModelCheckpoint(folder, monitor="val_loss", filename="best")
    callbacks = [EarlyStopping("val_f1", patience=2, mode="max"), best]
    trainer = make_trainer(strategy, enable_checkpointing=True, callbacks=callbacks, max_epochs=40)
    trainer.fit(module, **loaders(graph()))
    return trainer.current_epoch, float(best.best_model_score), [best.best_model_path.rsplit("/", 1)[-1]]


def test_early_stopping_and_best_checkpoints_decide_alike(two_ranks: RankPool, tmp_path: Any) -> None:
    expected = stop_early("auto", str(tmp_path / "one"))
    assert expected[0] < 40
    for epochs, score, path in two_ranks.run(stop_early, "halo", str(tmp_path / "two")):
        assert (epochs, path) == (expected[0], expected[2])
        assert score == pytest.approx(expected[1], rel=1e-5)


def troubled(kind: str) -> tuple[pl.LightningModule, dict[str, Any]]:
    data, module = graph(), Project()
    if kind == "compiled":
        module.net = torch.compile(module.net)
    elif kind == "different graphs":
        data.x = data.x + torch.distributed.get_rank()
    elif kind == "bad graph":
        data.edge_index[0, 0] = 4000
    elif kind == "empty train mask":
        data.train_mask[:] = False
    modules = {"untested layer": Untested, "own backward": Bypass, "rows by hand": ByHand, "unknown reduction": Rooted}
    train = {
        "several graphs": lambda: DataLoader([data, data]),
        "no graph": lambda: torch.utils.data.DataLoader(torch.zeros(1, 3)),
    }
    options = {"train_dataloaders": train[kind]()} if kind in train else loaders(data)
    return modules[kind]() if kind in modules else module, options


def error_of(kind: str) -> str:
    """Return the error a user sees; every rank must see one."""
    module, options = troubled(kind)
    try:
        make_trainer(max_epochs=2, num_sanity_val_steps=0).fit(module, **options)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


REFUSALS = {
    "untested layer": r"UnsupportedModuleError: (?s:.)*'net.convs.1' \(HypergraphConv\)",
    "compiled": r"UnsupportedModuleError: (?s:.)*'net' \(OptimizedModule\): torch.compile",
    "own backward": r"RuntimeError: .*self.manual_backward",
    "rows by hand": r"IndexError: (?s:.)*must not index node rows by 'edge_index\[0\]'",
    "unknown reduction": r"UnknownReductionError: .*SqrtBackward.*loss_reduction",
    "several graphs": r"ValueError: .*one graph, but the loader DataLoader yields several",
    "no graph": r"TypeError: .*yields Tensor",
    "different graphs": r"ValueError: The ranks loaded different graphs",
    "bad graph": r"ValueError: .*4000",
    "empty train mask": r"ValueError: .*Is the training mask empty",
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_cannot_be_kept_is_refused_on_all_ranks(two_ranks: RankPool, kind: str) -> None:
    import re

    for message in two_ranks.run(error_of, kind):
        assert re.match(REFUSALS[kind], message), message


def explicit(reduction: str) -> dict[str, Tensor]:
    """Losses whose reduction is said rather than read."""
    module = SumLoss() if reduction == "sum" else Project()
    trainer = make_trainer(HaloStrategy(loss_reduction=reduction), max_epochs=5)
    trainer.fit(module, **loaders(graph()))
    return state_of(module)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduction_that_is_said_is_used(two_ranks: RankPool, reduction: str) -> None:
    module = SumLoss() if reduction == "sum" else Project()
    make_trainer("auto", max_epochs=5).fit(module, **loaders(graph()))
    for state in two_ranks.run(explicit, reduction):
        assert_close(state, state_of(module))


class Dropped(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = GCN(6, 8, 2, 3, dropout=0.5)
        self.masks: list[Tensor] = []

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        self.masks.append(F.dropout(torch.ones(64), 0.5))
        return F.cross_entropy(self.net(batch.x, batch.edge_index)[batch.train_mask], batch.y[batch.train_mask])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def dropout_masks() -> list[Tensor]:
    pl.seed_everything(3, verbose=False)
    module = Dropped()
    make_trainer(max_epochs=2).fit(module, DataLoader([graph()]))
    return module.masks


def test_ranks_seeded_alike_drop_different_positions(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(dropout_masks)
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    again, _ = two_ranks.run(dropout_masks)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_bad_arguments_say_what_is_expected() -> None:
    with pytest.raises(ValueError, match=r"one of \[.*'identity', 'one_bit'.*got 'two_bit'"):
        HaloStrategy(codec="two_bit")
    with pytest.raises(ValueError, match=r"one of \['adaptive', 'async', 'sync'\], got 'often'"):
        HaloStrategy(schedule="often")
    with pytest.raises(ValueError, match=r"'auto', 'mean' or 'sum', got 'max'"):
        HaloStrategy(loss_reduction="max")
    assert issubclass(UnknownReductionError, ValueError)
