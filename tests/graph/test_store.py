"""Partitions on disk: whole or not at all, checked on reading, made once, never overwritten."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch_geometric.data import Data
from torch_geometric.transforms import ToSparseTensor

import lightning_gnncomm.graph.folder as folder_module
import lightning_gnncomm.graph.store as store_module
from lightning_gnncomm.graph import (
    assign,
    build_parts,
    describe_source,
    load_part,
    partition_and_store,
    read_manifest,
    save_partition,
    trivial_part,
)
from lightning_gnncomm.graph.fingerprint import fingerprint
from lightning_gnncomm.graph.folder import load_whole


@pytest.fixture
def stored(graph, tmp_path):
    assignment = torch.arange(graph.num_nodes) % 3
    return save_partition(tmp_path / "parts", graph, assignment, 3, settings={"seed": 0})


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch, at what PyG makes
@pytest.mark.parametrize("keep", [False, True])
def test_a_matrix_comes_back_and_counts_in_the_fingerprint(graph, tmp_path, keep):
    graph = ToSparseTensor(layout=torch.sparse_csr, remove_edge_index=not keep)(graph)
    del graph["edge_attr"], graph["edge_type"]
    assignment = torch.arange(40) % 3
    folder = save_partition(tmp_path / "parts", graph, assignment, 3)
    for rank, part in enumerate(build_parts(graph, assignment, 3)):
        loaded = load_part(folder, rank)
        assert (loaded.edge_index is not None) == keep
        assert torch.equal(loaded.adj_t.to_dense(), part.adj_t.to_dense())
        assert loaded.adj_t.shape == part.adj_t.shape and loaded.adj_t.layout == torch.sparse_csr
    assert torch.equal(load_whole(folder).adj_t.to_dense(), graph.adj_t.to_dense())
    other = graph.clone()
    other.adj_t.values()[0] += 1
    assert fingerprint(other) != fingerprint(graph)


def assert_same(part: Data, other: Data) -> None:
    assert set(part.to_dict()) == set(other.to_dict())
    for key, value in part.to_dict().items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[key].dtype and torch.equal(value, other[key]), key
        elif key != "halo":
            assert value == other[key], key
    for name in ("num_local", "num_global", "send_counts", "recv_counts"):
        assert getattr(part.halo, name) == getattr(other.halo, name)
    for name in ("send_index", "send_key", "recv_key"):
        assert torch.equal(getattr(part.halo, name), getattr(other.halo, name))


def test_parts_come_back_as_they_were_built(graph, tmp_path):
    graph.edge_index = graph.edge_index.int()
    graph.half = torch.randn(40, 2).bfloat16()
    graph.names = [str(i) for i in range(40)]
    graph.nested = {"a": [1, 2.5, None], "b": "text"}
    assignment = torch.arange(40) % 4
    assignment[assignment == 2] = 0  # part 2 owns nothing
    folder = save_partition(tmp_path / "parts", graph, assignment, 4)
    for rank, part in enumerate(build_parts(graph, assignment, 4)):
        assert_same(load_part(folder, rank), part)


def test_writing_to_a_loaded_part_leaves_the_file_alone(stored):
    part = load_part(stored, 0)
    part.x.mul_(2)
    assert torch.equal(load_part(stored, 0).x * 2, part.x)


def test_a_single_part_with_shared_memory_comes_back(graph, tmp_path):
    graph.x_again, graph.column = graph.x, graph.x[:, 1]
    folder = save_partition(tmp_path / "one", graph, torch.zeros(40, dtype=torch.long), 1)
    assert_same(load_part(folder, 0), trivial_part(graph))


def test_the_folder_holds_what_the_manifest_says(stored, graph):
    manifest = read_manifest(stored)
    assert sorted(path.name for path in stored.iterdir()) == sorted([*manifest["files"], "manifest.json"])
    assert len(manifest["files"]) == 4  # three parts and the assignment
    assert (manifest["num_parts"], manifest["num_nodes"], manifest["num_edges"]) == (3, 40, 200)
    assert manifest["attributes"] == {"title": "random"} and manifest["settings"] == {"seed": 0}
    assert manifest["facts"]["num_classes"] == 4 and manifest["quality"]["rows_on_wire"] > 0
    assert os.listdir(stored.parent) == ["parts"]


def test_a_rank_reads_only_its_own_part(stored):
    before = load_part(stored, 1)
    (stored / "part-00000.safetensors").unlink()
    (stored / "part-00002.safetensors").write_bytes(b"garbage")
    (stored / "assignment.safetensors").unlink()
    assert_same(load_part(stored, 1), before)
    with pytest.raises(FileNotFoundError, match="part-00000.safetensors, it is missing"):
        load_part(stored, 0)


def damage_size(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damage_size, r"Expected \d+ bytes in .*part-00001"), (damage_bit, "checksum .*part-00001.*damaged")],
)
def test_a_damaged_part_is_found(stored, damage, message):
    damage(stored / "part-00001.safetensors")
    with pytest.raises(ValueError, match=message):
        load_part(stored, 1)
    assert load_part(stored, 0).num_nodes == 14


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_part_out_of_range_is_named(stored, rank):
    with pytest.raises(ValueError, match=f"part in 0..2, got {rank}.*holds 3 parts"):
        load_part(stored, rank)


def test_folders_that_are_no_partition_are_named(stored, tmp_path):
    manifest = read_manifest(stored)
    for content, message in [
        (None, "has no manifest.json.*gnncomm partition"),
        ("{", "Expected JSON in .*manifest.json"),
        ("[]", "is not the manifest of one"),
        (json.dumps({"format": "other"}), "is not the manifest of one"),
        (json.dumps(manifest | {"format_version": 99}), "format 2 or older, .* has format 99.*upgrade"),
    ]:
        if content is None:
            (stored / "manifest.json").unlink()
        else:
            (stored / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            load_part(stored, 0)


def test_a_part_of_another_tool_is_named(stored):
    path = stored / "part-00000.safetensors"
    save_file({"x": torch.ones(1)}, path)
    manifest = read_manifest(stored)
    manifest["files"][path.name] = folder_module._sync(path)
    (stored / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="Expected a part in .*part-00000.safetensors, cannot read it"):
        load_part(stored, 0)


@pytest.mark.parametrize("value", [{1, 2}, object(), (1, 2)], ids=["set", "object", "tuple"])
def test_attributes_that_cannot_be_stored_are_refused_by_name(graph, tmp_path, value):
    graph.oddity = value
    with pytest.raises(ValueError, match=f"'oddity' of type {type(value).__name__}"):
        save_partition(tmp_path / "parts", graph, torch.arange(40) % 2, 2)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interruption_leaves_nothing_behind(graph, tmp_path, error):
    def interrupt(rank: int) -> None:
        assert any(path.name.startswith(".parts") for path in tmp_path.iterdir())
        raise error

    with pytest.raises(error):
        save_partition(tmp_path / "parts", graph, torch.arange(40) % 2, 2, on_part=interrupt)
    assert not os.listdir(tmp_path)


@pytest.mark.processes
def test_a_killed_process_leaves_no_folder_that_could_be_taken_for_a_partition(tmp_path):
    script = (
        "import os, torch\n"
        "from lightning_gnncomm.graph import load_graph, save_partition\n"
        "data = load_graph('karate')\n"
        f"save_partition({str(tmp_path / 'parts')!r}, data, torch.arange(34) % 2, 2, on_part=lambda rank: os._exit(9))\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=False, timeout=100).returncode == 9
    assert not (tmp_path / "parts").exists()
    folder = partition_and_store("karate", 2, out=tmp_path / "parts", progress=False)
    assert load_part(folder, 1).num_nodes == 17


def race(work, count: int = 4) -> list:
    """Run ``work`` in threads that all reach the renaming before any of them renames."""
    results: list = [None] * count

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except Exception as error:  # noqa: BLE001 - judged by the test
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.fixture
def meet_before_rename(monkeypatch):
    meeting, rename = threading.Barrier(4), os.rename

    def meet(source, target):
        meeting.wait(timeout=60)
        rename(source, target)

    monkeypatch.setattr(folder_module.os, "rename", meet)


@pytest.mark.usefixtures("meet_before_rename")
def test_several_that_store_the_same_at_once_all_find_one_good_folder(graph, tmp_path):
    found = race(lambda index: partition_and_store(graph.clone(), 2, root=tmp_path, progress=False))
    assert set(found) == {found[0]} and isinstance(found[0], Path)
    assert os.listdir(tmp_path) == [found[0].name]
    assert load_part(found[0], 0).num_nodes + load_part(found[0], 1).num_nodes == 40


@pytest.mark.usefixtures("meet_before_rename")
def test_of_several_that_store_different_graphs_at_one_place_one_wins_and_the_others_are_told(random_graph, tmp_path):
    def work(index: int) -> Path:
        return save_partition(tmp_path / "parts", random_graph(seed=index), torch.arange(40) % 2, 2)

    found = race(work)
    winners = [result for result in found if isinstance(result, Path)]
    losers = [result for result in found if isinstance(result, FileExistsError)]
    assert len(winners) == 1 and len(losers) == 3 and "holds something else" in str(losers[0])
    assert os.listdir(tmp_path) == ["parts"] and load_part(winners[0], 0).num_nodes == 20


def test_a_stored_partition_is_used_again(graph, tmp_path, monkeypatch):
    folder = partition_and_store(graph, 2, root=tmp_path, progress=False)
    monkeypatch.setattr(store_module, "assign", lambda *_: pytest.fail("partitioned again"))
    assert partition_and_store(graph.clone(), 2, root=tmp_path, progress=False) == folder


def test_a_stored_partition_of_a_named_graph_is_found_without_loading_the_graph(tmp_path, monkeypatch):
    folder = partition_and_store("karate", 2, root=tmp_path, progress=False)
    monkeypatch.setattr(store_module, "load_graph", lambda *_, **__: pytest.fail("loaded the graph"))
    assert partition_and_store("karate", 2, root=tmp_path, progress=False) == folder
    with pytest.raises(pytest.fail.Exception, match="loaded the graph"):
        partition_and_store("karate", 3, root=tmp_path, progress=False)


@pytest.mark.parametrize(
    "change",
    [
        {"num_parts": 3},
        {"seed": 1},
        {"method": "random"},
        {"balance": "train"},
        {"normalize_features": True},
        {"method": torch.arange(40) % 2},
    ],
    ids=str,
)
def test_other_settings_make_another_folder_and_are_refused_at_a_given_place(graph, tmp_path, change):
    graph.x = graph.x.abs() + 1
    first = partition_and_store(graph, 2, root=tmp_path, progress=False)
    assert partition_and_store(graph, **({"num_parts": 2} | change), root=tmp_path, progress=False) != first
    before = (first / "manifest.json").read_bytes()
    name = next(iter(change))
    with pytest.raises(FileExistsError, match=f"{name} is .* there, .* here.*Choose another folder"):
        partition_and_store(graph, **({"num_parts": 2} | change), out=first, progress=False)
    assert (first / "manifest.json").read_bytes() == before


def test_another_graph_is_refused_at_a_given_place(graph, random_graph, tmp_path):
    out = partition_and_store(graph, 2, out=tmp_path / "parts", progress=False)
    with pytest.raises(FileExistsError, match="graph differs .40 nodes and 200 edges there, 50 and 200 here"):
        partition_and_store(random_graph(50), 2, out=out, progress=False)
    changed = graph.clone()
    changed.x[0, 0] += 1
    with pytest.raises(FileExistsError, match="the graph differs"):
        partition_and_store(changed, 2, out=out, progress=False)
    assert partition_and_store(graph, 2, out=out, progress=False) == out


def test_something_else_at_a_given_place_is_left_alone(graph, tmp_path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(FileExistsError, match="it is something else"):
        partition_and_store(graph, 2, out=tmp_path, progress=False)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_an_empty_folder_at_a_given_place_is_filled(graph, tmp_path):
    (tmp_path / "parts").mkdir()
    assert load_part(partition_and_store(graph, 2, out=tmp_path / "parts", progress=False), 0).num_nodes == 20


def test_the_stored_assignment_is_that_of_the_settings(graph, tmp_path):
    folder = partition_and_store(graph, 3, root=tmp_path, seed=5, progress=False)
    wanted = assign(graph, 3, seed=5)
    for rank in range(3):
        assert load_part(folder, rank).n_id.tolist() == (wanted == rank).nonzero().flatten().tolist()


def test_progress_and_the_table_go_to_the_console_or_nowhere(graph, tmp_path, capsys):
    console = Console(width=100)
    with console.capture() as capture:
        partition_and_store(graph, 2, root=tmp_path, console=console)
    assert "assigning 40 nodes to 2 parts" in capture.get() and "halo ratio" in capture.get()
    with console.capture() as capture:
        partition_and_store(graph, 3, root=tmp_path, console=console, progress=False)
    assert capture.get() == "" and capsys.readouterr().out == ""


def test_the_fingerprint_sees_every_attribute_and_no_id_width(graph):
    first = fingerprint(graph)
    narrow = graph.clone()
    narrow.edge_index = narrow.edge_index.int()
    assert fingerprint(narrow) == first
    for key, value in graph.to_dict().items():
        changed = graph.clone()
        changed[key] = f"{value}!" if isinstance(value, str) else value.flip(0) if value.dim() else value + 1
        assert fingerprint(changed) != first, key


def test_facts_are_remembered_by_name(tmp_path, monkeypatch):
    facts = describe_source("sbm:nodes=50", root=tmp_path)
    assert (facts.num_nodes, facts.num_features, facts.num_classes, facts.multi_label) == (50, 16, 4, False)
    (remembered,) = (tmp_path / "facts").iterdir()
    remembered_text = remembered.read_text()
    remembered.write_text(remembered_text[:5])  # cut short: look again
    assert describe_source("sbm:nodes=50", root=tmp_path) == facts
    assert remembered.read_text() == remembered_text
    monkeypatch.setattr(store_module, "load_graph", lambda *_, **__: pytest.fail("loaded the graph"))
    assert describe_source("sbm:nodes=50", root=tmp_path) == facts


def test_facts_of_a_partition_folder_come_from_its_manifest(stored, monkeypatch):
    monkeypatch.setattr(store_module, "load_graph", lambda *_, **__: pytest.fail("loaded the graph"))
    assert describe_source(stored).num_edges == 200


def test_a_place_that_cannot_be_written_is_named_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Partitions cannot be stored in .*file/deep.*GNNCOMM_CACHE"):
        partition_and_store("karate", 2, root=tmp_path / "file" / "deep", progress=False)
