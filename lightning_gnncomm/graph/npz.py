"""Graphs in single ``.npz`` files: edges, dense or CSR features, targets, masks and a JSON description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from lightning_gnncomm.graph.check import check_graph

__all__ = ["load_npz", "read_npz_meta"]

_MASKS = ("train_mask", "val_mask", "test_mask")
_SPARSE = ("x_indptr", "x_indices", "x_values", "x_shape")
_OF_NODES = ("x", *_SPARSE, "y", *_MASKS, *(f"{name}s" for name in _MASKS))


def load_npz(path: str | Path) -> Any:
    """Read a graph from one file.

    The file has ``edge_index`` ``[2, E]``; features as dense ``x`` ``[N, F]``, as CSR ``x_indptr``, ``x_indices``, ``x_values``,
    ``x_shape``, or none; ``y`` ``[N]`` (-1: unlabelled) or ``[N, K]`` for several labels; ``train_mask``, ``val_mask``,
    ``test_mask`` ``[N]``; ``train_masks`` etc. ``[N, K]`` where there are several splits. All but ``edge_index`` may be missing.

    A heterogeneous graph has ``edge_index__SOURCE__RELATION__DESTINATION`` for each edge type and the others with the node type behind
    two underscores, as in ``x__paper``. Its ``meta``, JSON, may give ``node_types``, the number of nodes by type, which also orders
    the types; others are counted from their rows, or from the edges.

    Returns:
        A ``Data`` or ``HeteroData``: ``x`` dense float32, ``edge_index`` and single labels int64, several labels float32, masks
        without unlabelled nodes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no such file.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"Expected a graph file, found none at {path}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"Expected {path} to be an .npz file of plain arrays: {error}.") from error
    if any(name.startswith("edge_index__") for name in arrays):
        return _to_hetero_data(arrays, path)
    if "edge_index" not in arrays:
        raise ValueError(f"Expected an array edge_index in {path}, found {sorted(arrays)}.")
    return _to_data(arrays)


def read_npz_meta(path: str | Path) -> dict[str, Any]:
    """Return the JSON description of a graph file (source, licence, counts), empty if it has none."""
    with np.load(Path(path).expanduser(), allow_pickle=False) as file:
        return _meta({name: file[name] for name in file.files if name == "meta"})


def _meta(arrays: Mapping[str, Any]) -> dict[str, Any]:
    meta = json.loads(str(arrays["meta"][0])) if "meta" in arrays else {}
    assert isinstance(meta, dict)
    return meta


def _to_data(arrays: Mapping[str, Any]) -> Data:
    data = Data(edge_index=torch.from_numpy(arrays["edge_index"].astype(np.int64)))
    for key, value in _node_attributes(arrays).items():
        data[key] = value
    data.num_nodes = _num_nodes(data)
    return data


def _to_hetero_data(arrays: Mapping[str, Any], path: Path) -> HeteroData:
    edges, of_nodes = _split_names(arrays, path)
    counts: dict[str, int] = _meta(arrays).get("node_types", {})
    ends = [end for source, _, target in edges for end in (source, target)]
    data = HeteroData()
    for node_type in dict.fromkeys([*counts, *of_nodes, *ends]):
        for key, value in _node_attributes(of_nodes.get(node_type, {})).items():
            data[node_type][key] = value
        if node_type in counts:
            data[node_type].num_nodes = counts[node_type]
    for relation, edge_index in edges.items():
        data[relation].edge_index = torch.from_numpy(edge_index.astype(np.int64))
    return check_graph(data)  # which counts the nodes of types that are known from edges only


def _split_names(arrays: Mapping[str, Any], path: Path) -> tuple[dict[Any, Any], dict[str, dict[str, Any]]]:
    """Return the edges by edge type, and by node type the arrays under their names in a homogeneous file."""
    edges: dict[Any, Any] = {}
    of_nodes: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        key, _, kind = name.partition("__")
        if key == "edge_index":
            relation = tuple(kind.split("__"))
            if len(relation) != 3:
                raise ValueError(
                    f"Expected edges as edge_index__SOURCE__RELATION__DESTINATION in {path}, got {name}. Names of types must "
                    "have no two underscores in a row."
                )
            edges[relation] = array
        elif key in _OF_NODES and kind:
            of_nodes.setdefault(kind, {})[key] = array
    return edges, of_nodes


def _node_attributes(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what the nodes (of one type) have."""
    found = {}
    x = _features(arrays)
    if x is not None:
        found["x"] = x
    labelled = None
    if "y" in arrays:
        y = torch.from_numpy(arrays["y"])
        found["y"] = y.float() if y.dim() == 2 else y.long()
        labelled = found["y"] >= 0 if y.dim() == 1 else None
    for name in _MASKS:
        for key in (name, f"{name}s"):
            if key in arrays:
                found[key] = _labelled_only(torch.from_numpy(arrays[key].astype(bool)), labelled)
    return found


def _features(arrays: Mapping[str, Any]) -> Tensor | None:
    if "x" in arrays:
        return torch.from_numpy(arrays["x"].astype(np.float32))
    if not all(name in arrays for name in _SPARSE):
        return None
    values = arrays["x_values"].astype(np.float32)
    matrix = sp.csr_array((values, arrays["x_indices"], arrays["x_indptr"]), shape=tuple(arrays["x_shape"].tolist()))
    return torch.from_numpy(matrix.toarray())


def _labelled_only(mask: Tensor, labelled: Tensor | None) -> Tensor:
    if labelled is None:
        return mask
    return mask & labelled.reshape(-1, *[1] * (mask.dim() - 1))


def _num_nodes(data: Data) -> int:
    for key in ("x", "y", *_MASKS):
        if key in data:
            return int(data[key].size(0))
    assert data.edge_index is not None
    return int(data.edge_index.max()) + 1 if data.edge_index.numel() else 0
