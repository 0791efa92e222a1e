"""Heterogeneous graphs in parts: every type cut like a homogeneous graph, one halo per node type, stored and found again."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from safetensors import safe_open
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

import lightning_gnncomm.graph.folder as folder_module
from lightning_gnncomm.graph import (
    assign,
    build_part,
    build_parts,
    check_graph,
    describe_source,
    graph_facts,
    join_parts,
    load_graph,
    load_part,
    partition_and_store,
    partition_quality,
    prepare_graph,
    read_manifest,
    save_partition,
    trivial_part,
)
from lightning_gnncomm.graph.fingerprint import fingerprint
from lightning_gnncomm.graph.layout import partition_layout
from lightning_gnncomm.graph.quality import PartitionQuality

SIZES = {"paper": 31, "author": 17, "venue": 3}
EDGES = {
    ("author", "writes", "paper"): 60,
    ("paper", "cites", "paper"): 50,
    ("venue", "hosts", "paper"): 20,
    ("paper", "written_by", "author"): 40,
}  # nothing points to a venue, and authors and venues share a target


def random_graph(seed: int = 0, dtype: torch.dtype = torch.long) -> HeteroData:
    """Three node types and four edge types, duplicate edges, isolated nodes, and attributes of every level."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for name, size in SIZES.items():
        data[name].x = torch.randn(size, 3, generator=generator)
    data["paper"].y = torch.randint(0, 4, (31,), generator=generator)
    data["paper"].train_mask = torch.rand(31, generator=generator) < 0.5
    data["paper"].names = [f"paper {number}" for number in range(31)]
    data["venue"].threshold = torch.tensor(0.5)
    for (source, relation, target), count in EDGES.items():
        ends = [torch.randint(0, SIZES[name], (count,), generator=generator) for name in (source, target)]
        ends[1] = ends[1].clamp(max=SIZES[target] * 4 // 5)  # the last are isolated
        data[source, relation, target].edge_index = torch.stack(ends).to(dtype)
        data[source, relation, target].edge_attr = torch.randn(count, 2, generator=generator)
    data["paper", "cites", "paper"].scale = 3
    data.title, data.level = "random", torch.tensor([1.0, 2.0])
    return data


def random_assignment(num_parts: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(0, num_parts, (size,), generator=generator) for name, size in SIZES.items()}


@pytest.fixture(params=[(2, torch.long), (3, torch.int32), (7, torch.long)], ids=str)
def cut(request):
    num_parts, dtype = request.param
    data, assignment = random_graph(num_parts, dtype), random_assignment(num_parts)
    return data, assignment, list(build_parts(data, assignment, num_parts))


def test_the_random_cases_contain_what_they_claim():
    data, parts = random_graph(), list(build_parts(random_graph(), random_assignment(7), 7))
    assert not any(target == "venue" for _, _, target in data.edge_types)
    assert any(part["venue"].num_nodes == 0 for part in parts)
    assert any(part["venue"].num_nodes == 0 < part.halo["venue"].num_halo for part in parts)
    assert data["paper", "cites", "paper"].edge_index.unique(dim=1).size(1) < 50
    assert all(part.halo["paper"].num_halo > 3 for part in parts)


def test_a_part_is_a_plain_graph_of_all_types_in_their_order(cut):
    data, _, parts = cut
    for part in parts:
        assert type(part) is HeteroData and part.metadata() == data.metadata()
        assert list(part.halo) == data.node_types
        assert part.title == "random" and torch.equal(part.level, data.level)


def test_nodes_and_their_attributes_are_those_of_the_assignment(cut):
    data, assignment, parts = cut
    for rank, part in enumerate(parts):
        for name in SIZES:
            wanted = (assignment[name] == rank).nonzero().flatten()
            assert torch.equal(part[name].n_id, wanted) and part[name].num_nodes == len(wanted)
            assert torch.equal(part[name].x, data[name].x[wanted])
        assert torch.equal(part["paper"].train_mask, data["paper"].train_mask[part["paper"].n_id])
        assert part["paper"].names == [f"paper {number}" for number in part["paper"].n_id.tolist()]
        assert part["venue"].threshold == 0.5 and part["paper", "cites", "paper"].scale == 3


def test_edges_into_own_nodes_keep_their_order_ends_and_attributes(cut):
    data, assignment, parts = cut
    for rank, part in enumerate(parts):
        for relation in EDGES:
            source, _, target = relation
            whole, edge_index = data[relation].edge_index.long(), part[relation].edge_index
            mine = assignment[target][whole[1]] == rank
            nodes = torch.cat([part[source].n_id, part.halo[source].halo_ids])
            assert edge_index.dtype == torch.int64
            assert torch.equal(nodes[edge_index[0]], whole[0, mine])
            assert torch.equal(part[target].n_id[edge_index[1]], whole[1, mine])
            assert torch.equal(part[relation].edge_attr, data[relation].edge_attr[mine])


def test_a_type_has_one_halo_the_union_over_its_edge_types(cut):
    data, assignment, parts = cut
    for rank, part in enumerate(parts):
        for name, size in SIZES.items():
            owner = assignment[name].tolist()
            read = set()
            for relation in EDGES:
                if relation[0] == name:
                    pairs = data[relation].edge_index.T.tolist()
                    read |= {u for u, v in pairs if assignment[relation[2]][v] == rank and owner[u] != rank}
            expected = sorted(read, key=lambda node: (owner[node], node))
            plan = part.halo[name]
            assert plan.halo_ids.tolist() == expected
            assert list(plan.recv_counts) == [
                sum(owner[node] == peer for node in expected) for peer in range(len(parts))
            ]
            assert (plan.num_local, plan.num_global, plan.num_parts) == (part[name].num_nodes, size, len(parts))


def test_both_ends_of_every_message_name_the_same_rows(cut):
    _, _, parts = cut
    for name in SIZES:
        for sender, here in enumerate(parts):
            sent = here[name].n_id[here.halo[name].send_index].split(list(here.halo[name].send_counts))
            for receiver, there in enumerate(parts):
                received = there.halo[name].halo_ids.split(list(there.halo[name].recv_counts))
                assert torch.equal(sent[receiver], received[sender])


def test_keys_differ_between_types_and_between_readers(cut):
    _, _, parts = cut
    received = torch.cat([part.halo[name].recv_key for part in parts for name in SIZES])
    assert received.unique().numel() == received.numel() > 0
    sent = [torch.cat([part.halo[name].send_key for part in parts]).unique() for name in SIZES]
    assert torch.cat(sent).unique().numel() == sum(len(keys) for keys in sent) > 0
    assert not set(received.tolist()) & set(torch.cat(sent).tolist())


def test_a_type_that_is_no_source_has_an_empty_plan():
    data = random_graph()
    del data["venue", "hosts", "paper"]
    for part in build_parts(data, random_assignment(3), 3):
        plan = part.halo["venue"]
        assert plan.num_halo == plan.num_sent == 0 and plan.num_parts == 3
        assert plan.num_local == part["venue"].num_nodes


def test_parts_join_to_the_graph_they_were_cut_from(cut):
    data, assignment, parts = cut
    whole = join_parts(parts)
    assert whole.metadata() == data.metadata() and whole.title == "random" and torch.equal(whole.level, data.level)
    for name, size in SIZES.items():
        assert whole[name].num_nodes == size and torch.equal(whole[name].x, data[name].x)
    assert torch.equal(whole["paper"].y, data["paper"].y) and whole["paper"].names == data["paper"].names
    for relation in EDGES:
        by_part = torch.sort(assignment[relation[2]][data[relation].edge_index[1].long()], stable=True).indices
        assert torch.equal(whole[relation].edge_index, data[relation].edge_index[:, by_part].long())
        assert torch.equal(whole[relation].edge_attr, data[relation].edge_attr[by_part])
    assert whole["paper", "cites", "paper"].scale == 3


def test_a_homogeneous_graph_is_the_case_of_one_type():
    generator = torch.Generator().manual_seed(3)
    edge_index = torch.randint(0, 40, (2, 200), generator=generator)
    assignment = torch.randint(0, 4, (40,), generator=generator)
    typed = HeteroData({"node": {"x": torch.eye(40)}, ("node", "to", "node"): {"edge_index": edge_index}})
    typed_parts = build_parts(typed, {"node": assignment}, 4)
    for plain, part in zip(
        build_parts(Data(x=torch.eye(40), edge_index=edge_index), assignment, 4), typed_parts, strict=True
    ):
        assert torch.equal(plain.edge_index, part["node", "to", "node"].edge_index)
        for key in ("send_index", "send_key", "recv_key"):
            assert torch.equal(getattr(plain.halo, key), getattr(part.halo["node"], key))
        assert torch.equal(plain.halo.halo_ids, part.halo["node"].halo_ids)


def test_one_part_of_several_is_the_same_as_from_the_iterator_and_the_graph_is_left_alone():
    data, assignment = random_graph(), random_assignment(3)
    before = copy.deepcopy(data)
    for rank, part in enumerate(build_parts(data, assignment, 3)):
        assert_same(build_part(data, assignment, rank, 3), part)
    assert fingerprint(data) == fingerprint(before) and data.metadata() == before.metadata()


def test_one_part_shares_the_tensors_of_the_graph():
    data = random_graph()
    for part in (trivial_part(data), build_part(data, assign(data, 1), 0, 1)):
        assert part["paper"].x.data_ptr() == data["paper"].x.data_ptr()
        assert {name: (plan.num_local, plan.num_halo, plan.num_parts) for name, plan in part.halo.items()} == {
            name: (size, 0, 1) for name, size in SIZES.items()
        }
        assert part["venue"].n_id.tolist() == [0, 1, 2] and part.metadata() == data.metadata()
    assert "halo" not in data and "n_id" not in data


def test_the_plans_move_with_their_part():
    part = build_part(random_graph(), random_assignment(2), 0, 2)
    moved = copy.copy(part).to("meta")
    assert {plan.recv_key.device.type for plan in moved.halo.values()} == {"meta"}
    assert {plan.recv_key.device.type for plan in part.halo.values()} == {"cpu"}


def test_a_node_type_that_only_edges_name_is_counted_and_gets_a_plan():
    data = HeteroData()
    data["a"].x = torch.ones(4, 1)
    data["b", "to", "a"].edge_index = torch.tensor([[0, 6], [1, 2]])
    part = build_part(data, {"a": torch.tensor([0, 0, 1, 1]), "b": torch.arange(7) % 2}, 1, 2)
    assert part["b"].n_id.tolist() == [1, 3, 5] and part.halo["b"].halo_ids.tolist() == [6]
    assert data.node_types == ["a"]


def test_a_batch_of_one_graph_is_that_graph():
    data = random_graph()
    del data["paper"].names
    part = build_part(Batch.from_data_list([data]), random_assignment(2), 1, 2)
    assert type(part) is HeteroData and "ptr" not in part["paper"]
    assert torch.equal(part["paper"].x, build_part(data, random_assignment(2), 1, 2)["paper"].x)


def changed(change) -> HeteroData:
    data = random_graph()
    change(data)
    return data


CITES = ("paper", "cites", "paper")
REFUSED = {
    "ids": (
        lambda d: d[CITES].edge_index.add_(30),
        r"edge_index of \('paper', 'cites', 'paper'\).*31 nodes of 'paper'",
    ),
    "source ids": (
        lambda d: d["venue", "hosts", "paper"].edge_index.add_(2),
        r"'hosts'.*ids in 0..2 for 3 nodes of 'venue'",
    ),
    "no edges": (lambda d: d[CITES].pop("edge_index"), r"edge_index of \('paper', 'cites', 'paper'\), got none"),
    "adj_t": (
        lambda d: setattr(d[CITES], "adj_t", torch.eye(31).to_sparse_csr()),
        r"edges of \('paper', 'cites'.*got adj_t, which is supported in homogeneous",
    ),
    "adj_t only": (
        lambda d: (setattr(d[CITES], "adj_t", torch.eye(31).to_sparse_csr()), d[CITES].pop("edge_index")),
        r"edges of \('paper', 'cites'.*got adj_t, .*ToSparseTensor",
    ),
    "adj": (lambda d: setattr(d[CITES], "adj", torch.eye(31).to_sparse()), r"edges of \('paper', 'cites'.*got adj, "),
    "adj_t of nodes": (lambda d: setattr(d["venue"], "adj_t", torch.eye(3).to_sparse_csr()), "of 'venue' .*got adj_t"),
    "adj_t of the graph": (lambda d: setattr(d, "adj_t", torch.eye(3).to_sparse_csr()), "in edge_index, got adj_t"),
    "mask": (
        lambda d: setattr(d["paper"], "val_mask", torch.ones(3).bool()),
        "val_mask of 'paper' with one row per node",
    ),
    "own mask": (
        lambda d: setattr(d["venue"], "my_mask", torch.ones(9).bool()),
        "my_mask of 'venue' .*node .3., got 9",
    ),
    "edge mask": (lambda d: setattr(d[CITES], "my_mask", torch.ones(9).bool()), "one row per edge .50., got 9"),
    "rows": (lambda d: setattr(d["paper"], "y", torch.ones(9)), "y of 'paper' with one row per node, 31 by x, got 9"),
    "label edges": (lambda d: setattr(d[CITES], "pair_index", torch.ones(2, 2).long()), "'pair_index' of"),
    "sparse": (lambda d: setattr(d["venue"], "z", torch.eye(3).to_sparse()), "'z' of 'venue' with layout"),
    "sampled": (lambda d: setattr(d["paper"], "input_id", torch.ones(3)), "sampled batch .*whole HeteroData"),
    "a part": (lambda d: setattr(d["paper"], "n_id", torch.arange(31)), "not partitioned yet.*'n_id'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_cannot_be_partitioned_is_refused_by_attribute_and_type(name):
    change, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        check_graph(changed(change))


ASSIGNMENTS = {
    "tensor": (torch.zeros(51).long(), TypeError, r"dict of one tensor per node type, \['paper', 'author', 'venue'\]"),
    "missing": ({"paper": torch.zeros(31).long()}, ValueError, r"node types .*got one for \['paper'\]"),
    "shape": (random_assignment(2) | {"venue": torch.zeros(4).long()}, ValueError, "'venue' of shape .3.*got .4."),
    "range": (random_assignment(2) | {"venue": torch.tensor([0, 1, 2])}, ValueError, "part ids of 'venue' in 0..1"),
    "kind": (random_assignment(2) | {"venue": torch.zeros(3)}, TypeError, "of 'venue' as a tensor of integers"),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_wrong_assignment_is_refused_by_type(name):
    assignment, kind, message = ASSIGNMENTS[name]
    for use in (lambda: build_part(random_graph(), assignment, 0, 2), lambda: assign(random_graph(), 2, assignment)):
        with pytest.raises(kind, match=message):
            use()


@pytest.mark.parametrize("method", ["metis", "random"])
@pytest.mark.parametrize("num_parts", [1, 2, 6])
def test_nodes_of_all_types_are_assigned_together_and_repeat(method, num_parts):
    data = random_graph()
    first, again = (assign(data, num_parts, method, seed=3) for _ in range(2))
    assert list(first) == data.node_types
    for name, size in SIZES.items():
        assert first[name].dtype == torch.int64 and first[name].shape == (size,)
        assert torch.equal(first[name], again[name])
    sizes = torch.cat(list(first.values())).bincount(minlength=num_parts)
    assert sizes.min() > 0 and sizes.max() <= 1.1 * 51 / num_parts + 1


def test_a_given_assignment_is_returned():
    given = {name: ids.int() for name, ids in random_assignment(3).items()}
    found = assign(random_graph(), 3, given)
    assert all(torch.equal(found[name], given[name].long()) for name in SIZES)


def blocks(size: int = 40) -> HeteroData:
    """Two halves of papers and authors with few edges between: joint METIS sees them only through edges of both types."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, size // 2, (2, 2, 300), generator=generator)
    edges = torch.cat([pairs[0], pairs[1] + size // 2, torch.tensor([[0], [size - 1]])], dim=1)
    data = HeteroData({"paper": {"num_nodes": size}, "author": {"num_nodes": size}})
    data["author", "writes", "paper"].edge_index = edges
    data["author"].train_mask = torch.arange(size) < 4
    return data


def test_metis_cuts_between_types_far_less_than_chance():
    data = blocks()
    quality = [partition_quality(data, assign(data, 2, method), 2) for method in ("metis", "random")]
    assert quality[0].edge_cut <= 3 < 200 < quality[1].edge_cut


def test_balance_counts_edges_and_training_nodes_of_all_types():
    data = random_graph()
    data["author"].train_mask = torch.arange(17) < 8
    with_train = partition_quality(data, assign(data, 2, balance="train"), 2)
    assert sum(with_train.train_nodes) == 8 + int(data["paper"].train_mask.sum())
    assert with_train.train_balance < 1.2
    assert partition_quality(data, assign(data, 2, balance="edges"), 2).edge_balance < 1.2
    del data["author"].train_mask, data["paper"].train_mask
    with pytest.raises(ValueError, match="training nodes to balance"):
        assign(data, 2, balance="train")


def test_quality_has_totals_and_sizes_by_type_and_survives_json():
    data, assignment = random_graph(), random_assignment(3)
    quality = partition_quality(data, assignment)
    parts = list(build_parts(data, assignment, 3))
    assert (quality.num_nodes, quality.num_edges) == (51, 170)
    for name in SIZES:
        assert quality.nodes_by_type[name] == tuple(part[name].num_nodes for part in parts)
        assert quality.halo_rows_by_type[name] == tuple(part.halo[name].num_halo for part in parts)
    assert quality.nodes == tuple(part.num_nodes for part in parts)
    assert quality.edges == tuple(sum(part[relation].num_edges for relation in EDGES) for part in parts)
    assert quality.rows_on_wire == sum(plan.num_halo for part in parts for plan in part.halo.values())
    cut = sum(
        int((part[relation].edge_index[0] >= part[relation[0]].num_nodes).sum()) for part in parts for relation in EDGES
    )
    assert quality.edge_cut == cut > 0
    assert PartitionQuality.from_dict(json.loads(json.dumps(quality.to_dict()))) == quality
    assert "venue: 3 nodes" in str(quality.table().caption)


def assert_same(part: HeteroData, other: HeteroData) -> None:
    assert part.metadata() == other.metadata()
    for store, same in zip(part.stores, other.stores, strict=True):
        assert set(store.keys()) == set(same.keys())
        for key, value in store.items():
            if key != "halo":
                assert torch.equal(value, same[key]) if isinstance(value, Tensor) else value == same[key]
    for name, plan in part.halo.items():
        same = other.halo[name]
        for key in ("num_local", "num_global", "send_counts", "recv_counts", "first_key", "num_keys"):
            assert getattr(plan, key) == getattr(same, key), key
        for key in ("send_index", "send_key", "recv_key"):
            assert torch.equal(getattr(plan, key), getattr(same, key)), key


@pytest.fixture
def stored(tmp_path):
    return save_partition(tmp_path / "parts", random_graph(), random_assignment(7), 7, settings={"seed": 0})


def test_parts_come_back_as_they_were_built_and_join(stored):
    for rank, part in enumerate(build_parts(random_graph(), random_assignment(7), 7)):
        assert_same(load_part(stored, rank), part)
    whole, data = load_graph(stored), random_graph()
    assert whole.metadata() == data.metadata()
    assert torch.equal(whole["paper"].x, data["paper"].x) and whole["paper"].names == data["paper"].names
    assert whole["paper", "cites", "paper"].scale == 3 and whole.title == "random"


def test_a_rank_reads_only_its_own_part(stored):
    before = load_part(stored, 1)
    for path in stored.glob("part-*"):
        if path.name != "part-00001.safetensors":
            path.unlink()
    assert_same(load_part(stored, 1), before)
    with pytest.raises(FileNotFoundError, match="part-00000"):
        load_part(stored, 0)


def test_the_manifest_tells_types_and_facts(stored):
    manifest = read_manifest(stored)
    assert manifest["node_types"] == list(SIZES) and manifest["edge_types"] == [list(relation) for relation in EDGES]
    assert (manifest["num_nodes"], manifest["num_edges"], manifest["format_version"]) == (51, 170, 2)
    assert manifest["facts"]["num_features"] == dict.fromkeys(SIZES, 3) and manifest["facts"]["num_classes"] == 4
    assert describe_source(stored).num_features == dict.fromkeys(SIZES, 3)


def test_a_version_that_knows_only_homogeneous_graphs_says_that_it_is_too_old(stored, monkeypatch):
    monkeypatch.setattr(folder_module, "FORMAT_VERSION", 1)
    with pytest.raises(ValueError, match="format 1 or older, .* has format 2.*upgrade"):
        load_part(stored, 0)


def test_homogeneous_partitions_are_written_as_older_versions_read_them(tmp_path):
    data = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    folder = save_partition(tmp_path / "parts", data, torch.arange(4) // 2, 2)
    assert read_manifest(folder)["format_version"] == 1 and "node_types" not in read_manifest(folder)
    with safe_open(folder / "part-00000.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["part"])
        names = set(file.keys())
    assert set(header) == {"order", "plain", "halo"}
    assert set(header["halo"]) == {"num_local", "num_global", "send_counts", "recv_counts"}
    assert names == {"data/x", "data/edge_index", "data/n_id", "halo/send_index", "halo/send_key", "halo/recv_key"}


def test_a_stored_partition_is_found_again_by_graph_and_settings(tmp_path):
    data, given = random_graph(), random_assignment(2)
    first = partition_and_store(data, 2, root=tmp_path, progress=False)
    assert partition_and_store(data.clone(), 2, root=tmp_path, progress=False) == first
    assert partition_and_store(data, 2, root=tmp_path, method=given, progress=False) != first
    with pytest.raises(FileExistsError, match="normalize_features is False there, .'venue'. here"):
        partition_and_store(data, 2, out=first, normalize_features=("venue",), progress=False)


def test_the_fingerprint_sees_types_attributes_and_no_id_width():
    first = fingerprint(random_graph())
    assert fingerprint(random_graph(dtype=torch.int32)) == first
    for change in (
        lambda d: d["venue"].x.add_(1),
        lambda d: d["venue", "hosts", "paper"].edge_index[0].fill_(0),
        lambda d: setattr(d, "title", "other"),
        lambda d: setattr(d["author"], "y", torch.ones(17)),
    ):
        assert fingerprint(changed(change)) != first
    renamed = random_graph().rename("venue", "journal")
    assert fingerprint(renamed) != first


def test_what_cannot_be_stored_is_named_with_its_type(tmp_path):
    data = changed(lambda d: setattr(d["venue"], "oddity", {1, 2}))
    with pytest.raises(ValueError, match="'oddity' of 'venue' of type set"):
        save_partition(tmp_path / "parts", data, random_assignment(2), 2)


def test_facts_are_by_type():
    facts = graph_facts(check_graph(random_graph()))
    assert (facts.num_nodes, facts.num_edges, facts.num_classes) == (51, 170, 4)
    assert facts.num_features == dict.fromkeys(SIZES, 3) and not facts.multi_label
    several = changed(lambda d: setattr(d["author"], "y", torch.ones(17, 5)))
    assert graph_facts(several).num_classes == {"paper": 4, "author": 5} and graph_facts(several).multi_label
    assert graph_facts(changed(lambda d: d["paper"].pop("y"))).num_classes == 0


def test_features_are_normalised_in_all_types_or_in_those_named():
    data = random_graph()
    for name in SIZES:
        data[name].x = data[name].x.abs()
    del data["venue"].x
    data["venue"].num_nodes = 3
    both = prepare_graph(data, normalize_features=True)
    for name in ("paper", "author"):
        torch.testing.assert_close(both[name].x.sum(dim=1), torch.ones(SIZES[name]))
    one = prepare_graph(data, normalize_features=["author"])
    assert one["paper"].x is data["paper"].x and torch.equal(one["author"].x, both["author"].x)
    with pytest.raises(ValueError, match=r"node types with x, \['paper', 'author'\], got 'venue'"):
        prepare_graph(data, normalize_features=["venue"])


def test_features_are_added_to_types_without():
    data = random_graph()
    for name in ("author", "venue"):
        del data[name].x
        data[name].num_nodes = SIZES[name]
    degree = prepare_graph(data, add_features="degree")
    into_authors = data["paper", "written_by", "author"].edge_index[1].bincount(minlength=17)
    torch.testing.assert_close(degree["author"].x, into_authors.float().log1p()[:, None])
    assert torch.equal(degree["venue"].x, torch.zeros(3, 1)) and degree["paper"].x is data["paper"].x
    assert torch.equal(prepare_graph(data, add_features="constant")["venue"].x, torch.ones(3, 1))
    with pytest.raises(ValueError, match="x of 'paper' of shape"):
        prepare_graph(random_graph(), add_features="degree")


def test_a_split_is_chosen_in_the_types_that_have_several():
    data = random_graph()
    for name in ("train_mask", "val_mask", "test_mask"):
        data["paper"][f"{name}s"] = torch.arange(62).reshape(31, 2) % 3 == 0
    chosen = prepare_graph(data, split=1)
    assert torch.equal(chosen["paper"].val_mask, data["paper"].val_masks[:, 1]) and "val_masks" not in chosen["paper"]
    assert "val_mask" not in chosen["author"]
    with pytest.raises(ValueError, match="Expected several splits"):
        prepare_graph(random_graph(), split=0)


def write_npz(path: Path, **changes) -> str:
    x = sp.csr_array(np.eye(3, 4, dtype=np.float32))
    arrays = {
        "edge_index__a__to__b": np.array([[0, 2], [1, 0]], dtype=np.int32),
        "edge_index__c__of__a": np.array([[0, 4], [1, 1]]),
        "x_indptr__a": x.indptr,
        "x_indices__a": x.indices,
        "x_values__a": x.data,
        "x_shape__a": np.array(x.shape),
        "x__b": np.ones((2, 2), dtype=np.float16),
        "y__a": np.array([0, -1, 1]),
        "train_mask__a": np.array([True, True, False]),
    } | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return f"npz:{path}"


def test_npz_of_several_types(tmp_path):
    data = load_graph(write_npz(tmp_path / "a.npz"))
    assert data.node_types == ["a", "b", "c"] and data.edge_types == [("a", "to", "b"), ("c", "of", "a")]
    assert torch.equal(data["a"].x, torch.eye(3, 4)) and data["b"].x.dtype == torch.float32
    assert data["a"].train_mask.tolist() == [True, False, False]  # the second has no label
    assert data["c"].num_nodes == 5 and data["a", "to", "b"].edge_index.dtype == torch.int64
    meta = np.array([json.dumps({"node_types": {"c": 9, "b": 2, "a": 3}})])
    data = load_graph(write_npz(tmp_path / "b.npz", meta=meta))
    assert data.node_types == ["c", "b", "a"] and data["c"].num_nodes == 9


def test_npz_faults_are_named(tmp_path):
    for name, changes, message in [
        (
            "two",
            {"edge_index__a__b": np.zeros((2, 1), int)},
            "edge_index__SOURCE__RELATION__DESTINATION.*edge_index__a__b",
        ),
        ("many", {"edge_index__a__b__c__d": np.zeros((2, 1), int)}, "no two underscores in a row"),
        ("range", {"edge_index__a__to__b": np.array([[3], [0]])}, "ids in 0..2 for 3 nodes of 'a'"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_graph(write_npz(tmp_path / f"{name}.npz", **changes))


def test_a_pyg_dataset_of_several_types_is_taken(monkeypatch):
    import torch_geometric.datasets as datasets

    class DBLP(list):
        def __init__(self, root: str) -> None:
            super().__init__([random_graph()])

    monkeypatch.setattr(datasets, "DBLP", DBLP)
    assert load_graph("pyg:DBLP").node_types == list(SIZES)


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_the_real_graph_is_cut_stored_and_joined(real_graph, tmp_path, num_parts):
    data = load_graph(real_graph("hetero_dblp"))
    assert graph_facts(data).num_features == {"author": 334, "paper": 4231, "conference": 0, "term": 50}
    for store in data.node_stores:
        store.pop("x", None)  # ids are what is cut; 240 MB of features would only be copied
    assignment = assign(data, num_parts)
    quality = partition_quality(data, assignment, num_parts)
    assert quality.node_balance < 1.05
    for name in ("author", "paper", "term"):
        nodes = quality.nodes_by_type[name]
        assert max(nodes) * num_parts < 1.4 * sum(nodes), (name, nodes)
    assert (
        quality.rows_on_wire < 0.8 * partition_quality(data, assign(data, num_parts, "random"), num_parts).rows_on_wire
    )
    even = partition_quality(data, assign(data, num_parts, balance="edges"), num_parts)
    assert even.edge_balance < 1.15
    whole = load_graph(save_partition(tmp_path / "parts", data, assignment, num_parts))
    assert torch.equal(whole["author"].y, data["author"].y)
    for relation in data.edge_types:
        size = data[relation[2]].num_nodes
        key, wanted = (graph[relation].edge_index[0] * size + graph[relation].edge_index[1] for graph in (whole, data))
        assert torch.equal(key.sort().values, wanted.sort().values)


def test_a_layout_without_edges_has_no_halo():
    layout = partition_layout(
        torch.empty(2, 0, dtype=torch.long), torch.arange(6) % 2, 2, type_start=(0, 2, 6), relation_start=(0, 0)
    )
    assert layout.edge_cut == 0 and layout.plan_of(1, 1).num_halo == 0 and layout.nodes_of(1, 1).tolist() == [1, 3]
