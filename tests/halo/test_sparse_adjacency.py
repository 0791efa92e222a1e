"""Graphs whose edges are a sparse matrix ``adj_t``, or an ``EdgeIndex``: partitioned, trained and compared with one process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import spmm, to_edge_index
from torch_geometric.utils.sparse import set_sparse_value

from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.adjacency import with_adjacency
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo import sparse
from lightning_gnncomm.halo.attach import UnsupportedModuleError, attach
from lightning_gnncomm.testing import assert_matches_single_process, random_graph, run_threads
from tests.halo.test_attach import context_of

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch, at what PyG makes

STEPS = 10
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCN(6, 8, 2, 3),
    "gcn cached": lambda: pyg.GCN(6, 8, 2, 3, cached=True),
    "sage": lambda: pyg.GraphSAGE(6, 8, 2, 3),
    "sage max": lambda: pyg.GraphSAGE(6, 8, 2, 3, aggr="max"),
    "gin": lambda: pyg.GIN(6, 8, 2, 3),
    "gatv2": lambda: pyg.GAT(6, 8, 2, 3, heads=2, v2=True),
}


def matrix_graph(dtype: torch.dtype = torch.float64, layout: Any = torch.sparse_csr, **options: Any) -> Data:
    """A graph that has its weighted edges in ``adj_t`` and nowhere else."""
    transform: Data = ToSparseTensor(layout=layout, **options)(random_graph(dtype=dtype))
    return transform


def on_matrix(model: nn.Module, data: Data) -> Tensor:
    out: Tensor = model(data.x, data.adj_t)
    return out


@pytest.mark.parametrize("name", MODELS)
def test_models_called_with_a_matrix_are_exact(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    assert_matches_single_process(model, matrix_graph(torch.float32), 2, steps=STEPS, forward=on_matrix)
    model, data = model.double(), matrix_graph()
    assert_matches_single_process(model, data, 3, steps=STEPS, forward=on_matrix)
    with pytest.raises(AssertionError, match="output on rank"):
        assert_matches_single_process(model, data, 3, forward=on_matrix, exchange=False)


def test_a_rank_without_nodes_and_one_without_edges_take_part() -> None:
    data = random_graph(dtype=torch.float64)
    keep = data.edge_index[1] != 7
    data.edge_index, data.edge_weight = data.edge_index[:, keep], data.edge_weight[keep]
    data = ToSparseTensor(layout=torch.sparse_csr)(data)
    assignment = torch.arange(40) % 2 * 3
    assignment[7] = 1  # of four parts, the third owns nothing
    for name in ("gcn", "sage", "gatv2"):
        torch.manual_seed(0)
        model = MODELS[name]().double()
        assert_matches_single_process(model, data, 4, assignment=assignment, steps=3, forward=on_matrix)


def test_a_coo_matrix_and_one_with_vectors_as_values_become_csr_parts() -> None:
    assignment = torch.arange(40) % 3
    for data in (matrix_graph(layout=torch.sparse_coo), matrix_graph()):
        part = build_part(data, assignment, 1, 3)
        assert part.adj_t.layout == torch.sparse_csr
        assert part.adj_t.shape == (part.num_nodes, part.num_nodes + part.halo.num_halo)
        sources = part.halo.global_ids(part.n_id)
        assert torch.equal(part.adj_t.to_dense(), data.adj_t.to_dense()[part.n_id][:, sources])
    graph = random_graph(dtype=torch.float64)
    del graph["edge_weight"]  # of edges that become one entry
    graph.edge_attr = torch.rand(graph.num_edges, 4, dtype=torch.float64)
    graph = ToSparseTensor(attr="edge_attr", layout=torch.sparse_coo)(graph)
    torch.manual_seed(0)
    model = nn.ModuleList([pyg.GATConv(6, 3, edge_dim=4)]).double()
    call = lambda m, d: m[0](d.x, d.adj_t)  # noqa: E731
    assert_matches_single_process(model, graph, 3, steps=STEPS, forward=call)


def test_a_graph_with_both_gets_halo_rows_for_both() -> None:
    data = random_graph(dtype=torch.float64)
    other = torch.randint(40, (2, 60), generator=torch.Generator().manual_seed(3))
    data.adj_t = ToSparseTensor(layout=torch.sparse_csr)(Data(edge_index=other, x=data.x.float())).adj_t.double()
    data.edge_id = torch.arange(data.num_edges)
    for rank in range(3):
        part = build_part(data, torch.arange(40) % 3, rank, 3)
        nodes = part.halo.global_ids(part.n_id)
        assert torch.equal(nodes[part.edge_index], data.edge_index[:, part.edge_id])
        edges, _ = to_edge_index(part.adj_t)
        assert torch.equal(
            torch.stack([nodes[edges[0]], nodes[edges[1]]], 1).unique(dim=0),
            other.flip(0)[:, other[1] % 3 == rank].t().unique(dim=0),
        )

    def both(model: nn.Module, graph: Data) -> Tensor:
        x = model[0](graph.x, graph.edge_index, graph.edge_weight)
        out: Tensor = model[1](x.relu(), graph.adj_t)
        return out

    torch.manual_seed(0)
    model = nn.ModuleList([pyg.GCNConv(6, 8), pyg.GCNConv(8, 3)]).double()
    assert_matches_single_process(model, data, 3, steps=STEPS, forward=both)


class Fused(pyg.MessagePassing):
    """A layer of a user with a fused implementation that takes rows as one tensor, which ``update`` reads too."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.lin = nn.Linear(6, 3)

    def forward(self, x: Tensor, adj_t: Any) -> Tensor:
        return self.propagate(adj_t, x=self.lin(x))

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return x_j * edge_weight.view(-1, 1)

    def message_and_aggregate(self, adj_t: Any, x: Tensor) -> Tensor:
        return spmm(adj_t, x, reduce=self.aggr)

    def update(self, aggregated: Tensor, x: Tensor) -> Tensor:
        return aggregated.tanh() + x


class Learned(nn.Module):
    """Values of the matrix are computed in the model."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.conv = nn.Parameter(torch.tensor(0.5)), pyg.GCNConv(6, 3)

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        out: Tensor = self.conv(x, set_sparse_value(adj_t, (adj_t.values() * self.scale).sigmoid()))
        return out


@pytest.mark.parametrize("model", [Fused, Learned])
def test_fused_layers_of_users_and_learned_values_are_exact(model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.ModuleList([model()]).double()
    call = lambda m, d: m[0](d.x, d.adj_t)  # noqa: E731
    assert_matches_single_process(module, matrix_graph(), 3, steps=STEPS, forward=call)
    with pytest.raises(AssertionError):
        assert_matches_single_process(module, matrix_graph(), 3, forward=call, exchange=False)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is transposed, and where a product with it is made."""
    found: list[str] = []
    for name in ("_build", "_build_from_matrix"):
        real = getattr(sparse, name)
        monkeypatch.setattr(sparse, name, lambda *a, real=real: found.append("built") or real(*a))
    for product in (sparse._Aggregate, sparse._Multiply):
        monkeypatch.setattr(product, "apply", lambda *a, apply=product.apply: found.append("used") or apply(*a))
    return found


class InitialResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCN2Conv(6, 0.1)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        out: Tensor = self.conv(x, x, adjacency)
        return out


HOPS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "GIN": (lambda: pyg.GINConv(nn.Linear(6, 3)), 1),
    "GraphConv": (lambda: pyg.GraphConv(6, 3), 1),
    "GraphConv mean": (lambda: pyg.GraphConv(6, 3, aggr="mean"), 1),
    "SAGE": (lambda: pyg.SAGEConv(6, 3), 1),
    "SAGE sum": (lambda: pyg.SAGEConv(6, 3, aggr="sum"), 1),
    "GatedGraph": (lambda: pyg.GatedGraphConv(6, 2), 2),
    "APPNP": (lambda: pyg.APPNP(3, 0.1), 3),
    "SG": (lambda: pyg.SGConv(6, 3, K=2), 2),
    "SSG": (lambda: pyg.SSGConv(6, 3, alpha=0.1, K=2), 2),
    "TAG": (lambda: pyg.TAGConv(6, 3, K=3), 3),
    "LG": (pyg.LGConv, 1),
    "MixHop": (lambda: pyg.MixHopConv(6, 1), 2),
    "GCN2": (InitialResidual, 1),
    "GAT": (lambda: pyg.GATConv(6, 3), 0),
    "SAGE max": (lambda: pyg.SAGEConv(6, 3, aggr="max"), 0),
}


@pytest.mark.parametrize("form", ["edge_index", "adj_t"])
@pytest.mark.parametrize("name", HOPS)
def test_matrices_are_built_once_and_used_at_each_hop(name: str, form: str, builds: list[str]) -> None:
    make, hops = HOPS[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), make(), nn.LazyLinear(3)).double()
    data = random_graph(dtype=torch.float64) if form == "edge_index" else matrix_graph()

    def call(module: nn.Module, graph: Data) -> Tensor:
        out: Tensor = module[2](module[1](module[0](graph.x), graph[form]))
        return out

    call(model, data)
    builds.clear()
    assert_matches_single_process(model, data, 2, steps=4, forward=call)
    assert (builds.count("built"), builds.count("used")) == (2 * bool(hops), 2 * hops * 4)


def run_on_parts(model: nn.Module, data: Data, call: Callable[[nn.Module, Data], Any]) -> list[Any]:
    def work(wire: Wire) -> Any:
        part = build_part(data, torch.arange(data.num_nodes) % 2, wire.rank, 2)
        replica = copy.deepcopy(model)
        attachment = attach(replica, context := context_of(wire))
        try:
            with context.step(part.halo, part.to_dict(), 0, exact=False):
                return call(replica, part)
        finally:
            attachment.detach()

    return run_threads(work, 2)


REFUSED: dict[str, tuple[Any, str]] = {
    "Laplacian": (lambda: pyg.ChebConv(6, 3, K=2), "Layer '0' needs the Laplacian.*Pass 'edge_index'"),
    "against the edges": (
        lambda: pyg.GCNConv(6, 3, flow="target_to_source"),
        "Layer '0' aggregates against the direction.*Pass 'edge_index'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_need_edges_refuse_a_matrix_by_name(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        run_on_parts(nn.ModuleList([make()]), matrix_graph(torch.float32), lambda m, d: m[0](d.x, d.adj_t))


def test_another_format_is_refused_where_degrees_are_needed() -> None:
    call = lambda m, d: m[0](d.x, d.adj_t.to_sparse_coo())  # noqa: E731
    with pytest.raises(
        TypeError, match="Layer '0' needs a sparse adjacency as torch's CSR, got layout torch.sparse_coo"
    ):
        run_on_parts(nn.ModuleList([pyg.GCNConv(6, 3)]), matrix_graph(torch.float32), call)


class ByHand(nn.Module):
    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        return adj_t @ x


class ByEdgeIndex(nn.Module):
    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        out: Tensor = edge_index.matmul(x)
        return out


@pytest.mark.parametrize("module", [ByHand, ByEdgeIndex])
def test_products_outside_layers_are_refused_at_set_up(module: type[nn.Module]) -> None:
    with pytest.raises(
        UnsupportedModuleError, match=r"'0' .*may look beyond this rank's nodes: '(adj_t @ x|edge_index.matmul)"
    ):
        run_on_parts(nn.ModuleList([module()]), matrix_graph(), lambda m, d: None)


def edge_index_graph(sort_order: str = "col") -> Data:
    data = random_graph(dtype=torch.float64).sort(sort_by_row=sort_order == "row")
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(40, 40), sort_order=sort_order)
    return data


@pytest.mark.parametrize("sort_order", ["row", "col"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gatv2"])
def test_an_edge_index_with_facts_becomes_a_plain_tensor_and_is_exact(name: str, sort_order: str) -> None:
    data = edge_index_graph(sort_order)
    part = build_part(data, torch.arange(40) % 2, 0, 2)
    assert type(part.edge_index) is Tensor  # its size and order were those of the whole graph
    torch.manual_seed(0)
    assert_matches_single_process(MODELS[name]().double(), data, 3, steps=STEPS)
    with pytest.raises(AttributeError, match="get_csr"):
        run_on_parts(MODELS[name]().double(), data, lambda m, d: d.edge_index.get_csr())


def test_the_size_of_an_edge_index_counts_nodes() -> None:
    edges = EdgeIndex([[0, 1], [1, 0]], sparse_size=(5, 5))
    assert build_part(Data(edge_index=edges), torch.tensor([0, 1, 1, 0, 0]), 0, 2).num_nodes == 3


@pytest.mark.parametrize("layer", [pyg.GCNConv, pyg.SAGEConv, pyg.GATConv])
def test_an_edge_index_made_in_the_model_is_exact(layer: Callable[..., nn.Module]) -> None:
    """It claims that there are no more nodes than the model has rows of, and would take PyG's own fused path."""

    def call(model: nn.Module, data: Data) -> Tensor:
        size = (data.num_nodes, data.num_nodes)
        out: Tensor = model[0](data.x, EdgeIndex(data.edge_index, sparse_size=size, sort_order="col"))
        return out

    torch.manual_seed(0)
    data = random_graph(dtype=torch.float64).sort(sort_by_row=False)
    assert_matches_single_process(nn.ModuleList([layer(6, 3)]).double(), data, 3, steps=STEPS, forward=call)


def test_the_csr_layout_of_parts_is_that_of_the_whole_graph() -> None:
    whole = matrix_graph(torch.float32)
    for rank in range(3):
        part = build_part(random_graph(), torch.arange(40) % 3, rank, 3)
        laid = with_adjacency(part)
        assert "adj_t" not in part and torch.equal(laid.edge_index, part.edge_index)
        rows = whole.adj_t.to_dense()[part.n_id][:, part.halo.global_ids(part.n_id)]
        torch.testing.assert_close(laid.adj_t.to_dense(), rows)
        unweighted = with_adjacency(Data(**{k: v for k, v in part.to_dict().items() if k != "edge_weight"}))
        assert torch.equal(unweighted.adj_t.to_dense(), (rows != 0).float())
        assert with_adjacency(laid).adj_t is laid.adj_t
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert laid.adj_t.to(torch.device("cpu")) is laid.adj_t  # what is kept is found by identity


def test_a_matrix_out_of_a_loader_is_cut_like_the_graphs_own() -> None:
    data = matrix_graph()
    (batch,) = DataLoader([data])
    ours, theirs = (build_part(graph, torch.arange(40) % 2, 1, 2) for graph in (batch, data))
    assert torch.equal(ours.adj_t.to_dense(), theirs.adj_t.to_dense())
