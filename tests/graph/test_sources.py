"""Graphs by name: what each form gives, and the message when a name is wrong."""

import json
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData, TemporalData

from lightning_gnncomm.graph import graph_facts, load_graph, partition_and_store, prepare_graph
from lightning_gnncomm.graph.npz import read_npz_meta
from lightning_gnncomm.graph.sources import SOURCES, cache_root, single_graph, source_identity, source_name


def write_npz(path, **changes):
    arrays = {
        "edge_index": np.array([[0, 1, 1, 2], [1, 0, 2, 1]], dtype=np.int32),
        "x": np.arange(8, dtype=np.float16).reshape(4, 2),
        "y": np.array([0, 2, -1, 1]),
        "train_mask": np.array([True, False, True, False]),
        "val_mask": np.array([False, True, False, False]),
        "test_mask": np.array([False, False, False, True]),
        "train_masks": np.array([[True, False], [False, True], [True, True], [False, False]]),
        "val_masks": np.zeros((4, 2), dtype=bool),
        "test_masks": np.ones((4, 2), dtype=bool),
        "meta": np.array([json.dumps({"name": "tiny", "licence": "none"})]),
    }
    arrays |= changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return f"npz:{path}"


GENERATED = ["digits", "karate", "sbm:nodes=200", "rmat:scale=7"]


@pytest.mark.parametrize("spec", GENERATED)
def test_generated_graphs_repeat_and_have_all_a_classifier_needs(spec):
    data, again = load_graph(spec), load_graph(spec)
    for key in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(data[key], again[key]), key
    assert data.x.dtype == torch.float32 and data.y.dtype == data.edge_index.dtype == torch.int64
    assert data.is_undirected() and not data.has_self_loops() and data.is_coalesced()
    split = data.train_mask.int() + data.val_mask.int() + data.test_mask.int()
    assert bool((split == 1).all())
    assert min(int(data[key].sum()) for key in ("train_mask", "val_mask", "test_mask")) > 0


@pytest.mark.parametrize("spec", ["digits", "sbm:nodes=200", "rmat:scale=7"])
def test_a_seed_changes_what_is_drawn(spec):
    separator = "," if ":" in spec else ":"
    first, second = load_graph(spec), load_graph(f"{spec}{separator}seed=1")
    assert not torch.equal(first.train_mask, second.train_mask)


def test_digits_is_a_balanced_near_neighbour_graph():
    data = load_graph("digits:k=5,train=7,val=3")
    assert data.num_nodes == 1797 and data.num_node_features == 64
    assert float(data.x.min()) == 0.0 and float(data.x.max()) == 1.0
    assert data.y[data.train_mask].bincount().tolist() == [7] * 10
    assert data.y[data.val_mask].bincount().tolist() == [3] * 10
    in_degree = data.edge_index[1].bincount(minlength=1797)
    assert int(in_degree.min()) >= 5
    assert float((data.y[data.edge_index[0]] == data.y[data.edge_index[1]]).float().mean()) > 0.9


def test_sbm_has_as_many_edges_as_its_probabilities_say():
    data = load_graph("sbm:nodes=900,blocks=3,p_in=0.1,p_out=0.01,features=5")
    inside = data.y[data.edge_index[0]] == data.y[data.edge_index[1]]
    expected_in, expected_out = 0.1 * 3 * 300 * 299, 0.01 * 6 * 300 * 300
    assert int(inside.sum()) == pytest.approx(expected_in, rel=0.05)
    assert int((~inside).sum()) == pytest.approx(expected_out, rel=0.1)
    assert data.num_node_features == 5 and data.y.bincount().tolist() == [300] * 3


@pytest.mark.parametrize(("p_in", "edges"), [(0.0, 0), (1.0, 5 * 20 * 19)])
def test_sbm_at_the_ends_of_probability(p_in, edges):
    assert load_graph(f"sbm:nodes=100,blocks=5,p_in={p_in},p_out=0").num_edges == edges


def test_rmat_degrees_are_skewed():
    data = load_graph("rmat:scale=10,edge_factor=8,classes=4")
    degree = data.edge_index[1].bincount(minlength=1024)
    assert data.num_nodes == 1024 and int(degree.max()) > 8 * float(degree.float().mean())
    assert set(data.y.tolist()) == set(range(4))


def test_npz_with_dense_features_splits_and_unlabelled_nodes(tmp_path):
    data = load_graph(write_npz(tmp_path / "tiny.npz"))
    assert data.num_nodes == 4 and data.edge_index.dtype == torch.int64
    assert data.x.dtype == torch.float32 and data.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert data.y.tolist() == [0, 2, -1, 1]
    assert data.train_mask.tolist() == [True, False, False, False]  # the third node has no label
    assert data.train_masks.tolist() == [[True, False], [False, True], [False, False], [False, False]]
    assert read_npz_meta(tmp_path / "tiny.npz") == {"name": "tiny", "licence": "none"}


def test_npz_with_csr_features_and_several_labels(tmp_path):
    x = sp.csr_array(np.array([[0, 1.5, 0], [0, 0, 0], [2, 0, 3], [0, 0, 4]], dtype=np.float32))
    spec = write_npz(
        tmp_path / "csr.npz",
        x=None,
        y=np.eye(4, 3, dtype=np.uint8),
        x_indptr=x.indptr,
        x_indices=x.indices,
        x_values=x.data,
        x_shape=np.array(x.shape),
    )
    data = load_graph(spec)
    assert torch.equal(data.x, torch.from_numpy(x.toarray()))
    assert data.y.dtype == torch.float32 and data.y.shape == (4, 3)
    facts = graph_facts(data)
    assert facts.multi_label and facts.num_classes == 3 and facts.num_features == 3


def test_npz_with_nothing_but_edges(tmp_path):
    np.savez(tmp_path / "bare.npz", edge_index=np.array([[0, 4], [1, 2]]))
    data = load_graph(tmp_path / "bare.npz")
    assert data.num_nodes == 5 and data.x is None and data.y is None
    facts = graph_facts(data)
    assert (facts.num_features, facts.num_classes, facts.multi_label) == (0, 0, False)


def test_npz_faults_are_named(tmp_path):
    np.savez(tmp_path / "none.npz", x=np.zeros((2, 1)))
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "pickle.npz", edge_index=np.array([{}], dtype=object))
    for name, message in {
        "none": r"array edge_index.*\['x'\]",
        "text": "plain arrays",
        "pickle": "plain arrays",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_graph(f"npz:{tmp_path / name}.npz")
    with pytest.raises(FileNotFoundError, match="found none at .*missing.npz"):
        load_graph(f"npz:{tmp_path / 'missing.npz'}")


def test_a_partition_folder_is_a_graph(tmp_path, graph):
    folder = partition_and_store(graph, 3, out=tmp_path / "parts", progress=False)
    whole = load_graph(folder)
    assert torch.equal(whole.x, graph.x) and torch.equal(whole.train_mask, graph.train_mask)
    key, wanted = (g.edge_index[0] * 40 + g.edge_index[1] + g.edge_weight for g in (whole, graph))
    assert torch.equal(key.sort().values, wanted.sort().values)
    assert whole.title == "random" and float(whole.scale) == 2.5


WRONG = {
    "digts": "Did you mean 'digits'",
    "Planetoid:Cora": "Did you mean 'planetoid'",
    "/no/such/folder": "neither one nor a folder",
    "npz:": "like 'npz:PATH'",
    "karate:3": "without arguments",
    "sbm:node=5": r"arguments \['nodes'.*got 'node=5'.*Did you mean 'nodes'",
    "sbm:nodes": "key=value",
    "rmat:scale=big": "scale of 'rmat' as int, got 'big'",
    "sbm:p_in=2": "probability between 0 and 1, got 2.0",
    "sbm:train=0.9,val=0.9": "sum to at most 1",
    "pyg:Planetoit:Cora": "class of torch_geometric.datasets, got 'Planetoit'.*Did you mean 'Planetoid'",
    "pyg:KarateClub:x": "no name after pyg:KarateClub",
}


@pytest.mark.parametrize("spec", WRONG)
def test_a_wrong_name_is_answered_with_what_would_be_right(spec):
    with pytest.raises(ValueError, match=WRONG[spec]):
        load_graph(spec)


def test_an_unknown_name_lists_all_forms():
    with pytest.raises(ValueError, match="forms are") as caught:
        load_graph("nonsense")
    assert all(form in str(caught.value) for form in SOURCES.values())
    assert "partition folder" in str(caught.value)


def test_a_pyg_dataset_is_found_by_class_name():
    assert load_graph("pyg:KarateClub").num_nodes == 34


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    from torch_geometric.datasets import Planetoid

    def offline(self):
        raise OSError("no network here")

    monkeypatch.setattr(Planetoid, "download", offline)
    with pytest.raises(RuntimeError, match="Could not load Planetoid Cora.*no network here.*by hand"):
        load_graph("planetoid:Cora", root=tmp_path)


def test_ogb_without_ogb_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(ImportError, match=r"lightning-gnncomm\[ogb\]"):
        load_graph("ogb:ogbn-arxiv")


def test_ogb_splits_become_masks(monkeypatch):
    class Dataset(list):
        def __init__(self, name, root):
            y = torch.tensor([[0], [1], [2]])
            super().__init__([Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0], [1]]), y=y)])

        def get_idx_split(self):
            return {"train": torch.tensor([2]), "valid": torch.tensor([0]), "test": torch.tensor([1])}

    module = type(sys)("ogb.nodeproppred")
    module.PygNodePropPredDataset = Dataset
    monkeypatch.setitem(sys.modules, "ogb", type(sys)("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    data = load_graph("ogb:ogbn-tiny")
    assert data.y.tolist() == [0, 1, 2]
    assert data.train_mask.tolist() == [False, False, True] and data.val_mask.tolist() == [True, False, False]
    assert data.test_mask.tolist() == [False, True, False]


def test_a_dataset_of_several_graphs_or_of_another_kind_is_refused(graph):
    assert single_graph([graph]) is graph
    with pytest.raises(ValueError, match="one graph, got list of 2 graphs"):
        single_graph([graph, graph])
    typed = HeteroData()
    assert single_graph([typed]) is typed
    with pytest.raises(TypeError, match="a Data or HeteroData, got TemporalData"):
        single_graph([TemporalData()])


def test_the_identity_of_a_file_changes_with_the_file_and_that_of_a_generator_with_its_arguments(tmp_path):
    spec = write_npz(tmp_path / "a.npz")
    before = source_identity(spec)
    assert before == source_identity(tmp_path / "a.npz")
    write_npz(tmp_path / "a.npz", y=None)
    assert source_identity(spec) != before
    assert source_identity("sbm") == source_identity("sbm:nodes=1000,seed=0") != source_identity("sbm:seed=1")


@pytest.mark.parametrize(
    ("spec", "name"),
    [("npz:/data/cora.npz", "cora"), ("digits", "digits"), ("pyg:WebKB:Cornell", "pyg-WebKB-Cornell")],
)
def test_names_fit_for_folders(spec, name):
    assert source_name(spec) == name


def test_the_cache_is_where_it_is_told_to_be(monkeypatch, tmp_path):
    monkeypatch.setenv("GNNCOMM_CACHE", str(tmp_path))
    assert cache_root() == tmp_path and cache_root("here") == cache_root("here").cwd() / "here"
    monkeypatch.delenv("GNNCOMM_CACHE")
    assert cache_root().parts[-2:] == (".cache", "lightning_gnncomm")


def test_features_are_normalised_by_row_and_rows_of_zeros_stay():
    x = torch.tensor([[1.0, 3.0], [0.0, 0.0], [2.0, 2.0]])
    data = Data(x=x, edge_index=torch.tensor([[0], [1]]))
    assert prepare_graph(data, normalize_features=True).x.tolist() == [[0.25, 0.75], [0, 0], [0.5, 0.5]]
    assert data.x is x


def test_features_are_added_where_there_are_none():
    data = Data(edge_index=torch.tensor([[0, 1], [2, 2]]), num_nodes=4)
    assert prepare_graph(data, add_features="constant").x.tolist() == [[1.0]] * 4
    assert prepare_graph(data, add_features="degree").x.flatten().tolist() == pytest.approx([0, 0, np.log(3), 0])
    assert "x" not in prepare_graph(data)


def test_one_of_several_splits_becomes_the_masks(tmp_path):
    data = load_graph(write_npz(tmp_path / "tiny.npz"))
    chosen = prepare_graph(data, split=1)
    assert chosen.train_mask.tolist() == [False, True, False, False] and "train_masks" not in chosen
    assert chosen.test_mask.tolist() == [True, True, False, True]
    assert "train_masks" in data
    pyg_form = Data(edge_index=data.edge_index, num_nodes=4)
    for key in ("train_mask", "val_mask", "test_mask"):
        pyg_form[key] = data[f"{key}s"]
    assert torch.equal(prepare_graph(pyg_form, split=1).train_mask, chosen.train_mask)


def test_changes_that_cannot_be_made_are_refused(tmp_path):
    bare = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    split = load_graph(write_npz(tmp_path / "tiny.npz"))
    for data, change, message in [
        (bare, {"normalize_features": True}, "without x"),
        (bare, {"split": 0}, "train_masks of shape"),
        (bare, {"add_features": "random"}, "'degree', 'constant' or None"),
        (split, {"add_features": "degree"}, "got x of shape"),
        (split, {"split": 2}, "split in 0..1, got 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            prepare_graph(data, **change)


@pytest.mark.parametrize(
    ("name", "nodes", "features", "classes"), [("cora", 2708, 1433, 7), ("tolokers", 11758, 10, 2)]
)
def test_real_graphs_have_the_sizes_of_their_index(name, nodes, features, classes, real_graph):
    facts = graph_facts(load_graph(real_graph(name)))
    assert (facts.num_nodes, facts.num_features, facts.num_classes) == (nodes, features, classes)


def test_the_real_multi_label_graph_has_no_features(real_graph):
    facts = graph_facts(load_graph(real_graph("blogcatalog3_multilabel")))
    assert facts.multi_label and facts.num_classes == 39 and facts.num_features == 0
