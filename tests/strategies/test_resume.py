"""A run that is stopped at any step and resumed ends with the same bits as one that never stopped."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from lightning_gnncomm import AdaptiveWidthCodec, GraphDataModule, HaloStrategy, ThresholdCodec
from lightning_gnncomm.comm.schedule import Asynchronous
from lightning_gnncomm.testing import RankPool
from tests.strategies.project import assert_close, graph, loaders, make_trainer, state_of

pytestmark = [pytest.mark.processes]

STEPS = 9


class Dropping(pl.LightningModule):
    """Everything that has a memory: dropout, batch norm, an optimizer with moments, a learning rate schedule."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = GCN(6, 16, num_layers=3, out_channels=3, norm="batch_norm", dropout=0.5)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        out = self.net(batch.x, batch.edge_index, batch.edge_weight)
        loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        out = self.net(batch.x, batch.edge_index, batch.edge_weight)
        self.log("val_loss", F.cross_entropy(out[batch.val_mask], batch.y[batch.val_mask]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]


class StopAt(pl.Callback):
    """Ends a run after some steps, as a kill would, once the checkpoint of that step is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.should_stop = True


def schedule(kind: str) -> Any:
    return {
        "sync": "sync",
        "thresholds": "sync",
        "async": Asynchronous(),
        "refreshed": Asynchronous(refresh_every=4),
        "guarded": Asynchronous(refresh_every=3, drift_bound=0.01, window=2, patience=2),
    }[kind]


def fit(
    kind: str, codec: Any, root: str, steps: int, folder: str, ckpt_path: str | None = None, **options: Any
) -> dict[str, Any]:
    module = Dropping()
    gradient_codec = ThresholdCodec(0.05, refresh=3) if kind == "thresholds" else None
    strategy = HaloStrategy(
        codec=copy.deepcopy(codec), schedule=schedule(kind), gradient_codec=gradient_codec, timeout=None
    )
    pl.seed_everything(3, verbose=False)
    checkpoint = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = make_trainer(
        strategy,
        torch.distributed.get_world_size(),
        max_epochs=steps,
        enable_checkpointing=True,
        callbacks=[checkpoint],
        **options,
    )
    trainer.fit(module, datamodule=GraphDataModule(graph(), root=root), ckpt_path=ckpt_path)
    decisions = [(step, str(decision)) for step, decision in strategy.decisions]
    return {
        "state": state_of(module),
        "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
        "decisions": decisions,
    }


def uninterrupted_and_resumed(kind: str, codec: Any, root: str, stops: list[int]) -> list[Any]:
    whole = fit(kind, codec, f"{root}/parts", STEPS, f"{root}/whole")
    results = [whole]
    for stop in stops:
        fit(kind, codec, f"{root}/parts", stop, f"{root}/cut{stop}")
        # Random numbers are not where they were.
        torch.manual_seed(99)
        results.append(
            fit(kind, codec, f"{root}/parts", STEPS, f"{root}/cut{stop}", f"{root}/cut{stop}/step={stop}.ckpt")
        )
    return results


CASES = [
    ("sync", "one_bit"),
    ("async", "identity"),
    ("refreshed", "delta_sign"),
    ("async", AdaptiveWidthCodec(bits_per_value=3, every=3)),
    ("thresholds", "identity"),
    ("guarded", {"feature": "one_bit", "gradient": "4bit"}),
]


@pytest.mark.parametrize(("kind", "codec"), CASES)
def test_resumed_runs_end_with_the_same_bits(three_ranks: RankPool, kind: str, codec: Any, tmp_path: Path) -> None:
    for whole, *resumed in three_ranks.run(uninterrupted_and_resumed, kind, codec, str(tmp_path), [1, 4, 6]):
        for other in resumed:
            for name, value in whole["state"].items():
                assert torch.equal(other["state"][name], value), name
            assert other["metrics"] == whole["metrics"]
            assert set(other["decisions"]) <= set(whole["decisions"])
    if kind == "guarded":
        assert whole["decisions"], "the guard of this case never acts, so it shows nothing"


def without_memory(root: str) -> list[Any]:
    whole, _ = uninterrupted_and_resumed("async", "one_bit", root, [4])
    path = f"{root}/cut4/step=4.ckpt"
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        checkpoint = torch.load(path, weights_only=True)
        del checkpoint["lightning_gnncomm"]
        torch.save(checkpoint, path)
    torch.distributed.barrier()
    return [whole, fit("async", "one_bit", f"{root}/parts", STEPS, f"{root}/cut4", path)]


@pytest.mark.filterwarnings("ignore:The checkpoint was written")
def test_without_what_the_wire_remembers_bits_differ(three_ranks: RankPool, tmp_path: Path) -> None:
    for whole, other in three_ranks.run(without_memory, str(tmp_path)):
        assert any(not torch.equal(other["state"][name], value) for name, value in whole["state"].items())


def counted(root: str) -> tuple[int, int, int]:
    """Stop and resume every other epoch."""
    checkpoint = None
    for stop in (2, 4, 6, STEPS):
        module, strategy = Dropping(), HaloStrategy(timeout=None)
        keep = ModelCheckpoint(root, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        trainer = make_trainer(
            strategy,
            torch.distributed.get_world_size(),
            max_epochs=STEPS,
            enable_checkpointing=True,
            callbacks=[keep, StopAt(stop)],
        )
        trainer.fit(module, datamodule=GraphDataModule(graph(), root=f"{root}/parts"), ckpt_path=checkpoint)
        checkpoint = f"{root}/step={stop}.ckpt"
    return trainer.current_epoch, trainer.global_step, trainer.fit_loop.epoch_progress.total.started


def test_epochs_are_counted_right_however_often_a_run_is_resumed(two_ranks: RankPool, tmp_path: Path) -> None:
    assert two_ranks.run(counted, str(tmp_path)) == [(STEPS, STEPS, STEPS)] * 2


def one_more_step(
    strategy: Any, root: str, steps: int, checkpoint: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Train up to ``steps`` and tell the state and what was warned of.

    Without dropout, which differs with the ranks, and without norms, before which a bias has no gradient but rounding errors.
    """
    module = Dropping()
    module.net = GCN(6, 16, num_layers=3, out_channels=3)
    alone = strategy == "auto"
    keep = ModelCheckpoint(root, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = make_trainer(
        strategy,
        1 if alone else torch.distributed.get_world_size(),
        max_epochs=steps,
        enable_checkpointing=True,
        callbacks=[keep],
    )
    data: dict[str, Any] = loaders(graph()) if alone else {"datamodule": GraphDataModule(graph(), root=f"{root}/parts")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, **data, ckpt_path=checkpoint)
    return state_of(module), [str(warning.message) for warning in caught]


def test_a_run_resumes_on_another_number_of_ranks(three_ranks: RankPool, two_ranks: RankPool, tmp_path: Path) -> None:
    """What three wires remember is of no use to two: they say so, and begin with exact rows as one process would."""
    strategy = HaloStrategy(codec="identity", schedule="async", timeout=None)
    three_ranks.run(one_more_step, strategy, f"{tmp_path}/three", 4)
    checkpoint = f"{tmp_path}/three/step=4.ckpt"
    expected, _ = one_more_step("auto", f"{tmp_path}/one", 5, checkpoint)
    resumed = two_ranks.run(one_more_step, strategy, f"{tmp_path}/two", 5, checkpoint)
    for state, _ in resumed:
        assert_close(state, expected)
    assert any("written by 3 ranks and 2 ranks run now" in said for said in resumed[0][1])
    # The same step on the three ranks uses the rows of the step before.
    same = three_ranks.run(one_more_step, strategy, f"{tmp_path}/three", 5, checkpoint)
    assert any((same[0][0][name] - value).abs().max() > 1e-4 for name, value in expected.items())
