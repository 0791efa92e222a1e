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
from torch_geometric.data import Data

__all__ = ["load_npz", "read_npz_meta"]

_MASKS = ("train_mask", "val_mask", "test_mask")
_SPARSE = ("x_indptr", "x_indices", "x_values", "x_shape")


def load_npz(path: str | Path) -> Data:
    """Read a homogeneous graph from one file.

    The file has ``edge_index`` ``[2, E]``; features as dense ``x`` ``[N, F]``, as CSR ``x_indptr``, ``x_indices``, ``x_values``,
    ``x_shape``, or none; ``y`` ``[N]`` (-1: unlabelled) or ``[N, K]`` for several labels; ``train_mask``, ``val_mask``,
    ``test_mask`` ``[N]``; ``train_masks`` etc. ``[N, K]`` where there are several splits. All but ``edge_index`` may be missing.

    Returns:
        ``x`` dense float32, ``edge_index`` and single labels int64, several labels float32, masks without unlabelled nodes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no such file, or holds a heterogeneous graph.
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
        raise ValueError(
            f"Expected a homogeneous graph, {path} is heterogeneous. Heterogeneous graphs are not supported yet."
        )
    if "edge_index" not in arrays:
        raise ValueError(f"Expected an array edge_index in {path}, found {sorted(arrays)}.")
    return _to_data(arrays)


def read_npz_meta(path: str | Path) -> dict[str, Any]:
    """Return the JSON description of a graph file (source, licence, counts), empty if it has none."""
    with np.load(Path(path).expanduser(), allow_pickle=False) as file:
        meta = json.loads(str(file["meta"][0])) if "meta" in file.files else {}
    assert isinstance(meta, dict)
    return meta


def _to_data(arrays: Mapping[str, Any]) -> Data:
    data = Data(edge_index=torch.from_numpy(arrays["edge_index"].astype(np.int64)))
    x = _features(arrays)
    if x is not None:
        data.x = x
    labelled = None
    if "y" in arrays:
        y = torch.from_numpy(arrays["y"])
        data.y = y.float() if y.dim() == 2 else y.long()
        labelled = data.y >= 0 if y.dim() == 1 else None
    for name in _MASKS:
        for key in (name, f"{name}s"):
            if key in arrays:
                data[key] = _labelled_only(torch.from_numpy(arrays[key].astype(bool)), labelled)
    data.num_nodes = _num_nodes(data)
    return data


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
