"""Parts hold the whole graph, each node and edge once, and agree with each other on every row that travels."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import ToSparseTensor

from lightning_gnncomm.graph import build_part, build_parts, join_parts, trivial_part
from lightning_gnncomm.graph.adjacency import sparse_parts

EDGE_KEYS = ("edge_weight", "edge_attr", "edge_type")


def halo_ids(part: Data) -> Tensor:
    """Global ids of the halo rows by the definition of ``recv_key``."""
    own = int(part.n_id[0]) if part.num_nodes else part.halo.num_global + part.halo.num_global
    return part.halo.recv_key - part.halo.num_global * (1 + own)


def expected_halo(data: Data, assignment: list[int], rank: int) -> list[int]:
    """Halo of one part, by looking at one edge after the other."""
    sources = {int(u) for u, v in data.edge_index.T.tolist() if assignment[v] == rank and assignment[u] != rank}
    return sorted(sources, key=lambda node: (assignment[node], node))


CASES = [(40, 200, 1), (40, 200, 2), (40, 200, 3), (17, 60, 5), (12, 100, 12), (60, 0, 3), (30, 30, 4)]


@pytest.fixture(params=[(*case, dtype) for case in CASES for dtype in (torch.int32, torch.int64)], ids=str)
def cut(request, random_graph):
    nodes, edges, num_parts, dtype = request.param
    data = random_graph(nodes, edges, seed=nodes + edges + num_parts)
    data.edge_index = data.edge_index.to(dtype)
    assignment = torch.randint(0, num_parts, (nodes,), generator=torch.Generator().manual_seed(num_parts))
    assignment[:num_parts] = torch.arange(num_parts)
    return data, assignment, list(build_parts(data, assignment.to(dtype), num_parts))


def test_nodes_lie_in_exactly_one_part_in_ascending_order(cut):
    data, assignment, parts = cut
    for rank, part in enumerate(parts):
        assert part.n_id.tolist() == (assignment == rank).nonzero().flatten().tolist()
        assert part.n_id.dtype == torch.int64
        assert part.num_nodes == part.n_id.numel()
    assert sum(part.num_nodes for part in parts) == data.num_nodes


def test_node_level_attributes_follow_their_nodes_and_graph_level_ones_are_copied(cut):
    data, _, parts = cut
    for part in parts:
        for key in ("x", "y", "train_mask"):
            assert torch.equal(part[key], data[key][part.n_id]), key
        assert part.scale == data.scale and part.title == "random"


def test_edges_into_own_nodes_keep_their_order_ends_and_attributes(cut):
    data, assignment, parts = cut
    for rank, part in enumerate(parts):
        mine = assignment[data.edge_index[1].long()] == rank
        nodes = torch.cat([part.n_id, halo_ids(part)])
        assert part.edge_index.dtype == torch.int64
        assert torch.equal(nodes[part.edge_index], data.edge_index[:, mine].long())
        assert bool((part.edge_index[1] < part.num_nodes).all())
        for key in EDGE_KEYS:
            assert torch.equal(part[key], data[key][mine]), key
    assert sum(part.num_edges for part in parts) == data.num_edges


def test_halo_rows_are_grouped_by_owner_then_by_global_id(cut):
    data, assignment, parts = cut
    owner = assignment.tolist()
    for rank, part in enumerate(parts):
        expected = expected_halo(data, owner, rank)
        assert halo_ids(part).tolist() == expected
        assert part.halo.num_halo == len(expected)
        counts = [sum(owner[node] == peer for node in expected) for peer in range(len(parts))]
        assert list(part.halo.recv_counts) == counts


def test_both_ends_of_every_message_name_the_same_rows(cut):
    _, _, parts = cut
    for sender, here in enumerate(parts):
        sent = here.n_id[here.halo.send_index].split(list(here.halo.send_counts))
        assert torch.equal(here.halo.send_key, here.n_id[here.halo.send_index])
        for receiver, there in enumerate(parts):
            received = halo_ids(there).split(list(there.halo.recv_counts))
            assert torch.equal(sent[receiver], received[sender])


def test_gradient_keys_of_one_node_differ_between_the_parts_that_read_it(cut):
    _, _, parts = cut
    keys = torch.cat([part.halo.recv_key for part in parts])
    assert keys.unique().numel() == keys.numel()
    assert bool((keys >= 0).all())


def test_a_sum_over_neighbours_is_that_of_the_whole_graph(cut):
    data, _, parts = cut
    source, target = data.edge_index.long()
    whole = torch.zeros_like(data.x).index_add(0, target, data.x[source] * data.edge_weight[:, None])
    for part in parts:
        x = torch.cat([part.x, data.x[halo_ids(part)]])
        local = torch.zeros_like(part.x).index_add(
            0, part.edge_index[1], x[part.edge_index[0]] * part.edge_weight[:, None]
        )
        torch.testing.assert_close(local, whole[part.n_id])


def test_parts_join_to_the_graph_they_were_cut_from(cut):
    data, assignment, parts = cut
    whole = join_parts(parts)
    by_part = torch.sort(assignment[data.edge_index[1].long()], stable=True).indices
    assert whole.num_nodes == data.num_nodes
    assert torch.equal(whole.edge_index, data.edge_index[:, by_part].long())
    for key in ("x", "y", "train_mask"):
        assert torch.equal(whole[key], data[key]), key
    for key in EDGE_KEYS:
        assert torch.equal(whole[key], data[key][by_part]), key


def test_the_random_cases_do_contain_what_they_claim(random_graph):
    data = random_graph()
    assert data.has_self_loops() and data.has_isolated_nodes() and not data.is_undirected()
    assert data.edge_index.unique(dim=1).size(1) < data.num_edges
    assignment = torch.arange(data.num_nodes) % 3
    parts = list(build_parts(data, assignment, 3))
    assert all(part.halo.num_halo > 3 for part in parts)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch, at what PyG makes
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_parts_of_a_matrix_join_to_the_graph_with_its_values_by_entry(random_graph, layout):
    data = random_graph()
    data.edge_index = data.edge_index.unique(dim=1)
    for key in EDGE_KEYS:
        data[key] = data[key][: data.num_edges]
    data = ToSparseTensor(layout=layout)(data)
    assert data.edge_index is None
    parts = list(build_parts(data, torch.arange(data.num_nodes) % 3, 3))
    whole = join_parts(parts)
    assert whole.edge_index is None and all(part.edge_index is None for part in parts)
    assert torch.equal(whole.adj_t.to_dense(), data.adj_t.to_dense())
    for key in ("edge_attr", "edge_type"):
        assert torch.equal(whole[key], data[key]), key
    for part in parts:
        torch.sparse_csr_tensor(*sparse_parts(part.adj_t).values(), part.adj_t.shape, check_invariants=True)
        x = torch.cat([part.x, data.x[halo_ids(part)]])
        torch.testing.assert_close(part.adj_t @ x, (data.adj_t @ data.x)[part.n_id])


def test_one_part_of_several_is_the_same_as_from_the_iterator(graph):
    assignment = torch.arange(graph.num_nodes) % 3
    for rank, part in enumerate(build_parts(graph, assignment, 3)):
        alone = build_part(graph, assignment, rank, 3)
        assert list(alone.to_dict()) == list(part.to_dict())
        assert torch.equal(alone.edge_index, part.edge_index) and torch.equal(alone.x, part.x)
        assert torch.equal(alone.halo.recv_key, part.halo.recv_key)


def test_the_graph_itself_is_left_alone(graph):
    before = copy.deepcopy(graph)
    list(build_parts(graph, torch.arange(graph.num_nodes) % 3, 3))
    assert graph.to_dict().keys() == before.to_dict().keys()
    for key, value in before.to_dict().items():
        assert torch.equal(graph[key], value) if isinstance(value, Tensor) else graph[key] == value


def test_a_part_may_own_no_nodes(graph):
    assignment = torch.zeros(graph.num_nodes, dtype=torch.long)
    assignment[::2] = 2
    empty = build_part(graph, assignment, 1, 3)
    assert empty.num_nodes == empty.num_edges == empty.halo.num_halo == empty.halo.num_sent == 0
    assert empty.x.shape == (0, 3) and empty.edge_attr.shape == (0, 2) and empty.edge_index.shape == (2, 0)


def test_a_part_may_have_no_training_nodes_and_no_halo(random_graph):
    data = random_graph(40, 100)
    islands = Data(
        x=torch.cat([data.x, data.x]),
        edge_index=torch.cat([data.edge_index, data.edge_index + 40], dim=1),
        train_mask=torch.arange(80) < 40,
    )
    parts = list(build_parts(islands, torch.arange(80) // 40, 2))
    assert [int(part.train_mask.sum()) for part in parts] == [40, 0]
    assert [part.halo.num_halo for part in parts] == [0, 0]


def test_multi_label_targets_missing_masks_and_missing_features():
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), y=torch.eye(5), num_nodes=5)
    part = build_part(data, torch.tensor([0, 1, 0, 1, 1]), 1, 2)
    assert torch.equal(part.y, torch.eye(5)[[1, 3, 4]])
    assert "x" not in part and "train_mask" not in part


def test_lists_with_an_entry_per_node_are_cut_and_joined(graph):
    graph.names = [f"node {i}" for i in range(graph.num_nodes)]
    parts = list(build_parts(graph, torch.arange(graph.num_nodes) % 2, 2))
    assert parts[1].names == graph.names[1::2]
    assert join_parts(parts).names == graph.names


def test_a_graph_with_only_edges_and_targets_counts_isolated_nodes_at_the_end():
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.zeros(4, dtype=torch.long))
    assert build_part(data, torch.tensor([0, 0, 1, 1]), 1, 2).num_nodes == 2


def test_a_batch_of_one_graph_is_that_graph(graph):
    batch = next(iter(DataLoader([graph])))
    assert isinstance(batch, Batch)
    part = build_part(batch, torch.arange(graph.num_nodes) % 2, 1, 2)
    assert type(part) is Data and "ptr" not in part
    assert torch.equal(part.x, graph.x[1::2])
    assert part.batch.tolist() == [0] * part.num_nodes
    assert "ptr" in batch


def test_one_part_shares_the_tensors_of_the_graph(graph):
    part = trivial_part(graph)
    assert part.x.data_ptr() == graph.x.data_ptr() and torch.equal(part.edge_index, graph.edge_index)
    assert part.halo.num_parts == 1 and part.halo.num_halo == 0 and part.n_id.tolist() == list(range(40))
    assert "halo" not in graph and "n_id" not in graph


def test_the_plan_moves_copies_and_pickles_with_its_part(graph):
    part = build_part(graph, torch.arange(graph.num_nodes) % 2, 0, 2)
    assert part.halo.num_halo > 0
    for twin in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part), copy.copy(part).cpu()):
        assert torch.equal(twin.halo.recv_key, part.halo.recv_key)
        assert twin.halo.send_counts == part.halo.send_counts
    moved = copy.copy(part).to("meta")  # a device that every machine has
    assert {moved.halo.send_index.device.type, moved.halo.send_key.device.type} == {"meta"}
    assert moved.halo.recv_key.device.type == "meta" and part.halo.recv_key.device.type == "cpu"
    assert "num_halo" in repr(part)


def test_a_part_does_not_keep_the_whole_graph_in_memory(graph):
    part = build_part(graph, torch.arange(graph.num_nodes) % 4, 0, 4)
    for tensor in (part.x, part.edge_index, part.n_id, part.edge_attr, part.halo.send_index, part.halo.recv_key):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_out_of_range_is_refused(graph, rank):
    with pytest.raises(ValueError, match=f"rank in 0..1 for 2 parts, got {rank}"):
        build_part(graph, torch.zeros(40, dtype=torch.long), rank, 2)


@pytest.mark.parametrize("name", ["cornell", "cora", "tolokers"])
def test_real_graphs_join_again(name, real_graph):
    from lightning_gnncomm.graph import assign, load_graph

    data = load_graph(real_graph(name))
    parts = list(build_parts(data, assign(data, 4), 4))
    whole = join_parts(parts)
    weight = torch.arange(data.num_nodes)
    # Order of edges aside: an undirected graph without duplicates is the set of its edges.
    key = whole.edge_index[0] * data.num_nodes + whole.edge_index[1]
    wanted = data.edge_index[0] * data.num_nodes + data.edge_index[1]
    assert torch.equal(key.sort().values, wanted.sort().values)
    assert torch.equal(whole.x, data.x) and torch.equal(whole.y, data.y)
    assert sum(int(weight[part.n_id].sum()) for part in parts) == int(weight.sum())
    assert all(part.halo.num_halo > 0 for part in parts)
