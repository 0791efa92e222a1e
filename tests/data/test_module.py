"""The data module partitions once, loads one part per rank, and fails on all ranks alike."""

import json
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.datasets import KarateClub

import lightning_gnncomm.data.module as module_under_test
from lightning_gnncomm.data import GraphDataModule, PartLoader
from lightning_gnncomm.graph import load_graph, partition_and_store, read_manifest
from lightning_gnncomm.testing import random_hetero_graph

SPEC = "sbm:nodes=90,blocks=3,p_in=0.2,p_out=0.05"


class Ring:
    """Broadcasts and decisions between threads that stand for ranks."""

    exchanges_halos = True
    root_device = torch.device("cpu")

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=60)
        self._said: list[Any] = [None] * size
        self._rank = threading.local()

    def enter(self, rank: int) -> None:
        self._rank.value = rank

    def _gather(self, said: Any) -> list[Any]:
        self._said[self._rank.value] = said
        self._barrier.wait()
        heard = list(self._said)
        self._barrier.wait()
        return heard

    def broadcast(self, said: Any, src: int = 0) -> Any:
        return self._gather(said)[src]

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        assert all
        return sum(self._gather(decision)) == self.size

    def barrier(self) -> None:
        self._barrier.wait()


def on_ranks(size: int, make_module, strategy: Ring | None = None) -> list[Any]:
    """Prepare on rank 0, set up on all, as Lightning does; return each rank's module or what it raised."""
    strategy = strategy or Ring(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        strategy.enter(rank)
        module = make_module(rank)
        module.trainer = SimpleNamespace(world_size=size, global_rank=rank, is_global_zero=rank == 0, strategy=strategy)
        try:
            if rank == 0:
                module.prepare_data()
            strategy.barrier()
            module.setup("fit")
            results[rank] = module
        except Exception as error:  # noqa: BLE001 - judged by the test
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
    assert not any(thread.is_alive() for thread in threads)
    return results


def assert_all_raised(results: list[Any], kind: type[Exception], *texts: str) -> None:
    assert all(isinstance(result, kind) for result in results), results
    assert len({str(result) for result in results}) == 1, results
    for text in texts:
        assert text in str(results[0])


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "cache"


def test_each_rank_gets_its_part(root):
    modules = on_ranks(3, lambda rank: GraphDataModule(SPEC, root=root, progress=False))
    whole = load_graph(SPEC)
    n_id = torch.cat([module.part.n_id for module in modules])
    assert sorted(n_id.tolist()) == list(range(90))
    for module in modules:
        assert torch.equal(module.part.x, whole.x[module.part.n_id])
        assert module.part.halo.num_parts == 3 and module.part.halo.num_halo > 0
        assert (module.num_features, module.num_classes, module.multi_label) == (16, 3, False)
    assert [path.name for path in root.iterdir()] == [modules[0]._folder.name]


def test_the_csr_layout_is_added_when_a_part_is_loaded_and_not_stored(root):
    plain = on_ranks(2, lambda rank: GraphDataModule(SPEC, root=root, progress=False))
    laid = on_ranks(2, lambda rank: GraphDataModule(SPEC, root=root, progress=False, layout="csr"))
    assert len(list(root.iterdir())) == 1
    for one, other in zip(plain, laid, strict=True):
        part = other.part
        assert "adj_t" not in one.part and torch.equal(one.part.edge_index, part.edge_index)
        assert part.adj_t.layout == torch.sparse_csr
        assert part.adj_t.shape == (part.num_nodes, part.num_nodes + part.halo.num_halo)
        assert next(iter(other.train_dataloader())).adj_t is part.adj_t
    alone = GraphDataModule(SPEC, layout="csr")
    alone.setup("fit")
    assert alone.part.adj_t.shape == (90, 90) and alone.part.adj_t.values().unique().tolist() == [1.0]
    with pytest.raises(ValueError, match="'coo' or 'csr', got 'csc'"):
        GraphDataModule(SPEC, layout="csc")


def test_weights_of_several_columns_have_no_csr_layout_on_any_rank(root):
    data = load_graph(SPEC)
    data.edge_weight = torch.ones(data.num_edges, 2)
    results = on_ranks(2, lambda rank: GraphDataModule(data, root=root, progress=False, layout="csr"))
    assert all("one edge_weight an edge for layout='csr'" in str(result) for result in results)


def test_ranks_that_share_no_data_take_the_partition_of_rank_0(root):
    """A script that other ranks run again may draw another graph; what counts is what rank 0 stored."""

    def make(rank: int) -> GraphDataModule:
        data = load_graph(f"{SPEC},seed={rank}")
        return GraphDataModule(data, root=root, progress=False)

    modules = on_ranks(2, make)
    whole = load_graph(f"{SPEC},seed=0")
    assert all(torch.equal(module.part.x, whole.x[module.part.n_id]) for module in modules)


def test_only_rank_0_loads_the_graph(root, monkeypatch):
    import lightning_gnncomm.graph.store as store

    loads = []
    real = store.load_graph
    monkeypatch.setattr(store, "load_graph", lambda *args, **kwargs: (loads.append(args), real(*args, **kwargs))[1])
    monkeypatch.setattr(module_under_test, "load_graph", lambda *_, **__: pytest.fail("a rank loaded the whole graph"))
    modules = on_ranks(3, lambda rank: GraphDataModule(SPEC, root=root, progress=False))
    assert all(module.part is not None for module in modules) and len(loads) == 1
    on_ranks(3, lambda rank: GraphDataModule(SPEC, root=root, progress=False))
    assert len(loads) == 1


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"data": "sbm:nodes=2"}, ValueError, "2 nodes for 3 parts"),
        ({"data": "npz:/no/such.npz"}, FileNotFoundError, "found none at"),
        ({"data": SPEC, "partition": "spectral"}, ValueError, "'spectral'"),
        ({"data": SPEC, "num_parts": 2}, ValueError, "devices=2"),
    ],
)
def test_a_failure_of_rank_0_is_raised_on_all_ranks(root, arguments, kind, text):
    results = on_ranks(3, lambda rank: GraphDataModule(**arguments, root=root, progress=False))
    assert_all_raised(results, kind, text)


def test_a_failure_of_another_rank_is_raised_on_all_ranks(root):
    folder = partition_and_store(SPEC, 3, root=root, progress=False)
    (folder / "part-00002.safetensors").unlink()
    results = on_ranks(3, lambda rank: GraphDataModule(SPEC, root=root, progress=False))
    assert_all_raised(results, FileNotFoundError, "part-00002.safetensors", "missing")


def test_a_folder_of_another_number_of_parts_says_what_to_use(root):
    folder = partition_and_store(SPEC, 2, root=root, progress=False)
    results = on_ranks(3, lambda rank: GraphDataModule(folder, progress=False))
    assert_all_raised(results, ValueError, "2 parts", "3 ranks", "devices=2", "--parts 3")


def test_ranks_with_different_partitions_are_refused(tmp_path):
    """As on nodes whose caches lie apart and one of which is stale."""
    folders = [tmp_path / "node0" / "parts", tmp_path / "node1" / "parts"]
    partition_and_store(SPEC, 2, out=folders[0], progress=False)
    partition_and_store(f"{SPEC},seed=1", 2, out=folders[1], progress=False)
    results = on_ranks(2, lambda rank: GraphDataModule(folders[rank]))
    assert_all_raised(results, ValueError, "partition of rank 0 on all ranks", "node1", "fingerprint")
    shutil.rmtree(folders[1])
    shutil.copytree(folders[0], folders[1])
    assert all(module.part is not None for module in on_ranks(2, lambda rank: GraphDataModule(folders[rank])))


def test_a_strategy_that_exchanges_nothing_is_refused_before_any_work(root):
    strategy = Ring(2)
    strategy.exchanges_halos = False
    results = on_ranks(2, lambda rank: GraphDataModule(SPEC, root=root, progress=False), strategy)
    assert_all_raised(results, ValueError, "exchanges halo rows for 2 parts, got Ring", "strategy='halo'")
    assert not root.exists()


def test_errors_that_do_not_pickle_cross_as_text():
    class OddError(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(f"{a} and {b}")

    assert repr(module_under_test._portable(OddError(1, 2))) == "RuntimeError('OddError: 1 and 2')"
    assert repr(module_under_test._portable(ValueError("x"))) == "ValueError('x')"


def test_one_rank_trains_on_the_whole_graph_and_stores_nothing(root):
    module = GraphDataModule(SPEC, root=root)
    module.prepare_data()
    module.setup("fit")
    whole = load_graph(SPEC)
    assert torch.equal(module.part.edge_index, whole.edge_index) and torch.equal(module.part.x, whole.x)
    assert module.part.halo.num_parts == 1 and module.part.halo.num_halo == 0
    assert not root.exists()


def test_a_data_a_dataset_a_name_and_a_folder_give_the_same_graph(tmp_path):
    karate = KarateClub()
    folder = partition_and_store("pyg:KarateClub", 1, out=tmp_path / "one", progress=False)
    for data in (karate[0], karate, "pyg:KarateClub", folder, str(folder)):
        module = GraphDataModule(data, root=tmp_path)
        module.setup("fit")
        assert torch.equal(module.part.x, karate[0].x) and torch.equal(module.part.edge_index, karate[0].edge_index)


def test_datasets_of_several_graphs_or_of_another_kind_are_refused(tmp_path):
    class Several(KarateClub):
        def __len__(self) -> int:
            return 2

    class Other(KarateClub):
        def __getitem__(self, _):
            return TemporalData()

    with pytest.raises(ValueError, match="one graph, got Several of 2"):
        GraphDataModule(Several())
    with pytest.raises(TypeError, match="got TemporalData"):
        GraphDataModule(Other())


def hetero_graph() -> HeteroData:
    """Users who rate items in shops; only users have labels, and shops no features."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"user": 30, "item": 20, "shop": 2}
    data = HeteroData({name: {"num_nodes": size} for name, size in sizes.items()})
    data["user"].x, data["item"].x = torch.rand(30, 4, generator=generator), torch.rand(20, 3, generator=generator)
    data["user"].y = torch.arange(30) % 5
    data["user"].train_mask = torch.arange(30) < 10
    for source, relation, target in (("item", "rated_by", "user"), ("user", "rates", "item"), ("item", "in", "shop")):
        ends = [torch.randint(0, sizes[name], (60,), generator=generator) for name in (source, target)]
        data[source, relation, target].edge_index = torch.stack(ends)
    return data


def test_each_rank_gets_its_part_of_a_heterogeneous_graph(root):
    """Of three parts one at least has none of the two shops."""
    modules = on_ranks(
        3, lambda rank: GraphDataModule(hetero_graph(), root=root, progress=False, add_features="degree")
    )
    whole = hetero_graph()
    assert min(module.part["shop"].num_nodes for module in modules) == 0
    for name in whole.node_types:
        n_id = torch.cat([module.part[name].n_id for module in modules])
        assert sorted(n_id.tolist()) == list(range(whole[name].num_nodes))
    for module in modules:
        assert type(module.part) is HeteroData and list(module.part.halo) == whole.node_types
        assert torch.equal(module.part["user"].x, whole["user"].x[module.part["user"].n_id])
        assert module.num_features == {"user": 4, "item": 3, "shop": 1}
        assert (module.num_classes, module.multi_label) == (5, False)
        (batch,) = module.train_dataloader()
        batch["user"].x = batch["user"].x * 2
        batch.extra = 1
        (again,) = module.train_dataloader()
        assert again["user"].x is module.part["user"].x and "extra" not in again


def test_a_given_assignment_of_a_heterogeneous_graph_is_used(root):
    given = {"user": torch.arange(30) % 2, "item": torch.zeros(20, dtype=torch.long), "shop": torch.tensor([1, 1])}
    modules = on_ranks(2, lambda rank: GraphDataModule(hetero_graph(), partition=given, root=root, progress=False))
    assert [module.part["item"].num_nodes for module in modules] == [20, 0]
    assert modules[1].part["user"].n_id.tolist() == list(range(1, 30, 2))


def test_a_wrong_setting_for_a_heterogeneous_graph_is_raised_on_all_ranks(root):
    def make(rank: int) -> GraphDataModule:
        return GraphDataModule(hetero_graph(), normalize_features=["shop"], root=root, progress=False)

    assert_all_raised(on_ranks(2, make), ValueError, "node types with x, ['user', 'item'], got 'shop'")


def test_one_rank_trains_on_the_whole_heterogeneous_graph(root):
    module = GraphDataModule(hetero_graph(), root=root, normalize_features=["user"])
    assert module.num_features == {"user": 4, "item": 3, "shop": 0} and module.num_classes == 5
    module.prepare_data()
    module.setup("fit")
    whole = hetero_graph()
    assert module.part.metadata() == whole.metadata() and torch.equal(module.part["item"].x, whole["item"].x)
    torch.testing.assert_close(module.part["user"].x.sum(dim=1), torch.ones(30))
    assert {name: plan.num_halo for name, plan in module.part.halo.items()} == dict.fromkeys(whole.node_types, 0)
    assert not root.exists()


def test_facts_of_a_heterogeneous_name_are_remembered(root, shared_graph, monkeypatch):
    import lightning_gnncomm.graph.store as store

    name = f"npz:{shared_graph('hetero_dblp')}"
    wanted = {"author": 334, "paper": 4231, "conference": 0, "term": 50}
    assert GraphDataModule(name, root=root).num_features == wanted
    monkeypatch.setattr(store, "load_graph", lambda *_, **__: pytest.fail("loaded the graph"))
    module = GraphDataModule(name, root=root)
    assert module.num_features == wanted and module.num_classes == 4


def test_parts_can_be_made_without_a_trainer_but_not_loaded(root):
    module = GraphDataModule(SPEC, num_parts=3, root=root, progress=False)
    module.prepare_data()
    assert read_manifest(next(root.iterdir()))["num_parts"] == 3
    with pytest.raises(ValueError, match="3 parts .num_parts. for 1 ranks.*devices=3"):
        module.setup("fit")


def test_facts_are_known_before_setup_and_remembered(root, monkeypatch):
    import lightning_gnncomm.graph.store as store

    assert GraphDataModule(SPEC, root=root).num_classes == 3
    monkeypatch.setattr(store, "load_graph", lambda *_, **__: pytest.fail("loaded the graph"))
    module = GraphDataModule(SPEC, root=root)
    assert (module.num_features, module.num_classes, module.multi_label) == (16, 3, False)


def test_facts_of_a_graph_with_several_labels_and_added_features():
    data = Data(edge_index=torch.tensor([[0], [1]]), y=torch.ones(3, 5), num_nodes=3)
    module = GraphDataModule(data, add_features="degree")
    assert (module.num_features, module.num_classes, module.multi_label) == (1, 5, True)
    assert GraphDataModule(data).num_features == 0
    module.setup()
    assert module.part.x.shape == (3, 1) and "x" not in data


def test_features_are_normalised_when_asked(root):
    modules = on_ranks(2, lambda rank: GraphDataModule("digits", root=root, normalize_features=True, progress=False))
    for module in modules:
        torch.testing.assert_close(module.part.x.sum(dim=1), torch.ones(module.part.num_nodes))


def test_loaders_have_one_batch_and_changes_to_it_do_not_stay(root):
    module = GraphDataModule(SPEC, root=root)
    with pytest.raises(RuntimeError, match="before setup"):
        module.train_dataloader()
    module.setup("fit")
    for loader in (
        module.train_dataloader(),
        module.val_dataloader(),
        module.test_dataloader(),
        module.predict_dataloader(),
    ):
        assert isinstance(loader, PartLoader) and len(loader) == 1
        (batch,) = loader
        assert type(batch) is Data and batch.x is module.part.x
        batch.x = batch.x * 2
        batch.extra = 1
        (again,) = loader
        assert again.x is module.part.x and "extra" not in again
    module.teardown("fit")
    assert module.part is None


class Linear(LightningModule):
    def __init__(self, module: GraphDataModule) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(module.num_features, module.num_classes)
        self.seen: list[str] = []

    def step(self, batch: Data, mask: str) -> torch.Tensor:
        assert type(batch) is Data and batch.num_nodes == 90
        self.seen.append(mask)
        return torch.nn.functional.cross_entropy(self.layer(batch.x)[batch[mask]], batch.y[batch[mask]])

    def training_step(self, batch):
        return self.step(batch, "train_mask")

    def validation_step(self, batch):
        self.step(batch, "val_mask")

    def test_step(self, batch):
        self.step(batch, "test_mask")

    def predict_step(self, batch):
        return self.layer(batch.x)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_a_plain_trainer_on_one_device_runs_all_stages(root, tmp_path):
    module = GraphDataModule(SPEC, root=root)
    model = Linear(module)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, module)
    assert model.seen.count("train_mask") == 2 and model.seen.count("val_mask") >= 2
    trainer.test(model, module, verbose=False)
    assert model.seen.count("test_mask") == 1
    (out,) = trainer.predict(model, module)
    assert out.shape == (90, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jsonargparse, inside LightningCLI
def test_yaml_builds_the_module_and_links_its_facts_to_a_model(tmp_path, monkeypatch):
    class Classifier(LightningModule):
        def __init__(self, in_channels: int, out_channels: int) -> None:
            super().__init__()
            self.sizes = in_channels, out_channels

    class Cli(LightningCLI):
        def add_arguments_to_parser(self, parser) -> None:
            parser.link_arguments("data.num_features", "model.in_channels", apply_on="instantiate")
            parser.link_arguments("data.num_classes", "model.out_channels", apply_on="instantiate")

    def build(*args: str, config: dict[str, Any] | None = None):
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps({"data": {"root": str(tmp_path)} | (config or {})}))
        monkeypatch.setattr(sys, "argv", ["gnncomm", "--config", str(path), *args])
        trainer = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        return Cli(
            Classifier,
            GraphDataModule,
            run=False,
            save_config_callback=None,
            seed_everything_default=False,
            trainer_defaults=trainer,
        )

    built = build(config={"data": SPEC, "balance": ["nodes", "train"]})
    assert built.datamodule.source == SPEC and built.datamodule.balance == ["nodes", "train"]
    assert built.model.sizes == (16, 3)
    assert build("--data.data=karate").model.sizes == (34, 4)
    assert build("--data.data=karate", "--data.layout=csr").datamodule.layout == "csr"
    assert build().datamodule.source == "digits"


def test_a_heterogeneous_graph_has_no_matrix() -> None:
    with pytest.raises(TypeError, match="homogeneous graph for layout='csr', got a HeteroData. Use layout='coo'"):
        GraphDataModule(random_hetero_graph(), layout="csr").setup("fit")
