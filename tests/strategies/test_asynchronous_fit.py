"""Asynchronous training under everything a Trainer may do around its steps: none is counted or sent twice, nothing stays in flight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from lightning_gnncomm import GraphDataModule, HaloStrategy
from lightning_gnncomm.comm.schedule import Asynchronous
from lightning_gnncomm.slots import Role
from lightning_gnncomm.testing import RankPool
from tests.strategies.project import graph, make_trainer, state_of
from tests.strategies.test_resume import Dropping

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*does not have many workers")]


class Counting(Dropping):
    """Counts its steps, and looks what is in flight whenever no step runs."""

    def __init__(self, val_loss: float = 0.0) -> None:
        super().__init__()
        self.steps = 0
        self.in_flight: list[int] = []
        self.rising = val_loss

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        self.steps += 1
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Data, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.look()
        if self.rising:
            self.rising += 1
            self.log("rising", self.rising)
        super().validation_step(batch, batch_idx)

    def on_train_end(self) -> None:
        self.look()

    def look(self) -> None:
        channel = self.trainer.strategy.channel
        self.in_flight.append(sum(len(lane.flights) for lane in channel._lanes.values()))


class Lbfgs(Counting):
    """Runs several forward and backward passes for one step of its optimizer."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


def fit(
    options: dict[str, Any], root: str, validate_twice: bool = False, rising: bool = False, lbfgs: bool = False
) -> dict[str, Any]:
    pl.seed_everything(3, verbose=False)
    module = (Lbfgs if lbfgs else Counting)(float(rising))
    strategy = HaloStrategy(codec="one_bit", schedule=Asynchronous(refresh_every=4))
    if rising:
        options = options | {"callbacks": [EarlyStopping("rising", patience=2)]}
    trainer = make_trainer(strategy, torch.distributed.get_world_size(), **({"max_epochs": 6} | options))
    seen: dict[str, Any] = {}

    class Keep(pl.Callback):
        def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
            seen["records"] = {(str(slot), slot.role): record for slot, record in strategy.channel.staleness.items()}
            seen["exchanges"] = {(str(slot), slot.role): r.exchanges for slot, r in strategy.traffic.records.items()}

    trainer.callbacks.append(Keep())
    if validate_twice:
        trainer.fit(module, DataLoader([graph()]), [DataLoader([graph()]), DataLoader([graph()])])
    else:
        trainer.fit(module, datamodule=GraphDataModule(graph(), root=root))
    return seen | {"steps": module.steps, "in_flight": module.in_flight, "state": state_of(module)}


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fast_dev_run": {"options": {"fast_dev_run": True}},
    "sanity validation": {"options": {"num_sanity_val_steps": 2}},
    "overfit": {"options": {"overfit_batches": 1}},
    "accumulate": {"options": {"accumulate_grad_batches": 2}},
    "max_time": {"options": {"max_time": {"seconds": 1}, "max_epochs": -1}},
    "seldom validated": {"options": {"check_val_every_n_epoch": 3}},
    "several validations": {"validate_twice": True},
    "early stopping": {"rising": True},
    "closures": {"lbfgs": True},
}


@pytest.fixture(scope="module")
def plain(two_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return two_ranks.run(fit, {}, str(tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize("name", OPTIONS)
def test_every_step_is_sent_once_and_nothing_stays_in_flight(
    two_ranks: RankPool, plain: Any, name: str, tmp_path: Path
) -> None:
    arguments = {"options": {}} | OPTIONS[name]
    given = [arguments.get(key, False) for key in ("validate_twice", "rising", "lbfgs")]
    for result, without in zip(two_ranks.run(fit, arguments["options"], str(tmp_path), *given), plain, strict=True):
        steps = result["steps"]
        assert steps >= 1
        assert not any(result["in_flight"])
        assert len(result["records"]) == 6  # three layers read rows that change, forward and backward
        for name_and_role, record in result["records"].items():
            assert record.uses == steps
            refreshes = 1 + sum((step + 1) % 4 == 0 for step in range(1, steps))
            assert record.refreshes == refreshes
            assert record.age == steps - refreshes
            # Validation sends features too, exactly.
            if name_and_role[1] is Role.GRADIENT:
                assert result["exchanges"][name_and_role] == steps
        if name in ("sanity validation", "overfit", "seldom validated"):
            for key, value in without["state"].items():
                assert torch.equal(result["state"][key], value), key
        if name == "early stopping":
            assert steps < 6
        if name == "closures":
            assert steps > 6
