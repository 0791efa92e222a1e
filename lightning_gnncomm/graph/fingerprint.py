"""Content hashes of graphs, and what of a graph can be stored at all."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from lightning_gnncomm.graph.adjacency import sparse_parts
from lightning_gnncomm.graph.typed import Graph, of_type, stores

__all__ = ["add_tensor", "check_storable", "fingerprint", "short_hash"]


def fingerprint(graph: Graph) -> str:
    """Return a hash of ``edge_index`` and every attribute of a checked graph: 32 hexadecimal digits.

    Ids count by value, not by width: an int32 and an int64 ``edge_index`` give the same hash. In a heterogeneous graph the order of
    types counts, as models depend on it.

    Raises:
        ValueError: If an attribute cannot be stored.

    Example:
        >>> from torch_geometric.data import Data
        >>> graph = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
        >>> fingerprint(graph) == fingerprint(graph.clone())
        True
    """
    check_storable(graph)
    digest = hashlib.sha256()
    for name, store in stores(graph).items():
        if name is not None:
            digest.update(f"{json.dumps(name)}\0".encode())
        for key in sorted(store.keys()):
            value = store[key]
            if isinstance(value, Tensor):
                add_tensor(digest, key, value.long() if key == "edge_index" else value)
            else:
                digest.update(f"{key}\0{json.dumps(value, sort_keys=True)}\0".encode())
    return digest.hexdigest()[:32]


def add_tensor(digest: Any, key: str, value: Tensor) -> None:
    """Feed a named tensor to a hash of ``hashlib``: its name, type, shape and bytes, or those of what a sparse one consists of."""
    if value.layout != torch.strided:
        for name, inner in sparse_parts(value).items():
            add_tensor(digest, f"{key}.{name}", inner)
        return
    digest.update(f"{key}\0{value.dtype}\0{list(value.shape)}\0".encode())
    # Bytes, because NumPy has no bfloat16; reshaped, because a scalar has no bytes to view.
    plain = value.detach().cpu().as_subclass(Tensor).contiguous().reshape(-1)
    digest.update(plain.view(torch.uint8).numpy().data)


def check_storable(graph: Graph) -> None:
    """Raise a ``ValueError`` that names the first attribute which is neither a dense tensor, nor ``adj_t``, nor plain JSON data."""
    for name, store in stores(graph).items():
        for key, value in store.items():
            if not _is_storable(key, value):
                raise ValueError(
                    f"Expected attributes that are tensors or plain JSON data (numbers, strings, lists, dicts with string keys), "
                    f"got {key!r}{of_type(name)} of type {type(value).__name__}, which cannot be stored. Convert it to a tensor or "
                    "delete it."
                )


def _is_storable(key: str, value: Any) -> bool:
    if isinstance(value, Tensor) and (value.layout == torch.strided or key == "adj_t") and not value.is_quantized:
        return True
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def short_hash(value: Any) -> str:
    """Return 12 hexadecimal digits that stand for plain JSON data.

    Example:
        >>> short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
        True
    """
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=6).hexdigest()
