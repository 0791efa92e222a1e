"""Training over several ranks equals training in one process: output, every gradient, parameters after 20 steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    PNA,
    EdgeCNN,
    GraphSAGE,
    GraphSizeNorm,
    MeanSubtractionNorm,
    PairNorm,
)
from torch_geometric.nn.conv import GCNConv
from torch_geometric.utils import degree

from lightning_gnncomm.graph.npz import load_npz
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.testing import assert_matches_single_process, random_graph

STEPS = 20
DEGREE = torch.bincount(degree(random_graph().edge_index[1], 40, dtype=torch.long))
MODELS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "gcn": (GCN, {}),
    "sage": (GraphSAGE, {}),
    "sage_max_project": (GraphSAGE, {"aggr": "max", "project": True}),
    "gat": (GAT, {"heads": 2}),
    "gat_residual": (GAT, {"heads": 2, "residual": True}),
    "gatv2": (GAT, {"heads": 2, "v2": True}),
    "gin": (GIN, {"train_eps": True}),
    "pna": (PNA, {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": DEGREE}),
    "edge_cnn": (EdgeCNN, {}),
}
NORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "batch_norm": ("batch_norm", {}),
    "layer_norm": ("layer_norm", {}),
    "layer_norm_node": ("layer_norm", {"mode": "node"}),
    "graph_norm": ("graph_norm", {}),
    "instance_norm": ("instance_norm", {"affine": True, "track_running_stats": True}),
    "diff_group_norm": ("diff_group_norm", {"groups": 2}),
    "pair_norm": (PairNorm(), {}),
    "pair_norm_scaled": (PairNorm(scale_individually=True), {}),
    "graph_size_norm": (GraphSizeNorm(), {}),
    "mean_subtraction_norm": (MeanSubtractionNorm(), {}),
    "torch_batch_norm": (nn.BatchNorm1d(8, momentum=None), {}),
}


def build_model(name: str, data: Data, hidden: int = 8, classes: int = 3, **options: Any) -> nn.Module:
    kind, arguments = MODELS[name]
    torch.manual_seed(0)
    model = kind(data.num_features, hidden, num_layers=3, out_channels=classes, **(arguments | options))
    return model.to(data.x.dtype)


def forward(model: nn.Module, data: Data) -> Tensor:
    """Call a model with edge weights if it takes them."""
    weights = {"edge_weight": data.edge_weight} if model.supports_edge_weight and "edge_weight" in data else {}
    out: Tensor = model(data.x, data.edge_index, **weights)
    return out


@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_exact_in_float32_and_float64(name: str, num_parts: int) -> None:
    for dtype in (torch.float32, torch.float64):
        data = random_graph(dtype=dtype)
        assert_matches_single_process(build_model(name, data), data, num_parts, steps=STEPS, forward=forward)


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_is_exact(norm: str) -> None:
    kind, options = NORMS[norm]
    data = random_graph(dtype=torch.float64)
    for name in ("gcn", "edge_cnn"):
        model = build_model(name, data, norm=kind, norm_kwargs=options)
        assert_matches_single_process(model, data, 3, steps=STEPS, forward=forward)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_exact_with_batch_norm(name: str) -> None:
    data = random_graph(dtype=torch.float64)
    model = build_model(name, data, norm="batch_norm", act_first=True)
    assert_matches_single_process(model, data, 3, steps=STEPS, forward=forward)


@pytest.mark.parametrize("jk", ["cat", "max", "lstm", "last"])
def test_jumping_knowledge_is_exact(jk: str) -> None:
    data = random_graph(dtype=torch.float64)
    assert_matches_single_process(build_model("sage", data, jk=jk), data, 3, steps=STEPS, forward=forward)


@pytest.mark.parametrize("name", MODELS)
def test_without_the_exchange_the_same_test_fails(name: str) -> None:
    data = random_graph()
    with pytest.raises(AssertionError, match="output on rank"):
        assert_matches_single_process(build_model(name, data), data, 3, forward=forward, exchange=False)


def test_without_the_degrees_of_remote_nodes_the_same_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_gnncomm.halo.context import HaloContext
    from lightning_gnncomm.slots import Role

    real = HaloContext.extend

    def wrong_degrees(
        self: HaloContext, x: Tensor, layer: str, argument: str, dim: int = 0, role: Any = Role.FEATURE
    ) -> Tensor:
        out = real(self, x, layer, argument, dim, role)
        return torch.cat([x, torch.ones_like(out[x.size(0) :])]) if role is Role.NORM else out

    monkeypatch.setattr(HaloContext, "extend", wrong_degrees)
    data = random_graph()
    with pytest.raises(AssertionError, match="output on rank"):
        assert_matches_single_process(build_model("gcn", data), data, 3, forward=forward)


@pytest.mark.parametrize("norm", [n for n in NORMS if n != "layer_norm_node"])
def test_with_the_statistics_of_each_rank_alone_the_same_test_fails(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_gnncomm.halo.context import HaloContext

    monkeypatch.setattr(HaloContext, "all_reduce", lambda self, x, layer: x)
    kind, options = NORMS[norm]
    data = random_graph()
    with pytest.raises(AssertionError, match="output on rank"):
        assert_matches_single_process(
            build_model("sage", data, norm=kind, norm_kwargs=options), data, 3, forward=forward
        )


def uneven(data: Data) -> Tensor:
    """Put four nodes on rank 1, none with a training label, and the rest on rank 0."""
    chosen = (~data.train_mask).nonzero().view(-1)[:4]
    assignment = torch.zeros(data.num_nodes, dtype=torch.long)
    assignment[chosen] = 1
    return assignment


@pytest.mark.parametrize("name", MODELS)
def test_uneven_parts_and_a_part_without_training_nodes_are_exact(name: str) -> None:
    data = random_graph(dtype=torch.float64)
    assignment = uneven(data)
    assert not build_part(data, assignment, 1, 2).train_mask.any()
    model = build_model(name, data, norm="batch_norm")
    assert_matches_single_process(model, data, 2, assignment=assignment, steps=STEPS, forward=forward)


def test_a_graph_whose_parts_share_no_edge_is_exact() -> None:
    data = random_graph(dtype=torch.float64)
    data.edge_index[0] = data.edge_index[0] // 20 * 0 + data.edge_index[0] % 20 + data.edge_index[1] // 20 * 20
    assignment = torch.arange(40) // 20
    assert build_part(data, assignment, 0, 2).halo.num_halo == 0
    for name in ("gcn", "gatv2"):
        assert_matches_single_process(
            build_model(name, data, norm="graph_norm"), data, 2, assignment=assignment, forward=forward
        )


def test_a_part_whose_rows_nobody_needs_and_that_needs_none_is_exact() -> None:
    data = random_graph(dtype=torch.float64)
    keep = (data.edge_index >= 10).all(0) | (data.edge_index < 10).all(0)
    data = Data(x=data.x, edge_index=data.edge_index[:, keep], y=data.y, train_mask=data.train_mask)
    assignment = torch.cat([torch.zeros(10), torch.ones(15), torch.full((15,), 2)]).long()
    assert [build_part(data, assignment, r, 3).halo.num_halo > 0 for r in range(3)] == [False, True, True]
    assert_matches_single_process(build_model("gcn", data), data, 3, assignment=assignment, steps=STEPS)


def test_learned_edge_weights_get_their_gradient_through_remote_degrees() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weigh = nn.Linear(1, 1)
            self.conv1, self.conv2 = GCNConv(6, 8, improved=True), GCNConv(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
            weight = self.weigh(edge_weight.view(-1, 1)).sigmoid().view(-1)
            return self.conv2(self.conv1(x, edge_index, weight).relu(), edge_index, weight)

    torch.manual_seed(0)
    data = random_graph(dtype=torch.float64)
    model = Weighted().double()
    call = lambda m, d: m(d.x, d.edge_index, d.edge_weight)  # noqa: E731
    assert_matches_single_process(model, data, 3, steps=STEPS, forward=call)


def test_layers_that_are_shared_or_called_twice_are_exact() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.conv = GCNConv(6, 8), GCNConv(8, 8, cached=True)
            self.same = self.conv
            self.out = nn.Linear(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.first(x, edge_index).relu()
            x = self.same(self.conv(x, edge_index).relu(), edge_index)
            return self.out(x)

    torch.manual_seed(0)
    data = random_graph(dtype=torch.float64)
    assert_matches_single_process(Twice().double(), data, 3, steps=STEPS)


@pytest.mark.parametrize("name", ["gcn", "gatv2", "sage"])
@pytest.mark.parametrize("graph", ["cora", "cornell", "tolokers"])
def test_real_graphs_are_exact(graph: str, name: str, shared_graph: Any) -> None:
    data = load_npz(shared_graph(graph))
    classes = int(data.y.max()) + 1
    parts = {"cora": 4, "cornell": 3, "tolokers": 2}[graph]
    model = build_model(name, data, hidden=16, classes=classes)
    assert_matches_single_process(model, data, parts, steps=3 if graph == "tolokers" else STEPS, forward=forward)


@pytest.mark.parametrize("name", ["gcn", "gat", "gatv2", "sage", "gin"])
def test_dropout_of_rows_and_attention_is_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout acts on own rows before they travel and on edges where they live, so a deterministic one shows parity."""
    calls = []

    def by_value(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        calls.append(p)
        return x * 2 * ((x.detach() * 1e4).sin() > 0) if training and p > 0 else x

    monkeypatch.setattr("torch.nn.functional.dropout", by_value)
    data = random_graph(dtype=torch.float64)
    model = build_model(name, data, dropout=0.5)
    assert_matches_single_process(model, data, 3, steps=STEPS, forward=forward)
    assert 0.5 in calls


LAYERS: dict[str, Any] = {
    "cheb": lambda i, o: pyg.ChebConv(i, o, K=3),
    "cheb rw": lambda i, o: pyg.ChebConv(i, o, K=3, normalization="rw"),
    "eg without norm": lambda i, o: pyg.EGConv(i, o, num_heads=1, num_bases=2, aggregators=["mean", "max"]),
    "tag": lambda i, o: pyg.TAGConv(i, o, K=3),
    "transformer": lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False),
    "sage over sequences": lambda i, o: pyg.SAGEConv(i, o, aggr="lstm"),
    "directed sage": lambda i, o: pyg.DirGNNConv(pyg.SAGEConv(i, o)),
    "directed gcn": lambda i, o: pyg.DirGNNConv(pyg.GCNConv(i, o)),
    "gcn against the flow": lambda i, o: pyg.GCNConv(i, o, flow="target_to_source"),
    "gcn against the flow, cached": lambda i, o: pyg.GCNConv(i, o, flow="target_to_source", cached=True),
    "gatv2 against the flow": lambda i, o: pyg.GATv2Conv(i, o, flow="target_to_source"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_need_more_than_rows_are_exact(name: str) -> None:
    """Out-degrees, self-loops of own nodes, padding to the largest in-degree, out-edges."""
    torch.manual_seed(0)
    data = random_graph(dtype=torch.float64).sort(sort_by_row=False)
    model = nn.ModuleList([LAYERS[name](6, 8), LAYERS[name](8, 3)]).double()

    def call(layers: nn.ModuleList, graph: Data) -> Tensor:
        weighted = name.startswith(("cheb", "tag", "gcn"))
        weight = (graph.edge_weight,) if weighted else ()
        x = layers[0](graph.x, graph.edge_index, *weight).relu()
        return layers[1](x, graph.edge_index, *weight)

    assert_matches_single_process(model, data, 3, steps=STEPS, forward=call)
    with pytest.raises(AssertionError):
        assert_matches_single_process(model, data, 3, forward=call, exchange=False)


def test_a_table_of_all_nodes_is_read_by_their_ids_without_an_exchange() -> None:
    data = random_graph(dtype=torch.float64)
    for part_sizes in ([14, 13, 13], [40, 0, 0]):
        assignment = torch.arange(3).repeat_interleave(torch.tensor(part_sizes))[torch.randperm(40)]
        torch.manual_seed(0)
        model = pyg.LINKX(40, 6, 8, 3, num_layers=2, num_edge_layers=2).double()
        call = lambda m, d: m(d.x, d.edge_index, d.edge_weight)  # noqa: E731
        assert_matches_single_process(model, data, 3, assignment=assignment, steps=STEPS, forward=call)
        # Not even rows without an exchange change it.
        assert_matches_single_process(model, data, 3, assignment=assignment, forward=call, exchange=False)


def test_a_table_read_by_places_in_the_part_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_gnncomm.halo.relation import Relation

    monkeypatch.setattr(Relation, "all_ids", lambda self: torch.arange(self.size[0]) % self.plan.num_global)
    model = pyg.LINKX(40, 6, 8, 3, num_layers=2)
    with pytest.raises(AssertionError, match="output on rank"):
        assert_matches_single_process(model, random_graph(), 3)


def test_out_edges_of_a_computed_adjacency_are_refused() -> None:
    model = nn.ModuleList([pyg.GCNConv(6, 3, flow="target_to_source")])
    call = lambda m, d: m[0](d.x, d.edge_index.clone())  # noqa: E731
    with pytest.raises(ValueError, match="Layer '0' aggregates over out-edges.*the batch's own 'edge_index'"):
        assert_matches_single_process(model, random_graph(), 3, forward=call)


def test_constant_adjacencies_become_one_sparse_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of edge lists gets the fast path, built once, where it means the same; learned weights keep messages."""
    from lightning_gnncomm.halo import sparse

    built, used = [], []
    build, apply = sparse._build, sparse._Aggregate.apply
    monkeypatch.setattr(sparse, "_build", lambda *a: built.append(1) or build(*a))
    monkeypatch.setattr(sparse._Aggregate, "apply", lambda *a: used.append(1) or apply(*a))
    data = random_graph(dtype=torch.float64)
    for name, matrices in (("gcn", 1), ("sage", 1), ("gin", 1), ("gat", 0), ("pna", 0)):
        built.clear(), used.clear()
        assert_matches_single_process(build_model(name, data), data, 2, steps=4, forward=forward)
        assert (len(built), len(used)) == (2 * matrices, 2 * matrices * 3 * 4), name

    class Learned(nn.Module):
        supports_edge_weight = True

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.conv = nn.Parameter(torch.tensor(0.5)), GCNConv(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
            return self.conv(x, edge_index, edge_weight * self.scale)

    used.clear()
    assert_matches_single_process(Learned().double(), data, 2, steps=4, forward=forward)
    assert used == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("graph", ["cora", "cornell", "tolokers"])
def test_every_model_is_exact_on_real_graphs_after_twenty_steps(graph: str, name: str, shared_graph: Any) -> None:
    data = load_npz(shared_graph(graph))
    data.x = data.x.double()
    model = build_model(name, data, hidden=16, classes=int(data.y.max()) + 1)
    parts = {"cora": 4, "cornell": 3, "tolokers": 2}[graph]
    assert_matches_single_process(model, data, parts, steps=STEPS, forward=forward)
