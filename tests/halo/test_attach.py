"""What is taken, what is refused by name before anything changes, and that detaching leaves nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

from lightning_gnncomm.codecs import IdentityCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.partition import build_part
from lightning_gnncomm.halo.attach import UnsupportedModuleError, attach
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.testing import assert_matches_single_process, random_graph, run_threads


class OwnConv(pyg.MessagePassing):
    """A layer a user wrote."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.lin = nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(x) + self.propagate(edge_index, x=self.lin(x))


class Centred(OwnConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x - x.mean(dim=0)))


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - pyg.global_mean_pool(x, None)


class Indexed(OwnConv):
    def message(self, x_j: Tensor, edge_index: Tensor) -> Tensor:
        return x_j * edge_index[1:].t()


class Anchored(OwnConv):
    def message(self, x_j: Tensor, x: Tensor) -> Tensor:
        return x_j - x[:1]


class OwnPropagate(OwnConv):
    def propagate(self, edge_index: Tensor, **kwargs: Any) -> Tensor:
        return kwargs["x"]


class Untested(nn.Module):
    __module__ = "torch_geometric.nn.models.brand_new"


def context_of(wire: Any = None) -> HaloContext:
    return HaloContext(Channel(wire, IdentityCodec(), Synchronous()))


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "link-level model": (pyg.LightGCN(4, 4, 1), r"'0' \(LightGCN\): it scores pairs of nodes.*use LGConv"),
    "hyperedges": (pyg.HypergraphConv(4, 4), r"'0' \(HypergraphConv\): .*Make hyperedges nodes of the graph"),
    "untested module": (Untested(), r"'0' \(Untested\): this PyG module has not been tested"),
    "freed input": (pyg.GroupAddRev(pyg.SAGEConv(2, 2), num_groups=2), "disable=True"),
    "reduction in forward": (
        Centred(),
        r"'0' \(Centred\): its forward may look beyond.*'x.mean\(dim=0\)' in line \d+",
    ),
    "pooling in forward": (Pooled(), r"'0' \(Pooled\): its forward may look beyond.*'pyg.global_mean_pool\(x, None\)'"),
    "ids in message": (Indexed(), r"'0' \(Indexed\): its 'message' or 'aggregate' reads \['edge_index'\] whole"),
    "rows read whole": (Anchored(), r"'0' \(Anchored\): its 'message' or 'aggregate' reads \['x'\] whole"),
    "own propagate": (OwnPropagate(), r"'0' \(OwnPropagate\): it has a 'propagate' or 'edge_updater' of its own"),
    "decomposed": (pyg.SAGEConv(4, 4, decomposed_layers=2), "decomposed_layers"),
    "attention": (nn.MultiheadAttention(4, 1), "computes across rows"),
    "transformer": (nn.TransformerEncoderLayer(4, 1), "computes across rows"),
    "torch instance norm": (nn.InstanceNorm1d(4, track_running_stats=True), "running statistics are means over rows"),
    "softmax over nodes": (nn.Softmax(dim=0), "computes along dimension 0"),
    "softmax over what torch chooses": (nn.LogSoftmax(), "give it 'dim=-1'"),
    "flattened nodes": (nn.Flatten(0), "computes along dimension 0"),
    "similarity of columns": (nn.CosineSimilarity(dim=0), "computes along dimension 0"),
    "attention to all rows": (pyg.attention.QFormer(4, 4, 4, 2, 1), r"'0' \(QFormer\).*use GPSConv"),
    "global pooling": (pyg.SumAggregation(), r"'0' \(SumAggregation\): outside a message-passing layer it reduces"),
    "top-k pooling": (pyg.TopKPooling(4), r"'0' \(TopKPooling\): it pools nodes that lie on several ranks"),
    "dense layer": (pyg.DenseGCNConv(4, 4), r"'0' \(DenseGCNConv\): it takes the dense adjacency"),
    "single-element batch norm": (pyg.BatchNorm(4, allow_single_element=True), "allow_single_element"),
    "compiled": (torch.compile(nn.Linear(4, 4)), "torch.compile"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_to_be_exact_is_refused_by_path_and_nothing_changes(name: str) -> None:
    module, message = REFUSED[name]
    model = nn.Sequential(module, pyg.GCNConv(4, 4))
    before = {path: set(vars(m)) for path, m in model.named_modules()}
    with pytest.raises(UnsupportedModuleError, match=message):
        attach(model, context_of())
    assert {path: set(vars(m)) for path, m in model.named_modules()} == before
    assert not model[1]._propagate_forward_pre_hooks


def test_compiling_in_place_is_refused() -> None:
    model = nn.Sequential(pyg.GCNConv(4, 4))
    model[0].compile()
    with pytest.raises(UnsupportedModuleError, match="torch.compile"):
        attach(model, context_of())


def test_every_problem_is_named_at_once() -> None:
    model = nn.ModuleDict({"a": pyg.WLConv(), "b": nn.Sequential(nn.MultiheadAttention(4, 1))})
    with pytest.raises(UnsupportedModuleError, match=r"(?s)'a' \(WLConv\).*'b\.0' \(MultiheadAttention\)"):
        attach(model, context_of())


def test_a_layer_of_the_user_is_exact() -> None:
    data = random_graph()
    model = nn.Module()
    model.conv = OwnConv()
    forward = lambda m, d: m.conv(d.x, d.edge_index)  # noqa: E731
    assert_matches_single_process(model, data, 3, forward=forward)
    with pytest.raises(AssertionError):
        assert_matches_single_process(model, data, 3, forward=forward, exchange=False)


def test_what_is_refused_can_be_allowed_by_path() -> None:
    model = nn.Sequential(Centred())
    attach(model, context_of(), allow=["0"]).detach()


def test_allowing_what_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not have: \['convs.9'\]"):
        attach(pyg.GCN(4, 4, 2), context_of(), allow=["convs.9"])


def on_parts(work: Any, data: Data, parts: int = 2) -> list[Any]:
    assignment = assign(data, parts)
    return run_threads(lambda wire: work(wire, build_part(data, assignment, wire.rank, parts)), parts)


def test_of_a_refused_module_only_itself_is_named() -> None:
    with pytest.raises(UnsupportedModuleError) as caught:
        attach(nn.Sequential(pyg.SchNet(8, 8, 1)), context_of())
    assert str(caught.value).count("\n  '") == 1


def test_a_tensor_over_all_nodes_is_refused_with_the_layer_named() -> None:
    def work(wire: Wire, part: Data) -> None:
        model = pyg.GraphSAGE(6, 8, 2, 3)
        attachment = attach(model, context := context_of(wire))
        try:
            with context.step(part.halo, part.to_dict(), 0, exact=False):
                model(torch.randn(40, 6), part.edge_index)
        finally:
            attachment.detach()

    with pytest.raises(ValueError, match=r"Layer 'convs.0' exchanges 'x'.*batch.n_id"):
        on_parts(work, random_graph())


def test_a_matrix_that_is_not_the_parts_is_refused_with_the_layer_named() -> None:
    def work(wire: Wire, part: Data) -> None:
        size = int(part.edge_index.max()) + 10
        edges, ones = part.edge_index.flip(0), torch.ones(part.num_edges)
        adjacency = torch.sparse_coo_tensor(edges, ones, (size, size), check_invariants=True)
        model = pyg.GraphSAGE(6, 8, 2, 3)
        attachment = attach(model, context := context_of(wire))
        try:
            with context.step(part.halo, part.to_dict(), 0, exact=False):
                model(part.x, adjacency)
        finally:
            attachment.detach()

    with pytest.raises(ValueError, match=r"Layer 'convs.0' needs a sparse adjacency .* shape \[20, .*batch.adj_t"):
        on_parts(work, random_graph())


def test_the_wrong_number_of_parts_is_an_error() -> None:
    def work(wire: Wire, part: Data) -> None:
        with context_of(wire).step(part.halo, {}, 0, exact=False):
            pass

    data = random_graph()
    part = build_part(data, assign(data, 3), 0, 3)
    with pytest.raises(ValueError, match="one of 3 parts but 2 ranks"):
        run_threads(lambda wire: work(wire, part), 2)


def test_a_detached_model_computes_on_the_whole_graph_again() -> None:
    data = random_graph()
    torch.manual_seed(0)
    original = pyg.GCN(6, 8, 2, 3, norm="layer_norm", cached=True)
    expected = copy.deepcopy(original)(data.x, data.edge_index)

    def work(wire: Wire, part: Data) -> Tensor:
        model = copy.deepcopy(original)
        attachment = attach(model, context := context_of(wire))
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            model(part.x, part.edge_index)
        attachment.detach()
        attachment.detach()
        return model(data.x, data.edge_index)

    for out in on_parts(work, data):
        torch.testing.assert_close(out, expected)


def test_a_copy_of_an_attached_model_uses_its_own_parameters() -> None:
    data = random_graph()
    torch.manual_seed(0)
    original = pyg.GAT(6, 8, 2, 3, norm="batch_norm")

    def work(wire: Wire, part: Data) -> tuple[Tensor, Tensor]:
        model = copy.deepcopy(original)
        attachment = attach(model, context := context_of(wire))
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            out, zero = model(part.x, part.edge_index), twin(part.x, part.edge_index)
        attachment.detach()
        return out, zero

    for out, zero in on_parts(work, data):
        assert out.abs().max() > 0
        assert zero.abs().max() == 0


def test_models_of_other_code_in_the_process_are_not_touched() -> None:
    data = random_graph()
    bystander = pyg.GCN(6, 8, 2, 3, norm="graph_norm")
    expected = bystander(data.x, data.edge_index)

    def work(wire: Wire, part: Data) -> Tensor:
        model = pyg.GCN(6, 8, 2, 3, norm="graph_norm")
        attachment = attach(model, context := context_of(wire))
        with context.step(part.halo, part.to_dict(), 0, exact=False):
            out = bystander(data.x, data.edge_index)
        attachment.detach()
        return out

    for out in on_parts(work, data):
        torch.testing.assert_close(out, expected)
    from torch_geometric.nn.conv import gcn_conv

    assert gcn_conv.gcn_norm.__module__ == "torch_geometric.nn.conv.gcn_conv"
    assert not hasattr(gcn_conv.gcn_norm, "__wrapped__")


def test_rows_kept_from_validation_under_inference_mode_serve_training() -> None:
    def work(wire: Wire, part: Data) -> None:
        for kind in (pyg.GraphSAGE, pyg.GCN):
            torch.manual_seed(0)
            model = kind(6, 8, 2, 3)
            attachment = attach(model, context := context_of(wire))
            with torch.inference_mode(), context.step(part.halo, part.to_dict(), 0, exact=True):
                model(part.x, part.edge_index)
            with context.step(part.halo, part.to_dict(), 0, exact=False):
                model(part.x, part.edge_index).sum().backward()
            attachment.detach()

    on_parts(work, random_graph())
