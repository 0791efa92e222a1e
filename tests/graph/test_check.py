"""What cannot be partitioned is refused by name, with what was expected and what to do."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from lightning_gnncomm.graph import build_part, check_graph

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def part_of(data, num_parts=2):
    return build_part(data, torch.zeros(3, dtype=torch.long), 0, num_parts)


REFUSED = {
    "empty hetero": (HeteroData(), ValueError, "at least one node, got 0"),
    "no data": ([1, 2], TypeError, "Expected a torch_geometric.data.Data or HeteroData, got list"),
    "adj": (
        Data(edge_index=EDGES, adj=torch.eye(3).to_sparse()),
        ValueError,
        "got adj, .*whole graph.*name its transpose adj_t",
    ),
    "adj_t by columns": (
        Data(adj_t=torch.eye(3).to_sparse_csc()),
        TypeError,
        r"CSR or COO., got layout torch.sparse_csc.*ToSparseTensor\(layout=torch.sparse_csr\)",
    ),
    "dense adj_t": (Data(x=torch.ones(3, 1), adj_t=torch.eye(3)), TypeError, "got layout torch.strided"),
    "adj_t of a package": (Data(x=torch.ones(3, 1), adj_t="rows"), TypeError, "sparse tensor of torch .*got str"),
    "adj_t with too few columns": (
        Data(x=torch.ones(3, 1), adj_t=torch.ones(3, 2).to_sparse_csr()),
        ValueError,
        r"shape \[N, N\], got \[3, 2\]",
    ),
    "adj_t with too few rows": (
        Data(adj_t=torch.eye(2).to_sparse_csr(), num_nodes=3),
        ValueError,
        "adj_t with one row per node, 3 by num_nodes, got 2",
    ),
    "adj_t with entries twice": (
        Data(adj_t=torch.sparse_coo_tensor(EDGES[:, [0, 0]], torch.ones(2), (3, 3), check_invariants=True)),
        ValueError,
        r"coalesced, got a COO matrix.*coalesce\(\)",
    ),
    "edge values of other edges": (
        Data(adj_t=torch.eye(3).to_sparse_csr(), edge_attr=torch.ones(4, 1)),
        ValueError,
        r"edge_attr with one row per entry of adj_t \(3\), got 4",
    ),
    "no edges": (Data(x=torch.ones(3, 1)), ValueError, r"edge_index, got none.*\[2, 0\]"),
    "sampled": (
        Data(edge_index=EDGES, n_id=torch.arange(3), input_id=torch.arange(1), batch_size=1),
        ValueError,
        "sampled batch .it has input_id, batch_size.*NeighborLoader.*full",
    ),
    "a part": (Data(edge_index=EDGES, n_id=torch.arange(3)), ValueError, "not partitioned yet.*'n_id'"),
    "float ids": (
        Data(edge_index=EDGES.float(), num_nodes=3),
        TypeError,
        r"int32 or int64, got torch.float32.*long\(\)",
    ),
    "shape": (Data(edge_index=EDGES.T, num_nodes=3), ValueError, r"shape \[2, E\], got \[3, 2\]"),
    "too large": (Data(edge_index=EDGES + 1, num_nodes=3), ValueError, "ids in 0..2 for 3 nodes, got ids from 1 to 3"),
    "negative": (Data(edge_index=EDGES - 1, num_nodes=3), ValueError, "got ids from -1 to 1"),
    "y": (
        Data(x=torch.ones(3, 1), edge_index=EDGES, y=torch.ones(1)),
        ValueError,
        "y with one row per node, 3 by x, got 1",
    ),
    "mask": (
        Data(x=torch.ones(3, 1), edge_index=EDGES, val_mask=torch.ones(4, dtype=torch.bool)),
        ValueError,
        "val_mask with one row per node, 3 by x, got 4",
    ),
    "own mask": (
        Data(x=torch.ones(3, 1), edge_index=EDGES, clean_mask=torch.ones(7, dtype=torch.bool)),
        ValueError,
        "clean_mask with one row per node .3., got 7",
    ),
    "x": (
        Data(x=torch.ones(2, 1), edge_index=EDGES % 2, num_nodes=3),
        ValueError,
        "x with one row.*3 by num_nodes, got 2",
    ),
    "no nodes": (Data(edge_index=torch.empty(2, 0, dtype=torch.long)), ValueError, "at least one node, got 0"),
    "labels": (Data(edge_index=EDGES, num_nodes=3, pair_index=EDGES), ValueError, "'pair_index'.*mask"),
    "sparse x": (
        Data(edge_index=EDGES, num_nodes=3, z=torch.eye(3).to_sparse()),
        ValueError,
        "'z' with layout.*to_dense",
    ),
    "two graphs": (
        Batch.from_data_list([Data(edge_index=EDGES, num_nodes=3)] * 2),
        ValueError,
        "one graph, got a Batch of 2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_cannot_be_partitioned_is_refused_by_name(name):
    data, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        part_of(data)


def test_the_same_graph_without_a_fault_is_accepted():
    assert part_of(Data(x=torch.ones(3, 1), edge_index=EDGES, y=torch.ones(3))).num_nodes == 3


ASSIGNMENTS = {
    "length": (torch.zeros(4, dtype=torch.long), ValueError, r"shape \[3\].*got \[4\]"),
    "shape": (torch.zeros(3, 1, dtype=torch.long), ValueError, r"got \[3, 1\]"),
    "floats": (torch.zeros(3), TypeError, "integers, one per node, got torch.float32"),
    "bools": (torch.zeros(3, dtype=torch.bool), TypeError, "got torch.bool"),
    "list": ([0, 0, 1], TypeError, "got list"),
    "negative": (torch.tensor([0, -1, 1]), ValueError, "part ids in 0..1 for 2 parts, got ids from -1 to 1"),
    "too large": (torch.tensor([0, 2, 1]), ValueError, "got ids from 0 to 2.*more parts"),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_wrong_assignment_is_refused_by_name(name):
    assignment, kind, message = ASSIGNMENTS[name]
    with pytest.raises(kind, match=message):
        build_part(Data(edge_index=EDGES, num_nodes=3), assignment, 0, 2)


def test_numpy_assignments_are_accepted():
    assert build_part(Data(edge_index=EDGES, num_nodes=3), np.array([0, 0, 1], dtype=np.int32), 0, 2).num_nodes == 2


def test_checking_shares_tensors_and_counts_nodes_once():
    data = Data(x=torch.ones(3, 1), edge_index=EDGES)
    checked = check_graph(data)
    assert checked is not data and checked.x is data.x
    assert "num_nodes" in checked.to_dict() and "num_nodes" not in data.to_dict()
