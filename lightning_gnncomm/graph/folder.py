"""A partition on disk: one folder per graph and part count, a file per part and a manifest."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lightning_gnncomm.graph.check import check_assignments, check_graph
from lightning_gnncomm.graph.features import graph_facts
from lightning_gnncomm.graph.fingerprint import check_storable, fingerprint
from lightning_gnncomm.graph.part_file import read_part, write_part
from lightning_gnncomm.graph.partition import build_parts, join_parts, lay_out
from lightning_gnncomm.graph.quality import partition_quality
from lightning_gnncomm.graph.typed import Assignment, Graph, TypeName, edge_types, node_types, stores

__all__ = ["FORMAT_VERSION", "MANIFEST", "load_part", "load_whole", "read_manifest", "save_partition"]

FORMAT_VERSION = 2
"""Newest version of the layout of partition folders that can be read; a folder of a newer one is refused.

Version 2 holds heterogeneous graphs. Homogeneous ones are written as version 1, which older versions of the package read too.
"""

MANIFEST = "manifest.json"
_FORMAT = "lightning_gnncomm partition"
_ASSIGNMENT = "assignment.safetensors"


def save_partition(
    folder: str | Path,
    data: Graph,
    assignment: Assignment,
    num_parts: int,
    *,
    settings: dict[str, Any] | None = None,
    source: dict[str, Any] | None = None,
    on_part: Callable[[int], object] = lambda rank: None,
) -> Path:
    """Partition a graph as assigned and store it, all or nothing.

    Everything is written to a folder beside and renamed at the end, so a crash leaves no half of a partition. Of several
    processes that store the same at once one wins and the others find its folder.

    Args:
        folder: Where to store; must not exist, or be empty.
        data: The whole graph, ``N`` nodes.
        assignment: Part of each node, shape ``[N]``; of a ``HeteroData`` a dict of one such tensor per node type.
        num_parts: Number of parts.
        settings: What the assignment was made with, plain JSON data.
        source: Where the graph came from, plain JSON data.
        on_part: Called with the rank of each part once it is written.

    Returns:
        The folder: ``manifest.json``, ``part-00000.safetensors`` and so on, and ``assignment.safetensors``.

    Raises:
        FileExistsError: If the folder holds something else.
        ValueError: If an attribute is neither a tensor nor plain JSON data, or graph or assignment are wrong.
    """
    folder = Path(folder).absolute()
    graph = check_graph(data)
    check_storable(graph)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.parent / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    aside.mkdir()
    try:
        manifest = _write_files(aside, graph, assignment, num_parts, on_part)
        manifest |= {"settings": settings or {}, "source": source}
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1))
        _sync(aside / MANIFEST)
        _sync(aside)
        _move(aside, folder, manifest)
    except BaseException:  # also on Ctrl-C
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _sync(folder.parent)
    return folder


def load_part(folder: str | Path, rank: int) -> Any:
    """Load one part, reading the manifest and that part's file and no other.

    Args:
        folder: A partition folder.
        rank: The part to load.

    Returns:
        The part as :func:`~lightning_gnncomm.graph.partition.build_part` returns it, on the CPU.

    Raises:
        ValueError: If the folder is no partition, ``rank`` is out of range, or the file is damaged (size or checksum differ).
        FileNotFoundError: If the part's file is missing.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    num_parts = manifest["num_parts"]
    if not 0 <= rank < num_parts:
        raise ValueError(f"Expected a part in 0..{num_parts - 1}, got {rank}: {folder} holds {num_parts} parts.")
    path = folder / part_name(rank)
    _verify(path, manifest["files"][path.name])
    try:
        part = read_part(path)
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:  # right checksum, wrong content: made elsewhere
        raise ValueError(f"Expected a part in {path}, cannot read it: {error}.") from error
    for store, attributes in zip(stores(part).values(), _by_store(manifest, "attributes"), strict=True):
        for key, value in attributes.items():
            store[key] = value
    return part


def load_whole(folder: str | Path) -> Any:
    """Load all parts and join them to the whole graph, its edges grouped by part."""
    manifest = read_manifest(folder)
    parts = [load_part(folder, rank) for rank in range(manifest["num_parts"])]
    levels = dict(zip(stores(parts[0]), _by_store(manifest, "levels"), strict=True))
    return join_parts(parts, levels=levels)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a partition folder.

    Returns:
        ``num_parts``, ``num_nodes``, ``num_edges``, ``fingerprint`` of the graph, ``facts`` for a model, ``settings``, ``source``,
        ``quality``, ``attributes`` (of the graph, no tensors), ``levels`` of all attributes, ``files`` with sizes and checksums. Of a
        heterogeneous graph also ``node_types`` and ``edge_types``; ``attributes`` and ``levels`` are lists then, of one entry for
        the graph, for each node type and for each edge type.

    Raises:
        ValueError: If it is no partition folder, the manifest is damaged, or a newer version of the package wrote it.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise ValueError(f"Expected a partition folder, {folder} has no {MANIFEST}. Make one with `gnncomm partition`.")
    try:
        manifest = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"Expected JSON in {path}, cannot read it: {error}. Delete the folder to partition again."
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError(f"Expected a partition folder, {path} is not the manifest of one.")
    if manifest["format_version"] > FORMAT_VERSION:
        raise ValueError(
            f"Expected a partition of format {FORMAT_VERSION} or older, {path} has format {manifest['format_version']}. "
            "A newer lightning_gnncomm wrote it: upgrade, or partition again."
        )
    return manifest


def part_name(rank: int) -> str:
    """Return the file name of a part."""
    return f"part-{rank:05d}.safetensors"


def _write_files(
    folder: Path, graph: Graph, assignment: Assignment, num_parts: int, on_part: Callable[[int], object]
) -> dict[str, Any]:
    checked = check_assignments(assignment, graph, num_parts)
    layout = lay_out(graph, checked, num_parts)
    levels = _levels(graph)
    plain = _plain(graph, levels)
    files = {}
    for rank, part in enumerate(build_parts(graph, assignment, num_parts, layout=layout)):
        for name, store in stores(part).items():
            for key in plain[name]:
                del store[key]  # once in the manifest instead
        path = folder / part_name(rank)
        write_part(part, path)
        files[path.name] = _sync(path)
        del part  # before the next one is cut
        on_part(rank)
    assignments = {"assignment" if name is None else f"assignment/{name}": ids.clone() for name, ids in checked.items()}
    save_file(assignments, folder / _ASSIGNMENT)
    files[_ASSIGNMENT] = _sync(folder / _ASSIGNMENT)
    is_typed = None not in checked
    types = {"node_types": node_types(graph), "edge_types": edge_types(graph)} if is_typed else {}
    return {
        "format": _FORMAT,
        "format_version": 2 if is_typed else 1,
        "fingerprint": fingerprint(graph),
        "num_parts": num_parts,
        "num_nodes": layout.type_start[-1],
        "num_edges": graph.num_edges,
        "facts": asdict(graph_facts(graph)),
        "quality": partition_quality(graph, assignment, num_parts, layout=layout).to_dict(),
        "attributes": list(plain.values()) if is_typed else plain[None],
        "levels": list(levels.values()) if is_typed else levels[None],
        "files": files,
    } | types


def _by_store(manifest: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return an entry of the manifest as a list with one item per store, which it is for a heterogeneous graph."""
    entry = manifest[name]
    return entry if "node_types" in manifest else [entry]


def _levels(graph: Graph) -> dict[TypeName, dict[str, str]]:
    """Return by store what the rows of each attribute are."""
    return {
        name: {key: _level(store, key) for key in store.keys() if key not in ("edge_index", "num_nodes")}  # noqa: SIM118
        for name, store in stores(graph).items()
    }


def _level(store: Any, key: str) -> str:
    # PyG's store of a whole heterogeneous graph has no rows.
    if not hasattr(store, "is_node_attr"):
        return "graph"
    return "node" if store.is_node_attr(key) else "edge" if store.is_edge_attr(key) else "graph"


def _plain(graph: Graph, levels: dict[TypeName, dict[str, str]]) -> dict[TypeName, dict[str, Any]]:
    """Return by store the graph-level attributes that are no tensors."""
    plain = {}
    for name, store in stores(graph).items():
        values = {key: store[key] for key, level in levels[name].items() if level == "graph"}
        plain[name] = {key: value for key, value in values.items() if not isinstance(value, Tensor)}
    return plain


def _move(aside: Path, folder: Path, manifest: dict[str, Any]) -> None:
    try:
        os.rename(aside, folder)  # onto nothing or an empty folder; a folder with something in it refuses
    except OSError as error:
        if not folder.exists():
            raise
        found = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
        same = all(found.get(name) == manifest[name] for name in ("fingerprint", "settings", "num_parts"))
        if not same:
            raise FileExistsError(
                f"Expected no folder at {folder} or an empty one; it holds something else."
            ) from error
        shutil.rmtree(aside)  # another process stored the same first


def _sync(path: Path) -> dict[str, Any]:
    """Have a file or folder on disk before it is renamed; return size and checksum of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {} if path.is_dir() else {"bytes": path.stat().st_size, "sha256": _checksum(path)}


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _verify(path: Path, wanted: dict[str, Any]) -> None:
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected {path}, it is missing. Copy it from the node that made it, or partition again."
        )
    size = path.stat().st_size
    again = "Delete the folder to partition again."
    if size != wanted["bytes"]:
        raise ValueError(f"Expected {wanted['bytes']} bytes in {path}, got {size}: the file is damaged. {again}")
    checksum = _checksum(path)
    if checksum != wanted["sha256"]:
        raise ValueError(
            f"Expected checksum {wanted['sha256'][:16]} of {path}, got {checksum[:16]}: the file is damaged. {again}"
        )
