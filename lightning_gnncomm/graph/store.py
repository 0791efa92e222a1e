"""Partitioning a graph once: make a partition folder, or find the one made before."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lightning_gnncomm.graph.assign import assign
from lightning_gnncomm.graph.check import check_graph
from lightning_gnncomm.graph.features import GraphFacts, graph_facts, prepare_graph
from lightning_gnncomm.graph.fingerprint import fingerprint, short_hash
from lightning_gnncomm.graph.folder import (
    FORMAT_VERSION,
    MANIFEST,
    load_part,
    load_whole,
    read_manifest,
    save_partition,
)
from lightning_gnncomm.graph.quality import PartitionQuality
from lightning_gnncomm.graph.sources import cache_root, load_graph, source_identity, source_name
from lightning_gnncomm.graph.typed import Assignment, Graph

__all__ = [
    "FORMAT_VERSION",
    "describe_source",
    "load_part",
    "load_whole",
    "partition_and_store",
    "read_manifest",
    "save_partition",
]

_CACHE_VERSION = 1  # part of cached names: goes up when the same name and settings come to mean something else


def partition_and_store(
    source: Graph | str | Path,
    num_parts: int,
    *,
    root: str | Path | None = None,
    out: str | Path | None = None,
    method: str | Assignment = "metis",
    balance: str | Sequence[str] = "nodes",
    seed: int = 0,
    normalize_features: bool | Sequence[str] = False,
    split: int | None = None,
    add_features: str | None = None,
    progress: bool = True,
    console: Console | None = None,
) -> Path:
    """Partition a graph and store it, unless the same partition of the same graph is stored already.

    A named graph whose file or arguments have not changed is not even loaded then.

    Args:
        source: A graph, or a name for :func:`~lightning_gnncomm.graph.sources.load_graph`.
        num_parts: Number of parts.
        root: Folder under which to find or make the partition's folder, see
            :func:`~lightning_gnncomm.graph.sources.cache_root`.
        out: The partition's folder itself, instead of one under ``root``. It is never overwritten.
        method: See :func:`~lightning_gnncomm.graph.assign.assign`; likewise ``balance`` and ``seed``.
        balance: See ``method``.
        seed: See ``method``.
        normalize_features: See :func:`~lightning_gnncomm.graph.features.prepare_graph`; likewise ``split`` and ``add_features``.
        split: See ``normalize_features``.
        add_features: See ``normalize_features``.
        progress: Whether to show progress, and the quality of a new partition as a table.
        console: Where to show it, standard output by default.

    Returns:
        The partition's folder.

    Raises:
        FileExistsError: If ``out`` holds another graph, other settings, or something else; the message names what differs.
        ValueError: If the graph, its name or a setting is wrong.
    """
    if not isinstance(normalize_features, bool):
        normalize_features = list(normalize_features)
    settings = _settings(num_parts, method, balance, seed) | {
        "normalize_features": normalize_features, "split": split, "add_features": add_features
    }  # fmt: skip
    features: dict[str, Any] = {
        "normalize_features": normalize_features, "split": split, "add_features": add_features
    }  # fmt: skip
    console = console or Console()
    graph = prepare_graph(source, **features) if isinstance(source, Graph) else None
    identity = {"fingerprint": fingerprint(graph)} if graph is not None else source_identity(_name(source))
    folder = Path(out).expanduser().absolute() if out else _folder(source, num_parts, identity, settings, root)
    found = _find(folder, settings)
    if found is not None and found["source"] == identity:
        return folder
    _make_parent(folder)
    with _steps(progress, console) as step:
        if graph is None:
            step("loading the graph")
            graph = prepare_graph(load_graph(_name(source), root=root), **features)
        if found is not None:
            _check_same_graph(folder, found, graph)
            return folder
        step(f"assigning {graph.num_nodes:,} nodes to {num_parts} parts")
        assignment = assign(graph, num_parts, method, balance, seed)
        step("writing parts", num_parts)
        save_partition(
            folder, graph, assignment, num_parts, settings=settings, source=identity, on_part=lambda _: step.advance()
        )
    if progress:
        console.print(PartitionQuality.from_dict(read_manifest(folder)["quality"]).table())
    return folder


def _make_parent(folder: Path) -> None:
    """Make the folder that partitions go to, before any work is done for them.

    Raises:
        OSError: If nothing can be written there, saying what to set.
    """
    parent, hint = folder.parent, "Choose another place by 'root' (or 'out'), or for all by the variable GNNCOMM_CACHE."
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(f"Partitions cannot be stored in {parent}: {error}. {hint}") from error
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"Partitions cannot be stored in {parent}: it is not writable. {hint}")


def describe_source(
    source: Graph | str | Path,
    *,
    root: str | Path | None = None,
    split: int | None = None,
    add_features: str | None = None,
) -> GraphFacts:
    """Return the facts of a graph that a model must know, without loading it if it was described before.

    Args:
        source: A graph, or a name for :func:`~lightning_gnncomm.graph.sources.load_graph`.
        root: Folder that remembers facts (in its subfolder ``facts``), see
            :func:`~lightning_gnncomm.graph.sources.cache_root`.
        split: See :func:`~lightning_gnncomm.graph.features.prepare_graph`.
        add_features: See :func:`~lightning_gnncomm.graph.features.prepare_graph`.
    """
    if isinstance(source, Graph):
        return graph_facts(prepare_graph(source, split=split, add_features=add_features))
    if (Path(source) / MANIFEST).is_file():
        return GraphFacts(**read_manifest(source)["facts"])
    key = short_hash([_CACHE_VERSION, source_identity(source), split, add_features])
    path = cache_root(root) / "facts" / f"{source_name(source)}-{key}.json"
    try:
        return GraphFacts(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # never described, or cut short: both mean to look again
        facts = graph_facts(prepare_graph(load_graph(source, root=root), split=split, add_features=add_features))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    aside.write_text(json.dumps(asdict(facts)))
    os.replace(aside, path)
    return facts


def _settings(num_parts: int, method: str | Assignment, balance: str | Sequence[str], seed: int) -> dict[str, Any]:
    if isinstance(method, str):
        names = sorted({balance} if isinstance(balance, str) else set(balance))
        return {"num_parts": num_parts, "method": method, "balance": names, "seed": seed}
    given = {name: _list(ids) for name, ids in method.items()} if isinstance(method, Mapping) else _list(method)
    return {"num_parts": num_parts, "method": f"given {short_hash(given)}", "balance": [], "seed": 0}


def _list(ids: Any) -> list[Any]:
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


def _name(source: Graph | str | Path) -> str | Path:
    assert not isinstance(source, Graph)
    return source


def _folder(
    source: Graph | str | Path,
    num_parts: int,
    identity: dict[str, Any],
    settings: dict[str, Any],
    root: str | Path | None,
) -> Path:
    name = "graph" if isinstance(source, Graph) else source_name(source)
    key = short_hash([_CACHE_VERSION, identity, settings])
    return cache_root(root) / f"{name}-{num_parts}-parts-{key}"


def _find(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of a folder made with these settings, or None if there is no folder yet."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / MANIFEST).is_file():
        raise FileExistsError(
            f"Expected no folder at {folder} or a partition, it is something else. Choose another folder."
        )
    manifest = read_manifest(folder)
    differing = [
        f"{name} is {manifest['settings'].get(name)!r} there, {wanted!r} here"
        for name, wanted in settings.items()
        if manifest["settings"].get(name) != wanted
    ]
    if differing:
        raise FileExistsError(
            f"Expected no partition in {folder}, or one made with the same settings; {'; '.join(differing)}. "
            "Choose another folder, or delete this one to partition again."
        )
    return manifest


def _check_same_graph(folder: Path, found: dict[str, Any], graph: Graph) -> None:
    if found["fingerprint"] == fingerprint(check_graph(graph)):
        return
    sizes = (
        f"{found['num_nodes']} nodes and {found['num_edges']} edges there, {graph.num_nodes} and {graph.num_edges} here"
    )
    raise FileExistsError(
        f"Expected no partition in {folder}, or one of the same graph; the graph differs ({sizes}). "
        "Choose another folder, or delete this one to partition again."
    )


class _Steps:
    """Says what is being done; without a progress display, nothing."""

    def __init__(self, display: Progress | None) -> None:
        self._display = display
        self._tasks: list[Any] = []

    def __call__(self, text: str, total: int | None = None) -> None:
        self.finish()
        if self._display is not None:
            self._tasks.append(self._display.add_task(text, total=total))

    def advance(self) -> None:
        if self._display is not None:
            self._display.advance(self._tasks[-1])

    def finish(self) -> None:
        if self._display is not None and self._tasks:
            self._display.update(self._tasks[-1], total=1, completed=1)


@contextmanager
def _steps(progress: bool, console: Console) -> Iterator[_Steps]:
    if not progress:
        yield _Steps(None)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as display:
        steps = _Steps(display)
        yield steps
        steps.finish()
