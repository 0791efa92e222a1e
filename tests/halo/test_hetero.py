"""Heterogeneous graphs over several ranks equal training in one process, whatever holds the relations together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
import torch_geometric.transforms as T
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.npz import load_npz
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import UnsupportedModuleError, attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.slots import Role
from lightning_gnncomm.testing import (
    assert_matches_single_process,
    random_hetero_graph,
    run_threads,
    train_distributed,
)

STEPS = 3
EDGE_TYPES = random_hetero_graph().edge_types
METADATA = random_hetero_graph().metadata()
IN, HIDDEN, CLASSES = 6, 8, 3


def graph(dtype: torch.dtype = torch.float64) -> HeteroData:
    return random_hetero_graph(dtype=dtype)


class Stack(nn.Module):
    """Layers over dicts with an activation in between."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        for layer in self.layers[:-1]:
            x = {name: rows.tanh() for name, rows in layer(x, edges, **kwargs).items()}
        out: dict[str, Tensor] = self.layers[-1](x, edges, **kwargs)
        return out


def wrapped(make: Callable[[int, int], Any], aggr: str = "sum", types: Any = EDGE_TYPES) -> nn.Module:
    width = 3 * HIDDEN if aggr == "cat" else HIDDEN
    first = pyg.HeteroConv({key: make(IN, HIDDEN) for key in types}, aggr=aggr)
    if aggr == "cat":
        sizes = {"paper": 3 * HIDDEN, "author": HIDDEN, "venue": HIDDEN}
        second = {key: pyg.SAGEConv((sizes[key[0]], sizes[key[2]]), CLASSES) for key in types}
        return Stack(first, pyg.HeteroConv(second))
    return Stack(first, pyg.HeteroConv({key: make(width, CLASSES) for key in types}, aggr=aggr))


def gat(i: int, o: int) -> nn.Module:
    return pyg.GATConv((i, i), o, add_self_loops=False)


def mixed(i: int, o: int) -> dict[Any, nn.Module]:
    """A layer of its own for each edge type, degrees among nodes of one type with them."""
    return {
        ("author", "writes", "paper"): pyg.SAGEConv(i, o),
        ("paper", "cites", "paper"): pyg.GCNConv(i, o),
        ("paper", "written_by", "author"): pyg.GATv2Conv((i, i), o, add_self_loops=False),
        ("venue", "hosts", "paper"): pyg.GraphConv((i, i), o, aggr="max"),
        ("paper", "in", "venue"): pyg.TransformerConv((i, i), o),
    }


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"HeteroConv of SAGE, {aggr}": lambda aggr=aggr: wrapped(pyg.SAGEConv, aggr)
        for aggr in ("sum", "mean", "max", "cat")
    },
    "HeteroConv of GAT": lambda: wrapped(gat),
    "HeteroConv of GraphConv": lambda: wrapped(lambda i, o: pyg.GraphConv((i, i), o)),
    "HeteroConv of many": lambda: Stack(pyg.HeteroConv(mixed(IN, HIDDEN)), pyg.HeteroConv(mixed(HIDDEN, CLASSES))),
    "to_hetero of GraphSAGE": lambda: pyg.to_hetero(pyg.GraphSAGE((IN, IN), HIDDEN, 2, CLASSES), METADATA),
    "to_hetero of GraphSAGE with batch norm": lambda: pyg.to_hetero(
        pyg.GraphSAGE((IN, IN), HIDDEN, 2, CLASSES, norm="batch_norm"), METADATA, aggr="mean"
    ),
    "to_hetero of GAT": lambda: pyg.to_hetero(
        pyg.GAT((IN, IN), HIDDEN, 2, CLASSES, heads=2, add_self_loops=False), METADATA
    ),
    "HGT": lambda: Stack(pyg.HGTConv(IN, HIDDEN, METADATA), pyg.HGTConv(HIDDEN, CLASSES, METADATA)),
    "HGT with skips": lambda: Stack(pyg.HGTConv(IN, IN, METADATA), pyg.HGTConv(IN, CLASSES, METADATA)),
    "HGT of two heads": lambda: Stack(pyg.HGTConv(IN, HIDDEN, METADATA, 2), pyg.HGTConv(HIDDEN, CLASSES, METADATA)),
    "HAN": lambda: Stack(pyg.HANConv(IN, HIDDEN, METADATA, 2), pyg.HANConv(HIDDEN, CLASSES, METADATA)),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def uneven() -> dict[str, Tensor]:
    """Three parts: no venue on the last two, no author on the first, no paper on the last, and hence no label."""
    sizes = random_hetero_graph().num_nodes_dict
    return {
        "paper": torch.arange(sizes["paper"]) % 2,
        "author": torch.arange(sizes["author"]) % 2 + 1,
        "venue": torch.zeros(sizes["venue"], dtype=torch.long),
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_exact_and_fails_without_the_exchange(name: str) -> None:
    assert_matches_single_process(build(name), graph(), 3, steps=STEPS)
    with pytest.raises(AssertionError, match="output"):
        assert_matches_single_process(build(name), graph(), 3, exchange=False)


EACH_KIND = [
    "HeteroConv of SAGE, max",
    "HeteroConv of many",
    "to_hetero of GraphSAGE with batch norm",
    "to_hetero of GAT",
    "HGT of two heads",
    "HAN",
]


@pytest.mark.parametrize("name", EACH_KIND)
def test_parts_without_nodes_of_a_type_are_exact(name: str) -> None:
    assert_matches_single_process(build(name), graph(), 3, assignment=uneven(), steps=STEPS)


@pytest.mark.parametrize("name", ["HeteroConv of many", "to_hetero of GAT", "HGT of two heads", "HAN"])
def test_models_are_exact_in_float32_on_two_and_four_ranks(name: str) -> None:
    for num_parts in (2, 4):
        assert_matches_single_process(build(name, torch.float32), graph(torch.float32), num_parts, steps=2)


def test_reverse_edges_and_loops_of_a_type_are_exact() -> None:
    """Edge types that ``ToUndirected`` adds, and degrees where a relation joins nodes of one type."""
    data = HeteroData()
    source = graph()
    for name in ("paper", "author"):
        data[name].update(source[name])
    for key in (("paper", "cites", "paper"), ("author", "writes", "paper")):
        data[key].edge_index = source[key].edge_index
    data = T.ToUndirected(merge=False)(data)
    assert ("paper", "rev_writes", "author") in data.edge_types

    def make(key: Any, i: int, o: int) -> nn.Module:
        return pyg.GCNConv(i, o) if key[0] == key[2] else pyg.SAGEConv(i, o)

    torch.manual_seed(0)
    layers = [pyg.HeteroConv({k: make(k, i, o) for k in data.edge_types}) for i, o in ((IN, HIDDEN), (HIDDEN, CLASSES))]
    assert_matches_single_process(Stack(*layers).double(), data, 3, steps=STEPS)


def test_edges_chosen_by_the_model_are_told_by_their_place() -> None:
    """Filtered edges are not the batch's own: HeteroConv and to_hetero keep a layer under its edge type, HAN's come by it."""

    def call(model: nn.Module, data: HeteroData) -> Any:
        weights = {key: data[key].edge_weight for key in data.edge_types}
        kept = {key: edges[:, weights[key] > 0.8] for key, edges in data.edge_index_dict.items()}
        return model(data.x_dict, kept)

    for name in ("HeteroConv of many", "to_hetero of GraphSAGE", "HGT", "HAN"):
        assert_matches_single_process(build(name), graph(), 3, steps=2, forward=call)


def test_learned_edge_weights_are_exact() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))
            self.net = wrapped(lambda i, o: pyg.GraphConv((i, i), o))

        def forward(self, data: HeteroData) -> Any:
            weights = {key: data[key].edge_weight * self.scale for key in data.edge_types}
            return self.net(data.x_dict, data.edge_index_dict, edge_weight_dict=weights)

    torch.manual_seed(0)
    assert_matches_single_process(Weighted().double(), graph(), 3, steps=STEPS, forward=lambda m, d: m(d))


class ByHand(nn.Module):
    """Layers called one by one, with nothing in their paths that tells what they join."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.write = pyg.GATConv((IN, IN), HIDDEN, add_self_loops=False, **options)
        self.cite = pyg.GCN(HIDDEN, HIDDEN, 2, CLASSES)

    def forward(self, data: HeteroData) -> Tensor:
        x = self.write((data["author"].x, data["paper"].x), data["author", "writes", "paper"].edge_index).tanh()
        out: Tensor = self.cite(x, data["paper", "cites", "paper"].edge_index)
        return out


def test_layers_called_by_hand_are_told_by_the_batch_s_own_edges() -> None:
    torch.manual_seed(0)
    call = lambda m, d: m(d)  # noqa: E731
    assert_matches_single_process(ByHand().double(), graph(), 3, steps=STEPS, forward=call)


def test_edges_of_unknown_types_are_refused_with_the_layer_named() -> None:
    def call(model: ByHand, data: HeteroData) -> Tensor:
        data = copy.copy(data)
        data["author", "writes", "paper"].edge_index = data["author", "writes", "paper"].edge_index.clone()
        return model(data)

    with pytest.raises(ValueError, match=r"Layer 'write' works on edges of which nobody can tell.*HeteroConv"):
        assert_matches_single_process(ByHand(), graph(torch.float32), 2, forward=call)


def test_code_of_the_user_is_read_after_to_hetero_too() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv((IN, IN), CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.conv(x - x.mean(0), edge_index)
            return out

    model = pyg.to_hetero(Centred(), METADATA)
    with pytest.raises(UnsupportedModuleError, match=r"its forward may look beyond.*mean\(0\)"):
        attach(model, HaloContext(Channel(None, IdentityCodec(), Synchronous())))


def test_loops_between_types_are_refused_with_the_layer_named() -> None:
    model = ByHand()
    model.write.add_self_loops = True
    call = lambda m, d: m(d)  # noqa: E731
    with pytest.raises(ValueError, match=r"Layer 'write' adds self-loops to edges between different node types"):
        assert_matches_single_process(model, graph(torch.float32), 2, forward=call)


def test_layers_against_the_flow_are_exact_within_a_type_and_refused_between_types() -> None:
    within = [("paper", "cites", "paper")]
    for make in (
        lambda: wrapped(lambda i, o: pyg.SAGEConv(i, o, flow="target_to_source"), types=within),
        lambda: wrapped(lambda i, o: pyg.GCNConv(i, o, flow="target_to_source"), types=within),
        lambda: wrapped(lambda i, o: pyg.DirGNNConv(pyg.GCNConv(i, o)), types=within),
    ):
        torch.manual_seed(0)
        assert_matches_single_process(make().double(), graph(), 3, steps=STEPS)
    message = r"Layer 'layers.0.convs.<author___writes___paper>' .*not supported between different node types"
    types = [("author", "writes", "paper"), ("paper", "written_by", "author")]
    between = wrapped(lambda i, o: pyg.SAGEConv(i, o, flow="target_to_source"), types=types)
    with pytest.raises(ValueError, match=message):
        train_distributed(between, graph(torch.float32), assign(graph(), 2), 2)


class Typed(nn.Module):
    """Norms over the rows of all types at once, between two layers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = wrapped(pyg.SAGEConv).layers[0], norm, wrapped(pyg.SAGEConv).layers[1]

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        x = self.first(x, edges)
        sizes = [rows.size(0) for rows in x.values()]
        kind = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        normed = self.norm(torch.cat(list(x.values())), kind).split(sizes)
        out: dict[str, Tensor] = self.last(dict(zip(x, normed, strict=True)), edges)
        return out


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: pyg.HeteroBatchNorm(HIDDEN, 3),
    "batch, cumulative": lambda: pyg.HeteroBatchNorm(HIDDEN, 3, momentum=None, affine=False),
    "batch, untracked": lambda: pyg.HeteroBatchNorm(HIDDEN, 3, track_running_stats=False),
    "a type nobody has": lambda: pyg.HeteroBatchNorm(HIDDEN, 4),
    "layer": lambda: pyg.HeteroLayerNorm(HIDDEN, 3),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_by_type_are_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Typed(NORMS[name]()).double()
    for assignment in (None, uneven()):
        assert_matches_single_process(model, graph(), 3, assignment=assignment, steps=STEPS)
    if name != "layer":
        monkeypatch.setattr(HaloContext, "all_reduce", lambda self, x, layer: x)
        with pytest.raises(AssertionError, match="output"):
            assert_matches_single_process(model, graph(), 3)


def test_semantic_attention_without_the_sums_of_all_ranks_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HaloContext, "all_reduce", lambda self, x, layer: x)
    with pytest.raises(AssertionError, match="output"):
        assert_matches_single_process(build("HAN"), graph(), 3)


@pytest.mark.parametrize("kind", [pyg.RGCNConv, pyg.FastRGCNConv])
def test_relational_layers_are_exact_on_the_graph_made_homogeneous(kind: Any) -> None:
    class Relational(nn.Module):
        """Embeddings of nodes by their number, which layers look up by ``x=None`` or by ids."""

        def __init__(self) -> None:
            super().__init__()
            self.first = kind(data.num_nodes, HIDDEN, len(EDGE_TYPES), num_bases=2)
            self.last = kind(HIDDEN, CLASSES, len(EDGE_TYPES))

        def forward(self, x: Tensor | None, data: Any) -> Tensor:
            x = self.first(x, data.edge_index, data.edge_type).tanh()
            out: Tensor = self.last(x, data.edge_index, data.edge_type)
            return out

    data = graph().to_homogeneous(add_node_type=True, dummy_values=True)
    data.train_mask, data.y = data.train_mask == 1, data.y.clamp(min=0)
    torch.manual_seed(0)
    model = Relational()
    torch.set_default_dtype(torch.float64)
    try:
        for call in (lambda m, d: m(None, d), lambda m, d: m(d.get("n_id", torch.arange(54)), d)):
            assert_matches_single_process(model.double(), data, 3, steps=STEPS, forward=call)
            with pytest.raises(AssertionError, match="output"):
                assert_matches_single_process(model, data, 3, forward=call, exchange=False)
    finally:
        torch.set_default_dtype(torch.float32)


# How often rows travel


def exchanges(model: nn.Module, data: HeteroData, steps: int = 2, train: bool = True) -> list[tuple[int, int]]:
    """Return the exchanges forward and backward of each step, of which every rank must count the same."""
    assignment = assign(data, 2)

    def work(wire: Wire) -> list[tuple[int, int]]:
        replica, part = copy.deepcopy(model), build_part(data, assignment, wire.rank, 2)
        context = HaloContext(Channel(wire, IdentityCodec(), Synchronous()))
        attachment = attach(replica, context)
        counts = []
        for step in range(steps):
            context.channel.traffic.reset()
            with context.step(part.halo, part.to_dict(), step, exact=not train), torch.inference_mode(not train):
                x = {name: rows.clone() for name, rows in part.x_dict.items()}
                out = replica(x, part.edge_index_dict)
            if train:
                sum(rows.sum() for rows in out.values()).backward()
            records = context.channel.traffic.records
            roles = [slot.role for slot, record in records.items() for _ in range(record.exchanges)]
            counts.append((roles.count(Role.FEATURE), roles.count(Role.GRADIENT)))
            assert len(context._rows) == 0
        attachment.detach()
        return counts

    first, second = run_threads(work, 2)
    assert first == second
    return first


def test_a_tensor_is_exchanged_once_a_step_whoever_reads_it() -> None:
    """Two of five relations start at papers twice over: three node types, three exchanges a layer."""
    once = wrapped(pyg.SAGEConv)
    assert exchanges(once, graph(torch.float32)) == [(6, 3)] * 2  # the first layer's input needs no gradient
    tripled = [("paper", name, "paper") for name in ("a", "b", "c")]
    data = HeteroData()
    data["paper"].update(graph(torch.float32)["paper"])
    for key in tripled:
        data[key].edge_index = torch.randint(30, (2, 60))
    assert exchanges(wrapped(pyg.SAGEConv, types=tripled), data) == [(2, 1)] * 2


def test_changed_in_place_rows_are_exchanged_again_also_in_inference_mode() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (pyg.SAGEConv(IN, IN) for _ in range(2))

        def forward(self, data: HeteroData) -> Tensor:
            edges = data["paper", "cites", "paper"].edge_index
            x = data["paper"].x * 1
            out = self.one(x, edges)
            x.mul_(2)
            return out + self.two(x, edges)

    torch.manual_seed(0)
    model, data = InPlace().double(), graph()
    with torch.inference_mode():
        expected = model(data)
    assignment = assign(data, 2)

    def work(wire: Wire) -> Tensor:
        replica, part = copy.deepcopy(model), build_part(data, assignment, wire.rank, 2)
        attachment = attach(replica, context := HaloContext(Channel(wire, IdentityCodec(), Synchronous())))
        with context.step(part.halo, part.to_dict(), 0, exact=True), torch.inference_mode():
            out = replica(part)
        attachment.detach()
        return torch.cat(wire.all_gather(out))[torch.cat(wire.all_gather(part["paper"].n_id)).argsort()]

    for out in run_threads(work, 2):
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


def test_rows_exchanged_without_gradients_do_not_serve_a_layer_that_learns() -> None:
    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.conv = nn.Linear(IN, IN), pyg.SAGEConv(IN, CLASSES)

        def forward(self, data: HeteroData) -> Tensor:
            x = self.lin(data["paper"].x)
            edges = data["paper", "cites", "paper"].edge_index
            with torch.no_grad():
                taught = self.conv(x, edges)
            out: Tensor = self.conv(x, edges) + taught
            return out

    torch.manual_seed(0)
    assert_matches_single_process(Teacher().double(), graph(), 3, steps=STEPS, forward=lambda m, d: m(d))


def test_validation_keeps_rows_only_as_long_as_their_tensors_live() -> None:
    kept: list[int] = []

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(pyg.SAGEConv(IN, IN) for _ in range(8))
            self.context: HaloContext | None = None

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            for conv in self.convs:
                x = conv(x, edges).relu()
                kept.append(len(self.context._rows))
            return x

    model, data = Deep(), graph(torch.float32)
    assignment = assign(data, 2)

    def work(wire: Wire) -> None:
        replica, part = copy.deepcopy(model), build_part(data, assignment, wire.rank, 2)
        attachment = attach(replica, context := HaloContext(Channel(wire, IdentityCodec(), Synchronous())))
        replica.context = context
        with context.step(part.halo, part.to_dict(), 0, exact=True), torch.no_grad():
            replica(part["paper"].x * 1, part["paper", "cites", "paper"].edge_index)
        attachment.detach()

    run_threads(work, 2)
    assert len(kept) == 16
    assert max(kept) <= 1


# A real graph


def real(path: Any) -> HeteroData:
    """Authors, papers, terms and conferences, with features projected to a few columns and edges in both directions."""
    data = load_npz(path)
    generator = torch.Generator().manual_seed(0)
    for store in data.node_stores:
        x = store.x.double() if "x" in store else torch.eye(store.num_nodes, dtype=torch.float64)
        store.x = x @ torch.randn(x.size(1), IN, generator=generator, dtype=torch.float64) / x.size(1) ** 0.5
    return T.ToUndirected()(data)


def scattered(data: HeteroData, num_parts: int) -> dict[str, Tensor]:
    """Parts by METIS, but all conferences on the first and no author on the last."""
    assignment = dict(assign(data, num_parts))
    assignment["conference"] = torch.zeros_like(assignment["conference"])
    assignment["author"] = assignment["author"] % (num_parts - 1)
    return assignment


def real_model(name: str, data: HeteroData) -> nn.Module:
    metadata = data.metadata()
    torch.manual_seed(0)
    models: dict[str, Callable[[], nn.Module]] = {
        "HeteroConv": lambda: Stack(
            *(pyg.HeteroConv({k: pyg.SAGEConv(i, o) for k in metadata[1]}) for i, o in ((IN, HIDDEN), (HIDDEN, 4)))
        ),
        "to_hetero": lambda: pyg.to_hetero(pyg.GraphSAGE((IN, IN), HIDDEN, 2, 4), metadata),
        "HGT": lambda: Stack(pyg.HGTConv(IN, HIDDEN, metadata, 2), pyg.HGTConv(HIDDEN, 4, metadata)),
        "HAN": lambda: Stack(pyg.HANConv(IN, HIDDEN, metadata, 2), pyg.HANConv(HIDDEN, 4, metadata)),
    }
    return models[name]().double()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HeteroConv", "to_hetero", "HGT", "HAN"])
def test_a_real_graph_is_exact_on_two_three_and_four_ranks(name: str, shared_graph: Any) -> None:
    data = real(shared_graph("hetero_dblp"))
    for num_parts, assignment in ((2, None), (3, scattered(data, 3)), (4, None)):
        assert_matches_single_process(
            real_model(name, data), data, num_parts, assignment=assignment, steps=5, tolerance=1e-10
        )
    with pytest.raises(AssertionError, match="output"):
        assert_matches_single_process(real_model(name, data), data, 2, exchange=False)


class Relational(nn.Module):
    """RGCN on all nodes as one type, first on embeddings by node number, as for graphs without features."""

    def __init__(self, num_nodes: int, num_relations: int) -> None:
        super().__init__()
        self.first = pyg.RGCNConv(num_nodes, HIDDEN, num_relations)
        self.last = pyg.FastRGCNConv(HIDDEN, 4, num_relations)

    def forward(self, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.last(self.first(None, edge_index, edge_type).relu(), edge_index, edge_type)


@pytest.mark.slow
def test_rgcn_on_a_real_graph_of_all_types_is_exact(shared_graph: Any) -> None:
    typed = real(shared_graph("hetero_dblp"))
    data = typed.to_homogeneous(add_node_type=True)
    (target,) = (name for name in typed.node_types if "y" in typed[name])
    start = sum(typed[name].num_nodes for name in typed.node_types[: typed.node_types.index(target)])
    place = slice(start, start + typed[target].num_nodes)
    data.y, data.train_mask = (
        torch.zeros(data.num_nodes, dtype=torch.long),
        torch.zeros(data.num_nodes, dtype=torch.bool),
    )
    data.y[place], data.train_mask[place] = typed[target].y, typed[target].train_mask
    torch.manual_seed(0)
    model = Relational(data.num_nodes, len(typed.edge_types))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)  # FastRGCNConv leaves some as the memory was

    def forward(module: nn.Module, part: Any) -> Tensor:
        out: Tensor = module(part.edge_index, part.edge_type)
        return out

    for num_parts in (2, 3):
        assert_matches_single_process(model.double(), data, num_parts, steps=5, forward=forward, tolerance=1e-10)
    with pytest.raises(AssertionError, match="output"):
        assert_matches_single_process(model.double(), data, 2, forward=forward, exchange=False)
