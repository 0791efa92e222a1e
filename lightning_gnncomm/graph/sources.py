"""Graphs by name: generated, in files, from PyG or OGB, or stored in parts."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from lightning_gnncomm.graph.generate import GENERATOR_VERSION, digits_graph, rmat_graph, sbm_graph
from lightning_gnncomm.graph.npz import load_npz

__all__ = ["SOURCES", "cache_root", "load_graph", "single_graph", "source_identity", "source_name"]

SOURCES = {
    "digits": "digits[:k=10,train=20,val=30,seed=0]",
    "karate": "karate",
    "npz": "npz:PATH",
    "planetoid": "planetoid:Cora|CiteSeer|PubMed",
    "pyg": "pyg:CLASS[:NAME], a class of torch_geometric.datasets, e.g. pyg:WebKB:Cornell or pyg:DBLP",
    "ogb": "ogb:ogbn-arxiv, needs the extra 'ogb'",
    "sbm": "sbm[:nodes=1000,blocks=4,p_in=0.05,p_out=0.005,features=16,noise=1.0,train=0.1,val=0.2,seed=0]",
    "rmat": "rmat[:scale=10,edge_factor=8,a=0.57,b=0.19,c=0.19,features=16,classes=8,train=0.1,val=0.2,seed=0]",
}
"""Forms of a graph's name, by their first word. A partition folder's path is a name too."""

_GENERATED: dict[str, Callable[..., Data]] = {"digits": digits_graph, "sbm": sbm_graph, "rmat": rmat_graph}


def cache_root(root: str | Path | None = None) -> Path:
    """Return the folder for partitions and downloads: ``root``, ``$GNNCOMM_CACHE`` or ``~/.cache/lightning_gnncomm``."""
    chosen = root or os.environ.get("GNNCOMM_CACHE") or Path("~/.cache/lightning_gnncomm")
    return Path(chosen).expanduser().absolute()


def load_graph(spec: str | Path, *, root: str | Path | None = None) -> Any:
    """Load or make the whole graph that a name stands for.

    Args:
        spec: A name in one of the forms of :data:`SOURCES`, or the path of a partition folder (whose edges come back grouped by
            part).
        root: Folder for downloads (in its subfolder ``datasets``), see :func:`cache_root`.

    Returns:
        The graph on the CPU, a ``Data`` or ``HeteroData``, ``num_nodes`` set, features as float32.

    Raises:
        ValueError: If the name has no known form, its arguments are wrong, or it stands for no single graph.
        FileNotFoundError: If there is no such file.
        ImportError: If an optional package is missing.
        RuntimeError: If a dataset cannot be downloaded.

    Example:
        >>> load_graph("sbm:nodes=60,blocks=3").num_nodes
        60
    """
    kind, _, argument = _parse(spec)
    if kind == "folder":
        from lightning_gnncomm.graph.store import load_whole  # store stores graphs of any source

        return load_whole(argument)
    if kind == "npz":
        return load_npz(argument)
    if kind in _GENERATED:
        return _generate(kind, argument)
    if kind == "karate":
        return _karate()
    datasets = cache_root(root) / "datasets"
    if kind == "ogb":
        return _ogb(argument, datasets)
    return _pyg(*_pyg_class(kind, argument), datasets)


def source_identity(spec: str | Path) -> dict[str, Any]:
    """Return what tells, without loading the graph, that a name still stands for the same one.

    For a file that is its path, size and time of change; for a generated graph its arguments; for others the name.
    """
    kind, _, argument = _parse(spec)
    if kind == "npz":
        path = Path(argument).expanduser().resolve()
        if not path.is_file():
            raise FileNotFoundError(f"Expected a graph file, found none at {path}.")
        return {"spec": f"npz:{path}", "size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns}
    if kind == "folder":
        from lightning_gnncomm.graph.store import read_manifest

        return {"spec": str(Path(argument).resolve()), "stored_fingerprint": read_manifest(argument)["fingerprint"]}
    if kind in _GENERATED:
        defaults = {name: p.default for name, p in inspect.signature(_GENERATED[kind]).parameters.items()}
        arguments = defaults | _arguments(kind, argument)
        return {"spec": kind, "arguments": arguments, "generator": GENERATOR_VERSION}
    return {"spec": str(spec), "torch_geometric": torch_geometric.__version__}


def source_name(spec: str | Path) -> str:
    """Return a short name fit for a folder, e.g. ``"cora"`` for ``"npz:/data/cora.npz"``."""
    kind, _, argument = _parse(spec)
    name = Path(argument).stem if kind in ("npz", "folder") else f"{kind}-{argument}" if argument else kind
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip("-.")[:60] or kind


def single_graph(dataset: Any) -> Any:
    """Return the only graph of a PyG dataset.

    Raises:
        ValueError: If it has more than one graph, or none.
        TypeError: If that is no ``Data`` and no ``HeteroData``.
    """
    name = type(dataset).__name__
    if len(dataset) != 1:
        raise ValueError(
            f"Expected a dataset of one graph, got {name} of {len(dataset)} graphs. "
            "Full-graph training takes one: pass the Data you mean, dataset[i]."
        )
    data = dataset[0]
    if not isinstance(data, (Data, HeteroData)):
        raise TypeError(f"Expected a Data or HeteroData, got {type(data).__name__} from {name}.")
    return data


def _parse(spec: str | Path) -> tuple[str, str, str]:
    text = str(spec)
    kind, colon, argument = text.partition(":")
    if kind in SOURCES and not isinstance(spec, Path):
        if kind in ("npz", "planetoid", "pyg", "ogb") and not argument:
            raise ValueError(f"Expected a graph name like {SOURCES[kind]!r}, got {text!r}.")
        if kind == "karate" and argument:
            raise ValueError(f"Expected 'karate' without arguments, got {text!r}.")
        return kind, colon, argument
    path = Path(text).expanduser()
    if path.is_dir():
        return "folder", ":", text
    if path.suffix == ".npz":
        return "npz", ":", text
    close = difflib.get_close_matches(kind.lower(), SOURCES, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    forms = "\n  ".join([*SOURCES.values(), "the path of a partition folder"])
    raise ValueError(
        f"Expected a graph name, got {text!r}, which is neither one nor a folder.{hint} The forms are\n  {forms}"
    )


def _arguments(kind: str, text: str) -> dict[str, Any]:
    """Read ``key=value,key=value`` with the types of the generator's defaults."""
    parameters = inspect.signature(_GENERATED[kind]).parameters
    arguments: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if key not in parameters or not equals:
            close = difflib.get_close_matches(key, parameters, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"Expected arguments {list(parameters)} as key=value for {kind!r}, got {item!r}.{hint}")
        wanted = type(parameters[key].default)
        try:
            arguments[key] = wanted(value)
        except ValueError as error:
            raise ValueError(f"Expected {key} of {kind!r} as {wanted.__name__}, got {value!r}.") from error
    return arguments


def _generate(kind: str, text: str) -> Data:
    return _GENERATED[kind](**_arguments(kind, text))


def _karate() -> Data:
    data = single_graph(_import("torch_geometric.datasets", "PyG").KarateClub())
    rest = (~data.train_mask).nonzero().flatten()
    data.val_mask, data.test_mask = torch.zeros_like(data.train_mask), torch.zeros_like(data.train_mask)
    data.val_mask[rest[::2]], data.test_mask[rest[1::2]] = True, True
    return data


def _pyg_class(kind: str, argument: str) -> tuple[str, str]:
    if kind == "planetoid":
        return "Planetoid", argument
    name, _, rest = argument.partition(":")
    return name, rest


def _pyg(class_name: str, argument: str, folder: Path) -> Any:
    datasets = _import("torch_geometric.datasets", "PyG")
    dataset_class = getattr(datasets, class_name, None)
    if dataset_class is None:
        close = difflib.get_close_matches(class_name, datasets.__all__, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"Expected a class of torch_geometric.datasets, got {class_name!r}.{hint}")
    parameters = inspect.signature(dataset_class.__init__).parameters
    arguments: dict[str, Any] = {"root": str(folder / class_name)} if "root" in parameters else {}
    if argument:
        if "name" not in parameters:
            raise ValueError(f"Expected no name after pyg:{class_name}, which takes none, got {argument!r}.")
        arguments["name"] = argument
    return single_graph(_fetch(lambda: dataset_class(**arguments), f"{class_name} {argument}".strip(), folder))


def _ogb(name: str, folder: Path) -> Data:
    try:
        ogb: Any = importlib.import_module("ogb.nodeproppred")
    except ImportError as error:
        raise ImportError(f"The graph 'ogb:{name}' needs ogb: pip install 'lightning-gnncomm[ogb]'.") from error
    dataset = _fetch(lambda: ogb.PygNodePropPredDataset(name, root=str(folder / "ogb")), name, folder)
    data = single_graph(dataset)
    assert data.num_nodes is not None and isinstance(data.y, Tensor)
    for part, nodes in dataset.get_idx_split().items():
        mask = torch.zeros(data.num_nodes, dtype=torch.bool)
        mask[nodes] = True
        data[{"train": "train_mask", "valid": "val_mask", "test": "test_mask"}[part]] = mask
    if data.y.size(-1) == 1:
        data.y = data.y.flatten()  # losses and metrics want [N], ogb gives [N, 1]
    return data


def _fetch(make: Callable[[], Any], name: str, folder: Path) -> Any:
    try:
        return make()
    except Exception as error:  # downloads, archives and PyG's own readers fail in many ways
        raise RuntimeError(
            f"Could not load {name} from {folder} or download it there ({type(error).__name__}: {error}). "
            "Check the name and the network, or put the files there by hand."
        ) from error


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"This graph needs {name}.") from error
