"""What a project's Trainer calls mean on several ranks: the same as on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningNodeData
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import coalesce

from lightning_gnncomm import GraphDataModule, HaloStrategy
from lightning_gnncomm.testing import RankPool
from tests.strategies.project import Project, assert_close, graph, loaders, make_trainer, state_of

pytestmark = [
    pytest.mark.processes,
    # Lightning's advice to the single-process runs that ours are compared with.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
    # PyG makes sparse matrices without saying whether torch shall check them.
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


def everything(strategy: Any, world_size: int, source: str, root: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run fit, validate, test and predict and return all that a user can look at."""
    data, module = graph(), Project()
    trainer = make_trainer(strategy, world_size, **options)
    if source == "loader":
        fit, other = loaders(data), {"dataloaders": loaders(data)["val_dataloaders"]}
    elif source == "lightning_node_data":
        node_data = LightningNodeData(data, loader="full", batch_size=1, num_workers=0)
        node_data.predict_dataloader = node_data.train_dataloader
        fit = other = {"datamodule": node_data}
    else:
        fit = other = {"datamodule": GraphDataModule(data, root=root)}
    trainer.fit(module, **fit)
    result = {"fit": {name: float(value) for name, value in trainer.callback_metrics.items()}}
    result["state"] = state_of(module)
    result["validate"] = trainer.validate(module, verbose=False, **other)
    result["test"] = trainer.test(module, verbose=False, **other)
    result["predict"] = trainer.predict(module, **other)
    return result


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return everything("auto", 1, "module", str(tmp_path_factory.mktemp("alone")), {})


@pytest.mark.parametrize("source", ["loader", "lightning_node_data", "module"])
def test_two_ranks_show_what_one_process_shows(two_ranks: RankPool, alone: Any, source: str, tmp_path: Path) -> None:
    for result in two_ranks.run(everything, "halo", 2, source, str(tmp_path), {}):
        assert_close(result, alone)


class OnMatrix(Project):
    """The same project of an owner who has sparse matrices."""

    def forward(self, batch: Data) -> Tensor:
        out: Tensor = self.net(batch.x, batch.adj_t)
        return out


def on_layout(layout: str, strategy: str, world_size: int, root: str, ready: bool = False) -> dict[str, Any]:
    """Train on a graph without self-loops and duplicates, which PyG takes alike in both layouts."""
    data = graph()
    keep = data.edge_index[0] != data.edge_index[1]
    data.edge_index, data.edge_weight = coalesce(data.edge_index[:, keep], data.edge_weight[keep])
    if ready:
        data = ToSparseTensor(layout=torch.sparse_csr)(data)
    module = (OnMatrix if layout == "csr" else Project)()
    # A matrix that a graph has by itself is there in any layout.
    datamodule = GraphDataModule(data, root=root, progress=False, layout="coo" if ready else layout)
    trainer = make_trainer(strategy, world_size)
    trainer.fit(module, datamodule=datamodule)
    result = {"fit": {name: float(value) for name, value in trainer.callback_metrics.items()}}
    return result | {"state": state_of(module), "predict": trainer.predict(module, datamodule=datamodule)}


def test_layouts_show_the_same_as_each_other_and_as_one_process(two_ranks: RankPool, tmp_path: Path) -> None:
    expected = on_layout("coo", "auto", 1, str(tmp_path))
    assert_close(on_layout("csr", "auto", 1, str(tmp_path)), expected)
    for layout, ready in (("coo", False), ("csr", False), ("csr", True)):
        for result in two_ranks.run(on_layout, layout, "halo", 2, str(tmp_path), ready):
            assert_close(result, expected)


def test_three_ranks_show_what_one_process_shows(three_ranks: RankPool, alone: Any, tmp_path: Path) -> None:
    for result in three_ranks.run(everything, "halo", 3, "module", str(tmp_path), {}):
        assert_close(result, alone)


def test_one_rank_is_plain_training(alone: Any, tmp_path: Path) -> None:
    from lightning_gnncomm.testing import run_ranks

    for strategy in ("halo", "sylvie_sync"):
        (result,) = run_ranks(everything, 1, (strategy, 1, "module", str(tmp_path), {}))
        assert_close(result, alone, 1e-7)


def without_exchange(root: str) -> dict[str, Any]:
    from lightning_gnncomm.halo.remote import RemoteSource

    real = RemoteSource.rows
    RemoteSource.rows = lambda self, blocks, plan, *_: [x.new_zeros(plan.num_halo, *x.shape[1:]) for x in blocks]
    try:
        return everything("halo", 2, "module", root, {})
    finally:
        RemoteSource.rows = real


def test_without_the_exchange_they_show_something_else(two_ranks: RankPool, alone: Any, tmp_path: Path) -> None:
    result = two_ranks.run(without_exchange, str(tmp_path))[0]
    with pytest.raises(AssertionError):
        assert_close(result["state"], alone["state"], 1e-2)


OPTIONS: dict[str, dict[str, Any]] = {
    "accumulate": {"accumulate_grad_batches": 4},
    "clip by norm": {"gradient_clip_val": 0.05},
    "clip by value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "double": {"precision": "64-true"},
    "fast_dev_run": {"fast_dev_run": True},
    "overfit": {"overfit_batches": 1},
    "sync_batchnorm": {"sync_batchnorm": True},
    "inference_mode off": {"inference_mode": False},
    "no sanity check": {"num_sanity_val_steps": 0},
}


def fit_with(strategy: Any, options: dict[str, Any]) -> dict[str, Any]:
    data, module = graph(), Project()
    if options.get("precision") == "64-true":
        data.x, data.edge_weight = data.x.double(), data.edge_weight.double()
    if strategy == "auto":
        options = {name: value for name, value in options.items() if name != "sync_batchnorm"}
    trainer = make_trainer(strategy, **options)
    trainer.fit(module, **loaders(data))
    return {"state": state_of(module), "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()}}


@pytest.mark.parametrize("name", OPTIONS)
def test_trainer_options_mean_the_same(two_ranks: RankPool, name: str) -> None:
    expected = fit_with("auto", OPTIONS[name])
    for result in two_ranks.run(fit_with, "halo", OPTIONS[name]):
        assert_close(result, expected)


def test_bf16_mixed_trains_within_its_own_precision(two_ranks: RankPool) -> None:
    exact = fit_with("auto", {})
    mixed = fit_with("auto", {"precision": "bf16-mixed"})
    drift = {k: float((mixed["state"][k].double() - exact["state"][k].double()).abs().max()) for k in exact["state"]}
    for result in two_ranks.run(fit_with, "halo", {"precision": "bf16-mixed"}):
        for name, value in mixed["state"].items():
            difference = float((result["state"][name].double() - value.double()).abs().max())
            assert difference <= 2 * max(drift.values()), name


def save(root: str, strategy: Any, epochs: int, resume: str | None) -> dict[str, Any]:
    module = Project()
    world_size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    trainer = make_trainer(strategy, world_size, max_epochs=epochs)
    trainer.fit(module, ckpt_path=resume, **loaders(graph()))
    trainer.save_checkpoint(f"{root}/{strategy}-{world_size}-{epochs}.ckpt")
    return state_of(module)


def test_checkpoints_move_between_one_two_and_three_ranks(
    two_ranks: RankPool, three_ranks: RankPool, tmp_path: Path
) -> None:
    expected = save(str(tmp_path), "auto", 20, None)
    two_ranks.run(save, str(tmp_path), "halo", 5, None)
    module = Project.load_from_checkpoint(tmp_path / "halo-2-5.ckpt")
    assert not torch.equal(module.net.convs[0].lin.weight, Project().net.convs[0].lin.weight)
    three_ranks.run(save, str(tmp_path), "halo", 10, str(tmp_path / "halo-2-5.ckpt"))
    assert_close(save(str(tmp_path), "auto", 20, str(tmp_path / "halo-3-10.ckpt")), expected)


def detached(root: str) -> list[str]:
    """Fit and return what the strategy left on the module."""
    module = Project()
    before = {name: set(vars(m)) for name, m in module.named_modules()}
    trainer = make_trainer(HaloStrategy(codec="one_bit"), max_epochs=1)
    trainer.fit(module, **loaders(graph()))
    lightning = {"_trainer", "_current_fx_name", "_compiler_ctx", "_metric_attributes", "_hparams", "forward"}
    left = [
        f"{name}.{attribute}"
        for name, m in module.named_modules()
        for attribute in set(vars(m)) - before[name] - lightning
    ]
    hooks = [name for name, m in module.named_modules() if m._forward_hooks or m._forward_pre_hooks]
    hooks += [name for name, m in module.named_modules() if getattr(m, "_propagate_forward_pre_hooks", None)]
    metrics = [name for name, m in module.named_modules() if getattr(m, "dist_sync_on_step", False)]
    return left + hooks + metrics


def test_the_module_is_given_back_as_it_was(two_ranks: RankPool, tmp_path: Path) -> None:
    assert two_ranks.run(detached, str(tmp_path)) == [[], []]
