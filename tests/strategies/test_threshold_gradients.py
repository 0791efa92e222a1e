"""Thresholded gradients under Lightning's own DDP strategy, without any graph, and under the halo strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gnncomm import (
    HaloStrategy,
    OneBitCodec,
    ThresholdCodec,
    ThresholdGradients,
    ThresholdState,
    threshold_hook,
)
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.testing import RankPool
from tests.strategies.project import Project, graph, loaders, make_trainer, state_of

pytestmark = [pytest.mark.processes]

STEPS = 8


class Digits(pl.LightningModule):
    """A plain module on plain samples; with ``hidden=960`` it has 1.05 million parameters."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(120, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, 10)
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.head(self.net(x)), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)


def samples() -> DataLoader[Any]:
    """As many batches of 16 a rank as there are steps, of classes with a mean each."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(16 * STEPS * dist.get_world_size()) % 10
    x = torch.randn(10, 120, generator=generator)[y] + torch.randn(y.numel(), 120, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=16)


def fit(state: ThresholdState | None, hidden: int = 64, epochs: int = 1, **options: Any) -> dict[str, Any]:
    module = Digits(hidden)
    hook = {} if state is None else {"ddp_comm_state": state, "ddp_comm_hook": threshold_hook}
    callbacks = options.pop("callbacks", [] if state is None else [ThresholdGradients(state)])
    ckpt_path = options.pop("ckpt_path", None)
    # Small buckets, so that DDP has several and arranges them anew.
    strategy = DDPStrategy(process_group_backend="gloo", timeout=None, bucket_cap_mb=0.05, **hook)
    trainer = make_trainer(strategy, dist.get_world_size(), max_epochs=epochs, callbacks=callbacks, **options)
    trainer.fit(module, samples(), ckpt_path=ckpt_path)
    residuals = {} if state is None else state.residuals(module.named_parameters())
    return {
        "state": state_of(module),
        "losses": module.losses,
        "residuals": residuals,
        "ranks": module.trainer.world_size,
    }


def exact_and_whole() -> list[dict[str, Any]]:
    return [fit(None), fit(ThresholdState(density=1.0)), fit(ThresholdState(density=0.05))]


@pytest.fixture(scope="module")
def four_ranks() -> Any:
    with RankPool(4) as pool:
        yield pool


@pytest.mark.parametrize("size", [2, 4])
def test_with_density_1_training_is_that_of_ddp_and_below_it_is_not(
    two_ranks: RankPool, four_ranks: RankPool, size: int
) -> None:
    pool = two_ranks if size == 2 else four_ranks
    ranks = pool.run(exact_and_whole)
    for dense, whole, sparse in ranks:
        assert dense["ranks"] == size
        torch.testing.assert_close(whole["state"], dense["state"], rtol=1e-5, atol=1e-7)
        difference = max((sparse["state"][k] - v).abs().max() for k, v in dense["state"].items())
        assert difference > 1e-4
        assert set(sparse["residuals"]) == set(sparse["state"])  # by name, whatever DDP does with buckets
        assert sparse["residuals"]["net.2.weight"][0].norm() > 0
        assert not sparse["residuals"]["head.bias"][0].any()  # small ones are sent whole
    for _, _, sparse in ranks[1:]:
        assert all(torch.equal(sparse["state"][name], value) for name, value in ranks[0][2]["state"].items())


def trained_large() -> tuple[TrafficRecord, int, list[float]]:
    # Thresholds of each step: those of earlier steps let more pass while what is held back grows.
    state, module = ThresholdState(refresh=1), Digits(960)
    strategy = DDPStrategy(process_group_backend="gloo", timeout=None)
    trainer = make_trainer(strategy, dist.get_world_size(), max_epochs=5, callbacks=[ThresholdGradients(state)])
    trainer.fit(module, samples())
    return state.record, sum(p.numel() for p in module.parameters()), module.losses


@pytest.mark.parametrize("size", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_million_parameters_take_a_hundredth_of_the_bytes_of_a_ring(size: int) -> None:
    with RankPool(size) as pool:
        for record, count, losses in pool.run(trained_large):
            assert count > 1_000_000
            ring = 5 * STEPS * 2 * (size - 1) / size * 4 * count
            assert record.dense_bytes == pytest.approx(ring, rel=1e-4)
            assert record.sent_bytes < ring / 100
            assert sum(losses[-4:]) < 0.5 * sum(losses[:4])  # it learns


class Forgetful(ThresholdGradients):
    """The twin: it leaves checkpoints alone."""

    def on_save_checkpoint(self, *_: Any) -> None:
        pass


def interrupted(root: str, is_kept: bool) -> list[dict[str, Any]]:
    def options(state: ThresholdState) -> dict[str, Any]:
        checkpoint = ModelCheckpoint(root, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
        callback = ThresholdGradients(state) if is_kept else Forgetful(state)
        return {"callbacks": [checkpoint, callback], "enable_checkpointing": True}

    def new() -> ThresholdState:
        return ThresholdState(density=0.05, refresh=5)

    whole, cut, resumed = new(), new(), new()
    results = [fit(whole, epochs=2, **options(whole))]
    fit(cut, **options(cut))
    results.append(fit(resumed, epochs=2, ckpt_path=f"{root}/epoch=0.ckpt", **options(resumed)))
    return results


@pytest.mark.filterwarnings("ignore:The checkpoint holds")
@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_held_back_is_in_checkpoints_with_the_callback(
    two_ranks: RankPool, tmp_path: Path, is_kept: bool
) -> None:
    for whole, resumed in two_ranks.run(interrupted, str(tmp_path), is_kept):
        is_same = all(torch.equal(resumed["state"][name], value) for name, value in whole["state"].items())
        assert is_same == is_kept


def fit_project(density: float | None) -> tuple[dict[str, Tensor], TrafficRecord]:
    codec = None if density is None else ThresholdCodec(density)
    strategy, module = HaloStrategy(gradient_codec=codec, timeout=None), Project()
    # Bytes of each step.
    make_trainer(strategy, dist.get_world_size(), max_epochs=3).fit(module, **loaders(graph()))
    return state_of(module), strategy.gradient_traffic


def halo_strategies() -> list[Any]:
    return [fit_project(density) for density in (None, 1.0, 0.01)]


def test_the_halo_strategy_has_thresholds_too(two_ranks: RankPool) -> None:
    for (dense, _), (whole, record), (sparse, fewer) in two_ranks.run(halo_strategies):
        assert all(torch.equal(whole[name], value) for name, value in dense.items())
        # All parameters of the project are small.
        assert all(torch.equal(sparse[name], value) for name, value in dense.items())
        assert record.sent_bytes == fewer.sent_bytes > 0


def test_only_thresholds_of_tensors_are_taken() -> None:
    for codec in (ThresholdCodec(scope="row"), OneBitCodec()):
        with pytest.raises(ValueError, match="scope 'tensor'"):
            HaloStrategy(gradient_codec=codec)  # type: ignore[arg-type]
